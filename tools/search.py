"""Search: train a queue of named cells, several side by side on one GPU, and score each along its training.

    python tools/search.py run tools/search-base128.json --minutes 27 --workers 4
    python tools/search.py table results/search

A cell is one training: an experiment, the most objects a training image shows, changes to a preset, a seed. Its
record is written anew after every score, so a search can be killed at any time; the same command continues it.
"""

import json
import multiprocessing
import os
import shutil
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import tyro
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from tessera.cluster.shared_gpu import shared_gpu
from tessera.config import Settings, format_count, parse_count, settings_from
from tessera.devices import DeviceName, pick_device
from tessera.errors import UserError
from tessera.evaluation.calibrate import load_calibration
from tessera.evaluation.detector import load_detector
from tessera.evaluation.kmax import k50
from tessera.evaluation.pipeline import EvaluationConfig, Evaluator, ScoredSamples, quality
from tessera.files import make_folder, read_json, rounded, write_json
from tessera.models.build import build_denoiser, conditioner_for
from tessera.models.checkpoint_io import read_checkpoint, write_checkpoint
from tessera.models.model import Model
from tessera.models.model_folder import denoiser_config, load_model
from tessera.provenance import provenance
from tessera.stats import counted
from tessera.studies.clevr.entries import IMAGES, StudyEntry
from tessera.studies.clevr.image_grids import save_image_grid
from tessera.training.run_folder import RunFolder, crossed, train_run
from tessera.training.trainer import Trainer

RESAMPLES = 200  # for the intervals of a score
MARGIN = 25  # seconds kept at the end for the last scores
COUNTS = ("all_found", "exact", "allowed_extras", "two_missing")  # of a score: samples of every K for which it holds


@dataclass(frozen=True)
class SearchCell:
    """One training of a search, and when it is scored; one entry of the queue's JSON file."""

    name: str
    about: str = ""
    experiment: str = "exp1"
    max_train_objects: int = 3
    preset: str = "small"
    seed: int = 0
    changes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    # Images between scores, and the averages scored then. At the end all averages are scored.
    scores: Mapping[str, Sequence[float]] = field(default_factory=dict)
    churns: tuple[float, ...] = (0.0,)  # at the end; along training the first of them
    start: str | None = None  # NAME:COUNT, the state of another cell after so many images to continue from
    model: str | None = None  # a model folder or shipped name to score instead of training

    @property
    def cell(self) -> StudyEntry:
        changes = {group: dict(values) for group, values in self.changes.items()}
        for name, value in changes.get("training", {}).items():
            if name in ("total", "cooldown"):
                changes["training"][name] = parse_count(value)
        return StudyEntry(self.experiment, self.max_train_objects, changes=changes)

    @property
    def settings(self) -> Settings:
        """Snapshots are taken as often as the cell is scored."""
        settings = self.cell.settings(self.preset, self.seed)
        every = min([parse_count(count) for count in self.scores], default=settings.training.total)
        training = replace(settings.training, snapshot=every, checkpoint=every)
        return replace(settings, training=training)

    @property
    def parent(self) -> tuple[str, int] | None:
        """Whose state training continues from, and after how many images."""
        if self.start is None:
            return None
        name, _, count = self.start.rpartition(":")
        return name, parse_count(count)

    def averages_at(self, images_seen: int) -> list[float]:
        """The averages to score after so many images."""
        training = self.settings.training
        if images_seen >= training.total:
            return list(training.ema)
        due = [
            std
            for count, stds in self.scores.items()
            if crossed(images_seen, training.batch, parse_count(count))
            for std in stds
        ]
        return sorted(set(due))


def read_queue(path: Path) -> list[SearchCell]:
    known = {f.name for f in fields(SearchCell)}
    cells = []
    for entry in read_json(path):
        if unknown := entry.keys() - known:
            raise UserError(f"{path}: a cell has no `{sorted(unknown)[0]}`; known are {', '.join(sorted(known))}.")
        churns = tuple(entry.get("churns", (0.0,)))
        cells.append(SearchCell(**{**entry, "churns": churns}))
    names = [cell.name for cell in cells]
    if len(set(names)) < len(names):
        raise UserError(f"{path} names a cell twice.")
    for cell in cells:
        if cell.parent and cell.parent[0] not in names:
            raise UserError(f"{path}: {cell.name} continues from `{cell.parent[0]}`, which is not in the queue.")
    return cells


