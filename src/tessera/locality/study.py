"""Locality along a real way from noise to picture: of pictures the model makes itself, and of noised truth."""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from tessera.chance import generator
from tessera.conditioners import ColorCounts, Conditioner, places_of
from tessera.denoiser.contract import Denoiser
from tessera.errors import UserError
from tessera.images.render import render
from tessera.judge.intervals import RESAMPLES, quantile_range
from tessera.locality.conditions import condition_influence, conditional_locality, drawn_again, resampled
from tessera.locality.pixels import (
    PLAIN,
    How,
    Pixel,
    pixel_influence,
    pixel_of,
    smallest_square,
    total_energy,
)
from tessera.sampler.asking import check_number, picture_seed
from tessera.sampler.noise import noise_levels, seeded_noise
from tessera.sampler.sample import sample
from tessera.scenes.placement import PlaceWarning, place_at
from tessera.scenes.sampling import Scenes
from tessera.scenes.vocabulary import COLOR_NAMES, LOCATIONS

Source = Literal["generated", "truth"]
OFFICIAL_MOST = 9  # more things than this rarely fit by the official distances
SHARE = 0.9
TURNS = 16  # times as many random scenes are drawn as are wanted, at most
SCENE_SEED = 7_000_000  # scenes of a locality study are others than those of training streams


class Probe(NamedTuple):
    """A pixel to look at, and what figures call it."""

    name: str
    at: Pixel


@dataclass(frozen=True)
class Trajectory:
    """Pictures at falling noise levels."""

    sigmas: Tensor  # (S,)
    x: Tensor  # (S, B, C, H, W) noisy

    @property
    def flat(self) -> Tensor:
        """All pictures of all levels, level by level: (S B, C, H, W)."""
        return self.x.flatten(0, 1)

    @property
    def flat_sigmas(self) -> Tensor:
        return self.sigmas.to(self.x).repeat_interleave(self.x.shape[1])


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
    """What the sampler shows the network on its way to pictures of its own."""
    numbers, sigmas = picked(steps, levels), noise_levels(steps)
    seen: dict[int, Tensor] = {}

    def watch(step) -> None:
        if step.number in numbers:
            seen[step.number] = step.x

    sample(
        denoise,
        cond,
        size,
        seeds,
        batch=len(seeds),
        channels=channels,
        sigmas=sigmas,
        on_step=watch,
        device=device,
    )
    return Trajectory(sigmas[numbers], torch.stack([seen[number] for number in numbers]))


def noised(
    pictures: Tensor, seeds: Sequence[int], sigmas: Tensor | None = None, *, steps: int = 32, levels: int = 12
) -> Trajectory:
    """Pictures (B, C, H, W) under one noise each, at every level: what training shows the network."""
    sigmas = noise_levels(steps)[picked(steps, levels)] if sigmas is None else sigmas
    noise = seeded_noise(seeds, pictures.shape[1:], pictures.device)
    return Trajectory(sigmas, pictures + sigmas.to(pictures).view(-1, 1, 1, 1, 1) * noise)


# -- what is asked for -----------------------------------------------------------------------------------------


def wishes(tell: Conditioner, k: int, scenes: int = 1, seed: int = 0) -> list[tuple[Any, ...]]:
    """What to ask for in each scene: first the study's K places (or colours), then random ones."""
    by_color = isinstance(tell, ColorCounts)
    known: tuple[Any, ...] = COLOR_NAMES if by_color else LOCATIONS
    check_number(tell, k, len(known))
    if k < 1:
        raise UserError("K = 0 asks for nothing, so there is no condition whose influence could be measured.")
    if scenes < 1:
        raise UserError(f"At least one scene must be looked at, not {scenes}.")
    others = random_colors if by_color else random_places
    return [known[:k], *others(k, scenes - 1, seed)]


