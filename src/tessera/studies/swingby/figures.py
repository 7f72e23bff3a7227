"""The figures of the Swing-by paper drawn from our own runs, and a few it does not have.

Numbers follow the published revision. Figure 1 there is a drawing and figure 6 needs a trained diffusion network.
`FIGURES` at the end names all others.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure

from tessera.plots.figures import GRID, INK, QUIET, STYLE, styled
from tessera.studies.swingby import analysis, bridge, deep, one_layer, symmetric
from tessera.studies.swingby.data import Array, Sim, ordered_pairs, population_loss
from tessera.studies.swingby.integrate import Path
from tessera.studies.swingby.mlp import Recipe, SgdRun, train
from tessera.studies.swingby.starts import aligned_map, positive_factors
from tessera.studies.swingby.sweep import AXES, AxisName, Phase, PhaseSettings, phase_diagram

_CONCEPTS = ("#c8553d", "#2a6f97", "#4f772d", "#7b5ea7")  # one color per concept, weakest first
MINOR, FLOW = "#e09f3e", "#9aa5b1"
_SMOOTH_RATE = 0.02  # a fifth of the source's learning rate, so that early paths are smooth
PAIR = Sim((1, 2), 0.05)
_CANONICAL = aligned_map(0.05, 0.9)
_DOTTED = (0, (1, 1.6))
_TIME = "time  (paper clock)"
_COMPOSITION_ERROR = "error at the composition"


class _Drawing(NamedTuple):
    """A row of equal panels, and the function that draws on their axes."""

    draw: Callable[..., None]
    columns: int
    width: float = 3.4
    height: float = 3.0

    def figure(self, *data: Any) -> Figure:
        figure = Figure(figsize=(self.width * self.columns, self.height))
        self.draw(*data, *figure.subplots(1, self.columns, squeeze=False)[0])
        return figure


@styled
def draw(name: str) -> Figure:
    """Run what figure `name` needs and draw it."""
    return FIGURES[name].figure()


# --- parts of several figures -------------------------------------------------------------------------------


def _draw_corners(ax: Axes, training: Array, composition: Array, labels: Sequence[str | None] = (None, None)) -> None:
    ax.scatter(training[:, 0], training[:, 1], s=40, color="white", edgecolor=INK, zorder=5, label=labels[0])
    ax.scatter(composition[0], composition[1], s=100, marker="*", color=INK, zorder=6, label=labels[1])


def _legend_below(ax: Axes) -> None:
    ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.18), ncols=3, handlelength=1.6, columnspacing=1.2)


def _concept_axes(ax: Axes, title: str, low: float = -0.15, high: float = 1.15) -> None:
    """The unit square of two concepts, with training corners and the composition."""
    ax.plot([0, 1], [0, 1], color=QUIET, lw=0.8, ls=(0, (4, 3)), zorder=0)
    _draw_corners(ax, np.array([[0, 1], [1, 0]]), np.ones(2))
    ax.set(xlabel="concept 1  ($f_1/\\mu_1$)", ylabel="concept 2  ($f_2/\\mu_2$)", title=title)
    ax.set(xlim=(low, high), ylim=(low, high), aspect="equal")


def _output_axes(ax: Axes, title: str = "", labels: Sequence[str | None] = (None, None)) -> None:
    """Outputs of the canonical task, with training centers and the composition."""
    _draw_corners(ax, PAIR.centers, PAIR.target, labels)
    ax.set(xlabel="$f_1$", ylabel="$f_2$", title=title, xlim=(-0.12, 1.15), ylim=(-0.15, 2.3))


def _draw_entries(ax: Axes, path: Path, task: Sim) -> None:
    """Majors in the colors of their concepts, minors thin."""
    for i in range(task.s):
        for j in range(i + 1, task.s):
            label = "minors" if (i, j) == (0, 1) else None
            ax.plot(path.times, path.w[:, i, j], color=MINOR, lw=1.3, label=label, zorder=2)
    for k in range(task.s):
        ax.plot(path.times, path.w[:, k, k], color=_CONCEPTS[k], label=f"$w_{{{k + 1}{k + 1}}}$", zorder=3)
    ax.set(xlabel=_TIME, ylabel="entries of $W$", title="Entries")
    ax.legend(loc="center right")


def _draw_errors(ax: Axes, path: Path, task: Sim, label: str = "composition (OOD)") -> Array:
    """Error at the composition and training loss over time; returns the former."""
    errors = path.error(task.target)
    ax.plot(path.times, errors, color=INK, label=label)
    ax.plot(path.times, population_loss(path.w, task.a), color=FLOW, label="training loss")
    ax.set_xlabel(_TIME)
    return errors


def _draw_swing(ax: Axes, path: Path, task: Sim) -> None:
    errors = _draw_errors(ax, path, task, "at the composition (OOD)")
    found = analysis.swing(path.times, errors)
    if found.t_max is not None and found.e_max is not None:
        ax.scatter([found.t_min, found.t_max], [found.e_min, found.e_max], s=28, color=_CONCEPTS[0], zorder=5)
        note = f"rise {found.rise:.4f}\n({100 * found.rise / found.e_min:.1f}% of the minimum)"
        ax.annotate(note, (found.t_max, found.e_max), (12, 26), textcoords="offset points", color=_CONCEPTS[0])
    ax.set(ylabel="error", title="Loss falls, OOD error swings", ylim=0)
    ax.legend(loc="upper right")


def _color_bar(shown: Any, axes: Sequence[Axes], **options: Any) -> None:
    axes[0].figure.colorbar(shown, ax=axes, **options)


def _draw_timed_line(ax: Axes, points: Array, times: Array, end: float) -> None:
    """A line that changes color with (square root of) time."""
    segments = np.stack([points[:-1], points[1:]], axis=1)
    line = LineCollection(list(segments), cmap="plasma", lw=2.6, capstyle="round", zorder=3)
    line.set_array(np.sqrt(times[:-1] / end) * 0.9)
    line.set_clim(0, 1)
    ax.add_collection(line)


# --- Figures 2, 11, 12: in which order concepts are learned -------------------------------------------------

_DIM = 64


def _draw_order(ax: Axes, title: str, tasks: Mapping[str, Sim], recipe: Recipe) -> None:
    shades = matplotlib.colormaps["viridis"](np.linspace(0.05, 0.85, len(tasks)))
    for (name, task), shade in zip(tasks.items(), shades):
        runs = train(task, recipe, range(3), task.target[None])
        _draw_paths(ax, task, runs, name, shade)
        if recipe.depth == 1:
            closed = 1 - np.exp(-task.a[:2] * np.linspace(0, 60, 4000)[:, None])
            ax.plot(*closed.T, color=shade, lw=2.4, ls=_DOTTED)
    if recipe.depth == 1:
        ax.plot([], [], color=INK, lw=2.4, ls=_DOTTED, label="closed form, zero start")
    _concept_axes(ax, title)
    _legend_below(ax)


def _draw_paths(ax: Axes, task: Sim, runs: SgdRun, name: str, color: Any) -> None:
    """Concept coordinates of the composition over training, a line per seed."""
    concepts = task.concepts(runs.outputs[:, :, 0])  # (T, seeds, 2)
    for seed in range(concepts.shape[1]):
        ax.plot(*concepts[:, seed].T, color=color, lw=1.1, alpha=0.85, label=name if seed == 0 else None)


def _figure_2(signal: Axes, diversity: Axes, four_layers: Axes) -> None:
    """Order of concepts in a one-layer network, and a deep one that swings in 2 but hardly in 64 dimensions."""
    # Small starts, so that the paths begin near the origin.
    _figure_order(Recipe(depth=1, epochs=5, scale=0.3, rate=_SMOOTH_RATE), signal, diversity)
    for dim, seeds, color in ((64, 3, _CONCEPTS[1]), (2, 12, _CONCEPTS[0])):
        _draw_paths(four_layers, *_four_layers(dim, seeds), f"$d={dim}$, {seeds} seeds", color)
    _concept_axes(four_layers, "Four linear layers  ($\\mu=(1,2)$)", -0.45, 1.25)
    _legend_below(four_layers)


def _figure_order(recipe: Recipe, left: Axes, right: Axes) -> None:
    """In which order concepts come, by signal and by diversity."""
    signals = {f"$\\mu_1={m:g}$": Sim((m, 2), 0.05, _DIM, rotation=0) for m in (1, 2, 3)}
    _draw_order(left, "Signal sets the order  ($\\mu_2=2$)", signals, recipe)
    spreads = (0.05, 0.6, 1.0, 1.5, 2.0)
    diversities = {f"$\\sigma_1={v:g}$": Sim((1, 2), (v, 0.05), _DIM, rotation=0) for v in spreads}
    _draw_order(right, "So does diversity  ($\\sigma_2=0.05$)", diversities, recipe)


# --- Figures 3, 13 to 16: deep networks by SGD on samples ---------------------------------------------------


def _deep_runs(task: Sim, depth: int, seeds: int, epochs: int, rate: float = _SMOOTH_RATE) -> SgdRun:
    recipe = Recipe(depth=depth, epochs=epochs, rate=rate)
    return train(task, recipe, range(seeds), task.target[None], every=2)


def _four_layers(dim: int, seeds: int) -> tuple[Sim, SgdRun]:
    """Few dimensions make long plateaus, so they get more epochs."""
    task = Sim((1, 2), 0.05, dim, rotation=0)
    return task, _deep_runs(task, 4, seeds, epochs=60 if dim == 2 else 10)


def _figure_3(*axes: Axes) -> None:
    """Four linear layers in 2 and in 64 dimensions: trajectories and error at the composition."""
    for (left, right), dim, seeds in ((axes[:2], 2, 12), (axes[2:], 64, 4)):
        task, runs = _four_layers(dim, seeds)
        _draw_swings(left, right, task, runs, f"$d={dim}$")


def _relative_rises(runs: SgdRun) -> Array:
    """Rise over first error of each seed, (seeds,)."""
    errors = runs.errors[:, :, 0]  # (T, seeds)
    return analysis.rise(errors) / errors[0]


def _draw_swings(left: Axes, right: Axes, task: Sim, runs: SgdRun, name: str) -> None:
    """Trajectories on the left and error curves on the right; the seed with the largest rise is highlighted."""
    heights = _relative_rises(runs)
    highest = int(heights.argmax())
    concepts = task.concepts(runs.outputs[:, :, 0])
    for seed in np.argsort(heights):
        color, width = (_CONCEPTS[0], 2.2) if seed == highest else (FLOW, 1)
        left.plot(*concepts[:, seed].T, color=color, lw=width)
        right.plot(runs.times, runs.errors[:, seed, 0], color=color, lw=width)
    _concept_axes(left, "", -0.45, 1.25)
    left.set_title(f"{name}: outputs at the composition", fontsize=9)
    count = int((heights > 0.01).sum())
    right.set_title(f"{count} of {len(heights)} seeds rise by over 1% of $E(0)$", fontsize=9)
    right.set(xlabel="time  (steps × learning rate)", ylabel=f"{_COMPOSITION_ERROR}  $E$")
    right.set(xscale="log", xlim=(0.1, runs.times[-1]), ylim=0)


def _three_layers(mu: tuple[float, float], left: Axes, right: Axes, truncate: bool = False) -> None:
    """Three linear layers in three dimensions; `truncate` keeps training points away from the composition."""
    task = Sim(mu, 0.05, 3, truncate=truncate)
    rate = _SMOOTH_RATE / mu[0] ** 2  # the scale rule: twice the means need a quarter of the step
    _draw_swings(left, right, task, _deep_runs(task, 3, 12, 40, rate), f"$\\mu=({mu[0]:g},{mu[1]:g})$")


def _figure_15(left: Axes, right: Axes) -> None:
    """The scale rule: doubling mu and sigma multiplies errors by 4 and divides times by 4."""
    for scale, color in ((1, _CONCEPTS[0]), (2, _CONCEPTS[1])):
        task = Sim((scale, 2 * scale), 0.05 * scale, 3)
        runs = _deep_runs(task, 3, 12, 40, _SMOOTH_RATE / scale**2)
        errors = runs.errors[:, int(_relative_rises(runs).argmax()), 0]
        name = f"$\\mu=({scale},{2 * scale})$, $\\sigma={0.05 * scale:g}$"
        left.plot(runs.times, errors, color=color, label=name)
        dashes = "-" if scale == 1 else ":"
        right.plot(runs.times * scale**2, errors / scale**2, color=color, ls=dashes, lw=2.4, label=name)
    left.set(xlabel="time", ylabel=f"{_COMPOSITION_ERROR}  $E$", title="Three layers, as measured")
    right.set(xlabel="time × scale²", ylabel="$E$ / scale²", title="Rescaled: one curve")
    for ax in (left, right):
        ax.set(xscale="log", xlim=(0.02, None), ylim=0)
        ax.legend()


# --- Figures 4, 5, 17, 18: the symmetric model with two concepts --------------------------------------------


def canonical_path(duration: float = 14.0) -> Path:
    return symmetric.flow(_CANONICAL, PAIR.a, duration, 0.005)


def _figure_4(*axes: Axes) -> None:
    """The map W at the turns of the run: all entries grow, the strong major suppresses, the weak major repairs."""
    path = canonical_path()
    found = analysis.stages(path.times, path.w, 2)
    moments = {
        "start": 0.0,
        "minor at its peak": found[1].start,
        "weak major overtakes": found[2].start,
        "weak major half way": 7.6,
        "learned": 14.0,
    }
    for ax, (name, moment) in zip(axes, moments.items()):
        w = path.w[np.searchsorted(path.times, moment - 1e-9)]
        shown = ax.imshow(w, cmap="Blues", vmin=0, vmax=1)
        for (row, column), value in np.ndenumerate(w):
            ink = "white" if value > 0.55 else INK
            text = f"{value:.{3 if value >= 0.01 else 4}f}" if value >= 1e-4 else "≈ 0"
            ax.text(column, row, text, ha="center", va="center", color=ink, fontsize=10)
        ax.set_title(f"$t={moment:.1f}$\n{name}", fontsize=9)
        ax.set(xticks=[], yticks=[])
        ax.grid(False)
        ax.spines[:].set_visible(False)
    _color_bar(shown, axes[-1:], shrink=0.75, label="entry of $W$")


def _figure_5(entries: Axes, errors: Axes, outputs: Axes) -> None:
    """Entries of W, error at the composition and output trajectory of the canonical swing-by."""
    path = canonical_path()
    _draw_entries(entries, path, PAIR)
    _draw_stages(entries, path, PAIR)
    entries.set(ylim=(-0.05, 1.2), title="Entries, in three stages")
    _draw_swing(errors, path, PAIR)
    _draw_stages(errors, path, PAIR, named=False)
    _draw_trajectory(outputs, path)


def _draw_stages(ax: Axes, path: Path, task: Sim, named: bool = True) -> None:
    for number, stage in enumerate(analysis.stages(path.times, path.w, task.s)):
        ax.axvspan(stage.start, stage.end, color=INK, alpha=0.05 * (number % 2), lw=0)
        if named:
            middle = (stage.start + min(stage.end, path.times[-1])) / 2
            roman = ("I", "II", "III", "IV", "V", "VI", "VII")[number]
            ax.text(middle, 0.93, roman, transform=ax.get_xaxis_transform(), ha="center", color=QUIET)


def _draw_trajectory(ax: Axes, path: Path) -> None:
    outputs = path.outputs(PAIR.target)
    _draw_timed_line(ax, outputs, path.times, path.times[-1])
    _output_axes(ax, "The output swings by")
    note: dict[str, Any] = {"textcoords": "offset points", "fontsize": 7.5}
    arrow = {"arrowstyle": "-", "color": QUIET, "lw": 0.7, "shrinkB": 3}
    for moment, beside in ((1.5, (6, -4)), (2.13, (8, -6)), (3.92, (34, -40)), (7.6, (-8, -13))):
        at = np.searchsorted(path.times, moment)
        ax.scatter(outputs[at, 0], outputs[at, 1], s=16, color=INK, zorder=7)
        ax.annotate(f"$t={moment:g}$", tuple(outputs[at]), beside, arrowprops=arrow, **note)
    ax.annotate("training center (0, 2)", tuple(PAIR.centers[1]), (0, 10), **note)
    ax.annotate("composition", tuple(PAIR.target), (-58, 8), **note)


def _figure_17(left: Axes, right: Axes) -> None:
    """Training loss falls throughout while the error at the composition rises; linear and logarithmic axes."""
    path = canonical_path(20)
    for ax in (left, right):
        errors = _draw_errors(ax, path, PAIR)
        for k, center in enumerate(PAIR.centers):
            name = f"center of cluster {k + 1}"
            ax.plot(path.times, path.error(center), color=_CONCEPTS[k], lw=1.2, label=name)
    left.set(ylabel="error", title="Linear scale", ylim=(0, 2.6))
    right.set(yscale="log", ylim=(1e-11, 5), title="Logarithmic: $E \\sim e^{-4 a_1 t}$ at the end")
    late = path.times > 10
    guide = errors[late][0] * np.exp(-4 * PAIR.a[0] * (path.times[late] - 10)) * 3
    right.plot(path.times[late], guide, color=QUIET, ls=(0, (2, 2)), lw=1.2)
    left.legend()


def _figure_18(ax: Axes) -> None:
    """Outputs at the training centers bend too."""
    path = canonical_path(20)
    for point in (*PAIR.centers, PAIR.target):
        _draw_timed_line(ax, path.outputs(point), path.times, path.times[-1])
    _output_axes(ax, "Outputs at three inputs, colored by time", ("training centers", "composition"))
    ax.legend(loc="center right")


# --- Figure 7: the hierarchy of corners ---------------------------------------------------------------------


def _figure_7(*axes: Axes) -> None:
    """Errors of all 16 corners of four concepts in a two-layer ReLU network after 1, 3 and 5 epochs."""
    task = Sim((1, 2, 3, 4), 0.5, 64, rotation=0)
    # Averaging the squared error over the 64 coordinates too, as torch's own loss does, divides the step by 32.
    recipe = Recipe(depth=2, relu=True, epochs=5, rate=0.1 / 32)
    runs = train(task, recipe, range(1), task.corners, every=recipe.steps(task) // recipe.epochs)
    pairs = ordered_pairs(task.codes)
    for ax, epoch in zip(axes, (1, 3, 5)):
        errors = runs.errors[epoch, 0]
        shown = _draw_corner_lattice(ax, task, errors)
        kept = round(analysis.hierarchy_kept(errors, pairs) * len(pairs))
        ax.set_title(f"epoch {epoch}: {kept} of {len(pairs)} pairs in order")
    _color_bar(shown, axes, shrink=0.8, label="error (clipped at 1)", extend="max")


def _draw_corner_lattice(ax: Axes, task: Sim, errors: Array) -> Any:
    """Corners by number of concepts, from the origin at the bottom to the full composition at the top."""
    codes = task.codes
    level = codes.sum(1).astype(int)
    position = np.zeros((len(codes), 2))
    for size in range(task.s + 1):
        members = np.flatnonzero(level == size)[::-1]
        position[members, 0] = np.arange(len(members)) - (len(members) - 1) / 2
        position[members, 1] = size
    for low, high in ordered_pairs(codes):
        if level[high] - level[low] == 1:
            ax.plot(*position[[low, high]].T, color=GRID, lw=1, zorder=1)
    disc: dict[str, Any] = {"s": 430, "cmap": "YlOrRd", "vmin": 0, "vmax": 1, "edgecolor": INK, "lw": 0.7}
    shown = ax.scatter(position[:, 0], position[:, 1], c=errors, **disc, zorder=3)
    for code, (x, y), error in zip(codes, position, errors):
        ink = "white" if error > 0.7 else INK
        name = "".join(f"{v:.0f}" for v in code)
        ax.text(x, y, name, ha="center", va="center", fontsize=7, color=ink, zorder=4)
    ax.set(xlim=(-3, 3), ylim=(-0.5, task.s + 0.5))
    ax.axis("off")
    return shown


# --- Figures 8, 9, 10: three and four concepts --------------------------------------------------------------

_DESCENTS = {1: "one descent", 2: "double descent", 3: "triple descent", 4: "quadruple descent"}


def _figure_descents(task: Sim, omega: float, seed: int, duration: float, left: Axes, right: Axes) -> None:
    """Entries and error on logarithmic time, every rise with its turning points."""
    u0 = positive_factors([seed], omega, (task.s, task.s), low=0.0, high=1.0)[0]
    path = symmetric.factor_path(u0, task.a, duration, 0.02 / task.a.max())
    _draw_entries(left, path, task)
    left.legend(loc="upper left", ncols=3)
    mu = ", ".join(f"{m:g}" for m in task.mu)
    left.set(title=f"$\\mu=({mu})$, seed {seed}, $\\omega={omega:g}$", ylim=(-0.06, 1.35))
    errors = _draw_errors(right, path, task)
    for number, (t0, e0, t1, e1) in enumerate(analysis.rises(path.times, errors)):
        label = None if number else "turning points"
        right.plot([t0, t1], [e0, e1], "o", ms=5, color=_CONCEPTS[0], label=label)
    count = analysis.descents(errors)
    right.set(ylabel=_COMPOSITION_ERROR, title=_DESCENTS.get(count, f"{count} descents"), ylim=(0, None))
    for ax in (left, right):
        ax.set(xscale="log", xlim=(0.2, duration))
    right.legend()


# --- Our own ------------------------------------------------------------------------------------------------


def _figure_terms(left: Axes, right: Axes) -> None:
    """Growth, suppression and noise of the minor and of the weak major over time."""
    path = canonical_path(10)
    parts = symmetric.terms(path.w, PAIR.a)
    speed = symmetric.field(path.w, PAIR.a)
    for ax, (i, j), name in zip((left, right), ((0, 1), (0, 0)), ("minor $w_{12}$", "weak major $w_{11}$")):
        ax.plot(path.times, parts.growth[:, i, j], color=_CONCEPTS[2], label="growth")
        ax.plot(path.times, -parts.suppression[:, i, j], color=_CONCEPTS[0], label="− suppression")
        ax.plot(path.times, -parts.noise[:, i, j], color=MINOR, label="− noise (interaction)")
        ax.plot(path.times, speed[:, i, j], color=INK, lw=1.2, label="sum")
        ax.set(xlabel=_TIME, ylabel="speed", title=f"What moves the {name}")
    left.legend()


def _figure_depth(left: Axes, right: Axes) -> None:
    """Depth: longer plateaus, sharper steps, a larger rise; one layer from the same start never rises."""
    for depth, color in zip((1, 2, 3, 4), (FLOW, *_CONCEPTS)):
        path = deep.path(deep.balanced_layers(_CANONICAL, depth), PAIR.a, 120, 0.02)
        errors = path.error(PAIR.target)
        name = f"{depth} layer{'s' if depth > 1 else ''}: rise {analysis.rise(errors):.3f}"
        left.plot(path.times, errors, color=color, label=name)
        right.plot(*PAIR.concepts(path.outputs(PAIR.target)).T, color=color, label=f"{depth}")
    left.set(xlabel="time", ylabel=_COMPOSITION_ERROR, title="Untied layers, one start", ylim=0)
    left.set(xscale="log", xlim=(0.1, 120))
    left.legend(loc="upper right")
    _concept_axes(right, "Outputs at the composition")


def _figure_bridge(distance: Axes, heights: Axes, curves: Axes) -> None:
    """A linear conditional denoiser: at high noise it is SIM, and there it swings."""
    times = np.linspace(0, 20, 2001)
    levels = np.geomspace(1, 1000, 25)
    distance.loglog(levels, [bridge.distance_from_sim(PAIR.a, tau, times) for tau in levels], color=INK)
    distance.set(ylabel="largest difference", title="One layer: distance from SIM")
    noises = np.geomspace(0.3, 100, 25)
    condition_rises, full_rises = [], []
    for tau in noises:
        blocks = bridge.two_layer_flow(_CANONICAL, PAIR.a, tau, 25, 0.02).w
        condition_rises.append(analysis.rise(bridge.condition_error(blocks, PAIR.target)))
        full_rises.append(analysis.rise(bridge.full_error(blocks, PAIR.target, tau)))
    heights.semilogx(noises, condition_rises, color=INK, label="condition alone")
    heights.semilogx(noises, full_rises, color=MINOR, label="condition and image")
    heights.set(ylabel="rise of the error", title="Two layers: swing-by")
    for ax in (distance, heights):
        ax.set_xlabel("noise level  $\\tau$")
    for tau, color in zip((100, 3, 0.5), _CONCEPTS):
        path = bridge.two_layer_flow(_CANONICAL, PAIR.a, tau, 14, 0.02)
        errors = bridge.condition_error(path.w, PAIR.target)
        curves.plot(path.times, errors, color=color, label=f"$\\tau={tau:g}$")
    curves.set(xlabel="time", ylabel="error, condition alone", title="Error at the composition", ylim=0)
    for ax in (heights, curves):
        ax.legend()


def _figure_certificate(ax: Axes) -> None:
    """One layer: how often a Gaussian start is monotone, and how often the certificate predicts it."""
    scales = np.array([0.01, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0])
    times = np.linspace(0, 30, 1500)
    rng = np.random.default_rng(0)
    monotone, certified = [], []
    for scale in scales:
        w0 = scale * rng.standard_normal((500, 2, 2))
        errors = Path(times, one_layer.flow(w0, PAIR.a, times)).error(PAIR.target)  # (T, 500)
        monotone.append(100 * np.mean(analysis.rise(errors) <= analysis.MONOTONE))
        certified.append(100 * np.mean(one_layer.certificate(w0, PAIR.a, 2)))
    ax.semilogx(scales, monotone, "o-", color=INK, label="monotone in the run")
    ax.semilogx(scales, certified, "o-", color=_CONCEPTS[1], label="certified beforehand")
    ax.set(title="One layer needs a small start", xlabel="scale of the Gaussian start")
    ax.set(ylabel="share of starts (%)", ylim=(0, 105))
    ax.legend(loc="lower left")


def _figure_phase(*axes: Axes) -> None:
    """Three phase diagrams of the symmetric model from aligned starts."""
    planes: tuple[tuple[AxisName, AxisName], ...] = (("ratio", "omega"), ("omega", "rho"), ("ratio", "sigma"))
    symbols = {"ratio": "\\mu_2/\\mu_1", "omega": "\\omega", "rho": "\\rho", "sigma": "\\sigma"}
    for ax, (x, y) in zip(axes, planes):
        phase = phase_diagram(PhaseSettings(x, y, cells=60, seeds=1, start="aligned"))
        shown = _draw_phase(ax, phase, phase.mean)
        held = [f"{symbols[name]}={value:g}" for name, value in phase.settings.held.items()]
        ax.set_title("$" + ",\\ ".join(held) + "$")
        _color_bar(shown, [ax], label="rise / ($\\mu_1^2/2$)")


def _draw_phase(ax: Axes, phase: Phase, values: Array, top: float | None = None) -> Any:
    """A phase diagram as a map; the line bounds the settings where the rise exceeds a thousandth."""
    x, y = AXES[phase.settings.x], AXES[phase.settings.y]
    shown = ax.pcolormesh(phase.x, phase.y, values, cmap="magma_r", vmin=0, vmax=top, shading="nearest")
    shown.set_rasterized(True)
    if phase.mean.min() < 1e-3 < phase.mean.max():
        ax.contour(phase.x, phase.y, phase.mean, levels=[1e-3], colors=[INK], linewidths=1)
    ax.set(xlabel=x.label, xscale="log" if x.log else "linear", ylabel=y.label, yscale="log" if y.log else "linear")
    ax.grid(False)
    return shown


# --- Figures of the verbs -----------------------------------------------------------------------------------


def _draw_sweep(phase: Phase, left: Axes, right: Axes) -> None:
    """Mean height and share of starts that swing."""
    _color_bar(_draw_phase(left, phase, phase.mean), [left], label="mean rise / ($\\mu_1^2/2$)")
    _color_bar(_draw_phase(right, phase, phase.share, 1.0), [right], label="share of starts that swing")


def _draw_run(path: Path, task: Sim, left: Axes, right: Axes) -> None:
    """Entries and errors of a run."""
    _draw_entries(left, path, task)
    _draw_swing(right, path, task)
    right.set(xlabel="time", title="Errors")  # not every run swings
    left.set(xlabel="time")


def animate_swing(path: Path, frames: int = 120) -> Iterator[np.ndarray]:
    """Frames of the canonical run: the error and the output over time. Yields RGB arrays."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    moments = np.linspace(0, 1, frames) ** 1.5 * path.times[-1]  # slow at the start, where the error swings
    for now in np.searchsorted(path.times, moments).clip(1, len(path.times) - 1):
        with matplotlib.rc_context(STYLE):
            canvas = FigureCanvasAgg(_Drawing(_draw_frame, 2).figure(path, now))
            canvas.draw()
        yield np.asarray(canvas.buffer_rgba())[..., :3].copy()


