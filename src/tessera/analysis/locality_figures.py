"""Figures in the manner of the paper's Figures 2, 10 and 12, from what `study` measured."""

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure, FigureBase
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from matplotlib.patheffects import withStroke
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from tessera.analysis.locality import Probe, SceneLocality
from tessera.analysis.scatter import Point, kind_of
from tessera.plots import figures
from tessera.rows import columns

COLUMNS = 8  # levels shown side by side
FAINT = 0.07  # of a cross whose condition does not matter at all


# -- Figure 2: heat-maps with crosses --------------------------------------------------------------------------


@figures.styled
def figure_maps(result: SceneLocality, title: str = "") -> Figure:
    """The clean estimates, then a row of heat-maps per probe, from high noise (left) to low."""
    levels = figures.evenly_spaced(len(result.sigmas), COLUMNS)
    rows = 1 + len(result.probes)
    size = (1.05 * len(levels) + 0.75, 1.05 * rows + 0.55 + 0.25 * bool(title))
    figure = Figure(figsize=size, layout=figures.compact_layout())
    _draw_maps(figure, result, levels)
    note = "heat: pixel influence (root, each map to its own maximum)   \u25a1 90% of its energy"
    if result.condition_influence.shape[-1]:
        note += "   \u00d7 strength: influence of that condition on the probe (root)"
    figure.supxlabel(note, fontsize=7, color=figures.QUIET)
    figures.figure_title(figure, title, 10)
    return figure


def _draw_maps(figure: FigureBase, result: SceneLocality, levels: Sequence[int]) -> None:
    """A column for each level: its clean estimate with rings at prompted locations, and a heat map for each probe."""
    axes = figure.subplots(1 + len(result.probes), len(levels), squeeze=False)
    for column, level in zip(axes.T, levels):
        figures.show_image(column[0], result.clean[level])
        figures.sigma_title(column[0], result.sigmas[level])
        for number, part in enumerate(result.prompt):
            _mark(column[0], part, number, marker="o", ms=4, mfc="none", mew=1.1)
        for number, (ax, probe) in enumerate(zip(column[1:], result.probes)):
            figures.show_heat_map(ax, result.influence[level, number])
            figures.outline_square(ax, probe.at, int(result.sides[level, number]))
            _draw_crosses(ax, result, number, level)
    _name_rows(axes, ["denoised", *(probe.title for probe in result.probes)])


def _draw_crosses(ax: Axes, result: SceneLocality, probe: int, level: int) -> None:
    """A cross at every prompted location, the stronger the more its condition influences the probe."""
    condition_influence = result.condition_influence.mean(0).numpy()  # (S, P, K); one scale for the whole figure
    strength = np.sqrt(condition_influence[level, probe] / condition_influence.max(initial=1e-30))
    for number, part in enumerate(result.prompt):
        alpha = min(1.0, FAINT + (1 - FAINT) * float(strength[number]))
        rim = [withStroke(linewidth=3.2, foreground="white", alpha=0.75 * alpha)]
        _mark(ax, part, number, marker="x", ms=6, mew=1.8, alpha=alpha, path_effects=rim)


def _mark(ax: Axes, part: Any, number: int, **style: Any) -> None:
    """A marker in the color of a condition at its location, if it has one."""
    if not isinstance(part, str):
        x, y = part
        ax.plot(x, 1 - y, transform=ax.transAxes, color=figures.condition_color(number), **style)


def _name_rows(axes: np.ndarray, names: Sequence[str]) -> None:
    for ax, name in zip(axes[:, 0], names):
        ax.set_ylabel(name, fontsize=8)


@figures.styled
def figure_conditions(maps: Tensor, sigmas: Sequence[float], conditions: Sequence[Any], title: str = "") -> Figure:
    """Where each condition acts: Eq. 10 over the whole image (S, K, H, W), a row per condition, a scale per level."""
    levels = figures.evenly_spaced(len(sigmas), COLUMNS)
    rows = max(1, len(conditions))
    size = (max(3.4, 1.05 * len(levels) + 0.9), 1.05 * rows + 0.5 + 0.25 * bool(title))
    figure = Figure(figsize=size, layout=figures.compact_layout())
    axes = figure.subplots(rows, len(levels), squeeze=False)
    for column, level in zip(axes.T, levels):
        figures.sigma_title(column[0], sigmas[level])
        for number, (ax, part) in enumerate(zip(column, conditions)):
            figures.show_heat_map(ax, maps[level, number], float(maps[level].max()))
            _mark(ax, part, number, marker="o", ms=9, mfc="none", mew=1.1)
    _name_rows(axes, [condition_name(part) for part in conditions])
    note = "change when one condition is removed (root, one scale per column)"
    figure.supxlabel(note, fontsize=7, color=figures.QUIET)
    figures.figure_title(figure, title)
    return figure


