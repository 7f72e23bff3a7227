"""One detected object, and what evaluation needs of a detector."""

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from torch import Tensor


class Detection(NamedTuple):
    """Position and attributes of one object in an image, and how sure the detector is of it."""

    x: float  # center in the image, [0, 1]
    y: float
    color: str
    shape: str
    size: str
    material: str
    confidence: float  # that there is an object, [0, 1]
    well_formed: float  # that it is a whole object, not a half-drawn one or a blob, [0, 1]

    @property
    def location(self) -> tuple[float, float]:
        return self.x, self.y


class ObjectDetector(Protocol):
    """The contract of a detector."""

    def detect(self, images: "Tensor") -> "tuple[list[list[Detection]], Tensor]":
        """Detections in each of the images (B, 3, H, W) in [-1, 1], and their out-of-distribution scores (B,).

        A score above 1 means: unlike the images that the detector was trained on.
        """
        ...
