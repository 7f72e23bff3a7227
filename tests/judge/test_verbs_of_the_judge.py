import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from stand_in import StandIn

from tessera.cli import main
from tessera.errors import UserError
from tessera.files import write_json
from tessera.judge.calibrate import by_number, load_calibration, tally
from tessera.judge.finding import Finding
from tessera.judge.pictures_in import pictures_in, read_picture
from tessera.judge.truth import truths
from tessera.judge.verbs import JudgePictures
from tessera.scenes import LOCATIONS, read_scenes


def thing(place, color="red", proper=0.9):
    return Finding(tuple(place), color, "cube", "large", "metal", 0.9, proper)


def all_of(k):
    return [thing(place) for place in LOCATIONS[:k]]


@pytest.fixture
def judged_by(monkeypatch):
    def use(lists, **options):
        stand_in = StandIn(lists, **options)
        monkeypatch.setattr("tessera.judge.verbs.open_judge", lambda weights, device: stand_in)
        monkeypatch.setattr("tessera.judge.bench.open_judge", lambda weights, device: stand_in)
        monkeypatch.setattr("tessera.judge.calibrate.SHIPPED", Path("no-calibration-here.json"))
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
            asked = (
                {"places": [], "colors": colors[:k]} if colors else {"places": LOCATIONS[:k], "colors": []}
            )
            entries.append({"file": name, "k": k, **asked, "seed": n})
    told = {"data": {"objects": [1, 2]}, "tell": {"label": "all"}} if settings else None
    write_json(folder / "asked.json", {"model": "m", "size": 32, "settings": told, "pictures": entries})
    save(folder / "sheet.png", (200, 100))
    return folder


def run(capsys, *words):
    """Exit code, what was printed for programs, and what for people."""
    split = [part for word in words for part in (word.split() if isinstance(word, str) else [str(word)])]
    with pytest.raises(SystemExit) as leaving:
        main(split)
    out, err = capsys.readouterr()
    return leaving.value.code, json.loads(out) if out.startswith("{") else out, err


# --- judge --------------------------------------------------------------------------------------------------


def test_samples_are_judged_for_every_k_and_k_max_follows(tmp_path, judged_by, capsys):
    judged_by([[], [], *[all_of(1)] * 2, *[all_of(2)] * 2, all_of(3), all_of(3)[:2]])
    code, record, _ = run(
        capsys, "judge", sampled(tmp_path, range(4)), "--json", "--out", tmp_path / "j.json"
    )
    assert code == 0 and record["pictures"] == 8 and record["seen_max"] == 2 and record["label"] == "all"
    shares = [row["clean"]["share"] for row in record["rows"]]
    assert shares == [1, 1, 1, 0.5]
    assert record["k_max"]["paper"]["value"] == 3  # beyond the training range one of two full is enough
    assert record["k_max"]["strict"]["value"] == 0  # two pictures prove nothing
    assert json.loads((tmp_path / "j.json").read_text()) == record
    assert any("Fewer than 64" in note for note in record["notes"])
    assert "provenance" in record and not record["skipped"]


def test_the_table_names_k_max_and_what_is_not_known(tmp_path, judged_by, capsys, monkeypatch):
    monkeypatch.setattr("tessera.console.stdout.width", 200, raising=False)
    judged_by([[thing((0.5, 0.5))], []] + [all_of(1)] * 2)
    code, out, err = run(capsys, "judge", sampled(tmp_path, (0, 1), settings=False))
    assert code == 0 and err == ""
    assert "K_max by the strict rule" in out and "With nothing asked, 0-1 things appear." in out
    assert "--seen-max" in out and "no calibration" in out


def test_what_is_missed_most_often_is_named_at_the_first_k_that_lacks_something(
    tmp_path, judged_by, capsys, monkeypatch
):
    monkeypatch.setattr("tessera.console.stdout.width", 200, raising=False)
    drawn = [*[all_of(1)] * 2, all_of(3), [all_of(3)[0], all_of(3)[2]]]
    judged_by(drawn)
    folder = sampled(tmp_path, (1, 3))
    _, out, _ = run(capsys, "judge", folder)
    x, y = LOCATIONS[1]
    assert f"At K = 3, a thing at ({x:.2f}, {y:.2f}) is missed most often: 1 of 2 pictures show it." in out
    judged_by(drawn)
    _, record, _ = run(capsys, "judge", folder, "--json")
    assert [row["filled_at"] for row in record["rows"]] == [[2], [2, 1, 2]]
    assert record["rows"][0]["wishes"] == [list(LOCATIONS[0])]


