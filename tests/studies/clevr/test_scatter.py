"""Locality beside K_max, over the moments of trainings."""

import json

import pytest

from tessera.cli.studies import Scatter
from tessera.errors import UserError
from tessera.studies.clevr.scatter import READINGS, all_readings, points_of

MOMENTS = ("--snapshots", "4", "--training.lr-warmup", "0")


def test_every_evaluated_moment_becomes_a_point(reproduce, call, tmp_path, capsys):
    results = tmp_path / "results"
    assert reproduce("table1", "--only", "exp1-M1,exp2-M2,color-M1", *MOMENTS) == 0
    capsys.readouterr()
    words = ("--preset", "tiny", "--results", results, "--json")
    assert call("reproduce", "scatter", *words) == 2 and "too few" in capsys.readouterr().err  # none on 1 to 3 objects
    assert call("reproduce", "scatter", *words, "--max-train-objects", "None", "--rule", "paper") == 0
    made = json.loads(capsys.readouterr().out)
    assert made["points"] == 6 and made["models"] == 2  # colors lie nowhere
    # After the first step conditions do not count yet: the network began with an output of zero.
    assert {row["images_seen"] for row in made["rows"]} == {8, 12, 16}
    assert all(0 <= row["low"] <= row["locality"] <= row["high"] <= 1 for row in made["rows"])
    assert json.loads((results / "scatter.json").read_text()) == made
    assert (results / "figures" / "scatter-tiny.png").stat().st_size > 5000


def test_each_reading_has_its_own_measure_of_length():
    rows = [{"k": k, "found": {"value": 0.5 * k if 3 < k <= 10 else 0.0}} for k in range(1, 13)]
    k_max = {rule: {"value": value, "at_least": False} for rule, value in (("paper", 1), ("strict", 7))}
    found = {"value": 0.9, "low": 0.8, "high": 1.0}
    moment = {"images_seen": 8, "k_max": k_max, "rows": rows, "locality": found}
    record = {"cell": "exp1-M3", "seed": 0, "max_train_objects": 3, "snapshots": [moment, {"locality": None}]}
    record["result"] = moment
    gained = {name: [p.gained for p in points_of([record], reading)] for name, reading in READINGS.items()}
    assert gained == {"paper": [-2], "strict": [4], "filled": [0.5]}
    few = record | {"snapshots": [moment | {"rows": rows[:5]}]}
    assert points_of([few], READINGS["filled"]) == []  # not tested far enough
    assert {one["reading"] for one in all_readings([record] * 3, None)} == set(READINGS)


def test_without_evaluations_along_training_a_sentence_says_how_to_get_them(tmp_path):
    with pytest.raises(UserError, match="--snapshots"):
        Scatter(results=tmp_path).run()
