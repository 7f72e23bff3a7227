"""Charts as inline SVG whose colors are the page's own, so that they follow light, dark and print."""

import html
import io
import re
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator, PercentFormatter

from tessera.app.report.columns import ReportColumn, span
from tessera.app.report.verdict import reach_of
from tessera.plots.figures import CONDITIONS, GRID, INK, QUIET, STYLE, noise_axis, styled
from tessera.rows import columns

PAPER = "#ffffff"
_SERIES = ("#c4472b", "#1f6f9f", "#5b7d1e", "#8457a6", "#b87a12", "#0f8a7e", "#b3446c", "#5a6270")
# Colors a figure is drawn with, and the page's name for each.
_NAMES = {INK: "ink", QUIET: "quiet", GRID: "grid", PAPER: "paper"}
_NAMES |= {color: f"series-{number}" for number, color in enumerate(_SERIES)}
_NAMES |= {color: f"series-{number % len(_SERIES)}" for number, color in enumerate(CONDITIONS)}


def series(number: int) -> str:
    return _SERIES[number % len(_SERIES)]


def svg(figure: Figure, name: str, alt: str) -> str:
    """The figure as an SVG element: the same every time, with ids of its own and the page's colors."""
    text = io.StringIO()
    with matplotlib.rc_context(STYLE):
        figure.savefig(text, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    body = re.sub(r"^.*?(?=<svg)", "", text.getvalue(), flags=re.DOTALL)
    body = re.sub(r"<metadata>.*?</metadata>\s*", "", body, flags=re.DOTALL)
    body = re.sub(r'\bid="', f'id="{name}-', body)
    body = re.sub(r'(href="#|url\(#)', rf"\g<1>{name}-", body)
    body = re.sub(r"#[0-9a-f]{6}\b", lambda found: _themed(found[0]), body)
    label = f'role="img" aria-label="{html.escape(alt)}"'
    body = re.sub(r'width="[\d.]+pt" height="[\d.]+pt"', lambda _: label, body, count=1)
    return body.strip()


def _themed(color: str) -> str:
    return f"var(--{_NAMES[color]}, {color})" if color in _NAMES else color


# --- how far ------------------------------------------------------------------------------------------------


@styled
def k_curves(subjects: Sequence[ReportColumn], rule: str) -> Figure:
    """Share of images with everything in the prompt, by K; below it K_max, the paper's beside ours."""
    figure = Figure(figsize=(9.6, 3.6 + 0.3 * len(subjects)))
    top, bottom = figure.subplots(
        2, 1, sharex=True, height_ratios=[2.9, 0.32 * len(subjects) + 0.25], gridspec_kw={"hspace": 0.02}
    )
    for number, subject in enumerate(subjects):
        _draw_shares(top, subject, number, number - (len(subjects) - 1) / 2)
        _draw_reach(bottom, subject, number, rule)
    most = {subject.max_train_objects for subject in subjects}
    if len(most) == 1 and (seen := most.pop()):
        top.axvspan(0.5, seen + 0.5, color=GRID, alpha=0.55, lw=0, zorder=0)
        top.text(0.6, 1.06, f"training range: {span(1, seen)}", fontsize=8, color=QUIET)
    top.set(ylabel="all prompted locations filled", ylim=(-0.03, 1.13), yticks=np.linspace(0, 1, 6))
    top.yaxis.set_major_formatter(PercentFormatter(1))
    top.tick_params(labelbottom=False)
    keys = [*top.get_legend_handles_labels()[0], *_reach_keys(subjects)]
    figure.legend(handles=keys, loc="outside upper left", ncols=8)
    _finish_reach(bottom, subjects)
    return figure


def _draw_shares(ax: Axes, subject: ReportColumn, number: int, beside: float) -> None:
    """A line with bars for the 95% interval; models stand a little beside each other."""
    rows = [row for row in subject.rows if row["k"] >= 1]
    k = np.array([row["k"] for row in rows]) + 0.12 * beside
    value, low, high = columns((row["all_found"] for row in rows), "value", "low", "high")
    ax.vlines(k, low, high, color=series(number), lw=1.4, alpha=0.55)
    ax.plot(k, value, color=series(number), marker="o", ms=4.5, mec=PAPER, mew=0.8, label=subject.name)


def _draw_reach(ax: Axes, subject: ReportColumn, number: int, rule: str) -> None:
    found = reach_of(subject.scores, rule)
    if found and found.low is not None and found.high is not None:
        ax.plot([found.low, found.high], [number, number], color=series(number), lw=5, alpha=0.3)
    if found and found.value is not None:
        ax.plot(found.value, number, color=series(number), marker="o", ms=7, mec=PAPER, mew=0.8)
    if subject.paper.k_max is not None:
        ax.plot(subject.paper.k_max, number, marker="D", ms=7, mfc="none", mec=INK, mew=1.1, ls="")


def _finish_reach(ax: Axes, subjects: Sequence[ReportColumn]) -> None:
    ax.set(ylim=(len(subjects) - 0.4, -0.6), xlabel="K, objects in the prompt")
    ax.set_yticks(range(len(subjects)), [subject.name for subject in subjects], fontsize=8)
    ax.set_xlim(-0.4, max([12, *(row["k"] for s in subjects for row in s.rows)]) + 0.5)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=13))
    ax.spines["left"].set_visible(False)
    ax.tick_params(axis="y", length=0)


