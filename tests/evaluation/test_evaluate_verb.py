import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from stand_in import StandIn

from programs import with_set
from tessera.cli.evaluate import Evaluate
from tessera.cli.main import main
from tessera.errors import UserError
from tessera.evaluation.calibrate import by_number, load_calibration, tally
from tessera.evaluation.detection import Detection
from tessera.evaluation.image_sets import images_in, read_image
from tessera.evaluation.pipeline import at_study_locations
from tessera.evaluation.truth import truths
from tessera.files import write_json
from tessera.scenes import LOCATIONS, read_scenes


def obj(location, color="red", well_formed=0.9):
    return Detection(*location, color, "cube", "large", "metal", 0.9, well_formed)


def all_of(k):
    return [obj(location) for location in LOCATIONS[:k]]


@pytest.fixture
def evaluated_by(monkeypatch):
    def use(lists, **options):
        stand_in = StandIn(lists, **options)
        monkeypatch.setattr("tessera.cli.evaluate.load_detector", lambda weights, device: stand_in)
        monkeypatch.setattr("tessera.evaluation.calibrate._SHIPPED", Path("no-calibration-here.json"))
        return stand_in

    return use


def save(path, size=(32, 32), mode="RGB"):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, 90).save(path)


def sampled(folder, ks, each=2, settings=True, colors=None):
    """A folder as `tessera sample` leaves it."""
    entries = []
    for k in ks:
        for n in range(each):
            name = f"k{k:02d}/{n:04d}.png"
            save(folder / name)
            items = {"locations": [], "colors": colors[:k]} if colors else {"locations": LOCATIONS[:k], "colors": []}
            entries.append({"file": name, "k": k, **items, "seed": n})
    known = {"data": {"objects": [1, 2]}, "conditioner": {"label": "all"}} if settings else None
    write_json(folder / "samples.json", {"model": "m", "size": 32, "settings": known, "images": entries})
    save(folder / "sheet.png", (200, 100))
    return folder


def run(capsys, *words):
    """Exit code, what was printed for programs, and what for people."""
    split = [part for word in words for part in (word.split() if isinstance(word, str) else [str(word)])]
    with pytest.raises(SystemExit) as leaving:
        main(with_set(*split))
    out, err = capsys.readouterr()
    return leaving.value.code, json.loads(out) if out.startswith("{") else out, err


# --- detector --------------------------------------------------------------------------------------------------


def test_samples_are_evaluated_for_every_k_and_k_max_follows(tmp_path, evaluated_by, capsys):
    evaluated_by([[], [], *[all_of(1)] * 2, *[all_of(2)] * 2, all_of(3), all_of(3)[:2]])
    code, record, _ = run(capsys, "evaluate", sampled(tmp_path, range(4)), "--json", "--out", tmp_path / "j.json")
    assert code == 0 and record["images"] == 8 and record["max_train_objects"] == 2 and record["label"] == "all"
    shares = [row["exact"]["value"] for row in record["rows"]]
    assert shares == [1, 1, 1, 0.5]
    assert record["k_max"]["paper"]["value"] == 3  # beyond the training range one of two full is enough
    assert record["k_max"]["strict"]["value"] == 0  # two images prove nothing
    assert json.loads((tmp_path / "j.json").read_text()) == record
    assert any("Fewer than 64" in note for note in record["notes"])
    assert "provenance" in record and not record["skipped"]


def test_the_table_names_k_max_and_what_is_not_known(tmp_path, evaluated_by, capsys, monkeypatch):
    monkeypatch.setattr("tessera.console.stdout.width", 200, raising=False)
    evaluated_by([[obj((0.5, 0.5))], []] + [all_of(1)] * 2)
    code, out, err = run(capsys, "evaluate", sampled(tmp_path, (0, 1), settings=False))
    assert code == 0 and err == ""
    assert "K_max by the strict rule" in out and "With an empty prompt, 0-1 objects appear." in out
    assert "--max-train-objects" in out and "no calibration" in out


