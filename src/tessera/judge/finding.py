"""One thing the judge saw in a picture."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """Where it is, what it looks like, and how sure the judge is of it."""

    place: tuple[float, float]  # (x, y) in [0, 1], centre of the thing in the picture
    color: str
    shape: str
    size: str
    material: str
    confidence: float  # that something is there, [0, 1]
    proper: float  # that it is a proper thing, not a half-drawn one or a blob, [0, 1]
