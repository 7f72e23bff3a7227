"""Does locality go with length generalization? Over models and their snapshots: correlations with intervals."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from tessera.errors import UserError
from tessera.files import check_types, read_json, reads
from tessera.records import current_words
from tessera.rng import generator
from tessera.stats import correlate, pearson, spearman

RESAMPLES = 2000
FEWEST = 3  # points below which a correlation says nothing


@dataclass(frozen=True)
class Point:
    """One snapshot of one model."""

    model: str
    images_seen: int
    k_max: float
    max_train_objects: int
    locality: float
    low: float | None = None  # 95% interval of the locality
    high: float | None = None
    at_least: bool = False  # larger K may succeed, too: K_max is a lower bound

    @property
    def gained(self) -> float:
        """How many more objects than in training (the horizontal axis of Figure 2, right)."""
        return self.k_max - self.max_train_objects


_SEEDED = ", seed "  # a training's name is that of its kind, this and the seed


def training_name(kind: str, seed: int) -> str:
    return f"{kind}{_SEEDED}{seed}"


def kind_of(model: str) -> str:
    """`exp1-M3` of `exp1-M3, seed 1`: trainings that differ by their seed alone are of one kind."""
    return model.partition(_SEEDED)[0]


def point_from(result: dict[str, Any], evaluated: dict[str, Any], rule: str = "paper") -> Point:
    """A point from the records of `tessera locality --json` and `tessera evaluate --json` of one snapshot."""
    try:
        if evaluated["max_train_objects"] is None:
            raise UserError("The detector's record lacks the most objects in a training image (--max-train-objects).")
        found, reached = result["conditional_locality"], evaluated["k_max"][rule]
        if found is None or reached["value"] is None:
            raise UserError("A record without conditional locality or without K_max gives no point.")
        return Point(
            model=str(result["model"]),
            images_seen=int(result["images_seen"] or 0),
            k_max=reached["value"],
            max_train_objects=evaluated["max_train_objects"],
            locality=found["value"],
            low=found["low"],
            high=found["high"],
            at_least=bool(reached["at_least"]),
        )
    except (KeyError, TypeError) as error:
        raise UserError(f"These are no records of `locality` and `detector`: {error} is missing.") from error


@reads
def read_points(path: Path) -> list[Point]:
    """Points of a JSON file: a list, or an object with the list under `points`, or under `rows` as `scatter` has it."""
    content = current_words(read_json(path))
    rows = content
    if isinstance(content, dict):  # a record of `scatter` counts its points and lists them as rows
        rows = content.get("rows" if isinstance(content.get("points"), int) else "points")
    if not isinstance(rows, list):
        raise UserError(f"{path} holds no list of points.")
    return [_as_point(row, f"{path}: point {number}") for number, row in enumerate(rows)]


def _as_point(row: Any, where: str) -> Point:
    known = {f.name for f in fields(Point)}
    try:
        check_types(Point, row, where)
        return Point(**{name: value for name, value in row.items() if name in known})
    except (AttributeError, TypeError) as error:
        raise UserError(f"{where} is no point: {error}.") from error


# -- correlation ---------------------------------------------------------------------------------------------


def correlation(points: Sequence[Point], resamples: int = RESAMPLES, seed: int = 0) -> dict[str, Any]:
    """Spearman's and Pearson's coefficient of locality with length generalization.

    `interval` draws points again. Snapshots of one model resemble each other, so `interval_by_model` draws
    whole models, which is the wider and the more honest of the two.
    """
    if len(points) < FEWEST:
        raise UserError(f"A correlation needs at least {FEWEST} points, not {len(points)}.")
    gained = np.array([point.gained for point in points], float)
    locality = np.array([point.locality for point in points], float)
    if not (np.isfinite(gained).all() and np.isfinite(locality).all()):
        raise UserError("The points hold values that are not finite.")
    rng = generator(seed)
    drawn = {
        "interval": [rng.integers(len(points), size=len(points)) for _ in range(resamples)],
        "interval_by_model": list(_whole_models(points, rng, resamples)),
    }
    record: dict[str, Any] = {"points": len(points), "models": len({p.model for p in points})}
    for name, of in (("spearman", spearman), ("pearson", pearson)):
        found = {kind: correlate(of, gained, locality, rows) for kind, rows in drawn.items()}
        ends = {kind: None if one.low is None else [one.low, one.high] for kind, one in found.items()}
        record[name] = {"value": found["interval"].value, **ends}
    return {**record, "resamples": resamples, "seed": seed}


def _whole_models(points: Sequence[Point], rng: np.random.Generator, resamples: int) -> Iterable[np.ndarray]:
    """Numbers of points when models are drawn again, each with all its snapshots."""
    names = np.array([point.model for point in points])
    members = [np.flatnonzero(names == own) for own in dict.fromkeys(names.tolist())]
    for _ in range(resamples):
        yield np.concatenate([members[m] for m in rng.integers(len(members), size=len(members))])


def scatter_record(points: Sequence[Point], resamples: int = RESAMPLES, seed: int = 0) -> dict[str, Any]:
    """Correlations and the points they are of, JSON-ready."""
    return {**correlation(points, resamples, seed), "rows": [asdict(p) | {"gained": p.gained} for p in points]}


def coefficient_lines(record: dict[str, Any]) -> list[str]:
    return [f"{name.title()}: {_coefficient_words(record[name])}" for name in ("spearman", "pearson")]


def _coefficient_words(found: dict[str, Any]) -> str:
    if found["value"] is None:
        return "not defined, one of the two does not vary"
    ranges = []
    for name, key in (("snapshots", "interval"), ("models", "interval_by_model")):
        ends = "unknown" if found[key] is None else "{:.3f} to {:.3f}".format(*found[key])
        ranges.append(f"{name} drawn again: {ends}")
    return f"{found['value']:.3f} (95%, {'; '.join(ranges)})"


def gather_points(files: Sequence[Path], rule: str) -> list[Point]:
    """Points from files of points and from pairs of records, in any order of the two kinds."""
    points: list[Point] = []
    remaining = iter(files)
    for file in remaining:
        content = read_json(file)
        if isinstance(content, dict) and "conditional_locality" in content:
            detector = next(remaining, None)
            if detector is None:
                raise UserError(f"{file} lacks the detector's record that should follow it.")
            points.append(point_from(content, read_json(detector), rule))
        else:
            points += read_points(file)
    return points
