"""Vectors of counts, shared by the grid and the colours: which entry holds the k-th thing, taking one out."""

import torch
from torch import Tensor

from tessera.errors import UserError


def entry_of(cond: Tensor, k: int) -> Tensor:
    """Entry (B,) holding each row's k-th thing, counted from 0; beyond the last entry where there is none."""
    if k < 0:
        return torch.full_like(cond[:, 0], cond.shape[1]).long()
    return (cond.cumsum(1).round() <= k).sum(1)


def take_one(cond: Tensor, entry: Tensor, called) -> Tensor:
    """`cond` with one thing fewer in `entry` (B,)."""
    last = cond.shape[1] - 1
    held = cond.gather(1, entry.clamp(max=last)[:, None])[:, 0]
    if (entry > last).any() or (held < 0.5).any():
        raise UserError(f"There is no condition {called} to take out.")
    return cond.scatter_add(1, entry[:, None], -torch.ones_like(cond[:, :1]))
