"""A run so small that a training takes a second, and the report on it."""

import pytest

from programs import fitting_flags, with_set
from tessera.cli.main import main

MINUTE = [
    "--preset", "tiny", "--conditioner.cells", "4", "--data.size", "16", "--denoiser.width", "8", "--denoiser.blocks", "1",
    "--denoiser.mult", "1", "--denoiser.head-width", "8", "--denoiser.tile", "1", "--training.batch", "8",
    "--training.render-batch", "32", "--training.checkpoint", "32", "--training.snapshot", "32", "--total", "32",
    "--device", "cpu", "--tensorboard", "off",
]  # fmt: skip
LITTLE = ["--n", "2", "--k", "0-3", "--steps", "3", "--quick", "--device", "cpu"]


def called(*words) -> int:
    """The exit code of a command."""
    with pytest.raises(SystemExit) as left:
        main(with_set(*words))
    return left.value.code


@pytest.fixture(scope="session")
def call():
    return called


@pytest.fixture(scope="session")
def minute():
    """Options of a training that takes a second."""
    return MINUTE


@pytest.fixture(scope="session")
def runs(tmp_path_factory):
    """A global and a local network after four steps."""
    folder = tmp_path_factory.mktemp("runs")
    assert called("train", "exp1", *MINUTE, "--out", folder / "exp1") == 0
    assert called("train", "exp1C", *fitting_flags("exp1C", MINUTE), "--out", folder / "exp1C") == 0
    return folder


@pytest.fixture(scope="session")
def report(runs):
    """The page about both, and records of theory and dynamics."""
    page = runs / "both.html"
    assert called("report", runs / "exp1", runs / "exp1C", "--out", page, *LITTLE) == 0
    return page