def test_what_is_missed_most_often_is_named_at_the_first_k_that_lacks_something(
    tmp_path, evaluated_by, capsys, monkeypatch
):
    monkeypatch.setattr("tessera.console.stdout.width", 200, raising=False)
    drawn = [*[all_of(1)] * 2, all_of(3), [all_of(3)[0], all_of(3)[2]]]
    evaluated_by(drawn)
    folder = sampled(tmp_path, (1, 3))
    _, out, _ = run(capsys, "evaluate", folder)
    x, y = LOCATIONS[1]
    assert f"At K = 3, an object at ({x:.2f}, {y:.2f}) is missed most often: 1 of 2 images show it." in out
    evaluated_by(drawn)
    _, record, _ = run(capsys, "evaluate", folder, "--json")
    assert [row["filled_at"] for row in record["rows"]] == [[2], [2, 1, 2]]
    assert record["rows"][0]["prompts"] == [list(LOCATIONS[0])]


def test_images_with_different_prompts_are_not_counted_by_location(tmp_path, evaluated_by, capsys):
    folder = sampled(tmp_path, (1,))
    items = json.loads((folder / "samples.json").read_text())
    items["images"][1]["locations"] = [[0.5, 0.5]]
    write_json(folder / "samples.json", items)
    evaluated_by([all_of(1), []])
    code, record, _ = run(capsys, "evaluate", folder, "--json")
    assert code == 0 and "filled_at" not in record["rows"][0]


def test_what_the_folder_does_not_say_can_be_said(tmp_path, evaluated_by, capsys):
    evaluated_by([all_of(2)] * 2)
    folder = sampled(tmp_path, (2,), settings=False)
    _, record, _ = run(capsys, "evaluate", folder, "--max-train-objects", 4, "--labels", "one", "--json")
    assert record["max_train_objects"] == 4 and record["extras_allowed"] == 3


def test_colors_are_evaluated_by_color(tmp_path, evaluated_by, capsys):
    right = [obj((0.1, 0.1), "blue"), obj((0.9, 0.9), "brown")]
    evaluated_by([right, right[:1]])
    folder = sampled(tmp_path, (2,), colors=["blue", "brown", "cyan"])
    _, record, _ = run(capsys, "evaluate", folder, "--json")
    assert record["rows"][0]["exact"]["value"] == 0.5
    assert record["rows"][0]["prompts"] == ["blue", "brown"] and record["rows"][0]["filled_at"] == [2, 1]


def test_half_drawn_objects_lower_the_quality_and_may_be_refused(tmp_path, evaluated_by, capsys):
    folder = sampled(tmp_path, (2,), each=1)
    spoilt = [obj(LOCATIONS[0]), obj(LOCATIONS[1], well_formed=0.1)]
    evaluated_by([spoilt])
    _, lenient, _ = run(capsys, "evaluate", folder, "--json")
    evaluated_by([spoilt])
    _, stern, _ = run(capsys, "evaluate", folder, "--json", "--require-well-formed")
    assert lenient["rows"][0]["well_formed"]["value"] == stern["rows"][0]["well_formed"]["value"] == 0.5
    assert lenient["rows"][0]["exact"]["value"] == 1 and stern["rows"][0]["exact"]["value"] == 0


def test_ood_images_are_noted(tmp_path, evaluated_by, capsys):
    evaluated_by([all_of(1)] * 2, ood_score=3.0)
    _, record, _ = run(capsys, "evaluate", sampled(tmp_path, (1,)), "--json")
    assert record["rows"][0]["ood"]["value"] == 1
    assert any("unlike those the detector was trained on" in note for note in record["notes"])


def test_every_image_gets_its_line_when_requested(tmp_path, evaluated_by, capsys):
    evaluated_by([all_of(1), []])
    run(capsys, "evaluate", sampled(tmp_path / "s", (1,)), "--json", "--scores", tmp_path / "v.jsonl")
    lines = [json.loads(line) for line in (tmp_path / "v.jsonl").read_text().splitlines()]
    assert [line["ok"] for line in lines] == [True, False]
    assert lines[1]["reason"] == "nothing at (0.65, 0.65)" and lines[0]["detections"][0]["color"] == "red"


