"""Locality beside K_max, over the moments of trainings."""

import json

import pytest

from tessera.errors import UserError
from tessera.study.scatter import ReproduceScatter

MOMENTS = ("--snapshots", "4", "--training.rampup", "0")


def test_every_examined_moment_becomes_a_point(reproduce, call, tmp_path, capsys):
    results = tmp_path / "results"
    assert reproduce("table1", "--only", "exp1-M1,exp2-M2,color-M1", *MOMENTS) == 0
    capsys.readouterr()
    assert call("reproduce", "scatter", "--preset", "tiny", "--results", results, "--json") == 0
    made = json.loads(capsys.readouterr().out)
    assert made["points"] == 6 and made["models"] == 2  # colours lie nowhere
    # After the first step conditions do not count yet: the network began with an output of zero.
    assert {row["images_seen"] for row in made["rows"]} == {8, 12, 16}
    assert all(0 <= row["low"] <= row["locality"] <= row["high"] <= 1 for row in made["rows"])
    assert json.loads((results / "scatter.json").read_text()) == made
    assert (results / "figures" / "scatter-tiny.png").stat().st_size > 5000


def test_without_exams_along_training_the_user_is_told_how_to_get_them(tmp_path):
    with pytest.raises(UserError, match="--snapshots"):
        ReproduceScatter(results=tmp_path).run()
