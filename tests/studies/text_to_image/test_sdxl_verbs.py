"""The verbs from the outside: one JSON object, arrays and figures on disk, one sentence for bad input."""

import json
import math
from dataclasses import asdict
from types import SimpleNamespace

import numpy as np
import pytest

from programs import call_program, with_set
from tessera.analysis.feature_study import FeatureResult, HookFeatures
from tessera.cli.main import main
from tessera.cli.t2i import OnModel
from tessera.studies.text_to_image.features import TextFeatureConfig, TextFeatureResult
from tessera.studies.text_to_image.prompts import IMAGE, PAPER


def run(capsys, *words):
    """Exit code, what was printed, what was complained about."""
    with pytest.raises(SystemExit) as leaving:
        main(with_set(*words))
    said = capsys.readouterr()
    return leaving.value.code or 0, said.out, said.err


QUICK = ("--steps", 2, "--seeds", 2, "--device", "cpu", "--json")


def test_tiny_pipeline_writes_a_pipeline(capsys, tmp_path):
    assert call_program("tiny_pipeline", tmp_path / "new", "--plant", "--json") == 0
    record = json.loads(capsys.readouterr().out)
    assert record["planted"] and (tmp_path / "new" / "model_index.json").is_file()
    assert 1e6 < record["bytes"] < 8e6


def test_locality_measures_latents_and_words(capsys, folder, tmp_path):
    out = tmp_path / "out"
    words = ("--at", "1,2", "--levels", 2, "--probe", "8,8 2,3", "--out", out)
    code, printed, _ = run(capsys, "t2i", "locality", folder, *QUICK, *words)
    record = json.loads(printed)
    assert code == 0 and record == json.loads((out / "locality.json").read_text())
    assert len(record["pixel"]) == 4 and record["words"]["words"][2] == "horse"
    assert record["nothing"] == "zeros" and record["versions"]["diffusers"] and record["seeds"] == [0, 1]
    with np.load(out / "locality.npz") as arrays:
        header = json.loads(str(arrays["header"]))
        assert header["prompt"] == IMAGE and arrays["pixel_maps"].shape == (2, 2, 16, 16)
        assert arrays["word_influence"].shape == (2, 2, 2, 8)
    for name in ("locality", "word-maps", "image"):
        assert (out / f"{name}.png").stat().st_size > 5_000


def test_words_are_split_into_their_paths(capsys, folder, tmp_path):
    words = ("--levels", 2, "--words", "horse,dog", "--out", tmp_path)
    code, printed, _ = run(capsys, "t2i", "words", folder, *QUICK, *words)
    record = json.loads(printed)
    assert code == 0 and list(record["paths"]) == ["remove", "sequence", "pooled", "mask"]
    same = record["paths"]["remove"]["sameness"]
    assert len(same) == 2 and -1 <= same[0]["pearson_r"]["value"] <= 1
    assert {"words.png", "paths.png", "word-maps-pooled.png", "words.npz"} <= {p.name for p in tmp_path.iterdir()}


def test_features_compare_layers_outputs_and_untrained_networks(capsys, folder, tmp_path):
    file = tmp_path / "mine.json"
    chosen = [concept for concept in PAPER if concept.name in ("dog", "cat", "sushi", "croissant")]
    file.write_text(json.dumps([asdict(concept) | {"prompt": concept.prompts[0]} for concept in chosen]))
    out = tmp_path / "out"
    words = ("--prompts", file, "--site", "block,maps", "--layers", "mid*", "--null", 1, "--out", out)
    code, printed, _ = run(capsys, "t2i", "features", folder, *QUICK, *words)
    record = json.loads(printed)
    assert code == 0 and [s["site"] for s in record["studies"]] == ["block", "maps"]
    block, maps = record["studies"]
    assert [space["name"] for space in block["outputs"]] == ["latent", "pixel"] and not maps["outputs"]
    layer = block["levels"][0]["layers"][0]
    assert {"within", "between", "ratio", "gap", "p", "centered", "null"} <= layer.keys()
    assert block["levels"][0]["positions"][0]["position"] == "mid"
    assert [row["concept"] for row in maps["levels"][0]["layers"][0]["composites"]] == ["sushi", "cat"]
    with np.load(out / "features-mine-block.npz") as arrays:
        assert arrays["step1_cosines"].shape == (2, 4, 4) and arrays["outputs_names"].tolist() == ["latent", "pixel"]
    kinds = {path.name.split("-mine")[0] for path in out.glob("*.png")}
    assert kinds == {"features", "layers", "composites", "images"}


