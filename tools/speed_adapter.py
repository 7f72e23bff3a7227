"""What `compare_speed.py` measures, in today's names: name -> prepare() -> (work, units, unit), on a CPU."""

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
CPU = torch.device("cpu")


def training(experiment: str, preset: str, batch: int) -> Prepared:
    """Steps of training as a CPU does it by default (uncompiled, in float32), rendering included."""
    changes = {"batch": batch, "render_batch": 8 * batch}
    settings = settings_for(experiment, preset, {"training": changes})
    torch.manual_seed(0)
    trainer = Trainer(build_denoiser(settings), settings.training, CPU)
    batches = _stream_for(settings).steps(0, batch, settings.training.render_batch, device=CPU)
    return lambda: trainer.step(next(batches)), 1, "steps"


def sampling(name: str, steps: int) -> Prepared:
    model = load(name)
    cond = model.conditioner.at([(0.65, 0.65), (0.25, 0.65), (0.65, 0.25)])
    sigmas = noise_levels(steps)
    return lambda: sample(model.denoiser, cond, model.size, range(1), sigmas=sigmas), 1, "images"


def rendering(quality: Quality, count: int) -> Prepared:
    scenes = Scenes(objects=(1, 6)).draw(count, seed=0)
    return lambda: render(scenes, size=64, quality=quality), count, "images"


def detecting(count: int) -> Prepared:
    detector = load_detector(device=CPU)
    images = render(Scenes(objects=(1, 6)).draw(count, seed=0), size=64)["rgb"]
    return lambda: detector.detect(images), count, "images"


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