def _draw_frame(path: Path, now: int, left: Axes, right: Axes) -> None:
    times, errors, outputs = path.times, path.error(PAIR.target), path.outputs(PAIR.target)
    left.plot(times, errors, color=GRID)
    left.plot(times[:now], errors[:now], color=INK)
    left.plot(times[:now], path.w[:now, 0, 1] * 10, color=MINOR, lw=1.2, label="minor $w_{12}$ × 10")
    left.scatter(times[now], errors[now], s=26, color=_CONCEPTS[0], zorder=5)
    left.set(xlabel=_TIME, ylabel=_COMPOSITION_ERROR, ylim=(0, 2.6))
    left.legend(loc="upper right")
    right.plot(*outputs.T, color=GRID)
    _draw_timed_line(right, outputs[: now + 1], times[: now + 1], times[-1])
    right.scatter(outputs[now, 0], outputs[now, 1], s=26, color=_CONCEPTS[0], zorder=7)
    _output_axes(right)


def _draw_gaps(rows: Sequence[Mapping[str, Any]], left: Axes, right: Axes) -> None:
    """Trajectories in concept space, and the error of the composition over training."""
    shades = matplotlib.colormaps["viridis"](np.linspace(0.05, 0.9, max(1, len(rows))))
    for row, shade in zip(rows, shades):
        path, steps = np.array(row["path"]), np.array(row["steps"])
        left.plot(*path.T, color=shade, lw=1.6, label=f"{row['gap']:.2f}")
        right.plot(steps, row["error"], color=shade, lw=1.6)
        right.fill_between(steps, *row["band"], color=shade, alpha=0.15, lw=0)
        if row["trained_at"]:
            right.plot(row["trained_at"], np.interp(row["trained_at"], steps, row["error"]), "o", color=shade)
    _draw_corners(left, np.array([[0, 0], [0, 1], [1, 0]]), np.ones(2))
    left.set(xlim=(-0.1, 1.1), ylim=(-0.1, 1.1), xlabel="blue", ylabel="small", aspect="equal")
    left.set_title("mean coordinates of small blue", fontsize=9)
    left.legend(title="color gap", loc="center left", bbox_to_anchor=(-0.62, 0.5), frameon=False)
    right.set(xscale="log", xlabel="training step", ylabel="error at small blue", ylim=(0, None))
    right.set_title("dots: the three shown corners are learned", fontsize=9)


