"""Many images on one sheet, with thin gaps and small labels."""

import math
from collections.abc import Sequence

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from tessera.errors import UserError
from tessera.render.image_io import to_uint8

PAPER, INK = (255, 255, 255), (110, 110, 110)
GAP = 4
LABEL_SIZE = 10
SHEET_ASPECT = 1.6


def image_grid(
    images: Sequence[Tensor] | Tensor, labels: Sequence[str] | None = None, columns: int | None = None
) -> Tensor:
    """Images (3, H, W), float in [-1, 1] or 8-bit and all of one size, as one 8-bit image.

    They fill rows from the left; `columns` defaults to a sheet that is wider than high.
    """
    if not len(images):
        raise UserError("A contact sheet needs at least one image.")
    height, width = images[0].shape[-2:]
    columns = columns or default_columns(len(images), height / width)
    strip = LABEL_SIZE + 4 if labels else 0
    cell_width, cell_height = width + GAP, height + strip + GAP
    rows = math.ceil(len(images) / columns)
    sheet = Image.new("RGB", (columns * cell_width + GAP, rows * cell_height + GAP), PAPER)
    for i, image in enumerate(images):
        corner = (GAP + i % columns * cell_width, GAP + i // columns * cell_height)
        sheet.paste(as_image(image), corner)
        if labels:
            write_label(sheet, labels[i], corner[0], corner[1] + height + 1, width)
    return torch.from_numpy(np.array(sheet)).permute(2, 0, 1)


def default_columns(count: int, tallness: float) -> int:
    """A sheet about `SHEET_ASPECT` times as wide as high."""
    return min(count, max(1, round(math.sqrt(count * tallness * SHEET_ASPECT))))


def as_image(image: Tensor) -> Image.Image:
    image = to_uint8(image) if image.is_floating_point() else image
    return Image.fromarray(image.permute(1, 2, 0).cpu().contiguous().numpy())


def write_label(sheet: Image.Image, label: str, left: int, top: int, width: int) -> None:
    """Centered under its image, cut off where it would run into the next one."""
    font = ImageFont.load_default(LABEL_SIZE)
    while label and font.getlength(label) > width:
        label = label[:-1]
    offset = (width - font.getlength(label)) / 2
    ImageDraw.Draw(sheet).text((left + offset, top), label, font=font, fill=INK)
