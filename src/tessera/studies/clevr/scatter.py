"""Do models compose as far as they look locally? Conditional locality beside K_max, over moments of many trainings."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from tessera.analysis.scatter import FEWEST, Point, correlation, training_name
from tessera.studies.clevr.records import Record, moments_of

_MAX_CONDITIONS = 10  # beyond, the study's locations crowd each other whatever the model


_Reading = Callable[[Record, Mapping[str, Any]], dict[str, Any] | None]


def _by_rule(rule: str, record: Record, moment: Mapping[str, Any]) -> dict[str, Any] | None:
    reached = moment["k_max"][rule]
    if reached["value"] is None:  # K = 1 was not evaluated
        return None
    most = record["max_train_objects"]
    return {"k_max": reached["value"], "max_train_objects": most, "at_least": reached["at_least"]}


def _share_filled(record: Record, moment: Mapping[str, Any]) -> dict[str, Any] | None:
    """The share of prompted locations that are filled, over all K beyond the training range: no threshold in it."""
    beyond = range(record["max_train_objects"] + 1, _MAX_CONDITIONS + 1)
    filled = {row["k"]: row["found"]["value"] / row["k"] for row in moment["rows"] if row["k"] in beyond}
    return {"k_max": sum(filled.values()) / len(beyond), "max_train_objects": 0} if len(filled) == len(beyond) else None


READINGS: dict[str, _Reading] = {rule: partial(_by_rule, rule) for rule in ("strict", "paper")} | {
    "filled": _share_filled
}


def all_readings(records: Sequence[Record], max_train_objects: int | None) -> Iterator[dict[str, Any]]:
    """The coefficients of every way to say how far a model generalizes, where there are points enough."""
    for name, reading in READINGS.items():
        points = points_of(records, reading)
        if len(points) >= FEWEST:
            yield {"reading": name, "max_train_objects": max_train_objects, **correlation(points)}


def points_of(records: Sequence[Record], reading: _Reading) -> list[Point]:
    """One for each moment at which locality could be measured: conditions must have locations, and count."""
    points = []
    for record in records:
        for moment in moments_of(record):
            found, reached = moment.get("locality"), reading(record, moment)
            if found and reached:
                ends = {"locality": found["value"], "low": found["low"], "high": found["high"]}
                name = training_name(record["cell"], record["seed"])
                points.append(Point(model=name, images_seen=moment["images_seen"], **ends, **reached))
    return points
