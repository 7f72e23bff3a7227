"""The demo's shelf: models trained for a second stand in for the shipped ones."""

import json
import shutil

import pytest
import torch

from tessera.app.report import showcase
from tessera.app.report.measure import ReportConfig
from tessera.evaluation.detector import load_detector
from tessera.models.model_folder import load_model


@pytest.fixture
def models(runs, call, tmp_path, monkeypatch):
    models = tmp_path / "models"
    for name, run in (("exp1", "exp1"), ("exp2L", "exp1C")):
        assert call("models", "export", runs / run, "--out", models / name) == 0
    monkeypatch.setattr("tessera.models.model_folder.ZOO_FOLDERS", (models,))
    monkeypatch.setattr(showcase, "_KS", (1, 3))
    monkeypatch.setattr(showcase, "_LADDER", ((2, 3),))
    monkeypatch.setattr(showcase, "_PATIENT", ReportConfig(n=1, ks=(1, 3), steps=1, images=1, levels=1))
    return models


def test_the_demo_shows_what_is_in_the_zoo_and_writes_a_report(models, call, tmp_path, capfd, monkeypatch):
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

    monkeypatch.setattr("tessera.evaluation.pipeline.Evaluator.run", None)  # a second look measures nothing
    monkeypatch.setattr(showcase, "seconds_per_call", None)
    assert call("demo", "--out", tmp_path / "demo", "--device", "cpu") == 0


def test_options_of_training_are_refused_where_nothing_is_trained(models, call, tmp_path, capfd):
    assert call("demo", "--each", "3", "--out", tmp_path / "demo") == 2
    assert "add --train" in capfd.readouterr().err and not (tmp_path / "demo").exists()


def test_an_empty_zoo_shows_nothing(models):
    shutil.rmtree(models)
    assert showcase.models_to_show() == []


def test_less_time_means_fewer_images_and_never_none(models, monkeypatch):
    monkeypatch.setattr(showcase, "_LADDER", ((8, 18), (2, 12), (1, 8)))
    monkeypatch.setattr(showcase, "seconds_per_call", lambda model, device: 0.1)
    model, cpu = load_model("exp1"), torch.device("cpu")
    chosen = [showcase.config_within(model, cpu, seconds) for seconds in (1000, 40, 0)]
    assert [config.n for config in chosen] == [8, 2, 1] and chosen[-1].levels == 6
    monkeypatch.setattr(showcase, "seconds_per_call", lambda model, device: 1.0)
    assert showcase.config_within(model, cpu, 0).source == "truth"  # needs no sampling


def test_a_patch_network_pays_for_its_images_but_not_for_its_probes():
    config = ReportConfig(n=2, ks=(1,), steps=3, levels=4, images=1)
    evaluation, way, conditions = 2 * len(showcase._KS) * 5, 5, 4 * 5
    assert showcase.calls(config, patchwise=True) == evaluation + way + conditions
    assert showcase.calls(config, patchwise=False) > showcase.calls(config, patchwise=True)


def test_what_was_measured_with_another_seed_is_measured_again_with_care(models, tmp_path):
    cpu, detector = torch.device("cpu"), load_detector()
    for seed in (0, 1):
        shown = showcase.shown("exp1", tmp_path, detector, cpu, seconds=1000, seed=seed)
        assert shown.evaluation["evaluation"]["seed"] == seed
        assert (shown.evaluation["evaluation"]["each"], shown.evaluation["evaluation"]["steps"]) == (
            2,
            3,
        )  # the ladder's, not one of each
        assert shown.locality["plan"]["levels"] == 3