def test_a_dry_run_only_counts(capsys, folder, tmp_path):
    words = ("--prompts", "one", "--null", 2, "--dry-run", "--tflops", 2, "--out", tmp_path)
    code, printed, _ = run(capsys, "t2i", "features", folder, *QUICK, *words)
    record = json.loads(printed)
    assert code == 0 and record == json.loads((tmp_path / "dry-run.json").read_text())
    assert record["passes"]["recording, untrained"] == 2 * record["passes"]["recording"] == 2 * 25 * 2
    assert record["minutes"] == pytest.approx(record["pflop"] * 1e15 / 2e12 / 60)
    assert [path.name for path in tmp_path.iterdir()] == ["dry-run.json"]


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("locality", "--at", "9", "--steps", 3), "none numbered 9"),
        (("locality", "--probe", "99,0"), "lies outside a latent of 16 x 16 cells"),
        (("locality", "--probe", "middle"), "are no cells"),
        (("locality", "--prompt", "the and of"), "no word that could be removed"),
        (("locality", "--prompt", "cat " * 80), "the text encoder reads 77"),
        (("words", "--words", "zebra"), "`zebra` is not in the prompt"),
        (("words", "--seeds", "0"), "At least one seed"),
        (("words", "--size", "big"), "is no size"),
        (("words", "--size", "1024x768x3"), "is no size"),
        (("words", "--batch", "0"), "At least one latent at a time"),
        (("features", "--layers", "middle*"), "No hook in this network is called `middle*`; near are mid_block"),
        (("features", "--site", "ear"), "not at `ear`"),
        (("features", "--prompts", "none"), "no set of prompts `none`"),
    ],
)
def test_bad_input_is_one_sentence(capsys, folder, words, complaint):
    verb, *rest = words
    defaults = [] if "--steps" in rest else ["--steps", 2, "--levels", 1, "--at", "1"]
    defaults = [] if verb != "locality" else defaults
    code, printed, said = run(capsys, "t2i", verb, folder, *defaults, "--device", "cpu", *rest)
    assert code == 2 and printed == "" and complaint in said and len(said.strip().splitlines()) == 1


def test_sizes_are_width_by_height():
    sizes = {None: None, "64": (64, 64), "64x48": (48, 64)}
    assert {size: OnModel(model="model", size=size).network.get("size") for size in sizes} == sizes


def test_sets_of_prompts_whose_files_would_have_one_name_are_refused(capsys, folder, tmp_path):
    files = [tmp_path / position / "mine.json" for position in ("here", "there")]
    for file in files:
        file.parent.mkdir()
        rows = [{"name": name, "category": name[0], "prompt": name} for name in ("cat", "cow", "dog", "doe")]
        file.write_text(json.dumps(rows))
    code, _, said = run(capsys, "t2i", "features", folder, *QUICK, "--prompts", ",".join(map(str, files)), "--dry-run")
    assert code == 2 and "Two sets of prompts are called `mine`" in said


def test_the_best_layer_is_one_whose_ratio_is_known():
    def layer(ratio):
        raw = SimpleNamespace(within=0.1, between=0.1, ratio=ratio, gap=0.0)
        return HookFeatures(raw, raw)

    level = {"mid_a": layer(math.nan), "mid_b": layer(1.5), "mid_c": layer(1.2)}
    found = TextFeatureResult(TextFeatureConfig(()), FeatureResult([1.0], [level], []), {}, {})
    assert found._position_record(0, "mid", level)["largest_ratio"] == {"layer": "mid_b", "ratio": 1.5}


def test_what_is_no_pipeline_is_refused(capsys, tmp_path):
    code, _, said = run(capsys, "t2i", "features", tmp_path)
    assert code == 2 and "is no diffusers folder" in said
    code, _, said = run(capsys, "t2i", "words", tmp_path, "--dry-run")
    assert code == 2 and "is no diffusers folder" in said
