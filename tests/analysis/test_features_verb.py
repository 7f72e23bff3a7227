"""The verb from the outside: one JSON object, figures on disk, one sentence for bad input."""

import json

import pytest
import torch
from waking import awake

from doc_tables.features import words
from programs import with_set
from tessera.cli.main import main
from tessera.conditioning import LocationGrid
from tessera.conditioning.unconditional import Unconditional
from tessera.config import settings_for
from tessera.models.build import build_denoiser
from tessera.models.model_folder import save_model

QUICK = ("--seeds", 2, "--steps", 3, "--sigmas", 10, "--device", "cpu")


def run(capsys, *words):
    """Exit code, what was printed, what was complained about."""
    with pytest.raises(SystemExit) as leaving:
        main(with_set(*words))
    said = capsys.readouterr()
    return leaving.value.code or 0, said.out, said.err


@pytest.fixture(scope="module")
def hook_model(tmp_path_factory):
    network = awake(build_denoiser(settings_for("exp1", "tiny", {"denoiser": {"width": 8}})))
    return save_model(tmp_path_factory.mktemp("models") / "hooks", network, LocationGrid(), {})


def test_features_prints_one_object_and_draws(capsys, color_model, tmp_path):
    out = tmp_path / "out"
    words = ("features", color_model, *QUICK, "--nulls", 2, "--k", 2, "--out", out, "--json")
    code, printed, _ = run(capsys, *words)
    record = json.loads(printed)
    assert code == 0 and record == json.loads((out / "features.json").read_text())
    assert len(record["concepts"]) == 8 and record["removed"] == ["blue", "brown"]
    level = record["levels"][0]
    hooks = [hook["name"] for hook in level["hooks"]]
    assert len(hooks) == 11 and hooks[0] == "encoder.16.block0.scale" and hooks[-1] == "output"
    for hook in level["hooks"]:
        off, band = hook["raw"]["off_diagonal"], hook["null"]["off_diagonal"]
        assert off["low"] <= off["value"] <= off["high"] and band["networks"] == 2
        side = "below" if off["value"] < band["low"] else "above" if off["value"] > band["high"] else None
        assert hook["clears"]["off_diagonal"] == side
        assert 0 <= hook["removal"]["leakage"]["value"] <= 1
        assert len(hook["raw"]["matrix"]) == len(hook["centered"]["matrix"]) == 8
    beside = level["beside_untrained"]["off_diagonal"]
    values = [hook["raw"]["off_diagonal"]["value"] for hook in level["hooks"]]
    assert sum(beside["hooks"].values()) == 11
    assert beside["mean"] == pytest.approx(sum(values) / 11, rel=1e-4)
    assert beside["null"]["low"] <= beside["null"]["mean"] <= beside["null"]["high"]
    assert record["provenance"]["torch"] == torch.__version__
    for name in ("matrices-1", "encoder-1", "layers", "leakage"):
        assert (out / f"{name}.png").stat().st_size > 20_000


def test_the_table_says_when_no_untrained_network_was_run():
    null = {"low": 0.1, "high": 0.2}
    assert words({"mean": 0.5, "null": null}) == "0.50 (untrained 0.10 to 0.20)"
    assert words({"mean": 0.5, "null": None}) == "0.50 (untrained not run)"  # --nulls 0
    assert words({"mean": None, "null": None}) == ""


def test_models_of_locations_compare_locations(capsys, hook_model, tmp_path):
    words = ("--nulls", 0, "--k", 1, "--at", "encoder.*,output", "--out", tmp_path, "--json")
    code, printed, _ = run(capsys, "features", hook_model, *QUICK, *words)
    record = json.loads(printed)
    assert code == 0 and record["concepts"][0] == "(0.65, 0.65)"
    conv = record["levels"][0]["hooks"][0]
    assert conv["name"] == "encoder.16.conv" and conv["clears"]["gap"] is None
    assert (tmp_path / "encoder-1.png").exists()


def test_a_shared_image_has_no_differences_before_the_first_modulation(capsys, color_model):
    words = ("--source", "shared", "--at", "encoder.*.conv", "--nulls", 0, "--json")
    code, printed, _ = run(capsys, "features", color_model, *QUICK, *words)
    raw = json.loads(printed)["levels"][0]["hooks"][0]["raw"]
    assert code == 0 and raw["off_diagonal"]["value"] is None


def test_without_json_there_are_tables(capsys, color_model):
    code, printed, said = run(capsys, "features", color_model, *QUICK, "--nulls", 1, "--at", "output")
    assert code == 0 and said == "" and "cosine between" in printed and "mean over hooks" in printed


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("--at", "encodr.*"), "near are encoder"),
        (("--at", ""), "At least one hook"),
        (("--colors", "red,bleu"), "did you mean blue"),
        (("--colors", "red"), "two conditions"),
        (("--k", 9), "1 to 8"),
        (("--seeds", 1), "two seeds"),
        (("--sigmas", "high"), "no list of noise levels"),
        (("--sigmas", "0"), "positive"),
    ],
)
def test_bad_input_is_one_sentence(capsys, color_model, words, complaint):
    code, printed, said = run(capsys, "features", color_model, *words)
    assert code == 2 and printed == "" and complaint in said and len(said.strip().splitlines()) == 1


def test_colors_need_a_model_conditioned_on_colors(capsys, hook_model, tmp_path):
    code, _, said = run(capsys, "features", hook_model, "--colors", "red,blue")
    assert code == 2 and "not conditioned on colors" in said
    network = awake(build_denoiser(settings_for("exp1", "tiny", {"conditioner": {"kind": "nothing"}})))
    unconditional = save_model(tmp_path / "unconditional", network, Unconditional(), {})
    code, _, said = run(capsys, "features", unconditional)
    assert code == 2 and "unconditional" in said
