"""The contract of conditioners: all that training, samplers and measures use of them."""

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from torch import Tensor

from tessera.scenes.batch import SceneBatch

Location = tuple[float, float]  # (x, y) in [0, 1] from the top left
Cell = tuple[int, int]  # (row, column) on the conditioner's grid


@runtime_checkable
class Conditioner(Protocol):
    """Turns scenes, or prompts, into vectors `cond` (B, dim)."""

    @property
    def dim(self) -> int: ...

    @property
    def capacity(self) -> int | None:
        """How many conditions one vector can hold; None means any number."""

    @property
    def config(self) -> dict[str, Any]:
        """Plain data from which `conditioner_from` builds the same conditioner."""

    def encode(self, scenes: SceneBatch, index: Tensor | None = None, seed: int = 0) -> Tensor:
        """The conditions of training scenes, (B, dim); randomness depends on the seed and the sample's index only."""

    def at(self, wanted: Sequence[Any], device=None) -> Tensor:
        """One vector (1, dim) with all conditions of a prompt: locations, or color names."""

    def conditions(self, cond: Tensor) -> list[list[Any]]:
        """The single conditions of each row, in the order in which `without` counts them."""

    def without(self, cond: Tensor, k: Any) -> Tensor:
        """`cond` with its k-th condition (or the one called `k`) taken out of every row."""

    def adding(self, cond: Tensor, wanted: Any) -> Tensor:
        """`cond` with one more condition in every row."""


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
