"""Noise levels of a sampler, and noise that belongs to a seed."""

from collections.abc import Sequence

import torch
from torch import Tensor

from tessera.errors import UserError
from tessera.sampling.solvers import DrawNoise
from tessera.scenes.random import normal, seeded_generator

_INT64 = 2**63 - 1


def noise_levels(steps: int = 32, sigma_min: float = 0.002, sigma_max: float = 80.0, rho: float = 7.0) -> Tensor:
    """steps + 1 levels, falling from sigma_max to sigma_min and then 0 (Karras et al. 2022, Eq. 5)."""
    if steps < 1:
        raise UserError(f"Sampling needs at least one step, not {steps}.")
    if not 0 < sigma_min <= sigma_max:
        raise UserError(f"Noise levels need 0 < sigma_min <= sigma_max, not {sigma_min} and {sigma_max}.")
    ramp = torch.arange(steps, dtype=torch.float64) / max(steps - 1, 1)  # one step starts at sigma_max
    high, low = sigma_max ** (1 / rho), sigma_min ** (1 / rho)
    levels = (high + ramp * (low - high)) ** rho
    return torch.cat([levels, levels.new_zeros(1)]).float()


def seeded_noise(seeds: Sequence[int] | Tensor, shape: Sequence[int], device=None) -> Tensor:
    """Unit noise (len(seeds), *shape), a row per seed: the same on every device and in every batch."""
    rows = [torch.randn(*shape, generator=seeded_generator(int(seed))) for seed in seeds]
    return torch.stack(rows).to(device) if rows else torch.empty(0, *shape, device=device)


def churn_noise(seeds: Sequence[int]) -> DrawNoise:
    """Noise of stochastic sampling, a row per seed: the same on every device and in every batch."""
    # Any whole number as one that a tensor can hold; with the sign folded in, -1 and 2^63 - 1 differ from 1.
    index = torch.tensor([(seed ^ seed >> 63) & _INT64 for seed in map(int, seeds)])

    def draw(step: int, x: Tensor) -> Tensor:
        return normal(0, index.to(x.device), "churn", x[0].numel(), step).reshape(x.shape).to(x)

    return draw
