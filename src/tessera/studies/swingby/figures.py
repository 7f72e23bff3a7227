"""The figures of the Swing-by paper made again from our own runs, and a few it does not have.

Numbers follow the published revision. Figure 1 there is a drawing and figure 6 needs a trained diffusion network.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure

from tessera.plots.figures import GRID, INK, QUIET, STYLE
from tessera.studies.swingby import analysis, bridge, deep, one_layer, symmetric
from tessera.studies.swingby.data import Array, Sim, ordered_pairs, population_loss
from tessera.studies.swingby.integrate import Path
from tessera.studies.swingby.starts import aligned_map, positive_factors
from tessera.studies.swingby.sweep import AXES, DEFAULTS, Phase, phase_diagram

CONCEPTS = ("#c8553d", "#2a6f97", "#4f772d", "#7b5ea7")  # one color per concept, weakest first
MINOR, FLOW = "#e09f3e", "#9aa5b1"
SMOOTH_RATE = 0.02  # a fifth of the source's learning rate, so that early paths are curves and not corners
PAIR = Sim((1, 2), 0.05)
CANONICAL = aligned_map(0.05, 0.9)


def sheet(columns: int, rows: int = 1, width: float = 3.4, height: float = 3.0) -> tuple[Figure, np.ndarray]:
    """A page of equal panels; made without pyplot, so that nothing global is kept."""
    figure = Figure(figsize=(width * columns, height * rows))
    return figure, figure.subplots(rows, columns, squeeze=False)


# --- Figures 2, 11, 12: in which order concepts are learned -------------------------------------------------


@dataclass(frozen=True)
class OrderSweep:
    """Settings that differ in one object, and the SGD networks that are trained on them."""

    depth: int
    relu: bool
    scale: float  # of the start; small, so that the paths begin near the origin
    epochs: int
    seeds: int = 3
    dim: int = 64


def order_panels(axes: np.ndarray, sweep: OrderSweep, tick: Callable) -> None:
    signals = [Sim((m, 2), 0.05, sweep.dim, rotation=0) for m in (1, 2, 3)]
    spreads = [Sim((1, 2), (v, 0.05), sweep.dim, rotation=0) for v in (0.05, 0.6, 1.0, 1.5, 2.0)]
    order_panel(axes[0], signals, [f"$\\mu_1={task.mu[0]:g}$" for task in signals], sweep, tick)
    axes[0].set_title("Signal sets the order  ($\\mu_2=2$)")
    order_panel(axes[1], spreads, [f"$\\sigma_1={task.spread[0]:g}$" for task in spreads], sweep, tick)
    axes[1].set_title("So does diversity  ($\\sigma_2=0.05$)")


def order_panel(ax: Axes, tasks: list[Sim], names: list[str], sweep: OrderSweep, tick: Callable) -> None:
    shades = matplotlib.colormaps["viridis"](np.linspace(0.05, 0.85, len(tasks)))
    for task, name, shade in zip(tasks, names, shades):
        concepts = sgd_concepts(task, sweep)
        for seed in range(sweep.seeds):
            ax.plot(*concepts[:, seed].T, color=shade, lw=1.1, alpha=0.85, label=name if seed == 0 else None)
        if sweep.depth == 1:
            closed = 1 - np.exp(-task.a[:2] * np.linspace(0, 60, 4000)[:, None])
            ax.plot(*closed.T, color=shade, lw=2.4, ls=(0, (1, 1.6)))
        tick()
    if sweep.depth == 1:
        ax.plot([], [], color=INK, lw=2.4, ls=(0, (1, 1.6)), label="closed form, zero start")
    concept_axes(ax)
    legend_below(ax)


def rings(ax: Axes, points: Array, label: str | None = None) -> None:
    """Training corners."""
    ax.scatter(points[:, 0], points[:, 1], s=40, color="white", edgecolor=INK, zorder=5, label=label)


def star(ax: Axes, point: Array, label: str | None = None) -> None:
    """The composition."""
    ax.scatter(point[0], point[1], s=100, marker="*", color=INK, zorder=6, label=label)


def legend_below(ax: Axes, columns: int = 3) -> None:
    ax.legend(
        loc="upper center", bbox_to_anchor=(0.5, -0.18), ncols=columns, handlelength=1.6, columnspacing=1.2
    )


def sgd_concepts(task: Sim, sweep: OrderSweep) -> Array:
    """Concept coordinates of the composition over training, (T, seeds, 2)."""
    from tessera.studies.swingby.mlp import Recipe, train

    recipe = Recipe(
        depth=sweep.depth, relu=sweep.relu, epochs=sweep.epochs, scale=sweep.scale, rate=SMOOTH_RATE
    )
    seen = train(task, recipe, range(sweep.seeds), task.target[None])
    return task.concepts(seen.outputs[:, :, 0])


def concept_axes(ax: Axes, low: float = -0.15, high: float = 1.15) -> None:
    """The unit square of two concepts, with the three training corners and the composition."""
    ax.plot([0, 1], [0, 1], color=QUIET, lw=0.8, ls=(0, (4, 3)), zorder=0)
    rings(ax, np.array([[0, 1], [1, 0]]))
    star(ax, np.ones(2))
    ax.set(xlim=(low, high), ylim=(low, high), xlabel="concept 1  ($f_1/\\mu_1$)")
    ax.set_ylabel("concept 2  ($f_2/\\mu_2$)")
    ax.set_aspect("equal")


def figure_2(tick: Callable) -> Figure:
    """Order of concepts in a one-layer network, and a deep one that swings in 2 but hardly in 64 dimensions."""
    figure, axes = sheet(3, height=4.0)
    order_panels(axes[0], OrderSweep(depth=1, relu=False, scale=0.3, epochs=5), tick)
    deep_panel(axes[0, 2], tick)
    return figure


def figure_11(tick: Callable) -> Figure:
    """The order sweeps with two linear layers."""
    figure, axes = sheet(2, height=4.0)
    order_panels(axes[0], OrderSweep(depth=2, relu=False, scale=0.5, epochs=8), tick)
    return figure


def figure_12(tick: Callable) -> Figure:
    """The order sweeps with a two-layer ReLU network."""
    figure, axes = sheet(2, height=4.0)
    order_panels(axes[0], OrderSweep(depth=2, relu=True, scale=0.5, epochs=20), tick)
    return figure


# --- Figures 3, 13 to 16: deep networks by SGD on samples ---------------------------------------------------


def deep_runs(task: Sim, depth: int, seeds: int, epochs: int, rate: float = SMOOTH_RATE):
    from tessera.studies.swingby.mlp import Recipe, train

    recipe = Recipe(depth=depth, epochs=epochs, rate=rate)
    return train(task, recipe, range(seeds), task.target[None], look_every=2)


def four_layers(dim: int, seeds: int):
    """Task and runs; few dimensions make long plateaus."""
    task = Sim((1, 2), 0.05, dim, rotation=0)
    return task, deep_runs(task, 4, seeds, epochs=60 if dim == 2 else 10)


def deep_panel(ax: Axes, tick: Callable) -> None:
    for dim, seeds, color in ((64, 3, CONCEPTS[1]), (2, 12, CONCEPTS[0])):
        task, runs = four_layers(dim, seeds)
        concepts = task.concepts(runs.outputs[:, :, 0])
        for seed in range(seeds):
            name = None if seed else f"$d={dim}$, {seeds} seeds"
            ax.plot(*concepts[:, seed].T, color=color, lw=1.1, alpha=0.8, label=name)
        tick()
    concept_axes(ax, -0.45, 1.25)
    ax.set_title("Four linear layers  ($\\mu=(1,2)$)")
    legend_below(ax)


def figure_3(tick: Callable) -> Figure:
    """Four linear layers in 2 and in 64 dimensions: trajectories and error at the composition."""
    figure, axes = sheet(4, width=3.1, height=3.4)
    for (left, right), dim, seeds in ((axes[0, :2], 2, 12), (axes[0, 2:], 64, 4)):
        task, runs = four_layers(dim, seeds)
        swing_panels(left, right, task, runs, f"$d={dim}$")
        tick()
    return figure


def swing_panels(left: Axes, right: Axes, task: Sim, runs, name: str) -> None:
    """Trajectories on the left and error curves on the right; the seed that rises most is drawn strongly."""
    errors = runs.errors[:, :, 0]  # (T, seeds)
    heights = analysis.rise(errors) / errors[0]
    best = int(heights.argmax())
    concepts = task.concepts(runs.outputs[:, :, 0])
    for seed in np.argsort(heights):
        strong: dict[str, Any] = (
            {"color": CONCEPTS[0], "lw": 2.2} if seed == best else {"color": FLOW, "lw": 1, "alpha": 0.8}
        )
        left.plot(*concepts[:, seed].T, **strong)
        right.plot(runs.times, errors[:, seed], **strong)
    concept_axes(left, -0.45, 1.25)
    left.set_title(f"{name}: outputs at the composition", fontsize=9)
    count = int((heights > 0.01).sum())
    right.set_title(f"{count} of {len(heights)} seeds rise by over 1% of $E(0)$", fontsize=9)
    right.set_xscale("log")
    right.set_xlim(0.1, runs.times[-1])
    right.set_ylim(0)
    right.set(xlabel="time  (steps × learning rate)", ylabel="error at the composition  $E$")


def three_layers(tick: Callable, mu: tuple[float, float], truncate: bool = False) -> Figure:
    figure, axes = sheet(2, height=3.4)
    task = Sim(mu, 0.05, 3, truncate=truncate)
    rate = SMOOTH_RATE / mu[0] ** 2  # the scale rule: twice the means need a quarter of the step
    runs = deep_runs(task, 3, 12, 40, rate)
    swing_panels(axes[0, 0], axes[0, 1], task, runs, f"$\\mu=({mu[0]:g},{mu[1]:g})$")
    tick()
    return figure


def figure_13(tick: Callable) -> Figure:
    """Three linear layers in three dimensions, mu = (1, 2)."""
    return three_layers(tick, (1, 2))


def figure_14(tick: Callable) -> Figure:
    """Three linear layers in three dimensions, mu = (2, 4)."""
    return three_layers(tick, (2, 4))


def figure_15(tick: Callable) -> Figure:
    """The scale rule: doubling mu and sigma multiplies errors by 4 and divides times by 4."""
    figure, axes = sheet(2, height=3.2)
    for scale, color in ((1, CONCEPTS[0]), (2, CONCEPTS[1])):
        task = Sim((scale, 2 * scale), 0.05 * scale, 3)
        runs = deep_runs(task, 3, 12, 40, SMOOTH_RATE / scale**2)
        errors = runs.errors[:, :, 0]
        best = int((analysis.rise(errors) / errors[0]).argmax())
        name = f"$\\mu=({scale},{2 * scale})$, $\\sigma={0.05 * scale:g}$"
        axes[0, 0].plot(runs.times, errors[:, best], color=color, label=name)
        style = {"ls": "-" if scale == 1 else (0, (2, 2)), "lw": 2.4}
        axes[0, 1].plot(runs.times * scale**2, errors[:, best] / scale**2, color=color, **style, label=name)
        tick()
    axes[0, 0].set(xlabel="time", ylabel="error at the composition  $E$", title="Three layers, as measured")
    axes[0, 1].set(xlabel="time × scale²", ylabel="$E$ / scale²", title="Rescaled: one curve")
    for ax in axes[0]:
        ax.set_xscale("log")
        ax.set_xlim(0.02)
        ax.set_ylim(0)
        ax.legend()
    return figure


def figure_16(tick: Callable) -> Figure:
    """Figure 13 with training points kept away from the composition."""
    return three_layers(tick, (1, 2), truncate=True)


# --- Figures 4, 5, 17, 18: the symmetric model with two concepts --------------------------------------------


def canonical_path(duration: float = 14.0) -> Path:
    return symmetric.flow(CANONICAL, PAIR.a, duration, 0.005)


def figure_4(tick: Callable) -> Figure:
    """The map W at the turns of the run: all entries grow, the strong major suppresses, the weak major repairs."""
    path = canonical_path()
    found = analysis.stages(path.times, path.w, 2)
    moments = [0.0, found[1].start, found[2].start, 7.6, 14.0]
    names = ["start", "minor at its peak", "weak major overtakes", "weak major half way", "learned"]
    figure, axes = sheet(len(moments), width=2.1, height=2.3)
    for ax, moment, name in zip(axes[0], moments, names):
        w = path.w[np.searchsorted(path.times, moment - 1e-9)]
        shown = ax.imshow(w, cmap="Blues", vmin=0, vmax=1)
        for (row, column), value in np.ndenumerate(w):
            ink = "white" if value > 0.55 else INK
            text = f"{value:.3f}" if value >= 0.01 else f"{value:.4f}" if value >= 1e-4 else "≈ 0"
            ax.text(column, row, text, ha="center", va="center", color=ink, fontsize=10)
        ax.set_title(f"$t={moment:.1f}$\n{name}", fontsize=9)
        ax.set(xticks=[], yticks=[])
        ax.grid(False)
        ax.spines[:].set_visible(False)
    figure.colorbar(shown, ax=axes[0, -1], shrink=0.75, label="entry of $W$")
    tick()
    return figure


def figure_5(tick: Callable) -> Figure:
    """Entries of W, error at the composition and output trajectory of the canonical swing-by."""
    path = canonical_path()
    figure, axes = sheet(3, width=3.6, height=3.3)
    entries_panel(axes[0, 0], path, PAIR)
    stage_bands(axes[0, 0], path, PAIR)
    axes[0, 0].set(ylim=(-0.05, 1.2), title="Entries, in three stages")
    swing_panel(axes[0, 1], path, PAIR)
    stage_bands(axes[0, 1], path, PAIR, named=False)
    trajectory_panel(axes[0, 2], path)
    tick()
    return figure


def entries_panel(ax: Axes, path: Path, task: Sim) -> None:
    """Majors in the colors of their concepts, minors thin."""
    for i in range(task.s):
        for j in range(i + 1, task.s):
            label = "minors" if (i, j) == (0, 1) else None
            ax.plot(path.times, path.w[:, i, j], color=MINOR, lw=1.3, label=label, zorder=2)
    for k in range(task.s):
        ax.plot(path.times, path.w[:, k, k], color=CONCEPTS[k], label=f"$w_{{{k + 1}{k + 1}}}$", zorder=3)
    ax.set(xlabel="time  (paper clock)", ylabel="entries of $W$", title="Entries")
    ax.legend(loc="center right")


def stage_bands(ax: Axes, path: Path, task: Sim, named: bool = True) -> None:
    for number, stage in enumerate(analysis.stages(path.times, path.w, task.s)):
        ax.axvspan(stage.start, stage.end, color=INK, alpha=0.05 * (number % 2), lw=0)
        if named:
            middle = (stage.start + min(stage.end, path.times[-1])) / 2
            roman = ("I", "II", "III", "IV", "V", "VI", "VII")[number]
            ax.text(middle, 0.93, roman, transform=ax.get_xaxis_transform(), ha="center", color=QUIET)


def swing_panel(ax: Axes, path: Path, task: Sim) -> None:
    errors = path.error(task.target)
    found = analysis.swing(path.times, errors)
    ax.plot(path.times, errors, color=INK, label="at the composition (OOD)")
    ax.plot(path.times, population_loss(path.w, task.a), color=FLOW, label="training loss")
    if found.t_max is not None and found.e_max is not None:
        ax.scatter([found.t_min, found.t_max], [found.e_min, found.e_max], s=28, color=CONCEPTS[0], zorder=5)
        note = f"rise {found.rise:.4f}\n({100 * found.rise / found.e_min:.1f}% of the minimum)"
        ax.annotate(note, (found.t_max, found.e_max), (12, 26), textcoords="offset points", color=CONCEPTS[0])
    ax.set_ylim(0)
    ax.set(xlabel="time  (paper clock)", ylabel="error", title="Loss falls, OOD error swings")
    ax.legend(loc="upper right")


def trajectory_panel(ax: Axes, path: Path) -> None:
    outputs = path.outputs(PAIR.target)
    timed_line(ax, outputs, path.times, path.times[-1])
    rings(ax, PAIR.centers)
    star(ax, PAIR.target)
    for moment, beside in ((1.5, (6, -4)), (2.13, (8, -6)), (3.92, (34, -40)), (7.6, (-8, -13))):
        at = np.searchsorted(path.times, moment)
        ax.scatter(outputs[at, 0], outputs[at, 1], s=16, color=INK, zorder=7)
        arrow = {"arrowstyle": "-", "color": QUIET, "lw": 0.7, "shrinkB": 3}
        name = f"$t={moment:g}$"
        ax.annotate(
            name, tuple(outputs[at]), beside, textcoords="offset points", fontsize=7.5, arrowprops=arrow
        )
    ax.annotate(
        "training center (0, 2)", tuple(PAIR.centers[1]), (0, 10), textcoords="offset points", fontsize=7.5
    )
    ax.annotate("composition", tuple(PAIR.target), (-58, 8), textcoords="offset points", fontsize=7.5)
    ax.set(
        xlabel="$f_1$", ylabel="$f_2$", title="The output swings by", xlim=(-0.12, 1.15), ylim=(-0.15, 2.3)
    )


def timed_line(ax: Axes, points: Array, times: Array, end: float, lw: float = 2.6) -> None:
    """A line that changes color with (square root of) time."""
    segments = np.stack([points[:-1], points[1:]], axis=1)
    line = LineCollection(list(segments), cmap="plasma", lw=lw, capstyle="round", zorder=3)
    line.set_array(np.sqrt(times[:-1] / end) * 0.9)
    line.set_clim(0, 1)
    ax.add_collection(line)


def figure_17(tick: Callable) -> Figure:
    """Training loss falls throughout while the error at the composition rises; both on logarithmic axes."""
    path = canonical_path(20)
    figure, axes = sheet(2, width=3.8, height=3.1)
    errors, loss = path.error(PAIR.target), population_loss(path.w, PAIR.a)
    for ax in axes[0]:
        ax.plot(path.times, errors, color=INK, label="composition (OOD)")
        ax.plot(path.times, loss, color=FLOW, label="training loss")
        for k, center in enumerate(PAIR.centers):
            ax.plot(
                path.times, path.error(center), color=CONCEPTS[k], lw=1.2, label=f"center of cluster {k + 1}"
            )
        ax.set_xlabel("time  (paper clock)")
    axes[0, 0].set(ylabel="error", title="Linear scale", ylim=(0, 2.6))
    axes[0, 1].set(yscale="log", ylim=(1e-11, 5), title="Logarithmic: $E \\sim e^{-4 a_1 t}$ at the end")
    late = path.times > 10
    guide = errors[late][0] * np.exp(-4 * PAIR.a[0] * (path.times[late] - 10)) * 3
    axes[0, 1].plot(path.times[late], guide, color=QUIET, ls=(0, (2, 2)), lw=1.2)
    axes[0, 0].legend()
    tick()
    return figure


def figure_18(tick: Callable) -> Figure:
    """Outputs at the training centers bend too."""
    path = canonical_path(20)
    figure, axes = sheet(1, width=4.2, height=3.8)
    ax = axes[0, 0]
    for point in (*PAIR.centers, PAIR.target):
        timed_line(ax, path.outputs(point), path.times, path.times[-1])
    rings(ax, PAIR.centers, "training centers")
    star(ax, PAIR.target, "composition")
    ax.set(xlabel="$f_1$", ylabel="$f_2$", title="Outputs at three inputs, colored by time")
    ax.set(xlim=(-0.1, 1.15), ylim=(-0.15, 2.3))
    ax.legend(loc="center right")
    tick()
    return figure


# --- Figure 7: the hierarchy of corners ---------------------------------------------------------------------


def figure_7(tick: Callable) -> Figure:
    """Errors of all 16 corners of four concepts in a two-layer ReLU network after 1, 3 and 5 epochs."""
    from tessera.studies.swingby.mlp import Recipe, train

    task = Sim((1, 2, 3, 4), 0.5, 64, rotation=0)
    # Averaging the squared error over the 64 coordinates too, as torch's own loss does, divides the step by 32.
    recipe = Recipe(depth=2, relu=True, epochs=5, rate=0.1 / 32)
    steps = -(-task.clusters * recipe.samples // recipe.batch)
    runs = train(task, recipe, range(1), task.corners, look_every=steps)
    figure, axes = sheet(3, width=3.7, height=3.9)
    pairs = ordered_pairs(task.codes)
    for ax, epoch in zip(axes[0], (1, 3, 5)):
        errors = runs.errors[epoch, 0]
        shown = corner_lattice(ax, task, errors)
        kept = round(analysis.hierarchy_kept(errors, pairs) * len(pairs))
        ax.set_title(f"epoch {epoch}: {kept} of {len(pairs)} pairs in order")
    figure.colorbar(shown, ax=axes[0], shrink=0.8, label="error (clipped at 1)", extend="max")
    tick()
    return figure


def corner_lattice(ax: Axes, task: Sim, errors: Array):
    """Corners by number of concepts, from the origin at the bottom to the full composition at the top."""
    codes = task.codes
    level = codes.sum(1).astype(int)
    location = np.zeros((len(codes), 2))
    for size in range(task.s + 1):
        members = np.flatnonzero(level == size)[::-1]
        location[members, 0] = np.arange(len(members)) - (len(members) - 1) / 2
        location[members, 1] = size
    for low, high in ordered_pairs(codes):
        if level[high] - level[low] == 1:
            ax.plot(*location[[low, high]].T, color=GRID, lw=1, zorder=1)
    shown = ax.scatter(
        location[:, 0],
        location[:, 1],
        c=errors,
        s=430,
        cmap="YlOrRd",
        vmin=0,
        vmax=1,
        edgecolor=INK,
        lw=0.7,
        zorder=3,
    )
    for code, (x, y), error in zip(codes, location, errors):
        ink = "white" if error > 0.7 else INK
        ax.text(
            x, y, "".join(f"{v:.0f}" for v in code), ha="center", va="center", fontsize=7, color=ink, zorder=4
        )
    ax.set(xlim=(-3, 3), ylim=(-0.5, task.s + 0.5))
    ax.axis("off")
    return shown


# --- Figures 8, 9, 10: three and four concepts --------------------------------------------------------------


def multi_descent(task: Sim, omega: float, seed: int, duration: float) -> Path:
    u0 = positive_factors([seed], omega, (task.s, task.s), low=0.0, high=1.0)[0]
    return symmetric.factor_flow(u0, task.a, duration, 0.01 / task.a.max() * 2)


def descent_figure(task: Sim, omega: float, seed: int, duration: float, tick: Callable) -> Figure:
    """Entries and error on logarithmic time, every rise marked."""
    path = multi_descent(task, omega, seed, duration)
    errors = path.error(task.target)
    figure, axes = sheet(2, width=4.2, height=3.3)
    left, right = axes[0]
    entries_panel(left, path, task)
    left.legend(loc="upper left", ncols=3)
    left.set_ylim(-0.06, 1.35)
    right.plot(path.times, errors, color=INK, label="composition (OOD)")
    right.plot(path.times, population_loss(path.w, task.a), color=FLOW, label="training loss")
    for number, (t0, e0, t1, e1) in enumerate(analysis.rises(path.times, errors)):
        right.plot(
            [t0, t1], [e0, e1], "o", ms=5, color=CONCEPTS[0], label=None if number else "turning points"
        )
    count = analysis.descents(errors)
    words = {1: "one descent", 2: "double descent", 3: "triple descent", 4: "quadruple descent"}
    right.set(ylabel="error at the composition", title=words.get(count, f"{count} descents"), ylim=(0, None))
    for ax in (left, right):
        ax.set_xscale("log")
        ax.set_xlim(0.2, duration)
        ax.set_xlabel("time  (paper clock)")
    right.legend()
    mu = ", ".join(f"{m:g}" for m in task.mu)
    left.set_title(f"$\\mu=({mu})$, seed {seed}, $\\omega={omega:g}$")
    tick()
    return figure


def figure_8(tick: Callable) -> Figure:
    """Three concepts: triple descent."""
    return descent_figure(Sim((1, 1.5, 2.2), 0.05), 0.02, 48, 40, tick)


def figure_9(tick: Callable) -> Figure:
    """Four concepts: quadruple descent."""
    return descent_figure(Sim((1, 1.5, 2.2, 2.7), (0.05, 0.05, 0.05, 0.5)), 0.1, 46, 60, tick)


def figure_10(tick: Callable) -> Figure:
    """Signals far apart: the weakest concept waits on a long plateau, and is learned in the end."""
    return descent_figure(Sim((0.7, 1.7, 3), 0.05), 0.05, 0, 60, tick)


# --- Our own ------------------------------------------------------------------------------------------------


def figure_terms(tick: Callable) -> Figure:
    """Growth, suppression and noise of the minor and of the weak major over time."""
    path = canonical_path(10)
    parts = symmetric.terms(path.w, PAIR.a)
    figure, axes = sheet(2, width=3.8, height=3.1)
    for ax, (i, j), name in zip(axes[0], ((0, 1), (0, 0)), ("minor $w_{12}$", "weak major $w_{11}$")):
        ax.plot(path.times, parts.growth[:, i, j], color=CONCEPTS[2], label="growth")
        ax.plot(path.times, -parts.suppression[:, i, j], color=CONCEPTS[0], label="− suppression")
        ax.plot(path.times, -parts.noise[:, i, j], color=MINOR, label="− noise (interaction)")
        ax.plot(path.times, symmetric.field(path.w, PAIR.a)[:, i, j], color=INK, lw=1.2, label="sum")
        ax.set(xlabel="time  (paper clock)", ylabel="speed", title=f"What moves the {name}")
    axes[0, 0].legend()
    tick()
    return figure


def figure_depth(tick: Callable) -> Figure:
    """Depth: longer plateaus, sharper steps, a bigger bump; one layer from the same start never rises."""
    figure, axes = sheet(2, width=3.8, height=3.2)
    for depth, color in zip((1, 2, 3, 4), ("#9aa5b1", *CONCEPTS)):
        path = deep.flow(deep.balanced_layers(CANONICAL, depth), PAIR.a, 120, 0.02)
        errors = path.error(PAIR.target)
        name = f"{depth} layer{'s' if depth > 1 else ''}: rise {analysis.rise(errors):.3f}"
        axes[0, 0].plot(path.times, errors, color=color, label=name)
        axes[0, 1].plot(*PAIR.concepts(path.outputs(PAIR.target)).T, color=color, label=f"{depth}")
        tick()
    axes[0, 0].set(xlabel="time", ylabel="error at the composition", title="Untied layers, one start", ylim=0)
    axes[0, 0].set_xscale("log")
    axes[0, 0].set_xlim(0.1, 120)
    axes[0, 0].legend(loc="upper right")
    concept_axes(axes[0, 1])
    axes[0, 1].set_title("Outputs at the composition")
    return figure


def figure_bridge(tick: Callable) -> Figure:
    """A linear conditional denoiser: at high noise it is SIM, and there it swings."""
    figure, axes = sheet(3, width=3.6, height=3.2)
    times = np.linspace(0, 20, 2001)
    levels = np.geomspace(1, 1000, 25)
    distances = [bridge.distance_from_sim(PAIR.a, tau, times) for tau in levels]
    axes[0, 0].loglog(levels, distances, color=INK)
    axes[0, 0].set(
        xlabel="noise level  $\\tau$", ylabel="largest difference", title="One layer: distance from SIM"
    )
    noises = np.geomspace(0.3, 100, 25)
    heights: dict[str, list[float]] = {"condition alone": [], "condition and image": []}
    for tau in noises:
        blocks = bridge.two_layer_flow(CANONICAL, PAIR.a, tau, 25, 0.02).w
        heights["condition alone"].append(float(analysis.rise(bridge.condition_error(blocks, PAIR.target))))
        heights["condition and image"].append(
            float(analysis.rise(bridge.full_error(blocks, PAIR.target, tau)))
        )
        tick(1 / len(noises))
    for (name, values), color in zip(heights.items(), (INK, MINOR)):
        axes[0, 1].semilogx(noises, values, color=color, label=name)
    axes[0, 1].set(xlabel="noise level  $\\tau$", ylabel="rise of the error", title="Two layers: swing-by")
    axes[0, 1].legend()
    for tau, color in zip((100, 3, 0.5), CONCEPTS):
        path = bridge.two_layer_flow(CANONICAL, PAIR.a, tau, 14, 0.02)
        axes[0, 2].plot(
            path.times, bridge.condition_error(path.w, PAIR.target), color=color, label=f"$\\tau={tau:g}$"
        )
    axes[0, 2].set(xlabel="time", ylabel="error, condition alone", title="Error at the composition", ylim=0)
    axes[0, 2].legend()
    return figure


def figure_certificate(tick: Callable, draws: int = 500) -> Figure:
    """One layer: how often a Gaussian start is monotone, and how often the certificate says so beforehand."""
    scales = np.array([0.01, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0])
    times = np.linspace(0, 30, 1500)
    random = np.random.default_rng(0)
    monotone, certified = [], []
    for scale in scales:
        w0 = scale * random.standard_normal((draws, 2, 2))
        errors = Path(times, one_layer.flow(w0, PAIR.a, times)).error(PAIR.target)  # (T, draws)
        monotone.append(100 * np.mean(analysis.rise(errors) <= analysis.MONOTONE))
        certified.append(100 * np.mean(one_layer.certificate(w0, PAIR.a, 2)))
        tick(1 / len(scales))
    figure, axes = sheet(1, width=4.4, height=3.2)
    axes[0, 0].semilogx(scales, monotone, "o-", color=INK, label="monotone in the run")
    axes[0, 0].semilogx(scales, certified, "o-", color=CONCEPTS[1], label="certified beforehand")
    axes[0, 0].set(xlabel="scale of the Gaussian start", ylabel="share of starts (%)", ylim=(0, 105))
    axes[0, 0].set_title("One layer needs a small start")
    axes[0, 0].legend(loc="lower left")
    return figure


def figure_phase(tick: Callable) -> Figure:
    """Three phase diagrams of the symmetric model from aligned starts."""
    figure, axes = sheet(3, width=3.7, height=3.3)
    for ax, (x, y) in zip(axes[0], (("ratio", "omega"), ("omega", "rho"), ("ratio", "sigma"))):
        phase = phase_diagram(x, y, cells=60, seeds=1, start="aligned")  # type: ignore[arg-type]
        shown = phase_panel(ax, phase, x, y)
        held = {"ratio": "\\mu_2/\\mu_1", "omega": "\\omega", "rho": "\\rho", "sigma": "\\sigma"}
        rest = [f"{held[name]}={DEFAULTS[name]:g}" for name in DEFAULTS if name not in (x, y)]
        ax.set_title("$" + ",\\ ".join(rest) + "$")
        figure.colorbar(shown, ax=ax, label="rise / ($\\mu_1^2/2$)")
        tick(1 / 3)
    return figure


def phase_panel(
    ax: Axes, phase: Phase, x: str, y: str, values: Array | None = None, top: float | None = None
):
    """A phase diagram as a map; the line bounds the settings where the rise exceeds a thousandth."""
    shown_values = phase.mean if values is None else values
    shown = ax.pcolormesh(phase.x, phase.y, shown_values, cmap="magma_r", vmin=0, vmax=top, shading="nearest")
    shown.set_rasterized(True)
    if phase.mean.min() < 1e-3 < phase.mean.max():
        ax.contour(phase.x, phase.y, phase.mean, levels=[1e-3], colors=[INK], linewidths=1)
    ax.set(xlabel=AXES[x].label, ylabel=AXES[y].label)
    ax.set_xscale("log" if AXES[x].log else "linear")
    ax.set_yscale("log" if AXES[y].log else "linear")
    ax.grid(False)
    return shown


def figure_sweep(phase: Phase, x: str, y: str) -> Figure:
    """The image that goes with `tessera dynamics sweep`: mean height and share of starts that swing."""
    with matplotlib.rc_context(STYLE):
        figure, axes = sheet(2, width=4.0, height=3.4)
        for ax, values, top, name in (
            (axes[0, 0], phase.mean, None, "mean rise / ($\\mu_1^2/2$)"),
            (axes[0, 1], phase.share, 1.0, "share of starts that swing"),
        ):
            figure.colorbar(phase_panel(ax, phase, x, y, values, top), ax=ax, label=name)
    return figure


def figure_run(path: Path, task: Sim) -> Figure:
    """The image that goes with `tessera dynamics run`: entries and errors."""
    with matplotlib.rc_context(STYLE):
        figure, axes = sheet(2, width=4.0, height=3.2)
        entries_panel(axes[0, 0], path, task)
        swing_panel(axes[0, 1], path, task)
        axes[0, 1].set_title("Errors")  # whether it swings is for the run to show
        for ax in axes[0]:
            ax.set_xlabel("time")
    return figure


FIGURES: dict[str, Callable[[Callable], Figure]] = {
    "2": figure_2,
    "3": figure_3,
    "4": figure_4,
    "5": figure_5,
    "7": figure_7,
    "8": figure_8,
    "9": figure_9,
    "10": figure_10,
    "11": figure_11,
    "12": figure_12,
    "13": figure_13,
    "14": figure_14,
    "15": figure_15,
    "16": figure_16,
    "17": figure_17,
    "18": figure_18,
    "terms": figure_terms,
    "depth": figure_depth,
    "bridge": figure_bridge,
    "certificate": figure_certificate,
    "phase": figure_phase,
}


def draw(name: str, tick: Callable = lambda share=1: None) -> Figure:
    """Run what figure `name` needs and draw it; `tick` is called as parts get ready."""
    with matplotlib.rc_context(STYLE):
        return FIGURES[name](tick)


def animate_swing(path: Path, frames: int = 120):
    """Frames of the canonical run: the map, the error and the output moving together. Yields RGB arrays."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    moments = np.linspace(0, 1, frames) ** 1.5 * path.times[-1]  # slow where it happens
    for moment in moments:
        now = int(np.searchsorted(path.times, moment).clip(1, len(path.times) - 1))
        with matplotlib.rc_context(STYLE):
            figure, axes = sheet(2, width=3.4, height=3.0)
            figure.set_dpi(100)
            _moving_error(axes[0, 0], path, now)
            _moving_output(axes[0, 1], path, now)
            canvas = FigureCanvasAgg(figure)
            canvas.draw()
        yield np.asarray(canvas.buffer_rgba())[..., :3].copy()


