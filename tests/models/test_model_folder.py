"""Model folders: the same network comes back, and a damaged or foreign file never gets in."""

import json
import pickle
import re
import sys
import types

import pytest
import torch

import tessera
import tessera.models.model_folder as folders
from tessera.conditioning import LocationGrid, LocationList
from tessera.errors import UserError
from tessera.models.checkpoint_io import read_checkpoint, write_checkpoint
from tessera.models.edm2 import EDM2
from tessera.models.local_conv import LocalConv
from tessera.models.model_folder import load_model, save_model
from tessera.models.patchwise import Patchwise

GRID = LocationGrid(cells=8)


def networks():
    small = {"width": 8, "mult": (1, 2), "blocks": 1, "attention": (), "head_width": 8}
    yield EDM2(16, cond_dim=64, **small), GRID
    yield Patchwise(16, GRID, 1, **small), GRID
    yield LocalConv(16, LocationList(cells=8), 2, width=8, depth=2), LocationList(cells=8)


def shaken(denoiser):
    """Gains start at zero, where any two networks agree."""
    for name, parameter in denoiser.named_parameters():
        if name.endswith("gain"):
            torch.nn.init.constant_(parameter, 0.5)
    return denoiser.eval()


@pytest.fixture
def saved(tmp_path):
    denoiser, conditioner = next(networks())
    return save_model(tmp_path / "kept", shaken(denoiser), conditioner, {"images_seen": 7})


@pytest.mark.parametrize("number", range(3))
@pytest.mark.parametrize(("half", "tolerance"), [(True, 5e-3), (False, 1e-6)])
def test_a_saved_network_comes_back(tmp_path, number, half, tolerance):
    denoiser, conditioner = list(networks())[number]
    save_model(tmp_path / "kept", shaken(denoiser), conditioner, {"note": "x"}, half=half)
    model = load_model(tmp_path / "kept")
    x, cond = torch.randn(1, 3, 16, 16), conditioner.at([(0.4, 0.4)])
    assert torch.allclose(model(x, 1.0, cond), denoiser(x, 1.0, cond), rtol=0, atol=tolerance)
    assert model.conditioner == conditioner and model.config["note"] == "x" and model.size == 16


def test_the_card_says_what_it_is(saved):
    card = (saved / "README.md").read_text()
    weights = sum(p.numel() for p in load_model(saved).denoiser.parameters())
    assert f"{weights:,} weights" in card and "images seen | 7" in card


def test_the_card_says_how_to_load_it_from_where_it_stands(saved, monkeypatch):
    def said(folder):
        return re.search(r'tessera\.load\("(.*)"\)', (folder / "README.md").read_text())[1]

    assert said(saved) == saved.as_posix() and load_model(said(saved)).config["images_seen"] == 7
    monkeypatch.setattr(folders, "ZOO_FOLDERS", (saved.parent,))
    denoiser, conditioner = next(networks())
    assert said(save_model(saved.parent / "shown", denoiser, conditioner, {})) == "shown"


def test_every_byte_of_the_weights_is_guarded(saved):
    weights = saved / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-100] + bytes([whole[-100] ^ 1]) + whole[-99:])
    with pytest.raises(UserError, match="checksum"):
        load_model(saved)
    weights.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UserError):
        load_model(saved)


def test_a_pickle_in_disguise_is_not_run(saved, tmp_path):
    trace = tmp_path / "it ran"

    class Trap:
        def __reduce__(self):
            return (open, (str(trace), "w"))

    (saved / "model.safetensors").write_bytes(pickle.dumps(Trap()))
    config = json.loads((saved / "config.json").read_text())
    del config["sha256"]
    (saved / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match="no tensor file"):
        load_model(saved)
    assert not trace.exists()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"format": 99}, "no model config"),
        ({"denoiser": {"kind": "edm9"}}, "no network"),
        ({"denoiser": {"kind": "edm2", "size": 16, "cond_dim": 64, "width": 4, "mult": [1]}}, "do not fit"),
        ({"conditioner": {"kind": "grid", "cellz": 1}}, "does not take"),
    ],
)
def test_a_config_that_does_not_fit_is_one_sentence(saved, change, words):
    config = json.loads((saved / "config.json").read_text())
    (saved / "config.json").write_text(json.dumps({**config, **change}))
    with pytest.raises(UserError, match=words):
        load_model(saved)


def test_shipped_models_are_found_by_name_and_near_names_suggested(saved, monkeypatch):
    monkeypatch.setattr(folders, "ZOO_FOLDERS", (saved.parent,))
    assert load_model("kept").config["images_seen"] == 7
    with pytest.raises(UserError, match="did you mean `kept`"):
        load_model("kpt")


def test_a_folder_without_a_model_is_distinguished_from_an_unknown_name(tmp_path):
    with pytest.raises(UserError, match="no model folder"):
        load_model(tmp_path)


def test_a_hub_id_is_fetched_once_by_the_hub_library(saved, monkeypatch):
    requested = []

    def snapshot_download(repo, revision=None, allow_patterns=None):
        requested.append((repo, revision))
        if repo == "someone/absent":
            raise OSError("404 not found")
        return str(saved)

    stand_in = types.ModuleType("huggingface_hub")
    stand_in.snapshot_download = snapshot_download
    monkeypatch.setitem(sys.modules, "huggingface_hub", stand_in)
    assert load_model("someone/kept@v2").config["images_seen"] == 7
    assert requested == [("someone/kept", "v2")]
    with pytest.raises(UserError, match="404 not found"):
        load_model("someone/absent")
    assert tessera.load("someone/kept").config["images_seen"] == 7
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(UserError, match="pip install"):
        load_model("someone/kept")


def test_checkpoints_hold_all_kinds_of_tensors(tmp_path):
    tensors = {"number": torch.tensor(3.0), "half": torch.randn(3, 2).half(), "none": torch.zeros(0, 4)}
    write_checkpoint(tmp_path / "a", tensors, {"images_seen": 5})
    back, facts = read_checkpoint(tmp_path / "a")
    assert facts == {"images_seen": 5}
    assert all(torch.equal(back[name], tensors[name]) for name in tensors)
    with pytest.raises(UserError, match="no file"):
        read_checkpoint(tmp_path / "b")


def test_the_checksum_covers_the_facts_too(tmp_path):
    write_checkpoint(tmp_path / "a", {"x": torch.ones(2)}, {"images_seen": 512})
    (tmp_path / "a").write_bytes((tmp_path / "a").read_bytes().replace(b"512", b"513"))
    with pytest.raises(UserError, match="checksum"):
        read_checkpoint(tmp_path / "a")
