"""The feature study of a model with a conditioner: colors or locations compared at several noise levels."""

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from tessera.analysis.feature_study import FeatureBatch, FeatureResult, Level, describe_products, measure_network
from tessera.analysis.hooks import MODULATION, OUTPUT, chosen_hooks
from tessera.analysis.locality import SCENE_SEED, noised
from tessera.analysis.locality import truth as truth_at_locations
from tessera.conditioning import ColorCounts, Conditioner
from tessera.conditioning.colors import color_number
from tessera.devices import in_double
from tessera.errors import UserError
from tessera.models.model import Model
from tessera.render.render import render
from tessera.sampling.prompts import check_number, image_seed
from tessera.sampling.schedule import noise_levels
from tessera.sampling.trajectory import sample_trajectory
from tessera.scenes.sampling import Scenes
from tessera.scenes.vocabulary import COLOR_NAMES, LOCATIONS
from tessera.stats import RESAMPLES

Source = Literal["generated", "shared", "truth"]
_LOCATION_CONCEPTS = 8  # locations that are compared, as many as there are colors


@dataclass(frozen=True)
class FeatureConfig:
    """Settings of a feature study."""

    concepts: tuple[Any, ...]  # color names or locations; the first k are prompted together
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

    def __post_init__(self) -> None:
        concepts = len(self.concepts)
        if concepts < 2 or len(set(self.concepts)) < concepts:
            raise UserError("At least two conditions must be compared, none of them twice.")
        if not 1 <= self.k <= concepts:
            raise UserError(f"Of {concepts} conditions 1 to {concepts} can be prompted together, not {self.k}.")
        if self.seeds < 2:
            raise UserError(f"Means and their intervals need at least two seeds, not {self.seeds}.")
        if self.nulls < 0 or self.rows < 1 or self.memory < 1:
            raise UserError("Untrained networks cannot be fewer than none, and rows and memory must be positive.")
        if not self.sigmas or not all(sigma > 0 and math.isfinite(sigma) for sigma in self.sigmas):
            raise UserError("Noise levels must be positive numbers, and at least one.")

    @property
    def prompts(self) -> list[tuple[Any, ...]]:
        """The empty prompt, each concept alone, k together, and those less one each."""
        full = self.concepts[: self.k]
        less = [full[:i] + full[i + 1 :] for i in range(self.k)]
        return [(), *((concept,) for concept in self.concepts), full, *less]

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """Prompts whose features are subtracted: each concept less none, then k together less each of the k."""
        full = len(self.concepts) + 1
        alone = [(number, 0) for number in range(1, full)]
        return alone + [(full, full + 1 + removed) for removed in range(self.k)]


# -- concepts ---------------------------------------------------------------------------------------------


def concepts_for(conditioner: Conditioner, colors: Sequence[str] | None = None) -> tuple[Any, ...]:
    """The conditions to compare: all colors, or those named; the study's first locations for other models."""
    if isinstance(conditioner, ColorCounts):
        chosen = COLOR_NAMES if colors is None else tuple(colors)
        for name in chosen:
            color_number(name)
        return chosen
    if colors is not None:
        raise UserError("This model is not conditioned on colors; leave --colors out to compare locations.")
    if not conditioner.dim:
        raise UserError("This model is unconditional, so there are no conditions to compare.")
    return LOCATIONS[:_LOCATION_CONCEPTS]


def chosen_steps(plan: FeatureConfig) -> list[int]:
    """Steps of the sampler nearest to the chosen noise levels, from high to low noise."""
    levels = noise_levels(plan.steps)[:-1].log()
    return sorted({int((levels - math.log(sigma)).abs().argmin()) for sigma in plan.sigmas})


# -- noisy images -----------------------------------------------------------------------------


def noisy_inputs(model: Model, plan: FeatureConfig, device=None) -> list[FeatureBatch]:
    """Noisy images of every level; prompts less one condition share the images of the full prompt."""
    prompts = plan.prompts
    cond = torch.cat([model.conditioner.at(prompt, device=device) for prompt in prompts])
    whole = len(plan.concepts) + 2  # nothing, each alone, and all k: the prompts with images of their own
    noisy = _noisy_images(model, plan, prompts[:whole], cond[:whole], device)  # (levels, whole, S, C, H, W)
    source = [*range(whole), *[whole - 1] * plan.k]
    sigmas = noise_levels(plan.steps)[chosen_steps(plan)].tolist()
    return [FeatureBatch(x[source], cond, sigma) for x, sigma in zip(noisy, sigmas, strict=True)]


