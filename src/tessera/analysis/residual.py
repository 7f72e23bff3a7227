"""The definition put to the test: how much a pixel changes when all that should not matter is exchanged.

A local conditional score at pixel i depends only on the pixels N_i and the conditions L_i near it. So the image
beyond N_i is replaced, the conditions beyond L_i are removed, and the output at i is compared with the true one.
Pixels of one cell share their neighborhood: `radius` cells to each side, as a patch network's.
"""

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from tessera.analysis.pixel_influence import bare, check_finite, slices
from tessera.conditioning import Conditioner, SpatialConditioner
from tessera.conditioning.cells import every_cell, window
from tessera.devices import double_home, in_double
from tessera.errors import UserError
from tessera.models.contract import Denoiser
from tessera.models.precondition import like_image
from tessera.rng import generator
from tessera.sampling.schedule import seeded_noise
from tessera.sampling.trajectory import Trajectory
from tessera.stats import mean_interval

Fill = Literal["noise", "other"]
_Exchanged = Literal["pixels", "conditions", "both"]
_EXCHANGED: tuple[_Exchanged, ...] = ("pixels", "conditions", "both")
_CELLS = 16  # where the conditioner has no grid of its own
_SIGMA_DATA = 0.5


@dataclass(frozen=True)
class Residuals:
    """Mean square changes per image and level, (B, S); `ceiling` is the change when everything is exchanged."""

    sigmas: list[float]
    squares: dict[_Exchanged, np.ndarray]
    ceiling: np.ndarray
    radius: int
    cells: int
    fill: Fill

    def record(self, seed: int = 0) -> list[dict[str, Any]]:
        """Per level: root mean square changes with 95% intervals, and their size relative to the ceiling."""
        rng = generator(seed)
        records = []
        for level, sigma in enumerate(self.sigmas):
            ceiling = float(np.sqrt(self.ceiling[:, level].mean()))
            record: dict[str, Any] = {"sigma": sigma, "ceiling": ceiling}
            for name, squares in self.squares.items():
                rms, low, high = (math.sqrt(value or 0) for value in mean_interval(squares[:, level], rng)[:3])
                relative = rms / ceiling if ceiling > 0 else None
                record[name] = {"rms": rms, "low": low, "high": high, "relative": relative}
            records.append(record)
        return records


@torch.no_grad()
def definition_residual(
    denoise: Denoiser,
    trajectory: Trajectory,
    cond: Tensor | None,
    conditioner: Conditioner | None,
    *,
    radius: int = 2,
    fill: Fill = "noise",
    seed: int = 0,
    rows: int = 64,
) -> Residuals:
    """Compare D(x | c) at every pixel with D of the same x inside N_i and c inside L_i, for every level.

    `fill` says what replaces the image beyond N_i: fresh noise as strong as data and noise together, or the
    noisy image next in the batch, which is what a network expects to see at low noise.
    """
    cells = conditioner.cells if isinstance(conditioner, SpatialConditioner) else _CELLS
    levels, images = trajectory.x.shape[:2]
    size = trajectory.x.shape[-1]
    if not 0 <= radius < cells:
        raise UserError(f"A neighborhood reaches from 0 to {cells - 1} cells to each side, not {radius}.")
    if size % cells:
        raise UserError(f"{cells} cells do not divide an image of {size} pixels.")
    given = None if cond is None else cond.repeat(levels, 1)
    work = _Exchange(bare(denoise), trajectory.flat, trajectory.flat_sigmas, given, conditioner, cells, radius, rows)
    filling = replacement(trajectory, fill, seed).flatten(0, 1)
    true = work.denoised(work.x, given)
    blank = work.denoised(filling, None if given is None else torch.zeros_like(given))
    squares = {what: work.changes(true, filling, what) for what in _EXCHANGED}
    check_finite(torch.stack([*squares.values()], dim=1).cpu(), work.sigma.cpu(), "output")

    def table(values: Tensor) -> np.ndarray:
        return in_double(values).cpu().unflatten(0, (levels, images)).T.numpy()

    return Residuals(
        [float(sigma) for sigma in trajectory.sigmas],
        {what: table(values) for what, values in squares.items()},
        table((true - blank).square().flatten(1).mean(1)),
        radius,
        cells,
        fill,
    )


def replacement(trajectory: Trajectory, fill: Fill, seed: int) -> Tensor:
    """What the image beyond a neighborhood becomes, like trajectory.x."""
    levels, images = trajectory.x.shape[:2]
    if fill == "other":
        if images < 2:
            raise UserError("To fill with another image there must be at least two.")
        return trajectory.x.roll(1, dims=1)
    numbers = [(seed << 32) + (1 << 31) + n for n in range(levels * images)]
    noise = seeded_noise(numbers, trajectory.x.shape[2:], trajectory.x.device)
    scale = (trajectory.flat_sigmas.square() + _SIGMA_DATA**2).sqrt()
    return (noise * like_image(scale)).view_as(trajectory.x)


@dataclass(frozen=True)
class _Exchange:
    """Images of all levels, and the network that denoises every cell of them."""

    denoise: Denoiser
    x: Tensor  # (N, C, H, W)
    sigma: Tensor  # (N,)
    cond: Tensor | None
    conditioner: Conditioner | None
    cells: int
    radius: int
    rows: int

    def denoised(self, x: Tensor, cond: Tensor | None) -> Tensor:
        parts = []
        for some in slices(len(x), self.rows):
            parts.append(self.denoise(x[some], self.sigma[some], None if cond is None else cond[some]))
        return torch.cat(parts)

    def changes(self, true: Tensor, filling: Tensor, what: _Exchanged) -> Tensor:
        """Mean square change (N,) over all pixels, each with its own cell's neighborhood."""
        home = double_home(self.x.device)
        total = torch.zeros(len(self.x), dtype=torch.float64, device=home)
        number = torch.arange(len(self.x) * self.cells**2, device=self.x.device)
        for some in number.split(self.rows):
            image, cell = some // self.cells**2, every_cell(self.cells, some.device)[some % self.cells**2]
            x, cond = self.x[image], None if self.cond is None else self.cond[image]
            if what != "conditions":
                x = torch.where(self.around(cell, self.radius), x, filling[image])
            # Conditions that lie nowhere are near everything.
            if cond is not None and what != "pixels" and isinstance(self.conditioner, SpatialConditioner):
                cond = self.conditioner.near(cond, cell, self.radius)
            clean = self.denoise(x, self.sigma[image], cond)
            change = (clean - true[image]).square() * self.around(cell, 0)
            total.index_add_(0, image.to(home), in_double(change.flatten(1).sum(1)))
        return total / self.x[0].numel()

    def around(self, cell: Tensor, radius: int) -> Tensor:
        """Which pixels (n, 1, H, W) lie in cells at most `radius` from each cell (n,)."""
        side = self.x.shape[-1] // self.cells
        return window(cell, radius, self.cells).repeat_interleave(side, 1).repeat_interleave(side, 2)[:, None]
