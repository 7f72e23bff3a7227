"""A feature study of a model: every hook, several noise levels, the learned network against untrained ones.

Memory stays flat: hooks are visited group by group, and of each only inner products are kept.
"""

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from tessera.analysis.feature_statistics import (
    ROUNDING,
    Disentanglement,
    from_products,
    seed_products,
)
from tessera.analysis.hooks import MODULATION, OUTPUT
from tessera.analysis.leakage import Leakage, leakage
from tessera.analysis.locality import SCENE_SEED, noised
from tessera.analysis.locality import truth as truth_at_hooks
from tessera.analysis.recording import record
from tessera.conditioning import ColorCounts, Conditioner
from tessera.conditioning.colors import color_number
from tessera.devices import double_home, in_double
from tessera.errors import UserError
from tessera.models.contract import Denoiser
from tessera.models.model import Model
from tessera.render.render import render
from tessera.sampling.prompts import check_number, image_seed
from tessera.sampling.schedule import noise_levels
from tessera.sampling.trajectory import sample_trajectory
from tessera.scenes.sampling import Scenes
from tessera.scenes.vocabulary import COLOR_NAMES, LOCATIONS
from tessera.stats import RESAMPLES

Source = Literal["generated", "shared", "truth"]
HOOKS = 8  # hooks compared with each other, as many as there are colors


@dataclass(frozen=True)
class FeatureConfig:
    """What a study looks at."""

    concepts: tuple[Any, ...]  # color names or hooks; the first k are asked for together
    k: int = 4
    seeds: int = 10
    sigmas: tuple[float, ...] = (10.0, 2.0, 0.4)
    at: tuple[str, ...] = (MODULATION, OUTPUT)
    source: Source = "generated"
    nulls: int = 19  # untrained networks
    steps: int = 32
    rows: int = 64  # images denoised together
    memory: int = 2**31  # bytes of features held at a time
    seed: int = 0

    @property
    def prompts(self) -> list[tuple[Any, ...]]:
        """What the network is told: nothing, each concept alone, k together, and those less one each."""
        full = self.concepts[: self.k]
        less = [full[:i] + full[i + 1 :] for i in range(self.k)]
        return [(), *((concept,) for concept in self.concepts), full, *less]


@dataclass(frozen=True)
class FeatureResult:
    """One hook at one noise level."""

    raw: Disentanglement
    centered: Disentanglement
    leak: Leakage


Level = dict[str, FeatureResult]  # by name of the hook


@dataclass(frozen=True)
class FeatureStudy:
    """The learned network and the untrained ones, level by level."""

    sigmas: list[float]
    learned: list[Level]
    nulls: list[list[Level]]  # one list of levels for each untrained network


def mean_over_hooks(level: Level, measure: Callable[[FeatureResult], float]) -> float:
    """One number for a whole network: hooks of one network rise and fall together."""
    known = [value for found in level.values() if math.isfinite(value := measure(found))]
    return sum(known) / len(known) if known else math.nan


# -- what is asked -----------------------------------------------------------------------------------------


def concepts_for(conditioner: Conditioner, colors: Sequence[str] | None = None) -> tuple[Any, ...]:
    """The conditions to compare: all colors, or those named; for models told hooks, the study's first ones."""
    if isinstance(conditioner, ColorCounts):
        chosen = COLOR_NAMES if colors is None else tuple(colors)
        for name in chosen:
            color_number(name)
        return chosen
    if colors is not None:
        raise UserError("This model is not told colors; leave --colors out to compare hooks.")
    if not conditioner.dim:
        raise UserError("This model is told nothing, so there are no conditions to compare.")
    return LOCATIONS[:HOOKS]


def check_plan(plan: FeatureConfig, conditioner: Conditioner) -> None:
    concepts = len(plan.concepts)
    if concepts < 2 or len(set(plan.concepts)) < concepts:
        raise UserError("At least two conditions must be compared, none of them twice.")
    if not 1 <= plan.k <= concepts:
        raise UserError(f"Of {concepts} conditions 1 to {concepts} can be asked for together, not {plan.k}.")
    if plan.seeds < 2:
        raise UserError(f"Means and their intervals need at least two seeds, not {plan.seeds}.")
    if plan.nulls < 0 or plan.rows < 1 or plan.memory < 1:
        raise UserError("Untrained networks cannot be fewer than none, and rows and memory must be positive.")
    if not plan.sigmas or not all(sigma > 0 and math.isfinite(sigma) for sigma in plan.sigmas):
        raise UserError("Noise levels must be positive numbers, and at least one.")
    check_number(conditioner, plan.k, None)


