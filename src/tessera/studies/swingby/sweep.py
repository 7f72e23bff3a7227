"""Phase diagrams: where in the space of settings does the error swing, and by how much."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from tessera import stats
from tessera.console import progress
from tessera.errors import UserError
from tessera.studies.swingby import deep, symmetric
from tessera.studies.swingby.analysis import THRESHOLD, check_threshold, rise
from tessera.studies.swingby.data import Array, Sim, second_moment
from tessera.studies.swingby.pairs import run_pairs
from tessera.studies.swingby.starts import aligned_map, gaussian_factors, unit_factors

AxisName = Literal["ratio", "omega", "rho", "sigma"]
StartName = Literal["aligned", "positive", "gaussian"]


@dataclass(frozen=True)
class Axis:
    label: str
    low: float
    high: float
    log: bool = False

    def values(self, cells: int) -> Array:
        spaced = np.geomspace if self.log else np.linspace
        return spaced(self.low, self.high, cells)


AXES: dict[str, Axis] = {
    "ratio": Axis("signal ratio  $\\mu_2/\\mu_1$", 1.0, 4.0),
    "omega": Axis("size of the start  $\\omega$", 1e-3, 0.5, log=True),
    "rho": Axis("alignment of the start  $\\rho$", -0.5, 0.99),
    "sigma": Axis("diversity  $\\sigma$", 0.0, 1.5),
}
DEFAULTS = {"ratio": 2.0, "omega": 0.05, "rho": 0.9, "sigma": 0.05}


@dataclass(frozen=True)
class Phase:
    """A grid of settings, each run from several starts; heights are rises over mu1^2 / 2, the weak concept's share."""

    axes: tuple[AxisName, AxisName]
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
        (x, y), runs = self.axes, self.swung.size
        return {
            "study": "phase",
            "x": {"name": x, "values": _to_decimals(self.x)},
            "y": {"name": y, "values": _to_decimals(self.y)},
            "seeds": list(range(self.swung.shape[-1])),
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


def phase_diagram(
    x: AxisName,
    y: AxisName,
    cells: int = 40,
    seeds: int = 20,
    start: StartName = "positive",
    width: int = 2,
    fixed: Mapping[str, float] = DEFAULTS,
    axes: Mapping[str, Axis] = AXES,
    threshold: float = THRESHOLD,
    on_chunk=None,
) -> Phase:
    """Two concepts with mu1 = 1, symmetric model, all other settings held at `fixed`."""
    _check_axes(x, y, cells, seeds, start)
    check_width(width)
    check_threshold(threshold)
    xs, ys = ({**AXES, **axes}[name].values(cells) for name in (x, y))
    grid_y, grid_x, seed = (part.ravel() for part in np.meshgrid(ys, xs, np.arange(seeds), indexing="ij"))
    settings = {**DEFAULTS, **fixed, x: grid_x, y: grid_y}
    values = {name: np.broadcast_to(value, grid_x.shape) for name, value in settings.items()}
    _check_settings(values)
    mu = np.stack([np.ones_like(grid_x), values["ratio"]], -1)  # (B, 2)
    a = second_moment(mu, values["sigma"][:, None], 2)
    runs = run_pairs(_start_maps(values, seed, start, width), mu, a, on_chunk)
    shape = (len(ys), len(xs), seeds)
    return Phase((x, y), xs, ys, (runs.rise / 0.5).reshape(shape), runs.swings(threshold).reshape(shape))


def _start_maps(values: dict[str, Array], seed: np.ndarray, start: StartName, width: int) -> Array:
    """W0 of every run, (B, 2, 2); seed k draws the same directions at every setting."""
    if start == "aligned":
        return aligned_map(values["omega"], values["rho"])
    unit = unit_factors(start, range(seed.max() + 1), (2, width))
    return symmetric.map_of(values["omega"][:, None, None] * unit[seed])


def _check_axes(x: str, y: str, cells: int, seeds: int, start: str) -> None:
    if x == y:
        raise UserError(f"A phase diagram needs two different axes, not `{x}` twice.")
    if cells < 2 or seeds < 1:
        raise UserError("A phase diagram needs at least 2 cells per axis and 1 seed.")
    if start == "aligned" and seeds != 1:
        raise UserError("The aligned start is deterministic; use --seeds 1.")
    if start != "aligned" and "rho" in (x, y):
        raise UserError("The alignment rho can be chosen only with --start aligned; other starts draw it.")


def check_width(width: int) -> None:
    if width < 1:
        raise UserError(f"The width must be at least 1, not {width}.")


def _check_settings(values: dict[str, Array]) -> None:
    if (values["sigma"] < 0).any():
        raise UserError("Diversities sigma must not be negative.")
    if (values["ratio"] <= 0).any() or (values["omega"] <= 0).any():
        raise UserError("The signal ratio and the size of the start must be positive.")


def with_range(name: AxisName, limits: tuple[float, ...]) -> Axis:
    """The axis with limits of its own, where there are any."""
    if not limits:
        return AXES[name]
    if len(limits) != 2 or not limits[0] < limits[1]:
        raise UserError("A range is two numbers, the lower one first.")
    if AXES[name].log and limits[0] <= 0:
        raise UserError(f"The axis `{name}` is logarithmic and must begin above zero.")
    return replace(AXES[name], low=limits[0], high=limits[1])


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
