"""Which condition `k` means; in the counts of grid and colors, which entry holds the k-th object, taking one out."""

from collections.abc import Sequence
from numbers import Integral
from typing import Any

import torch
from torch import Tensor

from tessera.errors import UserError


def condition_number(k: Any) -> int | None:
    """A whole number of any kind (Python's, numpy's, a tensor ()) as an int; None for a location or a name."""
    if isinstance(k, Tensor):
        whole = k.ndim == 0 and not k.is_floating_point() and not k.is_complex()
        return int(k) if whole else None
    return int(k) if isinstance(k, Integral) else None


def entry_of(cond: Tensor, k: int) -> Tensor:
    """Entry (B,) holding each row's k-th object, counted from 0; beyond the last entry where there is none."""
    if k < 0:
        return torch.full_like(cond[:, 0], cond.shape[1]).long()
    return (cond.cumsum(1).round() <= k).sum(1)


def repeat_by_count(cond: Tensor, names: Sequence[Any]) -> list[list[Any]]:
    """The names of the entries (B, len(names)) of each row, each as often as its count."""
    rows = []
    for counts in cond.tolist():
        row: list[Any] = []
        for name, count in zip(names, counts):
            row += [name] * round(count)
        rows.append(row)
    return rows


def take_one(cond: Tensor, entry: Tensor, called) -> Tensor:
    """`cond` with one object fewer in `entry` (B,)."""
    last = cond.shape[1] - 1
    held = cond.gather(1, entry.clamp(max=last)[:, None])[:, 0]
    if (entry > last).any() or (held < 0.5).any():
        raise UserError(f"There is no condition {called} to take out.")
    return cond.scatter_add(1, entry[:, None], -torch.ones_like(cond[:, :1]))