# --- All of them: those of the paper by number, then ours ----------------------------------------------------

FIGURES: dict[str, _Drawing] = {
    "2": _Drawing(_figure_2, 3, height=4.0),
    "3": _Drawing(_figure_3, 4, 3.1, 3.4),
    "4": _Drawing(_figure_4, 5, 2.1, 2.3),
    "5": _Drawing(_figure_5, 3, 3.6, 3.3),
    "7": _Drawing(_figure_7, 3, 3.7, 3.9),
    "8": _Drawing(partial(_figure_descents, Sim((1, 1.5, 2.2), 0.05), 0.02, 48, 40), 2, 4.2, 3.3),  # triple descent
    "9": _Drawing(
        partial(_figure_descents, Sim((1, 1.5, 2.2, 2.7), (0.05, 0.05, 0.05, 0.5)), 0.1, 46, 60), 2, 4.2, 3.3
    ),  # quadruple
    "10": _Drawing(partial(_figure_descents, Sim((0.7, 1.7, 3), 0.05), 0.05, 0, 60), 2, 4.2, 3.3),  # a long plateau
    "11": _Drawing(partial(_figure_order, Recipe(depth=2, epochs=8, scale=0.5, rate=_SMOOTH_RATE)), 2, height=4.0),
    "12": _Drawing(
        partial(_figure_order, Recipe(depth=2, relu=True, epochs=20, scale=0.5, rate=_SMOOTH_RATE)), 2, height=4.0
    ),
    "13": _Drawing(partial(_three_layers, (1, 2)), 2, height=3.4),
    "14": _Drawing(partial(_three_layers, (2, 4)), 2, height=3.4),
    "15": _Drawing(_figure_15, 2, height=3.2),
    "16": _Drawing(partial(_three_layers, (1, 2), truncate=True), 2, height=3.4),
    "17": _Drawing(_figure_17, 2, 3.8, 3.1),
    "18": _Drawing(_figure_18, 1, 4.2, 3.8),
    "terms": _Drawing(_figure_terms, 2, 3.8, 3.1),
    "depth": _Drawing(_figure_depth, 2, 3.8, 3.2),
    "bridge": _Drawing(_figure_bridge, 3, 3.6, 3.2),
    "certificate": _Drawing(_figure_certificate, 1, 4.4, 3.2),
    "phase": _Drawing(_figure_phase, 3, 3.7, 3.3),
}


# For `tessera dynamics sweep`, `tessera dynamics run` and `tessera reproduce swingby`; they take what the drawing does.
figure_sweep = styled(_Drawing(_draw_sweep, 2, 4.0, 3.4).figure)
figure_run = styled(_Drawing(_draw_run, 2, 4.0, 3.2).figure)
swingby_figure = _Drawing(_draw_gaps, 2, 4.6, 4.0).figure
