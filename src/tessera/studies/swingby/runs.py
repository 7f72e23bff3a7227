"""One run of the identity-map model: any network from any start, and its record."""

import math
import warnings
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from tyro.conf import Fixed, arg

from tessera.config import Numbers, parse_numbers
from tessera.console import progress
from tessera.errors import UserError
from tessera.provenance import provenance
from tessera.studies.swingby import analysis, deep, one_layer, symmetric
from tessera.studies.swingby.data import Array, Sim, population_loss
from tessera.studies.swingby.integrate import Path, Solver, State, check_time, step_count
from tessera.studies.swingby.starts import aligned_map, factor, unit_factors
from tessera.studies.swingby.sweep import check_width

Model = Literal["uut", "one-layer", "deep", "mlp", "relu"]
Start = Literal["aligned", "positive", "gaussian", "default"]
_KEPT = 20_000  # most samples of a curve that are kept


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """What is trained on which data, from which start, how and for how long."""

    #: Signal strength of each concept.
    mu: Numbers = (1.0, 2.0)
    #: Diversity: one number, or one per concept.
    sigma: Numbers = (0.05,)
    #: Ambient dimension d (default: the number of concepts).
    dim: Fixed[int | None] = None
    #: Network: uut is U U^T x, one-layer W x, deep untied linear layers; mlp (linear) and relu are MLPs trained by
    #: SGD on samples.
    model: Model = "uut"
    #: The end-to-end map at the start, rows separated by semicolons: "0.0025,0.00225;0.00225,0.0025".
    w0: Annotated[str | None, arg(metavar="TEXT", help_behavior_hint="")] = None
    #: How a start without --w0 is drawn: aligned (rows of U of norm omega at cosine rho), positive (omega times
    #: uniform(0.5, 1.5)), gaussian (N(0, omega^2 / width)), or default (PyTorch's, for deep).
    start: Annotated[Start | None, arg(metavar="{aligned,positive,gaussian,default}", help_behavior_hint="")] = None
    #: Size of the start.
    omega: float = 0.05
    #: Alignment of an aligned start.
    rho: Fixed[float] = 0.9
    #: Columns d' of U, or hidden width of an MLP (default d).
    width: Annotated[int | None, arg(metavar="INT", help_behavior_hint="")] = None
    #: Layers of `deep`, `mlp` and `relu`.
    depth: int = 2
    #: Seed of a random start, and of the samples of an MLP.
    seed: int = 0
    #: Time to integrate, on the chosen clock (default: until all concepts are learned).
    time: Annotated[float | None, arg(metavar="FLOAT", help_behavior_hint="")] = None
    #: Of uut: paper (dU/dt = -1/2 dL/dU) or flow (dU/dt = -dL/dU), which follows the same path twice as fast.
    clock: Fixed[symmetric.Clock] = "paper"
    #: Gradient flow in continuous time, or gradient descent with the setting `step` as its learning rate.
    solver: Solver = "flow"
    #: Time step, or learning rate of descent and SGD.
    step: Fixed[float | None] = None
    #: Share of the first error that counts as a rise.
    threshold: Fixed[float] = analysis.THRESHOLD
    #: Training samples per cluster of an MLP.
    samples: Fixed[int] = 5000
    #: Batch size of SGD.
    batch: Fixed[int] = 128
    #: Seed of a rotation of data and tests, for an MLP.
    rotation: Fixed[int | None] = None

    def __post_init__(self):
        analysis.check_threshold(self.threshold)
        if self.width is not None:
            check_width(self.width)


class Run(NamedTuple):
    """What a run showed."""

    task: Sim
    times: Array  # (T,)
    errors: Array  # (T,) at the composition
    loss: Array  # (T,)
    outputs: Array  # (T, d) at the composition
    half_times: Array  # (s,)
    path: Path | None = None  # of linear models
    w0: Array | None = None

    def columns(self) -> dict[str, Array]:
        """The curves by name, (T,) each."""
        outputs = {f"f{k + 1}": output for k, output in enumerate(self.outputs.T)}
        return {"time": self.times, "error": self.errors, "training_loss": self.loss, **outputs}


def run(settings: RunSettings) -> tuple[Run, dict[str, Any]]:
    """A run and its record, which holds the warnings as well."""
    task = Sim(settings.mu, settings.sigma, settings.dim, rotation=settings.rotation)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = _train_mlp(task, settings) if settings.model in ("mlp", "relu") else _solve(task, settings)
    cautions = [str(warning.message) for warning in caught if issubclass(warning.category, UserWarning)]
    return found, {**_describe(settings, found), "cautions": cautions}


# --- linear models on the population loss -------------------------------------------------------------------


def _solve(task: Sim, settings: RunSettings) -> Run:
    w0 = _start_map(task, settings)
    speed = symmetric.CLOCK_SPEED[settings.clock] if settings.model == "uut" else 1.0
    duration = _settling_time(task, settings, w0) / speed if settings.time is None else settings.time
    step = 0.01 / (task.a.max() * speed) if settings.step is None else settings.step
    steps = step_count(duration, step)
    with progress("learning", steps) as advance:
        path = _path(task, settings, w0, step, steps, advance)
    point = np.concatenate([task.mu, np.zeros(task.d - task.s)])  # linear models are solved in concept axes
    half = analysis.half_times(path.times, path.w, task.s)
    loss = population_loss(path.w, task.a)
    return Run(task, path.times, path.error(point), loss, path.outputs(point), half, path, w0)