def _moving_error(ax: Axes, path: Path, now: int) -> None:
    errors = path.error(PAIR.target)
    ax.plot(path.times, errors, color=GRID)
    ax.plot(path.times[:now], errors[:now], color=INK)
    ax.plot(path.times[:now], path.w[:now, 0, 1] * 10, color=MINOR, lw=1.2, label="minor $w_{12}$ × 10")
    ax.scatter(path.times[now], errors[now], s=26, color=CONCEPTS[0], zorder=5)
    ax.set(xlabel="time  (paper clock)", ylabel="error at the composition", ylim=(0, 2.6))
    ax.legend(loc="upper right")


def _moving_output(ax: Axes, path: Path, now: int) -> None:
    outputs = path.outputs(PAIR.target)
    ax.plot(*outputs.T, color=GRID)
    timed_line(ax, outputs[: now + 1], path.times[: now + 1], path.times[-1])
    ax.scatter(outputs[now, 0], outputs[now, 1], s=26, color=CONCEPTS[0], zorder=7)
    rings(ax, PAIR.centers)
    star(ax, PAIR.target)
    ax.set(xlabel="$f_1$", ylabel="$f_2$", xlim=(-0.1, 1.15), ylim=(-0.15, 2.3))


def swingby_figure(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """Paths through concept space, and the error at the composition over training."""
    figure, ((left, right),) = sheet(2, width=4.6, height=4.0)
    shades = matplotlib.colormaps["viridis"](np.linspace(0.05, 0.9, max(1, len(rows))))
    for row, shade in zip(rows, shades):
        path, steps = np.array(row["path"]), np.array(row["steps"])
        left.plot(*path.T, color=shade, lw=1.6, label=f"{row['gap']:.2f}")
        right.plot(steps, row["error"], color=shade, lw=1.6)
        right.fill_between(steps, *row["band"], color=shade, alpha=0.15, lw=0)
        if row["trained_at"]:
            right.plot(row["trained_at"], np.interp(row["trained_at"], steps, row["error"]), "o", color=shade)
    concept_square(left)
    right.set(xscale="log", xlabel="training step", ylabel="error at small blue", ylim=(0, None))
    right.set_title("dots: the three shown corners are learned", fontsize=9)
    left.legend(title="color gap", loc="center left", bbox_to_anchor=(-0.62, 0.5), frameon=False)
    return figure


def concept_square(ax: Axes) -> None:
    rings(ax, np.array([[0, 0], [0, 1], [1, 0]]))
    star(ax, np.ones(2))
    ax.set(xlim=(-0.1, 1.1), ylim=(-0.1, 1.1), xlabel="blue", ylabel="small", aspect="equal")
    ax.set_title("what small blue looks like", fontsize=9)
