"""One thing the judge saw in a picture, and what anything that judges pictures can do."""

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from torch import Tensor


class Finding(NamedTuple):
    """Where it is, what it looks like, and how sure the judge is of it."""

    place: tuple[float, float]  # (x, y) in [0, 1], centre of the thing in the picture
    color: str
    shape: str
    size: str
    material: str
    confidence: float  # that something is there, [0, 1]
    proper: float  # that it is a proper thing, not a half-drawn one or a blob, [0, 1]


class Finder(Protocol):
    """What judging needs of a judge."""

    def look(self, images: "Tensor") -> "tuple[list[list[Finding]], Tensor]":
        """Findings in each of the pictures (B, 3, H, W) in [-1, 1], and how strange each is, (B,).

        More than 1 means: this is not a scene I know.
        """
        ...
