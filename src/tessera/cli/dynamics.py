"""`tessera dynamics run | sweep | figure`: one run, a phase diagram, the paper's figures."""

import csv
import itertools
import math
import time
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import tyro
from rich.table import Table

from tessera import console
from tessera.cli.options import Folder, Number, Printed, Text, Whole, WithDetails
from tessera.errors import UserError
from tessera.files import atomic, make_folder, write_json
from tessera.provenance import provenance
from tessera.records import DynamicsRecord, SweepRecord, new_record
from tessera.studies.swingby import analysis, runs
from tessera.studies.swingby import sweep as sweeps
from tessera.studies.swingby.data import Array, Sim
from tessera.studies.swingby.integrate import Solver
from tessera.studies.swingby.symmetric import Clock

START = tyro.conf.arg(metavar="{aligned,positive,gaussian,default}", help_behavior_hint="")


@dataclass(frozen=True, kw_only=True)
class DynamicsRun(Printed, WithDetails):
    """One run of the identity-map model: when each concept is learned, and whether the error at their composition
    falls, rises and falls again (swing-by)."""

    mu: str = "1,2"
    """Signal strength of each concept."""
    sigma: str = "0.05"
    """Diversity: one number, or one per concept."""
    dim: tyro.conf.Fixed[Whole] = None
    """Ambient dimension d (default: the number of concepts)."""
    model: runs.Model = "uut"
    """U U^T; one linear layer; untied linear layers; or an MLP (linear or ReLU) trained by SGD on samples."""
    w0: Text = None
    """The end-to-end map at the start, rows separated by semicolons: "0.0025,0.00225;0.00225,0.0025"."""
    start: Annotated[runs.Start | None, START] = None
    """Without --w0: rows of norm omega at cosine rho; omega * uniform(0.5, 1.5); N(0, omega^2 / width); or the
    uniform default of torch (deep)."""
    omega: float = 0.05
    """Size of the start."""
    rho: tyro.conf.Fixed[float] = 0.9
    """Alignment of an aligned start."""
    width: Whole = None
    """Columns d' of U, or hidden width of an MLP (default d)."""
    depth: int = 2
    """Layers of `deep`, `mlp` and `relu`."""
    seed: int = 0
    """Seed of a random start, and of the samples of an MLP."""
    time: Number = None
    """How long to run, on the chosen clock (default: until all is learned)."""
    clock: tyro.conf.Fixed[Clock] = "paper"
    """For U U^T: the printed field (dU/dt = -1/2 dL/dU) or plain gradient flow, the same path twice as fast. The
    other models have one clock only."""
    solver: Solver = "flow"
    """Continuous time, or gradient descent with --step as its learning rate."""
    step: tyro.conf.Fixed[Number] = None
    """Time step, or learning rate of descent and SGD."""
    threshold: tyro.conf.Fixed[float] = analysis.THRESHOLD
    """Share of the first error that counts as a rise."""
    samples: tyro.conf.Fixed[int] = 5000
    """Training samples per cluster of an MLP."""
    batch: tyro.conf.Fixed[int] = 128
    """Batch size of SGD."""
    rotation: tyro.conf.Fixed[Whole] = None
    """Seed of a rotation of data and tests, for an MLP."""
    out: Folder = None
    """Folder for run.json, curves.csv and run.png."""

    def run(self) -> None:
        task = Sim(numbers(self.mu, "mu"), numbers(self.sigma, "sigma"), self.dim, rotation=self.rotation)
        chosen = {option.name: getattr(self, option.name) for option in fields(runs.RunSettings)}
        w0 = None if self.w0 is None else matrix(self.w0, task.d)
        found, record = runs.run(task, runs.RunSettings(**{**chosen, "w0": w0}))
        for caution in record["cautions"]:
            console.say(f"tessera: {caution}")
        if self.out:
            self.save(make_folder(self.out), task, found, record)
        console.publish(new_record(DynamicsRecord, record), self.json, None, _run_table(record))

    def save(self, folder: Path, task: Sim, found: runs.Run, record: dict[str, Any]) -> None:
        write_json(folder / "run.json", record)
        curves = found.columns()
        with atomic(folder / "curves.csv") as temporary, open(temporary, "w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(curves)
            writer.writerows([[f"{value:.9g}" for value in row] for row in zip(*curves.values())])
        if found.path is not None:
            from tessera.studies.swingby.figures import figure_run

            _save_kinds(figure_run(found.path, task), folder / "run", ("png",))
        console.say(f"Wrote {folder}")


@dataclass(frozen=True, kw_only=True)
class DynamicsSweep(Printed, WithDetails):
    """Many runs: a phase diagram of two concepts, or how often networks swing by depth, dimension and width."""

    study: tyro.conf.Positional[Literal["phase", "depth", "width"]] = "phase"
    """Phase diagram of U U^T; untied layers from torch's default start; or U U^T of growing width."""
    x: sweeps.AxisName = "ratio"
    """Axis of the phase diagram: mu2/mu1, size of the start, its alignment, or diversity of both concepts."""
    y: sweeps.AxisName = "omega"
    """Second axis."""
    x_range: tyro.conf.Fixed[Text] = None
    """Range "low,high" instead of the axis's own."""
    y_range: tyro.conf.Fixed[Text] = None
    """Range of the second axis."""
    cells: int = 40
    """Settings per axis."""
    seeds: int = 20
    """Starts per setting."""
    start: sweeps.StartName = "positive"
    """Exact alignment rho (then --seeds 1); omega * uniform(0.5, 1.5); or Gaussian."""
    width: tyro.conf.Fixed[int] = 2
    """Columns of U for random starts."""
    ratio: tyro.conf.Fixed[float] = sweeps.DEFAULTS["ratio"]
    """mu2/mu1 where it is no axis."""
    omega: tyro.conf.Fixed[float] = sweeps.DEFAULTS["omega"]
    """Size of the start where it is no axis."""
    rho: tyro.conf.Fixed[float] = sweeps.DEFAULTS["rho"]
    """Alignment where it is no axis."""
    sigma: tyro.conf.Fixed[float] = sweeps.DEFAULTS["sigma"]
    """Diversity where it is no axis."""
    depths: tyro.conf.Fixed[str] = "1,2,3,4"
    """Depths of the depth study."""
    dims: tyro.conf.Fixed[str] = "2,3,8"
    """Ambient dimensions of the depth study."""
    widths: tyro.conf.Fixed[str] = "2,4,8,16,32,64"
    """Widths of the width study."""
    threshold: tyro.conf.Fixed[float] = analysis.THRESHOLD
    """Share of the first error that counts as a rise, in the phase diagram."""
    out: Folder = None
    """Folder for the record and, for a phase diagram, its image."""

    def run(self) -> None:
        began = time.perf_counter()
        record = self.phase() if self.study == "phase" else sweeps.share_study(self.study, self.settings(), self.seeds)
        record |= {"seconds": round(time.perf_counter() - began, 2), "provenance": provenance()}
        file = self.out and self.out / f"{self.study}.json"
        console.publish(new_record(SweepRecord, record), self.json, file, _sweep_table(record))
        if self.out:
            console.say(f"Wrote {self.out}")

    def phase(self) -> dict[str, Any]:
        axes: dict[str, sweeps.Axis] = {}
        for name, text, option in ((self.x, self.x_range, "x-range"), (self.y, self.y_range, "y-range")):
            if text is not None:
                axes[name] = sweeps.with_range(name, numbers(text, option))
        fixed = {name: getattr(self, name) for name in sweeps.DEFAULTS if name not in (self.x, self.y)}
        with console.progress("runs", self.cells**2 * self.seeds) as advance:
            phase = sweeps.phase_diagram(
                self.x, self.y, self.cells, self.seeds, self.start, self.width, fixed, axes, self.threshold, advance
            )
        if self.out:
            from tessera.studies.swingby.figures import figure_sweep

            _save_kinds(figure_sweep(phase), make_folder(self.out) / "phase", ("png", "svg"))
        return {**phase.to_dict(), "fixed": fixed, "start": self.start}

    def settings(self) -> list[dict[str, int]]:
        """Of the study of depths, or of widths."""
        if self.study == "width":
            return [{"width": width} for width in whole(self.widths, "widths")]
        depths, dims = whole(self.depths, "depths"), whole(self.dims, "dims")
        return [{"depth": depth, "dim": dim} for dim, depth in itertools.product(dims, depths)]


@dataclass(frozen=True)
class DynamicsFigure:
    """Make figures of the Swing-by paper again (2 to 5, 7 to 18), or our own: terms, depth, bridge, certificate,
    phase. `all` makes every one."""

    which: tyro.conf.Positional[tuple[str, ...]]
    """Figure numbers or names."""
    out: Path = Path("figures")
    """Folder for the images."""
    format: Literal["png", "svg", "both"] = "both"
    """File format."""
    animate: bool = False
    """For figure 5: also a moving image, figure-5.gif."""

    def run(self) -> None:
        from tessera.studies.swingby.figures import FIGURES, draw

        names = list(FIGURES if "all" in self.which else self.which)
        self.check(names, FIGURES)
        folder = make_folder(self.out)
        kinds = ("png", "svg") if self.format == "both" else (self.format,)
        with console.progress("figures", len(names)) as advance:
            for name in names:
                advance(0, note=f"figure {name}")
                _save_kinds(draw(name), folder / f"figure-{name}", kinds)
                advance()
        if self.animate:
            self.save_animation(folder / "figure-5.gif")
        console.say(f"Wrote {len(names)} figure{'s' if len(names) > 1 else ''} into {folder}")

    def check(self, names: list[str], known) -> None:
        if not names:
            raise UserError(f"Name at least one figure: {', '.join(known)} or all.")
        if "6" in names:
            raise UserError("Figure 6 shows trained diffusion networks and cannot be made from the model alone.")
        for name in names:
            if name not in known:
                raise UserError(f"There is no figure `{name}`; known are {', '.join(known)} and all.")
        if self.animate and "5" not in names:
            raise UserError("Only figure 5 can be animated.")

    def save_animation(self, path: Path) -> None:
        from PIL import Image

        from tessera.studies.swingby.figures import animate_swing, canonical_path

        count = 120
        with console.progress("frames", count) as advance:
            frames = []
            for frame in animate_swing(canonical_path(), count):
                frames.append(Image.fromarray(frame).quantize(64))
                advance()
        with atomic(path) as temporary:
            frames[0].save(temporary, format="GIF", save_all=True, append_images=frames[1:], duration=60, loop=0)


def _save_kinds(figure, stem: Path, kinds: tuple[str, ...]) -> None:
    from tessera.plots.figures import save_figure

    for kind in kinds:
        save_figure(figure, stem.with_name(f"{stem.name}.{kind}"))


def numbers(text: str, name: str) -> tuple[float, ...]:
    """ "1, 2" as numbers."""
    try:
        values = tuple(float(part) for part in text.split(","))
    except ValueError:
        raise UserError(f"--{name} takes numbers separated by commas, not `{text}`.") from None
    if not all(math.isfinite(value) for value in values):
        raise UserError(f"--{name} takes finite numbers, not `{text}`.")
    return values


def whole(text: str, name: str) -> list[int]:
    values = numbers(text, name)
    if not all(value == int(value) and value >= 1 for value in values):
        raise UserError(f"--{name} takes whole numbers from 1, not `{text}`.")
    return [int(value) for value in values]


def matrix(text: str, d: int) -> Array:
    """ "a,b;c,d" as a (d, d) array."""
    rows = [numbers(row, "w0") for row in text.split(";")]
    if len(rows) != d or any(len(row) != d for row in rows):
        raise UserError(f"--w0 must be {d} by {d}: {d} rows separated by semicolons, each of {d} numbers.")
    return np.array(rows)


def _run_table(record: dict[str, Any]) -> Table:
    table = Table("what", "value", title=f"{record['model']}, mu = {record['mu']}, clock {record['clock']}")
    order = " then ".join(str(k) for k in record["order"]) or "none"
    table.add_row("concepts learned in the order", order)
    halves = ["never" if value is None else f"{value:.4g}" for value in record["half_times"]]
    table.add_row("half learned at", ", ".join(halves))
    table.add_row("first and last error", f"{record['e_first']:.6g}, {record['e_last']:.6g}")
    if record["t_max"] is not None:
        table.add_row("lowest before the rise", f"{record['e_min']:.6g} at t = {record['t_min']:.4f}")
        table.add_row("top of the rise", f"{record['e_max']:.6g} at t = {record['t_max']:.4f}")
    share = 100 * record["rise_over_first"]
    table.add_row("rise", f"{record['rise']:.6g} ({share:.2f}% of the first error)")
    table.add_row("swing-by", "yes" if record["swing_by"] else "no")
    return table


def _sweep_table(record: dict[str, Any]) -> Table:
    if record["study"] == "phase":
        swing = record["swing_by"]
        table = Table("what", "value", title=f"{record['x']['name']} by {record['y']['name']}")
        table.add_row("runs", str(record["runs"]))
        table.add_row("swing by", f"{swing['value']:.3f} [{swing['low']:.3f}, {swing['high']:.3f}]")
        table.add_row("largest mean height", f"{np.max(record['height']['mean']):.3f}")
        table.add_row("seconds", str(record["seconds"]))
        return table
    columns = [name for name in record["rows"][0] if name not in ("value", "low", "high", "n")]
    table = Table(*columns, "share", "95% interval", "seeds", title=record["counted"])
    for row in record["rows"]:
        low, high = row["low"], row["high"]
        cells = [str(row[name]) for name in columns]
        table.add_row(*cells, f"{row['value']:.3f}", f"[{low:.3f}, {high:.3f}]", str(row["n"]))
    return table
