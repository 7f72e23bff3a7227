"""What `compare_speed.py` measures, in today's names: name -> prepare() -> (work, units, unit), on a CPU."""

from collections.abc import Callable
from typing import Any

import torch
from tessera.denoiser.build import build_denoiser
from tessera.experiments import settings_for
from tessera.images.render import render
from tessera.judge import load_judge
from tessera.sampler import noise_levels, sample
from tessera.training.loop import Learner
from tessera.training.run import stream_for

from tessera import load
from tessera.scenes import Scenes

Prepared = tuple[Callable[[], Any], float, str]
CPU = torch.device("cpu")


def training(experiment: str, preset: str, batch: int) -> Prepared:
    """Steps of the plain, uncompiled training, rendering included."""
    changes = {"batch": batch, "stockpile": 8 * batch, "compile": "off", "precision": "float32"}
    settings = settings_for(experiment, preset, {"training": changes})
    torch.manual_seed(0)
    learner = Learner(build_denoiser(settings), settings.training, CPU)
    batches = stream_for(settings).steps(0, batch, settings.training.stockpile, device=CPU)
    return lambda: learner.step(next(batches)), 1, "steps"


def sampling(name: str, steps: int) -> Prepared:
    model = load(name)
    cond = model.tell.at([(0.65, 0.65), (0.25, 0.65), (0.65, 0.25)])
    sigmas = noise_levels(steps)
    return lambda: sample(model.denoiser, cond, model.size, range(1), sigmas=sigmas), 1, "images"


def rendering(quality: str, count: int) -> Prepared:
    scenes = Scenes(objects=(1, 6)).draw(count, seed=0)
    return lambda: render(scenes, size=64, quality=quality), count, "images"


def detecting(count: int) -> Prepared:
    judge = load_judge(device=CPU)
    images = render(Scenes(objects=(1, 6)).draw(count, seed=0), size=64)["rgb"]
    return lambda: judge.find(images), count, "images"


def drawing_scenes(count: int) -> Prepared:
    scenes = Scenes(objects=(1, 6))
    return lambda: scenes.draw(count, seed=0), count, "scenes"


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