def test_the_detectors_own_error_is_corrected_for_and_shown(tmp_path, evaluated_by, capsys):
    truth, rng = all_of(1), np.random.default_rng(0)
    rows = [tally(truth if rng.random() < 0.8 else [], truth) for _ in range(400)]
    nothing = [tally([], []) for _ in range(400)]
    write_json(tmp_path / "c.json", {"sizes": {"32": {"study": by_number(rows + nothing)}}})
    folder = sampled(tmp_path / "s", (1,), each=80)
    evaluated_by([truth if n % 5 else [] for n in range(80)])  # the detector sees four in five, as it would of all
    _, record, _ = run(capsys, "evaluate", folder, "--json", "--calibration", tmp_path / "c.json")
    row = record["rows"][0]
    assert row["exact"]["value"] == 0.8 and row["exact"]["corrected"]["value"] > 0.93
    assert row["detector"]["exact_count"]["value"] == pytest.approx(0.8, abs=0.05)
    assert record["k_max"]["paper"]["value"] == 0 and record["k_max"]["paper"]["corrected"]["value"] == 1
    assert record["k_max"]["paper"]["detector_range"] == [0, 1]
    assert record["detector"] == {"size": "32", "arrangement": "study"}


# --- bad input ----------------------------------------------------------------------------------------------


def with_bad_files(folder):
    """One good image among a missing, a broken, a gray and a larger one, and a file that is no image."""
    sampled(folder, (1,), each=6)
    files = sorted((folder / "k01").glob("*.png"))
    files[0].unlink()
    files[1].write_bytes(files[1].read_bytes()[:60])
    files[2].write_text("not an image")
    save(files[3], mode="L")
    save(files[4], size=(40, 32))
    return folder, files


def test_files_that_cannot_be_evaluated_are_named_and_left_out(tmp_path, evaluated_by, capsys):
    folder, files = with_bad_files(tmp_path)
    evaluated_by([all_of(1)])
    code, record, err = run(capsys, "evaluate", folder, "--json")
    assert code == 0 and record["images"] == 1
    assert set(record["skipped"]) == {str(file) for file in files[:5]}
    reasons = [record["skipped"][str(file)] for file in files[:5]]
    words = ("No such file", "Could not read", "not an image", "gray-scale", "40x32 where the others are 32x32")
    for reason, word, file in zip(reasons, words, files):
        assert word in reason and file.name in reason
    assert "Left out" in err


def test_strict_stops_at_the_first_file_that_cannot_be_evaluated(tmp_path, evaluated_by, capsys):
    folder, files = with_bad_files(tmp_path)
    evaluated_by([all_of(1)])
    code, out, err = run(capsys, "evaluate", folder, "--strict", "--json")
    assert code == 2 and out == "" and files[0].name in err and "Traceback" not in err


def test_nothing_to_detector_is_an_error(tmp_path, evaluated_by, capsys):
    folder = sampled(tmp_path, (1,), each=1)
    save(folder / "k01" / "0000.png", mode="L")
    evaluated_by([])
    code, _, err = run(capsys, "evaluate", folder)
    assert code == 2 and "could be evaluated" in err


def test_a_missing_folder_and_one_that_says_nothing_are_refused(tmp_path, evaluated_by, capsys):
    evaluated_by([])
    assert run(capsys, "evaluate", tmp_path / "nowhere")[0] == 2
    save(tmp_path / "a.png")
    code, _, err = run(capsys, "evaluate", tmp_path)
    assert code == 2 and "--locations" in err


def test_a_damaged_samples_json_is_refused_in_one_sentence(tmp_path):
    (tmp_path / "samples.json").write_text("{")
    with pytest.raises(UserError, match="not valid JSON"):
        images_in(tmp_path)
    write_json(tmp_path / "samples.json", {"images": [{"locations": []}]})
    with pytest.raises(UserError, match="not what `tessera sample` writes"):
        images_in(tmp_path)


def test_images_outside_the_folder_are_not_read(tmp_path):
    folder = tmp_path / "samples"
    save(tmp_path / "other.png")
    folder.mkdir()
    write_json(folder / "samples.json", {"images": [{"file": "../other.png", "locations": []}]})
    with pytest.raises(UserError, match="not a file inside that folder"):
        images_in(folder)


# --- folders of all kinds -----------------------------------------------------------------------------------


def test_bare_folders_named_after_k_are_taken_to_ask_for_the_studys_locations(tmp_path):
    for k in (0, 3):
        save(tmp_path / f"k{k:02d}" / "a.png")
    found = images_in(tmp_path)
    assert [prompt.locations for prompt in found.prompts] == [(), LOCATIONS[:3]] and at_study_locations(found.prompts)


