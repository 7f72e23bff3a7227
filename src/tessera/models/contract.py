"""The contract of a denoiser: `denoise(x, sigma, cond=None) -> clean`, for x = clean + sigma * noise."""

from typing import Any, Protocol, runtime_checkable

from torch import Tensor


@runtime_checkable
class Denoiser(Protocol):
    """x: (B, C, H, W) noisy; sigma: () or (B,) noise level; cond: what the conditioner returned, or None."""

    def __call__(self, x: Tensor, sigma: Tensor, cond: Any = None) -> Tensor:
        """The clean image, like x."""
