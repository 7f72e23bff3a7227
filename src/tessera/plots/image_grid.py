"""Grids of images with thin gaps and small labels, and with dots at prompted locations."""

import math
from collections.abc import Sequence

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from tessera.errors import UserError
from tessera.render.image_io import to_uint8

PAPER, INK = (255, 255, 255), (110, 110, 110)
_DOT, RIM = (230, 30, 30), (255, 255, 255)
_READABLE = 128  # pixels; smaller images are enlarged, so that dots do not hide what they mark
GAP = 4
_LABEL_SIZE = 10
_GRID_ASPECT = 1.6  # width over height, about


def image_grid(
    images: Sequence[Tensor] | Tensor, labels: Sequence[str] | None = None, columns: int | None = None
) -> Tensor:
    """Images (3, H, W), float in [-1, 1] or 8-bit and all of one size, as one 8-bit image.

    They fill rows from the left; `columns` defaults to a grid that is wider than high.
    """
    if not len(images):
        raise UserError("An image grid needs at least one image.")
    height, width = images[0].shape[-2:]
    columns = columns or _default_columns(len(images), height / width)
    label_height = _LABEL_SIZE + 4 if labels else 0
    cell_width, cell_height = width + GAP, height + label_height + GAP
    rows = math.ceil(len(images) / columns)
    grid = Image.new("RGB", (columns * cell_width + GAP, rows * cell_height + GAP), PAPER)
    for i, image in enumerate(images):
        corner = (GAP + i % columns * cell_width, GAP + i // columns * cell_height)
        grid.paste(as_image(image), corner)
        if labels:
            _write_label(grid, labels[i], corner[0], corner[1] + height + 1, width)
    return torch.from_numpy(np.array(grid)).permute(2, 0, 1)


def _default_columns(count: int, tallness: float) -> int:
    return min(count, max(1, round(math.sqrt(count * tallness * _GRID_ASPECT))))


def as_image(image: Tensor) -> Image.Image:
    image = to_uint8(image) if image.is_floating_point() else image
    return Image.fromarray(image.permute(1, 2, 0).cpu().contiguous().numpy())


def _write_label(grid: Image.Image, label: str, left: int, top: int, width: int) -> None:
    """Centered under its image, cut off where it would run into the next one."""
    font, label = ImageFont.load_default(_LABEL_SIZE), fitting_text(label, width, _LABEL_SIZE)
    offset = (width - font.getlength(label)) / 2
    ImageDraw.Draw(grid).text((left + offset, top), label, font=font, fill=INK)


def fitting_text(text: str, width: int, size: int) -> str:
    """The beginning of a line that is no wider than so many pixels."""
    font = ImageFont.load_default(size)
    while text and font.getlength(text) > width:
        text = text[:-1]
    return text


def mark_locations(image: Tensor, locations: Sequence[tuple[float, float]]) -> Tensor:
    """An image (3, H, W) enlarged to a readable size, with a dot at each location: 8-bit."""
    canvas = as_image(image)
    factor = max(1, _READABLE // canvas.width)
    canvas = canvas.resize((canvas.width * factor, canvas.height * factor), Image.Resampling.NEAREST)
    pen, radius = ImageDraw.Draw(canvas), max(2, canvas.width // 64)
    for x, y in locations:
        column, row = x * canvas.width, y * canvas.height
        pen.ellipse((column - radius, row - radius, column + radius, row + radius), fill=_DOT, outline=RIM)
    return torch.from_numpy(np.array(canvas)).permute(2, 0, 1)


def sample_grid(images: Tensor, prompts: Sequence[Sequence], columns: int = 8) -> Tensor:
    """Images (B, 3, H, W) with the prompt of each: dots at its locations, its colors as a label."""
    marked, labels = [], []
    for image, prompt in zip(images, prompts):
        marked.append(mark_locations(image, [part for part in prompt if not isinstance(part, str)]))
        labels.append(" ".join(part for part in prompt if isinstance(part, str)))
    return image_grid(marked, labels if any(labels) else None, columns)