def test_pictures_that_were_asked_for_different_places_are_not_told_apart_by_place(
    tmp_path, judged_by, capsys
):
    folder = sampled(tmp_path, (1,))
    asked = json.loads((folder / "asked.json").read_text())
    asked["pictures"][1]["places"] = [[0.5, 0.5]]
    write_json(folder / "asked.json", asked)
    judged_by([all_of(1), []])
    code, record, _ = run(capsys, "judge", folder, "--json")
    assert code == 0 and "filled_at" not in record["rows"][0]


def test_what_the_folder_does_not_say_can_be_said(tmp_path, judged_by, capsys):
    judged_by([all_of(2)] * 2)
    folder = sampled(tmp_path, (2,), settings=False)
    _, record, _ = run(capsys, "judge", folder, "--seen-max", 4, "--label", "one", "--json")
    assert record["seen_max"] == 4 and record["extras_allowed"] == 3


def test_colours_are_judged_by_colour(tmp_path, judged_by, capsys):
    right = [thing((0.1, 0.1), "blue"), thing((0.9, 0.9), "brown")]
    judged_by([right, right[:1]])
    folder = sampled(tmp_path, (2,), colors=["blue", "brown", "cyan"])
    _, record, _ = run(capsys, "judge", folder, "--json")
    assert record["rows"][0]["clean"]["share"] == 0.5
    assert record["rows"][0]["wishes"] == ["blue", "brown"] and record["rows"][0]["filled_at"] == [2, 1]


def test_half_drawn_things_lower_the_quality_and_may_be_refused(tmp_path, judged_by, capsys):
    folder = sampled(tmp_path, (2,), each=1)
    spoilt = [thing(LOCATIONS[0]), thing(LOCATIONS[1], proper=0.1)]
    judged_by([spoilt])
    _, lenient, _ = run(capsys, "judge", folder, "--json")
    judged_by([spoilt])
    _, stern, _ = run(capsys, "judge", folder, "--json", "--require-proper")
    assert lenient["rows"][0]["proper"]["share"] == stern["rows"][0]["proper"]["share"] == 0.5
    assert lenient["rows"][0]["clean"]["share"] == 1 and stern["rows"][0]["clean"]["share"] == 0


def test_strange_pictures_are_noted(tmp_path, judged_by, capsys):
    judged_by([all_of(1)] * 2, strangeness=3.0)
    _, record, _ = run(capsys, "judge", sampled(tmp_path, (1,)), "--json")
    assert record["rows"][0]["strange"]["share"] == 1
    assert any("not scenes the judge knows" in note for note in record["notes"])


def test_every_picture_gets_its_line_when_asked_for(tmp_path, judged_by, capsys):
    judged_by([all_of(1), []])
    run(capsys, "judge", sampled(tmp_path / "s", (1,)), "--json", "--verdicts", tmp_path / "v.jsonl")
    lines = [json.loads(line) for line in (tmp_path / "v.jsonl").read_text().splitlines()]
    assert [line["ok"] for line in lines] == [True, False]
    assert lines[1]["reason"] == "nothing at (0.65, 0.65)" and lines[0]["findings"][0]["color"] == "red"


def test_the_judges_own_error_is_corrected_for_and_shown(tmp_path, judged_by, capsys):
    truth, rng = all_of(1), np.random.default_rng(0)
    rows = [tally(truth if rng.random() < 0.8 else [], truth, False) for _ in range(400)]
    nothing = [tally([], [], False) for _ in range(400)]
    write_json(tmp_path / "c.json", {"sizes": {"32": {"study": by_number(rows + nothing)}}})
    folder = sampled(tmp_path / "s", (1,), each=80)
    judged_by([truth if n % 5 else [] for n in range(80)])  # the judge sees four in five, as it would of all
    _, record, _ = run(capsys, "judge", folder, "--json", "--calibration", tmp_path / "c.json")
    row = record["rows"][0]
    assert row["clean"]["share"] == 0.8 and row["clean"]["corrected"]["share"] > 0.93
    assert row["judge"]["exact_count"]["share"] == pytest.approx(0.8, abs=0.05)
    assert record["k_max"]["paper"]["value"] == 0 and record["k_max"]["paper"]["corrected"]["value"] == 1
    assert record["k_max"]["paper"]["judge_range"] == [0, 1]
    assert record["judge"] == {"size": "32", "arrangement": "study"}