# --- scores -------------------------------------------------------------------------------------------------


def score_of(samples: ScoredSamples, scores: Mapping[str, Any], max_train_objects: int) -> dict[str, Any]:
    """One evaluation in brief: K50, K_max, mean recall beyond the training range, and counts for every K."""
    rows = scores["rows"]
    n = rows[0]["n"]
    columns = {name: [counted(row[name]) for row in rows] for name in COUNTS}
    recall = [row["found"]["value"] / row["k"] if row["k"] else 1.0 for row in rows]
    beyond = [share for row, share in zip(rows, recall) if row["k"] > max_train_objects]
    shown = quality(samples.scores)
    return {
        "k50": k50([row["k"] for row in rows], columns["all_found"], n, resamples=RESAMPLES).to_dict(),
        "k_max": {rule: [record["value"], record["low"], record["high"]] for rule, record in scores["k_max"].items()},
        "recall_beyond": float(np.mean(beyond)) if beyond else None,
        "well_formed": shown["well_formed"]["value"],
        "ood": shown["ood"]["value"],
        "n": n,
        "k": [row["k"] for row in rows],
        **columns,
        "recall": recall,
        "extra": [row["extra"]["value"] for row in rows],
        "seconds": sum(samples.seconds.values()),
    }


class Scorer:
    """Scores one cell's model and keeps its record."""

    def __init__(self, cell: SearchCell, evaluator: Evaluator, out: Path, each: int, steps: int, keep: set[int]):
        self.cell, self.evaluator, self.out = cell, evaluator, out
        self.evaluation = EvaluationConfig(cell.cell.ks, each, steps)
        self.keep = keep  # images after which another cell continues from this one's state
        self.model: Model | None = None
        known = record_of(cell, out)
        self.record: dict[str, Any] = known or {"cell": cell.name, "finished": False, "scores": []}

    def at_snapshot(self, run: RunFolder, trainer: Trainer) -> None:
        if trainer.images_seen in self.keep:
            kept = make_folder(run.folder / "kept")
            shutil.copy(run.states()[0], kept)
        for std in self.cell.averages_at(trainer.images_seen):
            self.score_average(trainer, std, self.cell.churns[:1], trainer.images_seen)

    def score_average(self, trainer: Trainer, std: float, churns: Sequence[float], images_seen: int) -> None:
        known = {(score["images_seen"], score["average"], score["s_churn"]) for score in self.record["scores"]}
        if all((images_seen, std, s_churn) in known for s_churn in churns):
            return
        model = self.model_of(trainer, std)
        self.record["training"] = self.training(trainer)
        for s_churn in churns:
            if (images_seen, std, s_churn) not in known:
                self.score(model, {"images_seen": images_seen, "average": std, "s_churn": s_churn})

    def model_of(self, trainer: Trainer, std: float) -> Model:
        """One copy of the network for all scores, with the average as it is now."""
        if self.model is None:
            denoiser = trainer.averaged(std)
            settings = self.cell.settings
            config = {"denoiser": denoiser_config(denoiser), "settings": settings.plain()}
            self.model = self.evaluator.prepare(Model(denoiser, conditioner_for(settings), config=config))
        else:
            self.model.denoiser.load_state_dict(trainer.averages.state(std))
        return self.model

    def score(self, model: Model, what: dict[str, Any]) -> None:
        samples = self.evaluator.run(model, replace(self.evaluation, s_churn=what["s_churn"]))
        scores = self.evaluator.summarize(model, samples, corrected=False, resamples=RESAMPLES)
        self.record["scores"].append({**what, **score_of(samples, scores, self.cell.max_train_objects)})
        save_image_grid(make_folder(self.out / "sheets") / f"{self.cell.name}.png", samples)
        self.write()

    def finish(self, trainer: Trainer, finished: bool) -> None:
        for std in self.cell.settings.training.ema:
            self.score_average(trainer, std, self.cell.churns, trainer.images_seen)
        self.record["training"] = self.training(trainer)
        self.record["finished"] = finished
        self.write()

    def training(self, trainer: Trainer) -> dict[str, Any]:
        """How far and how fast; the rate is of the trainings that shared the GPU, not of one alone."""
        log = RunFolder(runs_beside(self.out) / self.cell.name).records()
        rates = [line["images_per_second"] for line in log[1:]] or [None]
        return {
            "images_seen": trainer.images_seen,
            "weights": sum(p.numel() for p in trainer.denoiser.parameters()),
            "images_per_second": None if rates == [None] else float(np.median(rates)),
            "loss": log[-1]["loss"] if log else None,
        }

    def write(self) -> None:
        facts = {
            "about": self.cell.about,
            "start": self.cell.start,
            "model": self.cell.model,
            "evaluation": {"each": self.evaluation.each, "steps": self.evaluation.steps, "seed": self.evaluation.seed},
            "provenance": provenance(self.evaluator.device),
        }
        settings = self.cell.settings.plain() if self.cell.model is None else None
        write_json(
            make_folder(self.out / "records") / f"{self.cell.name}.json",
            {**rounded({**self.record, **facts}), "settings": settings},
        )


