"""Closed-form denoisers against their definitions, written out anew and densely."""

import pytest
import torch

from tessera.conditioning import LocationGrid, LocationList
from tessera.errors import UserError
from tessera.models.closed_form import Empirical, Local, LocalConditional, patch_keys
from tessera.models.contract import Denoiser
from tessera.sampling import euler, noise_levels, sample

SIZE, CELLS, COUNT = 8, 4, 60
CONDITIONER = LocationGrid(cells=CELLS)


@pytest.fixture(scope="module")
def data():
    chance = torch.Generator().manual_seed(0)
    images = torch.rand(COUNT, 3, SIZE, SIZE, generator=chance) * 2 - 1
    cond = torch.zeros(COUNT, CONDITIONER.dim)
    cond.scatter_(1, torch.randint(CONDITIONER.dim, (COUNT, 1), generator=chance), 1.0)
    return images, cond


def noisy(images, sigma, seed=1):
    return images + sigma * torch.randn(images.shape, generator=torch.Generator().manual_seed(seed))


def dense(x, images, sigma):
    """The posterior mean, in one go."""
    apart = (x.double()[:, None] - images.double()[None]).square().flatten(2).sum(2)
    weights = (-apart / (2 * sigma**2)).softmax(1)
    return torch.einsum("qn,nchw->qchw", weights, images.double())


@pytest.mark.parametrize("sigma", [0.05, 0.5, 3.0, 80.0])
@pytest.mark.parametrize("batch", [1, 7, 60, 1000])
def test_streaming_posterior_equals_the_dense_one(data, sigma, batch):
    images, _ = data
    x = noisy(images[:5], sigma)
    assert (Empirical(images, batch=batch)(x, sigma) - dense(x, images, sigma)).abs().max() <= 1e-6


def test_data_may_come_in_pieces_of_any_size(data):
    images, cond = data
    pieces = [(images[:13], cond[:13]), (images[13:14], cond[13:14]), (images[14:], cond[14:])]
    x = noisy(images[:4], 1.0)
    streamed = Empirical(lambda: pieces, batch=9)
    assert torch.allclose(streamed(x, 1.0, cond[:4]), Empirical(images, cond)(x, 1.0, cond[:4]), atol=1e-6)


def test_a_condition_leaves_only_the_images_that_have_it(data):
    images, cond = data
    x = noisy(images[:1], 2.0)
    same = (cond == cond[0]).all(1)
    assert (Empirical(images, cond)(x, 2.0, cond[:1]) - dense(x, images[same], 2.0)).abs().max() <= 1e-6


def test_a_condition_of_no_image_is_refused_in_one_sentence(data):
    images, cond = data
    with pytest.raises(UserError, match="No image"):
        Empirical(images, cond)(images[:1], 1.0, torch.full_like(cond[:1], 3.0))


def test_with_no_noise_left_an_image_of_the_data_is_itself(data):
    images, _ = data
    assert (Empirical(images)(images[:3], 0.01) - images[:3]).abs().max() < 1e-6


def patch_of(images, cell, radius):
    """(N, C, patch, patch), zero beyond the border."""
    step = SIZE // CELLS
    padded = torch.nn.functional.pad(images, (radius * step,) * 4)
    row, column = cell // CELLS * step, cell % CELLS * step
    side = (2 * radius + 1) * step
    return padded[:, :, row : row + side, column : column + side]


def cell_by_cell(x, sigma, radius, candidates):
    """Denoise every cell from `candidates(b, cell)`, patches (n, C, patch, patch)."""
    step = SIZE // CELLS
    clean = torch.empty_like(x, dtype=torch.float64)
    keep = slice(radius * step, (radius + 1) * step)
    for b in range(len(x)):
        for cell in range(CELLS**2):
            mean = dense(patch_of(x[b : b + 1], cell, radius), candidates(b, cell), sigma)
            row, column = cell // CELLS * step, cell % CELLS * step
            clean[b, :, row : row + step, column : column + step] = mean[0, :, keep, keep]
    return clean


