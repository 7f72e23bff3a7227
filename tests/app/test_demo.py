"""The demo where no models are shipped, with the smallest settings, through the command line."""

import json

import pytest

from programs import with_set
from tessera.cli.main import main
from tessera.devices import free_threads
from tessera.render.image_io import load_png

SMALL = ["--count", "2", "--each", "1", "--device", "cpu"]


@pytest.fixture(autouse=True)
def empty_zoo(tmp_path, monkeypatch):
    monkeypatch.setattr("tessera.models.model_folder.ZOO_FOLDERS", (tmp_path / "no shelf",))


def demo(*words) -> int:
    with pytest.raises(SystemExit) as leaving:
        main(with_set("demo", *SMALL, *words))
    return leaving.value.code


def test_the_demo_draws_detectors_trains_and_samples(tmp_path, capsys):
    assert demo("--out", tmp_path, "--train-minutes", "0.001") == 0
    said = capsys.readouterr()
    summary = json.loads((tmp_path / "summary.json").read_text())
    for name in ("scenes-64.png", "scenes-128.png", "placed-explained.png", "samples.png"):
        assert load_png(tmp_path / name).float().std() > 1  # not a blank sheet
        assert name in "".join(said.err.split())
    assert "found" in said.out and "samples.png" not in said.out
    page = (tmp_path / "report.html").read_text()
    assert "exp1C, tiny" in page and 'id="why"' in page
    assert [row["k"] for row in summary["placed"]] == [1, 3, 6, 9]
    assert summary["placed"][0]["found"] == 1 and summary["placed"][1]["found"] == 3
    assert [row["k"] for row in summary["sampled"]] == [1, 2, 3]
    assert summary["trained"]["images_seen"] > 0 and not summary["trained"]["finished"]

    assert demo("--out", tmp_path, "--train-minutes", "0.001") == 0  # carries on
    again = json.loads((tmp_path / "summary.json").read_text())
    assert again["trained"]["images_seen"] > summary["trained"]["images_seen"]
    assert again["placed"] == summary["placed"]
    assert len(list(tmp_path.glob("run-*"))) == 1


def test_without_training_the_rest_is_shown(tmp_path, capsys):
    assert demo("--out", tmp_path, "--train-minutes", "0", "--json") == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["trained"] is None and summary["sampled"] is None
    assert summary["scenes"]["objects"] >= 2
    assert not list(tmp_path.glob("run-*")) and not (tmp_path / "samples.png").exists()


def test_a_missing_detector_is_reported_before_any_work(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("tessera.evaluation.detector.resources.files", lambda name: tmp_path / "nowhere")
    assert demo("--out", tmp_path / "out") == 2
    said = capsys.readouterr().err
    assert "no readable detector" in said and len(said.strip().splitlines()) == 1
    assert list((tmp_path / "out").iterdir()) == []


def test_a_busy_machine_gets_fewer_threads_and_never_none(monkeypatch):
    monkeypatch.setattr("tessera.devices.os.sched_getaffinity", lambda process: range(8))
    assert [free_threads(8, load) for load in (0.2, 2.6, 7.9, 30.0)] == [8, 5, 1, 1]
    assert free_threads(2, 0.0) == 2  # what the user allows is kept


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--count", "0"), "at least one image"),
        (("--train-minutes", "-1"), "cannot be negative"),
        (("--experiment", "exp9"), "exp9"),
    ],
)
def test_bad_options_are_one_sentence(tmp_path, capsys, words, sentence):
    assert demo("--out", tmp_path / "out", *words) == 2
    said = capsys.readouterr().err
    assert sentence in said and len(said.strip().splitlines()) == 1
    assert not (tmp_path / "out").exists()
