"""The patchwise denoiser: exactly local, equal to a loop over cells, trained on balanced patches."""

import inspect

import pytest
import torch

from tessera.conditioning import LocationGrid, LocationList
from tessera.config import settings_for
from tessera.errors import UserError
from tessera.models.build import build_denoiser, denoiser_config, denoiser_from
from tessera.models.contract import TrainsOnPatches, trained_network
from tessera.models.patchwise import Patchwise

GRID = LocationGrid(cells=8)
SMALL = {"width": 8, "blocks": 1, "head_width": 8, "attention": (), "mult": (1, 2)}


def network(conditioner=GRID, size=16, radius=1, **options):
    """Untrained EDM2s answer zero; a gain makes every path through them count."""
    torch.manual_seed(0)
    made = Patchwise(size, conditioner, radius, **{**SMALL, **options}).eval()
    for name, parameter in made.named_parameters():
        if name.endswith("gain"):
            torch.nn.init.constant_(parameter, 0.7)
    return made.double()


def images(size=16, count=1):
    generator = torch.Generator().manual_seed(1)
    return torch.randn(count, 3, size, size, generator=generator, dtype=torch.float64)


def influence(denoiser, row, column, cond):
    """Absolute gradients of one output pixel with respect to all input pixels, and to the condition."""
    x = images(denoiser.size).requires_grad_()
    cond = cond.clone().double().requires_grad_()
    denoiser(x, torch.tensor(0.8), cond)[:, :, row, column].sum().backward()
    return x.grad.abs().sum((0, 1)), cond.grad.abs()[0]


@pytest.mark.parametrize("tile", [1, 2])
@pytest.mark.parametrize(("row", "column"), [(0, 0), (7, 9), (15, 3)])
def test_output_is_exactly_independent_of_pixels_outside_the_patch(row, column, tile):
    denoiser = network(tile=tile)
    pixels, given = influence(denoiser, row, column, torch.ones(1, 64))
    cell_row, cell_column = row // 2, column // 2
    inside = torch.zeros(16, 16, dtype=torch.bool)
    top, left = max(0, 2 * (cell_row - 1)), max(0, 2 * (cell_column - 1))
    inside[top : 2 * (cell_row + 2), left : 2 * (cell_column + 2)] = True
    assert (pixels[~inside] == 0.0).all() and (pixels[inside] > 0).all()
    near = GRID.near(torch.ones(1, 64), (cell_row, cell_column), 1)[0] > 0
    assert (given[~near] == 0.0).all() and (given[near] > 0).all()


def test_output_is_exactly_independent_of_listed_locations_outside_the_patch():
    conditioner = LocationList(slots=3, cells=8)
    cond = conditioner.at([(0.3, 0.3), (0.9, 0.9), (0.35, 0.2)])
    _, given = influence(
        network(conditioner), 4, 5, cond
    )  # cell (2, 2); the locations lie in cells (2, 2), (7, 7), (1, 2)
    assert (given[3:6] == 0.0).all() and (given[:3] > 0).all() and (given[6:] > 0).all()


def test_cond_radius_may_be_smaller_than_the_pixel_radius():
    denoiser = network(radius=2, cond_radius=1)
    pixels, given = influence(denoiser, 7, 9, torch.ones(1, 64))  # cell (3, 4)
    assert (pixels[2:12, 4:14] > 0).all() and pixels.count_nonzero() == 10 * 10
    near = GRID.near(torch.ones(1, 64), (3, 4), 1)[0] > 0
    assert (given[~near] == 0.0).all() and (given[near] > 0).all()
    again = denoiser_from(denoiser_config(denoiser))
    assert (again.radius, again.cond_radius) == (2, 1)


def test_half_of_the_training_patches_have_a_condition_within_cond_radius():
    cond = GRID.at([(0.4, 0.4)]).repeat(50, 1)
    x, index = images(count=50).float(), torch.arange(50)
    conditions = network(radius=2, cond_radius=0).training_patches(x, cond, index).cond[:, :1]
    assert conditions[:50].all() and not conditions[50:].any()


