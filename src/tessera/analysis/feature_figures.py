"""Figures of a feature study: cosine matrices as in the paper's Figures 5 and 11, curves over layers, leakage."""

import math
from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure, FigureBase
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from tessera.analysis.feature_statistics import Band, off_diagonal
from tessera.analysis.feature_study import FeatureResult, Level, mean_over_hooks
from tessera.analysis.hooks import OUTPUT, SCALE
from tessera.analysis.locality_figures import condition_name
from tessera.plots import figures
from tessera.rows import plural
from tessera.scenes.vocabulary import COLORS

_SHARES = {  # of the change when a condition is removed
    "own": ("#2a6f97", "along the removed condition's own vector"),
    "others": ("#e09f3e", "along other conditions' vectors"),
    "elsewhere": ("#d9dce1", "elsewhere"),
}
_COLUMNS = 9
_ROOM = 0.12  # above the curves, for the mean over hooks
_CORNER: dict[str, Any] = {
    "ha": "right",
    "va": "top",
    "fontsize": 7,
    "zorder": 4,
    "bbox": {"fc": "white", "ec": "none", "alpha": 0.8, "pad": 1},
}
_EARLY = 2  # resolutions the paper averages and calls its feature space


# -- matrices ----------------------------------------------------------------------------------------------