# --- bad input ----------------------------------------------------------------------------------------------


def spoiled(folder):
    """One good picture among a missing, a broken, a grey and a larger one, and a file that is no picture."""
    sampled(folder, (1,), each=6)
    files = sorted((folder / "k01").glob("*.png"))
    files[0].unlink()
    files[1].write_bytes(files[1].read_bytes()[:60])
    files[2].write_text("not a picture")
    save(files[3], mode="L")
    save(files[4], size=(40, 32))
    return folder, files


def test_files_that_cannot_be_judged_are_named_and_left_out(tmp_path, judged_by, capsys):
    folder, files = spoiled(tmp_path)
    judged_by([all_of(1)])
    code, record, err = run(capsys, "judge", folder, "--json")
    assert code == 0 and record["pictures"] == 1
    assert set(record["skipped"]) == {str(file) for file in files[:5]}
    reasons = [record["skipped"][str(file)] for file in files[:5]]
    words = (
        "No such file",
        "Could not read",
        "not a picture",
        "grey-scale",
        "40x32 where the others are 32x32",
    )
    for reason, word, file in zip(reasons, words, files):
        assert word in reason and file.name in reason
    assert "Left out" in err


def test_strict_stops_at_the_first_file_that_cannot_be_judged(tmp_path, judged_by, capsys):
    folder, files = spoiled(tmp_path)
    judged_by([all_of(1)])
    code, out, err = run(capsys, "judge", folder, "--strict", "--json")
    assert code == 2 and out == "" and files[0].name in err and "Traceback" not in err


def test_nothing_to_judge_is_an_error(tmp_path, judged_by, capsys):
    folder = sampled(tmp_path, (1,), each=1)
    save(folder / "k01" / "0000.png", mode="L")
    judged_by([])
    code, _, err = run(capsys, "judge", folder)
    assert code == 2 and "could be judged" in err


def test_a_missing_folder_and_one_that_says_nothing_are_refused(tmp_path, judged_by, capsys):
    judged_by([])
    assert run(capsys, "judge", tmp_path / "nowhere")[0] == 2
    save(tmp_path / "a.png")
    code, _, err = run(capsys, "judge", tmp_path)
    assert code == 2 and "--places" in err


def test_a_damaged_asked_json_is_told_in_one_sentence(tmp_path):
    (tmp_path / "asked.json").write_text("{")
    with pytest.raises(UserError, match="not valid JSON"):
        pictures_in(tmp_path)
    write_json(tmp_path / "asked.json", {"pictures": [{"places": []}]})
    with pytest.raises(UserError, match="not what `tessera sample` writes"):
        pictures_in(tmp_path)


def test_pictures_outside_the_folder_are_not_read(tmp_path):
    folder = tmp_path / "samples"
    save(tmp_path / "other.png")
    folder.mkdir()
    write_json(folder / "asked.json", {"pictures": [{"file": "../other.png", "places": []}]})
    with pytest.raises(UserError, match="not a file inside that folder"):
        pictures_in(folder)


# --- folders of all kinds -----------------------------------------------------------------------------------


def test_bare_folders_named_after_k_are_taken_to_ask_for_the_studys_places(tmp_path):
    for k in (0, 3):
        save(tmp_path / f"k{k:02d}" / "a.png")
    found = pictures_in(tmp_path)
    assert [asked.places for asked in found.asked] == [(), LOCATIONS[:3]] and found.at_study_places


def test_a_bare_folder_may_be_told_what_was_asked_and_its_odd_files_are_named(tmp_path, judged_by, capsys):
    for name in ("a.png", "b.png", "c.png"):
        save(tmp_path / name)
    save(tmp_path / "large.png", (64, 64))
    (tmp_path / "notes.txt").write_text("hello")
    judged_by([[thing((0.5, 0.5))]] * 3)
    _, record, _ = run(capsys, "judge", tmp_path, "--places", "0.5,0.52", "--json")
    assert record["pictures"] == 3 and record["rows"][0]["clean"]["share"] == 1
    assert {path.rpartition("/")[2] for path in record["skipped"]} == {"large.png", "notes.txt"}


