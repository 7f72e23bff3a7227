"""Locality along sampling trajectories of the model, and of noised rendered images."""

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import torch
from rich.table import Table
from torch import Tensor

from tessera.analysis.condition_influence import condition_influence, conditional_locality
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
from tessera.console import ResultTable
from tessera.errors import UserError
from tessera.models.contract import Denoiser
from tessera.models.model import Model
from tessera.plots.figures import evenly_spaced
from tessera.render.render import render
from tessera.rng import generator
from tessera.rows import plural
from tessera.sampling.prompts import check_number, image_seed
from tessera.sampling.schedule import noise_levels, seeded_noise
from tessera.sampling.trajectory import Trajectory, sample_trajectory
from tessera.scenes.placement import LocationWarning, scenes_at
from tessera.scenes.sampling import Scenes
from tessera.scenes.vocabulary import COLOR_NAMES, LOCATIONS
from tessera.stats import Interval, group_counts, mean_of_draws

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Source = Literal["generated", "truth"]
_OFFICIAL_MOST = 9  # more objects than this rarely fit by the official distances
_TURNS = 16  # times as many random scenes are drawn as are needed, at most
_AT = "loc "
SCENE_SEED = 7_000_000  # scenes of a locality study are others than those of training streams


class Probe(NamedTuple):
    """An output pixel whose influences are measured, and its name in records: `loc 0` at the first prompted location."""

    name: str
    at: Pixel

    @property
    def condition(self) -> int | None:
        """The number of the condition at whose location it lies, counted from 0."""
        return int(self.name.removeprefix(_AT)) if self.name.startswith(_AT) else None

    @property
    def title(self) -> str:
        """Its name for readers, who count from 1."""
        return self.name if self.condition is None else f"location {self.condition + 1}"


# -- trajectories --------------------------------------------------------------------------------------------


def picked(steps: int, levels: int) -> list[int]:
    """`levels` of a sampler's steps, evenly spread, the first and the last among them."""
    if not 1 <= levels <= steps:
        raise UserError(f"A sampler of {steps} steps has 1 to {steps} noise levels, not {levels}.")
    return evenly_spaced(steps, levels)


def generated(
    denoise: Denoiser, cond: Tensor | None, size: int, seeds: Sequence[int], *, steps=32, levels=12, device=None
) -> Trajectory:
    """The model's own samples at `levels` of its sampling steps."""
    keep = picked(steps, levels)
    return sample_trajectory(denoise, cond, size, seeds, keep, batch=len(seeds), steps=steps, device=device)


def noised(
    images: Tensor, seeds: Sequence[int], sigmas: Tensor | None = None, *, steps: int = 32, levels: int = 12
) -> Trajectory:
    """Images (B, C, H, W) under one noise each, at every level: what training shows the network."""
    sigmas = noise_levels(steps)[picked(steps, levels)] if sigmas is None else sigmas
    noise = seeded_noise(seeds, images.shape[1:], images.device)
    return Trajectory(sigmas, images + sigmas.to(images).view(-1, 1, 1, 1, 1) * noise)


# -- prompts --------------------------------------------------------------------------------------------------


def prompts_for_k(conditioner: Conditioner, k: int, scenes: int = 1, seed: int = 0) -> list[tuple[Any, ...]]:
    """The prompt of each scene: first the study's K locations (or colors), then random ones."""
    by_color = isinstance(conditioner, ColorCounts)
    known: tuple[Any, ...] = COLOR_NAMES if by_color else LOCATIONS
    check_number(conditioner, k, len(known))
    if k < 1:
        raise UserError("K = 0 prompts no object, so there is no condition whose influence could be measured.")
    if scenes < 1:
        raise UserError(f"At least one scene is needed, not {scenes}.")
    if by_color:
        rng = generator(SCENE_SEED, seed)
        return [known[:k], *(tuple(rng.permutation(COLOR_NAMES)[:k].tolist()) for _ in range(scenes - 1))]
    return [known[:k], *random_locations(k, scenes - 1, seed)]


def random_locations(k: int, scenes: int, seed: int) -> list[tuple[Any, ...]]:
    """Locations of the objects of random scenes, of those that show all their objects."""
    rules = Scenes(objects=k, spacing="official" if k <= _OFFICIAL_MOST else "relaxed", jitter=False)
    found: list[tuple[Any, ...]] = []
    drawn = 0
    while len(found) < scenes:
        if drawn == _TURNS * scenes:
            raise UserError(f"Of {drawn} random scenes only {len(found)} show all {k} objects; prompt fewer.")
        locations, visible = locations_of(rules.draw(scenes, SCENE_SEED + seed, drawn))
        chosen = (tuple(map(tuple, row[here].tolist())) for row, here in zip(locations, visible))
        found += [locations for locations in chosen if len(locations) == k]
        drawn += scenes
    return found[:scenes]


