import json
from pathlib import Path

import numpy as np
import pytest
import torch
from stand_in import StandIn, forgetful, moved, shaken

from tessera.errors import UserError
from tessera.evaluation.calibrate import (
    HeldOut,
    arranged,
    by_number,
    calibrate_clevr,
    calibration_rows,
    detector_error,
    empty_locations,
    evaluate_images,
    load_calibration,
    nothing_record,
    summary,
    tally,
)
from tessera.evaluation.detection import Detection
from tessera.evaluation.empty_images import KINDS, nothing_to_find
from tessera.evaluation.matching import CELL
from tessera.evaluation.truth import ClevrTruth, truths
from tessera.files import write_json
from tessera.render.image_io import save_png
from tessera.render.render import render
from tessera.scenes import LOCATIONS, Scenes, scenes_at, write_scenes
from tessera.scenes.visibility import all_visible
from tessera.stats import counted


def quiet(*_):
    pass


def drawn(k, count=6, start=0):
    return truths(Scenes(objects=k, visibility="off").draw(count, seed=3, start=start))


def tallies_of(found, truth, **options):
    return evaluate_images(StandIn(found, **options), torch.zeros(len(truth), 3, 8, 8), truth)


# --- truth --------------------------------------------------------------------------------------------------


def test_true_locations_are_those_the_scene_was_made_for():
    wanted = [(0.65, 0.65), (0.25, 0.45)]
    scenes = scenes_at(wanted, color=["red", "blue"], size="small", rules=Scenes(), count=3)
    for objects in truths(scenes):
        assert np.allclose([obj.location for obj in objects], wanted, atol=1e-5)
        assert [obj.color for obj in objects] == ["red", "blue"] and objects[0].size == "small"


def test_true_locations_lie_on_the_rendered_masks():
    scenes = Scenes(objects=3).draw(4, seed=5)
    masks = render(scenes, (160, 120), layers=("mask",))["mask"]
    for mask, objects in zip(masks, truths(scenes)):
        for number, obj in enumerate(objects, start=1):
            rows, columns = (mask == number).nonzero(as_tuple=True)
            assert columns.min() / 160 < obj.location[0] < columns.max() / 160 + 0.01
            assert rows.min() / 120 - 0.05 < obj.location[1] < rows.max() / 120 + 0.05


def real_folder(path, camera=True, size=(48, 32)):
    """Renders of known scenes as a folder; without cameras, as official files are."""
    scenes = Scenes(objects=(1, 3)).draw(5, seed=2)
    names = [f"{i}.png" for i in range(5)]
    (path / "images").mkdir()
    for name, image in zip(names, render(scenes, size)["rgb"]):
        save_png(path / "images" / name, image)
    write_scenes(path / "scenes.json", scenes, size=size, image_names=names)
    if not camera:
        content = json.loads((path / "scenes.json").read_text())
        for record in content["scenes"]:
            del record["camera"]
        write_json(path / "scenes.json", content)
    return truths(scenes, size[0] / size[1])


@pytest.mark.parametrize("camera", [True, False])
def test_a_folder_of_real_renders_tells_its_truth_with_or_without_cameras(tmp_path, camera):
    exact = real_folder(tmp_path, camera)
    truth = ClevrTruth(tmp_path)
    tolerance = 1e-5 if camera else 0.5 / 32 + 1e-5  # official coordinates are rounded to pixels
    for i, objects in enumerate(exact):
        given = truth.objects(i, (48, 32))
        assert [t.color for t in given] == [t.color for t in objects]
        assert np.allclose([t.location for t in given], [t.location for t in objects], atol=tolerance)


def test_a_detector_that_tells_the_truth_is_perfect_on_real_renders(tmp_path):
    exact = real_folder(tmp_path)
    found = calibrate_clevr(StandIn(exact), ClevrTruth(tmp_path), device="cpu")
    whole = found["pooled"]["all"]
    assert whole["images"] == 5 and whole["exact_count"]["value"] == 1 and whole["color"]["value"] == 1
    assert whole["center_error_cells"]["q99"] == pytest.approx(0, abs=1e-4)


def test_the_reference_renders_have_their_objects_where_the_masks_show_them(clevr_reference):
    truth = ClevrTruth(clevr_reference)
    for i in (0, 5, 17):
        mask = truth.folder.mask(i)
        for number, obj in enumerate(truth.objects(i, (320, 240)), start=1):
            rows, columns = (mask == number).nonzero(as_tuple=True)
            assert columns.min() / 320 - 0.02 < obj.location[0] < columns.max() / 320 + 0.02
            assert rows.min() / 240 - 0.05 < obj.location[1] < rows.max() / 240 + 0.05


# --- known errors give known numbers ------------------------------------------------------------------------


