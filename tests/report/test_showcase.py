"""The demo's shelf: models trained for a second stand in for the shipped ones."""

import json
import shutil

import pytest
import torch

from tessera.denoiser.folder import load_model
from tessera.judge.judge import load_judge
from tessera.report import showcase
from tessera.report.measure import Dials


@pytest.fixture
def shelf(runs, call, tmp_path, monkeypatch):
    shelf = tmp_path / "shelf"
    for name, run in (("exp1", "exp1"), ("exp2L", "exp1C")):
        assert call("ema", runs / run, "--out", shelf / name) == 0
    monkeypatch.setattr("tessera.denoiser.folder.SHELVES", (shelf,))
    monkeypatch.setattr(showcase, "KS", (1, 3))
    monkeypatch.setattr(showcase, "LADDER", ((2, 3),))
    monkeypatch.setattr(showcase, "PATIENT", Dials(n=1, ks=(1, 3), steps=1, pictures=1, levels=1))
    return shelf


def test_the_demo_shows_what_is_on_the_shelf_and_writes_a_report(shelf, call, tmp_path, capfd, monkeypatch):
    assert showcase.models_to_show() == ["exp1", "exp2L"]
    assert call("demo", "--out", tmp_path / "demo", "--device", "cpu", "--json") == 0
    said = capfd.readouterr()
    summary = json.loads(said.out)
    assert [model["name"] for model in summary["models"]] == ["exp1", "exp2L"]
    assert [row["k"] for row in summary["drawn"]["exp1"]] == [1, 3]
    assert summary["models"][0]["paper"]["k_max"] == 9  # what the paper says of the like
    page = (tmp_path / "demo" / "report.html").read_text()
    assert page.count('<article class="card') == 2
    assert "report.html" in "".join(said.err.split()) and "exp2L" in said.err
    assert json.loads((tmp_path / "demo" / "summary.json").read_text()) == summary

    monkeypatch.setattr("tessera.study.exam.Examiner.sit", None)  # a second look measures nothing
    monkeypatch.setattr(showcase, "seconds_per_call", None)
    assert call("demo", "--out", tmp_path / "demo", "--device", "cpu") == 0


def test_options_of_training_are_refused_where_nothing_is_trained(shelf, call, tmp_path, capfd):
    assert call("demo", "--each", "3", "--out", tmp_path / "demo") == 2
    assert "add --train" in capfd.readouterr().err and not (tmp_path / "demo").exists()


def test_an_empty_shelf_shows_nothing(shelf):
    shutil.rmtree(shelf)
    assert showcase.models_to_show() == []


def test_less_time_means_fewer_pictures_and_never_none(shelf, monkeypatch):
    monkeypatch.setattr(showcase, "LADDER", ((8, 18), (2, 12), (1, 8)))
    monkeypatch.setattr(showcase, "seconds_per_call", lambda model, device: 0.1)
    model, cpu = load_model("exp1"), torch.device("cpu")
    chosen = [showcase.dials_within(model, cpu, seconds) for seconds in (1000, 40, 0)]
    assert [dials.n for dials in chosen] == [8, 2, 1] and chosen[-1].levels == 6
    monkeypatch.setattr(showcase, "seconds_per_call", lambda model, device: 1.0)
    assert showcase.dials_within(model, cpu, 0).source == "truth"  # needs no sampling


def test_a_patch_network_pays_for_its_pictures_but_not_for_its_probes():
    dials = Dials(n=2, ks=(1,), steps=3, levels=4, pictures=1)
    exam, way, conditions = 2 * len(showcase.KS) * 5, 5, 4 * 5
    assert showcase.calls(dials, patchwise=True) == exam + way + conditions
    assert showcase.calls(dials, patchwise=False) > showcase.calls(dials, patchwise=True)


def test_what_was_measured_with_another_seed_is_measured_again_with_care(shelf, tmp_path):
    cpu, judge = torch.device("cpu"), load_judge()
    for seed in (0, 1):
        shown = showcase.shown("exp1", tmp_path, judge, cpu, seconds=1000, seed=seed)
        assert shown.exam["exam"]["seed"] == seed
        assert (shown.exam["exam"]["each"], shown.exam["exam"]["steps"]) == (
            2,
            3,
        )  # the ladder's, not one of each
        assert shown.locality["plan"]["levels"] == 3