def truth(prompt: Sequence[Any], size: int, count: int, seed: int, device=None) -> Tensor:
    """Rendered images (count, 3, size, size) of scenes that show the prompt."""
    colors = [part for part in prompt if isinstance(part, str)]
    locations = LOCATIONS[: len(prompt)] if colors else prompt
    how: dict[str, Any] = {"rules": Scenes(objects=len(prompt)), "count": count, "seed": SCENE_SEED + seed}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LocationWarning)  # the study's locations are crowded on purpose
        scenes = scenes_at(locations, color=colors or None, device=device, **how)
    return render(scenes, size=size)["rgb"]


def default_probes(prompt: Sequence[Any], height: int, width: int) -> list[Probe]:
    """The prompted locations, and the image's center (Figure 10)."""
    locations = [part for part in prompt if not isinstance(part, str)]
    named = [Probe(f"{_AT}{n}", pixel_of(location, height, width)) for n, location in enumerate(locations)]
    return [*named, Probe("center", pixel_of((0.5, 0.5), height, width))]


def _probes_at(locations: Sequence[Sequence[float]], height: int, width: int) -> list[Probe]:
    """Probes of the user's own."""
    return [Probe(f"({x:g}, {y:g})", pixel_of((x, y), height, width)) for x, y in locations]


# -- results -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SceneLocality:
    """What was measured for one prompt, on the CPU; B images, S levels, P probes, K conditions."""

    prompt: tuple[Any, ...]
    probes: list[Probe]
    sigmas: list[float]
    clean: Tensor  # (S, C, H, W), the first image as the denoiser estimates it
    influence: Tensor  # (S, P, H, W), Eq. 9
    sides: Tensor  # (S, P), of the smallest square with 90% of its energy
    energy: Tensor  # (S, P)
    sides_each: Tensor  # (B, S, P), the same of every image
    energy_each: Tensor  # (B, S, P)
    condition_influence: Tensor  # (B, S, P, K), Eq. 10 at the probes; K = 0 without conditions
    condition_influence_maps: Tensor  # (S, K, H, W), Eq. 10 everywhere, mean over images
    # (B, S, K, K), I_k(location j) at [b, s, j, k]; (B, S, 0, K) for conditions without a location
    own_condition_influence: Tensor

    def to_dict(self) -> dict[str, Any]:
        """Curves as Figure 10 draws them."""
        condition_influence = self.condition_influence.mean(0)  # (S, P, K)
        probes = []
        for p, probe in enumerate(self.probes):
            pixel = {"row": probe.at.row, "col": probe.at.col}
            sides = {"side90": self.sides[:, p].tolist(), "energy": self.energy[:, p].tolist()}
            conditions = condition_influence[:, p].T.tolist()  # a list over levels for each condition
            probes.append({"name": probe.name, **pixel, **sides, "conditions": conditions})
        return {"wanted": [part if isinstance(part, str) else list(part) for part in self.prompt], "probes": probes}


