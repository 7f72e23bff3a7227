"""Three-vectors kept as separate x, y and z tensors, so that each operation is one contiguous pass."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Vec:
    """x, y and z of many vectors, all of one shape."""

    x: Tensor
    y: Tensor
    z: Tensor

    @staticmethod
    def of(stacked: Tensor) -> "Vec":
        """From a tensor (..., 3)."""
        return Vec(*stacked.unbind(-1))

    @staticmethod
    def zeros_like(column: Tensor) -> "Vec":
        return Vec(*(torch.zeros_like(column) for _ in range(3)))

    def add_(self, values: Tensor, scales: Sequence[float]) -> None:
        """Add `values` times x, y and z of `scales`, in place."""
        for column, scale in zip(self.parts(), scales):
            column.add_(values, alpha=scale)

    def put_(self, rows: Tensor, values: "Vec") -> None:
        """Replace these entries, in place."""
        for column, new in zip(self.parts(), values.parts()):
            column[rows] = new

    def __add__(self, other: "Vec") -> "Vec":
        return Vec(self.x + other.x, self.y + other.y, self.z + other.z)

    def __sub__(self, other: "Vec") -> "Vec":
        return Vec(self.x - other.x, self.y - other.y, self.z - other.z)

    def __mul__(self, scale) -> "Vec":
        return Vec(self.x * scale, self.y * scale, self.z * scale)

    def __neg__(self) -> "Vec":
        return Vec(-self.x, -self.y, -self.z)

    def __getitem__(self, index) -> "Vec":
        return Vec(self.x[index], self.y[index], self.z[index])

    def take(self, rows: Tensor) -> "Vec":
        """Entries `rows` (M,) of a list (K, ...), or of a table read row by row."""
        return self.map(lambda column: take(column, rows))

    def map(self, change) -> "Vec":
        return Vec(change(self.x), change(self.y), change(self.z))

    def dot(self, other: "Vec") -> Tensor:
        return self.x * other.x + self.y * other.y + self.z * other.z

    def cross(self, other: "Vec") -> "Vec":
        return Vec(
            self.y * other.z - self.z * other.y,
            self.z * other.x - self.x * other.z,
            self.x * other.y - self.y * other.x,
        )

    def squared(self) -> Tensor:
        return self.dot(self)

    def unit(self) -> "Vec":
        return self * self.squared().clamp_min(1e-20).rsqrt()

    def along(self, direction: "Vec", distance: Tensor) -> "Vec":
        """The point `distance` from here in `direction`."""
        return Vec(
            torch.addcmul(self.x, direction.x, distance),
            torch.addcmul(self.y, direction.y, distance),
            torch.addcmul(self.z, direction.z, distance),
        )

    def parts(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.x, self.y, self.z

    def stacked(self) -> Tensor:
        return torch.stack(self.parts(), dim=-1)


def take(column: Tensor, rows: Tensor) -> Tensor:
    """`column[rows]` for row numbers (M,), by the faster of torch's two ways."""
    return column.index_select(0, rows)


def reflect(direction: Vec, normal: Vec) -> Vec:
    """`direction` mirrored at a surface with unit `normal`."""
    return direction - normal * (2 * direction.dot(normal))