@pytest.mark.parametrize("sigma", [0.3, 2.0])
def test_local_with_position_is_the_patch_posterior_of_each_location(data, sigma):
    images, _ = data
    x = noisy(images[:2], sigma)
    local = Local(images, CELLS, 1, reach=0, dtype=torch.float64)
    expected = cell_by_cell(x, sigma, 1, lambda b, cell: patch_of(images, cell, 1))
    assert (local(x, sigma) - expected).abs().max() <= 1e-6


def test_local_without_position_takes_patches_from_everywhere(data):
    images, _ = data
    x = noisy(images[:1], 1.0)
    everywhere = torch.cat([patch_of(images, cell, 1) for cell in range(CELLS**2)])
    expected = cell_by_cell(x, 1.0, 1, lambda b, cell: everywhere)
    assert (Local(images, CELLS, 1, reach=None, dtype=torch.float64)(x, 1.0) - expected).abs().max() <= 1e-6


def test_the_output_does_not_depend_on_how_patches_are_cut_into_pieces(data):
    images, _ = data
    x = noisy(images[:3], 0.5)
    whole, pieces = (Local(images, CELLS, 1, dtype=torch.float64, numbers_at_once=n)(x, 0.5) for n in (None, 300))
    assert (whole - pieces).abs().max() <= 1e-6


def test_one_cell_covers_the_whole_image_as_empirical_does(data):
    images, _ = data
    x = noisy(images[:3], 1.0)
    assert (Local(images, 1, 0, dtype=torch.float64)(x, 1.0) - Empirical(images)(x, 1.0)).abs().max() <= 1e-6


def test_a_patch_does_not_depend_on_pixels_beyond_its_edge(data):
    images, _ = data
    x = noisy(images[:1], 3.0)
    other = x.clone()
    other[..., 4:] += 1.0  # cells 2 and 3 of 4; the patch of cell 0 with radius 1 holds cells 0 and 1
    local = Local(images, CELLS, 1)
    assert torch.equal(local(x, 3.0)[..., :2], local(other, 3.0)[..., :2])
    assert not torch.equal(local(x, 3.0)[..., 2:4], local(other, 3.0)[..., 2:4])


@pytest.mark.parametrize("keep", [1, 5, 30])
def test_the_closest_few_err_by_no_more_than_the_recorded_share(data, keep):
    images, _ = data
    x = noisy(images[:4], 1.0)
    few, all_ = Local(images, CELLS, 1, keep=keep), Local(images, CELLS, 1, dtype=torch.float64)
    error = (few(x, 1.0) - all_(x, 1.0)).abs().max()
    assert 0 < error <= 2 * few.dropped + 1e-5


def test_keeping_all_is_exact(data):
    images, _ = data
    x = noisy(images[:2], 0.4)
    kept = Local(images, CELLS, 1, keep=COUNT)
    assert (kept(x, 0.4) - Local(images, CELLS, 1, dtype=torch.float64)(x, 0.4)).abs().max() <= 1e-5
    assert kept.dropped < 1e-4