def condition_name(part: Any) -> str:
    return part if isinstance(part, str) else f"({part[0]:.2g}, {part[1]:.2g})"


# -- Figure 10: curves -----------------------------------------------------------------------------------------


@figures.styled
def figure_curves(result: SceneLocality, title: str = "", band: tuple[float, float] | None = None) -> Figure:
    """Condition influence at every probe, then the 90% side and the total energy over noise levels."""
    panels = result.probes if result.condition_influence.shape[-1] else []
    left = math.ceil(len(panels) / 2)
    figure = Figure(figsize=(2.15 * left + 5.6, 3.9 if panels else 2.9))
    grid = figure.add_gridspec(2, left + 2, width_ratios=[1] * left + [1.3, 1.3])
    influence = result.condition_influence.numpy()  # (B, S, P, K)
    highest = max(np.quantile(influence, 0.9, axis=0).max(initial=1e-30), influence.mean(0).max(initial=1e-30))
    share_y = None
    for number, probe in enumerate(panels):
        ax = figure.add_subplot(grid[number % 2, number // 2], sharey=share_y)
        share_y = share_y or ax
        ax.set_ylim(0, 1.05 * highest)  # one scale for all, set before it is shared further
        _condition_curves(ax, result, number, probe)
        if band is not None:
            ax.axvspan(*band, color=figures.GRID, alpha=0.6, lw=0, zorder=0)
        if number // 2 == 0:
            ax.set_ylabel("condition influence $I_k$")
        if number % 2 == 1 or number == len(panels) - 1:
            ax.set_xlabel(r"noise level $\sigma$")
    side, energy = (figure.add_subplot(grid[:, left + n]) for n in (0, 1))
    _probe_curves(side, result, result.sides.float(), "90% side, pixels")
    _probe_curves(energy, result, result.energy, "total pixel energy", log=True)
    side.set_ylim(0, None)
    side.set_title("Pixel neighborhood")
    energy.set_title("Pixel energy")
    if panels:
        _condition_legend(figure, result, band is not None)
    side.legend(fontsize=7, loc="best")
    figures.figure_title(figure, title, 10)
    return figure


def _condition_legend(figure: Figure, result: SceneLocality, shaded: bool) -> None:
    handles: list[Any] = []
    for k, part in enumerate(result.prompt):
        handles.append(Line2D([], [], color=figures.condition_color(k), lw=2.4, label=condition_name(part)))
    if shaded:
        handles.append(Rectangle((0, 0), 1, 1, color=figures.GRID, label="band where conditions matter"))
    figure.legend(handles=handles, loc="outside lower left", ncols=7, fontsize=7)


def _condition_curves(ax: Axes, result: SceneLocality, number: int, probe: Probe) -> None:
    influence = result.condition_influence[:, :, number].numpy()  # (B, S, K)
    for k in range(influence.shape[-1]):
        values, color, own = influence[..., k], figures.condition_color(k), k == probe.condition
        ax.plot(result.sigmas, values.mean(0), color=color, lw=2.4 if own else 1.2, zorder=3 + own)
        if len(values) > 1:
            low, high = np.quantile(values, [0.1, 0.9], axis=0)
            ax.fill_between(result.sigmas, low, high, color=color, alpha=0.12, lw=0)
    own_color = figures.INK if probe.condition is None else figures.condition_color(probe.condition)
    ax.set_title(probe.title, fontsize=9, color=own_color)
    figures.noise_axis(ax)


def _probe_curves(ax: Axes, result: SceneLocality, values: Tensor, name: str, log: bool = False) -> None:
    """values (S, P)."""
    for number, probe in enumerate(result.probes):
        # Where nothing is prompted, the colors of conditions are free for the probes.
        condition = probe.condition if result.prompt else number
        color = figures.INK if condition is None else figures.condition_color(condition)
        ax.plot(result.sigmas, values[:, number], color=color, lw=1.6, label=probe.title, marker="o", ms=2.5)
    if log:
        ax.set_yscale("log")
    figures.noise_axis(ax)
    ax.set(ylabel=name, xlabel=r"noise level $\sigma$")


# -- the definition, put to the test -----------------------------------------------------------------------------


@figures.styled
def figure_residual(rows: Sequence[dict[str, Any]]) -> Figure:
    """Change of a pixel when what should not matter is exchanged, and when everything is."""
    figure = Figure(figsize=(4.2, 3.1))
    ax = figure.subplots()
    sigmas = [row["sigma"] for row in rows]
    ax.plot(sigmas, [row["ceiling"] for row in rows], color=figures.QUIET, ls=(0, (4, 2)), label="everything exchanged")
    for name, color in zip(("pixels", "conditions", "both"), figures.CONDITIONS):
        changes = [row[name] for row in rows]
        label = f"{name} beyond the neighborhood" if name != "both" else "both"
        ax.plot(sigmas, [change["rms"] for change in changes], color=color, label=label)
        low, high = columns(changes, "low", "high")
        ax.fill_between(sigmas, low, high, color=color, alpha=0.15, lw=0)
    figures.noise_axis(ax)
    ax.set(xlabel=r"noise level $\sigma$", ylabel="change of the clean pixel (rms)", ylim=(0, None))
    ax.legend(fontsize=7)
    return figure


# -- Figure 2, right: length generalization against locality -------------------------------------------------------

_DODGE = 0.5  # models that reach the same K_max stand a little beside each other
_STAGES = (("early", "o"), ("mid", "s"), ("late", "^"))


@figures.styled
def figure_scatter(points: Sequence[Point], record: dict[str, Any]) -> Figure:
    """A color per kind of model, a shape per stage of its training, bars for the interval of locality."""
    models = list(dict.fromkeys(point.model for point in points))
    kinds = Counter(kind_of(model) for model in models)
    colors = dict(zip(kinds, figures.distinct_colors(len(kinds))))
    figure = Figure(figsize=(6.2, max(3.9, 0.21 * (len(kinds) + len(_STAGES)))))  # as tall as its legend
    ax = figure.subplots()
    for number, model in enumerate(models):
        color = colors[kind_of(model)]
        own = sorted((p for p in points if p.model == model), key=lambda p: p.images_seen)
        shift = _DODGE * (number - (len(models) - 1) / 2) / max(len(models), 1)
        across = [point.gained + shift for point in own]
        ax.plot(across, [point.locality for point in own], color=color, lw=0.9, alpha=0.45, zorder=2)
        for point, x in zip(own, across):
            _draw_point(ax, point, x, _stage_of(point, own), color)
    for kind, trainings in kinds.items():
        label = kind if trainings == 1 else f"{kind}, {trainings} trainings"
        ax.plot([], [], color=colors[kind], marker="o", ls="", ms=5, label=label)
    for stage, marker in _STAGES:
        ax.plot([], [], color=figures.QUIET, marker=marker, ls="", ms=5, mfc="none", label=stage)
    ax.axvline(0, color=figures.QUIET, lw=0.8, zorder=1)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.set(xlabel="length generalization  ($K_{max}$ less the most in training)", ylabel="conditional locality")
    ax.set_ylim(0, 1.03)
    ax.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), fontsize=7)
    ax.set_title(_correlation_words(record))
    return figure


