"""The speed-run: from nothing to a model that length-generalizes, against the clock.

    python tools/speedrun.py --variant wide-batch --note "twice the batch" --set training.batch=1024

The clock runs while the network is built, compiled and trained and while images are rendered; it stands still
during evaluations, whose time is recorded separately. A fresh cache makes the compiler start from nothing too.
"""

import json
import os
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.box import SIMPLE
from rich.table import Table

from _common import program, settings_with
from tessera.config import Settings, parse_count
from tessera.console import progress, publish
from tessera.devices import DeviceName, pick_device, precision_on, synchronize, taken_memory
from tessera.errors import UserError
from tessera.evaluation.calibrate import load_calibration
from tessera.evaluation.detector import load_detector
from tessera.evaluation.pipeline import EvaluationConfig, Evaluator
from tessera.files import make_folder
from tessera.models.build import build_denoiser, conditioner_for, denoiser_config
from tessera.models.model import Model
from tessera.models.model_folder import save_model
from tessera.provenance import provenance
from tessera.sampling.prompts import parse_ks
from tessera.training.run_folder import _stream_for
from tessera.training.strategies import chosen_strategy
from tessera.training.trainer import Trainer, train

CACHES = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
LOG = "speedrun.jsonl"


@dataclass(frozen=True)
class Speedrun:
    """Minutes from nothing to exp1 (1 to 3 objects) with K_max at the target by the paper rule; logs every try."""

    target: int = 9
    """K_max to reach, by the paper rule."""
    minutes: float = 10.0
    """Give up after this much training."""
    every: str = "128Ki"
    """Images between evaluations."""
    first: str = "0"
    """Images before the first evaluation (0: as many as between two)."""
    each: int = 64
    """Images for each K in an evaluation."""
    k: str | None = None
    """Ks to ask for, such as 1-12 (default: 1 up to the target)."""
    steps: int = 32
    """Noise levels of a sample."""
    experiment: str = "exp1"
    """The experiment to run."""
    preset: str = "small"
    """Size of the whole."""
    variant: str = "preset"
    """Name of what is tried, for the log."""
    note: str = ""
    """What is tried, in words, for the log."""
    warm: bool = False
    """Let the compiler reuse what it compiled before this run."""
    save: Path | None = None
    """Keep the model that reached the target in this folder."""
    results: Path = Path("results")
    """Folder of speedrun.jsonl, to which one line is added."""
    device: DeviceName = "auto"
    """Where to compute."""
    json: bool = False
    """Print one JSON object."""
    set: tuple[str, ...] = ()
    """Settings other than the preset's, such as denoiser.width=32 training.batch=1024."""

    def run(self) -> None:
        if self.minutes <= 0 or self.target < 1:
            raise UserError("A speed-run needs a target of at least 1 and a positive number of minutes.")
        device = pick_device(self.device)
        settings, changes = settings_with(self.experiment, self.preset, self.set)
        ks = tuple(parse_ks(self.k)) if self.k else tuple(range(1, self.target + 1))
        if not set(range(1, self.target + 1)) <= set(ks):
            raise UserError(f"To reach K_max {self.target}, every K from 1 to {self.target} must be prompted.")
        evaluator = Evaluator(load_detector(device=device), load_calibration(), device)
        with caches(fresh=not self.warm):
            race = Race(settings, evaluator, EvaluationConfig(ks, self.each, self.steps), self.target)
            race.go(60 * self.minutes, parse_count(self.first), parse_count(self.every))
        record = self.record(race, changes)
        append_line(make_folder(self.results) / LOG, record)
        if self.save and race.reached:
            race.keep(self.save)
        publish(record, self.json, None, race_table(record), conclusion(record))

    def record(self, race: "Race", changes: Mapping[str, Any]) -> dict[str, Any]:
        device, settings = race.evaluator.device, race.settings
        changed = {group: values for group, values in changes.items() if values}
        return {
            "variant": self.variant,
            "note": self.note,
            "changes": changed,
            "target": self.target,
            "reached": race.reached,
            "minutes": race.evaluations[-1]["seconds"] / 60 if race.reached else None,
            "k_max": race.evaluations[-1]["k_max"]["paper"]["value"] if race.evaluations else None,
            "images_seen": race.trainer.images_seen,
            "training_minutes": race.watch.seconds / 60,
            "evaluation_minutes": race.examining / 60,
            "first_step_seconds": race.first_step,
            "cold_compiler": not self.warm,
            "weights": sum(p.numel() for p in race.trainer.denoiser.parameters()),
            "precision": precision_on(device, settings.training.precision),
            "compiled": chosen_strategy(settings.training, device) != "eager",
            "peak_memory_bytes": taken_memory(device),
            "evaluation": race.evaluation.plain(),
            "evaluations": race.evaluations,
            "settings": settings.plain(),
            "provenance": provenance(device),
        }


class StopWatch:
    """Seconds of training; stands still while paused. Queued work is waited for before the time is taken."""

    def __init__(self, device: torch.device):
        self.device, self.before = device, 0.0
        self.since: float | None = time.perf_counter()

    @property
    def seconds(self) -> float:
        return self.before + (0.0 if self.since is None else time.perf_counter() - self.since)

    @contextmanager
    def paused(self) -> Iterator[None]:
        synchronize(self.device)
        self.before, self.since = self.seconds, None
        try:
            yield
        finally:
            self.since = time.perf_counter()

    def stop(self) -> None:
        synchronize(self.device)
        self.before, self.since = self.seconds, None