def test_a_detector_that_tells_the_truth_has_no_error():
    truth = drawn(4)
    row = summary(tallies_of(truth, truth))
    shares = ("exact_count", "all_found", "clean", "location_recall", "location_precision", "color", "material")
    assert all(row[name]["value"] == 1 for name in shares)
    assert row["count_bias"]["value"] == 0 and row["outcomes"] == [[6]] and row["ood"]["value"] == 0
    assert row["false_fills"][0] == 0


def test_missed_objects_show_as_recall_and_bias():
    truth = drawn(5, count=60)
    found = forgetful(truth, 0.2, np.random.default_rng(0))
    row = summary(tallies_of(found, truth))
    left = sum(map(len, found))
    assert row["location_recall"]["value"] == pytest.approx(left / 300) and row["location_recall"]["n"] == 300
    assert row["location_precision"]["value"] == 1
    assert row["count_bias"]["value"] == pytest.approx(left / 60 - 5)
    assert row["count_error"]["value"] == pytest.approx(5 - left / 60)
    table = np.array(row["outcomes"])
    assert table.sum() == 60 and table.shape[1] == 1
    assert (np.arange(len(table)) * table[:, 0]).sum() == 300 - left


def test_imagined_objects_show_as_precision_and_false_objects():
    truth = drawn(2)
    ghost = Detection(0.02, 0.02, "red", "cube", "large", "metal", 0.9, 0.9)
    row = summary(tallies_of([[*objects, ghost] for objects in truth], truth))
    assert row["location_precision"]["value"] == pytest.approx(2 / 3) and row["location_recall"]["value"] == 1
    assert row["false_objects"]["value"] == 1 and row["outcomes"] == [[0, 6]]
    assert row["clean"]["value"] == 0 and row["all_found"]["value"] == 1


def test_moved_centers_show_as_errors_in_cells():
    truth = drawn(1, count=20)
    row = summary(tallies_of(shaken(truth, 0.4 * CELL, np.random.default_rng(0)), truth))
    assert row["center_error_cells"]["q99"] == pytest.approx(0.4, abs=1e-6)
    assert row["center_error_cells"]["within_half"]["value"] == 1
    off = summary(tallies_of([[moved(t, 1.5 * CELL, 0)] for (t,) in truth], truth))
    assert off["location_recall"]["value"] == 0  # too far to match, yet the error is measured, not cut off
    assert off["center_error_cells"]["median"] == pytest.approx(1.5, abs=1e-6)


@pytest.mark.parametrize(("reach", "share"), [(0.45, 1), (0.55, 0)])
def test_centers_within_half_a_cell_are_distinguished_from_those_beyond(reach, share):
    truth = drawn(1)
    row = summary(tallies_of(shaken(truth, reach * CELL, np.random.default_rng(0)), truth))
    assert row["center_error_cells"]["within_half"]["value"] == share


def test_wrong_attributes_are_counted_one_by_one():
    truth = [[Detection(0.5, 0.5, "red", "cube", "large", "metal", 1, 1)]]
    found = [[Detection(0.5, 0.5, "red", "sphere", "large", "rubber", 1, 1)]]
    row = summary(tallies_of(found, truth))
    shares = [row[name]["value"] for name in ("color", "shape", "size", "material")]
    assert shares == [1, 0, 1, 0]


def test_a_wrong_color_is_no_error_by_location_but_two_by_color():
    truth = [[Detection(0.5, 0.5, "red", "cube", "large", "metal", 1, 1)]]
    found = [[Detection(0.5, 0.5, "brown", "cube", "large", "metal", 1, 1)]]
    rows = by_number(tallies_of(found, truth))["rows"]
    assert rows["1"]["outcomes"] == [[1]] and rows["1"]["color_outcomes"] == [[0, 0], [0, 1]]
    assert detector_error(rows).missed_and_false(1)[0, 0] == 1
    assert detector_error(rows, by_color=True).missed_and_false(1)[1, 1] == 1


def test_no_object_of_the_study_arrangement_is_hidden_and_scenes_do_not_depend_on_their_batch():
    together = arranged("study", 9, 6, 4, 0)
    assert all_visible(together, "exact").all()
    apart = arranged("study", 9, 2, 4, 3)
    assert torch.equal(together.color[3:5], apart.color) and torch.allclose(together.xy[3:5], apart.xy)


def test_an_empty_location_that_looks_filled_is_counted():
    spot = LOCATIONS[0]
    one = tally([Detection(*spot, "red", "cube", "large", "metal", 1, 1)], [])
    assert (len(one.vacant), sum(one.vacant), one.score.extra) == (12, 1, 1)
    assert len(empty_locations([spot])) == 11  # the neighbors stand 1.6 cells apart


