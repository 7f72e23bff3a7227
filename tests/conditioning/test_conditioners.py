"""Conditioners: what they encode, what they leave out, and that removing and adding undo each other."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tessera.conditioning import (
    ColorCounts,
    Conditioner,
    LocationGrid,
    LocationList,
    Unconditional,
    conditioner_from,
    labeled,
)
from tessera.conditioning.cells import every_cell
from tessera.conditioning.labels import locations_of
from tessera.errors import UserError
from tessera.scenes.batch import SceneBatch
from tessera.scenes.camera import project
from tessera.scenes.scene import Scene, SceneObject
from tessera.scenes.vocabulary import COLOR_NAMES, LOCATIONS

unit = st.floats(0, 1, width=32)
locations = st.lists(st.tuples(unit, unit), min_size=1, max_size=12)
colors = st.lists(st.sampled_from(COLOR_NAMES), min_size=1, max_size=12)
SPATIAL = [LocationGrid(), LocationList(), LocationList(fill="anywhere"), LocationGrid(cells=8)]


def scene(*spots, color="red"):
    return Scene(tuple(SceneObject("cube", color, "metal", 0.35, xy) for xy in spots))


def three_objects(rows=256):
    return SceneBatch.stack([scene((0.0, 0.0), (2.0, 1.0), (-2.0, -1.5))] * rows)


def as_bag(rows):
    return [sorted((round(x, 5), round(y, 5)) for x, y in row) for row in rows]


@pytest.mark.parametrize("conditioner", SPATIAL, ids=str)
@given(wanted=locations, data=st.data())
@settings(max_examples=40, deadline=None)
def test_removing_a_condition_then_adding_it_back_changes_nothing(conditioner, wanted, data):
    cond = conditioner.at(wanted)
    k = data.draw(st.integers(0, len(wanted) - 1))
    gone = conditioner.conditions(cond)[0][k]
    without = conditioner.without(cond, k)
    assert len(conditioner.conditions(without)[0]) == len(wanted) - 1
    assert as_bag(conditioner.conditions(conditioner.adding(without, gone))) == as_bag(conditioner.conditions(cond))


@given(wanted=colors, data=st.data())
@settings(max_examples=40, deadline=None)
def test_removing_a_color_then_adding_it_back_changes_nothing(wanted, data):
    conditioner = ColorCounts()
    cond = conditioner.at(wanted)
    k = data.draw(st.integers(0, len(wanted) - 1))
    assert torch.equal(conditioner.adding(conditioner.without(cond, k), conditioner.conditions(cond)[0][k]), cond)


@given(wanted=locations, seed=st.randoms())
@settings(max_examples=40, deadline=None)
def test_order_does_not_matter_for_the_grid(wanted, seed):
    shuffled = list(wanted)
    seed.shuffle(shuffled)
    assert torch.equal(LocationGrid().at(wanted), LocationGrid().at(shuffled))


@pytest.mark.parametrize("conditioner", SPATIAL, ids=str)
@given(wanted=locations, row=st.integers(0, 7), column=st.integers(0, 7))
@settings(max_examples=25, deadline=None)
def test_near_with_full_radius_is_everything(conditioner, wanted, row, column):
    cond = conditioner.at(wanted)
    assert torch.equal(conditioner.near(cond, (row, column), conditioner.cells - 1), cond)


@pytest.mark.parametrize("conditioner", SPATIAL, ids=str)
@given(wanted=locations, radius=st.integers(0, 3))
@settings(max_examples=15, deadline=None)
def test_near_for_all_cells_agrees_with_near_for_one_cell(conditioner, wanted, radius):
    cond = conditioner.at(wanted)
    everywhere = conditioner.near_every_cell(cond, radius)
    one_by_one = [conditioner.near(cond, tuple(cell), radius) for cell in every_cell(conditioner.cells).tolist()]
    assert torch.equal(everywhere, torch.stack(one_by_one, 1))
    active = torch.tensor([len(conditioner.conditions(c)[0]) > 0 for c in one_by_one])
    assert torch.equal(conditioner.active(cond, radius).flatten(), active)


@pytest.mark.parametrize("conditioner", SPATIAL[:3], ids=str)
@given(wanted=locations, row=st.integers(0, 15), column=st.integers(0, 15), radius=st.integers(0, 3))
@settings(max_examples=40, deadline=None)
def test_a_patch_receives_exactly_the_conditions_near_it(conditioner, wanted, row, column, radius):
    cond, cell = conditioner.at(wanted), torch.tensor([[row, column]])
    near = conditioner.near(cond, cell, radius)
    assert torch.equal(conditioner.in_patch(cond, cell, radius), conditioner.in_patch(near, cell, radius))
    inside = [max(abs(min(15, int(y * 16)) - row), abs(min(15, int(x * 16)) - column)) <= radius
              for x, y in conditioner.conditions(cond)[0]]  # fmt: skip
    assert len(conditioner.conditions(near)[0]) == sum(inside)


@pytest.mark.parametrize("conditioner", [*SPATIAL, ColorCounts()], ids=str)
@pytest.mark.parametrize("kind", [np.int64, torch.tensor], ids=["numpy", "torch"])
def test_a_condition_may_be_counted_by_any_whole_number(conditioner, kind):
    cond = conditioner.at(["red", "blue"] if conditioner.dim == 8 else LOCATIONS[:2])
    assert torch.equal(conditioner.without(cond, kind(1)), conditioner.without(cond, 1))
    with pytest.raises(UserError):
        conditioner.without(cond, kind(2))


@pytest.mark.parametrize("conditioner", SPATIAL, ids=str)
def test_no_rows_have_no_conditions_anywhere(conditioner):
    none = torch.zeros(0, conditioner.dim)
    assert conditioner.near_every_cell(none, 1).shape == (0, conditioner.cells**2, conditioner.dim)
    assert conditioner.active(none, 1).shape == (0, conditioner.cells, conditioner.cells)


@pytest.mark.parametrize("conditioner", [LocationGrid, LocationList])
def test_an_image_has_at_least_one_cell(conditioner):
    with pytest.raises(UserError, match="at least one cell, not 0"):
        conditioner(cells=0)


def test_a_grid_is_not_finer_than_a_network_can_take():
    assert LocationGrid(cells=512).dim == 512**2
    with pytest.raises(UserError, match="at most 512 cells to each side, not 4000"):
        LocationGrid(cells=4000)


def test_the_sub_grid_of_a_patch_is_cut_out_of_the_grid():
    conditioner = LocationGrid()
    cond = torch.arange(256.0)[None]
    assert torch.equal(
        conditioner.in_patch(cond, torch.tensor([[5, 7]]), 2)[0].reshape(5, 5), cond.reshape(16, 16)[3:8, 5:10]
    )
    corner = conditioner.in_patch(cond, torch.tensor([[0, 15]]), 1)[0].reshape(3, 3)
    assert torch.equal(corner, torch.tensor([[0.0, 0, 0], [14, 15, 0], [30, 31, 0]]))


def test_a_patch_of_a_list_counts_from_its_own_center():
    conditioner = LocationList(slots=2)
    cond = conditioner.at(
        [(0.5 + 1 / 32, 0.5 + 1 / 32), (0.5 + 5 / 32, 0.5 + 1 / 32)]
    )  # centers of cells (8, 8), (8, 10)
    passed_on = conditioner.in_patch(cond, torch.tensor([[8, 8]]), 2)[0]
    assert passed_on.tolist() == pytest.approx([1, 0, 0, 1, 2 / 2.5, 0])


def test_what_is_near_comes_first_in_what_a_patch_receives():
    wanted = [(0.1, 0.1), (0.5 + 1 / 32, 0.5 + 1 / 32)]  # the second is the center of cell (8, 8)
    conditioner, cell = LocationList(slots=3), torch.tensor([[8, 8]])
    assert conditioner.in_patch(conditioner.at(wanted), cell, 2)[0].tolist() == pytest.approx(
        [1, 0, 0] + 6 * [0], abs=1e-6
    )
    scattered = LocationList(slots=3, fill="anywhere")  # where slots mean nothing, each keeps its own
    passed_on = scattered.in_patch(scattered.at(wanted), cell, 2)[0].reshape(3, 3)
    assert passed_on[:, 0].tolist() == [0, 1, 0]


def test_the_grid_counts_projected_centers():
    batch = three_objects(1)
    centers, _ = project(batch.center, batch.camera)
    expected = torch.zeros(16, 16)
    for x, y in centers[0].tolist():
        expected[int(16 * y), int(16 * x)] += 1
    assert torch.equal(LocationGrid().encode(batch)[0].reshape(16, 16), expected)
    assert LocationGrid().at([(0.99, 0.01)])[0].argmax() == 15


def test_two_objects_in_one_cell_count_two():
    batch = SceneBatch.stack([scene((1.0, 1.0), (1.01, 1.0))])
    assert LocationGrid().encode(batch).max() == 2


@pytest.mark.parametrize("conditioner", [LocationGrid(), LocationList(), ColorCounts()], ids=str)
@pytest.mark.parametrize(
    ("label", "expected"), [("all", {3}), ("one", {1}), ("all-but-one", {2}), ("drop", {2}), ("random", {1, 2, 3})]
)
def test_a_label_tells_of_as_many_objects_as_it_says(conditioner, label, expected):
    conditioner = type(conditioner)(label=label)
    counts = {len(row) for row in conditioner.conditions(conditioner.encode(three_objects(), seed=3))}
    assert counts == expected


def test_one_label_chooses_evenly_and_a_random_number_is_even():
    index = torch.arange(6000)
    present = torch.tensor([[True, True, False, True]]).expand(6000, 4)
    one = labeled(present, "one", index, seed=0).float().mean(0)
    assert torch.allclose(one, torch.tensor([1 / 3, 1 / 3, 0, 1 / 3]), atol=0.03)
    numbers = labeled(present, "random", index, seed=0).sum(1).bincount(minlength=4) / 6000
    assert torch.allclose(numbers, torch.tensor([0, 1 / 3, 1 / 3, 1 / 3]), atol=0.03)


@pytest.mark.parametrize("seed", range(3))
def test_all_but_one_labels_as_drop_does_but_keeps_the_label_of_a_single_object(seed):
    present = torch.tensor([[False, False, False], [False, True, False], [True, False, True], [True, True, True]])
    kept, dropped = (labeled(present, label, torch.arange(4), seed) for label in ("all-but-one", "drop"))
    assert torch.equal(kept.sum(1), torch.tensor([0, 1, 1, 2]))
    assert torch.equal(kept[1], present[1])
    assert torch.equal(kept[2:], dropped[2:])
    assert not (kept & ~present).any()


def test_a_lone_object_is_dropped_but_never_lost_by_one_or_random():
    lone = SceneBatch.stack([scene((0.0, 0.0))] * 20)
    assert LocationGrid(label="drop").encode(lone).sum() == 0
    assert LocationGrid(label="all-but-one").encode(lone).sum() == 20
    assert LocationGrid(label="one").encode(lone).sum() == 20
    assert LocationGrid(label="random").encode(lone).sum() == 20


@pytest.mark.parametrize("conditioner", [LocationGrid(label="random"), LocationList(label="one")], ids=str)
def test_what_is_labeled_depends_on_the_sample_and_not_on_its_batch(conditioner):
    whole = conditioner.encode(three_objects(64), torch.arange(64), seed=5)
    order = torch.randperm(64, generator=torch.Generator().manual_seed(0))
    assert torch.equal(conditioner.encode(three_objects(64), order, seed=5), whole[order])
    assert not torch.equal(conditioner.encode(three_objects(64), torch.arange(64), seed=6), whole)


def test_a_list_uses_every_slot_or_fills_from_the_first():
    anywhere = LocationList(fill="anywhere").encode(three_objects(400)).reshape(400, 12, 3)
    assert (anywhere[..., 0].sum(0) > 50).all()
    first = LocationList().encode(three_objects(40)).reshape(40, 12, 3)
    assert (first[:, :3, 0] == 1).all() and (first[:, 3:] == 0).all()
    assert len({tuple(row) for row in first[:, 0].tolist()}) == 3  # the order is shuffled


def test_a_list_tells_locations_from_the_middle_in_quarter_images():
    conditioner = LocationList(slots=3)
    assert conditioner.at([(0.5, 0.25), (1.0, 0.0)])[0].tolist() == [1, 0, -1, 1, 2, -2, 0, 0, 0]
    batch = three_objects(8)
    passed_on = conditioner.encode(batch).reshape(8, 3, 3)
    locations, _ = locations_of(batch)
    shown = sorted(locations[0].tolist())
    assert sorted((passed_on[0, :, 1:] / 4 + 0.5).tolist()) == [pytest.approx(location) for location in shown]


def test_the_map_draws_each_condition_in_its_cell():
    wanted = LOCATIONS[:5]
    for conditioner in (LocationGrid(), LocationList()):
        drawn = conditioner.as_map(conditioner.at(wanted))
        assert drawn.shape == (1, conditioner.map_channels, 16, 16)
        cells = {(int(y * 16), int(x * 16)) for x, y in wanted}
        assert {tuple(c) for c in drawn[0, 0].nonzero().tolist()} == cells


def test_without_takes_a_name_as_well_as_a_number():
    grid, colors = LocationGrid(), ColorCounts()
    assert torch.equal(grid.without(grid.at(LOCATIONS[:3]), LOCATIONS[1]), grid.at([LOCATIONS[0], LOCATIONS[2]]))
    assert torch.equal(colors.without(colors.at(["red", "red", "blue"]), "red"), colors.at(["red", "blue"]))


@pytest.mark.parametrize("conditioner", [*SPATIAL, ColorCounts("drop"), Unconditional()], ids=str)
def test_a_config_builds_the_same_conditioner_again(conditioner):
    assert conditioner_from(conditioner.config) == conditioner


@pytest.mark.parametrize(
    "mistake",
    [
        lambda: LocationGrid().at([(0.5, 1.2)]),
        lambda: LocationGrid().at([(float("nan"), 0.2)]),
        lambda: LocationList().at([(-0.1, 0.2)]),
        lambda: LocationGrid().at([0.5]),
        lambda: LocationList().at([(0.5, 0.5)] * 13),
        lambda: LocationGrid(label="most"),
        lambda: LocationGrid().without(LocationGrid().at([(0.5, 0.5)]), 1),
        lambda: LocationGrid().without(LocationGrid().at([(0.5, 0.5)]), -1),
        lambda: LocationList().without(LocationList().at([(0.5, 0.5)]), (0.1, 0.1)),
        lambda: ColorCounts().at(["rde"]),
        lambda: Unconditional().at([(0.5, 0.5)]),
        lambda: conditioner_from({"kind": "gird"}),
        lambda: conditioner_from({"kind": "grid", "cellz": 3}),
    ],
)
def test_what_cannot_be_a_condition_is_refused_in_one_sentence(mistake):
    with pytest.raises(UserError) as caught:
        mistake()
    assert str(caught.value).count(".") >= 1 or str(caught.value).endswith("?")


# -- a conditioner of one's own ------------------------------------------------------------------------------


class Words(Conditioner):
    """Counts of three words, with nothing written but what has to be."""

    dim = 3
    words = ("one", "two", "three")

    def at(self, wanted, device=None):
        return torch.tensor([[float(list(wanted).count(word)) for word in self.words]], device=device)

    def conditions(self, cond):
        return [[word for word, count in zip(self.words, row) for _ in range(int(count))] for row in cond.tolist()]


def test_a_subclass_inherits_adding_and_taking_out_conditions():
    conditioner = Words()
    cond = torch.cat([conditioner.at(["one", "three"]), conditioner.at(["three", "three"])])
    assert conditioner.adding(cond, "two").tolist() == [[1, 1, 1], [0, 1, 2]]
    assert conditioner.without(cond, "three").tolist() == [[1, 0, 0], [0, 0, 1]]
    assert conditioner.without(cond, 0).tolist() == [[0, 0, 1], [0, 0, 1]]
    assert conditioner.capacity is None and conditioner.config == {"kind": "Words"}
    for absent in ("two", 2, -1):
        with pytest.raises(UserError, match="no condition"):
            conditioner.without(cond, absent)
    with pytest.raises(UserError, match="nothing can be trained"):
        conditioner.encode(None)
