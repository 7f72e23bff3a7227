"""A local conditional score at one pass per image: output pixels depend on nothing beyond a stated radius.

The network works on tiles of `tile` x `tile` pixels. 3 x 3 convolutions reach one tile further each and are
used only while the radius allows; everything else is pointwise. Conditions enter as factors at the cell where
they lie, so they travel no further than pixels do.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tessera.conditioning.contract import SpatialConditioner
from tessera.errors import UserError
from tessera.models.edm2 import coordinates
from tessera.models.magnitude import Fourier, MPConv, mp_silu, mp_sum, normalize
from tessera.models.precondition import PreconditionedNetwork, constructor_config


class LocalBlock(nn.Module):
    """Residual block of two layers, the first of `kernel` width; noise level and condition enter through a map of factors."""

    def __init__(self, width: int, emb_width: int, kernel: int, balance: float, clip: float):
        super().__init__()
        self.balance, self.clip = balance, clip
        self.res0 = MPConv(width, width, kernel)
        self.emb = MPConv(emb_width, width)
        self.scale = nn.Identity()  # as in an EDM2 block
        self.res1 = MPConv(width, width)
        self.gain = nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor, emb: Tensor) -> Tensor:
        """x (B, width, h, w); emb (B, emb_width, cells, cells)."""
        x = normalize(x, dim=1)  # over the channels of one pixel: as local as the pixel itself
        factors = resized(self.emb(emb, self.gain) + 1, x.shape[-1]).to(x.dtype)
        y = self.res1(mp_silu(self.scale(self.res0(mp_silu(x)) * factors)))
        return mp_sum(x, y, self.balance).clamp(-self.clip, self.clip)


class LocalConv(PreconditionedNetwork):
    """Denoiser D(x; sigma, cond) whose output pixels each depend only on pixels and cells within `reach` pixels.

    `reach` is at most `radius` cells. A condition belongs to its whole cell. `coords` appends the
    coordinates of each pixel, which say nothing about other pixels.
    """

    exactly_local = True  # what lies beyond a neighborhood changes not one bit of the output
    coords: Tensor | None

    def __init__(
        self,
        size: int,
        conditioner: SpatialConditioner,
        radius: int = 2,
        width: int = 192,
        depth: int = 6,
        tile: int = 2,
        coords: bool = True,
        channels: int = 3,
        emb_width: int | None = None,
        balance: float = 0.3,
        clip: float = 256,
        sigma_data: float = 0.5,
        logvar_width: int = 128,
    ):
        emb_width = emb_width or width
        config = constructor_config(locals())
        super().__init__()
        self.config = config
        cells = conditioner.cells
        if tile < 1 or size % tile or size % cells or (size // tile) % cells:
            raise UserError(
                f"Tiles of {tile} pixels and {cells} cells do not divide an image of {size} pixels together."
            )
        self.size, self.channels, self.sigma_data = size, channels, sigma_data
        self.conditioner, self.cond_dim, self.tile = conditioner, conditioner.dim, tile
        allowed = radius * (size // conditioner.cells)
        wide = wide_layers(allowed, tile, depth)
        if allowed < tile - 1:
            raise UserError(f"A tile of {tile} pixels alone reaches beyond {allowed} pixels; use smaller tiles.")
        self.reach = tile - 1 + tile * sum(wide)
        inputs = (channels + (2 if coords else 0)) * tile**2 + conditioner.map_channels + 1
        self.register_buffer("coords", coordinates(size) if coords else None, persistent=False)
        self.fourier = Fourier(emb_width)
        self.noise = MPConv(emb_width, emb_width)
        self.cond = MPConv(conditioner.map_channels + 1, emb_width)
        self.stem = MPConv(inputs, width)
        self.blocks = nn.ModuleList(LocalBlock(width, emb_width, 3 if far else 1, balance, clip) for far in wide)
        self.out = MPConv(width, channels * tile**2)
        self.out_gain = nn.Parameter(torch.zeros(()))
        self.logvar_fourier = Fourier(logvar_width)
        self.logvar_linear = MPConv(logvar_width, 1)

    # -- inside -----------------------------------------------------------------------------------------

    def raw(self, x: Tensor, noise: Tensor, cond: Tensor) -> Tensor:
        maps = self.conditioner.as_map(cond)  # (B, map_channels, cells, cells)
        maps = torch.cat([maps, torch.ones_like(maps[:, :1])], dim=1)
        emb = self.embed(noise, maps)
        x = torch.cat([self.tiles(x), resized(maps, self.size // self.tile)], dim=1)
        x = self.stem(self.activations(x))
        for block in self.blocks:
            x = block(x, emb)
        return F.pixel_shuffle(self.out(x, self.out_gain).to(self.out_gain.dtype), self.tile)

    def embed(self, noise: Tensor, maps: Tensor) -> Tensor:
        """Noise level and each cell's own conditions, (B, emb_width, cells, cells)."""
        everywhere = self.noise(self.fourier(noise))[:, :, None, None]
        return mp_silu(mp_sum(everywhere, self.cond(maps * 2), 0.5))

    def tiles(self, x: Tensor) -> Tensor:
        """Pixels, and coordinates if there are any, stacked tile by tile into channels."""
        if self.coords is not None:
            x = torch.cat([x, self.coords.to(x).expand(len(x), -1, -1, -1)], dim=1)
        return F.pixel_unshuffle(x, self.tile)


def wide_layers(allowed: int, tile: int, depth: int) -> list[bool]:
    """Which blocks may use neighboring tiles: as many as `allowed` pixels permit, spread evenly."""
    number = min(depth, max(0, (allowed - (tile - 1)) // tile))
    return [(turn + 1) * number // depth > turn * number // depth for turn in range(depth)]


def resized(x: Tensor, side: int) -> Tensor:
    """Every cell's values for all tiles inside it."""
    return F.interpolate(x, size=(side, side), mode="nearest") if x.shape[-1] != side else x
