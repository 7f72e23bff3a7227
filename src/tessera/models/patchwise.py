"""Denoisers around a smaller EDM2: `Tiled`, on coarser pixels, and `Patchwise`, a local conditional score by construction.

Patchwise denoises every cell of a grid from its own patch alone. The patch around a cell, `radius` cells to each side,
goes through one EDM2 that takes the conditions inside the patch and the position of the cell; only the center cell of
the result is kept (appendix E.3). The paper's definition has a neighborhood of pixels and one of conditions (N and L);
`cond_radius` makes the second the smaller one.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tessera.conditioning.cells import cut_windows, every_cell
from tessera.conditioning.contract import SpatialConditioner
from tessera.errors import UserError
from tessera.models.contract import Views, check_input
from tessera.models.edm2 import EDM2
from tessera.models.precondition import Precision, constructor_config, per_image
from tessera.scenes.random import uniform

_PIXELS_AT_ONCE = {"cpu": 1 << 15, "cuda": 1 << 22, "mps": 1 << 20}  # patch pixels in one pass: cache, memory


class _Wrapper(nn.Module):
    """A denoiser that passes a rearranged image to `network` and rearranges the result."""

    network: Any
    sigma_data: float

    def logvar(self, sigma: Tensor | float) -> Tensor:
        return self.network.logvar(sigma)

    @property
    def precision(self) -> Precision:
        return self.network.precision

    @precision.setter
    def precision(self, name: Precision) -> None:
        self.network.precision = name


class Tiled(_Wrapper):
    """EDM2 on an image of size / tile: every `tile` x `tile` pixels become one, with as many more channels.

    Cheaper, a little coarser. `attention` lists resolutions of the whole image.
    """

    def __init__(
        self,
        size: int,
        cond_dim: int = 0,
        tile: int = 2,
        attention: Sequence[int] = (16, 8),
        channels: int = 3,
        **network: Any,
    ):
        config = constructor_config(locals())
        super().__init__()
        self.config = config
        if tile < 1 or size % tile:
            raise UserError(f"Tiles of {tile} pixels do not divide an image of {size} pixels.")
        self.size, self.tile, self.cond_dim, self.channels = size, tile, cond_dim, channels
        attended = [side // tile for side in attention]
        self.network = EDM2(size // tile, cond_dim=cond_dim, channels=channels * tile**2, attention=attended, **network)
        self.sigma_data = self.network.sigma_data

    def forward(self, x: Tensor, sigma: Tensor | float, cond: Tensor | None = None) -> Tensor:
        """The clean image (B, C, H, W) for noisy x, noise level () or (B,) and condition (B, cond_dim)."""
        cond = check_input(x, cond, self.channels, self.size, self.cond_dim)
        return F.pixel_shuffle(self.network(F.pixel_unshuffle(x, self.tile), sigma, cond), self.tile)


class Patchwise(_Wrapper):
    """Denoiser D(x; sigma, cond) with exactly zero influence from beyond the patch.

    Beyond the image a patch is zero, in training and in sampling alike. The network recognizes the border
    by the position of its cell, and by pixels without noise. Radius cells - 1 covers the whole image from
    every cell; at half the cells the patch is as large as the image. `tile` x `tile` pixels count as one.
    """

    exactly_local = True  # what lies beyond a neighborhood changes not one bit of the output

    def __init__(
        self,
        size: int,
        conditioner: SpatialConditioner,
        radius: int = 2,
        cond_radius: int | None = None,
        tile: int = 1,
        mult: Sequence[int] = (1, 2, 3, 4),
        attention: Sequence[int] = (16, 8),
        pixels_at_once: int | None = None,
        **network: Any,
    ):
        config = constructor_config(locals())
        super().__init__()
        if size % conditioner.cells:
            raise UserError(f"{conditioner.cells} cells do not divide an image of {size} pixels.")
        if not 0 <= radius < conditioner.cells:
            raise UserError(f"A patch reaches from 0 to {conditioner.cells - 1} cells to each side, not {radius}.")
        self.size, self.conditioner, self.radius, self.cells = size, conditioner, radius, conditioner.cells
        self.cond_radius = radius if cond_radius is None else min(cond_radius, radius)
        if self.cond_radius < 0:
            raise UserError(
                f"A patch takes the conditions of its own cell at least, that is a cond_radius of 0, not {cond_radius}."
            )
        self.cell = size // conditioner.cells  # pixels
        self.patch = (2 * radius + 1) * self.cell
        # Padded with zeros until the U-Net can halve it often enough.
        step = tile << len(mult) - 1
        self.side = math.ceil(self.patch / step) * step
        self.pixels_at_once = pixels_at_once
        self.cond_dim, self.channels = conditioner.dim, network.get("channels", 3)
        attended = [self.side >> level for level in range(len(mult)) if size >> level in attention]
        network |= {"cond_dim": conditioner.patch_dim(self.cond_radius) + 2, "mult": mult, "attention": attended}
        self.network = Tiled(self.side, tile=tile, **network) if tile > 1 else EDM2(self.side, **network)
        self.sigma_data = self.network.sigma_data
        self.config = config | {"cond_radius": self.cond_radius}

    def forward(self, x: Tensor, sigma: Tensor | float, cond: Tensor | None = None) -> Tensor:
        """The clean image (B, C, H, W) for noisy x, noise level () or (B,) and condition (B, cond_dim)."""
        cond = check_input(x, cond, self.channels, self.size, self.cond_dim)
        return self.denoised(x, sigma, self.conditioned_everywhere(cond))

    def clean_pixels(self, x: Tensor, sigma: Tensor, cond: Tensor | None, at: Tensor) -> Tensor:
        """The clean value (B, C) of one pixel per image, at (B, 2), from the one patch it needs."""
        cond = check_input(x, cond, self.channels, self.size, self.cond_dim)
        cell = at // self.cell
        clean = self.center(self.network(self.cut_out(x, cell), sigma, self.patch_cond(cond, cell)))
        row, col = (at - cell * self.cell).unbind(1)
        return clean[torch.arange(len(x), device=x.device), :, row, col]

    def denoised(self, x: Tensor, sigma: Tensor | float, patch_cond: Tensor) -> Tensor:
        """The clean image when the patch of every cell has its own row of `patch_cond` (B * cells^2, patch_dim + 2)."""
        patches = self.unfold(x)  # (B * cells^2, C, side, side)
        sigmas = per_image(sigma, x).repeat_interleave(self.cells**2)
        budget = self.pixels_at_once or _PIXELS_AT_ONCE.get(x.device.type, _PIXELS_AT_ONCE["cpu"])
        pieces = max(1, math.ceil(len(patches) * self.side**2 / budget))  # of like size, so that memory is reused
        columns = (column.chunk(pieces) for column in (patches, sigmas, patch_cond))
        return self.fold(torch.cat([self.center(self.network(*piece)) for piece in zip(*columns)]))

    # -- between image and patches --------------------------------------------------------------------

    def unfold(self, x: Tensor) -> Tensor:
        """Patches of all cells, row by row, zero beyond the image: (B * cells^2, C, side, side)."""
        patches = self.padded(x).unfold(2, self.side, self.cell).unfold(3, self.side, self.cell)
        patches = patches.permute(0, 2, 3, 1, 4, 5).flatten(0, 2)
        return self.cut(patches)

    def padded(self, x: Tensor) -> Tensor:
        before, extra = self.radius * self.cell, self.side - self.patch
        return F.pad(x, (before, before + extra, before, before + extra))

    def cut(self, patches: Tensor) -> Tensor:
        """Blank what was only added to make the side divisible: it is outside the patch."""
        extra = self.side - self.patch
        return F.pad(patches[..., : self.patch, : self.patch], (0, extra, 0, extra)) if extra else patches

    def center(self, patches: Tensor) -> Tensor:
        keep = slice(self.radius * self.cell, (self.radius + 1) * self.cell)
        return patches[..., keep, keep]

    def fold(self, centers: Tensor) -> Tensor:
        """Center cells (B * cells^2, C, cell, cell) back into images (B, C, H, W)."""
        grid = centers.unflatten(0, (-1, self.cells, self.cells))  # (B, rows, columns, C, cell, cell)
        return grid.permute(0, 3, 1, 4, 2, 5).reshape(-1, centers.shape[1], self.size, self.size)

    # -- conditions of patches --------------------------------------------------------------------------

    def patch_cond(self, cond: Tensor, cell: Tensor) -> Tensor:
        """Conditions within `cond_radius` of `cell` (B, 2), then the cell's row and column in [-1, 1]."""
        position = (2 * cell + 1) / self.cells - 1
        return torch.cat([self.conditioner.in_patch(cond, cell, self.cond_radius), position.to(cond)], dim=1)

    def conditioned_everywhere(self, cond: Tensor) -> Tensor:
        cell = every_cell(self.cells, cond.device).repeat(len(cond), 1)
        return self.patch_cond(cond.repeat_interleave(self.cells**2, 0), cell)

    # -- training ---------------------------------------------------------------------------------------

    def training_patches(
        self, images: Tensor, cond: Tensor, index: Tensor, seed: int = 0, patches: int = 2, loss_radius: int = 16
    ) -> Views:
        """So many `patches` of each image, alternately with a condition within `cond_radius` and without (else any).

        The loss is restricted to `loss_radius` cells around the center. The paper's is that of the whole patch, though
        sampling keeps the center alone.
        """
        active = self.conditioner.active(cond, self.cond_radius).flatten(1)  # (B, cells^2)
        draws = uniform(seed, index, "patch", patches).to(images.device)
        cells = [pick(~active if number % 2 else active, draws[:, number]) for number in range(patches)]
        weight = self.loss_weight(min(loss_radius, self.radius), images)
        views = [self.view(images, cond, cell, patches * index + number, weight) for number, cell in enumerate(cells)]
        columns = zip(*(vars(view).values() for view in views), strict=True)
        return Views(*map(torch.cat, columns))

    def view(self, images: Tensor, cond: Tensor, number: Tensor, index: Tensor, weight: Tensor) -> Views:
        """The patch around cell `number` (B,) of each image, whose loss has (side, side) weights."""
        cell = torch.stack([number // self.cells, number % self.cells], dim=1)
        ones = torch.ones_like(images[:, :1])
        # Cut alike: the ones become zeros beyond the border.
        both = self.cut_out(torch.cat([images, ones], dim=1), cell)
        inside = both[:, -1:]
        return Views(both[:, :-1], self.patch_cond(cond, cell), index, inside, inside * weight)

    def loss_weight(self, radius: int, like: Tensor) -> Tensor:
        """(side, side): nonzero within `radius` cells of the center, with the sum that the whole patch would have."""
        first, last = (self.radius - radius) * self.cell, (self.radius + radius + 1) * self.cell
        weight = like.new_zeros(self.side, self.side)
        weight[first:last, first:last] = (self.patch / (last - first)) ** 2
        return weight

    def cut_out(self, images: Tensor, cell: Tensor) -> Tensor:
        """Patch (B, C, side, side) around one cell (B, 2) of each image."""
        patches = cut_windows(self.padded(images).permute(0, 2, 3, 1), cell * self.cell, self.side)
        return self.cut(patches.permute(0, 3, 1, 2))


def pick(allowed: Tensor, draws: Tensor) -> Tensor:
    """One allowed entry of each row (B, N), all equally likely; any, where none is allowed. (B,) long."""
    allowed = allowed | ~allowed.any(1, keepdim=True)
    rank = (draws * allowed.sum(1)).long()
    return (allowed.cumsum(1) <= rank[:, None]).sum(1)
