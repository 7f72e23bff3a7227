"""Figure 12: pixel locality of an EDM2 trained on CIFAR-10, where neighborhoods grow with the noise.

The verb `reproduce fig12`, and the function `fig12` behind it.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tessera.analysis.cifar import SIDE, CifarImages, load_cifar, shuffled_steps
from tessera.analysis.locality import LocalityResult, SceneLocality, Source, generated, measure, noised, probes_at
from tessera.analysis.locality_figures import figure_12
from tessera.analysis.pixel_influence import PLAIN, GradientConfig
from tessera.config import Settings, settings_for
from tessera.errors import UserError
from tessera.files import make_folder, write_json
from tessera.models.build import build_denoiser
from tessera.models.model import Model
from tessera.models.run_snapshots import load_run
from tessera.plots.figures import save_figure
from tessera.provenance import provenance
from tessera.render.image_io import to_float
from tessera.rng import generator
from tessera.scenes.random import seeded_generator
from tessera.stats import RESAMPLES, quantile_range, resample_rows, spearman
from tessera.training.run_folder import RunFolder, RunLog, gentle_stop
from tessera.training.stream import Batch
from tessera.training.trainer import Trainer

PROBES = ((0.5, 0.5), (0.25, 0.3), (0.7, 0.75))  # center, upper left, lower right
_NOTHING_SAID: Callable[[int], None] = lambda images: None  # noqa: E731


def cifar_settings(preset: str, total: int | None = None) -> Settings:
    """An unconditional EDM2 for 32 x 32 pixels, otherwise as the preset has it."""
    changes: dict[str, Any] = {
        "conditioner": {"kind": "nothing"},
        "data": {"size": SIDE},
        "denoiser": {"tile": 1, "coords": False},
        "training": {"p_mean": -0.4},  # EDM2's own: here detail matters, not the locations of objects
    }
    if preset != "tiny":
        changes["denoiser"]["attention"] = (16, 8)
    if total is not None:
        changes["training"]["total"] = total
    return replace(settings_for("exp1", preset, changes), experiment="cifar10")


def _train_cifar(
    images: CifarImages, settings: Settings, folder: Path, device, on_step: Callable[[int], None] = _NOTHING_SAID
) -> Model:
    """Train on the images in a run folder, or carry on there; the averaged network."""
    run, training = RunFolder(folder), settings.training
    trainer = Trainer(build_denoiser(settings), training, device)
    run.prepare(settings)
    with run.alone(), gentle_stop() as stop:
        run.resume(trainer)
        run.trim_log(trainer.images_seen)
        log = RunLog(run, trainer)
        on_device = images.images.to(device)
        steps = shuffled_steps(len(images), training.batch, trainer.images_seen // training.batch, training.seed)
        while trainer.images_seen < training.total and not stop.requested:
            step = trainer.step(_cifar_batch(on_device, next(steps), trainer.images_seen))
            stop.patient = True
            log.after_step(step)
            on_step(step.images_seen)
        if not log.finish().finished:
            raise UserError(f"Stopped before the end; the same command carries on in {folder}.")
    return load_run(folder, device=device)


def _cifar_batch(images: Tensor, rows: Tensor, first: int) -> Batch:
    chosen = to_float(images[rows.to(images.device)])
    index = torch.arange(first, first + len(rows), device=images.device)
    return Batch(chosen, chosen.new_zeros(len(rows), 0), index)


def fig12(
    path: str | Path,
    out: str | Path,
    *,
    preset: str = "small",
    total: int | None = None,
    images: int = 8,
    levels: int = 12,
    steps: int = 32,
    source: Source = "truth",
    seed: int = 0,
    how: GradientConfig = PLAIN,
    device=None,
    on_step: Callable[[int], None] = _NOTHING_SAID,
) -> dict[str, Any]:
    """Train on the CIFAR-10 at `path` (once), measure, write fig12.png and fig12.json into `out`.

    `source` "truth" measures noised test images, "generated" the model's own sampling trajectories.
    """
    device = torch.device(device or "cpu")
    known = load_cifar(path, "train")
    out = make_folder(Path(out))
    settings = cifar_settings(preset, total)
    model = _train_cifar(known, settings, out / "run", device, on_step)
    seeds = [(seed << 32) + n for n in range(images)]
    if source == "truth":
        shown = load_cifar(path, "test")
        order = torch.randperm(len(shown), generator=seeded_generator(seed))[:images]
        trajectory = noised(to_float(shown.images[order]).to(device), seeds[: len(order)], steps=steps, levels=levels)
    else:
        trajectory = generated(model.denoiser, None, SIDE, seeds, steps=steps, levels=levels, device=device)
    probes = probes_at(PROBES, SIDE, SIDE)
    result = measure(model.denoiser, trajectory, None, None, (), probes, how=how)
    record = _fig12_record(result, settings, source, seed, device)
    save_figure(figure_12(result, "CIFAR-10, EDM2"), out / "fig12.png")
    write_json(out / "fig12.json", record)
    return record


def _fig12_record(result: SceneLocality, settings: Settings, source: Source, seed: int, device) -> dict[str, Any]:
    study = LocalityResult([result], seed).to_dict()
    return {
        "settings": settings.plain(),
        "source": source,
        "images": len(result.sides_each),
        "seed": seed,
        "growth": growth(result, seed),
        "levels": study["levels"],
        "probes": study["probes"],
        "provenance": provenance(device),
    }


def growth(result: SceneLocality, seed: int = 0, resamples: int = RESAMPLES) -> dict[str, Any]:
    """Does the 90% side grow with the noise? Highest third of the levels against the lowest, and in ranks.

    Intervals draw images again.
    """
    sides = result.sides_each.double().mean(-1).numpy()  # (B, S), from high noise to low
    third = max(1, sides.shape[1] // 3)
    rng = generator(seed)
    drawn = sides[resample_rows(rng, len(sides), resamples)].mean(1)  # (R, S)
    mean = sides.mean(0)[None]

    def ends(curves: np.ndarray) -> np.ndarray:
        return curves[:, :third].mean(1) / curves[:, -third:].mean(1)

    sigmas = np.array(result.sigmas)
    low, high = quantile_range(ends(drawn))
    rank = spearman(sigmas, mean[0])
    return {
        "side_high_noise": float(mean[0, :third].mean()),
        "side_low_noise": float(mean[0, -third:].mean()),
        "ratio": {"value": float(ends(mean)[0]), "low": low, "high": high},
        "spearman_with_sigma": rank if np.isfinite(rank) else None,
        "levels_in_a_third": third,
    }
