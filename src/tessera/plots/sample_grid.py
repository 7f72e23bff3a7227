"""Sample sheets: images side by side, the asked locations marked as small red dots."""

from collections.abc import Sequence

import numpy as np
import torch
from PIL import ImageDraw
from torch import Tensor

from tessera.plots.image_grid import as_image, image_grid
from tessera.render.image_io import to_uint8

RED, RIM = (230, 30, 30), (255, 255, 255)
READABLE = 128  # pixels; smaller images are enlarged, so that dots do not hide what they mark


def marked(canvas: Tensor, locations: Sequence[tuple[float, float]]) -> Tensor:
    """An image (3, H, W) enlarged to a readable size, with a dot at each location: 8-bit."""
    image = as_image(to_uint8(canvas) if canvas.is_floating_point() else canvas)
    factor = max(1, READABLE // image.width)
    image = image.resize((image.width * factor, image.height * factor), resample=0)  # 0: repeat pixels
    pen, radius = ImageDraw.Draw(image), max(2, image.width // 64)
    for x, y in locations:
        column, row = x * image.width, y * image.height
        pen.ellipse((column - radius, row - radius, column + radius, row + radius), fill=RED, outline=RIM)
    return torch.from_numpy(np.array(image)).permute(2, 0, 1)


def sample_grid(images: Tensor, asked: Sequence[Sequence], columns: int = 8) -> Tensor:
    """Images (B, 3, H, W) on one sheet, with what was asked of each: dots for locations, words for colors."""
    dots = [[want for want in wanted if not isinstance(want, str)] for wanted in asked]
    words = [" ".join(want for want in wanted if isinstance(want, str)) for wanted in asked]
    drawn = [marked(canvas, locations) for canvas, locations in zip(images, dots)]
    return image_grid(drawn, labels=words if any(words) else None, columns=columns)
