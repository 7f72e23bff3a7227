"""MLPs, linear or ReLU, trained by SGD on samples: the experiments the closed forms are compared with.

All seeds of a setting train side by side as one batched network; each has its own data, start and shuffles, so a seed
gives the same run in any batch.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from tessera.errors import UserError
from tessera.scenes.random import seeded_generator
from tessera.studies.swingby.data import Array, Sim


@dataclass(frozen=True)
class Recipe:
    """How an MLP is trained; the defaults are the source's (its bias, start and loss reduction are not stated)."""

    depth: int = 2
    hidden: int | None = None
    """Width between layers; None takes the ambient dimension."""
    relu: bool = False
    samples: int = 5000
    batch: int = 128
    rate: float = 0.1
    epochs: int = 40
    scale: float = 1.0
    """Multiplies the starting weights, which are uniform in +-1/sqrt(fan_in) without bias."""

    def __post_init__(self):
        counts = (self.depth, self.batch, self.epochs, self.samples)
        if min(counts) < 1 or (self.hidden is not None and self.hidden < 1):
            raise UserError("Depth, width, samples, batch size and epochs must all be at least 1.")
        if not self.rate > 0:
            raise UserError(f"The learning rate must be positive, not {self.rate:g}.")


@dataclass(frozen=True)
class SgdRun:
    """Snapshots of a training: times are steps * rate, as in gradient flow."""

    times: Array  # (T,)
    loss: Array  # (T, seeds) on fresh in-distribution draws
    outputs: Array  # (T, seeds, points, d)
    errors: Array  # (T, seeds, points): half the squared error at each probed point


def train(task: Sim, recipe: Recipe, seeds: range, points: Array, every: int = 1, on_snapshot=None) -> SgdRun:
    """Train one network per seed; snapshots of its outputs at `points` (P, d) every `every` steps."""
    _check_rate(task, recipe)
    data = torch.stack([_tensor(task.draw(recipe.samples, seed)) for seed in seeds])  # (S, N, d)
    fresh = torch.stack([_tensor(task.draw(500, seed + 2**31)) for seed in seeds])
    layers = start(task, recipe, seeds)
    probes = _tensor(points).expand(len(seeds), *points.shape)  # (S, P, d)
    snapshots: list[tuple[int, Tensor, Tensor]] = []
    for step, rows in enumerate(_with_start(batches(len(data[0]), recipe, seeds))):
        if rows is not None:
            update(layers, data.gather(1, rows[..., None].expand(-1, -1, task.d)), recipe)
        if step % every == 0:
            snapshots.append((step, *evaluate(layers, fresh, probes, recipe.relu)))
            check_finite(snapshots[-1][1], task, recipe, step)
            if on_snapshot:
                on_snapshot(1)
    steps, losses, outputs = zip(*snapshots)
    found = torch.stack(outputs).double().numpy()
    errors = 0.5 * np.square(found - points).sum(-1)
    return SgdRun(recipe.rate * np.array(steps, float), torch.stack(losses).double().numpy(), found, errors)


def snapshot_count(task: Sim, recipe: Recipe, every: int) -> int:
    """Number of snapshots of `train`."""
    steps = recipe.epochs * -(-task.clusters * recipe.samples // recipe.batch)
    return steps // every + 1


def start(task: Sim, recipe: Recipe, seeds: range) -> list[Tensor]:
    """Layers (S, out, in), uniform in +-scale/sqrt(fan_in)."""
    hidden = recipe.hidden or task.d
    dims = [task.d, *[hidden] * (recipe.depth - 1), task.d]
    networks = [_one_start(seed, dims) for seed in seeds]
    return [(recipe.scale * torch.stack(layer)).requires_grad_() for layer in zip(*networks)]


def _one_start(seed: int, dims: list[int]) -> list[Tensor]:
    rng = seeded_generator(seed)
    return [(2 * torch.rand(wide, narrow, generator=rng) - 1) / narrow**0.5 for narrow, wide in pairwise(dims)]


def forward(layers: list[Tensor], x: Tensor, relu: bool) -> Tensor:
    """x (S, B, d) through every seed's own network; no nonlinearity after the last layer."""
    for layer in layers[:-1]:
        x = x @ layer.mT
        x = x.relu() if relu else x
    return x @ layers[-1].mT


def update(layers: list[Tensor], x: Tensor, recipe: Recipe) -> None:
    """One SGD step on mean_k 1/2 ||f(x_k) - x_k||^2, every seed on its own batch (S, B, d)."""
    losses = 0.5 * (forward(layers, x, recipe.relu) - x).square().sum(-1).mean(-1)  # (S,)
    for layer, gradient in zip(layers, torch.autograd.grad(losses.sum(), layers)):
        layer.data.add_(gradient, alpha=-recipe.rate)


@torch.no_grad()
def evaluate(layers: list[Tensor], fresh: Tensor, probes: Tensor, relu: bool) -> tuple[Tensor, Tensor]:
    """In-distribution loss (S,) and outputs at the probes (S, P, d)."""
    loss = 0.5 * (forward(layers, fresh, relu) - fresh).square().sum(-1).mean(-1)
    return loss, forward(layers, probes, relu)


def check_finite(loss: Tensor, task: Sim, recipe: Recipe, step: int) -> None:
    if not bool(loss.isfinite().all()):
        limit = _stable_limit(task, recipe)
        raise UserError(
            f"SGD with learning rate {recipe.rate:g} diverged by step {step}; "
            f"a linear network of balanced layers is stable below {limit:.4g}, and this start needs less."
        )


def batches(count: int, recipe: Recipe, seeds: range) -> Iterator[Tensor]:
    """Rows (S, batch) of every step; each seed shuffles on its own. The last batch of an epoch may be smaller."""
    rngs = [seeded_generator(seed + 2**32) for seed in seeds]
    for _ in range(recipe.epochs):
        shuffled = torch.stack([torch.randperm(count, generator=rng) for rng in rngs])
        yield from shuffled.split(recipe.batch, dim=1)


def _check_rate(task: Sim, recipe: Recipe) -> None:
    """A linear network of balanced layers is stable below 2 / (depth * largest a); ReLU has no such simple limit."""
    limit = _stable_limit(task, recipe)
    if not recipe.relu and recipe.rate >= limit:
        raise UserError(f"A learning rate of {recipe.rate:g} diverges here; the stable limit is {limit:.4g}.")


def _stable_limit(task: Sim, recipe: Recipe) -> float:
    return 2 / (recipe.depth * float(task.a.max()))


def _with_start(steps: Iterator[Tensor]) -> Iterator[Tensor | None]:
    yield None
    yield from steps


def _tensor(array: Array) -> Tensor:
    return torch.from_numpy(array).float()
