"""Do models compose as far as they look locally? Conditional locality beside K_max, over moments of many trainings."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tessera.console import print_json, progress, say
from tessera.devices import DeviceName, pick_device
from tessera.errors import UserError
from tessera.files import make_folder, read_json, write_json
from tessera.locality.figures import figure_scatter, save_figure
from tessera.locality.scatter import Point, as_point, scatter_record
from tessera.locality.study import Plan, conditional_locality_alone
from tessera.locality.verbs import coefficient_words
from tessera.provenance import provenance
from tessera.study.jobs import Places, job_name
from tessera.study.records import Record, read_records
from tessera.training.run import is_run, load_run


@dataclass(frozen=True)
class ReproduceScatter:
    """Length generalisation against conditional locality, over the exams taken along training (Figure 2, right)."""

    k: int = 4
    """How many places to ask for when locality is measured."""
    pictures: int = 8
    """Pictures of each scene."""
    scenes: int = 4
    """Scenes: the study's places first, then random ones."""
    preset: str = "small"
    """Size of the trainings to look at."""
    root: Path = Path("runs/study")
    """Where the runs lie; points measured before are kept when a run is gone."""
    results: Path = Path("results")
    """Where the records of `tessera reproduce --snapshots N` lie; scatter.json and its figure go there."""
    device: DeviceName = "auto"
    """Where to compute."""
    json: bool = False
    """Print one JSON object."""

    def run(self) -> None:
        device, places = pick_device(self.device), Places(self.root, self.results)
        plan = Plan(k=self.k, pictures=self.pictures, scenes=self.scenes)
        points = self.points(places, plan, device)
        settings = {"k": self.k, "pictures": self.pictures, "scenes": self.scenes, "source": plan.source}
        record = {
            **scatter_record(points),
            **settings,
            "preset": self.preset,
            "provenance": provenance(device),
        }
        write_json(self.path, record)
        figure = make_folder(places.figures) / f"scatter-{self.preset}.png"
        save_figure(figure_scatter(points, record), figure)
        say(f"{figure} is drawn.")
        if self.json:
            print_json(record)
        for name in ("spearman", "pearson"):
            say(f"{name.title()}: {coefficient_words(record[name])}")

    @property
    def path(self) -> Path:
        return self.results / "scatter.json"

    def points(self, places: Places, plan: Plan, device: torch.device) -> list[Point]:
        """Of every moment that was examined, unless conditions have no place."""
        records = [r for r in read_records(places) if r["preset"] == self.preset and r["snapshots"]]
        known = self.known(plan)
        wanted = list(moments([r for r in records if r["settings"]["tell"]["kind"] in ("grid", "list")]))
        if not wanted:
            raise UserError(
                f"{self.results} has no exams along a training at {self.preset}; "
                "`tessera reproduce table1 --snapshots 8` makes them."
            )
        found = []
        with progress("locating", len(wanted)) as advance:
            for record, moment in wanted:
                old = known.get((name_of(record), moment["images_seen"]))
                point = old or measured(record, moment, places, plan, device)
                found += [point] if point else []
                advance()
        return found

    def known(self, plan: Plan) -> dict[tuple[str, int], Point]:
        """Points of an earlier call that asked the same."""
        record = read_json(self.path) if self.path.is_file() else {}
        if any(record.get(name) != getattr(plan, name) for name in ("k", "pictures", "scenes")):
            return {}
        rows = [as_point(row, str(self.path)) for row in record["rows"]]
        return {(row.model, row.images_seen): row for row in rows}


def moments(records: Sequence[Record]) -> Iterator[tuple[Record, dict[str, Any]]]:
    for record in records:
        for moment in record["snapshots"]:
            yield record, moment


def name_of(record: Record) -> str:
    return f"{record['cell']}, seed {record['seed']}"


def measured(
    record: Record, moment: dict[str, Any], places: Places, plan: Plan, device: torch.device
) -> Point | None:
    """Locality at a moment of a training whose averages are still there, beside K_max by the paper rule."""
    folder = places.runs / job_name(record["cell"], record["preset"], record["seed"])
    if not is_run(folder):
        say(f"{folder} is gone; {record['cell']} at {moment['images_seen']} images gives no point.")
        return None
    model = load_run(folder, images_seen=moment["images_seen"], device=device)
    try:
        with torch.no_grad():
            found = conditional_locality_alone(model.denoiser, model.tell, model.size, plan, device)
    except UserError as error:  # such as a network that has not yet learned to heed its conditions
        say(f"{name_of(record)} at {moment['images_seen']} images gives no point: {error}")
        return None
    assert found is not None  # such records were left out
    reached = moment["k_max"]["paper"]
    return Point(
        model=name_of(record),
        images_seen=moment["images_seen"],
        k_max=reached["value"],
        seen_max=record["seen_max"],
        locality=found["value"],
        low=found["low"],
        high=found["high"],
        at_least=reached["at_least"],
    )