def test_a_bare_folder_may_be_given_prompts_and_its_odd_files_are_named(tmp_path, evaluated_by, capsys):
    for name in ("a.png", "b.png", "c.png"):
        save(tmp_path / name)
    save(tmp_path / "large.png", (64, 64))
    (tmp_path / "notes.txt").write_text("hello")
    evaluated_by([[obj((0.5, 0.5))]] * 3)
    _, record, _ = run(capsys, "evaluate", tmp_path, "--locations", "0.5,0.52", "--json")
    assert record["images"] == 3 and record["rows"][0]["exact"]["value"] == 1
    assert {path.rpartition("/")[2] for path in record["skipped"]} == {"large.png", "notes.txt"}


def test_a_run_folder_is_evaluated_by_its_samples_and_keeps_the_result(tmp_path, evaluated_by, capsys):
    sampled(tmp_path / "samples" / "study", (1,), settings=False)
    (tmp_path / "results").mkdir()
    write_json(tmp_path / "config.json", {"data": {"objects": [1, 5]}, "conditioner": {"label": "drop"}})
    evaluated_by([all_of(1)] * 2)
    _, record, _ = run(capsys, "evaluate", tmp_path, "--json")
    assert record["max_train_objects"] == 5 and record["label"] == "drop"
    assert json.loads((tmp_path / "results" / "detector.json").read_text()) == record


def test_a_run_with_no_or_several_samples_says_so(tmp_path):
    (tmp_path / "samples").mkdir()
    with pytest.raises(UserError, match="tessera sample"):
        images_in(tmp_path)
    for name in ("one", "two"):
        sampled(tmp_path / "samples" / name, (1,))
    with pytest.raises(UserError, match="several"):
        images_in(tmp_path)


def test_renders_with_a_scene_file_are_prompted_with_what_the_scenes_hold(tmp_path, capsys):
    run(capsys, "render", "--out", tmp_path, "--count", 2, "--size", "32", "--objects", 2)
    found = images_in(tmp_path)
    assert [prompt.k for prompt in found.prompts] == [2, 2] and not at_study_locations(found.prompts)
    exact = truths(read_scenes(tmp_path / "scenes.json"))  # the square image shows the 4:3 frame squeezed
    for prompt, objects in zip(found.prompts, exact):
        assert np.allclose(prompt.locations, [obj.location for obj in objects], atol=1e-5)


def test_images_with_transparency_or_a_palette_are_read_as_color(tmp_path):
    for mode in ("RGBA", "P"):
        save(tmp_path / f"{mode}.png", mode=mode)
        assert read_image(tmp_path / f"{mode}.png").shape == (3, 32, 32)


def test_an_image_of_a_few_pixels_is_refused(tmp_path):
    save(tmp_path / "tiny.png", (15, 40))
    with pytest.raises(UserError, match="15x40; the detector needs at least 16 pixels"):
        read_image(tmp_path / "tiny.png")


# --- explain, calibrate, bench ------------------------------------------------------------------------------


def test_explain_finds_the_prompt_beside_the_image_and_draws_it(tmp_path, evaluated_by, capsys):
    folder = sampled(tmp_path, (2,), each=1)
    evaluated_by([[obj(LOCATIONS[0])]])
    code, record, err = run(capsys, "evaluate", folder / "k02" / "0000.png", "--json", "--explain")
    assert code == 0 and record["score"]["missing"] == 1 and err == ""
    assert record["score"]["reason"] == "nothing at (0.65, 0.25)"
    evaluated_by([[obj(LOCATIONS[0])]])
    _, out, _ = run(capsys, "evaluate", folder / "k02" / "0000.png", "--explain")
    assert out.startswith("nothing at (0.65, 0.25); see ")
    assert Image.open(folder / "k02" / "0000-explained.png").width > 500


def test_explain_takes_locations_and_refuses_what_is_no_image(tmp_path, evaluated_by, capsys):
    save(tmp_path / "a.png")
    evaluated_by([[obj((0.5, 0.5))]])
    words = ("evaluate --explain", tmp_path / "a.png", "--locations 0.5,0.5 --out", tmp_path / "b.png")
    assert run(capsys, *words)[0] == 0 and (tmp_path / "b.png").is_file()
    (tmp_path / "c.png").write_text("no")
    assert run(capsys, "evaluate", tmp_path / "c.png", "--explain")[0] == 2
    assert run(capsys, "evaluate", tmp_path / "gone.png", "--explain")[0] == 2


