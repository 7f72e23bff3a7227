"""EDM2 on tiles: every `tile` x `tile` pixels become one, with as many more channels. Cheaper, a little coarser."""

from collections.abc import Sequence
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from tessera.errors import UserError
from tessera.models.edm2 import EDM2, Precision
from tessera.models.views import check_input


class Tiled(nn.Module):
    """Denoiser D(x; sigma, cond) that works on an image of size / tile. `attention` means the whole image's."""

    def __init__(
        self,
        size: int,
        cond_dim: int = 0,
        tile: int = 2,
        attention: Sequence[int] = (16, 8),
        channels: int = 3,
        **network: Any,
    ):
        super().__init__()
        if tile < 1 or size % tile:
            raise UserError(f"Tiles of {tile} pixels do not divide an image of {size} pixels.")
        self.size, self.tile, self.cond_dim, self.channels = size, tile, cond_dim, channels
        self.network = EDM2(
            size // tile,
            cond_dim=cond_dim,
            channels=channels * tile**2,
            attention=[side // tile for side in attention],
            **network,
        )
        self.sigma_data = self.network.sigma_data
        self.config = {"size": size, "cond_dim": cond_dim, "tile": tile, "attention": list(attention)}
        self.config |= {"channels": channels, **network}

    def forward(self, x: Tensor, sigma: Tensor | float, cond: Tensor | None = None) -> Tensor:
        """The clean image (B, C, H, W) for noisy x, noise level () or (B,) and condition (B, cond_dim)."""
        cond = check_input(x, cond, self.channels, self.size, self.cond_dim)
        return F.pixel_shuffle(self.network(F.pixel_unshuffle(x, self.tile), sigma, cond), self.tile)

    def logvar(self, sigma: Tensor | float) -> Tensor:
        return self.network.logvar(sigma)

    @property
    def precision(self) -> Precision:
        return self.network.precision

    @precision.setter
    def precision(self, name: Precision) -> None:
        self.network.precision = name