@dataclass(frozen=True, repr=False)
class LocalityResult:
    """Which pixels and which conditions each probed output pixel depends on, in one scene or several."""

    scenes: list[SceneLocality]
    seed: int = 0  # of the bootstrap

    @property
    def sigmas(self) -> list[float]:
        """Noise levels (S,), falling."""
        return self.scenes[0].sigmas

    @property
    def probes(self) -> list[Probe]:
        """The P output pixels of the first scene: the prompted locations, then the center."""
        return self.scenes[0].probes

    @property
    def pixel_influence(self) -> Tensor:
        """Eq. 9 in the first scene, mean over images: (S, P, H, W)."""
        return self.scenes[0].influence

    @property
    def condition_influence(self) -> Tensor:
        """Eq. 10 at the probes of the first scene, mean over images: (S, P, K)."""
        return self.scenes[0].condition_influence.mean(0)

    @property
    def conditional_locality(self) -> Interval:
        """Over all scenes; empty where conditions have no location."""
        found = self._locality or {}
        return Interval(found.get("value"), found.get("low"), found.get("high"), found.get("images"))

    @cached_property
    def _locality(self) -> dict[str, Any] | None:
        own = [scene.own_condition_influence for scene in self.scenes]
        return _locality_record(own, self.sigmas, self.seed)

    def to_dict(self) -> dict[str, Any]:
        """Conditional locality, 90% side and energy of every level, and curves of every scene, JSON-ready."""
        return {
            "conditional_locality": self._locality,
            "levels": self._levels(),
            "probes": [scene.to_dict() for scene in self.scenes],
        }

    def _levels(self) -> list[dict[str, Any]]:
        """`side90` and `energy` are Eq. 9's, mean over probes and scenes.

        Intervals draw images again, or whole scenes where there are several, as that of conditional locality does.
        """
        groups = _numbers_of([scene.sides_each for scene in self.scenes])
        draws = group_counts(generator(self.seed), len(groups), groups)  # (R, B)
        levels: list[dict[str, Any]] = [{"sigma": sigma} for sigma in self.sigmas]
        for name, field in (("side90", "sides"), ("energy", "energy")):
            means = [getattr(scene, field).double().mean(-1) for scene in self.scenes]  # (S,) each
            each = torch.cat([getattr(scene, f"{field}_each").double().mean(-1) for scene in self.scenes]).numpy()
            for number, level in enumerate(levels):
                level[name] = float(np.mean([mean[number] for mean in means]))
                level[f"{name}_each"] = mean_of_draws(each[:, number], draws).to_dict()
        return levels

    def table(self) -> Table:
        """Pixel neighborhood, energy and conditional locality at every noise level."""
        table = ResultTable("sigma", "90% side", "energy", "conditional locality", title=str(self))
        unknown = [{"locality": None}] * len(self.sigmas)
        for level, found in zip(self._levels(), self._locality["by_level"] if self._locality else unknown):
            numbers = (f"{level[name]:.3g}" for name in ("sigma", "side90", "energy"))
            table.add_row(*numbers, "-" if found["locality"] is None else f"{found['locality']:.2f}")
        return table

    def plot(self, title: str = "") -> "Figure":
        """Condition influence at every probe, 90% side and energy of pixel influence, over noise levels."""
        from tessera.analysis.locality_figures import figure_curves

        band = self._locality["band"] if self._locality else None
        return figure_curves(self.scenes[0], title, band and (band["sigma_min"], band["sigma_max"]))

    def plot_maps(self, title: str = "") -> "Figure":
        """Pixel influence on every probe as heat maps, one column per noise level."""
        from tessera.analysis.locality_figures import figure_maps

        return figure_maps(self.scenes[0], title)

    def __repr__(self) -> str:
        sizes = f"{plural(len(self.probes), 'probe')} at {plural(len(self.sigmas), 'noise level')}"
        return f"LocalityResult(conditional_locality={self.conditional_locality}, {sizes})"


# -- measuring -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LocalityConfig:
    """Settings of a locality study."""

    k: int = 4
    images: int = 8  # of every scene
    scenes: int = 1
    levels: int = 12
    steps: int = 32
    source: Source = "generated"
    seed: int = 0
    locations: tuple[tuple[float, float], ...] | None = None  # instead of the study's
    probes: tuple[tuple[float, float], ...] | None = None
    how: GradientConfig = PLAIN
    rows: int = 64


class NoisyScene(NamedTuple):
    """B noisy images at S noise levels, and what the denoiser is conditioned on."""

    trajectory: Trajectory
    prompt: tuple[Any, ...] = ()
    cond: Tensor | None = None  # (B, dim)
    conditioner: Conditioner | None = None

    def condition_influence(self, denoise: Denoiser, rows: int) -> Tensor:
        """Eq. 10 at every pixel of every image and level, (S, B, K, H, W) on the CPU."""
        levels, images, _, height, width = self.trajectory.x.shape
        if self.conditioner is None or self.cond is None or not self.prompt:
            return torch.zeros(levels, images, 0, height, width)
        noisy = self.trajectory.flat, self.trajectory.flat_sigmas, self.cond.repeat(levels, 1)
        maps = condition_influence(denoise, *noisy, self.conditioner, self.prompt, rows=rows)
        return maps.unflatten(0, (levels, images)).cpu()