def chosen_steps(plan: FeatureConfig) -> list[int]:
    """Steps of the sampler nearest to the wanted noise levels, from high to low noise."""
    levels = noise_levels(plan.steps)[:-1].log()
    return sorted({int((levels - math.log(sigma)).abs().argmin()) for sigma in plan.sigmas})


# -- what the network is shown -----------------------------------------------------------------------------


@dataclass(frozen=True)
class FeatureBatch:
    """One noise level's inputs: V prompts by S seeds."""

    x: Tensor  # (V, S, C, H, W)
    cond: Tensor  # (V, dim)
    sigma: float

    def batches(self, rows: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """(x, sigma, cond) of at most `rows` images each, prompt by prompt."""
        seeds = self.x.shape[1]
        x, cond = self.x.flatten(0, 1), self.cond.repeat_interleave(seeds, 0)
        for some in torch.arange(len(x)).split(rows):
            part = slice(int(some[0]), int(some[-1]) + 1)
            yield x[part], torch.full((len(some),), self.sigma, device=x.device, dtype=x.dtype), cond[part]


def shown(model: Model, plan: FeatureConfig, device=None) -> list[FeatureBatch]:
    """Noisy images of every level; what is asked less one condition sees the image of the full prompt."""
    prompts = plan.prompts
    cond = torch.cat([model.conditioner.at(prompt, device=device) for prompt in prompts])
    whole = len(plan.concepts) + 2  # nothing, each alone, and all k: the prompts with images of their own
    noisy = _noisy_images(model, plan, prompts[:whole], cond[:whole], device)  # (levels, whole, S, C, H, W)
    source = [*range(whole), *[whole - 1] * plan.k]
    sigmas = noise_levels(plan.steps)[chosen_steps(plan)].tolist()
    return [FeatureBatch(x[source], cond, sigma) for x, sigma in zip(noisy, sigmas, strict=True)]


def image_seeds(plan: FeatureConfig) -> list[int]:
    return [image_seed(plan.seed, 0, n) for n in range(plan.seeds)]


def _noisy_images(
    model: Model, plan: FeatureConfig, prompts: Sequence[tuple[Any, ...]], cond: Tensor, device
) -> Tensor:
    """Images (levels, V, S, C, H, W) of V prompts from the same S seeds.

    "generated": states of the model's own sampler. "shared": those of the empty prompt for all, so that only the
    condition differs. "truth": rendered scenes that show the prompt, under the same noise for every prompt.
    """
    keep, seeds = chosen_steps(plan), image_seeds(plan)
    if plan.source == "truth":
        sigmas = noise_levels(plan.steps)[keep]
        images = [truth(prompt, model.size, plan.seeds, plan.seed, device) for prompt in prompts]
        return torch.stack([noised(some, seeds, sigmas).x for some in images], dim=1)
    sampled = cond[:1] if plan.source == "shared" else cond
    x = sample_trajectory(
        model.denoiser,
        sampled.repeat_interleave(plan.seeds, 0),
        model.size,
        seeds * len(sampled),
        keep,
        batch=plan.rows,
        steps=plan.steps,
        device=device,
    ).x.unflatten(1, (len(sampled), plan.seeds))
    return x.expand(-1, len(prompts), -1, -1, -1, -1)


def truth(prompt: Sequence[Any], size: int, count: int, seed: int, device=None) -> Tensor:
    """Images (count, 3, size, size) of random scenes with objects of these colors, or at these hooks."""
    if not prompt or not isinstance(prompt[0], str):
        return truth_at_hooks(prompt, size, count, seed, device)
    scenes = Scenes(objects=len(prompt)).draw(count, SCENE_SEED + seed, device=device)
    numbers = torch.tensor([color_number(name) for name in prompt], device=scenes.device)
    return render(replace(scenes, color=numbers.expand_as(scenes.color)), size=size)["rgb"]


# -- one network -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FeatureProducts:
    """What is kept of a hook: inner products of all d and r, and the size below which they are rounding."""

    among: Tensor  # (C + K, S, C + K, S)
    floor: float


@torch.no_grad()
def hook_products(
    denoise: Denoiser,
    inputs: FeatureBatch,
    at: Sequence[str],
    plan: FeatureConfig,
    advance: Callable = lambda: None,
) -> dict[str, FeatureProducts]:
    """Inner products at every hook, in order of use."""
    found: dict[str, FeatureProducts] = {}
    for group in by_memory(bytes_per_row(denoise, inputs, at), len(inputs.cond) * plan.seeds, plan.memory):
        with record(denoise, group, keep=flat_rows) as seen:
            for batch in inputs.batches(plan.rows):
                denoise(*batch)
        for name in group:
            features = torch.cat(seen[name]).reshape(len(inputs.cond), plan.seeds, -1)
            del seen.kept[name]
            found[name] = products_of(features, len(plan.concepts))
    advance()
    return found


def flat_rows(rows: Tensor) -> Tensor:
    """A copy, so that the network may reuse its memory."""
    return rows.float().flatten(1).clone()


def bytes_per_row(denoise: Denoiser, inputs: FeatureBatch, at: Sequence[str]) -> dict[str, int]:
    """What one image's features take at each hook that matches, in order of use."""
    x, sigma, cond = next(inputs.batches(1))
    with record(denoise, at, keep=lambda rows: 4 * rows.numel()) as seen:
        denoise(x, sigma, cond)
    return {name: sum(seen[name]) for name in seen}


def by_memory(sizes: dict[str, int], rows: int, budget: int) -> Iterator[list[str]]:
    """Hooks that fit into memory together; one that does not fit goes alone."""
    group: list[str] = []
    held = 0
    for name, size in sizes.items():
        if group and held + size * rows > budget:
            yield group
            group, held = [], 0
        group.append(name)
        held += size * rows
    if group:
        yield group


def products_of(features: Tensor, concepts: int) -> FeatureProducts:
    """Features (V, S, F) of all prompts, in the order of `FeatureConfig.prompts`, to what is kept of them."""
    nothing, alone, full, less = features.split([1, concepts, 1, len(features) - concepts - 2])
    among = seed_products(torch.cat([alone - nothing, full - less]))
    here = features.to(double_home(features.device))
    length = float(here.square().sum(2, dtype=torch.float64).mean())
    return FeatureProducts(among, length * ROUNDING**2)


def found_at(products: FeatureProducts, concepts: int, resamples: int, seed: int) -> FeatureResult:
    """All measures of one hook; `resamples` shuffles as well."""
    alone = products.among[:concepts, :, :concepts]
    options: dict[str, Any] = {"floor": products.floor, "resamples": resamples, "seed": seed}
    return FeatureResult(
        from_products(alone, shuffles=resamples, **options),
        from_products(alone, shuffles=resamples, center=True, **options),
        leakage(products.among, concepts, **options),
    )


def looked_at(
    denoise: Denoiser, inputs: Sequence[FeatureBatch], plan: FeatureConfig, resamples: int, advance: Callable
) -> list[Level]:
    """One network at all levels."""
    levels = []
    for one in inputs:
        products = hook_products(denoise, one, plan.at, plan, advance)
        levels.append(
            {
                name: found_at(kept, len(plan.concepts), resamples, plan.seed)
                for name, kept in products.items()
            }
        )
    return levels


# -- untrained networks ------------------------------------------------------------------------------------


@torch.no_grad()
def reinitialized(network: nn.Module, seed: int) -> nn.Module:
    """The same network with every matrix and filter drawn anew, normal, mean zero, at its own size.

    Vectors and single numbers stay as learned: an EDM2 starts with its gains at zero, where it does not hear
    conditions at all and there would be nothing to compare.
    """
    fresh = copy.deepcopy(network)
    generator = torch.Generator().manual_seed(seed)
    for parameter in fresh.parameters():
        if parameter.ndim > 1:
            size = in_double(parameter).square().mean().sqrt().item()
            drawn = torch.randn(parameter.shape, generator=generator) * size
            parameter.copy_(drawn)
    return fresh


def weight_seeds(plan: FeatureConfig) -> list[int]:
    """One for each untrained network, far from each other and from those of images.

    A torch generator listens to 32 bits only, so numbers are mixed before they are handed to it.
    """
    mixed = np.random.SeedSequence([plan.seed % 2**64, *b"weights"]).generate_state(plan.nulls)
    return [int(seed) for seed in mixed]


def feature_study(
    model: Model,
    plan: FeatureConfig,
    device=None,
    advance: Callable = lambda: None,
    resamples: int = RESAMPLES,
) -> FeatureStudy:
    """The learned network, then the untrained ones on the very same noisy images."""
    check_plan(plan, model.conditioner)
    inputs = shown(model, plan, device)
    learned = looked_at(model.denoiser, inputs, plan, resamples, advance)
    nulls = [
        looked_at(reinitialized(model.denoiser, seed), inputs, plan, 1, advance)
        for seed in weight_seeds(plan)
    ]
    return FeatureStudy([one.sigma for one in inputs], learned, nulls)
