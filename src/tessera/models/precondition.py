"""Scalings that let one network serve all noise levels (Karras et al. 2022, table 1)."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor


class _Scalings(NamedTuple):
    """Factors for one noise level per image; clean = skip * x + out * network(inp * x, noise)."""

    skip: Tensor
    out: Tensor
    inp: Tensor
    noise: Tensor


def _scalings(sigma: Tensor, sigma_data: float) -> _Scalings:
    """The factors for noise levels (B,) and images of standard deviation `sigma_data`."""
    total = sigma.square() + sigma_data**2
    return _Scalings(
        skip=sigma_data**2 / total,
        out=sigma * sigma_data * total.rsqrt(),
        inp=total.rsqrt(),
        noise=sigma.log() / 4,
    )


def preconditioned(
    network: Callable[[Tensor, Tensor], Tensor], x: Tensor, sigma: Tensor | float, sigma_data: float
) -> Tensor:
    """The clean image from a network of (unit-size input, c_noise), for x (B, C, H, W) and sigma () or (B,)."""
    c = _scalings(per_image(sigma, x), sigma_data)
    return like_image(c.skip) * x + like_image(c.out) * network(like_image(c.inp) * x, c.noise)


def loss_weight(sigma: Tensor, sigma_data: float) -> Tensor:
    """What makes the expected loss of an untrained network 1 at every noise level."""
    return (sigma.square() + sigma_data**2) / (sigma * sigma_data).square()


def per_image(sigma: Tensor | float, x: Tensor) -> Tensor:
    """One noise level per image of x: () or (B,) or (B, 1, 1, 1) becomes (B,), at least float32."""
    sigma = torch.as_tensor(sigma, device=x.device, dtype=torch.promote_types(x.dtype, torch.float32))
    return sigma.reshape(-1).expand(x.shape[0])


def like_image(values: Tensor) -> Tensor:
    """(B,) as (B, 1, 1, 1)."""
    return values[:, None, None, None]
