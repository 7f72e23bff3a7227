"""A local conditional score by construction: every cell is denoised by looking at its own patch alone.

The image is a grid of cells. The patch around a cell, `radius` cells to each side, goes through one EDM2
that takes the conditions inside the patch and the position of the cell; only the center cell of the answer is
kept (appendix E.3). The paper's definition has a neighborhood of pixels and one of conditions (N and L);
`cond_radius` makes the second the smaller one.
"""

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tessera.conditioning.cells import every_cell
from tessera.conditioning.contract import SpatialConditioner
from tessera.errors import UserError
from tessera.models.edm2 import EDM2, Precision
from tessera.models.precondition import per_image
from tessera.models.tiled import Tiled
from tessera.models.views import Views, check_input
from tessera.scenes.random import uniform

_PIXELS_AT_ONCE = {"cpu": 1 << 15, "cuda": 1 << 22, "mps": 1 << 20}  # patch pixels in one pass: cache, memory


class Patchwise(nn.Module):
    """Denoiser D(x; sigma, cond) with exactly zero influence from beyond the patch.

    Beyond the image a patch is zero, in training and in sampling alike. The network recognizes the border
    by the position of its cell, and by pixels without noise. Radius cells - 1 covers the whole image from
    every cell; at half the cells the patch is as large as the image. `tile` x `tile` pixels count as one.
    """

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
        super().__init__()
        if size % conditioner.cells:
            raise UserError(f"{conditioner.cells} cells do not divide an image of {size} pixels.")
        if not 0 <= radius < conditioner.cells:
            raise UserError(
                f"A patch reaches from 0 to {conditioner.cells - 1} cells to each side, not {radius}."
            )
        self.size, self.conditioner, self.radius, self.cells = size, conditioner, radius, conditioner.cells
        self.cond_radius = radius if cond_radius is None else min(cond_radius, radius)
        if self.cond_radius < 0:
            raise UserError(
                f"A patch takes the conditions of its own cell at least, that is a cond_radius of 0, not {cond_radius}."
            )
        self.cell = size // conditioner.cells  # pixels
        self.patch = (2 * radius + 1) * self.cell
        # Padded with zeros until the U-Net can halve it often enough.
        self.side = _rounded_up(self.patch, tile << len(mult) - 1)
        self.pixels_at_once = pixels_at_once
        self.cond_dim, self.channels = conditioner.dim, network.get("channels", 3)
        attended = [self.side >> level for level in range(len(mult)) if size >> level in attention]
        options = {
            "cond_dim": conditioner.patch_dim(self.cond_radius) + 2,
            "mult": mult,
            "attention": attended,
            **network,
        }
        self.network = Tiled(self.side, tile=tile, **options) if tile > 1 else EDM2(self.side, **options)
        self.sigma_data = self.network.sigma_data
        self.config = {
            "size": size,
            "conditioner": conditioner.config,
            "radius": radius,
            "tile": tile,
            "mult": list(mult),
        }
        self.config |= {
            "cond_radius": self.cond_radius,
            "attention": list(attention),
            "pixels_at_once": pixels_at_once,
            **network,
        }

    def forward(self, x: Tensor, sigma: Tensor | float, cond: Tensor | None = None) -> Tensor:
        """The clean image (B, C, H, W) for noisy x, noise level () or (B,) and condition (B, cond_dim)."""
        cond = check_input(x, cond, self.channels, self.size, self.cond_dim)
        return self.denoised(x, sigma, self.conditioned_everywhere(cond))

    def denoised(self, x: Tensor, sigma: Tensor | float, patch_cond: Tensor) -> Tensor:
        """The clean image when the patch of every cell has its own row of `patch_cond` (B * cells^2, patch_dim + 2)."""
        patches = self.unfold(x)  # (B * cells^2, C, side, side)
        sigmas = per_image(sigma, x).repeat_interleave(self.cells**2)
        budget = self.pixels_at_once or _PIXELS_AT_ONCE.get(x.device.type, _PIXELS_AT_ONCE["cpu"])
        step = max(1, budget // self.side**2)
        centers = [
            self.center(self.network(*piece))
            for piece in zip(patches.split(step), sigmas.split(step), patch_cond.split(step))
        ]
        return self.fold(torch.cat(centers))

    def logvar(self, sigma: Tensor | float) -> Tensor:
        return self.network.logvar(sigma)

    @property
    def precision(self) -> Precision:
        return self.network.precision

    @precision.setter
    def precision(self, name: Precision) -> None:
        self.network.precision = name

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
        self,
        images: Tensor,
        cond: Tensor,
        index: Tensor,
        seed: int = 0,
        patches: int = 2,
        loss_radius: int = 16,
    ) -> Views:
        """So many patches per image, alternating with a condition within cond_radius and without one (any, where there is none).

        The loss counts `loss_radius` cells around the center: all of the patch in the paper, though sampling
        keeps the center alone.
        """
        active = self.conditioner.active(cond, self.cond_radius).flatten(1)  # (B, cells^2)
        draws = uniform(seed, index, "patch", patches).to(images.device)
        cells = [pick(~active if number % 2 else active, draws[:, number]) for number in range(patches)]
        near = self.around_center(min(loss_radius, self.radius), images)
        views = [
            self.view(images, cond, number, patches * index + turn, near) for turn, number in enumerate(cells)
        ]
        return Views(*(torch.cat([getattr(view, f.name) for view in views]) for f in fields(Views)))

    def view(self, images: Tensor, cond: Tensor, number: Tensor, index: Tensor, counted: Tensor) -> Views:
        """The patch around cell `number` (B,) of each image, of which (side, side) pixels are `counted`."""
        cell = torch.stack([number // self.cells, number % self.cells], dim=1)
        here = torch.ones_like(images[:, :1])
        both = self.cut_out(torch.cat([images, here], dim=1), cell)
        return Views(both[:, :-1], self.patch_cond(cond, cell), index, both[:, -1:], both[:, -1:] * counted)

    def around_center(self, radius: int, like: Tensor) -> Tensor:
        """(side, side): so many cells around the center; the fewer pixels, the more each of them counts."""
        first, last = (self.radius - radius) * self.cell, (self.radius + radius + 1) * self.cell
        near = like.new_zeros(self.side, self.side)
        near[first:last, first:last] = (self.patch / (last - first)) ** 2
        return near

    def cut_out(self, images: Tensor, cell: Tensor) -> Tensor:
        """Patch (B, C, side, side) around one cell (B, 2) of each image."""
        rows, columns = (
            cell[:, axis, None] * self.cell + torch.arange(self.side, device=cell.device) for axis in (0, 1)
        )
        batch = torch.arange(len(images), device=images.device)[:, None, None]
        patches = self.padded(images).permute(0, 2, 3, 1)[batch, rows[:, :, None], columns[:, None, :]]
        return self.cut(patches.permute(0, 3, 1, 2))


def pick(allowed: Tensor, draws: Tensor) -> Tensor:
    """One allowed entry of each row (B, N), all equally likely; any, where none is allowed. (B,) long."""
    allowed = allowed | ~allowed.any(1, keepdim=True)
    rank = (draws * allowed.sum(1)).long()
    return (allowed.cumsum(1) <= rank[:, None]).sum(1)


def _rounded_up(number: int, step: int) -> int:
    return -(-number // step) * step