def measure(denoise: Denoiser, scene: NoisyScene, plan: LocalityConfig) -> SceneLocality:
    """Both kinds of influence on every probe of the plan, at every level of a scene."""
    x, sigmas = scene.trajectory.flat, scene.trajectory.flat_sigmas
    levels, images, _, *size = scene.trajectory.x.shape
    cond = None if scene.cond is None else scene.cond.repeat(levels, 1)
    probes = default_probes(scene.prompt, *size) if plan.probes is None else _probes_at(plan.probes, *size)
    at = [probe.at for probe in probes]
    each = pixel_influence(denoise, x, sigmas, cond, at=at, how=plan.how)
    each = each.unflatten(0, (levels, images)).cpu()  # (S, B, P, H, W)
    maps = scene.condition_influence(denoise, plan.rows)
    with torch.no_grad():  # of the first image
        clean = denoise(x[::images], sigmas[::images], None if cond is None else cond[::images]).cpu()
    influence = each.mean(1)
    return SceneLocality(
        prompt=scene.prompt,
        probes=probes,
        sigmas=scene.trajectory.sigmas.tolist(),
        clean=clean,
        influence=influence,
        sides=smallest_square(influence, at),
        energy=total_energy(influence),
        sides_each=smallest_square(each, at).transpose(0, 1),
        energy_each=total_energy(each).transpose(0, 1),
        condition_influence=_read_at(maps, at),
        condition_influence_maps=maps.mean(1),
        own_condition_influence=_own_influence(maps, scene.prompt),
    )


def _own_influence(maps: Tensor, prompt: Sequence[Any]) -> Tensor:
    """Eq. 10 at the prompted locations, (B, S, K, K) from (S, B, K, H, W); (B, S, 0, K) if conditions have none."""
    return _read_at(maps, [pixel_of(part, *maps.shape[-2:]) for part in prompt if not isinstance(part, str)])


def _read_at(maps: Tensor, at: Sequence[tuple[int, int]]) -> Tensor:
    """Values of maps (S, B, K, H, W) at some pixels: (B, S, P, K)."""
    row, col = torch.tensor(list(at), dtype=torch.long).reshape(-1, 2).T
    return maps[..., row, col].permute(1, 0, 3, 2)


def _locality_record(own: Sequence[Tensor], sigmas: Sequence[float], seed: int) -> dict[str, Any] | None:
    """Conditional locality from (B, S, K, K) of each scene; None where conditions have no location."""
    if own[0].shape[-2] == 0:
        return None
    return conditional_locality(torch.cat(list(own)).numpy(), sigmas, _numbers_of(own), seed=seed)


def _numbers_of(scenes: Sequence[Tensor]) -> list[int]:
    """For each image of all scenes, (B, ...) each, the number of its scene."""
    return np.repeat(np.arange(len(scenes)), [len(images) for images in scenes]).tolist()


def measure_locality(model: Model, plan: LocalityConfig, device=None, on_scene=lambda: None) -> LocalityResult:
    """The whole study."""
    scenes = []
    for scene in scenes_of(model, plan, device):
        scenes.append(measure(model.denoiser, scene, plan))
        on_scene()
    return LocalityResult(scenes, plan.seed)


def conditional_locality_alone(model: Model, plan: LocalityConfig, device=None) -> dict[str, Any] | None:
    """The record behind `LocalityResult.conditional_locality` without any gradient, for series of many models."""
    own, sigmas = [], []
    for scene in scenes_of(model, plan, device):
        own.append(_own_influence(scene.condition_influence(model.denoiser, plan.rows), scene.prompt))
        sigmas = scene.trajectory.sigmas.tolist()
    return _locality_record(own, sigmas, plan.seed)


def scenes_of(model: Model, plan: LocalityConfig, device=None) -> Iterator[NoisyScene]:
    """The noisy images of each prompt: the model's own samples, or rendered truth under noise."""
    if plan.images < 1:
        raise UserError(f"At least one image is needed for each scene, not {plan.images}.")
    steps: dict[str, Any] = {"steps": plan.steps, "levels": plan.levels}
    for number, prompt in enumerate(prompts_of(model.conditioner, plan)):
        cond = model.conditioner.at(prompt, device=device).expand(plan.images, -1)
        seeds = [image_seed(plan.seed, number, n) for n in range(plan.images)]
        if plan.source == "truth":
            images = truth(prompt, model.size, plan.images, plan.seed + number, device)
            trajectory = noised(images, seeds, **steps)
        else:
            trajectory = generated(model.denoiser, cond, model.size, seeds, **steps, device=device)
        yield NoisyScene(trajectory, tuple(prompt), cond, model.conditioner)


def prompts_of(conditioner: Conditioner, plan: LocalityConfig) -> list[tuple[Any, ...]]:
    if conditioner.dim == 0:
        return [()]  # an unconditional model: pixels alone
    if plan.locations is None:
        return prompts_for_k(conditioner, plan.k, plan.scenes, plan.seed)
    check_number(conditioner, len(plan.locations), None)
    return [plan.locations]
