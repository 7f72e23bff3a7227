"""Composition at inference time, on distributions whose composition is known."""

import pytest
import torch

from tessera.conditioning import ColorCounts, LocationGrid
from tessera.errors import UserError
from tessera.models.contract import Denoiser
from tessera.models.patchwise import Patchwise
from tessera.models.precondition import per_image
from tessera.sampling import compose, euler, noise_levels, sample
from tessera.sampling.compose import COMPOSE_METHODS, compose_by_name, nearest_regions
from tessera.studies.theory.compositions import Family, assembled, coupled

CONDITIONER = LocationGrid(cells=2)
METHODS = (
    lambda d: compose.Sum(d, CONDITIONER),
    lambda d: compose.Project(d, CONDITIONER, radius=0),
    lambda d: compose.Localize(d, CONDITIONER, radius=0),
)


def on_grid(cells: int, cell: int, kind, rng: torch.Generator) -> Family:
    """A CPC over square images: condition j controls the j-th cell of a grid, row by row; no background."""
    pixels = torch.arange((cells * cell) ** 2).unflatten(0, (cells, cell, cells, cell))
    regions = pixels.permute(0, 2, 1, 3).reshape(cells**2, -1).tolist()
    return assembled([*regions, []], kind, rng)


class FamilyDenoiser:
    """A family over square images as a denoiser (Tweedie: x + sigma^2 score), conditioned on a set J."""

    def __init__(self, family: Family):
        self.family = family

    def __call__(self, x, sigma, cond=None):
        """The clean image for x (B, 1, S, S), noise level () or (B,), conditions (B, conditions) of 0 and 1."""
        levels = per_image(sigma, x).tolist()
        active = [()] * len(x) if cond is None else [tuple(row.nonzero()[:, 0].tolist()) for row in cond]
        rows = []
        for image, level, J in zip(x.flatten(1).double(), levels, active):
            rows.append(image + level**2 * self.family.given(J).noised(level).score(image[None])[0])
        return torch.stack(rows).reshape(x.shape).to(x.dtype)


def denoiser(kind="mixture"):
    return FamilyDenoiser(on_grid(2, 2, kind, torch.Generator().manual_seed(0)))


def conditions():
    """No, one, two and all four conditions."""
    return torch.tensor([[0, 0, 0, 0], [0, 1, 0, 0], [1, 0, 0, 1], [1, 1, 1, 1]], dtype=torch.float64)


