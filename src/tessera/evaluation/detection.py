"""One object the detector saw in an image, and what anything that detectors images can do."""

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from torch import Tensor


class Detection(NamedTuple):
    """Where it is, what it looks like, and how sure the detector is of it."""

    location: tuple[float, float]  # (x, y) in [0, 1], center of the object in the image
    color: str
    shape: str
    size: str
    material: str
    confidence: float  # that something is there, [0, 1]
    well_formed: float  # that it is a proper object, not a half-drawn one or a blob, [0, 1]


class ObjectDetector(Protocol):
    """What detecting needs of a detector."""

    def look(self, images: "Tensor") -> "tuple[list[list[Detection]], Tensor]":
        """Detections in each of the images (B, 3, H, W) in [-1, 1], and how strange each is, (B,).

        More than 1 means: this is not a scene I know.
        """
        ...
