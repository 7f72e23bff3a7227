import pytest

from tessera.errors import UserError
from tessera.evaluation.kmax import TrainingRange
from tessera.studies.clevr.entries import ABLATIONS, CELLS, FAR, TABLES, TARGETS, StudyEntry, cells_for, with_ks


def column(experiment):
    return {cell.max_train_objects: cell.paper.k_max for cell in TABLES if cell.experiment == experiment}


def test_the_paper_s_numbers_are_those_of_its_tables():
    assert column("exp1") == {1: 1, 2: 5, 3: 9, 4: 10, 5: 10, 6: 11}
    assert column("exp2") == dict.fromkeys(range(2, 7), 1)
    assert column("exp2-random") == {2: 3, 3: 5, 4: 6, 5: 8, 6: 9}
    assert column("exp2-drop") == {3: 3, 4: 8, 5: 9, 6: 10}
    assert column("exp2L") == {1: 6, 3: 9, 5: 10} and column("color") == {1: 1, 3: 4, 5: 7}
    assert CELLS["exp3-M3"].paper.text == "fails beyond 3" and CELLS["exp3L-M3"].paper.k_max is None
    assert CELLS["exp2-M5"].paper.text == "1 +(0-4)" and CELLS["exp2-M6"].paper.at_zero == "1-6"
    assert len(TABLES) == 28 and len(CELLS) == 28 + len(ABLATIONS)


@pytest.mark.parametrize("cell", [c for c in TABLES if c.paper.extras and c.name != "exp2L-M5"], ids=lambda c: c.name)
def test_extras_the_paper_counts_as_no_failure_are_those_our_rule_allows(cell):
    label = cell.settings("small").conditioner.labels
    assert cell.paper.extras == f"0-{TrainingRange(cell.max_train_objects, label).extras_allowed}"


def test_in_one_cell_the_paper_saw_fewer_extras_than_its_training_could_have_added():
    assert CELLS["exp2L-M5"].paper.extras == "0-2"
    assert TrainingRange(5, "one").extras_allowed == 4


def test_what_makes_a_cell_cannot_be_changed_by_the_caller():
    changes = {"denoiser": {"radius": 5, "coords": True, "width": 24}, "data": {"objects": (1, 9)}}
    shared = {"denoiser": {"coords": True}}
    settings = CELLS["exp2L-M3-k8"].settings("small", seed=2, changes=changes)
    assert settings.denoiser.radius == 8 and settings.denoiser.width == 24
    assert settings.data.objects == (1, 3) and (settings.data.seed, settings.training.seed) == (2, 2)
    patches = {name: CELLS[name].settings("small").training.patches for name in ("exp2L-M3", "exp2L-M3-k8")}
    assert patches == {"exp2L-M3": 8, "exp2L-M3-k8": 2}  # a whole image is dear
    assert not CELLS["exp1-M3-plain"].settings("small", 0, shared).denoiser.coords


def test_a_cell_may_change_the_size_of_its_images():
    cell = StudyEntry("exp1", 2, changes={"data": {"size": 32, "objects": (1, 5)}})
    data = cell.settings("small", seed=4).data
    assert (data.size, data.objects, data.seed) == (32, (1, 2), 4)


def test_exp2l_has_what_it_needs_and_its_ablations_are_the_papers_way():
    ours, theirs = (CELLS[name].settings("small").training for name in ("exp2L-M3", "exp2L-M3-k2"))
    assert ours.loss_radius == 0 and ours.total > theirs.total == CELLS["exp1-M3"].settings("small").training.total
    assert theirs.loss_radius >= CELLS["exp2L-M3-k8"].settings("small").denoiser.radius
    assert CELLS["exp2L-M3"].s_churn > 0 and [cell for cell in ABLATIONS if cell.s_churn] == [FAR]
    assert CELLS["exp2L-M3"].settings("tiny").training.loss_radius > 0  # needed at `small` only
    assert CELLS["exp2L-M3"].settings("small", 0, {"training": {"total": 512}}).training.total == 512


def test_a_cell_is_tested_only_on_the_ks_it_knows():
    assert with_ks(CELLS["color-M5"], (0, 3, 9)).ks == (0, 3)
    assert with_ks(CELLS["exp2L-M3-k8"], None).ks == (0, 1, 2, 3, 4)
    for name, ks in (("color-M5", (9, 10)), ("exp2L-M3-k8", (6, 7))):
        with pytest.raises(UserError, match="none of --k is among them"):
            with_ks(CELLS[name], ks)


def test_larger_patches_have_the_conditions_of_the_cells_own_and_its_evaluation():
    own, far = (cell.settings("small") for cell in (CELLS["exp2L-M5"], FAR))
    assert far.denoiser.radius > own.denoiser.radius == far.denoiser.cond_radius
    assert far.training.loss_radius == own.training.loss_radius
    assert all(getattr(FAR, name) == getattr(CELLS["exp2L-M5"], name) for name in ("s_churn", "each", "ks"))


def test_a_cell_may_train_longer_than_its_experiment_unless_the_caller_says_how_long():
    for preset in ("tiny", "small"):
        own, far = (cell.settings(preset).training.total for cell in (CELLS["exp2L-M5"], FAR))
        assert far == 1.5 * own
    assert FAR.settings("small", 0, {"training": {"total": 512}}).training.total == 512


def test_colors_are_shared_out_by_a_network_of_their_own():
    ours, others = (CELLS[name].settings("small") for name in ("color-M3", "exp1-M3"))
    assert set(others.denoiser.attention) < set(ours.denoiser.attention)
    assert ours.denoiser.blocks > others.denoiser.blocks and ours.training.total > others.training.total
    assert 0 < ours.training.cooldown < ours.training.total and not others.training.cooldown


def test_every_target_names_known_cells_and_all_names_each_of_them():
    assert {name for names in TARGETS.values() for name in names} == set(CELLS) == set(TARGETS["all"])


def test_colors_are_prompted_up_to_eight_and_locations_up_to_twelve():
    assert CELLS["color-M1"].ks == tuple(range(9)) and CELLS["exp1-M1"].ks == tuple(range(13))


def test_only_keeps_the_named_cells_of_a_target():
    assert [cell.name for cell in cells_for("table1", "exp2L-M1, exp1-M3")] == ["exp1-M3", "exp2L-M1"]


@pytest.mark.parametrize(
    ("target", "only", "sentence"),
    [
        ("fig9", None, "did you mean `fig"),
        ("tabel1", None, "did you mean `table1`"),
        ("all", "exp1-M33", "did you mean `exp1-M3`"),
        ("fig5", "exp1-M3", "None of the cells"),
    ],
)
def test_what_is_not_there_is_refused_with_the_nearest(target, only, sentence):
    with pytest.raises(UserError, match=sentence.replace("`", "`")):
        cells_for(target, only)
