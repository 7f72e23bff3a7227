"""The verbs from the outside: one JSON object, figures on disk, one sentence for bad input."""

import json

import pytest
import torch

from programs import with_set
from tessera.cli.main import main
from tessera.conditioning import LocationGrid
from tessera.config import settings_for
from tessera.models.model_folder import save_model


def run(capsys, *words):
    """Exit code, what was printed, what was complained about."""
    with pytest.raises(SystemExit) as leaving:
        main(with_set(*words))
    said = capsys.readouterr()
    return leaving.value.code or 0, said.out, said.err


@pytest.fixture(scope="module")
def model(tiny_edm2, tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "untrained"
    settings = settings_for("exp1", "tiny").plain()
    return save_model(folder, tiny_edm2, LocationGrid(), {"settings": settings, "images_seen": 0})


QUICK = ("--images", 2, "--levels", 3, "--steps", 4)


def test_locality_prints_one_object_and_draws(capsys, model, tmp_path):
    out = tmp_path / "out"
    words = ("locality", model, "--k", 4, *QUICK, "--source", "generated", "--out", out, "--json")
    code, printed, _ = run(capsys, *words)
    record = json.loads(printed)
    assert code == 0 and record == json.loads((out / "locality.json").read_text())
    found = record["conditional_locality"]
    assert found["low"] <= found["value"] <= found["high"]
    assert found["null"]["low"] <= 0.25 <= found["null"]["high"] and found["k"] == 4
    assert found["value"] < 0.5  # an untrained global network is not local in conditions
    assert len(record["levels"]) == 3 and all({"sigma", "side90", "energy"} <= row.keys() for row in record["levels"])
    assert len(record["probes"][0]["probes"]) == 5 and record["provenance"]["torch"] == torch.__version__
    for name in ("maps", "curves", "conditions"):
        assert (out / f"{name}-k04-generated.png").stat().st_size > 20_000


def test_locality_takes_several_k_own_locations_and_own_probes(capsys, model):
    code, printed, _ = run(capsys, "locality", model, "--k", "1,2", *QUICK, "--probes", "0.1,0.9", "--json")
    studies = json.loads(printed)["studies"]
    assert code == 0
    assert [(s["k"], s["source"]) for s in studies] == [
        (1, "generated"), (1, "truth"), (2, "generated"), (2, "truth")
    ]  # fmt: skip
    assert [(p["row"], p["col"]) for p in studies[0]["probes"][0]["probes"]] == [(28, 3)]
    code, printed, _ = run(capsys, "locality", model, "--locations", "0.2,0.2 0.8,0.8", *QUICK, "--json")
    assert code == 0 and json.loads(printed)["probes"][0]["wanted"] == [[0.2, 0.2], [0.8, 0.8]]


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("--k", "0"), "K = 0 prompts no object"),
        (("--locations", ""), "K = 0 prompts no object"),
        (("--k", "13"), "at most 12"),
        (("--probes", "0.5,1.5"), "outside the image"),
        (("--probes", ""), "At least one location"),
        (("--images", "0"), "At least one image"),
        (("--levels", "9", "--steps", "4"), "1 to 4"),
    ],
)
def test_bad_input_is_one_sentence(capsys, model, words, complaint):
    code, printed, said = run(capsys, "locality", model, *words)
    assert code == 2 and printed == "" and complaint in said and len(said.strip().splitlines()) == 1


def test_scatter_draws_points_and_refuses_half_a_pair(capsys, tmp_path):
    rows = [
        {"model": f"model {m}", "images_seen": 100 * (n + 1), "k_max": 3 + m + n, "max_train_objects": 3}
        | {"locality": 0.3 + 0.1 * m + 0.05 * n, "low": 0.25 + 0.1 * m, "high": 0.5 + 0.1 * m}
        for m in range(4)
        for n in range(3)
    ]
    file = tmp_path / "points.json"
    file.write_text(json.dumps({"points": rows}))
    words = ("--out", tmp_path / "out", "--resamples", 100, "--json")
    code, printed, _ = run(capsys, "reproduce", "scatter", "--points", file, *words)
    record = json.loads(printed)
    assert code == 0 and record["spearman"]["value"] > 0.9 and record["points"] == 12
    assert (tmp_path / "out" / "scatter.png").stat().st_size > 20_000
    again = tmp_path / "out" / "scatter.json"  # which the verb reads as well as it writes
    code, printed, _ = run(capsys, "reproduce", "scatter", "--points", again, "--resamples", 100, "--json")
    assert code == 0 and json.loads(printed)["spearman"] == record["spearman"]
    half = tmp_path / "locality.json"
    half.write_text(json.dumps({"conditional_locality": None}))
    code, _, said = run(capsys, "reproduce", "scatter", "--points", half)
    assert code == 2 and "lacks the detector's record" in said
    code, _, said = run(capsys, "reproduce", "fig12", "--cifar", tmp_path / "none", "--out", tmp_path / "fig12")
    assert code == 2 and "no CIFAR-10" in said and not (tmp_path / "fig12").exists()
