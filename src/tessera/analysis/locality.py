"""Locality along sampling trajectories of the model, and of noised rendered images."""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from tessera.analysis.condition_influence import (
    condition_influence,
    conditional_locality,
)
from tessera.analysis.pixel_influence import (
    PLAIN,
    GradientConfig,
    Pixel,
    pixel_influence,
    pixel_of,
    smallest_square,
    total_energy,
)
from tessera.conditioning import ColorCounts, Conditioner, locations_of
from tessera.errors import UserError
from tessera.models.contract import Denoiser
from tessera.render.render import render
from tessera.rng import generator
from tessera.sampling.prompts import check_number, image_seed
from tessera.sampling.schedule import noise_levels, seeded_noise
from tessera.sampling.trajectory import Trajectory, sample_trajectory
from tessera.scenes.placement import LocationWarning, scenes_at
from tessera.scenes.sampling import Scenes
from tessera.scenes.vocabulary import COLOR_NAMES, LOCATIONS
from tessera.stats import RESAMPLES, group_counts, mean_of_draws

Source = Literal["generated", "truth"]
OFFICIAL_MOST = 9  # more objects than this rarely fit by the official distances
SHARE = 0.9
TURNS = 16  # times as many random scenes are drawn as are wanted, at most
SCENE_SEED = 7_000_000  # scenes of a locality study are others than those of training streams


class Probe(NamedTuple):
    """A pixel to look at, and what figures call it."""

    name: str
    at: Pixel


# -- trajectories --------------------------------------------------------------------------------------------


def picked(steps: int, levels: int) -> list[int]:
    """`levels` of a sampler's steps, evenly spread, the first and the last among them."""
    if not 1 <= levels <= steps:
        raise UserError(f"Of {steps} sampling steps one can look at 1 to {steps}, not {levels}.")
    return sorted({round(step) for step in np.linspace(0, steps - 1, levels)})


def generated(
    denoise: Denoiser,
    cond: Tensor | None,
    size: int,
    seeds: Sequence[int],
    *,
    steps: int = 32,
    levels: int = 12,
    channels: int = 3,
    device=None,
) -> Trajectory:
    """The model's own samples at `levels` of its sampling steps."""
    keep = picked(steps, levels)
    return sample_trajectory(
        denoise, cond, size, seeds, keep, batch=len(seeds), channels=channels, steps=steps, device=device
    )


def noised(
    images: Tensor, seeds: Sequence[int], sigmas: Tensor | None = None, *, steps: int = 32, levels: int = 12
) -> Trajectory:
    """Images (B, C, H, W) under one noise each, at every level: what training shows the network."""
    sigmas = noise_levels(steps)[picked(steps, levels)] if sigmas is None else sigmas
    noise = seeded_noise(seeds, images.shape[1:], images.device)
    return Trajectory(sigmas, images + sigmas.to(images).view(-1, 1, 1, 1, 1) * noise)


# -- what is asked for -----------------------------------------------------------------------------------------


def prompts_for_k(conditioner: Conditioner, k: int, scenes: int = 1, seed: int = 0) -> list[tuple[Any, ...]]:
    """What to ask for in each scene: first the study's K locations (or colors), then random ones."""
    by_color = isinstance(conditioner, ColorCounts)
    known: tuple[Any, ...] = COLOR_NAMES if by_color else LOCATIONS
    check_number(conditioner, k, len(known))
    if k < 1:
        raise UserError("K = 0 asks for nothing, so there is no condition whose influence could be measured.")
    if scenes < 1:
        raise UserError(f"At least one scene must be looked at, not {scenes}.")
    others = random_colors if by_color else random_locations
    return [known[:k], *others(k, scenes - 1, seed)]


def random_locations(k: int, scenes: int, seed: int) -> list[tuple[Any, ...]]:
    """Where objects of random scenes stand; scenes with an object outside the image are passed over."""
    rules = Scenes(objects=k, spacing="official" if k <= OFFICIAL_MOST else "relaxed", jitter=False)
    found: list[tuple[Any, ...]] = []
    drawn = 0
    while len(found) < scenes:
        if drawn == TURNS * scenes:
            raise UserError(
                f"Of {drawn} random scenes only {len(found)} show all {k} objects; ask for fewer."
            )
        locations, visible = locations_of(rules.draw(scenes, SCENE_SEED + seed, drawn))
        chosen = (tuple(map(tuple, row[here].tolist())) for row, here in zip(locations, visible))
        found += [locations for locations in chosen if len(locations) == k]
        drawn += scenes
    return found[:scenes]