def agreeing(cond, prompt, cell, radius):
    """Which images have the conditions of the prompt near a cell, by the conditioner's own `near`."""
    location = (cell // CELLS, cell % CELLS)
    near = CONDITIONER.near(cond, location, radius)
    return (near == CONDITIONER.near(prompt, location, radius)).all(1)


def test_only_patches_whose_near_conditions_agree_are_used(data):
    images, cond = data
    prompt, x = CONDITIONER.at([(0.1, 0.1), (0.9, 0.9)]), noisy(images[:1], 1.0)
    ideal = LocalConditional(images, cond, CONDITIONER, radius=1, least=1, dtype=torch.float64)

    def candidates(b, cell):
        for near in (1, 0):
            rows = agreeing(cond, prompt, cell, near)
            if rows.any():
                return patch_of(images[rows], cell, 1)
        return patch_of(images, cell, 1)

    expected = cell_by_cell(x, 1.0, 1, candidates)
    assert (ideal(x, 1.0, prompt) - expected).abs().max() <= 1e-6
    assert ideal.agreement[1] > 0


def test_without_conditions_it_is_the_local_denoiser(data):
    images, cond = data
    x = noisy(images[:2], 1.0)
    both = LocalConditional(images, cond, CONDITIONER, 1), Local(images, CELLS, 1)
    assert torch.equal(*(ideal(x, 1.0) for ideal in both))


def test_images_of_a_batch_do_not_mix(data):
    images, cond = data
    x, sigma = noisy(images[:3], 1.0), torch.tensor([0.3, 1.0, 5.0])
    ideal = LocalConditional(images, cond, CONDITIONER, 1, dtype=torch.float64)
    alone = torch.cat([ideal(x[n : n + 1], sigma[n], cond[n : n + 1]) for n in range(3)])
    assert (ideal(x, sigma, cond[:3]) - alone).abs().max() <= 1e-6


def test_where_too_few_agree_a_smaller_radius_decides(data):
    images, cond = data
    ideal = LocalConditional(images, cond, CONDITIONER, 1, least=COUNT)
    ideal(images[:1], 1.0, cond[:1])
    assert ideal.agreement[1] == 0 and ideal.agreement[None] == CELLS**2 - ideal.agreement[0]


def test_lists_and_grids_of_the_same_locations_have_the_same_keys():
    locations = [(0.3, 0.4), (0.8, 0.9)]
    grid, listed = CONDITIONER.at(locations), LocationList(cells=CELLS).at(locations)
    assert torch.equal(patch_keys(CONDITIONER, grid, 1), patch_keys(LocationList(cells=CELLS), listed, 1))


def test_keys_are_equal_exactly_where_near_conditions_are():
    cond = torch.cat([CONDITIONER.at(p) for p in ([(0.1, 0.1)], [(0.1, 0.1), (0.9, 0.9)], [(0.9, 0.9)], [])])
    keys = patch_keys(CONDITIONER, cond, 1)
    for cell in range(CELLS**2):
        near = CONDITIONER.near(cond, (cell // CELLS, cell % CELLS), 1)
        same = (near[:, None] == near[None]).all(-1)
        assert torch.equal(keys[:, cell, None] == keys[None, :, cell], same)


def test_all_are_denoisers_and_can_be_sampled(data):
    images, cond = data
    for ideal in (Empirical(images, cond), Local(images, CELLS, 1), LocalConditional(images, cond, CONDITIONER, 1)):
        assert isinstance(ideal, Denoiser)
        made = sample(ideal, cond[:1], SIZE, [0, 1], sigmas=noise_levels(6, 0.02), solver=euler)
        assert made.shape == (2, 3, SIZE, SIZE) and made.abs().max() < 1.2


@pytest.mark.parametrize(
    "build",
    [
        lambda images, cond: Local(images, 3),
        lambda images, cond: Local(images, CELLS, -1),
        lambda images, cond: Local(images[:0], CELLS),
        lambda images, cond: LocalConditional(images, cond[:3], CONDITIONER),
        lambda images, cond: Empirical(images, cond[:3]),
        lambda images, cond: Empirical(images, batch=0),
        lambda images, cond: Local(images, CELLS)(images[:, :, :4, :4], 1.0),
    ],
)
def test_data_that_do_not_fit_are_refused_in_one_sentence(data, build):
    with pytest.raises(UserError):
        build(*data)


def test_where_no_condition_agrees_the_first_images_are_used_whatever_their_conditions():
    conditioner, images = LocationGrid(cells=2), torch.rand(40, 1, 4, 4)
    cond = torch.zeros(40, 4)
    cond[1::2] = 1
    local = LocalConditional(images, cond, conditioner, radius=0, least=3, most=5)
    ood = torch.full((1, 4), 7.0)  # as many objects in a cell as no image has
    for group in local.groups(ood, images[:1]):
        assert [rows.tolist() for _, rows in group.sources] == [[0, 1, 2, 3, 4]]
    assert local.agreement[None] == 4
