"""The contract of a denoiser, `denoise(x, sigma, cond=None) -> clean` for x = clean + sigma * noise, and what it trains on."""

from dataclasses import dataclass
from typing import Any, Protocol, cast, runtime_checkable

import torch
from torch import Tensor, nn

from tessera.config import PatchTrainingConfig, TrainingConfig
from tessera.errors import UserError
from tessera.scenes.batch import Rows


@runtime_checkable
class Denoiser(Protocol):
    """x: (B, C, H, W) noisy; sigma: () or (B,) noise level; cond: what the conditioner returned, or None."""

    def __call__(self, x: Tensor, sigma: Tensor, cond: Any = None) -> Tensor:
        """The clean image, like x."""


@dataclass(frozen=True)
class Views(Rows):
    """V images (or patches) to denoise in training; the random stream of row v is keyed by index[v]."""

    images: Tensor  # (V, C, H, W)
    cond: Tensor  # (V, dim)
    index: Tensor  # (V,)
    inside: Tensor | None = None  # (V, 1, H, W): 1 where there is an image, 0 beyond its border
    loss_weight: Tensor | None = None  # (V, 1, H, W)


@runtime_checkable
class TrainsOnPatches(Protocol):
    """A denoiser that trains a smaller `network` on pieces of the image.

    `network` is no member here: from Python 3.12 on, `isinstance` ignores the submodules of a module.
    """

    def training_patches(
        self, images: Tensor, cond: Tensor, index: Tensor, seed: int, patches: int, loss_radius: int
    ) -> Views: ...


def trained_network(denoiser: nn.Module) -> nn.Module:
    """The module whose loss is computed in training."""
    return cast(nn.Module, denoiser.network) if isinstance(denoiser, TrainsOnPatches) else denoiser


def innermost(denoiser: nn.Module) -> nn.Module:
    """The network within patches and tiles."""
    while isinstance(inner := getattr(denoiser, "network", None), nn.Module):
        denoiser = inner
    return denoiser


def training_views(denoiser: nn.Module, images: Tensor, cond: Tensor, index: Tensor, settings: TrainingConfig) -> Views:
    """The images themselves, or patches of each for a network of patches."""
    if isinstance(denoiser, TrainsOnPatches):
        assert isinstance(settings, PatchTrainingConfig), "`settings_for` gives it to patchwise networks"
        options = settings.seed, settings.patches, settings.loss_radius
        return denoiser.training_patches(images, cond, index, *options)
    return Views(images, cond, index)


def check_input(x: Tensor, cond: Tensor | None, channels: int, size: int, cond_dim: int) -> Tensor:
    """The condition for images x, all zero if there is none; one sentence if either has the wrong shape.

    An unconditional network ignores the condition: so it can be the weaker one of a guided pair.
    """
    if x.ndim != 4 or tuple(x.shape[1:]) != (channels, size, size):
        raise UserError(f"This network takes images (B, {channels}, {size}, {size}), not {tuple(x.shape)}.")
    if cond is None or not cond_dim:
        return torch.zeros(len(x), cond_dim, device=x.device, dtype=x.dtype)
    if tuple(cond.shape) != (len(x), cond_dim):
        raise UserError(f"This network takes conditions {(len(x), cond_dim)}, not {tuple(cond.shape)}.")
    return cond.to(x)