def random_colors(k: int, scenes: int, seed: int) -> list[tuple[Any, ...]]:
    rng = generator(SCENE_SEED, seed)
    return [tuple(rng.permutation(COLOR_NAMES)[:k].tolist()) for _ in range(scenes)]


def truth(wanted: Sequence[Any], size: int, count: int, seed: int, device=None) -> Tensor:
    """Rendered images (count, 3, size, size) of scenes that show what is wanted."""
    colors = [want for want in wanted if isinstance(want, str)]
    locations = LOCATIONS[: len(wanted)] if colors else wanted
    rules = Scenes(objects=len(wanted))
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", LocationWarning
        )  # the study's locations are crowded, as they should be
        scenes = scenes_at(
            locations, color=colors or None, rules=rules, count=count, seed=SCENE_SEED + seed, device=device
        )
    return render(scenes, size=size)["rgb"]


def default_probes(wanted: Sequence[Any], height: int, width: int) -> list[Probe]:
    """The asked locations, and the image's center (Figure 10)."""
    locations = [want for want in wanted if not isinstance(want, str)]
    named = [Probe(f"loc {n}", pixel_of(location, height, width)) for n, location in enumerate(locations)]
    return [*named, Probe("center", pixel_of((0.5, 0.5), height, width))]


def probes_at(locations: Sequence[Sequence[float]], height: int, width: int) -> list[Probe]:
    """Probes of the user's own."""
    return [Probe(f"({x:g}, {y:g})", pixel_of((x, y), height, width)) for x, y in locations]


# -- measuring -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LocalityResult:
    """What was measured for one prompt, on the CPU; B images, S levels, P probes, K conditions."""

    wanted: tuple[Any, ...]
    probes: list[Probe]
    sigmas: list[float]
    clean: Tensor  # (S, C, H, W), the first image as the denoiser sees it
    influence: Tensor  # (S, P, H, W), Eq. 9
    sides: Tensor  # (S, P), of the smallest square with 90% of its energy
    energy: Tensor  # (S, P)
    sides_each: Tensor  # (B, S, P), the same of every image
    energy_each: Tensor  # (B, S, P)
    condition_influence: Tensor  # (B, S, P, K), Eq. 10 at the probes; K = 0 where nothing was asked
    condition_influence_maps: Tensor  # (S, K, H, W), Eq. 10 everywhere, mean over images
    own_condition_influence: (
        Tensor  # (B, S, K, K), I_k(location j) at [b, s, j, k]; empty for conditions without a location
    )


def measure(
    denoise: Denoiser,
    trajectory: Trajectory,
    cond: Tensor | None,
    conditioner: Conditioner | None,
    wanted: Sequence[Any],
    probes: Sequence[Probe],
    *,
    how: GradientConfig = PLAIN,
    rows: int = 64,
    share: float = SHARE,
) -> LocalityResult:
    """Both kinds of influence on every probe at every level of a trajectory. cond (B, dim)."""
    levels, images = trajectory.x.shape[:2]
    every = None if cond is None else cond.repeat(levels, 1)
    at = [probe.at for probe in probes]
    each = pixel_influence(denoise, trajectory.flat, trajectory.flat_sigmas, every, at=at, how=how)
    each = each.unflatten(0, (levels, images)).cpu()  # (S, B, P, H, W)
    maps = (
        condition_influence_maps(denoise, trajectory, every, conditioner, wanted, rows)
        .unflatten(0, (levels, images))
        .cpu()
    )
    first = torch.arange(levels, device=trajectory.x.device) * images
    with torch.no_grad():
        first_cond = None if every is None else every[first]
        clean = denoise(trajectory.flat[first], trajectory.flat_sigmas[first], first_cond).cpu()
    influence = each.mean(1)
    return LocalityResult(
        wanted=tuple(wanted),
        probes=list(probes),
        sigmas=[float(sigma) for sigma in trajectory.sigmas],
        clean=clean,
        influence=influence,
        sides=smallest_square(influence, at, share),
        energy=total_energy(influence),
        sides_each=smallest_square(each, at, share).transpose(0, 1),
        energy_each=total_energy(each).transpose(0, 1),
        condition_influence=read_at(maps, at),
        condition_influence_maps=maps.mean(1),
        own_condition_influence=read_at(maps, own_pixels(wanted, *trajectory.x.shape[-2:])),
    )


