"""Sampling one step at a time, and a cache of the trajectories made last."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Generator, Hashable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from tessera.app.explorer.models import SessionModel
from tessera.app.explorer.requests import SampleRequest
from tessera.sampling.prompts import Prompt
from tessera.sampling.sample import sample_batches
from tessera.sampling.schedule import noise_levels
from tessera.sampling.solvers import SamplingStep
from tessera.sampling.trajectory import Trajectory, collect

_CACHE_BYTES = 32 * 2**20
_Shown = TypeVar("_Shown")


@dataclass(frozen=True)
class Sampled:
    """All steps of one model's images, on the CPU; the last step of the trajectory is the images."""

    prompts: list[Prompt]
    trajectory: Trajectory
    cost: float = 1.0  # images through the network, for each that sampling without composition needs

    @property
    def sigmas(self) -> list[float]:
        """Noise levels of the steps, without the 0 of the images."""
        return self.trajectory.sigmas[:-1].tolist()

    @property
    def nbytes(self) -> int:
        return 2 * self.trajectory.x.nbytes  # x and denoised

    def denoised(self, image: int) -> Tensor:
        """One image's (steps, C, H, W)."""
        assert self.trajectory.denoised is not None
        return self.trajectory.denoised[:-1, image]


def sampling(
    entry: SessionModel, request: SampleRequest, show: Callable[[SamplingStep], _Shown]
) -> Generator[_Shown, None, Sampled]:
    """The same images as `tessera sample` makes. Yields `show` of every step and returns all of them.

    A step is shown once the network has denoised it, before Heun's correction.
    """
    model, denoise = entry.model, entry.denoiser(request.compose, request.radius)
    prompts = entry.prompts(request.locations, request.colors, request.each, request.seed)
    (steps,) = sample_batches(
        denoise,
        torch.cat([model.conditioner.at(prompt.wanted) for prompt in prompts]),
        model.size,
        [prompt.seed for prompt in prompts],
        batch=len(prompts),
        sigmas=noise_levels(request.steps),
        device=entry.device,
    )
    kept = []
    for step in steps:
        kept.append(replace(step, x=step.x.cpu(), denoised=step.denoised.cpu()))
        if step.index < request.steps:
            yield show(kept[-1])
    trajectory = collect([kept], range(request.steps + 1), keep_denoised=True)
    passes = (2 * request.steps - 1) * len(prompts)  # Heun's method without composition
    return Sampled(prompts, trajectory, denoise.passes / passes)


def finish(steps: Generator[Any, None, Sampled]) -> Sampled:
    """What a generator returns, without what it yields."""
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            return stop.value


class SampleCache:
    """What was sampled last, as much as fits."""

    def __init__(self, limit: int = _CACHE_BYTES):
        self.limit = limit
        self.kept: OrderedDict[Hashable, Sampled] = OrderedDict()
        self.lock = threading.Lock()

    def get(self, key: Hashable) -> Sampled | None:
        with self.lock:
            if key in self.kept:
                self.kept.move_to_end(key)
            return self.kept.get(key)

    def put(self, key: Hashable, sampled: Sampled) -> None:
        with self.lock:
            self.kept[key] = sampled
            self.kept.move_to_end(key)
            while len(self.kept) > 1 and sum(sampled.nbytes for sampled in self.kept.values()) > self.limit:
                self.kept.popitem(last=False)
