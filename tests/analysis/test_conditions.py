"""Condition influence and conditional locality: known answers, exact zeros, intervals that cover, honest nulls."""

import numpy as np
import pytest
import torch

from tessera.analysis.condition_influence import ablated, band_of, condition_influence, conditional_locality
from tessera.conditioning import ColorCounts, LocationGrid, LocationList
from tessera.errors import UserError
from tessera.scenes.vocabulary import LOCATIONS

GRID = LocationGrid(cells=4)
PROMPTED = ((0.1, 0.1), (0.9, 0.4), (0.4, 0.9))


def painter(x, sigma, cond=None):
    """Paints every prompted cell of a 4 x 4 grid with its count, in three channels as 1, 2, 2."""
    cells = cond.view(-1, 1, 4, 4).repeat_interleave(2, 2).repeat_interleave(2, 3)
    return cells * torch.tensor([1.0, 2.0, 2.0])[:, None, None] + 0 * x


def test_removing_a_painted_cell_changes_that_cell_by_the_norm_over_channels():
    cond = GRID.at(PROMPTED).expand(2, -1)
    found = condition_influence(painter, torch.zeros(2, 3, 8, 8), 1.0, cond, GRID, PROMPTED)
    assert found.shape == (2, 3, 8, 8)
    for k, (x, y) in enumerate(PROMPTED):
        known = torch.zeros(8, 8)
        row, col = int(y * 4) * 2, int(x * 4) * 2
        known[row : row + 2, col : col + 2] = 3.0  # |(1, 2, 2)|
        torch.testing.assert_close(found[:, k], known.expand(2, -1, -1))


@pytest.mark.parametrize("rows", [1, 5, 64])
def test_numbers_do_not_depend_on_how_many_go_together(tiny_edm2, rows):
    conditioner = LocationGrid()
    cond = conditioner.at(LOCATIONS[:3]).expand(4, -1)
    x = torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    sigma = torch.tensor([0.1, 1.0, 10.0, 80.0])
    found = condition_influence(tiny_edm2, x, sigma, cond, conditioner, LOCATIONS[:3], rows=rows)
    with torch.no_grad():
        full = tiny_edm2(x, sigma, cond)
        less = [tiny_edm2(x, sigma, conditioner.without(cond, location)) for location in LOCATIONS[:3]]
    known = torch.stack([(one - full).square().sum(1).sqrt() for one in less], dim=1)
    torch.testing.assert_close(found, known, rtol=1e-4, atol=1e-6)
    assert (found > 0).float().mean() > 0.9  # a global network depends on conditions everywhere


@pytest.mark.parametrize(
    ("conditioner", "wanted"),
    [(LocationGrid(), LOCATIONS[:4]), (LocationList(slots=6), LOCATIONS[:4]), (ColorCounts(), ("red", "blue", "cyan"))],
)
def test_each_condition_is_taken_out_in_the_order_of_the_prompt(conditioner, wanted):
    without = ablated(conditioner, conditioner.at(wanted), wanted)[0]
    for k, gone in enumerate(wanted):
        left = sorted(map(str, conditioner.conditions(without[k : k + 1])[0]))
        others = conditioner.at([want for want in wanted if want != gone])
        assert left == sorted(map(str, conditioner.conditions(others)[0]))
    assert ablated(conditioner, conditioner.at(wanted)).shape == (1, len(wanted), conditioner.dim)


