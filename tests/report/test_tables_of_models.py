"""Tables about trained models say what their records say."""

import json
from pathlib import Path

import pytest

from tessera.report.tables import TABLES, Results

RESULTS = Path(__file__).parents[2] / "results"


@pytest.fixture
def table(tmp_path):
    """`table("learning", learning={...})`: the rows made from records of these names."""

    def made(name, **records):
        for stem, record in records.items():
            (tmp_path / f"{stem.replace('_', '-')}.json").write_text(json.dumps(record))
        return TABLES[name](Results(tmp_path))

    return made


def test_a_course_of_training_is_told_with_what_was_lost(table):
    shares = [{"share": share} for share in (0.1, 0.69, 0.02)]
    cell = {"cell": "exp1-M3", "seed": 0, "k_max": [7, 9, 7], "all_filled": shares}
    lost = {"rise": 0.67, "rise_by_chance": 0.19, "p": 0.0005}
    rows = table("learning", learning={"k": 8, "cells": [cell | lost]})
    assert rows[0][2] == "pictures with all 8"
    assert rows[1] == ("exp1-M3, seed 0", "7 9 7", "10% 69% 2%", "0.67", "0.19", "< 0.001")


def test_locality_stands_beside_its_null(table):
    found = {
        "value": 0.934, "low": 0.91, "high": 0.96,
        "null": {"mean": 0.25, "low": 0.2, "high": 0.3}, "band": {"sigma_min": 1.2, "sigma_max": 40.0},
    }  # fmt: skip
    levels = [{"side90_each": {"mean": side}} for side in (9.0, 9.0, 7.0, 5.0, 3.0, 3.0)]
    study = {"k": 4, "source": "truth", "conditional_locality": found, "levels": levels}
    record = {"model": "exp1", "size": 64, "studies": [study]}
    rows = table("locality-zoo", locate_exp1=record)
    assert rows[1] == ("exp1", "4", "truth", "0.93 [0.91, 0.96]", "0.25 [0.20, 0.30]", "1.2 to 40")
    assert table("locality-noise")[1] == ("exp1, 64x64, truth", "3.0 pixels", "9.0 pixels", "3.0")


def test_features_stand_beside_untrained_networks(table):
    beside = {"mean": 0.5, "null": {"low": -0.01, "high": 0.1}}
    names = ("off_diagonal", "centred_off_rms", "leakage", "locality")
    level = {"sigma": 2.171, "beside_untrained": dict.fromkeys(names, beside)}
    rows = table("features", features_color={"model": "color", "levels": [level]})
    assert rows[1] == ("color", "2.17", *["0.50 (untrained -0.01 to 0.10)"] * 4)


def test_likeness_gives_r_and_r_squared_of_every_model(table):
    measured = {name: {"mean": 0.9, "low": 0.8, "high": 1.0} for name in ("pearson_r", "r_squared")}
    level = {"sigma": 0.5, **measured, "beyond_mean": measured}
    records = {
        f"theory_likeness_{model}": {"model": model, "likeness": [level]} for model in ("exp1", "exp2L")
    }
    rows = table("theory-likeness", **records)
    assert [head.split(",")[0] for head in rows[0]] == ["sigma", "exp1", "exp1", "exp2L", "exp2L"]
    assert rows[1] == ("0.5", *["0.90 [0.80, 1.00], 0.90 [0.80, 1.00]"] * 4)


def test_the_shipped_records_fill_every_table():
    """What the documents show of the study comes from records that are there."""
    for name in ("learning", "sweep", "study-earlier", "features", "theory-likeness", "locality-noise"):
        assert "not run" not in str(TABLES[name](Results(RESULTS)))
