"""How wrong the denoiser is, per pixel and channel, weighed by how wrong it expects to be (EDM2 Eq. 21)."""

from typing import NamedTuple

from torch import Tensor

from tessera.models.contract import Denoiser
from tessera.models.precondition import like_image, loss_weight


class NoiseLevels(NamedTuple):
    """ln(sigma) is normal with this mean and standard deviation while training."""

    mean: float = -0.8
    std: float = 1.6

    def __call__(self, normal: Tensor) -> Tensor:
        """Standard normal draws (B,) as noise levels (B,)."""
        return (normal * self.std + self.mean).exp()


def edm_loss(
    denoiser: Denoiser,
    images: Tensor,
    cond: Tensor | None,
    normal: Tensor,
    noise: Tensor,
    *,
    levels: NoiseLevels = NoiseLevels(),  # noqa: B008  (an immutable tuple)
    sigma_data: float = 0.5,
) -> Tensor:
    """Loss of every element, (B, C, H, W). The draws: `normal` (B,) sets the levels, `noise` is unit noise.

    A denoiser without `logvar` is weighed by the noise level alone.
    """
    return loss_at(denoiser, images, cond, levels(normal.reshape(-1)), noise, sigma_data=sigma_data)


def loss_at(
    denoiser: Denoiser,
    images: Tensor,
    cond: Tensor | None,
    sigma: Tensor,
    noise: Tensor,
    *,
    sigma_data: float = 0.5,
) -> Tensor:
    """The same at given noise levels (B,)."""
    clean = denoiser(images + like_image(sigma) * noise, sigma, cond)
    error = like_image(loss_weight(sigma, sigma_data)) * (clean - images).square()
    logvar = getattr(denoiser, "logvar", None)
    if logvar is None:
        return error
    expected = like_image(logvar(sigma))
    return error / expected.exp() + expected


def objective(loss: Tensor, batch: int | None = None) -> Tensor:
    """The number to differentiate: summed over an image, averaged over the `batch` of the whole step.

    Under gradient accumulation `batch` is the number of images of all rounds together.
    """
    return loss.sum() / (batch or loss.shape[0])
