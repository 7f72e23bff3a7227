"""Tables about trained models say what their records say."""

import json
from pathlib import Path

import pytest

from doc_tables.study import pairs_within
from tessera.studies.clevr.entries import CELLS
from tessera.studies.clevr.records import k_max_filled
from write_tables import TABLES, Results

RESULTS = Path(__file__).parents[2] / "results"


@pytest.fixture
def table(tmp_path):
    """`table("learning", learning={...})`: the rows made from records of these names."""

    def made(name, **records):
        for stem, record in records.items():
            (tmp_path / f"{stem.replace('_', '-')}.json").write_text(json.dumps(record))
        return TABLES[name](Results(tmp_path))

    return made


def test_a_course_of_training_is_shown_with_what_was_lost(table):
    shares = [{"value": share} for share in (0.1, 0.69, 0.02)]
    cell = {"cell": "exp1-M3", "seed": 0, "k_max": [7, 9, 7], "all_found": shares}
    lost = {"rise": 0.67, "rise_by_chance": 0.19, "p": 0.0005}
    rows = table("learning", **{f"learning_k{k}": {"k": k, "cells": [cell | lost]} for k in (4, 8)})
    assert rows[2] == ("exp1-M3, seed 0", "7 9 7", "8", "10% 69% 2%", "0.67", "0.19", "< 0.001")
    assert [row[2] for row in rows[1:]] == ["4", "8"]


def test_locality_stands_beside_its_null(table):
    found = {
        "value": 0.934, "low": 0.91, "high": 0.96,
        "null": {"value": 0.25, "low": 0.2, "high": 0.3}, "band": {"sigma_min": 1.2, "sigma_max": 40.0},
    }  # fmt: skip
    levels = [{"side90_each": {"value": side}} for side in (9.0, 9.0, 7.0, 5.0, 3.0, 3.0)]
    study = {"k": 4, "source": "truth", "conditional_locality": found, "levels": levels}
    record = {"model": "exp1", "size": 64, "studies": [study]}
    rows = table("locality-zoo", locality_exp1=record)
    assert rows[1] == ("exp1", "4", "truth", "0.93 [0.91, 0.96]", "0.25 [0.20, 0.30]", "1.2 to 40")
    assert table("locality-noise")[1] == ("exp1, 64x64, truth", "3.0 pixels", "9.0 pixels", "3.0")


def test_features_stand_beside_untrained_networks(table):
    beside = {"mean": 0.5, "null": {"low": -0.01, "high": 0.1}}
    names = ("off_diagonal", "centered_off_rms", "leakage", "locality")
    level = {"sigma": 2.171, "beside_untrained": dict.fromkeys(names, beside)}
    rows = table("features", features_color={"model": "color", "levels": [level]})
    assert rows[1] == ("color", "2.17", *["0.50 (untrained -0.01 to 0.10)"] * 4)


def test_likeness_gives_r_and_r_squared_of_every_model(table):
    measured = {name: {"value": 0.9, "low": 0.8, "high": 1.0} for name in ("pearson_r", "r_squared")}
    level = {"sigma": 0.5, **measured, "beyond_mean": measured}
    records = {f"theory_likeness_{model}": {"model": model, "likeness": [level]} for model in ("exp1", "exp2L")}
    rows = table("theory-likeness", **records)
    assert [head.split(",")[0] for head in rows[0]] == ["sigma", "exp1", "exp1", "exp2L", "exp2L"]
    assert rows[1] == ("0.5", *["0.90 [0.80, 1.00], 0.90 [0.80, 1.00]"] * 4)


def study_row(cell, shares, **more):
    """A row of study.json whose shares at K = 1, 2, ... are pairs: all filled, all but two."""
    by_k = {str(k): {"all_found": {"value": a}, "two_missing": {"value": b}} for k, (a, b) in enumerate(shares, 1)}
    max_train_objects = CELLS[cell].max_train_objects
    found = {"value": 1, "low": 0, "high": 2}
    row = {"cell": cell, "run": True, "k_max": {"paper": found, "strict": found}, "shares": by_k}
    return row | {"k_max_filled": k_max_filled(by_k, max_train_objects), "at_zero": [0, 3], "extras": [0, 2], **more}


def test_k_max_without_extras_asks_only_whether_locations_are_filled(table):
    shares = [(0.9, 1), (0.9, 1), (0.88, 1), (0.3, 0.95), (0.2, 0.95)]
    rows = [study_row("exp2L-M3", shares), study_row("exp2-M3", [(0.9, 1), (0.6, 1)]), study_row("exp1-M3", shares)]
    made = table("study-extras", study={"presets": {"small": rows}})
    assert [row[0] for row in made[1:]] == ["exp2-M3", "exp2L-M3"]  # exp1 is told everything
    assert [row[3] for row in made[1:]] == ["1", "4"]
    assert made[2] == ("exp2L-M3", "9 +(0-2)", "1 [0, 2]", "4", "1 [0, 2]", "0-3", "0-2")