def noisy(sigma, seed=0):
    return sigma * torch.randn(4, 1, 4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def test_cells_of_a_grid_are_regions():
    assert on_grid(2, 2, "gaussian", torch.Generator().manual_seed(0)).regions[1] == [2, 3, 6, 7]


@pytest.mark.parametrize("sigma", [0.1, 1.0, 20.0])
@pytest.mark.parametrize("kind", ["gaussian", "mixture", "points"])
@pytest.mark.parametrize("method", METHODS, ids=["sum", "project", "localize"])
def test_single_conditions_put_together_give_the_true_score_of_a_composition(method, kind, sigma):
    plain, x = denoiser(kind), noisy(sigma)
    true, composed = plain(x, sigma, conditions()), method(plain)(x, sigma, conditions())
    score = (composed - true).abs().max() / sigma**2
    assert score <= 1e-10


@pytest.mark.parametrize("method", METHODS, ids=["sum", "project", "localize"])
def test_a_coupled_distribution_is_not_its_composition(method):
    family = on_grid(2, 2, "mixture", torch.Generator().manual_seed(0))
    plain, x = FamilyDenoiser(coupled(family, 0.5, torch.Generator().manual_seed(1))), noisy(1.0)
    error = (method(plain)(x, 1.0, conditions()) - plain(x, 1.0, conditions())).flatten(1).abs().amax(1)
    assert error[0] < 1e-10 and error[2] > 1e-3 and error[3] > 1e-3


class GlobalDenoiser:
    """Every condition changes every pixel, as in a network that fails to compose."""

    def __init__(self):
        self.conds = []

    def __call__(self, x, sigma, cond=None):
        cond = x.new_zeros(len(x), 4) if cond is None else cond
        self.conds += [tuple(row) for row in cond.int().tolist()]
        return cond.sum(1)[:, None, None, None] + torch.zeros_like(x)


def test_a_pass_is_made_once_for_every_distinct_set_of_near_conditions():
    plain = GlobalDenoiser()
    local = compose.Localize(plain, CONDITIONER, radius=0)
    local(noisy(1.0), 1.0, conditions())
    # distinct sets per image: {none}; {1}, none; {0}, {3}, none; each of the four
    assert len(plain.conds) == local.passes == 1 + 2 + 3 + 4
    assert local.calls == 1


def test_with_a_wide_radius_every_cell_has_all_conditions():
    plain = GlobalDenoiser()
    local = compose.Localize(plain, CONDITIONER, radius=1)
    assert torch.equal(local(noisy(1.0), 1.0, conditions()), GlobalDenoiser()(noisy(1.0), 1.0, conditions()))
    assert local.passes == 4


def test_each_cell_has_only_its_near_conditions():
    clean = compose.Localize(GlobalDenoiser(), CONDITIONER, radius=0)(noisy(1.0), 1.0, conditions())[2, 0]
    assert clean[::2, ::2].tolist() == [[1, 0], [0, 1]]


def test_projecting_costs_one_pass_per_condition_and_an_unconditional_one():
    plain = GlobalDenoiser()
    projected = compose.Project(plain, CONDITIONER, radius=0)
    clean = projected(noisy(1.0), 1.0, conditions())
    assert projected.passes == 1 + 2 + 3 + 5
    assert clean[3].unique().tolist() == [1] and clean[0].unique().tolist() == [0]


def test_a_smaller_batch_gives_the_same_output():
    whole = compose.Project(denoiser(), CONDITIONER, radius=0)
    cut = compose.Project(denoiser(), CONDITIONER, radius=0, batch=2)
    x = noisy(1.0)
    assert torch.allclose(whole(x, 1.0, conditions()), cut(x, 1.0, conditions()), atol=1e-12)
    assert (whole.calls, cut.calls) == (1, 6) and whole.passes == cut.passes


def test_every_image_keeps_its_own_noise_level():
    sigma, x = torch.tensor([0.2, 1.0, 3.0, 9.0], dtype=torch.float64), noisy(1.0)
    for method in METHODS:
        alone = torch.cat([method(denoiser())(x[n : n + 1], sigma[n], conditions()[n : n + 1]) for n in range(4)])
        assert torch.allclose(method(denoiser())(x, sigma, conditions()), alone, atol=1e-10)


def test_without_a_condition_every_method_is_the_plain_denoiser():
    x = noisy(1.0)
    for how in COMPOSE_METHODS:
        assert torch.equal(compose_by_name(denoiser(), CONDITIONER, how)(x, 1.0), denoiser()(x, 1.0))


def test_regions_are_disjoint_and_go_to_the_nearest_object():
    masks = nearest_regions(8, 2)([(0.1, 0.5), (0.4, 0.5), (0.9, 0.1)], 16)
    assert masks.shape == (3, 16, 16) and masks.sum(0).max() == 1
    assert masks[0, 8, 0] and masks[1, 8, 7] and masks[2, 0, 15] and not masks[:, 15, 15].any()


def test_the_two_objects_of_one_cell_are_summed_twice_and_projected_once():
    twice = torch.tensor([[2.0, 0, 0, 0]], dtype=torch.float64)
    x = noisy(1.0)[:1]
    assert compose.Sum(GlobalDenoiser(), CONDITIONER)(x, 1.0, twice).unique().tolist() == [2]
    assert compose.Project(GlobalDenoiser(), CONDITIONER, radius=0)(x, 1.0, twice)[0, 0, 0, 0] == 1


def test_all_are_denoisers_and_can_be_sampled():
    for how in COMPOSE_METHODS:
        made = compose_by_name(GlobalDenoiser(), CONDITIONER, how, radius=0)
        assert isinstance(made, Denoiser)
        images = sample(made, CONDITIONER.at([(0.1, 0.1)]), 4, [0], channels=1, sigmas=noise_levels(4), solver=euler)
        assert images.shape == (1, 1, 4, 4) and made.calls == 4


def test_what_cannot_be_composed_is_refused():
    with pytest.raises(UserError, match="no location in the image"):
        compose_by_name(GlobalDenoiser(), ColorCounts(), "localize")
    with pytest.raises(UserError, match="plain, sum, project, localize"):
        compose_by_name(GlobalDenoiser(), CONDITIONER, "glue")
    with pytest.raises(UserError, match="do not divide"):
        compose.Localize(GlobalDenoiser(), CONDITIONER)(torch.zeros(1, 1, 5, 5), 1.0, CONDITIONER.at([(0.1, 0.1)]))


def test_colors_can_be_summed():
    conditioner = ColorCounts()
    composed = compose.Sum(lambda x, s, c: c.sum(1)[:, None, None, None] + 0 * x, conditioner)
    assert composed(torch.zeros(1, 3, 4, 4), 1.0, conditioner.at(["red", "blue"])).unique().tolist() == [2]


@pytest.mark.parametrize("radius", [2, 3])
def test_patches_are_conditioned_one_by_one_in_a_single_pass(radius):
    conditioner = LocationGrid(cells=8)
    network = Patchwise(16, conditioner, radius, 2, width=8, mult=(1,), blocks=1, attention=(), head_width=8).eval()
    with torch.no_grad():
        for name, gain in network.named_parameters():  # they begin at 0, and conditions would not count
            if name.endswith("gain"):
                gain.fill_(1.0)
    x = torch.randn(3, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    prompts = [[], [(0.3, 0.3)], [(0.3, 0.3), (0.5, 0.4), (0.9, 0.9)]]
    cond = torch.cat([conditioner.at(prompt) for prompt in prompts])
    slow = compose.Project(network, conditioner, 2, regions=nearest_regions(8, 2))
    quick = compose.Project(network, conditioner, 2)
    with torch.no_grad():
        torch.testing.assert_close(quick(x, 1.5, cond), slow(x, 1.5, cond))
        plain = network(x, 1.5, cond)
        assert torch.equal(quick(x, 1.5, cond)[:2], plain[:2])  # a single condition is that of the plain network
        assert not torch.allclose(quick(x, 1.5, cond)[2], plain[2], atol=1e-3)  # two in one patch are not
    assert quick.passes == 9 and slow.passes == 3 + 1 + 3
    other = compose.Project(network, conditioner, 1)
    assert not other.in_one_pass  # regions smaller than the patch leave near objects in one condition


def test_a_weight_says_how_much_each_summed_condition_counts():
    clean = compose.Sum(GlobalDenoiser(), CONDITIONER, weight=0.5)(noisy(1.0), 1.0, conditions())
    assert clean[:, 0, 0, 0].tolist() == [0, 0.5, 1, 2]