def _noisy_images(
    model: Model, plan: FeatureConfig, prompts: Sequence[tuple[Any, ...]], cond: Tensor, device
) -> Tensor:
    """Images (levels, V, S, C, H, W) of V prompts from the same S seeds.

    "generated": states of the model's own sampler. "shared": those of the empty prompt for all, so that only the
    condition differs. "truth": rendered scenes that show the prompt, under the same noise for every prompt.
    """
    keep, seeds = chosen_steps(plan), [image_seed(plan.seed, 0, n) for n in range(plan.seeds)]
    if plan.source == "truth":
        sigmas = noise_levels(plan.steps)[keep]
        images = [truth(prompt, model.size, plan.seeds, plan.seed, device) for prompt in prompts]
        return torch.stack([noised(some, seeds, sigmas).x for some in images], dim=1)
    sampled = cond[:1] if plan.source == "shared" else cond
    given, options = sampled.repeat_interleave(plan.seeds, 0), {"batch": plan.rows, "steps": plan.steps}
    found = sample_trajectory(model.denoiser, given, model.size, seeds * len(sampled), keep, device=device, **options)
    x = found.x.unflatten(1, (len(sampled), plan.seeds))
    return x.expand(-1, len(prompts), -1, -1, -1, -1)


def truth(prompt: Sequence[Any], size: int, count: int, seed: int, device=None) -> Tensor:
    """Images (count, 3, size, size) of random scenes with objects of these colors, or at these locations."""
    if not prompt or not isinstance(prompt[0], str):
        return truth_at_locations(prompt, size, count, seed, device)
    scenes = Scenes(objects=len(prompt)).draw(count, SCENE_SEED + seed, device=device)
    numbers = torch.tensor([color_number(name) for name in prompt], device=scenes.device)
    return render(replace(scenes, color=numbers.expand_as(scenes.color)), size=size)["rgb"]


# -- untrained networks ------------------------------------------------------------------------------------


@torch.no_grad()
def reinitialized(network: nn.Module, seed: int) -> nn.Module:
    """The same network with every matrix and filter drawn anew, normal, mean zero, at its own size.

    Vectors and single numbers stay as learned: an EDM2 starts with its gains at zero, where conditions have no
    effect at all and there would be nothing to compare.
    """
    fresh = copy.deepcopy(network)
    generator = torch.Generator().manual_seed(seed)
    for parameter in fresh.parameters():
        if parameter.ndim > 1:
            size = in_double(parameter).square().mean().sqrt().item()
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * size)
    return fresh


def weight_seeds(plan: FeatureConfig) -> list[int]:
    """One for each untrained network, far from each other and from those of images.

    A torch generator uses 32 bits only, so numbers are mixed before they become its seed.
    """
    return np.random.SeedSequence([plan.seed % 2**64, *b"weights"]).generate_state(plan.nulls).tolist()


def feature_study(
    model: Model, plan: FeatureConfig, device=None, advance: Callable = lambda: None, resamples: int = RESAMPLES
) -> FeatureResult:
    """The learned network, then the untrained ones on the very same noisy images."""
    check_number(model.conditioner, plan.k, None)
    chosen_hooks(model, plan.at)
    inputs = noisy_inputs(model, plan, device)

    def measured(network: nn.Module, resamples: int) -> list[Level]:
        options: dict[str, Any] = {"resamples": resamples, "shuffles": resamples, "seed": plan.seed}
        describe = partial(describe_products, concepts=len(plan.concepts), **options)
        budget = {"rows": plan.rows, "memory": plan.memory}
        return measure_network(network, inputs, plan.at, plan.pairs, describe, advance, **budget)

    learned = measured(model.denoiser, resamples)
    nulls = [measured(reinitialized(model.denoiser, seed), 1) for seed in weight_seeds(plan)]
    return FeatureResult([one.sigma for one in inputs], learned, nulls, plan.concepts, plan.k)
