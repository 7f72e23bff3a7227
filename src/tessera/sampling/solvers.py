"""From noise to image along the probability flow. A solver is a function; bind conditions beforehand."""

import math
from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

Denoise = Callable[[Tensor, Tensor], Tensor]


class SamplingStep(NamedTuple):
    """What `on_step` sees in each step."""

    x: Tensor  # noisy, (B, C, H, W)
    clean: Tensor  # what the denoiser makes of it
    sigma: float
    number: int  # 0 is the noisiest


OnStep = Callable[[SamplingStep], None]


class Stochasticity(NamedTuple):
    """Fresh noise during sampling (Karras et al. 2022, Algorithm 2), spread over all steps.

    `draw(step, x)` gives unit noise like x; own it to keep samples independent of the batch.
    """

    amount: float
    low: float = 0.0
    high: float = math.inf
    scale: float = 1.0
    draw: Callable[[int, Tensor], Tensor] = lambda step, x: torch.randn_like(x)


@torch.no_grad()
def heun(
    denoise: Denoise,
    x: Tensor,
    sigmas: Tensor,
    *,
    on_step: OnStep | None = None,
    s_churn: Stochasticity | None = None,
) -> Tensor:
    """Second order, 2 N - 1 calls (Karras et al. 2022, Algorithm 1). x (B, C, H, W) is at level sigmas[0]."""
    for index, (now, nxt) in enumerate(pairwise(sigmas.tolist())):
        x, now = add_noise(x, now, index, len(sigmas) - 1, s_churn)
        clean = denoise(x, level(now, x))
        if on_step:
            on_step(SamplingStep(x, clean, now, index))
        slope = (x - clean) / now
        if nxt > 0:  # correct the slope at the far end
            ahead = x + (nxt - now) * slope
            slope = (slope + (ahead - denoise(ahead, level(nxt, x))) / nxt) / 2
        x = x + (nxt - now) * slope
    return x


@torch.no_grad()
def euler(
    denoise: Denoise,
    x: Tensor,
    sigmas: Tensor,
    *,
    on_step: OnStep | None = None,
    s_churn: Stochasticity | None = None,
) -> Tensor:
    """First order, N calls (DDIM). x (B, C, H, W) is at level sigmas[0]."""
    for index, (now, nxt) in enumerate(pairwise(sigmas.tolist())):
        x, now = add_noise(x, now, index, len(sigmas) - 1, s_churn)
        clean = denoise(x, level(now, x))
        if on_step:
            on_step(SamplingStep(x, clean, now, index))
        x = x + (nxt - now) * (x - clean) / now
    return x


def add_noise(
    x: Tensor, sigma: float, index: int, steps: int, s_churn: Stochasticity | None
) -> tuple[Tensor, float]:
    """x with fresh noise added, and the higher level it is at now."""
    if s_churn is None or not s_churn.low <= sigma <= s_churn.high:
        return x, sigma
    higher = sigma * (1 + min(s_churn.amount / steps, math.sqrt(2) - 1))
    added = math.sqrt(higher**2 - sigma**2) * s_churn.scale
    return x + added * s_churn.draw(index, x), higher


def level(sigma: float, x: Tensor) -> Tensor:
    """A noise level as the 0-d tensor a denoiser takes; control flow uses the number, so no device sync."""
    return torch.tensor(sigma, dtype=x.dtype, device=x.device)