def random_places(k: int, scenes: int, seed: int) -> list[tuple[Any, ...]]:
    """Where things of random scenes stand; scenes with a thing outside the picture are passed over."""
    rules = Scenes(objects=k, spacing="official" if k <= OFFICIAL_MOST else "relaxed", jitter=False)
    found: list[tuple[Any, ...]] = []
    drawn = 0
    while len(found) < scenes:
        if drawn == TURNS * scenes:
            raise UserError(f"Of {drawn} random scenes only {len(found)} show all {k} things; ask for fewer.")
        places, visible = places_of(rules.draw(scenes, SCENE_SEED + seed, drawn))
        chosen = (tuple(map(tuple, row[here].tolist())) for row, here in zip(places, visible))
        found += [places for places in chosen if len(places) == k]
        drawn += scenes
    return found[:scenes]


def random_colors(k: int, scenes: int, seed: int) -> list[tuple[Any, ...]]:
    rng = generator(SCENE_SEED, seed)
    return [tuple(rng.permutation(COLOR_NAMES)[:k].tolist()) for _ in range(scenes)]


def truth(wanted: Sequence[Any], size: int, count: int, seed: int, device=None) -> Tensor:
    """Rendered pictures (count, 3, size, size) of scenes that show what is wanted."""
    colors = [want for want in wanted if isinstance(want, str)]
    places = LOCATIONS[: len(wanted)] if colors else wanted
    rules = Scenes(objects=len(wanted))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PlaceWarning)  # the study's places are crowded, as they should be
        scenes = place_at(
            places, color=colors or None, rules=rules, count=count, seed=SCENE_SEED + seed, device=device
        )
    return render(scenes, size=size)["rgb"]


def default_probes(wanted: Sequence[Any], height: int, width: int) -> list[Probe]:
    """The asked places, and the picture's centre (Figure 10)."""
    places = [want for want in wanted if not isinstance(want, str)]
    named = [Probe(f"loc {n}", pixel_of(place, height, width)) for n, place in enumerate(places)]
    return [*named, Probe("center", pixel_of((0.5, 0.5), height, width))]


def probes_at(places: Sequence[Sequence[float]], height: int, width: int) -> list[Probe]:
    """Probes of the user's own."""
    return [Probe(f"({x:g}, {y:g})", pixel_of((x, y), height, width)) for x, y in places]


# -- measuring -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Located:
    """What was measured for one wish, on the CPU; B pictures, S levels, P probes, K conditions."""

    wanted: tuple[Any, ...]
    probes: list[Probe]
    sigmas: list[float]
    clean: Tensor  # (S, C, H, W), the first picture as the denoiser sees it
    influence: Tensor  # (S, P, H, W), Eq. 9
    sides: Tensor  # (S, P), of the smallest square with 90% of its energy
    energy: Tensor  # (S, P)
    sides_each: Tensor  # (B, S, P), the same of every picture
    energy_each: Tensor  # (B, S, P)
    told: Tensor  # (B, S, P, K), Eq. 10 at the probes; K = 0 where nothing was asked
    told_maps: Tensor  # (S, K, H, W), Eq. 10 everywhere, mean over pictures
    told_own: Tensor  # (B, S, K, K), I_k(place j) at [b, s, j, k]; empty for conditions without a place


def measure(
    denoise: Denoiser,
    way: Trajectory,
    cond: Tensor | None,
    tell: Conditioner | None,
    wanted: Sequence[Any],
    probes: Sequence[Probe],
    *,
    how: How = PLAIN,
    rows: int = 64,
    share: float = SHARE,
) -> Located:
    """Both kinds of influence on every probe at every level of a trajectory. cond (B, dim)."""
    levels, pictures = way.x.shape[:2]
    every = None if cond is None else cond.repeat(levels, 1)
    at = [probe.at for probe in probes]
    each = pixel_influence(denoise, way.flat, way.flat_sigmas, every, at=at, how=how)
    each = each.unflatten(0, (levels, pictures)).cpu()  # (S, B, P, H, W)
    maps = told_maps(denoise, way, every, tell, wanted, rows).unflatten(0, (levels, pictures)).cpu()
    first = torch.arange(levels, device=way.x.device) * pictures
    with torch.no_grad():
        told_first = None if every is None else every[first]
        clean = denoise(way.flat[first], way.flat_sigmas[first], told_first).cpu()
    influence = each.mean(1)
    return Located(
        wanted=tuple(wanted),
        probes=list(probes),
        sigmas=[float(sigma) for sigma in way.sigmas],
        clean=clean,
        influence=influence,
        sides=smallest_square(influence, at, share),
        energy=total_energy(influence),
        sides_each=smallest_square(each, at, share).transpose(0, 1),
        energy_each=total_energy(each).transpose(0, 1),
        told=read_at(maps, at),
        told_maps=maps.mean(1),
        told_own=read_at(maps, own_pixels(wanted, *way.x.shape[-2:])),
    )