def test_cond_radius_is_at_most_the_radius_and_at_least_0():
    assert network(radius=1, cond_radius=5).cond_radius == 1
    with pytest.raises(UserError, match="its own cell at least"):
        network(cond_radius=-1)
    given = [settings_for("exp2L", "tiny", {"denoiser": {"cond_radius": n}}) for n in (0, 1, 2, 16)]
    assert [build_denoiser(one).cond_radius for one in given] == [0, 1, 2, 2]


def test_at_full_radius_every_output_depends_on_the_whole_image():
    pixels, given = influence(network(radius=7), 0, 0, torch.ones(1, 64))
    assert (pixels > 0).all() and (given > 0).all()


def test_half_the_cells_as_radius_makes_the_patch_as_large_as_the_image():
    denoiser = network(radius=4)
    assert denoiser.patch >= denoiser.size
    pixels, _ = influence(denoiser, 8, 8, torch.ones(1, 64))
    assert (pixels > 0).all()


@pytest.mark.parametrize("mult", [(1, 2), (1, 1, 2)])  # with three levels a patch of 6 pixels must be padded
def test_one_batched_call_equals_a_loop_over_cells(mult):
    denoiser = network(mult=mult, pixels_at_once=500)
    x, cond = images(count=2), GRID.at([(0.3, 0.6), (0.9, 0.1)]).repeat(2, 1).double()
    sigma = torch.tensor([0.4, 3.0], dtype=torch.float64)
    padded = torch.nn.functional.pad(x, (2, 2 + denoiser.side, 2, 2 + denoiser.side))
    expected = torch.zeros_like(x)
    for row in range(8):
        for column in range(8):
            patch = torch.zeros(2, 3, denoiser.side, denoiser.side, dtype=torch.float64)
            patch[:, :, :6, :6] = padded[:, :, 2 * row : 2 * row + 6, 2 * column : 2 * column + 6]
            near = torch.nn.functional.pad(cond.reshape(2, 8, 8), (1, 1, 1, 1))[:, row : row + 3, column : column + 3]
            location = torch.tensor([[(2 * row + 1) / 8 - 1, (2 * column + 1) / 8 - 1]] * 2, dtype=torch.float64)
            clean = denoiser.network(patch, sigma, torch.cat([near.reshape(2, 9), location], 1))
            expected[:, :, 2 * row : 2 * row + 2, 2 * column : 2 * column + 2] = clean[:, :, 2:4, 2:4]
    assert torch.allclose(denoiser(x, sigma, cond), expected, atol=1e-12)


def test_no_condition_means_no_condition_anywhere():
    denoiser, x = network(), images()
    nothing = torch.zeros(1, 64, dtype=torch.float64)
    assert torch.equal(denoiser(x, 1.0), denoiser(x, 1.0, nothing))


def test_training_takes_one_patch_with_and_one_without_a_condition():
    denoiser = network()
    cond = GRID.at([(0.4, 0.4)]).repeat(300, 1)
    views = denoiser.training_patches(images(count=300).float(), cond, torch.arange(300), seed=0)
    counts = views.cond[:, :9].sum(1)
    assert (counts[:300] == 1).all() and (counts[300:] == 0).all()
    assert len({tuple(row) for row in views.cond[:300, 9:].tolist()}) == 9  # every cell that sees it
    assert len({tuple(row) for row in views.cond[300:, 9:].tolist()}) > 45  # of the 55 that do not
    assert sorted(views.index.tolist()) == list(range(600))


def test_training_may_take_more_patches_of_each_image():
    denoiser, count = network(), 20
    cond = GRID.at([(0.4, 0.4)]).repeat(count, 1)
    x, index = images(count=count).float(), torch.arange(count)
    views = denoiser.training_patches(x, cond, index, seed=0, patches=6)
    active = views.cond[:, :9].sum(1).reshape(6, count)
    assert (active[0::2] == 1).all() and (active[1::2] == 0).all()
    where = views.cond[:, 9:].reshape(6, count, 2)
    assert (where[0] != where[2]).any() and (where[1] != where[3]).any()
    assert sorted(views.index.tolist()) == list(range(6 * count))  # each has noise of its own


