"""Stored results: typed kinds, one reader, and files of the previous format."""

import json
import shutil
from pathlib import Path

import pytest
import torch

from tessera import load
from tessera.errors import UserError
from tessera.evaluation.image_sets import images_in
from tessera.evaluation.kmax import TrainingRange
from tessera.files import read_json, write_json
from tessera.models.model_folder import find_model
from tessera.records import (
    FORMAT,
    KINDS,
    EvaluationRecord,
    LearningRecord,
    Record,
    StudyRunRecord,
    as_record,
    covers,
    current_words,
    new_record,
    read_record,
    write_record,
)
from tessera.render.image_io import save_png

RESULTS = Path(__file__).parents[1] / "results"
SHARE = {"share": 0.75, "low": 0.4, "high": 0.9, "count": 6, "n": 8}
OLD_ROW = {
    "k": 4,
    "n": 8,
    "all_filled": SHARE,
    "clean": {"share": 0.5, "low": 0.2, "high": 0.8, "count": 4, "n": 8},
    "within": SHARE,
    "near": SHARE,
    "found": {"mean": 3.5, "low": 3.0, "high": 4.0},
    "things": {"mean": 4.0, "low": 4.0, "high": 4.0, "min": 4, "max": 4, "typical": [4, 4]},
    "proper": {"share": 0.9, "low": 0.8, "high": 1.0, "things": 32},
}


def old_study_run():
    """What the previous format stored of one training of the study, in brief."""
    settings = {"experiment": "exp1", "preset": "small", "tell": {"kind": "grid"}, "training": {"stockpile": 64}}
    return {
        "format": 1,
        "cell": "exp1-M3",
        "preset": "small",
        "seed": 0,
        "seen_max": 3,
        "settings": settings,
        "exam": {"ks": [4], "each": 8, "steps": 32, "seed": 0},
        "training": {"images_seen": 64},
        "result": {"seen_max": 3, "k_max": {"paper": {"value": 4, "judge_range": [4, 5]}}, "rows": [OLD_ROW]},
        "quality": {"proper": SHARE, "strange": SHARE},
        "shown": {},
        "examined": {"pictures": 8, "sampling_seconds": 1.0, "judging_seconds": 0.5},
        "snapshots": [],
        "provenance": {"tessera": "0.1.0"},
    }


def test_a_record_of_the_previous_format_is_read_in_the_words_of_this_one(tmp_path):
    write_json(tmp_path / "old.json", old_study_run())
    record = read_record(tmp_path / "old.json", StudyRunRecord)
    (row,) = record.result["rows"]
    assert row["all_found"] == {"value": 0.75, "low": 0.4, "high": 0.9, "n": 8}
    assert row["exact"]["value"] == 0.5 and {"allowed_extras", "two_missing"} < row.keys()
    assert row["found"] == {"value": 3.5, "low": 3.0, "high": 4.0} and row["objects"]["typical"] == [4, 4]
    assert row["well_formed"] == {"value": 0.9, "low": 0.8, "high": 1.0, "n": 32}
    assert record["max_train_objects"] == 3 and record.settings["conditioner"] == {"kind": "grid"}
    assert record.result["k_max"]["paper"]["detector_range"] == [4, 5]
    assert record["cost"]["detecting_seconds"] == 0.5
    assert covers(record.evaluation, {"ks": [4], "each": 4, "s_churn": 0.0}, at_least=("each",))


def test_a_sample_folder_of_the_previous_format_is_read(tmp_path):
    (tmp_path / "k01").mkdir()
    save_png(tmp_path / "k01" / "0000.png", torch.zeros(3, 32, 32, dtype=torch.uint8))
    requested = {
        "file": "k01/0000.png",
        "k": 1,
        "places": [[0.3, 0.4]],
        "told": [[0.28, 0.41]],
        "colors": [],
        "seed": 7,
    }
    settings = {"tell": {"label": "one"}, "data": {"objects": [1, 3]}}
    content = {"model": "m", "size": 32, "settings": settings, "pictures": [requested]}
    write_json(tmp_path / "asked.json", content)
    found = images_in(tmp_path)
    (prompt,) = found.prompts
    assert prompt.wanted == ((0.3, 0.4),) and prompt.targets == ((0.28, 0.41),) and prompt.seed == 7
    assert TrainingRange.of(found.settings) == TrainingRange(3, "one")


