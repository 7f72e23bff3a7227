"""Solvers of the probability flow as generators: `for step in heun(denoise, x, sigmas): step.x, step.sigma, step.denoised`."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise

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
) -> Iterator[SamplingStep]:
    """Second order, 2 N - 1 calls of the denoiser: Karras et al. 2022, Algorithm 2, or 1 where `s_churn` is 0.

    x (B, C, H, W) is at level sigmas[0]. A step is yielded as soon as it is denoised, before Heun's correction.
    """
    levels = sigmas.tolist()
    for index, (sigma, sigma_next) in enumerate(pairwise(levels)):
        gamma = _gamma(sigma, len(levels) - 1, s_churn, s_min, s_max)
        x_hat, sigma_hat = _add_noise(x, sigma, gamma, s_noise, noise, index)
        denoised = denoise(x_hat, level(sigma_hat, x))
        yield SamplingStep(x_hat, sigma_hat, denoised, index)
        slope = (x_hat - denoised) / sigma_hat
        if sigma_next > 0:
            euler_x = x_hat + (sigma_next - sigma_hat) * slope
            slope = (slope + (euler_x - denoise(euler_x, level(sigma_next, x))) / sigma_next) / 2
        x = x_hat + (sigma_next - sigma_hat) * slope
    yield SamplingStep(x, levels[-1], x, len(levels) - 1)


@torch.no_grad()
def euler(
    denoise: _Denoise,
    x: Tensor,
    sigmas: Tensor,
    *,
    s_churn: float = 0.0,
    s_min: float = 0.0,
    s_max: float = math.inf,
    s_noise: float = 1.0,
    noise: DrawNoise = _unit_noise,
) -> Iterator[SamplingStep]:
    """First order, N calls of the denoiser (DDIM). x (B, C, H, W) is at level sigmas[0]."""
    levels = sigmas.tolist()
    for index, (sigma, sigma_next) in enumerate(pairwise(levels)):
        gamma = _gamma(sigma, len(levels) - 1, s_churn, s_min, s_max)
        x_hat, sigma_hat = _add_noise(x, sigma, gamma, s_noise, noise, index)
        denoised = denoise(x_hat, level(sigma_hat, x))
        yield SamplingStep(x_hat, sigma_hat, denoised, index)
        x = x_hat + (sigma_next - sigma_hat) * (x_hat - denoised) / sigma_hat
    yield SamplingStep(x, levels[-1], x, len(levels) - 1)


def last_x(steps: Iterator[SamplingStep]) -> Tensor:
    """The samples (B, C, H, W) at the end of a solver's steps."""
    for step in steps:
        x = step.x
    return x


def _gamma(sigma: float, steps: int, s_churn: float, s_min: float, s_max: float) -> float:
    """By how much the noise level is raised: sigma_hat = (1 + gamma) sigma."""
    if s_churn < 0:
        raise UserError(f"S_churn cannot be negative, as {s_churn} is.")
    return min(s_churn / steps, math.sqrt(2) - 1) if s_min <= sigma <= s_max else 0.0


def _add_noise(
    x: Tensor, sigma: float, gamma: float, s_noise: float, noise: DrawNoise, index: int
) -> tuple[Tensor, float]:
    """`x_hat` at level `sigma_hat` (Algorithm 2, lines 5 and 6)."""
    if gamma == 0:
        return x, sigma
    sigma_hat = sigma * (1 + gamma)
    return x + math.sqrt(sigma_hat**2 - sigma**2) * s_noise * noise(index, x), sigma_hat


def level(sigma: float, x: Tensor) -> Tensor:
    """A noise level as the 0-d tensor a denoiser takes; control flow uses the number, so no device sync."""
    return torch.tensor(sigma, dtype=x.dtype, device=x.device)