def condition_influence_maps(
    denoise: Denoiser,
    trajectory: Trajectory,
    cond: Tensor | None,
    conditioner: Conditioner | None,
    wanted: Sequence[Any],
    rows: int,
) -> Tensor:
    """Eq. 10 at every pixel of every image and level, (S B, K, H, W)."""
    if conditioner is None or cond is None or not wanted:
        return trajectory.flat.new_zeros(len(trajectory.flat), 0, *trajectory.x.shape[-2:])
    return condition_influence(
        denoise, trajectory.flat, trajectory.flat_sigmas, cond, conditioner, wanted, rows=rows
    )


def read_at(maps: Tensor, at: Sequence[tuple[int, int]]) -> Tensor:
    """Values of maps (S, B, K, H, W) at some pixels: (B, S, P, K)."""
    row, col = torch.tensor(list(at), dtype=torch.long).reshape(-1, 2).T
    return maps[..., row, col].permute(1, 0, 3, 2)


@dataclass(frozen=True)
class LocalityConfig:
    """What a study looks at."""

    k: int = 4
    images: int = 8  # of every scene
    scenes: int = 1
    levels: int = 12
    steps: int = 32
    source: Source = "generated"
    seed: int = 0
    locations: tuple[tuple[float, float], ...] | None = None  # the user's own instead of the study's
    probes: tuple[tuple[float, float], ...] | None = None
    how: GradientConfig = PLAIN
    rows: int = 64


def measure_locality(
    denoise: Denoiser,
    conditioner: Conditioner,
    size: int,
    plan: LocalityConfig,
    device=None,
    on_scene: Callable = lambda: None,
) -> list[LocalityResult]:
    """The whole study: one `LocalityResult` per scene."""
    if plan.images < 1:
        raise UserError(f"At least one image must be looked at, not {plan.images}.")
    found = []
    for scene, wanted in enumerate(prompts_of(conditioner, plan)):
        cond = conditioner.at(wanted, device=device).expand(plan.images, -1)
        trajectory = trajectory_of_scene(denoise, cond, wanted, size, plan, scene, device)
        probes = default_probes(wanted, size, size)
        if plan.probes is not None:
            probes = probes_at(plan.probes, size, size)
        found.append(
            measure(denoise, trajectory, cond, conditioner, wanted, probes, how=plan.how, rows=plan.rows)
        )
        on_scene()
    return found


def conditional_locality_alone(
    denoise: Denoiser, conditioner: Conditioner, size: int, plan: LocalityConfig, device=None
) -> dict[str, Any] | None:
    """The same number as `locality_of(locate(...))` without any gradient, for series of many models."""
    every, groups, sigmas = [], [], []
    for scene, wanted in enumerate(prompts_of(conditioner, plan)):
        cond = conditioner.at(wanted, device=device).expand(plan.images, -1)
        trajectory = trajectory_of_scene(denoise, cond, wanted, size, plan, scene, device)
        maps = condition_influence_maps(
            denoise, trajectory, cond.repeat(len(trajectory.sigmas), 1), conditioner, wanted, plan.rows
        )
        own = own_pixels(wanted, size, size)
        every.append(read_at(maps.unflatten(0, trajectory.x.shape[:2]).cpu(), own).numpy())
        groups += [scene] * plan.images
        sigmas = trajectory.sigmas.tolist()
    if not every or every[0].shape[-2] == 0:
        return None
    return conditional_locality(np.concatenate(every), sigmas, groups, seed=plan.seed)


def own_pixels(wanted: Sequence[Any], height: int, width: int) -> list[Pixel]:
    """Where the asked objects should be; none for conditions without a location."""
    return [pixel_of(want, height, width) for want in wanted if not isinstance(want, str)]


