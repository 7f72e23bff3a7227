"""Do models compose as far as they look locally? Conditional locality beside K_max, over moments of many trainings."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tessera.console import print_json, say
from tessera.errors import UserError
from tessera.files import make_folder, write_json
from tessera.locality.figures import figure_scatter, save_figure
from tessera.locality.scatter import FEWEST, Point, scatter_record
from tessera.locality.verbs import coefficient_words
from tessera.provenance import provenance
from tessera.study.jobs import Places
from tessera.study.records import Record, read_records


@dataclass(frozen=True)
class ReproduceScatter:
    """Length generalisation against conditional locality, over the exams taken along training (Figure 2, right)."""

    preset: str = "small"
    """Size of the trainings to look at."""
    results: Path = Path("results")
    """Where the records of `tessera reproduce --snapshots N` lie; scatter.json and its figure go there."""
    json: bool = False
    """Print one JSON object."""

    def run(self) -> None:
        places = Places(results=self.results)
        records = [record for record in read_records(places) if record["preset"] == self.preset]
        points = [point for record in records for point in points_of(record)]
        if len(points) < FEWEST:
            raise UserError(
                f"{self.results} has too few exams along trainings at {self.preset}; "
                "`tessera reproduce table1 --snapshots 8` makes them."
            )
        made = {**scatter_record(points), "preset": self.preset, "provenance": provenance()}
        write_json(self.results / "scatter.json", made)
        figure = make_folder(places.figures) / f"scatter-{self.preset}.png"
        save_figure(figure_scatter(points, made), figure)
        say(f"{figure} is drawn.")
        if self.json:
            print_json(made)
        for name in ("spearman", "pearson"):
            say(f"{name.title()}: {coefficient_words(made[name])}")


def points_of(record: Record) -> Iterator[Point]:
    """One for each moment at which locality could be measured: conditions must have places, and count."""
    for moment in record["snapshots"]:
        if found := moment.get("locality"):
            reached = moment["k_max"]["paper"]
            yield Point(
                model=f"{record['cell']}, seed {record['seed']}",
                images_seen=moment["images_seen"],
                k_max=reached["value"],
                seen_max=record["seen_max"],
                locality=found["value"],
                low=found["low"],
                high=found["high"],
                at_least=reached["at_least"],
            )
