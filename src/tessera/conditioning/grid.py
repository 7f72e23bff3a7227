"""A grid over the image that counts the objects whose center falls into each cell, flattened row by row."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tessera.conditioning.cells import cell_of, every_cell, one_per_row, window
from tessera.conditioning.contract import Cell, Location
from tessera.conditioning.counts import condition_number, entry_of, repeat_by_count, take_one
from tessera.conditioning.labels import Label, check_label, check_location, labeled, locations_of, sample_index
from tessera.errors import UserError
from tessera.scenes.batch import SceneBatch


@dataclass(frozen=True)
class LocationGrid:
    """Counts per cell. Its conditions are ordered by cell, row by row, and named by the cell's center."""

    cells: int = 16
    label: Label = "all"
    capacity = None
    map_channels = 1

    def __post_init__(self):
        check_label(self.label)
        if self.cells < 1:
            raise UserError(f"A grid needs at least one cell, not {self.cells}.")

    @property
    def dim(self) -> int:
        return self.cells**2

    @property
    def config(self) -> dict[str, Any]:
        return {"kind": "grid", "cells": self.cells, "label": self.label}

    def encode(self, scenes: SceneBatch, index: Tensor | None = None, seed: int = 0) -> Tensor:
        locations, visible = locations_of(scenes)
        is_labeled = labeled(visible, self.label, sample_index(scenes, index), seed)
        counts = torch.zeros(len(scenes), self.dim, device=scenes.device)
        return counts.scatter_add_(1, self._flat(cell_of(locations, self.cells)), is_labeled.float())

    def at(self, wanted: Sequence[Location], device=None) -> Tensor:
        cond = torch.zeros(1, self.dim, device=device)
        for location in wanted:
            cond = self.adding(cond, location)
        return cond

    def adding(self, cond: Tensor, wanted: Location) -> Tensor:
        return cond + F.one_hot(self._cell_number(check_location(wanted)), self.dim).to(cond)

    def conditions(self, cond: Tensor) -> list[list[Location]]:
        centers = ((every_cell(self.cells) + 0.5) / self.cells).flip(-1)
        return repeat_by_count(cond, [(x, y) for x, y in centers.tolist()])

    def without(self, cond: Tensor, k: int | Location) -> Tensor:
        number = condition_number(k)
        entry = self._cell_number(check_location(k)).to(cond.device) if number is None else entry_of(cond, number)
        return take_one(cond, entry.expand(len(cond)), k)

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
        side = 2 * radius + 1
        padded = F.pad(self.as_map(cond)[:, 0], (radius,) * 4)  # (B, cells + 2r, cells + 2r)
        rows, columns = (cell[:, axis, None] + torch.arange(side, device=cell.device) for axis in (0, 1))
        batch = torch.arange(len(cond), device=cond.device)
        return padded[batch[:, None, None], rows[:, :, None], columns[:, None, :]].flatten(1)

    def as_map(self, cond: Tensor) -> Tensor:
        return cond.unflatten(1, (1, self.cells, self.cells))

    def _cell_number(self, location: Location) -> Tensor:
        return self._flat(cell_of(torch.tensor(location), self.cells))

    def _flat(self, cell: Tensor) -> Tensor:
        return cell[..., 0] * self.cells + cell[..., 1]
