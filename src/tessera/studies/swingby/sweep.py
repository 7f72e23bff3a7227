"""Phase diagrams: where in the space of settings does the error swing, and by how much."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from tyro.conf import Fixed

from tessera import stats
from tessera.config import Numbers
from tessera.console import progress
from tessera.errors import UserError
from tessera.studies.swingby import deep, symmetric
from tessera.studies.swingby.analysis import THRESHOLD, check_threshold, rise
from tessera.studies.swingby.data import Array, Sim, second_moment
from tessera.studies.swingby.pairs import run_pairs
from tessera.studies.swingby.starts import aligned_map, gaussian_factors, unit_factors

AxisName = Literal["ratio", "omega", "rho", "sigma"]
_StartName = Literal["aligned", "positive", "gaussian"]


class _Axis(NamedTuple):
    label: str
    low: float
    high: float
    log: bool = False


AXES: dict[AxisName, _Axis] = {
    "ratio": _Axis("signal ratio  $\\mu_2/\\mu_1$", 1.0, 4.0),
    "omega": _Axis("size of the start  $\\omega$", 1e-3, 0.5, log=True),
    "rho": _Axis("alignment of the start  $\\rho$", -0.5, 0.99),
    "sigma": _Axis("diversity  $\\sigma$", 0.0, 1.5),
}


@dataclass(frozen=True)
class PhaseSettings:
    """Two concepts with mu1 = 1 and the symmetric model: two settings vary along the axes, all others are held."""

    #: Horizontal axis of the phase diagram: ratio mu2/mu1, size omega or alignment rho of the start, or diversity sigma
    #: of both concepts.
    x: AxisName = "ratio"
    #: Vertical axis.
    y: AxisName = "omega"
    #: Range "low,high" of the horizontal axis.
    x_range: Fixed[Numbers] = ()
    #: Range of the vertical axis.
    y_range: Fixed[Numbers] = ()
    #: Settings per axis.
    cells: int = 40
    #: Starts per setting.
    seeds: int = 20
    #: How starts are drawn: aligned (rows of U at cosine rho; takes --seeds 1), positive (omega times
    #: uniform(0.5, 1.5)) or gaussian.
    start: _StartName = "positive"
    #: Columns of U for random starts.
    width: Fixed[int] = 2
    #: mu2/mu1, if it is not an axis.
    ratio: Fixed[float] = 2.0
    #: Size of the start, if it is not an axis.
    omega: Fixed[float] = 0.05
    #: Alignment of the start, if it is not an axis.
    rho: Fixed[float] = 0.9
    #: Diversity, if it is not an axis.
    sigma: Fixed[float] = 0.05
    #: Share of the first error that counts as a rise.
    threshold: Fixed[float] = THRESHOLD

    def check(self) -> None:
        if self.x == self.y:
            raise UserError(f"A phase diagram needs two different axes, not `{self.x}` twice.")
        if self.cells < 2 or self.seeds < 1:
            raise UserError("A phase diagram needs at least 2 cells per axis and 1 seed.")
        if self.start == "aligned" and self.seeds != 1:
            raise UserError("The aligned start is deterministic; use --seeds 1.")
        if self.start != "aligned" and "rho" in (self.x, self.y):
            raise UserError("The alignment rho can be chosen only with --start aligned; other starts draw it.")
        check_width(self.width)
        check_threshold(self.threshold)

    @property
    def held(self) -> dict[str, float]:
        return {name: getattr(self, name) for name in AXES if name not in (self.x, self.y)}


@dataclass(frozen=True)
class Phase:
    """A grid of settings, each run from several starts; heights are rises over mu1^2 / 2, the weak concept's share."""

    settings: PhaseSettings
    x: Array  # (nx,)
    y: Array  # (ny,)
    heights: Array  # (ny, nx, seeds)
    swung: np.ndarray  # (ny, nx, seeds) bool

    @property
    def mean(self) -> Array:
        return self.heights.mean(-1)

    @property
    def share(self) -> Array:
        """Share of starts that swing, (ny, nx)."""
        return self.swung.mean(-1)

    def to_dict(self) -> dict[str, Any]:
        settings, runs = self.settings, self.swung.size
        return {
            "study": "phase",
            "x": {"name": settings.x, "values": _to_decimals(self.x)},
            "y": {"name": settings.y, "values": _to_decimals(self.y)},
            "fixed": settings.held,
            "start": settings.start,
            "seeds": list(range(settings.seeds)),
            "runs": runs,
            "swing_by": stats.share_interval(int(self.swung.sum()), runs).to_dict(),
            "height": {"mean": _to_decimals(self.mean), "ci95_half": _to_decimals(_mean_half_width(self.heights))},
            "share": _to_decimals(self.share),
            "unit": "rise over mu1^2 / 2; rows follow y",
        }


def _to_decimals(values: Array) -> Any:
    """Plain lists; `files.rounded` keeps significant digits instead."""
    return np.round(values, 6).tolist()


