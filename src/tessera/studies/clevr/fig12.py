"""Figure 12: pixel locality of an EDM2 trained on CIFAR-10, where neighborhoods grow with the noise.

The verb `reproduce fig12`, and the function `fig12` behind it.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tessera.analysis.cifar import SIDE, ShuffledImages, load_cifar
from tessera.analysis.locality import LocalityConfig, LocalityResult, NoisyScene, generated, measure, noised
from tessera.analysis.locality_figures import figure_12
from tessera.config import Settings, settings_for
from tessera.errors import UserError
from tessera.files import make_folder, write_json
from tessera.models.run_snapshots import load_run
from tessera.plots.figures import save_figure
from tessera.provenance import provenance
from tessera.render.image_io import to_float
from tessera.rng import generator
from tessera.scenes.random import seeded_generator
from tessera.stats import quantile_range, resample_rows, spearman
from tessera.training.run_folder import train_run

_PROBES = ((0.5, 0.5), (0.25, 0.3), (0.7, 0.75))  # center, upper left, lower right


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


def fig12(
    path: Path,
    out: Path,
    settings: Settings,
    plan: LocalityConfig,
    device=None,
    on_step: Callable[[int], object] = lambda seen: None,
) -> dict[str, Any]:
    """Train on the CIFAR-10 at `path` (once), measure, write fig12.png and fig12.json into `out`.

    The plan's source "truth" measures noised test images, "generated" the model's own sampling trajectories.
    """
    device = torch.device(device or "cpu")
    known = load_cifar(path).to(device)
    folder = make_folder(out) / "run"
    stream = ShuffledImages(known, settings.training.seed)
    if not train_run(settings, folder, device=device, stream=stream, on_step=on_step).finished:
        raise UserError(f"Stopped before the end; the same command carries on in {folder}.")
    denoise = load_run(folder, device=device).denoiser
    seeds = [(plan.seed << 32) + n for n in range(plan.images)]
    if plan.source == "truth":
        test = load_cifar(path, "test")
        shown = to_float(test[torch.randperm(len(test), generator=seeded_generator(plan.seed))[: plan.images]])
        trajectory = noised(shown.to(device), seeds[: len(shown)], steps=plan.steps, levels=plan.levels)
    else:
        trajectory = generated(denoise, None, SIDE, seeds, steps=plan.steps, levels=plan.levels, device=device)
    result = LocalityResult([measure(denoise, NoisyScene(trajectory), replace(plan, probes=_PROBES))], plan.seed)
    measured = result.to_dict()
    record = {
        "settings": settings.plain(),
        "source": plan.source,
        "images": trajectory.x.shape[1],
        "seed": plan.seed,
        "growth": growth(result.scenes[0].sides_each.double().mean(-1).numpy(), result.sigmas, plan.seed),
        "levels": measured["levels"],
        "probes": measured["probes"],
        "provenance": provenance(device),
    }
    save_figure(figure_12(result.scenes[0], "CIFAR-10, EDM2"), out / "fig12.png")
    write_json(out / "fig12.json", record)
    return record


def growth(sides: np.ndarray, sigmas: Sequence[float], seed: int = 0) -> dict[str, Any]:
    """Do 90% sides (B, S) grow with the noise, which falls? Highest third of the levels against the lowest, and in ranks.

    Intervals draw images again.
    """
    third = max(1, sides.shape[1] // 3)
    drawn = sides[resample_rows(generator(seed), len(sides))].mean(1)  # (R, S)
    mean = sides.mean(0)
    high_noise, low_noise = mean[:third].mean(), mean[-third:].mean()
    low, high = quantile_range(drawn[:, :third].mean(1) / drawn[:, -third:].mean(1))
    rank = spearman(np.array(sigmas), mean)
    return {
        "side_high_noise": float(high_noise),
        "side_low_noise": float(low_noise),
        "ratio": {"value": float(high_noise / low_noise), "low": low, "high": high},
        "spearman_with_sigma": rank if np.isfinite(rank) else None,
        "levels_in_a_third": third,
    }
