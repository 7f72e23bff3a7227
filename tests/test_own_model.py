"""A diffusers model trained elsewhere gets K_max, locality and a report, in six lines and from the shell."""

import json
import re
from pathlib import Path

import pytest
import torch

from tessera.cli.main import main
from tessera.models.loading import use_conditioner

diffusers = pytest.importorskip("diffusers")
PAGE = Path(__file__).parents[1] / "docs" / "your-own.md"
SHORTER = {  # the same program with fewer samples, so that it takes seconds
    "range(7), samples=64": "range(3), samples=2, steps=4",
    "num_objects=4": "num_objects=2, images=1, levels=2, steps=4",
    '"report.html")': '"report.html", config)',
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """What `save_pretrained` writes: a UNet with the grid as a fourth channel, and its scheduler."""
    torch.manual_seed(0)
    blocks = {"down_block_types": ("DownBlock2D",), "up_block_types": ("UpBlock2D",)}
    widths = {"block_out_channels": (8,), "norm_num_groups": 4, "layers_per_block": 1}
    unet = diffusers.UNet2DModel(32, in_channels=4, out_channels=3, **blocks, **widths)
    unet.save_pretrained(tmp_path / "my-pipeline" / "unet")
    diffusers.DDPMScheduler().save_pretrained(tmp_path / "my-pipeline" / "scheduler")
    monkeypatch.chdir(tmp_path)
    yield tmp_path / "my-pipeline"
    use_conditioner(None)  # which the command line sets for the whole program


def shown_program() -> str:
    return re.search(r"<!-- example:diffusers -->\n```py\n(.*?)```", PAGE.read_text(), re.DOTALL)[1]


def test_six_lines_take_a_diffusers_model_to_k_max_locality_and_a_report(folder, capsys):
    from tessera.app.report.measure import ReportConfig

    program = shown_program()
    assert len([line for line in program.splitlines() if line.strip()]) <= 6
    for full, short in SHORTER.items():
        assert full in program
        program = program.replace(full, short)
    names = {"config": ReportConfig(n=1, ks=(1,), steps=4, images=1, levels=2)}
    exec(compile(program, "docs/your-own.md", "exec"), names)
    assert names["curve"].k_max.value == 0 and names["curve"].max_train_objects == 3  # it is untrained
    assert 0 <= names["local"].conditional_locality.value <= 1
    assert "not measured" not in capsys.readouterr().out
    assert (folder.parent / "report.html").stat().st_size > 50_000


def run(capsys, *words) -> dict:
    """The JSON object that a verb prints."""
    with pytest.raises(SystemExit) as leaving:
        main([*map(str, words), "--json", "--device", "cpu", "--threads", "1"])
    assert leaving.value.code == 0
    return json.loads(capsys.readouterr().out)


def test_one_command_evaluates_a_diffusers_model(folder, capsys):
    given = ("--conditioner", "grid", "--max-train-objects", 3)
    record = run(capsys, "evaluate", folder, *given, "--k", "0-2", "--each", 2, "--set", "steps=4")
    assert [row["k"] for row in record["rows"]] == [0, 1, 2] and record["images"] == 6
    assert record["k_max"]["paper"]["value"] == 0


def test_one_command_measures_its_locality_with_a_conditioner_of_a_file(folder, capsys):
    program = "from tessera.conditioning import LocationGrid\n\n\ndef coarse():\n    return LocationGrid(cells=4)\n"
    Path("my.py").write_text(program)
    few = ("--images", 1, "--levels", 2, "--steps", 4, "--source", "generated")
    record = run(capsys, "locality", folder, "--conditioner", "my.py:coarse", "--k", 2, *few)
    assert 0 <= record["conditional_locality"]["value"] <= 1 and record["size"] == 32


def test_one_command_reports_on_it(folder, capsys):
    few = ("--quick", "--k", "1", "--n", 1, "--steps", 4)
    run(capsys, "report", folder, "--conditioner", "grid", *few, "--out", "shell.html")
    assert Path("shell.html").stat().st_size > 50_000


def test_without_a_conditioner_the_shell_says_which_to_name(folder, capsys):
    with pytest.raises(SystemExit) as leaving:
        main(["evaluate", str(folder), "--k", "1"])
    assert leaving.value.code == 2
    assert "--conditioner my.py:MyConditioner" in capsys.readouterr().err


def test_a_function_of_a_file_is_a_model_of_the_shell(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lines = [
        "import tessera",
        "def make_model():",
        "    model = tessera.load('exp1')",
        "    return model.denoiser, model.conditioner, model.size",
    ]
    Path("my.py").write_text("\n".join(lines))
    record = run(capsys, "evaluate", "my.py:make_model", "--k", "1-2", "--each", 1, "--set", "steps=4")
    assert [row["k"] for row in record["rows"]] == [1, 2]
    composed = run(capsys, "evaluate", "exp2", "--k", "2", "--each", 1, "--set", "steps=4", "--compose", "sum")
    assert composed["max_train_objects"] == 3 and composed["rows"][0]["n"] == 1