def told_maps(
    denoise: Denoiser,
    way: Trajectory,
    cond: Tensor | None,
    tell: Conditioner | None,
    wanted: Sequence[Any],
    rows: int,
) -> Tensor:
    """Eq. 10 at every pixel of every picture and level, (S B, K, H, W)."""
    if tell is None or cond is None or not wanted:
        return way.flat.new_zeros(len(way.flat), 0, *way.x.shape[-2:])
    return condition_influence(denoise, way.flat, way.flat_sigmas, cond, tell, wanted, rows=rows)


def read_at(maps: Tensor, at: Sequence[tuple[int, int]]) -> Tensor:
    """Values of maps (S, B, K, H, W) at some pixels: (B, S, P, K)."""
    row, col = torch.tensor(list(at), dtype=torch.long).reshape(-1, 2).T
    return maps[..., row, col].permute(1, 0, 3, 2)


@dataclass(frozen=True)
class Plan:
    """What a study looks at."""

    k: int = 4
    pictures: int = 8  # of every scene
    scenes: int = 1
    levels: int = 12
    steps: int = 32
    source: Source = "generated"
    seed: int = 0
    places: tuple[tuple[float, float], ...] | None = None  # the user's own instead of the study's
    probes: tuple[tuple[float, float], ...] | None = None
    how: How = PLAIN
    rows: int = 64


def locate(
    denoise: Denoiser,
    tell: Conditioner,
    size: int,
    plan: Plan,
    device=None,
    on_scene: Callable = lambda: None,
) -> list[Located]:
    """The whole study: one `Located` per scene."""
    if plan.pictures < 1:
        raise UserError(f"At least one picture must be looked at, not {plan.pictures}.")
    found = []
    for scene, wanted in enumerate(asked(tell, plan)):
        cond = tell.at(wanted, device=device).expand(plan.pictures, -1)
        way = trajectory(denoise, cond, wanted, size, plan, scene, device)
        probes = default_probes(wanted, size, size)
        if plan.probes is not None:
            probes = probes_at(plan.probes, size, size)
        found.append(measure(denoise, way, cond, tell, wanted, probes, how=plan.how, rows=plan.rows))
        on_scene()
    return found


def conditional_locality_alone(
    denoise: Denoiser, tell: Conditioner, size: int, plan: Plan, device=None
) -> dict[str, Any] | None:
    """The same number as `locality_of(locate(...))` without any gradient, for series of many models."""
    every, groups, sigmas = [], [], []
    for scene, wanted in enumerate(asked(tell, plan)):
        cond = tell.at(wanted, device=device).expand(plan.pictures, -1)
        way = trajectory(denoise, cond, wanted, size, plan, scene, device)
        maps = told_maps(denoise, way, cond.repeat(len(way.sigmas), 1), tell, wanted, plan.rows)
        own = own_pixels(wanted, size, size)
        every.append(read_at(maps.unflatten(0, way.x.shape[:2]).cpu(), own).numpy())
        groups += [scene] * plan.pictures
        sigmas = way.sigmas.tolist()
    if not every or every[0].shape[-2] == 0:
        return None
    return conditional_locality(np.concatenate(every), sigmas, groups, seed=plan.seed)