class Race:
    """A training with a clock that stands still during evaluations."""

    def __init__(self, settings: Settings, evaluator: Evaluator, evaluation: EvaluationConfig, target: int):
        self.settings, self.evaluator, self.evaluation, self.target = settings, evaluator, evaluation, target
        self.evaluations: list[dict[str, Any]] = []
        self.examining, self.first_step = 0.0, 0.0
        self.reached = False
        self.watch = StopWatch(evaluator.device)
        self.trainer = Trainer(build_denoiser(settings), settings.training, evaluator.device)
        self.model: Model | None = None

    def go(self, seconds: float, first: int, every: int) -> None:
        """Train until the target is reached, or the clock or the training has run out."""
        due = first or every
        total = self.settings.training.total
        with progress(f"speed-run, {self.settings.run_name}", total) as advance:
            for step in train(self.trainer, _stream_for(self.settings)):
                self.first_step = self.first_step or self.seconds_now()
                late = self.watch.seconds > seconds
                if step.images_seen >= min(due, total) or late:
                    due += every
                    with self.watch.paused():
                        self.run_evaluation()
                advance(self.settings.training.batch, note=f"K_max {self.last_k_max()}")
                if self.reached or late:
                    break
        self.watch.stop()

    def seconds_now(self) -> float:
        synchronize(self.evaluator.device)
        return self.watch.seconds

    def last_k_max(self) -> int | str:
        return self.evaluations[-1]["k_max"]["paper"]["value"] if self.evaluations else "unknown"

    def run_evaluation(self) -> None:
        """The averaged network's K_max now, off the clock."""
        begun, model = time.perf_counter(), self.examined()
        samples = self.evaluator.run(model, self.evaluation)
        scores = self.evaluator.summarize(model, samples, corrected=False, resamples=200)
        rows = [
            {name: row[name] for name in ("k", "n", "all_found", "allowed_extras", "two_missing")}
            for row in scores["rows"]
        ]
        moment = {"seconds": round(self.watch.seconds, 2), "images_seen": self.trainer.images_seen}
        self.evaluations.append({**moment, "k_max": scores["k_max"], "rows": rows})
        self.reached = scores["k_max"]["paper"]["value"] >= self.target
        self.examining += time.perf_counter() - begun

    def examined(self) -> Model:
        """One copy of the network for all evaluations, with the average as it is now: it is compiled only once."""
        if self.model is None:
            denoiser = self.trainer.averaged()
            config = {"denoiser": denoiser_config(denoiser), "settings": self.settings.plain()}
            self.model = self.evaluator.prepare(Model(denoiser, conditioner_for(self.settings), config=config))
        else:
            self.model.denoiser.load_state_dict(self.trainer.averages.state(min(self.settings.training.ema)))
        return self.model

    def keep(self, folder: Path) -> None:
        model = self.examined()
        facts = {"settings": self.settings.plain(), "images_seen": self.trainer.images_seen}
        save_model(folder, model.denoiser, model.conditioner, {**facts, "ema": min(self.settings.training.ema)})


@contextmanager
def caches(fresh: bool) -> Iterator[None]:
    """With `fresh`, the compiler finds nothing of earlier runs."""
    if not fresh:
        yield
        return
    before = {name: os.environ.get(name) for name in CACHES}
    torch.compiler.reset()
    with tempfile.TemporaryDirectory(prefix="tessera-speedrun-", ignore_cleanup_errors=True) as folder:
        os.environ.update({name: str(Path(folder) / name.lower()) for name in CACHES})
        try:
            yield
        finally:
            for name, value in before.items():
                os.environ.pop(name, None)
                os.environ |= {} if value is None else {name: value}


def append_line(path: Path, record: Mapping[str, Any]) -> None:
    try:
        with open(path, "a") as file:
            file.write(json.dumps(record, allow_nan=False) + "\n")
    except OSError as error:
        raise UserError(f"Could not write {path}: {error.strerror or error}.") from error


def race_table(record: Mapping[str, Any]) -> Table:
    table = Table("minutes", "images", "K_max, paper rule", "strict rule", title="speed-run", box=SIMPLE)
    for evaluation in record["evaluations"]:
        k_max = evaluation["k_max"]
        values = (str(k_max[rule]["value"]) for rule in ("paper", "strict"))
        table.add_row(f"{evaluation['seconds'] / 60:.2f}", f"{evaluation['images_seen']:,}", *values)
    return table


def conclusion(record: Mapping[str, Any]) -> str:
    evaluations = f"evaluations took {record['evaluation_minutes']:.2f} minutes besides"
    spent, seen = f"{record['training_minutes']:.2f} minutes", f"{record['images_seen']:,} images"
    if record["reached"]:
        return f"K_max {record['k_max']} after {spent} and {seen}; {evaluations}."
    return f"K_max {record['target']} was not reached in {spent}; {evaluations}."


main = program(Speedrun)

if __name__ == "__main__":
    main()
