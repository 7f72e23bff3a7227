"""`tessera dynamics run | sweep | figure`, from the outside."""

import json
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from programs import with_set
from tessera.cli.main import main


def call(words: str, capsys) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as leaving:
        main(with_set(*words.split()))
    out, err = capsys.readouterr()
    return leaving.value.code, out, err


def record(words: str, capsys) -> dict:
    code, out, _ = call(words + " --json", capsys)
    assert code == 0
    return json.loads(out)


CANONICAL = "dynamics run --mu 1,2 --sigma 0.05 --model uut --w0 0.0025,0.00225;0.00225,0.0025 --time 20 --clock paper"


def test_the_canonical_run_reports_its_turning_points(capsys):
    found = record(CANONICAL, capsys)
    assert found["t_min"] == pytest.approx(2.1325, abs=1e-3) and found["e_min"] == pytest.approx(0.3936571, abs=1e-6)
    assert found["t_max"] == pytest.approx(3.9203, abs=1e-3) and found["e_max"] == pytest.approx(0.4473084, abs=1e-6)
    assert found["rise"] == pytest.approx(0.0536513, abs=1e-6)
    assert found["swing_by"] is True and found["order"] == [2, 1]
    assert found["loss_rise"] < 1e-12 and found["cautions"] == [] and "torch" in found["provenance"]


def test_the_flow_clock_halves_all_times(capsys):
    found = record("dynamics run --clock flow", capsys)
    assert found["t_min"] == pytest.approx(2.1325 / 2, abs=1e-3)
    assert found["half_times"] == pytest.approx([7.5965 / 2, 1.5002 / 2], abs=1e-3)


def test_one_layer_is_certified_and_has_no_top(capsys):
    found = record("dynamics run --model one-layer", capsys)
    assert found["rise"] == 0 and found["t_max"] is None and not found["swing_by"]
    assert found["certified_monotone"] is True
    risen = record("dynamics run --model one-layer --w0 0,0.3;0,0.95", capsys)
    assert risen["rise"] == pytest.approx(0.0719, abs=1e-4) and not risen["certified_monotone"]


def test_deep_runs_and_descent(capsys):
    assert record("dynamics run --model deep --depth 3 --time 40", capsys)["rise"] == pytest.approx(0.1928, abs=1e-3)
    found = record("dynamics run --model deep --start default --seed 5 --depth 2 --solver descent --step 0.1", capsys)
    assert found["e_last"] < 1e-6
    found = record("dynamics run --solver descent --step 0.001 --time 12", capsys)
    assert found["rise"] == pytest.approx(0.0537, abs=5e-4)


def test_networks_trained_on_samples(capsys):
    found = record("dynamics run --model mlp --depth 1 --samples 500 --time 20", capsys)
    assert sorted(found["order"]) == [1, 2] and found["e_last"] < 1e-3
    assert record("dynamics run --model relu --samples 200 --time 2", capsys)["model"] == "relu"


def test_a_missing_column_is_a_caution_and_an_unlearned_concept(capsys):
    code, out, err = call("dynamics run --width 1 --start positive --json", capsys)
    found = json.loads(out)
    assert code == 0 and "never be" in " ".join(err.split())
    assert "never be learned" in found["cautions"][0]
    assert found["unlearned"] == [1] and found["half_times"][0] is None and not found["swing_by"]
    assert found["e_last"] == pytest.approx(0.5, abs=1e-3)


