"""No condition at all, for unconditional networks."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tessera.conditioning.contract import Conditioner
from tessera.errors import UserError
from tessera.scenes.batch import SceneBatch


@dataclass(frozen=True)
class Unconditional(Conditioner):
    """Vectors of no numbers, (B, 0)."""

    kind = "nothing"
    dim = 0
    capacity = 0

    def encode(self, scenes: SceneBatch, index: Tensor | None = None, seed: int = 0) -> Tensor:
        return torch.zeros(len(scenes), 0, device=scenes.device)

    def at(self, wanted: Sequence[Any], device=None) -> Tensor:
        if len(wanted):
            raise UserError("This network is unconditional: it takes no prompt.")
        return torch.zeros(1, 0, device=device)

    def conditions(self, cond: Tensor) -> list[list[Any]]:
        return [[] for _ in range(len(cond))]
