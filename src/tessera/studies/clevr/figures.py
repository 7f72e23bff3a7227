"""The paper's image grids (Figures 1, 4, 5 left and 8): red dots at the prompted locations, results below."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from tessera.config import EXPERIMENTS, look_up
from tessera.evaluation.explain import BAD, GOOD, INK, ODD, PAPER
from tessera.files import make_folder, read_json
from tessera.plots.image_grid import as_image, fitting_text, mark_locations
from tessera.records import current_words
from tessera.render.image_io import COMPACT, save_image
from tessera.scenes.vocabulary import COLOR_NAMES, COLORS, LOCATIONS
from tessera.studies.clevr.entries import CELLS, StudyEntry
from tessera.studies.clevr.image_grids import IMAGE_GRID, ShownImages, load_image_grid
from tessera.studies.clevr.runs import StudyPaths, job_name

SIDE = 128  # of an image, in pixels
GAP, _WORDS, _TITLE, _MARGIN = 4, 14, 40, 44
_SMALL, _LARGE = 11, 15
_SWATCH, _ABOUT = 7, 200
_Stroke = Sequence[tuple[int, int]]
_TICK: list[_Stroke] = [((0, 5), (3, 9), (9, 0))]  # below an image that succeeds
_CROSS: list[_Stroke] = [((0, 1), (8, 9)), ((8, 1), (0, 9))]


class Figure(NamedTuple):
    """Which cells stand side by side, which Ks below each other, and how many images each gets."""

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
    """A block of a figure: images by K, below a head and a line about it."""

    head: str
    line: str
    rows: dict[int, list[ShownImages]]
    about: str = ""  # beside the head, where there is room


def save_figure(name: str, paths: StudyPaths, preset: str, seed: int = 0) -> Path | None:
    """results/figures/NAME-PRESET.webp from the images kept so far; None if there are none."""
    figure = look_up(name, FIGURES, "figure")
    panels = [_panel_for(CELLS[cell], paths, preset, seed) for cell in figure.cells]
    if not any(panel.rows for panel in panels):
        return None
    path = make_folder(paths.figures) / f"{name}-{preset}{COMPACT}"
    save_image(path, drawn(panels, figure.ks, figure.columns))
    return path


def _panel_for(cell: StudyEntry, paths: StudyPaths, preset: str, seed: int) -> Panel:
    """A cell; without images it was not run."""
    objects = f"1 to {cell.max_train_objects} objects" if cell.max_train_objects > 1 else "1 object"
    job = job_name(cell.name, preset, seed)
    path, grid = paths.records / f"{job}.json", paths.image_grids / f"{job}{IMAGE_GRID}"
    ours, rows = "not run", {}
    if path.is_file() and grid.is_file():
        record = current_words(read_json(path))
        known: tuple = COLOR_NAMES if cell.experiment == "color" else LOCATIONS
        rows = load_image_grid(grid, record, {int(k): known[: int(k)] for k in record["shown"]})
        ours = f"K_max {record['result']['k_max']['paper']['value']}"
    line = f"{ours}, paper: {cell.paper.text}" if cell.paper.text else ours
    return Panel(f"{cell.experiment}, {objects}", line, rows, EXPERIMENTS[cell.experiment].about)


# --- drawing ------------------------------------------------------------------------------------------------


def drawn(panels: Sequence[Panel], ks: Sequence[int], columns: int) -> Tensor:
    """The image grid (3, H, W), 8-bit: a block of images for each panel, K in the margin."""
    block = columns * (SIDE + GAP) + 3 * GAP
    step = SIDE + _WORDS + GAP
    canvas = Image.new("RGB", (_MARGIN + len(panels) * block, _TITLE + len(ks) * step), PAPER)
    pen = ImageDraw.Draw(canvas)
    for row, k in enumerate(ks):
        _write(pen, (6, _TITLE + row * step + SIDE // 2 - _LARGE), f"K={k}", _LARGE)
    for number, panel in enumerate(panels):
        left = _MARGIN + number * block
        _write(pen, (left, 3), panel.head, _LARGE)
        _write(pen, (left, 21), fitting_text(panel.line, block, _SMALL), _SMALL)
        if block > 2 * _ABOUT:  # else it would run into the next panel
            _write(pen, (left + _ABOUT, 6), fitting_text(panel.about, block - _ABOUT, _SMALL), _SMALL)
        for row, k in enumerate(ks):
            for column, shown in enumerate(panel.rows.get(k, [])[:columns]):
                _put(canvas, pen, (left + column * (SIDE + GAP), _TITLE + row * step), shown)
    return torch.from_numpy(np.array(canvas)).permute(2, 0, 1)


def _write(pen: ImageDraw.ImageDraw, at: tuple[int, int], text: str, size: int, ink=INK) -> None:
    pen.text(at, text, font=ImageFont.load_default(size), fill=ink)


def _put(canvas: Image.Image, pen: ImageDraw.ImageDraw, corner: tuple[int, int], shown: ShownImages) -> None:
    """An image with its dots, and below it a tick or a cross, objects found of those prompted, and extras.

    What the detector does not know for a scene is orange, with a question mark.
    """
    dots = [want for want in shown.wanted if not isinstance(want, str)]
    image = as_image(mark_locations(shown.image, dots)).resize((SIDE, SIDE), Image.Resampling.BICUBIC)
    canvas.paste(image, corner)
    left, top = corner[0] + 2, corner[1] + SIDE + 2
    ink = ODD if shown.ood else GOOD if shown.ok else BAD
    for stroke in _TICK if shown.ok else _CROSS:
        pen.line([(left + x, top + y) for x, y in stroke], fill=ink, width=2)
    words = f"{shown.found}/{len(shown.wanted)}" + (f" +{shown.extra}" if shown.extra else "")
    _write(pen, (left + 14, top - 2), words + ("  ?" if shown.ood else ""), _SMALL, ink)
    for number, color in enumerate(want for want in shown.wanted if isinstance(want, str)):
        x = left + 50 + number * (_SWATCH + 2)
        pen.rectangle((x, top + 1, x + _SWATCH, top + 1 + _SWATCH), fill=COLORS[color], outline=INK)
