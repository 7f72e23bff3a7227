"""The local convolutional denoiser: nothing beyond its stated reach, one pass, sizes kept."""

import pytest
import torch

from tessera.conditioning import LocationGrid, LocationList
from tessera.errors import UserError
from tessera.models.build import denoiser_config, denoiser_from
from tessera.models.local_conv import LocalConv, wide_layers

GRID = LocationGrid(cells=8)


def network(conditioner=GRID, size=32, gain=0.7, **options):
    torch.manual_seed(0)
    made = LocalConv(size, conditioner, **{"radius": 2, "width": 16, "depth": 4, **options}).eval()
    for name, parameter in made.named_parameters():
        if name.endswith("gain"):
            torch.nn.init.constant_(parameter, gain)
    return made


def influence(denoiser, row, column, cond):
    """Whether each input pixel, and each number of the condition, moves one output pixel at all."""
    denoiser = denoiser.double()
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(1, 3, denoiser.size, denoiser.size, generator=generator, dtype=torch.float64)
    x, cond = x.requires_grad_(), cond.double().requires_grad_()
    denoiser(x, torch.tensor(0.8), cond)[:, :, row, column].sum().backward()
    return x.grad.abs().sum((0, 1)), cond.grad.abs()[0]


def distance_map(size, row, column):
    """Chebyshev distance of every pixel from (row, column)."""
    steps = torch.arange(size)
    return torch.maximum((steps - row).abs()[:, None], (steps - column).abs()[None, :])


@pytest.mark.parametrize("tile", [1, 2, 4])
@pytest.mark.parametrize(("row", "column"), [(0, 0), (13, 18), (31, 8)])
def test_output_is_exactly_independent_of_pixels_beyond_the_stated_reach(tile, row, column):
    denoiser = network(tile=tile)
    assert denoiser.reach <= 2 * 4
    pixels, given = influence(denoiser, row, column, torch.ones(1, 64))
    far = distance_map(32, row, column) > denoiser.reach
    assert (pixels[far] == 0.0).all() and pixels[row, column] > 0
    cell_distance = -torch.nn.functional.max_pool2d(-distance_map(32, row, column)[None].double(), 4)[0]
    assert (given.reshape(8, 8)[cell_distance > denoiser.reach] == 0.0).all()
    assert given.reshape(8, 8)[row // 4, column // 4] > 0


def test_output_depends_on_pixels_at_the_stated_reach():
    denoiser = network(tile=1, depth=8)  # with tiles of one pixel the bound is met exactly
    pixels, _ = influence(denoiser, 16, 16, torch.ones(1, 64))
    assert denoiser.reach == 8
    felt = distance_map(32, 16, 16)[pixels > 0].max()
    assert felt == denoiser.reach


def test_output_depends_only_on_nearby_locations_of_a_list():
    conditioner = LocationList(slots=2, cells=8)
    _, given = influence(network(conditioner), 5, 5, conditioner.at([(0.2, 0.2), (0.8, 0.8)]))
    assert (given[3:] == 0.0).all() and (given[:3] > 0).any()


def test_a_condition_changes_the_image_only_around_its_cell():
    denoiser = network()
    x = torch.randn(1, 3, 32, 32)
    with torch.no_grad():
        moved = (denoiser(x, 1.0, GRID.at([(0.3, 0.7)])) - denoiser(x, 1.0)).abs().amax((0, 1))
    rows, columns = moved.nonzero(as_tuple=True)
    assert rows.min() >= 20 - denoiser.reach and rows.max() <= 23 + denoiser.reach
    assert columns.min() >= 8 - denoiser.reach and columns.max() <= 11 + denoiser.reach
    assert len(rows) > 16


def test_activations_keep_unit_size():
    denoiser = network(width=64, depth=6, gain=0.0)
    seen = []
    for block in denoiser.blocks:
        block.register_forward_hook(lambda module, inputs, output: seen.append(output.std().item()))
    with torch.no_grad():
        denoiser(torch.randn(4, 3, 32, 32), torch.tensor(1.0), torch.zeros(4, 64))
    assert all(0.7 < size < 1.4 for size in seen) and len(seen) == 6


def test_an_untrained_network_returns_the_scaled_input():
    x = torch.randn(2, 3, 32, 32)
    clean = network(gain=0.0)(x, torch.tensor([0.5, 2.0]))
    share = torch.tensor([0.25 / 0.5, 0.25 / 4.25])[:, None, None, None]
    assert torch.allclose(clean, share * x, atol=1e-6)


def test_reach_is_spent_evenly_and_never_overdrawn():
    assert wide_layers(8, 2, 6) == [False, True, False, True, False, True]
    assert wide_layers(8, 1, 4) == [True] * 4
    assert wide_layers(1, 2, 3) == [False] * 3


def test_a_config_builds_the_same_network_again():
    made = network()
    again = denoiser_from(denoiser_config(made)).eval()
    again.load_state_dict(made.state_dict())
    x = torch.randn(1, 3, 32, 32)
    assert torch.equal(again(x, 1.0, torch.ones(1, 64)), made(x, 1.0, torch.ones(1, 64)))


def test_half_precision_activations_stay_close():
    denoiser, x = network(), torch.randn(1, 3, 32, 32)
    exact = denoiser(x, 1.0)
    denoiser.precision = "bfloat16"
    assert torch.allclose(denoiser(x, 1.0), exact, atol=0.1) and denoiser(x, 1.0).dtype == torch.float32


def test_double_weights_compute_in_double():
    denoiser = network().double()
    seen = set()
    for block in denoiser.blocks:
        block.register_forward_hook(lambda module, inputs, output: seen.add(output.dtype))
    assert denoiser(torch.randn(1, 3, 32, 32).double(), 1.0).dtype == torch.float64
    assert seen == {torch.float64}


@pytest.mark.parametrize("wrong", [{"tile": 3}, {"size": 20}, {"radius": 0, "tile": 4}])
def test_geometry_that_cannot_be_local_is_refused(wrong):
    with pytest.raises(UserError):
        network(**wrong)