def _path(task: Sim, settings: RunSettings, w0: Array, step: float, steps: int, advance) -> Path:
    every = max(1, -(-steps // _KEPT))
    if settings.model == "one-layer":
        counts = np.arange(0, steps + 1, every)
        descent = settings.solver == "descent"
        w = one_layer.descent(w0, task.a, step, counts) if descent else one_layer.flow(w0, task.a, step * counts)
        return Path(step * counts, w)
    if settings.model == "deep":
        layers = _layers(task, settings, w0)
        return deep.path(layers, task.a, steps * step, step, settings.solver, every, advance)
    u0, clock = factor(w0), settings.clock
    return symmetric.factor_path(u0, task.a, steps * step, step, settings.solver, clock, every, advance)


def _start_map(task: Sim, settings: RunSettings) -> Array:
    if settings.w0 is not None:
        return _matrix(settings.w0, task.d)
    if not settings.omega > 0:
        raise UserError(f"The size of the start must be positive, not {settings.omega:g}.")
    kind = settings.start or ("aligned" if task.s == task.d == 2 and settings.width is None else "positive")
    if kind == "aligned":
        if task.d != 2:
            raise UserError("An aligned start is defined for two concepts in two dimensions.")
        return aligned_map(settings.omega, settings.rho)
    if kind == "default":
        if settings.model != "deep":
            raise UserError("The torch default start is for --model deep, mlp and relu.")
        return deep.product(_layers(task, settings, np.eye(task.d)))
    shape = (task.d, settings.width or task.d)
    return symmetric.map_of(settings.omega * unit_factors(kind, [settings.seed], shape)[0])


def _matrix(text: str, d: int) -> Array:
    """ "a,b;c,d" as a (d, d) array."""
    rows = [parse_numbers(row) for row in text.split(";")]
    if len(rows) != d or any(len(row) != d for row in rows):
        raise UserError(f"--w0 must be {d} by {d}: {d} rows separated by semicolons, each of {d} numbers.")
    return np.array(rows)


def _layers(task: Sim, settings: RunSettings, w0: Array) -> State:
    deep.check_depth(settings.depth)
    if settings.start == "default" and settings.w0 is None:
        hidden = [settings.width or task.d] * (settings.depth - 1)
        drawn = deep.uniform_layers([settings.seed], (task.d, *hidden, task.d))
        return tuple(layer[0] for layer in drawn)
    return deep.balanced_layers(w0, settings.depth)


def _settling_time(task: Sim, settings: RunSettings, w0: Array) -> float:
    """Long enough for every concept; deep networks leave a small start only slowly, so they get more."""
    a, depth = task.a[: task.s], settings.depth
    if settings.model == "one-layer":
        return 12 / a.min()
    if settings.model == "uut":
        return float(symmetric.settling_time(w0[: task.s, : task.s], a))
    smallest = max(np.linalg.svd(w0, compute_uv=False)[task.s - 1], 1e-9)
    plateau = smallest ** (2 / depth - 1) if depth > 2 else -math.log(min(smallest, 0.5))
    return (plateau + 5) / a.min()


# --- networks on samples ------------------------------------------------------------------------------------


def _train_mlp(task: Sim, settings: RunSettings) -> Run:
    """SGD on samples; time is steps times learning rate."""
    from tessera.studies.swingby import mlp

    rate = 0.1 if settings.step is None else settings.step
    duration = 300.0 if settings.time is None else settings.time
    check_time(duration, rate, "learning rate")
    relu = settings.model == "relu"
    once = mlp.Recipe(settings.depth, settings.width, relu, settings.samples, settings.batch, rate, epochs=1)
    recipe = replace(once, epochs=max(1, math.ceil(duration / rate / once.steps(task))))
    every = max(1, recipe.steps(task) // _KEPT)
    with progress("training", recipe.steps(task) // every + 1) as advance:
        seeds = range(settings.seed, settings.seed + 1)
        found = mlp.train(task, recipe, seeds, task.target[None], every, advance)
    outputs = found.outputs[:, 0, 0]  # (T, d)
    half = [analysis.crossing(found.times, concept) for concept in task.concepts(outputs).T]
    return Run(task, found.times, found.errors[:, 0, 0], found.loss[:, 0], outputs, np.array(half))


# --- the record ---------------------------------------------------------------------------------------------


def _describe(settings: RunSettings, found: Run) -> dict[str, Any]:
    task = found.task
    record = {
        "model": settings.model,
        "clock": settings.clock if settings.model == "uut" else "flow",
        "mu": list(task.mu),
        "sigma": task.spread.tolist(),
        "dim": task.d,
        "a": task.a.tolist(),
        "seed": settings.seed,
        "time": float(found.times[-1]),
        **analysis.swing(found.times, found.errors, settings.threshold)._asdict(),
        "order": analysis.order(found.half_times),
        "half_times": [value if math.isfinite(value) else None for value in found.half_times.tolist()],
        "unlearned": (np.flatnonzero(np.isinf(found.half_times)) + 1).tolist(),
        "descents": analysis.descents(found.errors),
        "e_first": float(found.errors[0]),
        "e_last": float(found.errors[-1]),
        "loss_rise": float(analysis.rise(found.loss)),
    }
    if found.path is not None and found.w0 is not None:
        record["w0"] = found.w0.tolist()
        record["stages"] = [stage._asdict() for stage in analysis.stages(found.times, found.path.w, task.s)]
        if settings.model == "one-layer":
            record["certified_monotone"] = bool(one_layer.certificate(found.w0, task.a, task.s))
    return {**record, "provenance": provenance()}
