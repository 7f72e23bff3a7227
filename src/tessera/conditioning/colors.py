"""How many objects of each of the eight colors."""

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tessera.conditioning.counts import condition_number, entry_of, repeat_by_count, take_one
from tessera.conditioning.labels import Label, check_label, labeled, sample_index
from tessera.errors import UserError
from tessera.scenes.batch import SceneBatch
from tessera.scenes.vocabulary import COLOR_NAMES


@dataclass(frozen=True)
class ColorCounts:
    """Counts per color, in the order of COLOR_NAMES; its conditions are color names in that order."""

    label: Label = "all"
    capacity = None

    def __post_init__(self):
        check_label(self.label)

    @property
    def dim(self) -> int:
        return len(COLOR_NAMES)

    @property
    def config(self) -> dict[str, Any]:
        return {"kind": "color", "label": self.label}

    def encode(self, scenes: SceneBatch, index: Tensor | None = None, seed: int = 0) -> Tensor:
        is_labeled = labeled(scenes.present, self.label, sample_index(scenes, index), seed)
        counts = torch.zeros(len(scenes), self.dim, device=scenes.device)
        return counts.scatter_add_(1, scenes.color, is_labeled.float())

    def at(self, wanted: Sequence[str], device=None) -> Tensor:
        cond = torch.zeros(1, self.dim, device=device)
        for color in wanted:
            cond = self.adding(cond, color)
        return cond

    def adding(self, cond: Tensor, wanted: str) -> Tensor:
        return cond + F.one_hot(torch.tensor(color_number(wanted)), self.dim).to(cond)

    def conditions(self, cond: Tensor) -> list[list[str]]:
        return repeat_by_count(cond, COLOR_NAMES)

    def without(self, cond: Tensor, k: int | str) -> Tensor:
        number = condition_number(k)
        if number is None:
            entry = torch.tensor(color_number(str(k)), device=cond.device)
        else:
            entry = entry_of(cond, number)
        return take_one(cond, entry.expand(len(cond)), k)


def color_number(name: str) -> int:
    if name not in COLOR_NAMES:
        near = get_close_matches(str(name), COLOR_NAMES, n=1)
        hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(COLOR_NAMES)}."
        raise UserError(f"There is no color `{name}`; {hint}")
    return COLOR_NAMES.index(name)
