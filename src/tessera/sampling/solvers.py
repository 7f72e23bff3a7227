"""Solvers of the probability flow as generators: `for step in heun(denoise, x, sigmas): step.x, step.sigma, step.denoised`."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from tessera.errors import UserError

_Denoise = Callable[[Tensor, Tensor], Tensor]
DrawNoise = Callable[[int, Tensor], Tensor]
"""Unit noise like x (B, C, H, W) for the step of this index."""


@dataclass(frozen=True)
class SamplingStep:
    """The state of a sampler at one noise level.

    A schedule of N + 1 levels has N + 1 of them. At the last level the denoiser is not called: `denoised` is `x`,
    and where that level is 0 both are the samples.
    """

    x: Tensor  # (B, C, H, W) noisy
    sigma: float  # of x; `sigma_hat` where noise was added
    denoised: Tensor  # (B, C, H, W) D(x; sigma)
    index: int  # 0 at the highest level


Solver = Callable[..., Iterator[SamplingStep]]


def _unit_noise(index: int, x: Tensor) -> Tensor:
    return torch.randn_like(x)


@torch.no_grad()
def heun(
    denoise: _Denoise,
    x: Tensor,
    sigmas: Tensor,
    *,
    s_churn: float = 0.0,
    s_min: float = 0.0,
    s_max: float = math.inf,
    s_noise: float = 1.0,
    noise: DrawNoise = _unit_noise,
    correct: bool = True,
) -> Iterator[SamplingStep]:
    """Second order, 2 N - 1 calls of the denoiser: Karras et al. 2022, Algorithm 2, or 1 where `s_churn` is 0.

    x (B, C, H, W) is at level sigmas[0]. A step is yielded as soon as it is denoised, before Heun's correction, which
    `correct=False` leaves out.
    """
    if s_churn < 0:
        raise UserError(f"S_churn cannot be negative, as {s_churn} is.")
    levels = sigmas.tolist()
    for index, (sigma, sigma_next) in enumerate(pairwise(levels)):
        gamma = min(s_churn / (len(levels) - 1), math.sqrt(2) - 1) if s_min <= sigma <= s_max else 0.0
        x_hat, sigma_hat = x, sigma * (1 + gamma)
        if gamma:
            x_hat = x + math.sqrt(sigma_hat**2 - sigma**2) * s_noise * noise(index, x)
        denoised = denoise(x_hat, level(sigma_hat, x))
        yield SamplingStep(x_hat, sigma_hat, denoised, index)
        slope, change = (x_hat - denoised) / sigma_hat, sigma_next - sigma_hat
        if correct and sigma_next > 0:
            euler_x = x_hat + change * slope
            slope = (slope + (euler_x - denoise(euler_x, level(sigma_next, x))) / sigma_next) / 2
        # Euler's steps keep the order of operations that recorded numbers of latent models were made with.
        x = x_hat + (change * slope if correct else change * (x_hat - denoised) / sigma_hat)
    yield SamplingStep(x, levels[-1], x, len(levels) - 1)


def euler(denoise: _Denoise, x: Tensor, sigmas: Tensor, **options: Any) -> Iterator[SamplingStep]:
    """First order, N calls of the denoiser (DDIM); the options are those of `heun`."""
    return heun(denoise, x, sigmas, correct=False, **options)


def last_x(steps: Iterator[SamplingStep]) -> Tensor:
    """The samples (B, C, H, W) at the end of a solver's steps."""
    for step in steps:
        x = step.x
    return x


def level(sigma: float, x: Tensor) -> Tensor:
    """A noise level as the 0-d tensor a denoiser takes; control flow uses the number, so no device sync."""
    return torch.tensor(sigma, dtype=x.dtype, device=x.device)
