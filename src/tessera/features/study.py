"""A feature study of a model: every place, several noise levels, the learned network against untrained ones.

Memory stays flat: places are visited group by group, and of each only inner products are kept.
"""

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from tessera.conditioners import ColorCounts, Conditioner
from tessera.conditioners.colors import color_number
from tessera.denoiser.contract import Denoiser
from tessera.denoiser.folder import Model
from tessera.devices import double_home, in_double
from tessera.errors import UserError
from tessera.features.leakage import Leakage, leakage
from tessera.features.places import MODULATION, OUTPUT
from tessera.features.record import record
from tessera.features.statistics import (
    ROUNDING,
    Disentanglement,
    from_products,
    seed_products,
)
from tessera.images.render import render
from tessera.judge.intervals import RESAMPLES
from tessera.locality.study import SCENE_SEED, noised
from tessera.locality.study import truth as truth_at_places
from tessera.sampler.asking import check_number, picture_seed
from tessera.sampler.noise import noise_levels
from tessera.sampler.sample import sample
from tessera.scenes.sampling import Scenes
from tessera.scenes.vocabulary import COLOR_NAMES, LOCATIONS

Source = Literal["generated", "shared", "truth"]
PLACES = 8  # places compared with each other, as many as there are colours


@dataclass(frozen=True)
class Plan:
    """What a study looks at."""

    concepts: tuple[Any, ...]  # colour names or places; the first k are asked for together
    k: int = 4
    seeds: int = 10
    sigmas: tuple[float, ...] = (10.0, 2.0, 0.4)
    at: tuple[str, ...] = (MODULATION, OUTPUT)
    source: Source = "generated"
    nulls: int = 19  # untrained networks
    steps: int = 32
    rows: int = 64  # pictures denoised together
    memory: int = 2**31  # bytes of features held at a time
    seed: int = 0

    @property
    def wishes(self) -> list[tuple[Any, ...]]:
        """What the network is told: nothing, each concept alone, k together, and those less one each."""
        full = self.concepts[: self.k]
        less = [full[:i] + full[i + 1 :] for i in range(self.k)]
        return [(), *((concept,) for concept in self.concepts), full, *less]


@dataclass(frozen=True)
class Found:
    """One place at one noise level."""

    raw: Disentanglement
    centred: Disentanglement
    leak: Leakage


Level = dict[str, Found]  # by name of the place


@dataclass(frozen=True)
class FeatureStudy:
    """The learned network and the untrained ones, level by level."""

    sigmas: list[float]
    learned: list[Level]
    nulls: list[list[Level]]  # one list of levels for each untrained network


def mean_over_places(level: Level, measure: Callable[[Found], float]) -> float:
    """One number for a whole network: places of one network rise and fall together."""
    known = [value for found in level.values() if math.isfinite(value := measure(found))]
    return sum(known) / len(known) if known else math.nan


# -- what is asked -----------------------------------------------------------------------------------------


def concepts_for(tell: Conditioner, colors: Sequence[str] | None = None) -> tuple[Any, ...]:
    """The conditions to compare: all colours, or those named; for models told places, the study's first ones."""
    if isinstance(tell, ColorCounts):
        chosen = COLOR_NAMES if colors is None else tuple(colors)
        for name in chosen:
            color_number(name)
        return chosen
    if colors is not None:
        raise UserError("This model is not told colours; leave --colors out to compare places.")
    if not tell.dim:
        raise UserError("This model is told nothing, so there are no conditions to compare.")
    return LOCATIONS[:PLACES]


def check_plan(plan: Plan, tell: Conditioner) -> None:
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
    check_number(tell, plan.k, None)


def chosen_steps(plan: Plan) -> list[int]:
    """Steps of the sampler nearest to the wanted noise levels, from high to low noise."""
    levels = noise_levels(plan.steps)[:-1].log()
    return sorted({int((levels - math.log(sigma)).abs().argmin()) for sigma in plan.sigmas})


