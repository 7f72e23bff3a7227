"""A grid over the picture that counts the things whose centre falls into each cell, flattened row by row."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tessera.conditioners.cells import cell_of, every_cell, one_per_row, window
from tessera.conditioners.contract import Cell, Place
from tessera.conditioners.counts import entry_of, take_one, turn_of
from tessera.conditioners.labels import Label, check_label, check_place, labelled, places_of, sample_index
from tessera.errors import UserError
from tessera.scenes.batch import SceneBatch


@dataclass(frozen=True)
class LocationGrid:
    """Counts per cell. Its conditions are ordered by cell, row by row, and named by the cell's centre."""

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
        places, visible = places_of(scenes)
        told = labelled(visible, self.label, sample_index(scenes, index), seed)
        counts = torch.zeros(len(scenes), self.dim, device=scenes.device)
        return counts.scatter_add_(1, self._flat(cell_of(places, self.cells)), told.float())

    def at(self, wanted: Sequence[Place], device=None) -> Tensor:
        cond = torch.zeros(1, self.dim, device=device)
        for place in wanted:
            cond = self.adding(cond, place)
        return cond

    def adding(self, cond: Tensor, wanted: Place) -> Tensor:
        return cond + F.one_hot(self._cell_number(check_place(wanted)), self.dim).to(cond)

    def conditions(self, cond: Tensor) -> list[list[Place]]:
        centres = ((every_cell(self.cells) + 0.5) / self.cells).flip(-1).tolist()
        return [
            [tuple(centres[n]) for n, count in enumerate(row) for _ in range(round(count))]
            for row in cond.tolist()
        ]

    def without(self, cond: Tensor, k: int | Place) -> Tensor:
        turn = turn_of(k)
        entry = self._cell_number(check_place(k)).to(cond.device) if turn is None else entry_of(cond, turn)
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
        """The patch's own sub-grid, row by row; cells outside the picture count nothing."""
        side = 2 * radius + 1
        padded = F.pad(self.as_map(cond)[:, 0], (radius,) * 4)  # (B, cells + 2r, cells + 2r)
        rows, columns = (cell[:, axis, None] + torch.arange(side, device=cell.device) for axis in (0, 1))
        batch = torch.arange(len(cond), device=cond.device)
        return padded[batch[:, None, None], rows[:, :, None], columns[:, None, :]].flatten(1)

    def as_map(self, cond: Tensor) -> Tensor:
        return cond.unflatten(1, (1, self.cells, self.cells))

    def _cell_number(self, place: Place) -> Tensor:
        return self._flat(cell_of(torch.tensor(place), self.cells))

    def _flat(self, cell: Tensor) -> Tensor:
        return cell[..., 0] * self.cells + cell[..., 1]
