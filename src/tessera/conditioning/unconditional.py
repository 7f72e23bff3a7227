"""No condition at all, for unconditional networks."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tessera.errors import UserError
from tessera.scenes.batch import SceneBatch


@dataclass(frozen=True)
class Unconditional:
    """Vectors of no numbers, (B, 0)."""

    dim = 0
    capacity = 0

    @property
    def config(self) -> dict[str, Any]:
        return {"kind": "nothing"}

    def encode(self, scenes: SceneBatch, index: Tensor | None = None, seed: int = 0) -> Tensor:
        return torch.zeros(len(scenes), 0, device=scenes.device)

    def at(self, wanted: Sequence[Any], device=None) -> Tensor:
        if len(wanted):
            raise UserError("This network is unconditional: it takes no prompt.")
        return torch.zeros(1, 0, device=device)

    def adding(self, cond: Tensor, wanted: Any) -> Tensor:
        raise UserError("This network is unconditional: it takes no prompt.")

    def conditions(self, cond: Tensor) -> list[list[Any]]:
        return [[] for _ in range(len(cond))]

    def without(self, cond: Tensor, k: Any) -> Tensor:
        raise UserError(f"There is no condition {k} to take out.")
