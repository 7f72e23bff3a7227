"""What `compare_speed.py` measures, in today's names: name -> prepare() -> (work, units, unit).

On a CPU, or on the device that the environment variable SPEED_DEVICE names.
"""

import os
from collections.abc import Callable
from typing import Any

import torch

from tessera import load
from tessera.config import settings_for
from tessera.evaluation.detector import load_detector
from tessera.models.build import build_denoiser
from tessera.render.render import Quality, render
from tessera.sampling import noise_levels, sample
from tessera.scenes import Scenes
from tessera.training.run_folder import _stream_for
from tessera.training.trainer import Trainer

Prepared = tuple[Callable[[], Any], float, str]
DEVICE = torch.device(os.environ.get("SPEED_DEVICE", "cpu"))
ON_GPU = DEVICE.type == "cuda"
MANY = 64 if ON_GPU else 1  # times as much at once as a CPU gets


def finished(work: Callable[[], Any]) -> Callable[[], None]:
    """The work, waited for."""

    def run() -> None:
        work()
        if ON_GPU:
            torch.cuda.synchronize()

    return run


def training(experiment: str, preset: str, batch: int) -> Prepared:
    """Steps of training as the device does it by default, rendering included; on a GPU with the preset's batch."""
    changes = {"batch": batch, "render_batch": 8 * batch}
    settings = settings_for(experiment, preset, {} if ON_GPU else {"training": changes})
    batch = settings.training.batch
    torch.manual_seed(0)
    trainer = Trainer(build_denoiser(settings), settings.training, DEVICE)
    batches = _stream_for(settings).steps(0, batch, settings.training.render_batch, device=DEVICE)
    together = settings.training.render_batch // batch if ON_GPU else 1  # their images are rendered at once

    def work() -> None:
        for _ in range(together):
            trainer.step(next(batches))

    return finished(work), together, "steps"


def sampling(name: str, steps: int) -> Prepared:
    model = load(name, device=DEVICE)
    cond = model.conditioner.at([(0.65, 0.65), (0.25, 0.65), (0.65, 0.25)]).to(DEVICE)
    sigmas = noise_levels(steps)
    seeds = range(MANY)
    return finished(lambda: sample(model.denoiser, cond, model.size, seeds, sigmas=sigmas)), MANY, "images"


def rendering(quality: Quality, count: int) -> Prepared:
    scenes = Scenes(objects=(1, 6)).draw(MANY * count, seed=0, device=DEVICE)
    return finished(lambda: render(scenes, size=64, quality=quality)), MANY * count, "images"


def detecting(count: int) -> Prepared:
    detector = load_detector(device=DEVICE)
    images = render(Scenes(objects=(1, 6)).draw(MANY * count, seed=0, device=DEVICE), size=64)["rgb"]
    return finished(lambda: detector.detect(images)), MANY * count, "images"


def drawing_scenes(count: int) -> Prepared:
    scenes = Scenes(objects=(1, 6))
    return finished(lambda: scenes.draw(MANY * count, seed=0, device=DEVICE)), MANY * count, "scenes"


MEASURES: dict[str, Callable[[], Prepared]] = {
    "train tiny": lambda: training("exp1", "tiny", 32),
    "train small": lambda: training("exp1", "small", 4),
    "train patchwise": lambda: training("exp2L", "tiny", 2),
    "sample exp1": lambda: sampling("exp1", 18),
    "sample exp2L": lambda: sampling("exp2L", 3),
    "render true": lambda: rendering("true", 16),
    "render fast": lambda: rendering("fast", 16),
    "detect": lambda: detecting(16),
    "draw scenes": lambda: drawing_scenes(64),
}
