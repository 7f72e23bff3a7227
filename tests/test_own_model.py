"""A diffusers model trained elsewhere gets K_max, locality and a report, in six lines and from the shell."""

import re
from pathlib import Path

import pytest
import torch

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
    return tmp_path / "my-pipeline"


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
