"""The paper's sample sheets (Figures 1, 4, 5 left and 8): red dots where something was asked, verdicts below."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from tessera.experiments import EXPERIMENTS, look_up
from tessera.files import make_folder, read_json
from tessera.images.pictures import COMPACT, save_compact
from tessera.images.sheet import as_image
from tessera.judge.explain import BAD, GOOD, INK, ODD, PAPER
from tessera.sampler.sheets import marked
from tessera.scenes.vocabulary import COLOR_NAMES, COLORS, LOCATIONS
from tessera.study.cells import CELLS, Cell
from tessera.study.jobs import Places, job_name
from tessera.study.strips import STRIP, Shown, load_strip

SIDE = 128  # a picture on the sheet, in pixels
GAP, WORDS, TITLE, MARGIN = 4, 14, 40, 44
SMALL, LARGE = 11, 15
SWATCH, ABOUT = 7, 200


class Figure(NamedTuple):
    """Which cells stand side by side, which Ks below each other, and how many pictures each gets."""

    cells: tuple[str, ...]
    ks: tuple[int, ...]
    columns: int


FIGURES = {
    "fig1": Figure(("exp1-M3", "exp2-M3", "exp3-M3", "exp2L-M3"), (0, 1, 3, 6, 9), 4),
    "fig4": Figure(("exp1-M1", "exp2L-M1"), tuple(range(7)), 4),
    "fig5": Figure(("color-M5",), tuple(range(9)), 8),
    "fig8": Figure(tuple(f"exp1-M{m}" for m in range(1, 7)), tuple(range(13)), 3),
}


class Panel(NamedTuple):
    """A block of a figure: pictures by K, below a head and a line about it."""

    head: str
    line: str
    rows: dict[int, list[Shown]]
    about: str = ""  # beside the head, where there is room


def save_figure(name: str, places: Places, preset: str, seed: int = 0) -> Path | None:
    """results/figures/NAME-PRESET.webp from the pictures kept so far; None if there are none."""
    figure = look_up(name, FIGURES, "figure")
    panels = [panel_for(CELLS[cell], places, preset, seed) for cell in figure.cells]
    if not any(panel.rows for panel in panels):
        return None
    path = make_folder(places.figures) / f"{name}-{preset}{COMPACT}"
    save_compact(path, drawn(panels, figure.ks, figure.columns))
    return path


def panel_for(cell: Cell, places: Places, preset: str, seed: int) -> Panel:
    """A cell; without pictures it was not run."""
    things = f"1 to {cell.seen_max} things" if cell.seen_max > 1 else "1 thing"
    job = job_name(cell.name, preset, seed)
    path, strip = places.records / f"{job}.json", places.strips / f"{job}{STRIP}"
    ours, rows = "not run", {}
    if path.is_file() and strip.is_file():
        record = read_json(path)
        known: tuple = COLOR_NAMES if cell.experiment == "color" else LOCATIONS
        rows = load_strip(strip, record, {int(k): known[: int(k)] for k in record["shown"]})
        ours = f"K_max {record['result']['k_max']['paper']['value']}"
    line = f"{ours}, paper: {cell.paper.text}" if cell.paper.text else ours
    return Panel(f"{cell.experiment}, {things}", line, rows, EXPERIMENTS[cell.experiment].about)


# --- drawing ------------------------------------------------------------------------------------------------


def drawn(panels: Sequence[Panel], ks: Sequence[int], columns: int) -> Tensor:
    """The sheet (3, H, W), 8-bit: a block of pictures for each panel, K in the margin."""
    block = columns * (SIDE + GAP) + 3 * GAP
    step = SIDE + WORDS + GAP
    sheet = Image.new("RGB", (MARGIN + len(panels) * block, TITLE + len(ks) * step), PAPER)
    pen = ImageDraw.Draw(sheet)
    for row, k in enumerate(ks):
        write(pen, (6, TITLE + row * step + SIDE // 2 - LARGE), f"K={k}", LARGE)
    for number, panel in enumerate(panels):
        left = MARGIN + number * block
        title(pen, left, panel, block)
        for row, k in enumerate(ks):
            for column, shown in enumerate(panel.rows.get(k, [])[:columns]):
                corner = (left + column * (SIDE + GAP), TITLE + row * step)
                put(sheet, pen, corner, shown)
    return torch.from_numpy(np.array(sheet)).permute(2, 0, 1)


def title(pen: ImageDraw.ImageDraw, left: int, panel: Panel, width: int) -> None:
    write(pen, (left, 3), panel.head, LARGE)
    write(pen, (left, 21), cut(panel.line, width), SMALL)
    if width > 2 * ABOUT:  # else it would run into the next panel
        write(pen, (left + ABOUT, 6), cut(panel.about, width - ABOUT), SMALL)


def cut(text: str, width: int, size: int = SMALL) -> str:
    """The beginning of a line that fits."""
    font = ImageFont.load_default(size)
    while text and font.getlength(text) > width:
        text = text[:-1]
    return text


def write(pen: ImageDraw.ImageDraw, at: tuple[int, int], text: str, size: int, ink=INK) -> None:
    pen.text(at, text, font=ImageFont.load_default(size), fill=ink)


def put(sheet: Image.Image, pen: ImageDraw.ImageDraw, corner: tuple[int, int], shown: Shown) -> None:
    """A picture with its dots, and below it a tick or a cross, found of asked, and extras.

    What the judge does not know for a scene is orange, with a question mark.
    """
    dots = [want for want in shown.wanted if not isinstance(want, str)]
    image = as_image(marked(shown.picture, dots)).resize((SIDE, SIDE), Image.Resampling.BICUBIC)
    sheet.paste(image, corner)
    left, top = corner[0] + 2, corner[1] + SIDE + 2
    ink = ODD if shown.strange else GOOD if shown.ok else BAD
    (tick if shown.ok else cross)(pen, left, top, ink)
    words = f"{shown.found}/{len(shown.wanted)}" + (f" +{shown.extra}" if shown.extra else "")
    write(pen, (left + 14, top - 2), words + ("  ?" if shown.strange else ""), SMALL, ink)
    for number, color in enumerate(want for want in shown.wanted if isinstance(want, str)):
        swatch(pen, left + 50 + number * (SWATCH + 2), top, color)


def tick(pen: ImageDraw.ImageDraw, left: int, top: int, ink) -> None:
    pen.line([(left, top + 5), (left + 3, top + 9), (left + 9, top)], fill=ink, width=2)


def cross(pen: ImageDraw.ImageDraw, left: int, top: int, ink) -> None:
    pen.line([(left, top + 1), (left + 8, top + 9)], fill=ink, width=2)
    pen.line([(left + 8, top + 1), (left, top + 9)], fill=ink, width=2)


def swatch(pen: ImageDraw.ImageDraw, left: int, top: int, color: str) -> None:
    pen.rectangle((left, top + 1, left + SWATCH, top + 1 + SWATCH), fill=COLORS[color], outline=INK)
