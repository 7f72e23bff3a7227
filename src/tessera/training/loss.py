"""The training loss: how wrong the denoiser is, weighted by how wrong it expects to be (EDM2 Eq. 21)."""

from torch import Tensor

from tessera.models.contract import Denoiser
from tessera.models.precondition import like_image, loss_weight


def training_sigmas(normal: Tensor, p_mean: float = -0.8, p_std: float = 1.6) -> Tensor:
    """Noise levels (B,) with normally distributed logarithm, from standard normal draws (B,)."""
    return (normal * p_std + p_mean).exp()


def edm_loss(
    denoiser: Denoiser, images: Tensor, cond: Tensor | None, sigma: Tensor, noise: Tensor, *, sigma_data: float = 0.5
) -> Tensor:
    """Loss of every element, (B, C, H, W), at noise levels (B,) and for unit noise shaped like the images.

    A denoiser without `logvar` is weighted by the noise level alone.
    """
    clean = denoiser(images + like_image(sigma) * noise, sigma, cond)
    error = like_image(loss_weight(sigma, sigma_data)) * (clean - images).square()
    logvar = getattr(denoiser, "logvar", None)
    if logvar is None:
        return error
    expected = like_image(logvar(sigma))
    return error / expected.exp() + expected