def test_a_run_can_be_kept(tmp_path, capsys):
    code, _, _ = call(f"dynamics run --time 10 --out {tmp_path}/run", capsys)
    assert code == 0
    kept = json.loads((tmp_path / "run" / "run.json").read_text())
    curves = np.genfromtxt(tmp_path / "run" / "curves.csv", delimiter=",", names=True)
    assert curves["error"][0] == pytest.approx(kept["e_first"]) and curves["time"][-1] == pytest.approx(kept["time"])
    assert Image.open(tmp_path / "run" / "run.png").width > 600


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ("--sigma -0.1", "must not be negative"),
        ("--mu 1,2,3 --dim 2", "s must not exceed d"),
        ("--mu one", "`one` is no list of numbers"),
        ("--w0 1,2;3", "2 by 2"),
        ("--w0 1,2;2,1", "symmetric"),
        ("--step 2", "stable limit is 0.6955"),
        ("--model one-layer --solver descent --step 3", "stable limit is 0.9988"),
        ("--model deep --depth 4 --step 5", "stable limit is 0.3477"),
        ("--model mlp --step 5", "stable limit is 0.4994"),
        ("--step -1", "must be positive"),
        ("--time 0", "must be positive"),
        ("--omega 0", "must be positive"),
        ("--rho 2", "cosine"),
        ("--model deep --depth 0", "at least one layer"),
        ("--start default", "--model deep"),
        ("--model mlp --batch 0", "at least 1"),
    ],
)
def test_bad_input_is_refused_in_one_sentence(words, complaint, capsys):
    code, out, err = call("dynamics run " + words, capsys)
    assert code == 2 and out == ""
    assert complaint in err and "Traceback" not in err


def test_a_phase_diagram_is_recorded_and_drawn(tmp_path, capsys):
    found = record(f"dynamics sweep --cells 6 --seeds 2 --out {tmp_path}", capsys)
    assert np.array(found["height"]["mean"]).shape == (6, 6) and found["runs"] == 72
    assert found["swing_by"]["n"] == 72 and found["x"]["name"] == "ratio"
    assert Image.open(tmp_path / "phase.png").width > 600
    assert (tmp_path / "phase.svg").read_text().startswith("<?xml")
    assert json.loads((tmp_path / "phase.json").read_text())["share"] == found["share"]


def test_axes_can_be_chosen(capsys):
    found = record("dynamics sweep --x omega --y rho --y-range 0.5,0.9 --start aligned --seeds 1 --cells 3", capsys)
    assert found["y"]["values"] == pytest.approx([0.5, 0.7, 0.9])


def test_studies_of_width_and_depth(capsys):
    found = record("dynamics sweep width --widths 2,64 --seeds 40", capsys)
    assert found["rows"][0]["value"] > 0.2 and found["rows"][1]["value"] == 0
    found = record("dynamics sweep depth --depths 1,3 --dims 2 --seeds 20", capsys)
    assert [row["depth"] for row in found["rows"]] == [1, 3] and found["rows"][1]["value"] > 0.2


@pytest.mark.parametrize(
    "words",
    [
        "--x ratio --y ratio",
        "--start aligned",
        "--x rho",
        "--cells 1",
        "--x-range 3,1",
        "--y-range 0,1",
        "--sigma -1",
        "width --widths 0",
        "depth --seeds 0",
    ],
)
def test_sweeps_refuse_bad_input(words, capsys):
    code, out, err = call("dynamics sweep " + words, capsys)
    assert code == 2 and out == "" and "Traceback" not in err


def test_figures_are_made_and_unknown_ones_refused(tmp_path, capsys):
    code, _, _ = call(f"dynamics figure 4 --out {tmp_path} --format both", capsys)
    assert code == 0
    for name in ("figure-4.png", "figure-4.svg"):
        assert (tmp_path / name).stat().st_size > 5000
    for words, complaint in (("99", "no figure"), ("6", "diffusion"), ("4 --animate", "Only figure 5")):
        code, _, err = call(f"dynamics figure {words} --out {tmp_path}", capsys)
        assert code == 2 and complaint in err


def test_importing_the_dynamics_brings_no_torch():
    modules = ("data", "analysis", "one_layer", "symmetric", "deep", "pairs", "sweep", "bridge")
    names = ", ".join(f"tessera.studies.swingby.{name}" for name in modules) + ", tessera.cli.dynamics"
    code = f"import sys, {names}; sys.exit('torch' in sys.modules or 'matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
