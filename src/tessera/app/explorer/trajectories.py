"""Images on their way out of the noise, one step at a time, and a memory of the ways already gone."""

import threading
from collections import OrderedDict
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from tessera.app.explorer.models import SessionModel
from tessera.app.explorer.requests import Drawing
from tessera.sampling.compose import Composed
from tessera.sampling.prompts import Prompt
from tessera.sampling.schedule import noise_levels, seeded_noise
from tessera.sampling.solvers import Denoise, SamplingStep, heun, level

MEMORY = 256 * 2**20  # bytes of ways that are kept


@dataclass(frozen=True)
class SampledTrajectory:
    """What the network saw and answered at every level, on the CPU; S steps, N images."""

    prompts: list[Prompt]
    sigmas: list[float]  # S
    x: Tensor  # (S, N, C, H, W) noisy
    clean: Tensor  # (S, N, C, H, W)
    images: Tensor  # (N, C, H, W)
    cost: float = 1.0  # passes through the network for each that a plain sampler makes

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in (self.x, self.clean, self.images))


class TrajectoryStepper:
    """A way being gone. Iterating makes one step each; afterwards `way` is there."""

    def __init__(self, entry: SessionModel, request: Drawing):
        self.entry, self.request = entry, request
        self.prompts = entry.prompts(request.locations, request.colors, request.each, request.seed)
        self.denoise = entry.denoiser(request.how, request.radius)
        self.way: SampledTrajectory | None = None

    def __iter__(self) -> Iterator[SamplingStep]:
        """The same numbers as `tessera sample` makes: Heun's method, one pair of levels at a time.

        A step is shown as soon as the network's first answer is there, before the slope is corrected.
        """
        model, device = self.entry.model, self.entry.device
        sigmas = noise_levels(self.request.steps)
        cond = torch.cat([model.conditioner.at(prompt.wanted) for prompt in self.prompts]).to(device)
        denoise = partial(self.denoise, cond=cond)
        seeds = [prompt.seed for prompt in self.prompts]
        x = seeded_noise(seeds, (3, model.size, model.size), device) * sigmas[0].item()
        seen: list[SamplingStep] = []
        for number, sigma in enumerate(sigmas[:-1].tolist()):
            with torch.no_grad():
                clean = denoise(x, level(sigma, x))
            seen.append(SamplingStep(x.cpu(), clean.cpu(), sigma, number))
            yield seen[-1]
            x = heun(with_known_first_step(clean, denoise), x, sigmas[number : number + 2])
        xs, cleans = (torch.stack([getattr(step, name) for step in seen]) for name in ("x", "clean"))
        self.way = SampledTrajectory(
            self.prompts, [step.sigma for step in seen], xs, cleans, x.cpu(), self.cost()
        )

    def cost(self) -> float:
        """Heun asks twice in every step but the last; a composed denoiser counts how often it asks in turn."""
        plain = (2 * self.request.steps - 1) * len(self.prompts)
        return self.denoise.passes / plain if isinstance(self.denoise, Composed) else 1.0


def with_known_first_step(clean: Tensor, denoise: Denoise) -> Denoise:
    """`denoise`, whose answer to the first question is known."""
    known = [clean]
    return lambda x, sigma: known.pop() if known else denoise(x, sigma)


class Memory:
    """The ways gone last, as many as fit."""

    def __init__(self, limit: int = MEMORY):
        self.limit = limit
        self.ways: OrderedDict[Hashable, SampledTrajectory] = OrderedDict()
        self.lock = threading.Lock()

    def get(self, key: Hashable) -> SampledTrajectory | None:
        with self.lock:
            if key in self.ways:
                self.ways.move_to_end(key)
            return self.ways.get(key)

    def put(self, key: Hashable, way: SampledTrajectory) -> None:
        with self.lock:
            self.ways[key] = way
            self.ways.move_to_end(key)
            while len(self.ways) > 1 and sum(kept.nbytes for kept in self.ways.values()) > self.limit:
                self.ways.popitem(last=False)