def test_a_run_folder_is_judged_by_its_samples_and_keeps_the_result(tmp_path, judged_by, capsys):
    sampled(tmp_path / "samples" / "study", (1,), settings=False)
    (tmp_path / "results").mkdir()
    write_json(tmp_path / "config.json", {"data": {"objects": [1, 5]}, "tell": {"label": "drop"}})
    judged_by([all_of(1)] * 2)
    _, record, _ = run(capsys, "judge", tmp_path, "--json")
    assert record["seen_max"] == 5 and record["label"] == "drop"
    assert json.loads((tmp_path / "results" / "judge.json").read_text()) == record


def test_a_run_with_no_or_several_samples_says_so(tmp_path):
    (tmp_path / "samples").mkdir()
    with pytest.raises(UserError, match="tessera sample"):
        pictures_in(tmp_path)
    for name in ("one", "two"):
        sampled(tmp_path / "samples" / name, (1,))
    with pytest.raises(UserError, match="several"):
        pictures_in(tmp_path)


def test_renders_with_a_scene_file_are_asked_for_what_the_scenes_hold(tmp_path, capsys):
    run(capsys, "render", "--out", tmp_path, "--count", 2, "--size", "32", "--objects", 2)
    found = pictures_in(tmp_path)
    assert [asked.k for asked in found.asked] == [2, 2] and not found.at_study_places
    exact = truths(read_scenes(tmp_path / "scenes.json"))  # the square picture shows the 4:3 frame squeezed
    for asked, things in zip(found.asked, exact):
        assert np.allclose(asked.places, [thing.place for thing in things], atol=1e-5)


def test_pictures_with_transparency_or_a_palette_are_read_as_colour(tmp_path):
    for mode in ("RGBA", "P"):
        save(tmp_path / f"{mode}.png", mode=mode)
        assert read_picture(tmp_path / f"{mode}.png").shape == (3, 32, 32)


def test_a_picture_of_a_few_pixels_is_refused(tmp_path):
    save(tmp_path / "tiny.png", (15, 40))
    with pytest.raises(UserError, match="15x40; the judge needs at least 16 pixels"):
        read_picture(tmp_path / "tiny.png")


# --- explain, calibrate, bench ------------------------------------------------------------------------------


def test_explain_finds_what_was_asked_beside_the_picture_and_draws_it(tmp_path, judged_by, capsys):
    folder = sampled(tmp_path, (2,), each=1)
    judged_by([[thing(LOCATIONS[0])]])
    code, record, err = run(capsys, "judge", "explain", folder / "k02" / "0000.png", "--json")
    assert code == 0 and record["verdict"]["missing"] == 1 and err == ""
    assert record["verdict"]["reason"] == "nothing at (0.65, 0.25)"
    judged_by([[thing(LOCATIONS[0])]])
    _, out, _ = run(capsys, "judge", "explain", folder / "k02" / "0000.png")
    assert out.startswith("nothing at (0.65, 0.25); see ")
    assert Image.open(folder / "k02" / "0000-explained.png").width > 500


def test_explain_takes_places_and_refuses_what_is_no_picture(tmp_path, judged_by, capsys):
    save(tmp_path / "a.png")
    judged_by([[thing((0.5, 0.5))]])
    words = ("judge explain", tmp_path / "a.png", "--places 0.5,0.5 --out", tmp_path / "b.png")
    assert run(capsys, *words)[0] == 0 and (tmp_path / "b.png").is_file()
    (tmp_path / "c.png").write_text("no")
    assert run(capsys, "judge", "explain", tmp_path / "c.png")[0] == 2
    assert run(capsys, "judge", "explain", tmp_path / "gone.png")[0] == 2


class Blind:
    """Sees nothing, and knows that it knows nothing."""

    def look(self, images):
        return [[] for _ in images], torch.full((len(images),), 2.0)