def _draw_point(ax: Axes, point: Point, across: float, marker: str, color: str) -> None:
    if point.low is not None and point.high is not None:
        ax.vlines(across, point.low, point.high, color=color, lw=1, alpha=0.7, zorder=3)
    ax.plot(across, point.locality, marker=marker, color=color, mec="white", mew=0.6, ms=7, zorder=4)


def _stage_of(point: Point, own: Sequence[Point]) -> str:
    """Third of the model's training that a snapshot belongs to, as a marker."""
    share = point.images_seen / max(1, *(p.images_seen for p in own)) if own[-1].images_seen else 1.0
    return _STAGES[max(0, min(2, math.ceil(3 * share) - 1))][1]


def _correlation_words(record: dict[str, Any]) -> str:
    rank = record["spearman"]
    if rank["value"] is None:
        return "no correlation: one of the two does not vary"
    low, high = rank["interval"]
    return f"Spearman {rank['value']:.2f}  (95%: {low:.2f} to {high:.2f}),  {record['points']} snapshots"


# -- Figure 12 -------------------------------------------------------------------------------------------------


@figures.styled
def figure_12(result: SceneLocality, title: str = "") -> Figure:
    """Left: 90% side and energy over noise levels. Right: denoised images and heat-maps at every probe."""
    levels = figures.evenly_spaced(len(result.sigmas), COLUMNS)
    rows = 1 + len(result.probes)
    figure = Figure(figsize=(3.1 + 0.95 * len(levels), 0.98 * rows + 0.55))
    left, right = figure.subfigures(1, 2, squeeze=False, width_ratios=[2.9, 0.95 * len(levels)])[0]
    top, bottom = left.subplots(2, 1, sharex=True)
    _probe_curves(top, result, result.sides.float(), "90% side, pixels")
    _probe_curves(bottom, result, result.energy, "pixel energy", log=True)
    top.set(xlabel="", ylim=(0, None))
    top.legend(fontsize=7)
    _draw_maps(right, result, levels)
    figures.figure_title(figure, title, 10)
    return figure