class Blind:
    """Sees nothing, and knows that it knows nothing."""

    def detect(self, images):
        return [[] for _ in images], torch.full((len(images),), 2.0)


def test_a_blind_detector_is_calibrated_as_blind(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("tessera.cli.evaluate.load_detector", lambda weights, device: Blind())
    words = "detector calibrate --per-k 3 --k 0-2 --size 16 24x16 --device cpu --json --out"
    code, record, _ = run(capsys, words, tmp_path / "c.json")
    assert code == 0 and set(record["sizes"]) == {"16", "24x16"}
    for name in ("official", "study"):
        rows = record["sizes"]["16"][name]["rows"]
        assert [rows[k]["exact_count"]["value"] for k in "012"] == [1, 0, 0]
        assert rows["2"]["location_recall"]["value"] == 0 and rows["2"]["outcomes"] == [[0], [0], [3]]
    assert record["sizes"]["16"]["nothing"]["pure noise"]["any_object"]["value"] == 0
    assert record["sizes"]["16"]["nothing"]["pure noise"]["ood"]["value"] == 1
    assert json.loads((tmp_path / "c.json").read_text()) == record


def test_calibration_prints_tables_and_refuses_nothing_to_do(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("tessera.cli.evaluate.load_detector", lambda weights, device: Blind())
    code, out, err = run(capsys, "detector calibrate --per-k 2 --k 1 --size 16 --spacing study --device cpu")
    assert code == 0 and err == "" and "study locations" in out
    assert run(capsys, "detector calibrate --per-k 0 --device cpu")[0] == 2
    assert run(capsys, "detector", "calibrate", "--clevr", tmp_path / "nowhere")[0] == 2


def test_another_detector_or_another_rule_is_not_corrected_with_the_shipped_detector_s_error(tmp_path):
    folder = Path("anywhere")
    assert Evaluate(path=folder).own_calibration() is not None
    assert Evaluate(path=folder, weights=tmp_path).own_calibration() is None
    assert Evaluate(path=folder, require_well_formed=True).own_calibration() is None
    write_json(tmp_path / "own.json", load_calibration())
    own = Evaluate(path=folder, weights=tmp_path, calibration=tmp_path / "own.json")
    assert own.own_calibration() == load_calibration()


def test_images_without_a_known_prompt_are_named(evaluated_by, tmp_path, capsys):
    for name in ("k01/0.png", "k13/0.png", "stray.png"):
        save(tmp_path / name)
    evaluated_by([all_of(1)])
    code, record, err = run(capsys, "evaluate", tmp_path, "--max-train-objects", "3", "--device", "cpu", "--json")
    assert code == 0 and record["images"] == 1
    assert {Path(file).name for file in record["skipped"]} == {"0.png", "stray.png"}
    assert "k13/0.png is in no folder k00 to k12" in " ".join(err.split())
    assert run(capsys, "evaluate", tmp_path, "--strict", "--device", "cpu")[0] == 2


def test_mistakes_of_a_judgment_are_refused(evaluated_by, tmp_path, capsys):
    folder = sampled(tmp_path / "s", [1])
    evaluated_by([all_of(1)] * 2)
    for words in ("--resamples 0", "--resamples -5", "--locations 0.5,0.5 --colors red"):
        assert run(capsys, "evaluate", folder, *words.split(), "--device", "cpu")[0] == 2
    assert run(capsys, "evaluate", folder, "--seed", "-1", "--device", "cpu")[0] == 0  # any whole number is a seed


def test_an_image_is_not_replaced_by_its_explanation_and_explanations_are_not_evaluated(evaluated_by, tmp_path, capsys):
    save(tmp_path / "k01" / "0.png")
    before = (tmp_path / "k01" / "0.png").read_bytes()
    evaluated_by([all_of(1)] * 4)
    image = tmp_path / "k01" / "0.png"
    assert run(capsys, "evaluate", image, "--out", image, "--explain")[0] == 2
    assert image.read_bytes() == before
    assert run(capsys, "evaluate", image, "--explain")[0] == 0
    code, record, _ = run(capsys, "evaluate", tmp_path, "--device", "cpu", "--json")
    assert code == 0 and record["images"] == 1 and not record["skipped"]