def test_a_blind_judge_is_calibrated_as_blind(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("tessera.judge.verbs.open_judge", lambda weights, device: Blind())
    words = "judge calibrate --per-k 3 --k 0-2 --size 16 24x16 --device cpu --json --out"
    code, record, _ = run(capsys, words, tmp_path / "c.json")
    assert code == 0 and set(record["sizes"]) == {"16", "24x16"}
    for name in ("official", "study"):
        rows = record["sizes"]["16"][name]["rows"]
        assert [rows[k]["exact_count"]["share"] for k in "012"] == [1, 0, 0]
        assert rows["2"]["place_recall"]["share"] == 0 and rows["2"]["outcomes"] == [[0], [0], [3]]
    assert record["sizes"]["16"]["nothing"]["pure noise"]["any_thing"]["share"] == 0
    assert record["sizes"]["16"]["nothing"]["pure noise"]["strange"]["share"] == 1
    assert json.loads((tmp_path / "c.json").read_text()) == record


def test_calibration_prints_tables_and_refuses_nothing_to_do(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("tessera.judge.verbs.open_judge", lambda weights, device: Blind())
    code, out, err = run(capsys, "judge calibrate --per-k 2 --k 1 --size 16 --spacing study --device cpu")
    assert code == 0 and err == "" and "study places" in out
    assert run(capsys, "judge calibrate --per-k 0 --device cpu")[0] == 2
    assert run(capsys, "judge", "calibrate", "--clevr", tmp_path / "nowhere")[0] == 2


def test_another_judge_or_another_rule_is_not_corrected_with_the_shipped_judge_s_error(tmp_path):
    folder = Path("anywhere")
    assert JudgePictures(folder).own_calibration() is not None
    assert JudgePictures(folder, weights=tmp_path).own_calibration() is None
    assert JudgePictures(folder, require_proper=True).own_calibration() is None
    write_json(tmp_path / "own.json", load_calibration())
    own = JudgePictures(folder, weights=tmp_path, calibration=tmp_path / "own.json")
    assert own.own_calibration() == load_calibration()


def test_pictures_of_which_nobody_knows_what_was_asked_are_named(judged_by, tmp_path, capsys):
    for name in ("k01/0.png", "k13/0.png", "stray.png"):
        save(tmp_path / name)
    judged_by([all_of(1)])
    code, record, err = run(capsys, "judge", tmp_path, "--seen-max", "3", "--device", "cpu", "--json")
    assert code == 0 and record["pictures"] == 1
    assert {Path(file).name for file in record["skipped"]} == {"0.png", "stray.png"}
    assert "k13/0.png is in no folder k00 to k12" in " ".join(err.split())
    assert run(capsys, "judge", tmp_path, "--strict", "--device", "cpu")[0] == 2


def test_mistakes_of_a_judgement_are_refused(judged_by, tmp_path, capsys):
    folder = sampled(tmp_path / "s", [1])
    judged_by([all_of(1)] * 2)
    for words in ("--resamples 0", "--resamples -5", "--places 0.5,0.5 --colors red"):
        assert run(capsys, "judge", folder, *words.split(), "--device", "cpu")[0] == 2
    assert (
        run(capsys, "judge", folder, "--seed", "-1", "--device", "cpu")[0] == 0
    )  # any whole number is a seed


def test_a_picture_is_not_replaced_by_its_explanation_and_explanations_are_not_judged(
    judged_by, tmp_path, capsys
):
    save(tmp_path / "k01" / "0.png")
    before = (tmp_path / "k01" / "0.png").read_bytes()
    judged_by([all_of(1)] * 4)
    picture = tmp_path / "k01" / "0.png"
    assert run(capsys, "judge", "explain", picture, "--out", picture)[0] == 2
    assert picture.read_bytes() == before
    assert run(capsys, "judge", "explain", picture)[0] == 0
    code, record, _ = run(capsys, "judge", tmp_path, "--device", "cpu", "--json")
    assert code == 0 and record["pictures"] == 1 and not record["skipped"]


def test_training_a_judge_on_nothing_is_refused(tmp_path, capsys):
    for words in ("--total 0", "--batch 0", "--minutes -1", "--rate 0"):
        assert run(capsys, f"judge train --out {tmp_path / 'judge'} {words} --device cpu")[0] == 2
    assert not (tmp_path / "judge").exists()


def test_the_benchmark_counts_pictures_per_second(judged_by, capsys):
    judged_by([[thing((0.5, 0.5))]] * 100)
    words = "bench judge --size 16 --count 5 --things 1 --repeats 2 --device cpu --json"
    code, record, _ = run(capsys, words)
    assert code == 0 and record["count"] == 5 and record["found_per_picture"] == 1
    assert record["images_per_second"]["min"] <= record["images_per_second"]["median"]