def record_of(cell: SearchCell, out: Path) -> dict[str, Any] | None:
    """What was measured of this very cell in an earlier sitting."""
    path = out / "records" / f"{cell.name}.json"
    if not path.is_file():
        return None
    record = read_json(path)
    if (
        record["settings"] is not None and settings_from(record["settings"]) != cell.settings
    ):  # JSON has lists for tuples
        raise UserError(f"{path} is of other settings; choose another --out or another name for the cell.")
    return record


def runs_beside(out: Path) -> Path:
    return out / "runs"


# --- one cell, in a process of its own ----------------------------------------------------------------------


@dataclass(frozen=True)
class Task:
    """What every cell's process gets besides its cell."""

    out: Path
    device: str
    each: int
    steps: int
    deadline: float  # time.time() at which training pauses


def work(cell: SearchCell, task: Task, keep: set[int]) -> None:
    """Train and score one cell. Its process's log is OUT/logs/NAME.log."""
    log = open(make_folder(task.out / "logs") / f"{cell.name}.log", "a", buffering=1)  # noqa: SIM115
    os.dup2(log.fileno(), sys.stderr.fileno())
    os.dup2(log.fileno(), sys.stdout.fileno())
    torch.set_num_threads(2)
    device = torch.device(task.device)
    evaluator = Evaluator(load_detector(device=device), load_calibration(), device)
    scorer = Scorer(cell, evaluator, task.out, task.each, task.steps, keep)
    try:
        if cell.model is None:
            train_and_score(cell, task, scorer)
        else:
            score_alone(cell, scorer)
    except BaseException:
        traceback.print_exc(file=log)
        raise


def train_and_score(cell: SearchCell, task: Task, scorer: Scorer) -> None:
    folder = runs_beside(task.out) / cell.name
    if cell.parent and not RunFolder(folder).states():
        start_from(kept_state(cell, task.out), cell, make_folder(folder / "snapshots"))
    settings, device = cell.settings, torch.device(task.device)
    trainer = Trainer(build_denoiser(settings), settings.training, device)
    outcome = train_run(
        settings, folder, trainer=trainer, minutes=(task.deadline - time.time()) / 60, on_snapshot=scorer.at_snapshot
    )
    scorer.finish(trainer, outcome.finished)


def score_alone(cell: SearchCell, scorer: Scorer) -> None:
    assert cell.model is not None
    model = scorer.evaluator.prepare(load_model(cell.model, scorer.evaluator.device))
    done = {score["s_churn"] for score in scorer.record["scores"]}
    for s_churn in [s_churn for s_churn in cell.churns if s_churn not in done]:
        facts = {"images_seen": model.config["images_seen"], "average": model.config["ema"]}
        scorer.score(model, {**facts, "s_churn": s_churn})
    scorer.record["finished"] = True
    scorer.write()


def start_from(state: Path, cell: SearchCell, snapshots: Path) -> None:
    """Put the state of another cell where this one resumes, as one of its own settings."""
    tensors, facts = read_checkpoint(state)
    write_checkpoint(snapshots / state.name, tensors, facts | {"settings": cell.settings.plain()})


