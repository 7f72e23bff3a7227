"""Guidance is just another denoiser."""

from torch import Tensor

from tessera.models.contract import Denoiser


def guided(denoise: Denoiser, weaker: Denoiser, weight: float) -> Denoiser:
    """Away from `weaker`: weaker + weight * (denoise - weaker); weight 1 never asks the weaker one.

    An unconditional network gives classifier-free guidance, a less trained one autoguidance. To drop the
    condition of the same network, pass `unconditional(denoise)`.
    """
    if weight == 1:
        return denoise

    def pulled(x: Tensor, sigma: Tensor, cond: Tensor | None = None) -> Tensor:
        floor = weaker(x, sigma, cond)
        return floor + weight * (denoise(x, sigma, cond) - floor)

    return pulled


def unconditional(denoise: Denoiser) -> Denoiser:
    """The same network, told nothing."""

    def unconditional_denoise(x: Tensor, sigma: Tensor, cond: Tensor | None = None) -> Tensor:
        return denoise(x, sigma, None)

    return unconditional_denoise