def test_evaluations_of_the_papers_size_stand_beside_the_papers(table):
    eight, more = {"median": 7, "low": 0, "high": 9}, {"median": 8, "low": 2, "high": 8}
    evaluations = {"first": [9, 8], "any": eight, "any_64": more}
    rows = [study_row("exp2L-M3", [], as_paper=evaluations), study_row("exp2L-M3-k1", [], as_paper=evaluations)]
    made = table("study-eight", study={"presets": {"small": rows}})
    line = ("exp2L-M3", "9 +(0-2)", "1 [0, 2]", "9, 8", "7 [0, 9]", "8 [2, 8]")
    assert made[1:] == [line]  # the paper has no k1


def test_without_fresh_noise_a_cell_has_a_line_of_its_own(table):
    still = study_row("exp2L-M3", [(1, 1)] * 10)
    rows = [study_row("exp2L-M3", [(0.5, 1)] * 10, still=still)]
    given = {row[0]: row[1:] for row in table("study-patches", study={"presets": {"small": rows}})}
    assert given["exp2L-M3"] == ("50%",) * 7 and given["exp2L-M3, deterministic"] == ("100%",) * 7
    extras = table("study-extras", study={"presets": {"small": rows}})
    assert [row[0] for row in extras[1:]] == ["exp2L-M3", "exp2L-M3, deterministic"]
    assert [row[3] for row in extras[1:]] == ["0", "10"]


def test_many_probes_at_once_stand_beside_one_by_one(table):
    seconds = {"batched": 1.7, "one_call_per_probe_and_channel": 28.0}
    record = {"probes": 64, "levels": 12, "images": 8, "seconds": seconds, "ratio": 16.6}
    record |= {"ratio_with_one_forward_for_all_probes": 11.6, "largest_difference": 2.1e-5}
    record |= {"peak_memory_bytes": 2**31, "memory_budget_bytes": 2**32, "provenance": {"device": "a GPU"}}
    rows = table("locality-speed", bench_locality_gpu=record)
    given = ("28.0 s", "1.7 s", "16.6x", "11.6x", "2e-05", "2.0 of 4.0 GiB")
    assert rows[1] == ("a GPU", "64 x 12 x 8", *given)


def test_locations_share_a_patch_when_one_lies_in_the_patch_of_the_other(table):
    assert pairs_within([(0.01, 0.01), (0.2, 0.01), (0.2, 0.99)], 2) == 0  # cells 0 and 3
    assert pairs_within([(0.01, 0.01), (0.2, 0.01), (0.2, 0.99)], 3) == 1
    rows = table("study-patches", study={"presets": {"small": [study_row("exp2L-M3", [(0.5, 1)] * 10)]}})
    given = {row[0]: row[1:] for row in rows}
    assert given["exp2L-M3"] == ("50%",) * 7 and set(given["exp3L-M3"]) == {"not run"}
    assert given["pairs of locations within 2 cells"][:3] == ("0", "0", "1")


def test_length_generalization_is_read_in_several_ways(table):
    rank = {"value": 0.931, "interval": [0.8, 0.97], "interval_by_model": [0.7, 0.96]}
    one = {"reading": "strict", "max_train_objects": 3, "points": 28, "models": 12, "spearman": rank}
    rows = table(
        "locality-scatter", scatter={"readings": [one, one | {"reading": "filled", "max_train_objects": None}]}
    )
    assert rows[1][1:] == ("on 1 to 3 objects", "28", "12", "0.93 [0.80, 0.97]", "[0.70, 0.96]")
    assert rows[2][0].startswith("share of prompted locations") and rows[2][1] == "all"


def test_the_readme_tells_the_quickest_speed_run_that_arrived(table, tmp_path):
    tries = [
        {"reached": reached, "minutes": minutes} for reached, minutes in ((True, 4.0), (False, None), (True, 2.43))
    ]
    given = {"target": 9, "first_step_seconds": 48, "provenance": {"device": "a GPU"}}
    (tmp_path / "speedrun.jsonl").write_text("".join(json.dumps(one | given) + "\n" for one in tries))
    row = next(row for row in table("overview") if row[0].startswith("speed-run"))
    assert row[1:] == ("2.4 minutes to the first evaluation that passes, 0.8 of them compiling", "a GPU")


def test_swing_by_is_shown_with_what_chance_would_do(table):
    rise = {"value": 0.05, "low": 0.01, "high": 0.09}
    gap = {"gap": 0.2, "seeds": 5, "first": {"concept": None}, "error": [0.5, 0.1], "rise": rise}
    rows = table("swingby", swingby={"gaps": [gap | {"rise_by_chance": 0.08, "p": 0.3, "swing_by": False}]})
    assert rows[1] == ("0.200", "5", "neither", "0.100", "0.050 [0.010, 0.090]", "0.080", "0.300", "no")


def test_the_shipped_records_fill_every_table():
    """What the documents show of the study comes from records that are there."""
    for name in (
        "learning", "study-cells", "study-extras", "study-patches", "locality-scatter",
        "swingby", "features", "theory-likeness", "locality-noise",
    ):  # fmt: skip
        assert "not run" not in str(TABLES[name](Results(RESULTS)))
