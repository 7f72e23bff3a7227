"""Several processes: the same samples, the same result up to the order of sums."""

import multiprocessing
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed.run import get_args_parser

from tessera.cli.main import parse
from tessera.models.checkpoint_io import read_checkpoint
from tessera.training.distributed import ALONE, ProcessGroup
from tessera.training.run_folder import RunFolder, train_run


def one_of_two(rank, settings, folder, meeting):
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
    train_run(settings, folder, group=ProcessGroup(rank, 2), on_message=lambda message: None)
    dist.destroy_process_group()


def run_two(settings, folder, meeting):
    context = multiprocessing.get_context("fork")
    pair = [context.Process(target=one_of_two, args=(r, settings, folder, meeting)) for r in (0, 1)]
    for process in pair:
        process.start()
    for process in pair:
        process.join(60)
    assert [process.exitcode for process in pair] == [0, 0]


def state_of(folder):
    return read_checkpoint(RunFolder(folder).states()[0])[0]


@pytest.mark.parametrize("experiment", ["exp1", "exp2L"])
def test_two_processes_train_like_one(minute, tmp_path, experiment):
    settings = minute(experiment, training={"total": 32, "batch": 8, "lr": 0.002})
    train_run(settings, tmp_path / "one", on_message=lambda message: None)
    run_two(settings, tmp_path / "two", tmp_path / "meeting")
    one, two = state_of(tmp_path / "one"), state_of(tmp_path / "two")
    assert one.keys() == two.keys()
    for name in one:
        if name.startswith("model."):
            assert torch.allclose(one[name], two[name], atol=2e-3), name
    losses = [[r["loss"] for r in RunFolder(tmp_path / name).records()] for name in ("one", "two")]
    assert losses[0] == pytest.approx(losses[1], abs=1e-3)


def test_two_processes_carry_on_what_one_began(minute, tmp_path):
    begun = minute(training={"total": 16, "batch": 8})
    train_run(begun, tmp_path / "run", on_message=lambda message: None)
    run_two(minute(training={"total": 32, "batch": 8}), tmp_path / "run", tmp_path / "meeting")
    assert RunFolder(tmp_path / "run").states()[0].name == "state-000000000032.safetensors"


def test_alone_nothing_is_summed():
    tensor = torch.ones(3)
    ALONE.sum_([tensor])
    assert tensor.tolist() == [1, 1, 1] and ALONE.leads and ALONE.agree(True) and not ALONE.agree(False)


def test_tensors_of_all_shapes_are_summed_in_one_message(monkeypatch):
    messages = []

    def sum_of_two_alike(flat):
        messages.append(len(flat))
        flat.mul_(2)

    monkeypatch.setattr("torch.distributed.all_reduce", sum_of_two_alike)
    tensors = [torch.ones(shape) for shape in ((3,), (2, 2), ())]
    ProcessGroup(rank=0, world=2).sum_(iter(tensors))
    assert messages == [8] and all((tensor == 2).all() for tensor in tensors)


# --- the launcher ---------------------------------------------------------------------------------------------

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
TINY = [
    "--preset", "tiny", "--total", "16", "--conditioner.cells", "4", "--data.size", "8",
    "--denoiser.width", "8", "--denoiser.blocks", "1", "--denoiser.mult", "1,2",
    "--denoiser.head-width", "8", "--training.batch", "4", "--training.render-batch", "16", "--training.checkpoint", "16",
    "--training.snapshot", "16", "--tensorboard", "off", "--device", "cpu",
]  # fmt: skip


def launches():
    """The words after `torchrun` in every command line of the documents."""
    text = "\n".join(page.read_text() for page in PAGES).replace("\\\n", " ")
    return [line.split() for line in re.findall(r"torchrun (-[^`\n]+)", text)]


@pytest.mark.parametrize("words", launches(), ids=" ".join)
def test_the_launcher_passes_on_the_documented_command_lines(words):
    """It reads our options as shortened ones of its own where it can: `--run` stood for its `--run-path`."""
    given = get_args_parser().parse_args(words)
    assert given.module and given.training_script == "tessera"
    assert parse("train", given.training_script_args[1:]).settings.experiment == "exp1"


def test_the_launcher_takes_no_option_of_train_for_its_own(capsys):
    with pytest.raises(SystemExit):
        parse("train", ["--help"])
    options = sorted(set(re.findall(r"(?<![\w-])--[a-z][\w.-]*", capsys.readouterr().out)))
    assert "--out" in options and "--training.batch" in options
    words = ["-m", "tessera", "train", "exp1", *options]
    assert get_args_parser().parse_args(words).training_script_args == words[2:]


def test_the_documented_command_line_trains_with_two_processes(tmp_path):
    words = next(words for words in launches() if "--standalone" in words and "--out" in words)
    for option, value in (("--nproc-per-node", "2"), ("--out", str(tmp_path / "run"))):
        words[words.index(option) + 1] = value
    preset = words.index("--preset")
    del words[preset : preset + 2]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "torch.distributed.run", *words, *TINY]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("Trained on 16 images") == 1
    assert [path.name for path in RunFolder(tmp_path / "run").states()] == ["state-000000000016.safetensors"]
