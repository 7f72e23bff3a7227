"""Do models compose as far as they look locally? Conditional locality beside K_max, over moments of many trainings."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tessera.console import publish, say
from tessera.errors import UserError
from tessera.files import make_folder, save_plot
from tessera.locality.figures import figure_scatter
from tessera.locality.scatter import FEWEST, Point, correlation, scatter_record, training_name
from tessera.locality.verbs import coefficient_lines
from tessera.provenance import provenance
from tessera.study.jobs import Places
from tessera.study.records import Record, moments_of, read_records

MOST_ASKED = 10  # beyond, the study's places crowd each other whatever the model


@dataclass(frozen=True)
class ReproduceScatter:
    """Length generalisation against conditional locality, over the exams taken along training (Figure 2, right)."""

    preset: str = "small"
    """Size of the trainings to look at."""
    rule: Literal["strict", "paper"] = "strict"
    """Whose K_max is drawn; scatter.json has the coefficients of both."""
    seen_max: int | None = 3
    """Draw trainings on 1 to this many things only (None: all); with more of them K_max has less room to grow."""
    results: Path = Path("results")
    """Where the records of `tessera reproduce --snapshots N` lie; scatter.json and its figure go there."""
    json: bool = False
    """Print one JSON object."""

    def run(self) -> None:
        places = Places(results=self.results)
        records = [record for record in read_records(places) if record["preset"] == self.preset]
        alike = [record for record in records if self.seen_max in (None, record["seen_max"])]
        points = points_of(alike, READINGS[self.rule])
        if len(points) < FEWEST:
            raise UserError(
                f"{self.results} has too few exams along trainings at {self.preset}; "
                "`tessera reproduce table1 --snapshots 8` makes them."
            )
        made = {
            **scatter_record(points),
            "rule": self.rule,
            "seen_max": self.seen_max,
            "readings": [*all_readings(alike, self.seen_max), *all_readings(records, None)],
            "preset": self.preset,
            "provenance": provenance(),
        }
        figure = make_folder(places.figures) / f"scatter-{self.preset}.png"
        save_plot(figure_scatter(points, made), figure, dpi=120)
        say(f"{figure} is drawn.")
        publish(made, self.json, self.results / "scatter.json", *coefficient_lines(made))


Reading = Callable[[Record, dict[str, Any]], dict[str, Any] | None]


def by_rule(rule: str) -> Reading:
    def read(record: Record, moment: dict[str, Any]) -> dict[str, Any] | None:
        reached = moment["k_max"][rule]
        if reached["value"] is None:  # K = 1 was not asked for
            return None
        return {
            "k_max": reached["value"],
            "seen_max": record["seen_max"],
            "at_least": reached["at_least"],
        }

    return read


def share_filled(record: Record, moment: dict[str, Any]) -> dict[str, Any] | None:
    """The share of asked places that are filled, over all K beyond the training range: no threshold in it."""
    beyond = range(record["seen_max"] + 1, MOST_ASKED + 1)
    filled = {row["k"]: row["found"]["mean"] / row["k"] for row in moment["rows"] if row["k"] in beyond}
    return (
        {"k_max": sum(filled.values()) / len(beyond), "seen_max": 0} if len(filled) == len(beyond) else None
    )


READINGS: dict[str, Reading] = {
    "strict": by_rule("strict"),
    "paper": by_rule("paper"),
    "filled": share_filled,
}


def all_readings(records: Sequence[Record], seen_max: int | None) -> Iterator[dict[str, Any]]:
    """The coefficients of every way to say how far a model generalises, where there are points enough."""
    for name, reading in READINGS.items():
        points = points_of(records, reading)
        if len(points) >= FEWEST:
            yield {"reading": name, "seen_max": seen_max, **correlation(points)}


def points_of(records: Sequence[Record], reading: Reading) -> list[Point]:
    """One for each moment at which locality could be measured: conditions must have places, and count."""
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