def kept_state(cell: SearchCell, out: Path) -> Path:
    """The state of another cell that this one continues from."""
    assert cell.parent is not None
    name, images_seen = cell.parent
    return runs_beside(out) / name / "kept" / f"state-{images_seen:012d}.safetensors"


# --- the queue ----------------------------------------------------------------------------------------------


def run(
    queue: tyro.conf.Positional[Path],
    minutes: float = 60.0,
    workers: int = 4,
    out: Path = Path("runs/search"),
    device: DeviceName = "auto",
    each: int = IMAGES,
    steps: int = 32,
) -> None:
    """Train and score the cells of a queue, first come first served.

    Args:
        queue: JSON file with a list of cells.
        minutes: Pause everything after so long; the same command continues.
        workers: Cells trained side by side.
        out: Folder for records, sample sheets, logs and runs.
        device: Where to compute.
        each: Samples for each K.
        steps: Sampling steps.
    """
    cells = read_queue(queue)
    picked = pick_device(device)
    task = Task(out.resolve(), str(picked), each, steps, time.time() + 60 * minutes - MARGIN)
    waiting = [cell for cell in cells if not (record_of(cell, out) or {}).get("finished")]
    with shared_gpu(picked) as shared:
        say(f"{len(waiting)} of {len(cells)} cells to do, {workers} at a time" + ", MPS on" * shared)
        work_through(waiting, cells, task, workers)


def work_through(waiting: list[SearchCell], cells: Sequence[SearchCell], task: Task, workers: int) -> None:
    """Start the first cell that can start whenever a worker is free, until the deadline."""
    spawn = multiprocessing.get_context("spawn")
    running: dict[str, Any] = {}
    while waiting or running:
        for name in [name for name, process in running.items() if not process.is_alive()]:
            say(f"{name} ended with code {running.pop(name).exitcode}")
        ready = [cell for cell in waiting if cell.parent is None or kept_state(cell, task.out).is_file()]
        if not running and (not ready or time.time() > task.deadline):
            break
        if ready and len(running) < workers and time.time() < task.deadline:
            cell = ready[0]
            waiting.remove(cell)
            keep = {other.parent[1] for other in cells if other.parent and other.parent[0] == cell.name}
            process = spawn.Process(target=work, args=(cell, task, keep))
            process.start()
            running[cell.name] = process
            say(f"{cell.name} begins")
        time.sleep(0.2)
    if waiting:
        say("not begun: " + ", ".join(cell.name for cell in waiting))


def say(sentence: str) -> None:
    print(time.strftime("%H:%M:%S"), sentence, file=sys.stderr, flush=True)


# --- looking at records -------------------------------------------------------------------------------------


def table(out: tyro.conf.Positional[Path]) -> None:
    """Print all scores in a search's output folder, or in a folder of its records.

    Args:
        out: The folder.
    """
    folder = out / "records" if (out / "records").is_dir() else out
    shown = Table(box=SIMPLE, padding=(0, 1))
    for name in (
        "cell",
        "images",
        "average",
        "s_churn",
        "K50",
        "K_max",
        "recall",
        "well_formed",
        "all found, K = 0, 1, ...",
    ):
        shown.add_column(name, no_wrap=True)
    for path in sorted(folder.glob("*.json")):
        record = json.loads(path.read_text())
        for score in record["scores"]:
            low, high = score["k50"]["low"], score["k50"]["high"]
            shown.add_row(
                record["cell"],
                format_count(score["images_seen"]),
                f"{score['average']:g}",
                f"{score['s_churn']:g}",
                f"{score['k50']['value']:.2f} [{low:.1f}, {high:.1f}]",
                str(score["k_max"]["paper"][0]),
                f"{score['recall_beyond']:.3f}" if score["recall_beyond"] is not None else "",
                "" if score["well_formed"] is None else f"{score['well_formed']:.3f}",
                " ".join(str(round(100 * count / score["n"])) for count in score["all_found"]),
            )
    Console(width=170).print(shown)


def main() -> None:
    try:
        tyro.extras.subcommand_cli_from_dict({"run": run, "table": table})
    except UserError as error:
        print(error, file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
