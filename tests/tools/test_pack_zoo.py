"""Packing the study's models for the package, and timing them."""

import json

import pytest
import torch

import pack_zoo
import tessera
from benchmarks.zoo import BenchZoo
from programs import call_program


@pytest.fixture
def packed(reproduce, tmp_path):
    assert reproduce("fig5") == 0
    folders = ["--root", tmp_path / "runs", "--results", tmp_path / "results", "--preset", "tiny"]
    assert call_program("pack_zoo", *folders, "--out", tmp_path / "models") == 0
    return tmp_path / "models" / "color"


def test_a_packed_model_loads_and_carries_its_results(packed):
    model = tessera.load(packed)
    x, sigma = torch.randn(2, 3, 8, 8), torch.tensor(1.0)
    assert model(x, sigma, model.conditioner.at(("red",)).expand(2, -1)).shape == x.shape
    assert model.max_train_objects == 5 and model.config["cell"] == "color-M5"
    assert model.config["results"]["paper"]["k_max"] == 7 and model.config["results"]["rows"][1]["k"] == 1
    card = (packed / "README.md").read_text()
    assert "K_max, 95% interval" in card and "| the paper's own model | 7 |" in card


def test_an_average_that_was_not_evaluated_claims_no_results(packed, call, tmp_path):
    folders = ["--root", tmp_path / "runs", "--results", tmp_path / "results", "--preset", "tiny"]
    assert call_program("pack_zoo", *folders, "--out", tmp_path / "other", "--std", "0.08") == 0
    assert tessera.load(tmp_path / "other" / "color").config["results"] is None
    assert "was not evaluated" in (tmp_path / "other" / "color" / "README.md").read_text()


def test_a_model_too_large_to_ship_is_refused(packed, call, tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(pack_zoo, "MOST_BYTES", 1000)
    folders = ["--root", tmp_path / "runs", "--results", tmp_path / "results", "--preset", "tiny"]
    assert call_program("pack_zoo", *folders, "--out", tmp_path / "heavy") == 2
    assert "in half precision" in capfd.readouterr().err and not (tmp_path / "heavy" / "color").exists()


def test_a_zoo_too_heavy_to_ship_is_refused(packed, call, tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(pack_zoo, "ZOO_BYTES", 1000)
    folders = ["--root", tmp_path / "runs", "--results", tmp_path / "results", "--preset", "tiny"]
    assert call_program("pack_zoo", *folders, "--out", packed.parent) == 1
    assert "that may be shipped" in capfd.readouterr().err.replace("\n", " ")


def test_the_bench_tells_seconds_per_image(packed, call, capfd):
    words = ["--only", packed, "--each", "1", "--rounds", "2", "--steps", "1", "--device", "cpu", "--json"]
    assert call_program("bench", "zoo", *words) == 0
    record = json.loads(capfd.readouterr().out)
    (span,) = record["models"]["color"]["seconds_per_image"].values()
    assert 0 < span["value"] < 10


def test_precisions_are_timed_in_turns_and_set_beside_the_first(packed, call, capfd, monkeypatch):
    took = {"float32": 4.0, "bfloat16": 1.0}
    turns = []

    def timed(bench, model, precision, device):
        turns.append(precision)
        return took[precision]

    monkeypatch.setattr(BenchZoo, "timed", timed)
    words = ["zoo", "--only", packed, "--rounds", "2", "--device", "cpu", "--precision"]
    assert call_program("bench", *words, "float32,bfloat16") == 0
    assert turns == ["float32", "bfloat16"] * 3  # the first round does not count
    lines = [line.split()[2:] for line in capfd.readouterr().out.splitlines() if "color" in line]
    assert lines == [["float32", "4.00", "1.00", "x"], ["bfloat16", "1.00", "0.25", "x"]]
    assert call_program("bench", *words, "bfloat61") == 2 and "did you mean `bfloat16`" in capfd.readouterr().err


def test_without_runs_or_models_one_sentence_says_so(call, tmp_path, monkeypatch, capfd):
    assert call_program("pack_zoo", "--root", tmp_path, "--out", tmp_path / "models") == 2
    assert "None of the models was run" in capfd.readouterr().err
    monkeypatch.setattr("tessera.models.model_folder.ZOO_FOLDERS", (tmp_path,))
    assert call_program("bench", "zoo") == 2
    assert "No models are shipped" in capfd.readouterr().err
    assert call_program("pack_zoo", "--only", "colour") == 2
    assert "did you mean `color`" in capfd.readouterr().err


def test_the_list_names_what_is_in_the_zoo_and_what_is_not(packed, call, monkeypatch, capfd):
    monkeypatch.setattr("tessera.models.model_folder.ZOO_FOLDERS", (packed.parent,))
    assert call("models", "--json") == 0
    record = json.loads(capfd.readouterr().out)
    assert [model["name"] for model in record["models"]] == ["color"] and "exp1" in record["not_shipped"]
    assert record["models"][0]["k_max"]["paper"]["value"] == 0 and record["models"][0]["bytes"] < 8e6
    assert tessera.load("color").max_train_objects == 5
    assert call("models") == 0 and "color" in capfd.readouterr().out
