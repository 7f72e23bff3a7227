"""Do models compose as far as they look locally? Conditional locality beside K_max, over moments of many trainings."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tessera.analysis.locality_figures import figure_scatter
from tessera.analysis.scatter import (
    FEWEST,
    Point,
    coefficient_lines,
    correlation,
    scatter_record,
    training_name,
)
from tessera.console import publish, say
from tessera.errors import UserError
from tessera.files import make_folder, save_plot
from tessera.provenance import provenance
from tessera.records import ScatterRecord, new_record
from tessera.studies.clevr.records import Record, moments_of, read_records
from tessera.studies.clevr.runs import StudyPaths

MAX_CONDITIONS = 10  # beyond, the study's locations crowd each other whatever the model


@dataclass(frozen=True)
class ReproduceScatter:
    """Length generalization against conditional locality, over the evaluations taken along training (Figure 2, right)."""

    preset: str = "small"
    """Size of the trainings to look at."""
    rule: Literal["strict", "paper"] = "strict"
    """Whose K_max is drawn; scatter.json has the coefficients of both."""
    max_train_objects: int | None = 3
    """Draw trainings on 1 to this many objects only (None: all); with more of them K_max has less room to grow."""
    results: Path = Path("results")
    """Where the records of `tessera reproduce --snapshots N` lie; scatter.json and its figure go there."""
    json: bool = False
    """Print one JSON object."""

    def run(self) -> None:
        paths = StudyPaths(results=self.results)
        records = [record for record in read_records(paths) if record["preset"] == self.preset]
        alike = [
            record for record in records if self.max_train_objects in (None, record["max_train_objects"])
        ]
        points = points_of(alike, READINGS[self.rule])
        if len(points) < FEWEST:
            raise UserError(
                f"{self.results} has too few evaluations along trainings at {self.preset}; "
                "`tessera reproduce table1 --snapshots 8` makes them."
            )
        made = {
            **scatter_record(points),
            "rule": self.rule,
            "max_train_objects": self.max_train_objects,
            "readings": [*all_readings(alike, self.max_train_objects), *all_readings(records, None)],
            "preset": self.preset,
            "provenance": provenance(),
        }
        figure = make_folder(paths.figures) / f"scatter-{self.preset}.png"
        save_plot(figure_scatter(points, made), figure, dpi=120)
        say(f"{figure} is drawn.")
        publish(
            new_record(ScatterRecord, made),
            self.json,
            self.results / "scatter.json",
            *coefficient_lines(made),
        )


Reading = Callable[[Record, Mapping[str, Any]], dict[str, Any] | None]


def by_rule(rule: str) -> Reading:
    def read(record: Record, moment: Mapping[str, Any]) -> dict[str, Any] | None:
        reached = moment["k_max"][rule]
        if reached["value"] is None:  # K = 1 was not asked for
            return None
        return {
            "k_max": reached["value"],
            "max_train_objects": record["max_train_objects"],
            "at_least": reached["at_least"],
        }

    return read


def share_filled(record: Record, moment: Mapping[str, Any]) -> dict[str, Any] | None:
    """The share of asked locations that are filled, over all K beyond the training range: no threshold in it."""
    beyond = range(record["max_train_objects"] + 1, MAX_CONDITIONS + 1)
    filled = {row["k"]: row["found"]["value"] / row["k"] for row in moment["rows"] if row["k"] in beyond}
    return (
        {"k_max": sum(filled.values()) / len(beyond), "max_train_objects": 0}
        if len(filled) == len(beyond)
        else None
    )


READINGS: dict[str, Reading] = {
    "strict": by_rule("strict"),
    "paper": by_rule("paper"),
    "filled": share_filled,
}


def all_readings(records: Sequence[Record], max_train_objects: int | None) -> Iterator[dict[str, Any]]:
    """The coefficients of every way to say how far a model generalizes, where there are points enough."""
    for name, reading in READINGS.items():
        points = points_of(records, reading)
        if len(points) >= FEWEST:
            yield {"reading": name, "max_train_objects": max_train_objects, **correlation(points)}


def points_of(records: Sequence[Record], reading: Reading) -> list[Point]:
    """One for each moment at which locality could be measured: conditions must have locations, and count."""
    points = []
    for record in records:
        for moment in moments_of(record):
            found, reached = moment.get("locality"), reading(record, moment)
            if found and reached:
                points.append(
                    Point(
                        model=training_name(record["cell"], record["seed"]),
                        images_seen=moment["images_seen"],
                        locality=found["value"],
                        low=found["low"],
                        high=found["high"],
                        **reached,
                    )
                )
    return points