# -- what the network is shown -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Shown:
    """One noise level's inputs: V wishes by S seeds."""

    x: Tensor  # (V, S, C, H, W)
    cond: Tensor  # (V, dim)
    sigma: float

    def batches(self, rows: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """(x, sigma, cond) of at most `rows` pictures each, wish by wish."""
        seeds = self.x.shape[1]
        x, cond = self.x.flatten(0, 1), self.cond.repeat_interleave(seeds, 0)
        for some in torch.arange(len(x)).split(rows):
            part = slice(int(some[0]), int(some[-1]) + 1)
            yield x[part], torch.full((len(some),), self.sigma, device=x.device, dtype=x.dtype), cond[part]


def shown(model: Model, plan: Plan, device=None) -> list[Shown]:
    """Noisy pictures of every level; what is asked less one condition sees the picture of the full wish."""
    wishes = plan.wishes
    cond = torch.cat([model.tell.at(wish, device=device) for wish in wishes])
    whole = len(plan.concepts) + 2  # nothing, each alone, and all k: the wishes with pictures of their own
    way = WAYS[plan.source](model, plan, wishes[:whole], cond[:whole], device)  # level: (whole, S, C, H, W)
    source = [*range(whole), *[whole - 1] * plan.k]
    sigmas = noise_levels(plan.steps)
    return [Shown(way[step][source], cond, float(sigmas[step])) for step in chosen_steps(plan)]


Way = dict[int, Tensor]


def picture_seeds(plan: Plan) -> list[int]:
    return [picture_seed(plan.seed, 0, n) for n in range(plan.seeds)]


def walk(model: Model, plan: Plan, wishes: Sequence[tuple[Any, ...]], cond: Tensor, device) -> Way:
    """Every wish from the same seeds, as the model's own sampling meets it."""
    steps = chosen_steps(plan)
    kept: dict[int, list[Tensor]] = {step: [] for step in steps}

    def watch(step) -> None:
        if step.number in kept:
            kept[step.number].append(step.x)

    sample(
        model.denoiser,
        cond.repeat_interleave(plan.seeds, 0),
        model.size,
        picture_seeds(plan) * len(cond),
        batch=plan.rows,
        sigmas=noise_levels(plan.steps)[: steps[-1] + 2],  # no further than the last look
        on_step=watch,
        device=device,
    )
    return {step: torch.cat(parts).unflatten(0, (len(cond), plan.seeds)) for step, parts in kept.items()}


def shared_walk(model: Model, plan: Plan, wishes: Sequence[tuple[Any, ...]], cond: Tensor, device) -> Way:
    """The walk of the empty wish for all of them: only what the network is told differs."""
    way = walk(model, plan, wishes[:1], cond[:1], device)
    return {step: x.expand(len(wishes), *x.shape[1:]) for step, x in way.items()}


def noised_truth(model: Model, plan: Plan, wishes: Sequence[tuple[Any, ...]], cond: Tensor, device) -> Way:
    """Rendered scenes that show the wish, under the same noise for every wish."""
    steps, sigmas = chosen_steps(plan), noise_levels(plan.steps)
    ways = []
    for wish in wishes:
        pictures = truth(wish, model.size, plan.seeds, plan.seed, device)
        ways.append(noised(pictures, picture_seeds(plan), sigmas[steps]).x)  # (levels, S, C, H, W)
    return dict(zip(steps, torch.stack(ways, dim=1), strict=True))


WAYS: dict[str, Callable[..., Way]] = {"generated": walk, "shared": shared_walk, "truth": noised_truth}


def truth(wish: Sequence[Any], size: int, count: int, seed: int, device=None) -> Tensor:
    """Pictures (count, 3, size, size) of random scenes with things of these colours, or at these places."""
    if not wish or not isinstance(wish[0], str):
        return truth_at_places(wish, size, count, seed, device)
    scenes = Scenes(objects=len(wish)).draw(count, SCENE_SEED + seed, device=device)
    numbers = torch.tensor([color_number(name) for name in wish], device=scenes.device)
    return render(replace(scenes, color=numbers.expand_as(scenes.color)), size=size)["rgb"]


# -- one network -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Products:
    """What is kept of a place: inner products of all d and r, and the size below which they are rounding."""

    among: Tensor  # (C + K, S, C + K, S)
    floor: float


@torch.no_grad()
def place_products(
    denoise: Denoiser, inputs: Shown, at: Sequence[str], plan: Plan, advance: Callable = lambda: None
) -> dict[str, Products]:
    """Inner products at every place, in order of use."""
    found: dict[str, Products] = {}
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


def bytes_per_row(denoise: Denoiser, inputs: Shown, at: Sequence[str]) -> dict[str, int]:
    """What one picture's features take at each place that matches, in order of use."""
    x, sigma, cond = next(inputs.batches(1))
    with record(denoise, at, keep=lambda rows: 4 * rows.numel()) as seen:
        denoise(x, sigma, cond)
    return {name: sum(seen[name]) for name in seen}


def by_memory(sizes: dict[str, int], rows: int, budget: int) -> Iterator[list[str]]:
    """Places that fit into memory together; one that does not fit goes alone."""
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


def products_of(features: Tensor, concepts: int) -> Products:
    """Features (V, S, F) of all wishes, in the order of `Plan.wishes`, to what is kept of them."""
    nothing, alone, full, less = features.split([1, concepts, 1, len(features) - concepts - 2])
    among = seed_products(torch.cat([alone - nothing, full - less]))
    here = features.to(double_home(features.device))
    length = float(here.square().sum(2, dtype=torch.float64).mean())
    return Products(among, length * ROUNDING**2)


def found_at(products: Products, concepts: int, resamples: int, seed: int) -> Found:
    """All measures of one place; `resamples` shuffles as well."""
    alone = products.among[:concepts, :, :concepts]
    options: dict[str, Any] = {"floor": products.floor, "resamples": resamples, "seed": seed}
    return Found(
        from_products(alone, shuffles=resamples, **options),
        from_products(alone, shuffles=resamples, centre=True, **options),
        leakage(products.among, concepts, **options),
    )


def looked_at(
    denoise: Denoiser, inputs: Sequence[Shown], plan: Plan, resamples: int, advance: Callable
) -> list[Level]:
    """One network at all levels."""
    levels = []
    for one in inputs:
        products = place_products(denoise, one, plan.at, plan, advance)
        levels.append(
            {
                name: found_at(kept, len(plan.concepts), resamples, plan.seed)
                for name, kept in products.items()
            }
        )
    return levels


# -- untrained networks ------------------------------------------------------------------------------------


@torch.no_grad()
def reinitialised(network: nn.Module, seed: int) -> nn.Module:
    """The same network with every matrix and filter drawn anew, normal, mean zero, at its own size.

    Vectors and single numbers stay as learned: an EDM2 starts with its gains at zero, where it does not hear
    conditions at all and there would be nothing to compare.
    """
    fresh = copy.deepcopy(network)
    dice = torch.Generator().manual_seed(seed)
    for parameter in fresh.parameters():
        if parameter.ndim > 1:
            size = in_double(parameter).square().mean().sqrt().item()
            drawn = torch.randn(parameter.shape, generator=dice) * size
            parameter.copy_(drawn)
    return fresh


def weight_seeds(plan: Plan) -> list[int]:
    """One for each untrained network, far from each other and from those of pictures.

    A torch generator listens to 32 bits only, so numbers are mixed before they are handed to it.
    """
    mixed = np.random.SeedSequence([plan.seed % 2**64, *b"weights"]).generate_state(plan.nulls)
    return [int(seed) for seed in mixed]


def feature_study(
    model: Model, plan: Plan, device=None, advance: Callable = lambda: None, resamples: int = RESAMPLES
) -> FeatureStudy:
    """The learned network, then the untrained ones on the very same noisy pictures."""
    check_plan(plan, model.tell)
    inputs = shown(model, plan, device)
    learned = looked_at(model.denoiser, inputs, plan, resamples, advance)
    nulls = [
        looked_at(reinitialised(model.denoiser, seed), inputs, plan, 1, advance)
        for seed in weight_seeds(plan)
    ]
    return FeatureStudy([one.sigma for one in inputs], learned, nulls)
