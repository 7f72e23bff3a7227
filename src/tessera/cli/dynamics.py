"""`tessera dynamics run | sweep | figure`: one run, a phase diagram, the paper's figures."""

import csv
import math
import time
import warnings
from dataclasses import asdict, dataclass, replace
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
from tessera.studies.swingby import analysis, deep, one_layer, symmetric
from tessera.studies.swingby import integrate as march
from tessera.studies.swingby import sweep as sweeps
from tessera.studies.swingby.data import Array, Sim, population_loss
from tessera.studies.swingby.starts import aligned_map, factor, gaussian_factors, positive_factors

Model = Literal["uut", "one-layer", "deep", "mlp", "relu"]
_Start = Literal["aligned", "positive", "gaussian", "default"]
START = tyro.conf.arg(metavar="{aligned,positive,gaussian,default}", help_behavior_hint="")
KEPT = 20_000  # most samples of a curve that are kept


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
    model: Model = "uut"
    """U U^T; one linear layer; untied linear layers; or an MLP (linear or ReLU) trained by SGD on samples."""
    w0: Text = None
    """The end-to-end map at the start, rows separated by semicolons: "0.0025,0.00225;0.00225,0.0025"."""
    start: Annotated[_Start | None, START] = None
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
    clock: tyro.conf.Fixed[symmetric.Clock] = "paper"
    """For U U^T: the printed field (dU/dt = -1/2 dL/dU) or plain gradient flow, the same path twice as fast. The
    other models have one clock only."""
    solver: Literal["flow", "descent"] = "flow"
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
        self.check()
        task = Sim(numbers(self.mu, "mu"), numbers(self.sigma, "sigma"), self.dim, rotation=self.rotation)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            seen = self.train_mlp(task) if self.model in ("mlp", "relu") else self.solve(task)
        cautions = [str(warning.message) for warning in caught if issubclass(warning.category, UserWarning)]
        for caution in cautions:
            console.say(f"tessera: {caution}")
        record = {**self.describe(task, seen), "cautions": cautions}
        if self.out:
            self.save(task, seen, record)
        console.publish(new_record(DynamicsRecord, record), self.json, None, _run_table(record))

    def check(self) -> None:
        analysis.check_threshold(self.threshold)
        if self.width is not None:
            sweeps.check_width(self.width)

    def solve(self, task: Sim) -> "_RunSummary":
        """A linear model on the population loss."""
        w0 = self.start_map(task)
        speed = symmetric.CLOCK_SPEED[self.clock] if self.model == "uut" else 1.0
        duration = self.time if self.time is not None else self.settles(task, w0) / speed
        step = self.step if self.step is not None else 0.01 / (float(task.a.max()) * speed)
        march.check_step(step, 0, 1)
        steps = march.step_count(duration, step)
        with console.progress("learning", steps) as advance:
            path = self.path(task, w0, step, steps, max(1, -(-steps // KEPT)), advance)
        errors, loss = path.error(_along_axes(task)), population_loss(path.w, task.a)
        half = analysis.half_times(path.times, path.w, task.s)
        return _RunSummary(path.times, errors, loss, path.outputs(_along_axes(task)), half, path, w0)

    def path(self, task: Sim, w0: Array, step: float, steps: int, every: int, advance) -> march.Path:
        duration = steps * step
        if self.model == "one-layer":
            counts = np.arange(0, steps + 1, every)
            if self.solver == "descent":
                return march.Path(step * counts, one_layer.descent(w0, task.a, step, counts))
            return march.Path(step * counts, one_layer.flow(w0, task.a, step * counts))
        if self.model == "deep":
            layers = self.layers(task, w0)
            if self.solver == "descent":
                return deep.descent(layers, task.a, step, steps, every, advance)
            return deep.flow(layers, task.a, duration, step, every, advance)
        u0 = factor(w0)
        if self.solver == "descent":
            return symmetric.factor_descent(u0, task.a, step, steps, self.clock, every, advance)
        return symmetric.factor_flow(u0, task.a, duration, step, self.clock, every, advance)

    def layers(self, task: Sim, w0: Array) -> march.State:
        deep.check_depth(self.depth)
        if self.start == "default" and self.w0 is None:
            hidden = [self.width or task.d] * (self.depth - 1)
            drawn = deep.uniform_layers(range(self.seed, self.seed + 1), (task.d, *hidden, task.d))
            return tuple(layer[0] for layer in drawn)
        return deep.balanced_layers(w0, self.depth)

    def start_map(self, task: Sim) -> Array:
        if self.w0 is not None:
            return matrix(self.w0, task.d)
        if not self.omega > 0:
            raise UserError(f"The size of the start must be positive, not {self.omega:g}.")
        kind = self.start or ("aligned" if task.s == task.d == 2 and self.width is None else "positive")
        if kind == "aligned":
            if task.d != 2:
                raise UserError("An aligned start is defined for two concepts in two dimensions.")
            return aligned_map(self.omega, self.rho)
        if kind == "default":
            if self.model != "deep":
                raise UserError("The torch default start is for --model deep, mlp and relu.")
            return deep.product(self.layers(task, np.eye(task.d)))
        shape = (task.d, self.width or task.d)
        if kind == "positive":
            return symmetric.map_of(positive_factors([self.seed], self.omega, shape)[0])
        return symmetric.map_of(gaussian_factors([self.seed], self.omega / math.sqrt(shape[1]), shape)[0])

    def settles(self, task: Sim, w0: Array) -> float:
        """Long enough for every concept; deep networks leave a small start only slowly, so they get more."""
        if self.model == "one-layer":
            return 12 / float(task.a[: task.s].min())
        if self.model == "uut":
            return float(symmetric.settling_time(w0[: task.s, : task.s], task.a[: task.s]))
        smallest = max(float(np.linalg.svd(w0, compute_uv=False)[task.s - 1]), 1e-9)
        plateau = smallest ** (2 / self.depth - 1) if self.depth > 2 else -math.log(min(smallest, 0.5))
        return (plateau + 5) / float(task.a[: task.s].min())

    def train_mlp(self, task: Sim) -> "_RunSummary":
        """SGD on samples; time is steps times learning rate."""
        from tessera.studies.swingby import mlp

        rate = self.step if self.step is not None else 0.1
        march.check_step(rate, 0, 1, "learning rate")
        duration = self.time if self.time is not None else 300.0
        march.check_time(duration, rate)
        relu = self.model == "relu"
        once = mlp.Recipe(self.depth, self.width, relu, self.samples, self.batch, rate, epochs=1)
        per_epoch = -(-task.clusters * self.samples // self.batch)
        recipe = replace(once, epochs=max(1, math.ceil(duration / rate / per_epoch)))
        every = max(1, recipe.epochs * per_epoch // KEPT)
        with console.progress("training", mlp.snapshot_count(task, recipe, every)) as advance:
            seeds = range(self.seed, self.seed + 1)
            seen = mlp.train(task, recipe, seeds, task.target[None], every, advance)
        concepts = task.concepts(seen.outputs[:, 0, 0])  # (T, s)
        half = np.array([analysis.crossing(seen.times, concepts[:, k]) for k in range(task.s)])
        return _RunSummary(seen.times, seen.errors[:, 0, 0], seen.loss[:, 0], seen.outputs[:, 0, 0], half)

    def describe(self, task: Sim, seen: "_RunSummary") -> dict[str, Any]:
        found = analysis.swing(seen.times, seen.errors, self.threshold)
        record = {
            "model": self.model,
            "clock": self.clock if self.model == "uut" else "flow",
            "mu": list(task.mu),
            "sigma": list(task.spread),
            "dim": task.d,
            "a": task.a.tolist(),
            "seed": self.seed,
            "time": float(seen.times[-1]),
            "t_min": found.t_min,
            "e_min": found.e_min,
            "t_max": found.t_max,
            "e_max": found.e_max,
            "rise": found.rise,
            "rise_over_first": found.relative,
            "swing_by": found.swing_by,
            "order": analysis.order(seen.half_times),
            "half_times": [value if math.isfinite(value) else None for value in seen.half_times.tolist()],
            "unlearned": [k + 1 for k, value in enumerate(seen.half_times) if not math.isfinite(value)],
            "descents": analysis.descents(seen.errors),
            "e_first": float(seen.errors[0]),
            "e_last": float(seen.errors[-1]),
            "loss_rise": float(analysis.rise(seen.loss)),
        }
        if seen.path is not None and seen.w0 is not None:
            record["w0"] = seen.w0.tolist()
            record["stages"] = [asdict(s) for s in analysis.stages(seen.times, seen.path.w, task.s)]
        if self.model == "one-layer" and seen.w0 is not None:
            record["certified_monotone"] = bool(one_layer.certificate(seen.w0, task.a, task.s))
        return {**record, "provenance": provenance()}

    def save(self, task: Sim, seen: "_RunSummary", record: dict[str, Any]) -> None:
        assert self.out is not None
        folder = make_folder(self.out)
        write_json(folder / "run.json", record)
        names = ["time", "error", "training_loss", *[f"f{k + 1}" for k in range(seen.outputs.shape[-1])]]
        rows = np.column_stack([seen.times, seen.errors, seen.loss, seen.outputs])
        with atomic(folder / "curves.csv") as temporary, open(temporary, "w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(names)
            writer.writerows([[f"{value:.9g}" for value in row] for row in rows])
        if seen.path is not None:
            from tessera.studies.swingby.figures import figure_run

            _save_kinds(figure_run(seen.path, task), folder / "run", ("png",))
        console.say(f"Wrote {folder}")


@dataclass(frozen=True)
class _RunSummary:
    """What a run showed."""

    times: Array  # (T,)
    errors: Array  # (T,) at the composition
    loss: Array  # (T,)
    outputs: Array  # (T, d) at the composition
    half_times: Array  # (s,)
    path: march.Path | None = None  # of linear models
    w0: Array | None = None


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
        record = {"phase": self.phase, "depth": self.by_depth, "width": self.by_width}[self.study]()
        record |= {"seconds": round(time.perf_counter() - began, 2), "provenance": provenance()}
        file = self.out and self.out / f"{self.study}.json"
        console.publish(new_record(SweepRecord, record), self.json, file, _sweep_table(record))
        if self.out:
            console.say(f"Wrote {self.out}")

    def phase(self) -> dict[str, Any]:
        ranges: dict[str, sweeps.Axis] = {}
        axes = ((self.x, self.x_range, "x-range"), (self.y, self.y_range, "y-range"))
        for name, text, option in axes:
            if text is not None:
                ranges[name] = sweeps.with_range(name, numbers(text, option))
        fixed = {name: getattr(self, name) for name in sweeps.DEFAULTS if name not in (self.x, self.y)}
        runs = self.cells**2 * self.seeds
        with console.progress("runs", runs) as advance:
            phase = sweeps.phase_diagram(
                self.x, self.y, self.cells, self.seeds, self.start, self.width, fixed, ranges, self.threshold, advance
            )
        if self.out:
            from tessera.studies.swingby.figures import figure_sweep

            _save_kinds(figure_sweep(phase, self.x, self.y), make_folder(self.out) / "phase", ("png", "svg"))
        return {
            "study": "phase",
            "x": {"name": self.x, "values": _to_decimals(phase.x)},
            "y": {"name": self.y, "values": _to_decimals(phase.y)},
            "fixed": fixed,
            "start": self.start,
            "seeds": list(range(self.seeds)),
            "runs": runs,
            "swing_by": sweeps.share_interval(phase.swung.ravel()),
            "height": {
                "mean": _to_decimals(phase.mean),
                "ci95_half": _to_decimals(sweeps.mean_half_width(phase.heights)),
            },
            "share": _to_decimals(phase.share),
            "unit": "rise over mu1^2 / 2; rows follow y",
        }

    def by_depth(self) -> dict[str, Any]:
        settings = [(depth, dim) for dim in whole(self.dims, "dims") for depth in whole(self.depths, "depths")]
        rows = []
        with console.progress("settings", len(settings)) as advance:
            for depth, dim in settings:
                hits = sweeps.depth_study(depth, dim, self.seed_range)
                rows.append({"depth": depth, "dim": dim, **sweeps.share_interval(hits)})
                advance(note=f"depth {depth}, dim {dim}")
        return self.shares("depth", rows, "rise > 1e-3 E(0); population descent, rate 0.1, 3200 steps")

    def by_width(self) -> dict[str, Any]:
        rows = []
        with console.progress("widths", len(whole(self.widths, "widths"))) as advance:
            for width in whole(self.widths, "widths"):
                hits = sweeps.width_study(width, self.seed_range)
                rows.append({"width": width, **sweeps.share_interval(hits)})
                advance()
        return self.shares("width", rows, "rise > 1e-4 E(0); Gaussian U with rows of norm about 0.05")

    @property
    def seed_range(self) -> range:
        if self.seeds < 1:
            raise UserError(f"A study needs at least one seed, not {self.seeds}.")
        return range(self.seeds)

    def shares(self, name: str, rows: list[dict[str, Any]], counted: str) -> dict[str, Any]:
        return {"study": name, "mu": [1, 2], "sigma": 0.05, "counted": counted, "rows": rows}


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
        from tessera.studies.swingby.figures import FIGURES, draw, figure_names

        names = figure_names() if "all" in self.which else list(self.which)
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


def _along_axes(task: Sim) -> Array:
    """The composition in concept axes, where linear models are solved, (d,)."""
    return np.concatenate([task.mu, np.zeros(task.d - task.s)])


def _to_decimals(values: Array, decimals: int = 6) -> Any:
    """Plain lists; `files.rounded` keeps significant digits instead."""
    return np.round(values, decimals).tolist()


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
