"""Guidance: two denoisers as one."""

from torch import Tensor

from tessera.models.contract import Denoiser


def guided(denoise: Denoiser, weaker: Denoiser, weight: float) -> Denoiser:
    """D_w + weight * (D - D_w) for a weaker denoiser D_w, which is not called where the weight is 1.

    Classifier-free guidance (Ho and Salimans 2022) with an unconditional network, or `unconditional(denoise)` for
    the same one; autoguidance (Karras et al. 2024, Eq. 3) with a less trained one.
    """
    if weight == 1:
        return denoise

    def guided_denoise(x: Tensor, sigma: Tensor, cond: Tensor | None = None) -> Tensor:
        weak = weaker(x, sigma, cond)
        return weak + weight * (denoise(x, sigma, cond) - weak)

    return guided_denoise


def unconditional(denoise: Denoiser) -> Denoiser:
    """The same network without its condition."""

    def unconditional_denoise(x: Tensor, sigma: Tensor, cond: Tensor | None = None) -> Tensor:
        return denoise(x, sigma, None)

    return unconditional_denoise