def test_a_patch_does_not_depend_on_conditions_beyond_its_edge(patchwise):
    """Exactly zero, and conditional locality exactly one."""
    conditioner, locations = patchwise.conditioner, LOCATIONS[:4]
    cond = conditioner.at(locations)
    x = torch.randn(1, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    maps = condition_influence(patchwise, x, 2.0, cond, conditioner, locations)[0]
    spots = [(int(y * 32), int(x * 32)) for x, y in locations]
    for k, (row, col) in enumerate(spots):
        rows, cols = (torch.arange(32) // 2 - spot // 2 for spot in (row, col))
        inside = (rows.abs()[:, None] <= 1) & (cols.abs()[None] <= 1)
        assert (maps[k][~inside] == 0).all() and (maps[k][inside] > 0).all()
    own = torch.stack([maps[:, row, col] for row, col in spots])  # (locations, conditions)
    assert conditional_locality(own[None, None].numpy(), [2.0])["value"] == 1.0


# -- the number ----------------------------------------------------------------------------------------------


def influences(own, other, images=6, levels=3, k=4):
    table = np.full((k, k), other) + (own - other) * np.eye(k)
    return np.broadcast_to(table, (images, levels, k, k)).copy()


@pytest.mark.parametrize(("own", "other", "value"), [(1.0, 0.0, 1.0), (1.0, 1.0, 0.25), (3.0, 1.0, 0.5)])
def test_conditional_locality_of_known_tables(own, other, value):
    found = conditional_locality(influences(own, other), [10.0, 1.0, 0.1])
    assert found["value"] == pytest.approx(value)
    assert found["low"] == pytest.approx(value) and found["high"] == pytest.approx(value)
    assert found["null"]["value"] == pytest.approx(0.25, abs=0.02)  # row shares sum to one
    assert (found["null"]["p_value"] < 0.01) == (value > 0.25)


def test_the_band_is_where_conditions_matter_and_has_no_gap():
    assert band_of(np.array([0.6, 1.0, 0.7, 0.4, 0.8])) == slice(0, 3)
    assert band_of(np.array([0.1, 0.2, 1.0])) == slice(2, 3)
    assert band_of(np.array([1.0, 1.0, 1.0])) == slice(0, 3)
    table = influences(1.0, 0.0)
    table[:, 2] = influences(0.1, 0.1)[:, 0]  # at low noise: weak, and not local
    found = conditional_locality(table, [10.0, 1.0, 0.1])
    assert found["value"] == 1.0
    assert (found["band"]["sigma_min"], found["band"]["sigma_max"]) == (1.0, 10.0)
    assert [row["locality"] for row in found["by_level"]] == pytest.approx([1, 1, 0.25])


def test_the_null_knows_the_levels_of_the_band_alone():
    table = influences(1.0, 1.0)  # all shares are 1 / K, in any order
    table[:, 2] = influences(0.1, 0.0)[:, 0]  # weak, and local
    null = conditional_locality(table, [10.0, 1.0, 0.1])["null"]
    assert null["low"] == pytest.approx(0.25) and null["high"] == pytest.approx(0.25)


def test_locations_where_nothing_moves_are_left_out():
    table = influences(1.0, 0.0)
    table[0, :, 1] = 0
    found = conditional_locality(table, [10.0, 1.0, 0.1])
    assert found["value"] == 1.0 and np.isfinite(found["null"]["value"])


def test_the_interval_covers_the_truth_about_nineteen_times_in_twenty():
    """A percentile bootstrap of 40 images covers a little less than it says: 93%, here within 3.5 errors."""
    rng = np.random.default_rng(1)
    covered = 0
    for trial in range(400):
        shares = rng.beta(4, 2, size=40)  # the share of the own condition in each image; mean 2/3
        table = np.zeros((40, 1, 2, 2))
        table[:, 0, [0, 1], [0, 1]] = shares[:, None]
        table[:, 0, [0, 1], [1, 0]] = 1 - shares[:, None]
        found = conditional_locality(table, [1.0], resamples=200, seed=trial)
        covered += found["low"] <= 2 / 3 <= found["high"]
    assert 354 <= covered <= 390


def test_whole_scenes_are_drawn_again_where_there_are_several():
    table = np.concatenate([influences(1.0, 0.0), influences(1.0, 1.0)])
    images = conditional_locality(table, [3.0, 2.0, 1.0])
    scenes = conditional_locality(table, [3.0, 2.0, 1.0], [0] * 6 + [1] * 6)
    assert images["value"] == scenes["value"] == pytest.approx(0.625)
    assert scenes["high"] - scenes["low"] > images["high"] - images["low"]


# -- bad input -----------------------------------------------------------------------------------------------


def test_no_condition_no_influence():
    x = torch.zeros(1, 3, 8, 8)
    with pytest.raises(UserError, match="K = 0"):
        condition_influence(painter, x, 1.0, GRID.at([]), GRID)
    with pytest.raises(UserError, match="K = 0"):
        conditional_locality(np.zeros((2, 3, 0, 0)), [1, 2, 3])


def test_nonsense_is_refused():
    with pytest.raises(UserError, match="equally many"):
        ablated(GRID, torch.cat([GRID.at(PROMPTED), GRID.at(PROMPTED[:1])]))
    broken = lambda x, sigma, cond=None: painter(x, sigma, cond) * float("nan")  # noqa: E731
    with pytest.raises(UserError, match="not finite at noise level 1"):
        condition_influence(broken, torch.zeros(1, 3, 8, 8), 1.0, GRID.at(PROMPTED), GRID)
    with pytest.raises(UserError, match="ignores them"):
        conditional_locality(np.zeros((2, 3, 4, 4)), [1, 2, 3])
    with pytest.raises(UserError, match="not finite"):
        conditional_locality(np.full((2, 3, 4, 4), np.nan), [1, 2, 3])