@figures.styled
def figure_matrices(result: FeatureResult, number: int, name: str) -> Figure:
    """Figure 11's layout: cosines of the conditions' mean differences at every hook, section by section."""
    level, rows = result.learned[number], []
    for section in _sections(level).values():
        rows += np.array_split(section, -(-len(section) // _COLUMNS))  # even rows
    columns = max(len(row) for row in rows)
    figure = Figure(figsize=(1.25 * columns + 1.3, 1.62 * len(rows) + 0.75))
    axes = figure.subplots(len(rows), columns, squeeze=False)
    for row, names in zip(axes, rows, strict=True):
        for ax, hook in zip_longest(row, names):
            if hook is None:
                ax.set_axis_off()
                continue
            found = level[hook].raw
            _show_matrix(ax, found.matrix, result.concepts)
            mean = _with_band(found.off_diagonal, result.band(number, hook, "off_diagonal"))
            ax.set_title(f"{_short(hook)}\n{mean if math.isfinite(found.off_diagonal) else 'no effect'}", fontsize=7)
        row[0].set_ylabel(_section_of(names[0]), fontsize=10, labelpad=12)
    figures.cosine_bar(figure, axes)
    figures.figure_title(
        figure, f"{name}: cosine similarity of conditions' mean differences, $\\sigma$ = {result.sigmas[number]:.3g}"
    )
    figure.supxlabel("above each: mean off the diagonal, in brackets the range of untrained networks", fontsize=7.5)
    return figure


@figures.styled
def figure_early(result: FeatureResult, number: int, name: str) -> Figure:
    """Figure 5 (right), with its control below: the encoder's layers, and the mean of the early ones."""
    level, nulls = result.learned[number], result.null_level(number)
    networks = {"learned": level}
    if nulls:
        networks[f"untrained\n(one of {len(nulls)})"] = nulls[0]
    hooks = _sections(level).get("encoder") or list(level)
    sides = list(dict.fromkeys(map(_side_of, hooks)))[:_EARLY]  # the highest resolutions
    early = [hook for hook in hooks if _side_of(hook) in sides]
    columns = {_short(hook): [hook] for hook in hooks} | {"mean, early": early}
    figure = Figure(figsize=(1.25 * len(columns) + 1.3, 1.5 * len(networks) + 1.1))
    axes = figure.subplots(len(networks), len(columns), squeeze=False)
    size = len(result.concepts)
    for row, (text, network) in zip(axes, networks.items(), strict=True):
        row[0].set_ylabel(text, fontsize=9, labelpad=12)
        for ax, shown_hooks in zip(row, columns.values(), strict=True):
            shown = torch.stack([network[hook].raw.matrix for hook in shown_hooks]).nanmean(0)  # mean of what is known
            _show_matrix(ax, shown, result.concepts)
            ax.set_xlabel(f"{float(off_diagonal(shown)):.2f}", fontsize=7, labelpad=3)
        row[-1].add_patch(Rectangle((-0.5, -0.5), size, size, fill=False, ec=figures.INK, lw=1.4, clip_on=False))
    for ax, text in zip(axes[0], columns, strict=True):
        ax.set_title(text, fontsize=7.5)
    figures.cosine_bar(figure, axes)
    figures.figure_title(figure, f"{name}: conditions in the encoder, $\\sigma$ = {result.sigmas[number]:.3g}")
    note = f"framed: mean over the {len(early)} early layers; below each: mean off the diagonal"
    figure.supxlabel(note, fontsize=7.5)
    return figure


def _show_matrix(ax: Axes, matrix: Tensor, concepts: Sequence[Any]) -> None:
    """Cosines from -1 to 1, with a band of the conditions' own colors along two sides."""
    number = len(concepts)
    figures.show_cosines(ax, matrix)
    for i, concept in enumerate(concepts):
        color = [part / 255 for part in COLORS[concept]] if concept in COLORS else figures.condition_color(i)
        for corner, size in (((-1.25, i - 0.5), (0.55, 1)), ((i - 0.5, -1.25), (1, 0.55))):
            ax.add_patch(Rectangle(corner, *size, color=color, lw=0, clip_on=False))
    ax.set(xlim=(-1.3, number - 0.5), ylim=(number - 0.5, -1.3))


def _with_band(value: float, band: Band | None) -> str:
    """A number with the range of the untrained networks."""
    return f"{value:.2f}" + ("" if band is None else f" [{band.low:.2f}, {band.high:.2f}]")


# -- curves over layers ------------------------------------------------------------------------------------

# Text beside each row of axes, and the number that it shows.
_LAYER_ROWS = {
    "cosine between\nconditions": "off_diagonal",
    "rms of it (0: all\nat right angles)": "off_rms",
    "same condition, other\nseeds, less different": "gap",
}
_LEAK_ROWS = {"leakage": "leakage", "feature locality": "locality"}


@figures.styled
def figure_layers(result: FeatureResult, name: str) -> Figure:
    """How far apart conditions are, layer by layer, beside untrained networks."""
    figure, axes = _layer_axes(result, len(_LAYER_ROWS))
    _draw_rows(axes, result, _LAYER_ROWS)
    for ax in axes.flat:
        ax.axhline(0, color=figures.QUIET, lw=0.8, zorder=1)
    for ax in axes[:, 0]:
        low, high = ax.get_ylim()
        ax.set_ylim(low, high + _ROOM * (high - low))
    layer_legend(figure, result)
    figures.figure_title(figure, f"{name}: conditions in feature space")
    return figure


@figures.styled
def figure_leakage(result: FeatureResult, name: str) -> Figure:
    """Where the change goes when one of K conditions is removed."""
    figure, axes = _layer_axes(result, 1 + len(_LEAK_ROWS))
    for ax, level in zip(axes[0], result.learned, strict=True):
        below = np.zeros(len(level))
        for part, (color, _) in _SHARES.items():
            values = np.array([float(getattr(found.leak, part).mean()) for found in level.values()])
            ax.bar(range(len(level)), values, bottom=below, color=color, width=0.86, lw=0)
            below += np.nan_to_num(values)
    axes[0, 0].set_ylabel("share of the change")
    _draw_rows(axes[1:], result, _LEAK_ROWS)
    for ax in axes[2]:
        ax.axhline(1 / result.k, color=figures.QUIET, lw=0.9, ls=(0, (4, 2)), zorder=1)
    for row, top in zip(axes, (1, 1 + _ROOM, 1 + _ROOM), strict=True):
        row[0].set_ylim(0, top)
    shares: list[Any] = [Patch(color=color, label=text) for color, text in _SHARES.values()]
    none = Line2D([], [], color=figures.QUIET, lw=0.9, ls=(0, (4, 2)), label="no locality, 1 / K")
    layer_legend(figure, result, [*shares, none])
    figures.figure_title(figure, f"{name}: one of K = {result.k} conditions removed")
    return figure


def _layer_axes(result: FeatureResult, rows: int) -> tuple[Figure, np.ndarray]:
    """A column per noise level, hooks along x."""
    hooks, columns = list(result.learned[0]), len(result.sigmas)
    figure = Figure(figsize=(columns * (0.17 * len(hooks) + 1.0) + 0.6, 1.9 * rows + 1.5))
    axes = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey="row")
    for ax, sigma in zip(axes[0], result.sigmas, strict=True):
        ax.set_title(rf"$\sigma$ = {sigma:.3g}", pad=14)
    for ax in axes[-1]:
        ax.set_xticks(range(len(hooks)), [_short(hook) for hook in hooks], rotation=90, fontsize=6.5)
    mark_sections(axes, [_section_of(hook) for hook in hooks])
    return figure, axes


def mark_sections(axes: np.ndarray, names: Sequence[str]) -> None:
    """A line where encoder, decoder and output meet; their names above, where there is room."""
    quiet: dict[str, Any] = {"color": figures.QUIET}
    for ax in axes.flat:
        ax.grid(False, axis="x")
        ax.set_xlim(-0.7, len(names) - 0.3)
    for name in dict.fromkeys(names):
        first, count = names.index(name), names.count(name)
        for ax in axes.flat:
            if first:
                ax.axvline(first - 0.5, lw=0.8, ls=":", zorder=1, **quiet)
        for ax in axes[0]:
            if count > 1:
                middle = first + (count - 1) / 2
                ax.text(middle, 1.01, name, transform=ax.get_xaxis_transform(), ha="center", fontsize=7, **quiet)


def _draw_rows(axes: np.ndarray, result: FeatureResult, rows: dict[str, str]) -> None:
    for line, (text, name) in zip(axes, rows.items(), strict=True):
        line[0].set_ylabel(text)
        for number, ax in enumerate(line):
            draw_number(ax, result, number, name)
            mean = mean_over_hooks(result.learned[number], name)  # one number per network
            words = f"mean {_with_band(mean, result.mean_band(number, name))}"
            ax.text(0.99, 0.985, words, transform=ax.transAxes, **_CORNER)
            ax.yaxis.set_major_locator(MaxNLocator(5))


def draw_number(ax: Axes, result: FeatureResult, number: int, name: str) -> None:
    """A curve over hooks with intervals, and the untrained networks' range as steps, for hooks are not a continuum."""
    level = result.learned[number]
    values = [found.measure(name) for found in level.values()]
    ax.plot(range(len(values)), values, color=figures.LEARNED, lw=1.1, marker="o", ms=3, zorder=3)
    for n, (hook, found) in enumerate(level.items()):
        if (ends := found.interval(name)) is not None:
            ax.vlines(n, *ends, color=figures.INTERVAL, lw=3, zorder=2.5)
        if (band := result.band(number, hook, name)) is not None:
            ax.bar(n, band.high - band.low, 1, band.low, color=figures.BAND, lw=0, zorder=1.5)
            ax.hlines(band.mean, n - 0.5, n + 0.5, color=figures.QUIET, lw=0.9, zorder=1.6)


def layer_legend(figure: FigureBase, result: FeatureResult, more: Sequence[Any] = ()) -> None:
    handles: list[Any] = [Line2D([], [], color=figures.LEARNED, marker="o", ms=3, lw=1.1, label="learned (95%)")]
    if result.nulls:
        text = f"range and mean of {plural(len(result.nulls), 'untrained network')}"
        handles.append(Patch(color=figures.BAND, label=text))
    figure.legend(handles=[*handles, *more], loc="outside lower left", ncols=3, fontsize=7.5)


# -- names of hooks ---------------------------------------------------------------------------------------


def _sections(level: Level) -> dict[str, list[str]]:
    """Hooks by the part of the network they are in; the output stands with the last part."""
    found: dict[str, list[str]] = {}
    for hook in level:
        name = _section_of(hook)
        found.setdefault(list(found)[-1] if hook == OUTPUT and found else name, []).append(hook)
    return found


def _section_of(hook: str) -> str:
    return hook.partition(".")[0]


def _side_of(hook: str) -> str:
    return (hook.split(".") + [""])[1]


def _short(hook: str) -> str:
    """`encoder.64.block0.scale` as `64 block0`."""
    parts = [part for part in hook.split(".") if part != SCALE]
    return " ".join(parts[1:]) if len(parts) > 1 else hook


def names_of(concepts: Sequence[Any]) -> list[str]:
    return [condition_name(concept) for concept in concepts]
