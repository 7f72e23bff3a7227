"""`tessera.load` opens anything that is a model."""

import pytest
import torch
from torch import nn

import tessera
from tessera.conditioning import ColorCounts, LocationGrid
from tessera.errors import UserError
from tessera.models.model_folder import save_model

PROGRAM = """
from tessera import Model
from tessera.conditioning import LocationGrid

def denoise(x, sigma, cond=None):
    return 0 * x

def make_parts():
    return denoise, LocationGrid(8), 16

def make_model():
    return Model(denoise, LocationGrid(8), 16, config={"settings": {"data": {"objects": [1, 3]}}})

def make_nothing():
    return None

Halves = LocationGrid(2)
"""


@pytest.fixture
def program(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(PROGRAM)
    return path


@pytest.mark.parametrize("name", ["make_parts", "make_model"])
def test_a_function_of_a_file_makes_a_model(program, name):
    model = tessera.load(f"{program}:{name}")
    assert model.size == 16 and model.conditioner.dim == 64
    assert model.max_train_objects == (3 if name == "make_model" else None)


def test_a_function_of_a_module_in_the_working_folder_makes_a_model(program, monkeypatch):
    monkeypatch.chdir(program.parent)
    monkeypatch.syspath_prepend(program.parent)
    assert tessera.load("mine:make_parts").sample([], steps=2).abs().max() < 1e-6


def test_a_conditioner_that_is_given_but_not_used_is_one_sentence(program, capsys):
    model = tessera.load(f"{program}:make_model", conditioner="color")
    said = " ".join(capsys.readouterr().err.split())
    assert model.conditioner.dim == 64 and "has a conditioner of its own" in said and "not used" in said
    tessera.load(f"{program}:make_model")
    assert capsys.readouterr().err == ""


def test_a_function_that_returns_no_model_is_one_sentence(program):
    with pytest.raises(UserError, match=r"returns \(denoiser, conditioner, size\)"):
        tessera.load(f"{program}:make_nothing")


def test_a_shipped_name_a_folder_a_tuple_and_a_model_are_opened_alike(tmp_path):
    model = tessera.load("exp1")
    kept = save_model(tmp_path / "kept", model.denoiser, model.conditioner, {})
    x = torch.randn(1, 3, 64, 64)
    cond = model.conditioner.at([(0.65, 0.65)])
    for other in (kept, str(kept), model, (model.denoiser, model.conditioner, 64), lambda: model):
        found = tessera.load(other)
        assert found.size == 64
        assert torch.allclose(found(x, 1.0, cond), model(x, 1.0, cond), atol=1e-2)  # weights in half precision


def test_what_is_no_model_is_one_sentence():
    with pytest.raises(UserError, match="A model is made by a function"):
        tessera.load(3)
    with pytest.raises(UserError, match="did you mean `exp1`"):
        tessera.load("exp11")
    with pytest.raises(UserError, match="choose among the snapshots of a run folder"):
        tessera.load("exp1", std=0.1)


# -- Model -------------------------------------------------------------------------------------------------


def test_the_repr_of_a_model_fits_on_a_line():
    shown = repr(tessera.load("exp1"))
    assert "64x64" in shown and "LocationGrid" in shown and "\n" not in shown and len(shown) < 120


def test_samples_depend_on_their_own_seed_alone():
    model = tessera.load("exp1")
    both = model.sample([(0.65, 0.65)], seeds=[5, 9], steps=4)
    alone = model.sample([(0.65, 0.65)], seeds=[9], steps=4)
    assert both.shape == (2, 3, 64, 64) and torch.allclose(both[1:], alone, atol=1e-4)


def test_samples_are_the_same_from_locations_and_from_their_condition():
    model = tessera.load("exp2")
    cond = model.conditioner.at([(0.65, 0.65), (0.25, 0.65)])
    images = model.sample([(0.65, 0.65), (0.25, 0.65)], steps=3)
    assert torch.equal(images, model.sample(cond, steps=3))
    composed = model.sample(cond, steps=3, compose="sum")
    assert composed.shape == images.shape and not torch.allclose(composed, images)


def test_a_denoiser_of_ones_own_knows_its_size_or_is_given_one():
    network = nn.Conv2d(3, 3, 1)
    with pytest.raises(UserError, match="size of this model's images"):
        _ = tessera.Model(network, LocationGrid()).size
    with pytest.raises(UserError, match="side of its images"):
        tessera.Model(network, LocationGrid(), size="large")
    assert tessera.Model(network, LocationGrid(), 16).size == 16
    with pytest.raises(UserError, match="is no conditioner: it lacks dim, at"):
        tessera.Model(network, "grid", 16)


def test_a_model_that_is_a_function_moves_and_counts_no_weights():
    model = tessera.Model(lambda x, sigma, cond=None: x, ColorCounts(), 8).to("cpu")
    assert "0 weights" in repr(model) and model.sample(["red"], steps=2).shape == (1, 3, 8, 8)
