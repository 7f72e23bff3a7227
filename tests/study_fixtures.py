"""A study so small that a training takes a second, and a detector that always sees what a test wants it to see."""

import pytest
import torch

from programs import with_set
from tessera.cli.main import main
from tessera.evaluation.detection import Detection
from tessera.scenes.vocabulary import LOCATIONS

MINUTE = [
    "--preset", "tiny", "--conditioner.cells", "8", "--data.size", "8", "--denoiser.width", "8", "--denoiser.blocks", "1",
    "--denoiser.mult", "1", "--denoiser.head-width", "8", "--denoiser.tile", "1", "--training.batch", "4",
    "--training.render-batch", "16", "--training.checkpoint", "8", "--training.snapshot", "16", "--device", "cpu",
]  # fmt: skip


def obj(location, color="red"):
    return Detection(*location, color, "cube", "large", "metal", 0.9, 0.9)


class Knowing:
    """Finds every prompted location filled up to K = `limit`, and none beyond; evaluations prompt K = 0, 1, ... in order."""

    def __init__(self, limit=2, each=2):
        self.limit, self.each, self.evaluations = limit, each, 0
        self.seen = []

    def detect(self, images):
        self.evaluations += 1
        self.seen.append(images)
        numbers = [n // self.each for n in range(len(images))]
        found = [[obj(location) for location in LOCATIONS[:k]] if k <= self.limit else [] for k in numbers]
        return found, torch.zeros(len(images))


@pytest.fixture
def minute():
    """Options of a study so small that a training takes a second."""
    return MINUTE


@pytest.fixture
def call():
    """`call("reproduce", "fig4")`: the exit code of the command."""

    def run(*words):
        with pytest.raises(SystemExit) as left:
            main(with_set(*words))
        return left.value.code

    return run


@pytest.fixture
def detector(monkeypatch):
    seen = Knowing()
    monkeypatch.setattr("tessera.evaluation.detector.load_detector", lambda folder=None, device=None: seen)
    for module in ("tessera.cli.studies", "speedrun"):
        monkeypatch.setattr(f"{module}.load_detector", lambda device: seen)
    return seen


@pytest.fixture
def reproduce(call, tmp_path, detector):
    """`reproduce("fig4", "--seeds", 1)` in a folder of its own: 16 images, K = 0..3, two images each."""

    def run(what, *more, total=16):
        given = ["--total", total, "--k", "0-3", "--each", "2", "--steps", "2", "--seeds", "1"]
        locations = ["--root", tmp_path / "runs", "--results", tmp_path / "results"]
        return call(*with_set("reproduce", what, *MINUTE, *given, *locations, *more))

    return run
