"""What all matplotlib figures share: one style, heat maps, matrices of cosines, noise-level axes, colors, saving.

Figures are made without pyplot, so that nothing global is kept.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize, PowerNorm
from matplotlib.figure import Figure, FigureBase
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.patches import Rectangle
from matplotlib.ticker import LogLocator, NullFormatter
from torch import Tensor

from tessera.files import atomic
from tessera.render.image_io import to_uint8

INK, QUIET, GRID = "#22252b", "#8a8f98", "#e4e6ea"
LEARNED, BAND, INTERVAL = "#c8553d", "#cfd4dc", "#e9b7a9"  # a network, untrained ones, a 95% interval
HEAT = "inferno"
_COSINES = "RdBu_r"  # white is a right angle
GAMMA = 0.5  # heat maps show the root of influence, or nothing but the probe would be visible
# One color per condition, apart from each other on white and on dark heat maps.
CONDITIONS = (
    "#e4572e", "#1b98e0", "#59a14f", "#b07aa1", "#f2b134", "#17becf",
    "#d37295", "#8c6d31", "#6b6ecf", "#7f7f7f", "#bcbd22", "#3d405b",
)  # fmt: skip
STYLE: dict[Any, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "axes.axisbelow": True,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "lines.linewidth": 1.8,
    "lines.solid_capstyle": "round",
    "figure.constrained_layout.use": True,
    "savefig.dpi": 200,
    "svg.fonttype": "none",
    "svg.hashsalt": "tessera",
}


def styled(draw: Callable[..., Figure]) -> Callable[..., Figure]:
    """A drawing function that uses our style, whatever the caller's."""

    def drawn(*args: Any, **options: Any) -> Figure:
        with matplotlib.rc_context(STYLE):
            return draw(*args, **options)

    drawn.__doc__ = draw.__doc__
    return drawn


def save_figure(figure: Figure, path: Path) -> None:
    """In the format of the path's suffix; the same drawing always gives the same file."""
    kind = path.suffix[1:]
    with matplotlib.rc_context(STYLE), atomic(path) as temporary:
        figure.savefig(temporary, format=kind, metadata={"Date": None} if kind == "svg" else None)


def compact_layout() -> ConstrainedLayoutEngine:
    """For grids of many small images."""
    return ConstrainedLayoutEngine(w_pad=0.02, h_pad=0.02, wspace=0.01, hspace=0.01)


def figure_title(figure: FigureBase, text: str, size: float = 10.5) -> None:
    if text:
        figure.suptitle(text, x=0.01, ha="left", fontsize=size)


# -- colors ------------------------------------------------------------------------------------------------


def condition_color(number: int) -> str:
    return CONDITIONS[number % len(CONDITIONS)]


def distinct_colors(count: int) -> list[Any]:
    """`CONDITIONS` while they last, else colors of a longer list, or of a whole scale."""
    if count <= len(CONDITIONS):
        return list(CONDITIONS[:count])
    scale, at = ("tab20", range(count)) if count <= 20 else ("turbo", np.linspace(0, 1, count))
    return [matplotlib.colormaps[scale](position) for position in at]


# -- images and heat maps ----------------------------------------------------------------------------------


def evenly_spaced(count: int, columns: int) -> list[int]:
    """At most `columns` of `count` numbers, evenly spread, the first and the last among them."""
    return sorted({round(number) for number in np.linspace(0, count - 1, min(count, columns))})


def show_image(ax: Axes, image: Tensor) -> None:
    """An image (C, H, W) in [-1, 1]; one channel is shown in gray."""
    shown = to_uint8(image).permute(1, 2, 0).numpy()
    ax.imshow(shown if shown.shape[-1] == 3 else shown[..., 0], cmap="gray", vmin=0, vmax=255)
    _hide_axes(ax)


def show_heat_map(ax: Axes, values: Tensor, highest: float | None = None) -> None:
    """Influence (H, W) by its root, from 0 to `highest` (default: its own maximum)."""
    highest = float(values.max()) if highest is None else highest
    ax.imshow(values.numpy(), cmap=HEAT, norm=PowerNorm(GAMMA, 0, max(highest, 1e-30)))
    _hide_axes(ax)


def heat_colors(values: Tensor, highest: float | None = None) -> Tensor:
    """The same as an 8-bit image (3, H, W)."""
    highest = float(values.max()) if highest is None else highest
    level = (values.double() / max(highest, 1e-30)).clamp(0, 1).pow(GAMMA)
    colors = matplotlib.colormaps[HEAT](level.numpy())[..., :3]  # (H, W, 3)
    return torch.from_numpy((255 * colors).round().astype(np.uint8)).permute(2, 0, 1)


def outline_square(ax: Axes, at: tuple[int, int], side: int) -> None:
    """A square of so many pixels around a pixel (row, col)."""
    row, col = at
    ax.add_patch(Rectangle((col - side / 2, row - side / 2), side, side, fill=False, ec="white", lw=0.8, alpha=0.9))


def _hide_axes(ax: Axes) -> None:
    """Leave nothing but the image, exactly as large as it is."""
    height, width = ax.get_images()[0].get_array().shape[:2]  # type: ignore[union-attr]
    ax.set(xticks=[], yticks=[], xlim=(-0.5, width - 0.5), ylim=(height - 0.5, -0.5))
    _hide_frame(ax)


def _hide_frame(ax: Axes) -> None:
    ax.grid(False)
    for side in ax.spines.values():
        side.set_visible(False)


def sigma_title(ax: Axes, sigma: float) -> None:
    """The noise level above a column of images."""
    ax.set_title(rf"$\sigma$ = {sigma:.2g}", fontsize=8, loc="center")


def show_cosines(ax: Axes, matrix: Tensor) -> None:
    """Cosines (C, C) from -1 to 1."""
    ax.imshow(matrix.numpy(), cmap=_COSINES, vmin=-1, vmax=1)
    ax.set(xticks=[], yticks=[])
    _hide_frame(ax)


def cosine_bar(figure: FigureBase, axes: np.ndarray) -> None:
    """The color scale of `show_cosines`, beside all axes."""
    scale = ScalarMappable(Normalize(-1, 1), _COSINES)
    bar = figure.colorbar(scale, ax=axes, shrink=min(1.0, 1.6 / len(axes)), aspect=14, pad=0.01)
    bar.set_label("cosine", fontsize=8)
    bar.ax.tick_params(labelsize=7)
    bar.outline.set_visible(False)  # type: ignore[operator]


# -- curves ------------------------------------------------------------------------------------------------


def noise_axis(ax: Axes) -> None:
    """Noise levels along x as sampling runs: high noise left."""
    ax.set_xscale("log")
    ax.xaxis.set_major_locator(LogLocator(numticks=4))
    ax.xaxis.set_minor_formatter(NullFormatter())
    if not ax.xaxis_inverted():
        ax.invert_xaxis()
