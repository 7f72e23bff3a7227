"""Sample sheets: pictures side by side, the asked places marked as small red dots."""

from collections.abc import Sequence

import numpy as np
import torch
from PIL import ImageDraw
from torch import Tensor

from tessera.images.pictures import to_uint8
from tessera.images.sheet import as_image, contact_sheet

RED, RIM = (230, 30, 30), (255, 255, 255)
READABLE = 128  # pixels; smaller pictures are enlarged, so that dots do not hide what they mark


def marked(picture: Tensor, places: Sequence[tuple[float, float]]) -> Tensor:
    """A picture (3, H, W) enlarged to a readable size, with a dot at each place: 8-bit."""
    image = as_image(to_uint8(picture) if picture.is_floating_point() else picture)
    factor = max(1, READABLE // image.width)
    image = image.resize((image.width * factor, image.height * factor), resample=0)  # 0: repeat pixels
    pen, radius = ImageDraw.Draw(image), max(2, image.width // 64)
    for x, y in places:
        column, row = x * image.width, y * image.height
        pen.ellipse((column - radius, row - radius, column + radius, row + radius), fill=RED, outline=RIM)
    return torch.from_numpy(np.array(image)).permute(2, 0, 1)


def sample_sheet(pictures: Tensor, asked: Sequence[Sequence], columns: int = 8) -> Tensor:
    """Pictures (B, 3, H, W) on one sheet, with what was asked of each: dots for places, words for colours."""
    dots = [[want for want in wanted if not isinstance(want, str)] for wanted in asked]
    words = [" ".join(want for want in wanted if isinstance(want, str)) for wanted in asked]
    drawn = [marked(picture, places) for picture, places in zip(pictures, dots)]
    return contact_sheet(drawn, labels=words if any(words) else None, columns=columns)