def own_pixels(wanted: Sequence[Any], height: int, width: int) -> list[Pixel]:
    """Where the asked things should be; none for conditions without a place."""
    return [pixel_of(want, height, width) for want in wanted if not isinstance(want, str)]


def asked(tell: Conditioner, plan: Plan) -> list[tuple[Any, ...]]:
    if tell.dim == 0:
        return [()]  # an unconditional model: pixels alone
    if plan.places is None:
        return wishes(tell, plan.k, plan.scenes, plan.seed)
    check_number(tell, len(plan.places), None)
    return [plan.places]


def trajectory(
    denoise: Denoiser, cond: Tensor, wanted: Sequence[Any], size: int, plan: Plan, scene: int, device
) -> Trajectory:
    seeds = [picture_seed(plan.seed, scene, n) for n in range(plan.pictures)]
    if plan.source == "truth":
        pictures = truth(wanted, size, plan.pictures, plan.seed + scene, device)
        return noised(pictures, seeds, steps=plan.steps, levels=plan.levels)
    return generated(denoise, cond, size, seeds, steps=plan.steps, levels=plan.levels, device=device)


# -- records -----------------------------------------------------------------------------------------------------


def study_record(found: Sequence[Located], seed: int = 0, resamples: int = RESAMPLES) -> dict[str, Any]:
    """Numbers of a study, JSON-ready: conditional locality, and 90% side and energy of every level."""
    return {
        "conditional_locality": locality_of(found, seed, resamples),
        "levels": level_records(found, seed),
        "probes": [probe_record(located) for located in found],
    }


def locality_of(found: Sequence[Located], seed: int = 0, resamples: int = RESAMPLES) -> dict[str, Any] | None:
    """Over all scenes; None where conditions lie nowhere."""
    if not found or found[0].told_own.shape[-2] == 0:
        return None
    influence = np.concatenate([located.told_own.numpy() for located in found])  # (B, S, K, K)
    return conditional_locality(
        influence, found[0].sigmas, scene_of_each(found), resamples=resamples, seed=seed
    )


def scene_of_each(found: Sequence[Located]) -> list[int]:
    """The number of the scene that each picture is of."""
    return [scene for scene, located in enumerate(found) for _ in located.sides_each]


def mean_over(values: np.ndarray, draws: np.ndarray) -> dict[str, float]:
    """The mean of values (B,), with the interval of its redrawings (R, B)."""
    low, high = quantile_range(resampled(values, draws))
    return {"mean": float(values.mean()), "low": low, "high": high}


def level_records(found: Sequence[Located], seed: int) -> list[dict[str, Any]]:
    """`side90` and `energy` are Eq. 9's, mean over probes and scenes.

    Intervals draw pictures again, or whole scenes where there are several, as that of conditional locality does.
    """
    sides = np.concatenate([located.sides_each.numpy().mean(-1) for located in found])  # (B, S)
    energies = np.concatenate([located.energy_each.numpy().mean(-1) for located in found])
    draws = drawn_again(len(sides), scene_of_each(found), generator(seed), RESAMPLES)  # (R, B)
    return [
        {
            "sigma": sigma,
            "side90": float(np.mean([located.sides[level].float().mean() for located in found])),
            "energy": float(np.mean([located.energy[level].mean() for located in found])),
            "side90_each": mean_over(sides[:, level], draws),
            "energy_each": mean_over(energies[:, level], draws),
        }
        for level, sigma in enumerate(found[0].sigmas)
    ]


def probe_record(located: Located) -> dict[str, Any]:
    """Curves of one scene, as Figure 10 draws them."""
    told = located.told.mean(0)  # (S, P, K)
    wanted = [want if isinstance(want, str) else list(want) for want in located.wanted]
    return {
        "wanted": wanted,
        "probes": [
            {
                "name": probe.name,
                "row": probe.at.row,
                "col": probe.at.col,
                "side90": located.sides[:, p].tolist(),
                "energy": located.energy[:, p].tolist(),
                "conditions": told[:, p].T.tolist(),  # a list over levels for each condition
            }
            for p, probe in enumerate(located.probes)
        ],
    }
