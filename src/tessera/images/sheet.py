"""Many pictures on one sheet, with thin gaps and small labels."""

import math
from collections.abc import Sequence

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from tessera.errors import UserError
from tessera.images.pictures import to_uint8

PAPER, INK = (255, 255, 255), (110, 110, 110)
GAP = 4
LABEL_SIZE = 10
SHEET_ASPECT = 1.6


def contact_sheet(
    pictures: Sequence[Tensor] | Tensor, labels: Sequence[str] | None = None, columns: int | None = None
) -> Tensor:
    """Pictures (3, H, W), float in [-1, 1] or 8-bit and all of one size, as one 8-bit picture.

    They fill rows from the left; `columns` defaults to a sheet that is wider than high.
    """
    if not len(pictures):
        raise UserError("A contact sheet needs at least one picture.")
    height, width = pictures[0].shape[-2:]
    columns = columns or default_columns(len(pictures), height / width)
    strip = LABEL_SIZE + 4 if labels else 0
    cell_width, cell_height = width + GAP, height + strip + GAP
    rows = math.ceil(len(pictures) / columns)
    sheet = Image.new("RGB", (columns * cell_width + GAP, rows * cell_height + GAP), PAPER)
    for i, picture in enumerate(pictures):
        corner = (GAP + i % columns * cell_width, GAP + i // columns * cell_height)
        sheet.paste(as_image(picture), corner)
        if labels:
            write_label(sheet, labels[i], corner[0], corner[1] + height + 1, width)
    return torch.from_numpy(np.array(sheet)).permute(2, 0, 1)


def default_columns(count: int, tallness: float) -> int:
    """A sheet about `SHEET_ASPECT` times as wide as high."""
    return min(count, max(1, round(math.sqrt(count * tallness * SHEET_ASPECT))))


def as_image(picture: Tensor) -> Image.Image:
    picture = to_uint8(picture) if picture.is_floating_point() else picture
    return Image.fromarray(picture.permute(1, 2, 0).cpu().contiguous().numpy())


def write_label(sheet: Image.Image, label: str, left: int, top: int, width: int) -> None:
    """Centred under its picture, cut off where it would run into the next one."""
    font = ImageFont.load_default(LABEL_SIZE)
    while label and font.getlength(label) > width:
        label = label[:-1]
    offset = (width - font.getlength(label)) / 2
    ImageDraw.Draw(sheet).text((left + offset, top), label, font=font, fill=INK)