def prompts_of(conditioner: Conditioner, plan: LocalityConfig) -> list[tuple[Any, ...]]:
    if conditioner.dim == 0:
        return [()]  # an unconditional model: pixels alone
    if plan.locations is None:
        return prompts_for_k(conditioner, plan.k, plan.scenes, plan.seed)
    check_number(conditioner, len(plan.locations), None)
    return [plan.locations]


def trajectory_of_scene(
    denoise: Denoiser,
    cond: Tensor,
    wanted: Sequence[Any],
    size: int,
    plan: LocalityConfig,
    scene: int,
    device,
) -> Trajectory:
    """The noisy images of one scene: the model's own samples, or rendered truth under noise."""
    seeds = [image_seed(plan.seed, scene, n) for n in range(plan.images)]
    if plan.source == "truth":
        images = truth(wanted, size, plan.images, plan.seed + scene, device)
        return noised(images, seeds, steps=plan.steps, levels=plan.levels)
    return generated(denoise, cond, size, seeds, steps=plan.steps, levels=plan.levels, device=device)


# -- records -----------------------------------------------------------------------------------------------------


def study_record(
    found: Sequence[LocalityResult], seed: int = 0, resamples: int = RESAMPLES
) -> dict[str, Any]:
    """Numbers of a study, JSON-ready: conditional locality, and 90% side and energy of every level."""
    return {
        "conditional_locality": locality_of(found, seed, resamples),
        "levels": level_records(found, seed),
        "probes": [probe_record(result) for result in found],
    }


def locality_of(
    found: Sequence[LocalityResult], seed: int = 0, resamples: int = RESAMPLES
) -> dict[str, Any] | None:
    """Over all scenes; None where conditions lie nowhere."""
    if not found or found[0].own_condition_influence.shape[-2] == 0:
        return None
    influence = np.concatenate([result.own_condition_influence.numpy() for result in found])  # (B, S, K, K)
    return conditional_locality(
        influence, found[0].sigmas, scene_of_each(found), resamples=resamples, seed=seed
    )


def scene_of_each(found: Sequence[LocalityResult]) -> list[int]:
    """The number of the scene that each image is of."""
    return [scene for scene, result in enumerate(found) for _ in result.sides_each]


def mean_over(values: np.ndarray, draws: np.ndarray) -> dict[str, float | None]:
    """The mean of values (B,), with the interval of its redrawings (R, B)."""
    return mean_of_draws(values, draws).to_dict()


def level_records(found: Sequence[LocalityResult], seed: int) -> list[dict[str, Any]]:
    """`side90` and `energy` are Eq. 9's, mean over probes and scenes.

    Intervals draw images again, or whole scenes where there are several, as that of conditional locality does.
    """
    sides = np.concatenate([result.sides_each.numpy().mean(-1) for result in found])  # (B, S)
    energies = np.concatenate([result.energy_each.numpy().mean(-1) for result in found])
    draws = group_counts(generator(seed), len(sides), scene_of_each(found))  # (R, B)
    return [
        {
            "sigma": sigma,
            "side90": float(np.mean([result.sides[level].float().mean() for result in found])),
            "energy": float(np.mean([result.energy[level].mean() for result in found])),
            "side90_each": mean_over(sides[:, level], draws),
            "energy_each": mean_over(energies[:, level], draws),
        }
        for level, sigma in enumerate(found[0].sigmas)
    ]


def probe_record(result: LocalityResult) -> dict[str, Any]:
    """Curves of one scene, as Figure 10 draws them."""
    condition_influence = result.condition_influence.mean(0)  # (S, P, K)
    wanted = [want if isinstance(want, str) else list(want) for want in result.wanted]
    return {
        "wanted": wanted,
        "probes": [
            {
                "name": probe.name,
                "row": probe.at.row,
                "col": probe.at.col,
                "side90": result.sides[:, p].tolist(),
                "energy": result.energy[:, p].tolist(),
                "conditions": condition_influence[:, p].T.tolist(),  # a list over levels for each condition
            }
            for p, probe in enumerate(result.probes)
        ],
    }
