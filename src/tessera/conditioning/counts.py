"""Conditions as counts: one number per entry (a cell of a grid, a color) says how many objects it stands for."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tessera.conditioning.contract import Conditioner, condition_number
from tessera.conditioning.labels import Label, check_label, labeled, sample_index
from tessera.errors import UserError
from tessera.scenes.batch import SceneBatch


class CountConditioner(Conditioner):
    """Counts of labeled objects. Conditions are ordered by entry."""

    label: Label
    capacity = None

    def __post_init__(self) -> None:
        check_label(self.label)

    @abstractmethod
    def entry(self, wanted: Any) -> int:
        """The entry that counts a condition, or one sentence if there is none."""

    @abstractmethod
    def names(self) -> Sequence[Any]:
        """What the condition of each entry is called."""

    @abstractmethod
    def entries(self, scenes: SceneBatch) -> tuple[Tensor, Tensor]:
        """The entry of each object (B, N), and which of them can be labeled (B, N)."""

    def encode(self, scenes: SceneBatch, index: Tensor | None = None, seed: int = 0) -> Tensor:
        entries, visible = self.entries(scenes)
        is_labeled = labeled(visible, self.label, sample_index(scenes, index), seed)
        counts = torch.zeros(len(scenes), self.dim, device=scenes.device)
        return counts.scatter_add_(1, entries, is_labeled.float())

    def at(self, wanted: Sequence[Any], device=None) -> Tensor:
        entries = torch.tensor([self.entry(one) for one in wanted], dtype=torch.long)
        return entries.bincount(minlength=self.dim)[None].float().to(device)

    def adding(self, cond: Tensor, wanted: Any) -> Tensor:
        return cond + self.at([wanted]).to(cond)

    def conditions(self, cond: Tensor) -> list[list[Any]]:
        """The name of each entry as often as its count."""
        rows, names = [], self.names()
        for counts in cond.tolist():
            row: list[Any] = []
            for name, count in zip(names, counts):
                row += [name] * round(count)
            rows.append(row)
        return rows

    def without(self, cond: Tensor, k: Any) -> Tensor:
        number = condition_number(k)
        entry = torch.full_like(cond[:, 0], self.entry(k)).long() if number is None else _entry_of(cond, number)
        held = cond.gather(1, entry.clamp(max=self.dim - 1)[:, None])[:, 0]
        if (entry >= self.dim).any() or (held < 0.5).any():
            raise UserError(f"There is no condition {k} to take out.")
        return cond.scatter_add(1, entry[:, None], -torch.ones_like(cond[:, :1]))


def _entry_of(cond: Tensor, k: int) -> Tensor:
    """Entry (B,) holding each row's k-th object, counted from 0; beyond the last entry where there is none."""
    if k < 0:
        return torch.full_like(cond[:, 0], cond.shape[1]).long()
    return (cond.cumsum(1).round() <= k).sum(1)