def test_the_loss_can_be_restricted_to_the_center_of_a_patch():
    denoiser, count = network(), 5
    cond = GRID.at([(0.4, 0.4)]).repeat(count, 1)
    x, index = images(count=count).float(), torch.arange(count)
    whole = denoiser.training_patches(x, cond, index)
    center = denoiser.training_patches(x, cond, index, loss_radius=0)
    assert torch.equal(whole.loss_weight, whole.inside)
    kept = denoiser.center(center.loss_weight)  # the cell itself is always inside
    assert (kept == (denoiser.patch / denoiser.cell) ** 2).all()
    assert center.loss_weight.sum() == kept.sum()


def test_a_training_patch_is_the_patch_of_sampling():
    denoiser = network()
    x, cond, index = images(count=4).float(), GRID.at([(0.01, 0.99)]).repeat(4, 1), torch.arange(4)
    views = denoiser.training_patches(x, cond, index, seed=3)
    shown, given = (
        denoiser.unfold(x).unflatten(0, (4, 64)),
        denoiser.conditioned_everywhere(cond).unflatten(0, (4, 64)),
    )
    for n in range(8):
        cell = (given[n % 4] == views.cond[n]).all(1).nonzero()[0]
        assert torch.equal(shown[n % 4, cell[0]], views.images[n])
        assert torch.equal(denoiser.unfold(torch.ones_like(x))[cell[0]][:1], views.inside[n])


def test_patches_depend_on_the_sample_and_not_on_its_batch():
    denoiser, x = network(), images(count=6).float()
    cond, index = GRID.at([(0.5, 0.5)]).repeat(6, 1), torch.arange(10, 16)
    whole = denoiser.training_patches(x, cond, index, seed=1)
    part = denoiser.training_patches(x[4:], cond[4:], index[4:], seed=1)
    assert torch.equal(part.images, whole.images[[4, 5, 10, 11]])


def test_without_a_fitting_patch_any_patch_is_taken():
    denoiser = network(radius=7)
    x, index = images(count=2).float(), torch.arange(2)
    full = denoiser.training_patches(x, GRID.at([(0.5, 0.5)]).repeat(2, 1), index, 0)
    empty = denoiser.training_patches(x, torch.zeros(2, 64), index, 0)
    assert full.images.shape == empty.images.shape == (4, 3, 30, 30)


def test_a_config_builds_the_same_network_again():
    made = network(radius=2, attention=(16,))
    again = denoiser_from(denoiser_config(made)).double().eval()
    again.load_state_dict(made.state_dict())
    assert torch.equal(again(images(), 1.0, torch.ones(1, 64)), made(images(), 1.0, torch.ones(1, 64)))


def test_cells_that_do_not_divide_the_image_are_refused():
    with pytest.raises(UserError, match="do not divide"):
        Patchwise(20, GRID, 1, **SMALL)
    with pytest.raises(UserError, match="reaches from 0 to 7"):
        Patchwise(16, GRID, 8, **SMALL)
    with pytest.raises(UserError, match="takes images"):
        network()(torch.zeros(1, 3, 8, 8), 1.0)
    with pytest.raises(UserError, match="takes conditions"):
        network()(torch.zeros(1, 3, 16, 16), 1.0, torch.zeros(1, 3))


def test_training_takes_the_network_on_patches_in_every_python():
    """From 3.12 on `isinstance` asks for members without `__getattr__`, which is how modules hold submodules."""
    denoiser = network()
    assert trained_network(denoiser) is denoiser.network
    members = {*vars(TrainsOnPatches), *inspect.get_annotations(TrainsOnPatches)}
    for name in members:
        if not name.startswith("_"):
            inspect.getattr_static(denoiser, name)


@pytest.mark.parametrize(
    ("requested", "tile", "levels"),
    [
        ({}, 2, 2),
        ({"radius": 3, "tile": 4, "mult": (6,)}, 4, 1),  # a single level need not be to_half
        ({"radius": 3, "tile": 4}, 1, 3),
    ],
)
def test_tiles_and_levels_are_such_that_they_divide_a_patch(requested, tile, levels):
    made = build_denoiser(settings_for("exp2L", "small", {"denoiser": requested}))
    assert made.config["tile"] == tile and len(made.config["mult"]) == levels
    assert made.side == made.patch  # nothing was padded
