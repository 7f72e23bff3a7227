"""Geometry of the grid of cells: which cell holds a location, which cells are within a square patch."""

import torch
from torch import Tensor


def cell_of(locations: Tensor, cells: int) -> Tensor:
    """(row, column), (..., 2) long, of locations (..., 2); right and bottom edges belong to the last cell."""
    return (locations * cells).long().clamp(0, cells - 1).flip(-1)


def every_cell(cells: int, device=None) -> Tensor:
    """All (row, column) pairs, row by row: (cells * cells, 2)."""
    steps = torch.arange(cells, device=device)
    return torch.cartesian_prod(steps, steps)


def one_per_row(cell, rows: int, device) -> Tensor:
    """A cell given once, or per row, as (rows, 2) long."""
    return torch.as_tensor(cell, device=device).long().expand(rows, 2)


def window(cell: Tensor, radius: int, cells: int) -> Tensor:
    """Which cells lie within `radius` of each `cell` (B, 2): (B, cells, cells) bool."""
    steps = torch.arange(cells, device=cell.device)
    within = (steps[None, None] - cell[..., None]).abs() <= radius  # (B, 2, cells)
    return within[:, 0, :, None] & within[:, 1, None, :]


def cut_windows(values: Tensor, corner: Tensor, side: int) -> Tensor:
    """One window (B, side, side, ...) of each row of `values` (B, H, W, ...), its top left at `corner` (B, 2)."""
    rows, columns = (corner[:, axis, None] + torch.arange(side, device=corner.device) for axis in (0, 1))
    batch = torch.arange(len(values), device=values.device)
    return values[batch[:, None, None], rows[:, :, None], columns[:, None, :]]
