"""Courses of training: what is lost again is distinguished from the scatter of few images."""

import json

import pytest

from tessera.cli.main import dispatch
from tessera.cli.studies import Learning
from tessera.errors import UserError
from tessera.stats import share_interval
from tessera.studies.clevr.learning import drawn, has_course, learning, loss_of_what_was_learned


def moment(images, share, n=64, k=4):
    row = {"k": k, "all_found": share_interval(round(share * n), n).to_dict()}
    return {"images_seen": images, "k_max": {"paper": {"value": 2}}, "rows": [row]}


def record(*shares):
    *before, end = [moment(100 * n, s) for n, s in enumerate(shares)]
    snapshots = [*before, {"images_seen": end["images_seen"]}]  # whose marks are the record's
    return {"cell": "exp1-M3", "seed": 0, "snapshots": snapshots, "result": end}


def test_a_share_that_falls_far_was_lost_and_one_that_wavers_was_not():
    lost = loss_of_what_was_learned([share_interval(n, 64).to_dict() for n in (10, 60, 20, 60)])
    assert lost["rise"] == pytest.approx(40 / 64) and lost["p"] < 0.001
    wavering = loss_of_what_was_learned([share_interval(n, 64).to_dict() for n in (10, 40, 38, 55)])
    assert wavering["rise"] == pytest.approx(2 / 64) and wavering["p"] > 0.2 and wavering["rise_by_chance"] > 0.03


def test_a_course_has_the_moments_of_training():
    course = learning(record(0.1, 0.5, 0.9), 4)
    assert course["images"] == [0, 100, 200] and course["k_max"] == [2, 2, 2] and course["rise"] == 0
    assert not has_course(record(0.1, 0.5), 4) and not has_course(record(0.1, 0.5, 0.9), 5)


def test_without_courses_a_sentence_says_how_to_get_them(tmp_path):
    with pytest.raises(UserError, match="--snapshots"):
        Learning(results=tmp_path).run()


def test_the_verb_reads_the_studys_records(reproduce, tmp_path, capsys):
    results = tmp_path / "results"
    assert reproduce("fig4", "--only", "exp1-M1", "--snapshots", "4") == 0
    capsys.readouterr()
    dispatch(["reproduce", "learning", "--k", "2", "--preset", "tiny", "--results", str(results), "--json"])
    made = json.loads(capsys.readouterr().out)
    assert made == json.loads((results / "learning-k2.json").read_text())
    assert made["cells"][0]["cell"] == "exp1-M1" and len(made["cells"][0]["images"]) == 4
    assert (results / "figures" / "learning-k2-tiny.png").stat().st_size > 5000


def test_every_training_has_a_color_of_its_own():
    courses = [learning({**record(0.1, 0.5, 0.9), "seed": seed}, 4) for seed in range(13)]
    lines = drawn(courses, 4).axes[1].get_lines()
    assert len({line.get_color() for line in lines}) == len(lines) == 13
