"""Locality beside K_max over the moments of trainings; what was measured before is not measured again."""

import json
import shutil

import pytest

from tessera.errors import UserError
from tessera.study.scatter import ReproduceScatter

MOMENTS = ("--snapshots", "4", "--training.rampup", "0")


def test_every_examined_moment_becomes_a_point(reproduce, call, tmp_path, capsys):
    results, runs = tmp_path / "results", tmp_path / "runs"
    assert reproduce("table1", "--only", "exp1-M1,exp2-M2,color-M1", *MOMENTS) == 0
    words = ["--preset", "tiny", "--k", 2, "--pictures", 2, "--scenes", 1]
    where = ["--root", runs, "--results", results, "--device", "cpu"]
    capsys.readouterr()
    assert call("reproduce", "scatter", *words, *where, "--json") == 0
    made = json.loads(capsys.readouterr().out)
    assert made["points"] == 6 and made["models"] == 2  # colours lie nowhere
    # After the first step conditions do not count yet: the network began with an output of zero.
    assert {row["images_seen"] for row in made["rows"]} == {8, 12, 16}
    assert (results / "figures" / "scatter-tiny.png").stat().st_size > 5000

    shutil.rmtree(runs)
    assert call("reproduce", "scatter", *words, *where) == 0
    assert json.loads((results / "scatter.json").read_text())["rows"] == made["rows"]
    with pytest.raises(UserError, match="at least 3 points"):  # another question needs the runs
        ReproduceScatter(k=1, preset="tiny", root=runs, results=results, device="cpu").run()


def test_without_exams_along_training_the_user_is_told_how_to_get_them(tmp_path):
    with pytest.raises(UserError, match="--snapshots"):
        ReproduceScatter(results=tmp_path).run()