def _mean_half_width(values: Array) -> Array:
    """Half the 95% interval of a mean over the last axis (normal approximation)."""
    n = values.shape[-1]
    return 1.959964 * values.std(-1, ddof=1) / np.sqrt(n) if n > 1 else np.zeros(values.shape[:-1])


def phase_diagram(settings: PhaseSettings, on_chunk=None) -> Phase:
    settings.check()
    xs = _axis_values(settings.x, settings.x_range, settings.cells)
    ys = _axis_values(settings.y, settings.y_range, settings.cells)
    grid_y, grid_x, seed = (part.ravel() for part in np.meshgrid(ys, xs, np.arange(settings.seeds), indexing="ij"))
    varied = {**settings.held, settings.x: grid_x, settings.y: grid_y}
    values = {name: np.broadcast_to(value, grid_x.shape) for name, value in varied.items()}
    _check_values(values)
    mu = np.stack([np.ones_like(grid_x), values["ratio"]], -1)  # (B, 2)
    a = second_moment(mu, values["sigma"][:, None], 2)
    runs = run_pairs(_start_maps(values, seed, settings), mu, a, on_chunk)
    shape = (len(ys), len(xs), settings.seeds)
    swung = runs.swings(settings.threshold)
    return Phase(settings, xs, ys, (runs.rise / 0.5).reshape(shape), swung.reshape(shape))


def _axis_values(name: AxisName, limits: tuple[float, ...], cells: int) -> Array:
    """Evenly spaced within the axis's own limits or the given ones, (cells,)."""
    axis = AXES[name]
    if limits and (len(limits) != 2 or not limits[0] < limits[1]):
        raise UserError("A range is two numbers, the lower one first.")
    if limits and axis.log and limits[0] <= 0:
        raise UserError(f"The axis `{name}` is logarithmic and must begin above zero.")
    low, high = limits or (axis.low, axis.high)
    return np.geomspace(low, high, cells) if axis.log else np.linspace(low, high, cells)


def _start_maps(values: dict[str, Array], seed: np.ndarray, settings: PhaseSettings) -> Array:
    """W0 of every run, (B, 2, 2); seed k draws the same directions at every setting."""
    if settings.start == "aligned":
        return aligned_map(values["omega"], values["rho"])
    unit = unit_factors(settings.start, range(settings.seeds), (2, settings.width))
    return symmetric.map_of(values["omega"][:, None, None] * unit[seed])


def check_width(width: int) -> None:
    if width < 1:
        raise UserError(f"The width must be at least 1, not {width}.")


def _check_values(values: dict[str, Array]) -> None:
    if (values["sigma"] < 0).any():
        raise UserError("Diversities sigma must not be negative.")
    if (values["ratio"] <= 0).any() or (values["omega"] <= 0).any():
        raise UserError("The signal ratio and the size of the start must be positive.")


# --- how often networks swing -------------------------------------------------------------------------------


def depth_study(depth: int, dim: int, seeds: range) -> np.ndarray:
    """Which torch-default starts of an untied linear network rise by more than 1e-3 E(0), mu = (1, 2): (seeds,)."""
    deep.check_depth(depth)
    task = Sim((1, 2), 0.05, dim)
    layers = deep.uniform_layers(seeds, (dim,) * (depth + 1))
    errors = deep.descent_errors(layers, task.a, rate=0.1, steps=3200, point=task.target)
    return rise(errors) > 1e-3 * errors[0]


def width_study(width: int, seeds: range) -> np.ndarray:
    """Which Gaussian starts with rows of norm about 0.05 rise by more than 1e-4 E(0), mu = (1, 2): (seeds,)."""
    check_width(width)
    task = Sim((1, 2), 0.05)
    w0 = symmetric.map_of(gaussian_factors(seeds, 0.05 / np.sqrt(width), (2, width)))
    runs = run_pairs(w0, np.tile(task.mu, (len(w0), 1)), np.tile(task.a, (len(w0), 1)))
    return runs.rise > 1e-4 * runs.first


_STUDIES: dict[str, tuple[Callable[..., np.ndarray], str]] = {
    "depth": (depth_study, "rise > 1e-3 E(0); population descent, rate 0.1, 3200 steps"),
    "width": (width_study, "rise > 1e-4 E(0); Gaussian U with rows of norm about 0.05"),
}


def share_study(name: str, settings: Sequence[Mapping[str, int]], seeds: int) -> dict[str, Any]:
    """How often networks swing, by depth or width: the record, with a row for each of the settings."""
    if seeds < 1:
        raise UserError(f"A study needs at least one seed, not {seeds}.")
    swung, counted = _STUDIES[name]
    rows = []
    with progress("settings", len(settings)) as advance:
        for setting in settings:
            advance(0, note=", ".join(f"{key} {value}" for key, value in setting.items()))
            hits = swung(**setting, seeds=range(seeds))
            rows.append({**setting, **stats.share_interval(int(hits.sum()), seeds).to_dict()})
            advance()
    return {"study": name, "mu": [1, 2], "sigma": 0.05, "counted": counted, "rows": rows}
