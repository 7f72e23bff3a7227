"""The contract of conditioners: all that training, samplers and measures use of them."""

from collections.abc import Sequence
from dataclasses import asdict, is_dataclass
from numbers import Integral
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from tessera.errors import UserError
from tessera.scenes.batch import SceneBatch

Location = tuple[float, float]  # (x, y) in [0, 1] from the top left
ROUNDING = 1e-5  # of locations that went through a vector in single precision

Cell = tuple[int, int]  # (row, column) on the conditioner's grid


@runtime_checkable
class Conditioner(Protocol):
    """Turns scenes, or prompts, into vectors `cond` (B, dim).

    A subclass has to write `dim`, `encode`, `at` and `conditions`; the rest follows from them.
    """

    @property
    def dim(self) -> int: ...

    @property
    def capacity(self) -> int | None:
        """How many conditions one vector can hold; None means any number."""
        return None

    @property
    def config(self) -> dict[str, Any]:
        """Plain data from which `conditioner_from` builds the same conditioner."""
        options: dict[str, Any] = asdict(self) if is_dataclass(self) else {}
        return {"kind": getattr(self, "kind", type(self).__name__), **options}

    def encode(self, scenes: SceneBatch, index: Tensor | None = None, seed: int = 0) -> Tensor:
        """The conditions of training scenes, (B, dim); randomness depends on the seed and the sample's index only."""
        raise UserError(f"A {type(self).__name__} has no `encode`, so that nothing can be trained with it.")

    def at(self, wanted: Sequence[Any], device=None) -> Tensor:
        """One vector (1, dim) with all conditions of a prompt: locations, or color names."""
        ...

    def conditions(self, cond: Tensor) -> list[list[Any]]:
        """The single conditions of each row, in the order in which `without` counts them."""
        ...

    def without(self, cond: Tensor, k: Any) -> Tensor:
        """`cond` with its k-th condition (or the condition k) taken out of every row."""
        number, prompts = condition_number(k), []
        for row in self.conditions(cond):
            same = [n for n, one in enumerate(row) if n == number or (number is None and _is_same(one, k))]
            if not same:
                raise UserError(f"There is no condition {k} to take out.")
            prompts.append(row[: same[0]] + row[same[0] + 1 :])
        return _encode_prompts(self, prompts, cond)

    def adding(self, cond: Tensor, wanted: Any) -> Tensor:
        """`cond` with one more condition in every row."""
        return _encode_prompts(self, [[*row, wanted] for row in self.conditions(cond)], cond)


@runtime_checkable
class SpatialConditioner(Conditioner, Protocol):
    """A conditioner whose conditions have locations, so that those near a cell are defined."""

    @property
    def cells(self) -> int:
        """Cells along one side of the grid."""

    def near(self, cond: Tensor, cell: Cell | Tensor, radius: int) -> Tensor:
        """`cond` (B, dim) without the conditions beyond `radius` cells of `cell` (one pair, or (B, 2))."""

    def near_every_cell(self, cond: Tensor, radius: int) -> Tensor:
        """`near` for all cells, row by row: (B, cells * cells, dim)."""

    def active(self, cond: Tensor, radius: int) -> Tensor:
        """Whether the patch around each cell has any condition, (B, cells, cells) bool."""

    def patch_dim(self, radius: int) -> int:
        """Length of the vectors of `in_patch` for a patch of `radius` cells to each side."""

    def in_patch(self, cond: Tensor, cell: Tensor, radius: int) -> Tensor:
        """The condition of a patch network: the near conditions relative to the patch, (B, patch_dim)."""

    def as_map(self, cond: Tensor) -> Tensor:
        """The conditions drawn on the grid, (B, channels, cells, cells)."""

    @property
    def map_channels(self) -> int:
        """Channels of `as_map`."""


def condition_number(k: Any) -> int | None:
    """A whole number of any kind (Python's, numpy's, a tensor ()) as an int; None for a location or a name."""
    if isinstance(k, Tensor):
        whole = k.ndim == 0 and not k.is_floating_point() and not k.is_complex()
        return int(k) if whole else None
    return int(k) if isinstance(k, Integral) else None


def _is_same(one: Any, other: Any) -> bool:
    """Whether two conditions are equal; locations to the rounding of single precision."""
    if isinstance(one, str) or isinstance(other, str):
        return one == other
    return all(abs(a - b) < ROUNDING for a, b in zip(one, other, strict=True))


def _encode_prompts(conditioner: Conditioner, prompts: list[list[Any]], cond: Tensor) -> Tensor:
    """One prompt for each row of `cond`, as vectors like it."""
    return torch.cat([conditioner.at(prompt, device=cond.device) for prompt in prompts]).to(cond)
