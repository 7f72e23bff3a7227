"""A grid over the image that counts the objects whose center falls into each cell, flattened row by row."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from tessera.conditioning.cells import cell_of, cut_windows, every_cell, one_per_row, window
from tessera.conditioning.contract import Cell, Location, SpatialConditioner
from tessera.conditioning.counts import CountConditioner
from tessera.conditioning.labels import Label, check_location, locations_of
from tessera.errors import UserError
from tessera.scenes.batch import SceneBatch

_MOST_CELLS = 512  # to each side: the first layer of a network has weights for the square of it


@dataclass(frozen=True)
class LocationGrid(CountConditioner, SpatialConditioner):
    """Counts per cell. Its conditions are ordered by cell, row by row, and named by the cell's center."""

    cells: int = 16
    label: Label = "all"
    kind = "grid"
    map_channels = 1

    def __post_init__(self):
        super().__post_init__()
        if self.cells < 1:
            raise UserError(f"A grid needs at least one cell, not {self.cells}.")
        if self.cells > _MOST_CELLS:
            raise UserError(f"A grid has at most {_MOST_CELLS} cells to each side, not {self.cells}.")

    @property
    def dim(self) -> int:
        return self.cells**2

    def entry(self, wanted: Location) -> int:
        return int(self._flat(cell_of(torch.tensor(check_location(wanted)), self.cells)))

    def names(self) -> list[Location]:
        centers = ((every_cell(self.cells) + 0.5) / self.cells).flip(-1)
        return [(x, y) for x, y in centers.tolist()]

    def entries(self, scenes: SceneBatch) -> tuple[Tensor, Tensor]:
        locations, visible = locations_of(scenes)
        return self._flat(cell_of(locations, self.cells)), visible

    def near(self, cond: Tensor, cell: Cell | Tensor, radius: int) -> Tensor:
        inside = window(one_per_row(cell, len(cond), cond.device), radius, self.cells)
        return cond * inside.flatten(1)

    def near_every_cell(self, cond: Tensor, radius: int) -> Tensor:
        inside = window(every_cell(self.cells, cond.device), radius, self.cells)  # (C*C, C, C)
        return cond[:, None] * inside.flatten(1)

    def active(self, cond: Tensor, radius: int) -> Tensor:
        return F.max_pool2d(self.as_map(cond), 2 * radius + 1, stride=1, padding=radius)[:, 0] > 0

    def patch_dim(self, radius: int) -> int:
        return (2 * radius + 1) ** 2

    def in_patch(self, cond: Tensor, cell: Tensor, radius: int) -> Tensor:
        """The patch's own sub-grid, row by row; cells outside the image count nothing."""
        padded = F.pad(self.as_map(cond)[:, 0], (radius,) * 4)  # (B, cells + 2r, cells + 2r)
        return cut_windows(padded, cell, 2 * radius + 1).flatten(1)

    def as_map(self, cond: Tensor) -> Tensor:
        return cond.unflatten(1, (1, self.cells, self.cells))

    def _flat(self, cell: Tensor) -> Tensor:
        return cell[..., 0] * self.cells + cell[..., 1]
