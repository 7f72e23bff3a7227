"""The states of a sampler at some of its steps."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tessera.errors import UserError
from tessera.models.contract import Denoiser
from tessera.sampling.sample import sample_batches
from tessera.sampling.schedule import noise_levels
from tessera.sampling.solvers import SamplingStep


@dataclass(frozen=True)
class Trajectory:
    """B images at S falling noise levels."""

    sigmas: Tensor  # (S,)
    x: Tensor  # (S, B, C, H, W) noisy
    denoised: Tensor | None = None  # (S, B, C, H, W), where it was kept
    steps: tuple[int, ...] = ()  # of the sampler, counted from 0; none for images that were noised

    @property
    def flat(self) -> Tensor:
        """All images of all levels, level by level: (S B, C, H, W)."""
        return self.x.flatten(0, 1)

    @property
    def flat_sigmas(self) -> Tensor:
        return self.sigmas.to(self.x).repeat_interleave(self.x.shape[1])

    @property
    def last(self) -> Tensor:
        """The images at the last step kept, (B, C, H, W)."""
        return self.x[-1]

    def at(self, steps: Sequence[int]) -> "Trajectory":
        """The same at fewer steps."""
        rows = [self.steps.index(step) for step in steps]
        denoised = None if self.denoised is None else self.denoised[rows]
        return Trajectory(self.sigmas[rows], self.x[rows], denoised, tuple(steps))


def sample_trajectory(
    denoise: Denoiser,
    cond: Tensor | None,
    size: int,
    seeds: Sequence[int],
    keep: Sequence[int],
    *,
    steps: int = 32,
    **options: Any,
) -> Trajectory:
    """The states of `sample` at the steps `keep`, counted from 0; nothing after the last of them is computed.

    `options` are those of `sample_batches`, such as `batch` or `device`.
    """
    sigmas = noise_levels(steps)[: max(keep) + 1]
    return collect(sample_batches(denoise, cond, size, seeds, sigmas, **options), keep)


def collect(batches: Iterable[Iterable[SamplingStep]], keep: Sequence[int], keep_denoised: bool = False) -> Trajectory:
    """The steps `keep` of solvers that run on one batch each. A solver of N steps yields its samples as step N.

    No solver goes further than the last step kept.
    """
    keep = sorted(set(keep))
    sigmas, x, denoised = [], [], []
    for of_batches in zip(*(_kept(steps, keep) for steps in batches), strict=True):
        sigmas.append(of_batches[0].sigma)
        x.append(torch.cat([step.x for step in of_batches]))
        if keep_denoised:
            denoised.append(torch.cat([step.denoised for step in of_batches]))
    states = torch.stack(x), torch.stack(denoised) if keep_denoised else None
    return Trajectory(torch.tensor(sigmas), *states, tuple(keep))


def _kept(steps: Iterable[SamplingStep], keep: Sequence[int]) -> list[SamplingStep]:
    kept = []
    for step in steps:
        if step.index in keep:
            kept.append(step)
        if step.index == keep[-1]:
            return kept
    raise UserError(f"The sampler ends before step {keep[-1]}.")
