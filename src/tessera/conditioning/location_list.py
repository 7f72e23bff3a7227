"""A list of (present, x, y) slots in random order: the grid's information without its geometry."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from tessera.conditioning.cells import cell_of, every_cell, one_per_row
from tessera.conditioning.contract import ROUNDING, Cell, Location, SpatialConditioner, condition_number
from tessera.conditioning.labels import (
    SLOT_STREAM,
    Label,
    check_label,
    check_location,
    labeled,
    locations_of,
    sample_index,
    shuffled_rank,
)
from tessera.errors import UserError
from tessera.scenes.batch import SceneBatch
from tessera.scenes.random import uniform

# x and y are measured from the middle of the image in quarters of it, so that they have unit size.
MIDDLE, UNIT = 0.5, 0.25


@dataclass(frozen=True)
class LocationList(SpatialConditioner):
    """Slots of (present, x, y), with x and y from the middle in quarter images; an empty slot is all zero.

    With fill `first` objects fill the list from its start, in random order. With `anywhere` they land in random
    slots: training uses every slot, so that a failure with many locations is not due to untrained weights,
    but it takes far longer to learn which x belongs to which y.
    """

    slots: int = 12
    label: Label = "all"
    fill: Literal["anywhere", "first"] = "first"
    cells: int = 16
    kind = "list"
    map_channels = 3

    def __post_init__(self):
        check_label(self.label)
        if self.slots < 1:
            raise UserError(f"A list needs at least one slot, not {self.slots}.")
        if self.cells < 1:
            raise UserError(f"A grid needs at least one cell, not {self.cells}.")
        if self.fill not in ("anywhere", "first"):
            raise UserError(f"A list is filled `anywhere` or `first`, not `{self.fill}`.")

    @property
    def dim(self) -> int:
        return 3 * self.slots

    @property
    def capacity(self) -> int:
        return self.slots

    def encode(self, scenes: SceneBatch, index: Tensor | None = None, seed: int = 0) -> Tensor:
        index = sample_index(scenes, index)
        locations, visible = locations_of(scenes)
        is_labeled = labeled(visible, self.label, index, seed)
        if is_labeled.shape[1] > self.slots and (is_labeled.sum(-1) > self.slots).any():
            raise UserError(f"A scene has more objects than the list's {self.slots} slots.")
        slot = self._ranks(is_labeled, index, seed)  # (B, N)
        entries = _as_entries(locations) * is_labeled[..., None]
        table = torch.zeros(len(scenes), self.slots + 1, 3, device=scenes.device)  # last: for unlabeled objects
        slot = torch.where(is_labeled, slot, self.slots)[..., None].expand(-1, -1, 3)
        return table.scatter(1, slot, entries)[:, : self.slots].flatten(1)

    def _ranks(self, is_labeled: Tensor, index: Tensor, seed: int) -> Tensor:
        """The slot of each labeled object."""
        rank = shuffled_rank(is_labeled, index, seed).clamp(max=self.slots - 1)
        if self.fill == "first":
            return rank
        order = uniform(seed, index, SLOT_STREAM, self.slots).to(is_labeled.device).argsort(-1)  # (B, slots)
        return order.gather(1, rank)

    def at(self, wanted: Sequence[Location], device=None) -> Tensor:
        """The k-th location of the prompt goes into the k-th slot."""
        cond = torch.zeros(1, self.dim, device=device)
        for location in wanted:
            cond = self.adding(cond, location)
        return cond

    def adding(self, cond: Tensor, wanted: Location) -> Tensor:
        filled = self._is_filled(cond)
        if filled.all(-1).any():
            raise UserError(f"The list holds at most {self.slots} locations.")
        first = (~filled).float().argmax(-1)
        entry = _as_entries(torch.tensor(check_location(wanted), device=cond.device, dtype=cond.dtype))
        return self._table(cond).index_put((torch.arange(len(cond), device=cond.device), first), entry).flatten(1)

    def conditions(self, cond: Tensor) -> list[list[Location]]:
        rows = []
        for row, filled in zip(self._locations(cond), self._is_filled(cond)):
            rows.append([(x, y) for x, y in row[filled].tolist()])
        return rows

    def without(self, cond: Tensor, k: int | Location) -> Tensor:
        filled, number = self._is_filled(cond), condition_number(k)
        if number is None:
            location = torch.tensor(check_location(k), device=cond.device)
            filled &= (self._locations(cond) - location).abs().amax(-1) < ROUNDING
        gone = filled & (filled.cumsum(-1) == (number or 0) + 1)  # (B, slots)
        if not gone.any(-1).all():
            raise UserError(f"There is no condition {k} to take out.")
        return (self._table(cond) * ~gone[..., None]).flatten(1)

    def near(self, cond: Tensor, cell: Cell | Tensor, radius: int) -> Tensor:
        own, cell = cell_of(self._locations(cond), self.cells), one_per_row(cell, len(cond), cond.device)
        kept = ((own - cell[:, None]).abs() <= radius).all(-1)  # (B, slots)
        return (self._table(cond) * kept[..., None]).flatten(1)

    def near_every_cell(self, cond: Tensor, radius: int) -> Tensor:
        cell = every_cell(self.cells, cond.device).repeat(len(cond), 1)
        near = self.near(cond.repeat_interleave(self.cells**2, 0), cell, radius)
        return near.unflatten(0, (len(cond), self.cells**2))

    def active(self, cond: Tensor, radius: int) -> Tensor:
        near = self.near_every_cell(cond, radius)
        return self._is_filled(near).any(-1).unflatten(1, (self.cells, self.cells))

    def patch_dim(self, radius: int) -> int:
        return self.dim

    def in_patch(self, cond: Tensor, cell: Tensor, radius: int) -> Tensor:
        """The near slots with x and y counted from the patch's center, in half patches: within [-1, 1].

        A list filled from its start is closed up again, as the patch's own list would be.
        """
        near = self.near(cond, cell, radius)
        table = self._table(near)
        center = (cell.flip(-1) + 0.5) / self.cells  # (B, 2) as x, y
        offset = (self._locations(near) - center[:, None]) * self.cells / (radius + 0.5)
        table = torch.cat([table[..., :1], offset * table[..., :1]], -1)
        if self.fill == "first":
            order = (table[..., 0] < 0.5).long().argsort(dim=-1, stable=True)
            table = table.gather(1, order[..., None].expand_as(table))
        return table.flatten(1)

    def as_map(self, cond: Tensor) -> Tensor:
        """Count, and the mean offset of the objects from the cell's center (in half cells), per cell."""
        here, locations = self._table(cond)[..., :1], self._locations(cond)
        cell = cell_of(locations, self.cells)  # (B, slots, 2)
        offset = (locations * self.cells - cell.flip(-1) - 0.5) * 2
        values = torch.cat([here, offset * here], -1)
        flat = (cell[..., 0] * self.cells + cell[..., 1])[..., None].expand_as(values)
        drawn = torch.zeros(len(cond), self.cells**2, 3, device=cond.device, dtype=cond.dtype)
        return drawn.scatter_add(1, flat, values).transpose(1, 2).unflatten(2, (self.cells, self.cells))

    def _is_filled(self, cond: Tensor) -> Tensor:
        """Which slots (..., slots) hold a location."""
        return self._table(cond)[..., 0] > 0.5

    def _locations(self, cond: Tensor) -> Tensor:
        """x and y (B, slots, 2) in [0, 1]; an empty slot's is the middle."""
        return self._table(cond)[..., 1:] * UNIT + MIDDLE

    def _table(self, cond: Tensor) -> Tensor:
        return cond.unflatten(-1, (self.slots, 3))


def _as_entries(locations: Tensor) -> Tensor:
    """(present, x, y) of locations (..., 2) in [0, 1]."""
    return torch.cat([torch.ones_like(locations[..., :1]), (locations - MIDDLE) / UNIT], -1)