def test_a_model_folder_of_the_previous_format_is_opened(tmp_path):
    folder = shutil.copytree(find_model("exp1"), tmp_path / "old")
    config = read_json(folder / "config.json")
    config["tell"] = config.pop("conditioner")
    config["settings"]["tell"] = config["settings"].pop("conditioner")
    config["settings"]["training"]["stockpile"] = config["settings"]["training"].pop("render_batch", 8192)
    config["results"] = {"k_max": {}, "rows": [OLD_ROW]}
    write_json(folder / "config.json", config)
    model = load(folder)
    assert model.conditioner.config == load("exp1").conditioner.config and model.max_train_objects == 3
    assert model.config["results"]["rows"][0]["all_found"]["value"] == 0.75


def test_what_is_current_stays_as_it_is():
    content = {"rows": [{"all_found": {"value": 0.5, "low": 0.2, "high": 0.8, "n": 8}, "exact": None}], "k": 3}
    assert current_words(content) == content
    again = current_words(current_words(old_study_run()))
    assert again == current_words(old_study_run())


def test_a_record_starts_with_its_kind_and_reads_like_a_mapping(tmp_path):
    content = {"k": 4, "preset": "tiny", "cells": [], "provenance": {"tessera": "x"}}
    written = write_record(tmp_path / "a.json", LearningRecord, content)
    assert list(written)[:3] == ["kind", "format", "tessera"] and written["format"] == FORMAT
    record = read_record(tmp_path / "a.json", LearningRecord)
    assert record.k == record["k"] == 4 and dict(record) == content and len(record) == 4
    assert record.get("nothing") is None and json.dumps(record.to_dict())


def test_wrong_kinds_and_missing_entries_are_one_sentence(tmp_path):
    with pytest.raises(UserError, match="kind `evaluation` lacks k_max, rows"):
        new_record(EvaluationRecord, {"folder": "x"})
    write_record(tmp_path / "a.json", LearningRecord, {"k": 4, "preset": "tiny", "cells": []})
    with pytest.raises(UserError, match="kind `learning`, not one of kind `study-run`"):
        read_record(tmp_path / "a.json", StudyRunRecord)
    write_json(tmp_path / "b.json", {"hello": 1})
    with pytest.raises(UserError, match="no record of a result"):
        read_record(tmp_path / "b.json", StudyRunRecord)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("theory-check", "theory"),
        ("theory-ideal-32", "closed-form"),
        ("dynamics-run", "dynamics"),
        ("dynamics-phase", "dynamics-sweep"),
        ("dynamics-width", "dynamics-sweep"),
        ("study/exp1-M3-small-seed0", "study-run"),
        ("study", "study"),
        ("locality-exp1", "locality"),
        ("scatter", "scatter"),
        ("swingby", "swingby"),
        ("composition", "composition"),
        ("crowding-exp1", "crowding"),
        ("learning-k8", "learning"),
        ("fig12", "fig12"),
        ("detector-calibration", "calibration"),
    ],
)
def test_published_results_are_of_a_kind(name, kind):
    record = as_record(read_json(RESULTS / f"{name}.json"))
    assert isinstance(record, Record) and record.kind == kind and type(record) is KINDS[kind]


def test_other_values_are_no_record():
    assert as_record({}) is as_record([]) is as_record("x") is None
    points = as_record([{"model": "m", "k_max": 3}])
    assert points is not None and points.kind == "points"


@pytest.mark.parametrize(
    ("known", "wanted", "expected"),
    [
        ({"ks": [1, 2, 3], "each": 8}, {"ks": [1, 3], "each": 8}, True),
        ({"ks": [1, 2], "each": 8}, {"ks": [1, 3], "each": 8}, False),
        ({"ks": [1], "each": 64}, {"ks": [1], "each": 8}, True),
        ({"ks": [1], "each": 8}, {"ks": [1], "each": 64}, False),
        ({"seed": 0, "extra": 1}, {"seed": 0}, True),
        ({"seed": 1}, {"seed": 0}, False),
        ({"seed": 0}, {"seed": 0, "s_churn": 0.0}, True),
        ({"seed": 0}, {"seed": 0, "s_churn": 8.0}, False),
    ],
)
def test_a_record_covers_what_asks_for_no_more(known, wanted, expected):
    assert covers(known, wanted, at_least=("each",)) == expected
