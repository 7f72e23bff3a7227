"""MLPs, linear or ReLU, trained by SGD on samples: the experiments the closed forms are compared with.

All seeds of a setting train side by side as one batched network; each has its own data, start and shuffles, so a seed
gives the same run in any batch.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from tessera.errors import UserError
from tessera.scenes.random import seeded_generator
from tessera.studies.swingby.data import Array, Sim
from tessera.studies.swingby.integrate import check_step


@dataclass(frozen=True)
class Recipe:
    """How an MLP is trained; the defaults are the source's (its bias, start and loss reduction are not stated)."""

    depth: int = 2
    #: Width between layers; None takes the ambient dimension.
    hidden: int | None = None
    relu: bool = False
    samples: int = 5000
    batch: int = 128
    rate: float = 0.1
    epochs: int = 40
    #: Multiplies the starting weights, which are uniform in +-1/sqrt(fan_in) without bias.
    scale: float = 1.0

    def steps(self, task: Sim) -> int:
        return self.epochs * math.ceil(task.clusters * self.samples / self.batch)

    def __post_init__(self):
        counts = (self.depth, self.batch, self.epochs, self.samples)
        if min(counts) < 1 or (self.hidden is not None and self.hidden < 1):
            raise UserError("Depth, width, samples, batch size and epochs must all be at least 1.")
        if not self.rate > 0:
            raise UserError(f"The learning rate must be positive, not {self.rate:g}.")


class SgdRun(NamedTuple):
    """Snapshots of a training: times are steps * rate, as in gradient flow."""

    times: Array  # (T,)
    loss: Array  # (T, seeds) on fresh in-distribution draws
    outputs: Array  # (T, seeds, points, d)
    errors: Array  # (T, seeds, points): half the squared error at each probed point


def train(task: Sim, recipe: Recipe, seeds: range, points: Array, every: int = 1, on_snapshot=None) -> SgdRun:
    """Train one network per seed; snapshots of its outputs at `points` (P, d) every `every` steps."""
    if not recipe.relu:  # which has no such simple limit
        check_step(recipe.rate, _fastest(task, recipe), "descent")
    data = torch.stack([_tensor(task.draw(recipe.samples, seed)) for seed in seeds])  # (S, N, d)
    fresh = torch.stack([_tensor(task.draw(500, seed + 2**31)) for seed in seeds])
    layers = start(task, recipe, seeds)
    probes = _tensor(points).expand(len(seeds), *points.shape)  # (S, P, d)
    losses, outputs = [], []
    for step, rows in enumerate(chain([None], batches(len(data[0]), recipe, seeds))):
        if rows is not None:
            update(layers, data.gather(1, rows[..., None].expand(-1, -1, task.d)), recipe)
        if step % every == 0:
            loss, output = evaluate(layers, fresh, probes, recipe.relu)
            _check_finite(loss, task, recipe, step)
            losses.append(loss)
            outputs.append(output)
            if on_snapshot:
                on_snapshot()
    found = torch.stack(outputs).double().numpy()
    errors = 0.5 * np.square(found - points).sum(-1)
    times = recipe.rate * (every * np.arange(len(losses)))
    return SgdRun(times, torch.stack(losses).double().numpy(), found, errors)


def start(task: Sim, recipe: Recipe, seeds: range) -> list[Tensor]:
    """Layers (S, out, in), uniform in +-scale/sqrt(fan_in)."""
    hidden = recipe.hidden or task.d
    dims = [task.d, *[hidden] * (recipe.depth - 1), task.d]
    rngs = [seeded_generator(seed) for seed in seeds]
    layers = []
    for narrow, wide in pairwise(dims):
        uniform = 2 * torch.stack([torch.rand(wide, narrow, generator=rng) for rng in rngs]) - 1
        layers.append((recipe.scale * (uniform / narrow**0.5)).requires_grad_())
    return layers


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


def _check_finite(loss: Tensor, task: Sim, recipe: Recipe, step: int) -> None:
    if not bool(loss.isfinite().all()):
        limit = 2 / _fastest(task, recipe)
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


def _fastest(task: Sim, recipe: Recipe) -> float:
    """The largest rate of a linear network of balanced layers near the solution."""
    return recipe.depth * task.a.max()


def _tensor(array: Array) -> Tensor:
    return torch.from_numpy(array).float()
