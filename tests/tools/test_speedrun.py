import json
import os
import time

import pytest

from doc_tables.study import STUDY_TABLES, speed_log
from programs import call_program
from tessera.rows import NOT_RUN
from write_tables import Results

SMALL = [
    "--preset", "tiny", "--device", "cpu", "--each", "2", "--steps", "1", "--k", "0-3",
    "--set", "data.size=8", "denoiser.width=8", "denoiser.blocks=1", "denoiser.mult=1", "denoiser.head_width=8",
    "denoiser.tile=1", "training.batch=4", "training.render_batch=16",
]  # fmt: skip


@pytest.fixture
def speedrun(detector, tmp_path):
    def run(*words, total=None):
        settings = [f"training.total={total}"] if total else []
        return call_program("speedrun", *SMALL, *settings, "--results", tmp_path, *words)

    return run


def test_the_run_ends_when_the_target_is_reached_and_is_logged(speedrun, detector, tmp_path, capfd, monkeypatch):
    detect = detector.detect

    def better_every_time(images):
        detector.limit = detector.evaluations + 1  # 1 at the first evaluation, 2 at the second
        time.sleep(0.5)
        return detect(images)

    monkeypatch.setattr(detector, "detect", better_every_time)
    words = ["--target", "2", "--every", "8", "--variant", "try", "--json"]
    assert speedrun(*words, "--save", tmp_path / "model", total=64) == 0
    record = json.loads(capfd.readouterr().out)
    assert record["reached"] and record["k_max"] == 2 and record["images_seen"] == 16
    assert [evaluation["images_seen"] for evaluation in record["evaluations"]] == [8, 16]
    assert record["training_minutes"] == pytest.approx(record["minutes"], abs=1e-3)
    assert record["minutes"] > record["first_step_seconds"] / 60 > 0
    assert record["evaluation_minutes"] >= 1 / 60  # both evaluations slept half a second, off the clock
    assert record["evaluations"][1]["seconds"] == pytest.approx(60 * record["minutes"], abs=0.01)
    assert (tmp_path / "model" / "model.safetensors").is_file()
    (line,) = (tmp_path / "speedrun.jsonl").read_text().splitlines()
    assert json.loads(line) == record
    assert "TORCHINDUCTOR_CACHE_DIR" not in os.environ or "speedrun" not in os.environ["TORCHINDUCTOR_CACHE_DIR"]


def test_a_target_out_of_reach_is_reported_and_logged_as_such(speedrun, detector, tmp_path, capfd):
    assert speedrun("--target", "3", "--every", "8", total=16) == 0
    assert "was not reached" in capfd.readouterr().out.replace("\n", " ")
    row = speed_log(Results(tmp_path))[1]
    assert row[0] == "preset" and row[2].startswith("not within") and row[3] == "2"


def test_the_clock_ends_a_run(speedrun, tmp_path):
    assert speedrun("--target", "3", "--minutes", "0.00001", "--every", "1Mi") == 0
    record = json.loads((tmp_path / "speedrun.jsonl").read_text())
    assert record["images_seen"] == 4 and len(record["evaluations"]) == 1 and record["minutes"] is None


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--target", "0"], "at least 1"),
        (["--target", "9"], "every K from 1 to 9"),
        (["--target", "3", "--every", "often"], "no number of images"),
    ],
)
def test_mistakes_are_reported(speedrun, capfd, words, sentence):
    assert speedrun(*words) == 2
    assert sentence in capfd.readouterr().err


def test_without_records_every_study_table_is_whole_and_says_not_run(tmp_path):
    for name, table in STUDY_TABLES.items():
        rows = table(Results(tmp_path))
        assert len({len(row) for row in rows}) == 1, name
        assert any(NOT_RUN in row for row in rows), name


def test_tables_show_what_was_run_beside_the_paper(reproduce, tmp_path, monkeypatch):
    assert reproduce("fig4", "--only", "exp1-M1") == 0
    monkeypatch.setattr("tessera.studies.clevr.tables._PUBLISHED", "tiny")
    rows = STUDY_TABLES["study-table1"](Results(tmp_path / "results"))
    assert rows[0][:3] == ("training scenes", "exp1, paper", "ours")
    assert rows[1][:2] == ("1 object", "1") and rows[1][2].startswith("2 [") and rows[2][2] == NOT_RUN
    cells = STUDY_TABLES["study-cells"](Results(tmp_path / "results"))
    assert cells[1][0] == "exp1-M1" and cells[1][6] == "16"