def _reach_keys(subjects: Sequence[ReportColumn]) -> list[Line2D]:
    """The legend of the lower panel."""
    keys = [Line2D([], [], marker="o", ms=6, color=QUIET, lw=4, alpha=0.5, label="K_max, 95% interval")]
    if any(subject.paper.k_max is not None for subject in subjects):
        keys.append(Line2D([], [], marker="D", ms=6, mfc="none", mec=INK, ls="", label="the paper's K_max"))
    return keys


# --- why ----------------------------------------------------------------------------------------------------


@styled
def locality_curves(subjects: Sequence[ReportColumn]) -> Figure:
    """Conditional locality and the 90% side over noise levels; thick where conditions matter."""
    figure = Figure(figsize=(9.6, 3.2))
    left, right = figure.subplots(1, 2)
    floors = set()
    for number, subject in enumerate(subjects):
        found = (subject.locality or {})["conditional_locality"]
        if found:
            _conditions_curve(left, found, number, len(subjects) - 1 - number)
            floors.add(found["no_locality"])
        _sides_curve(right, subject, number)
    for floor in floors:
        left.axhline(floor, color=QUIET, lw=1, ls=(0, (4, 2)))
        at = {"xy": (0.99, floor + 0.015), "xycoords": left.get_yaxis_transform(), "ha": "right"}
        left.annotate("no locality, 1/K", fontsize=8, color=QUIET, **at)
    left.set(ylabel="conditional locality", ylim=(0, 1.04))
    right.set(ylabel="90% side, share of the image", ylim=(0, 1.04))
    right.yaxis.set_major_formatter(PercentFormatter(1))
    for ax in (left, right):
        noise_axis(ax)
        ax.set_xlabel("noise level σ")
    right.legend(loc="best")
    return figure


def _conditions_curve(ax: Axes, found: Mapping[str, Any], number: int, below: int) -> None:
    known = [level for level in found["by_level"] if level["locality"] is not None]
    sigma, value, low, high = map(np.array, columns(known, "sigma", "locality", "low", "high"))
    band, shown = found["band"], dict[str, Any](color=series(number), zorder=3 + number)
    ax.fill_between(sigma, low, high, color=series(number), alpha=0.14, lw=0)
    ax.plot(sigma, value, lw=1.1, **shown)
    thick = 3 + 2.2 * below  # lines that lie on one another are all seen
    inside = (sigma >= band["sigma_min"]) & (sigma <= band["sigma_max"])
    ax.plot(sigma[inside], value[inside], lw=thick, marker="o", ms=thick + 1, **shown)


def _sides_curve(ax: Axes, subject: ReportColumn, number: int) -> None:
    levels, size = (subject.locality or {})["levels"], subject.size or 1
    sigma = [level["sigma"] for level in levels]
    sides = (level["side90_each"] for level in levels)
    mean, low, high = np.array(list(columns(sides, "value", "low", "high"))) / size
    ax.fill_between(sigma, low, high, color=series(number), alpha=0.14, lw=0)
    ax.plot(sigma, mean, color=series(number), marker="o", ms=3, lw=1.6, label=subject.name)


# --- training -----------------------------------------------------------------------------------------------


@styled
def loss_curves(subjects: Sequence[ReportColumn]) -> Figure:
    figure = Figure(figsize=(9.6, 2.4))
    ax = figure.subplots()
    for number, subject in enumerate(subjects):
        if subject.log:
            seen, loss = columns(subject.log, "images_seen", "loss")
            ax.plot(seen, loss, color=series(number), lw=1.2, label=subject.name)
    ax.set(xlabel="images seen", ylabel="loss")
    ax.legend(loc="best")
    return figure


# --- dynamics -----------------------------------------------------------------------------------------------


@styled
def phase(record: Mapping[str, Any]) -> Figure:
    """How often a run rises before it falls, over two settings."""
    figure = Figure(figsize=(4.1, 3.1))
    ax = figure.subplots()
    x, y = record["x"], record["y"]
    look: dict[str, Any] = {"cmap": "cividis", "vmin": 0, "vmax": 1, "shading": "nearest", "rasterized": True}
    mesh = ax.pcolormesh(x["values"], y["values"], np.array(record["share"]), **look)
    ax.set(xlabel=x["name"], ylabel=y["name"], xscale=_scale_of(x["values"]), yscale=_scale_of(y["values"]))
    ax.grid(False)
    bar = figure.colorbar(mesh, ax=ax, format=PercentFormatter(1))
    bar.set_label("starts that swing by", fontsize=8)
    bar.outline.set_visible(False)  # type: ignore[operator]
    return figure


def _scale_of(values: Sequence[float]) -> str:
    return "log" if min(values) > 0 and max(values) / min(values) > 50 else "linear"


@styled
def shares_by(record: Mapping[str, Any]) -> Figure:
    """How often default starts rise, by depth or by width."""
    what = record["study"]
    figure = Figure(figsize=(4.1, 3.1))
    ax = figure.subplots()
    groups = sorted({row.get("dim") for row in record["rows"]}, key=lambda dim: dim or 0)
    for number, dim in enumerate(groups):
        rows = [row for row in record["rows"] if row.get("dim") == dim]
        across, value, low, high = columns(rows, what, "value", "low", "high")
        ax.vlines(across, low, high, color=series(number), lw=1.4, alpha=0.55)
        label = f"{dim} dimensions" if dim else None
        ax.plot(across, value, color=series(number), marker="o", ms=4.5, label=label)
    if max(row[what] for row in record["rows"]) > 16:
        ax.set_xscale("log", base=2)
    else:
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.set(xlabel=what, ylabel="starts that swing by", ylim=(-0.03, 1.03))
    ax.yaxis.set_major_formatter(PercentFormatter(1))
    if groups != [None]:
        ax.legend(loc="best")
    return figure