def test_ood_images_are_counted():
    truth = drawn(1)
    assert summary(tallies_of(truth, truth, ood_score=1.5))["ood"]["value"] == 1
    record = nothing_record(np.array([0, 2, 1, 0, 1]), np.array([True, True, False, False, False]))
    assert record["false_objects"]["value"] == 0.8 and record["any_object"]["value"] == 0.6
    assert counted(record["ood"]) == 2 and counted(record["objects_without_warning"]) == 2


def test_rows_are_by_the_true_number_of_objects_and_pools_take_them_together():
    truth = drawn(0, 2) + drawn(2, 3) + drawn(5, 4)
    found = by_number(tallies_of(truth, truth))
    assert {k: row["images"] for k, row in found["rows"].items()} == {"0": 2, "2": 3, "5": 4}
    assert found["rows"]["0"]["location_recall"]["value"] is None
    assert {name: row["images"] for name, row in found["pooled"].items()} == {"1-3": 3, "1-6": 7, "1-10": 7, "all": 9}
    json.dumps(found, allow_nan=False)


# --- scenes and non-scenes ----------------------------------------------------------------------------------


def test_held_out_scenes_are_the_same_whatever_the_batch():
    truth = [objects for start in (0, 3) for objects in truths(arranged("official", 2, 3, 9, start))]

    class Witness:
        def __init__(self):
            self.images = []

        def detect(self, images):
            self.images.append(images)
            return [[] for _ in images], torch.zeros(len(images))

    small, large = Witness(), Witness()
    rows = HeldOut(per_k=6, size=16, seed=9, batch=3).tallies(small, "official", 2, quiet)
    HeldOut(per_k=6, size=16, seed=9, batch=6).tallies(large, "official", 2, quiet)
    assert torch.allclose(torch.cat(small.images), torch.cat(large.images))
    assert [t.score.missing for t in rows] == [len(objects) for objects in truth]


@pytest.mark.parametrize("k", [0, 1, 12])
def test_the_study_arrangement_stands_at_the_studys_locations(k):
    for objects in truths(arranged("study", k, 2, 0, 0)):
        assert np.allclose([t.location for t in objects], np.reshape(LOCATIONS[:k], (k, 2)).tolist(), atol=1e-4)


def test_more_locations_than_the_study_has_are_refused():
    with pytest.raises(UserError, match="12 locations"):
        arranged("study", 13, 1, 0, 0)


@pytest.mark.parametrize("kind", KINDS)
def test_cluttered_images_are_in_range_that_differ_and_come_back_by_seed(kind):
    images = nothing_to_find(kind, 3, (20, 16), 7)
    assert images.shape == (3, 3, 16, 20)
    assert images.abs().max() <= 1 and not torch.equal(images[0], images[1])
    assert torch.equal(images, nothing_to_find(kind, 3, (20, 16), 7))


def test_clouds_have_the_spectrum_of_photographs():
    power = torch.fft.fft2(nothing_to_find("clouds", 64, 64, 0).mean(1)).abs().square().mean(0)
    low, high = power[2, 0] + power[0, 2], power[16, 0] + power[0, 16]
    assert 20 < low / high < 200  # amplitude 1/f: power falls 64-fold from frequency 2 to 16


# --- the calibration as K_max uses it -----------------------------------------------------------------------


def test_a_calibration_written_is_the_error_read_back(tmp_path):
    truth = drawn(3, count=40)
    found = by_number(tallies_of(forgetful(truth, 0.3, np.random.default_rng(1)), truth))
    write_json(tmp_path / "c.json", {"sizes": {"32": {"study": found}, "64": {"official": found}}})
    record = load_calibration(tmp_path / "c.json")
    for width, size, arrangement in ((30, "32", "study"), (128, "64", "official")):
        chosen = calibration_rows(record, width)
        assert (chosen["size"], chosen["arrangement"]) == (size, arrangement)
    error = detector_error(calibration_rows(record, 64)["rows"])
    chance = error.missed_and_false(3)
    recall = found["rows"]["3"]["location_recall"]["value"]
    assert (chance.sum(1) * np.arange(len(chance))).sum() == pytest.approx(3 * (1 - recall))


def test_a_file_that_is_no_calibration_is_refused(tmp_path):
    write_json(tmp_path / "c.json", {"rows": []})
    with pytest.raises(UserError, match="detector calibrate"):
        load_calibration(tmp_path / "c.json")


def test_the_published_calibration_is_the_one_verdicts_go_by():
    published = Path(__file__).parents[2] / "results" / "detector-calibration.json"
    assert json.loads(published.read_text()) == load_calibration()


@pytest.mark.parametrize(("k", "spacing"), [(10, "official"), (11, "relaxed")])
def test_up_to_ten_objects_stand_by_the_official_rule_and_more_of_them_closer(k, spacing):
    expected = Scenes(objects=k, spacing=spacing).draw(1, 4, 0)
    assert torch.equal(arranged("official", k, 1, 4, 0).xy, expected.xy)
