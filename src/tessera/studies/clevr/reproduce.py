"""Runs the jobs of the study one after another in one process: train what is missing, set the evaluation, record.

Any step can be interrupted: training carries on from its last state, and a record, once written, is recognized
by its settings and its evaluation.
"""

import math
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch

from tessera.analysis.locality import LocalityConfig, conditional_locality_alone
from tessera.conditioning import SpatialConditioner
from tessera.config import Settings, changed, fitting, format_count
from tessera.console import say
from tessera.devices import precision_on, taken_memory
from tessera.errors import UserError
from tessera.evaluation.kmax import TrainingRange
from tessera.evaluation.pipeline import Evaluator, ScoredSamples, quality
from tessera.files import make_folder, read_json, rounded, write_json
from tessera.models.build import build_denoiser
from tessera.models.model import Model
from tessera.models.run_snapshots import load_run, stored_averages
from tessera.provenance import provenance
from tessera.records import StudyRunRecord, write_record
from tessera.rows import pick
from tessera.studies.clevr.composition import KEPT
from tessera.studies.clevr.entries import IMAGES
from tessera.studies.clevr.image_grids import IMAGE_GRID, save_image_grid, shown_record
from tessera.studies.clevr.records import write_study
from tessera.studies.clevr.runs import StudyPaths, StudyRun, evenly
from tessera.studies.clevr.tables import outcome_words
from tessera.training.distributed import ALONE
from tessera.training.progress_bar import ProgressBar
from tessera.training.run_folder import RunFolder, train_run
from tessera.training.strategies import chosen_strategy, forget_compiled
from tessera.training.trainer import Trainer

_Keep = Literal["everything", "averages", "last"]
LOCALITY = LocalityConfig(k=4, images=8, scenes=4, source="truth")  # how locality is measured along training
_QUICK_RESAMPLES = 200  # for snapshots of training, whose intervals only show along a curve


class Stopped(Exception):
    """The user or the time limit stopped the study; everything so far is kept."""


class Clock:
    """How long is left."""

    def __init__(self, minutes: float | None = None):
        self.end = math.inf if minutes is None else time.monotonic() + 60 * minutes

    @property
    def left(self) -> float:
        """In minutes."""
        return (self.end - time.monotonic()) / 60

    def check(self) -> None:
        if self.left <= 0:
            raise Stopped


class Study:
    """Runs jobs; finished ones are passed over, failed ones named at the end."""

    def __init__(self, paths: StudyPaths, evaluator: Evaluator, clock: Clock | None = None, keep: _Keep = "averages"):
        self.paths, self.evaluator, self.clock, self.keep = paths, evaluator, clock or Clock(), keep
        self.device = evaluator.device
        self.failed: dict[str, str] = {}
        self.trainers: dict[Settings, Trainer] = {}

    def run(self, jobs: Sequence[StudyRun]) -> bool:
        """Whether all jobs were finished; False if stopped before."""
        try:
            for number, job in enumerate(jobs, 1):
                record = job.record(self.paths)
                if record is None:
                    say(f"{job.name} ({number} of {len(jobs)})")
                    self.attempt(job)
                else:
                    self.tidy_after_kill(job, record)
        except Stopped:
            return False
        finally:
            write_study(self.paths)
        return True

    def tidy_after_kill(self, job: StudyRun, record: StudyRunRecord) -> None:
        """What a kill right after the record was written left to do, unless the run was trained further since."""
        run = RunFolder(job.folder(self.paths))
        if any(state.stem == f"state-{record['training']['images_seen']:012d}" for state in run.states()[:1]):
            _tidy(run, self.keep)

    def attempt(self, job: StudyRun) -> None:
        """One job; a training that fails does not stop the others."""
        try:
            self.clock.check()
            self.train(job)
            self.clock.check()
            self.evaluate(job)
        except (UserError, torch.OutOfMemoryError) as error:
            self.failed[job.name] = str(error)
            say(f"{job.name} failed: {error}")

    # -- training ------------------------------------------------------------------------------------------

    def train(self, job: StudyRun) -> None:
        folder = job.folder(self.paths)
        if _trained_at(job, folder) is not None:
            return
        if snapshots(folder) and not RunFolder(folder).states():
            say(f"{job.name} begins anew: its full states went with its record (--set keep=everything keeps them).")
        with ProgressBar(job.settings, folder, ALONE, "off") as watch:
            outcome = train_run(
                job.settings,
                folder,
                trainer=self.trainer_for(job.settings),
                minutes=self.clock.left,
                on_step=watch.step,
                on_record=watch.record,
            )
        what = "trained on" if outcome.finished else "paused at"
        say(f"{job.name}: {what} {format_count(outcome.images_seen)} images after {outcome.seconds:.0f} s.")
        if not outcome.finished:
            raise Stopped

    def trainer_for(self, settings: Settings) -> Trainer:
        """Cells that differ in scenes and labels alone share one network in training, compiled once."""
        make = _same_make(settings)
        if make not in self.trainers:
            forget_compiled()
            # Jobs go seed by seed, and a seed is part of what was compiled: those of another are done with.
            seed = make.training.seed
            self.trainers = {known: trainer for known, trainer in self.trainers.items() if known.training.seed == seed}
            self.trainers[make] = Trainer(build_denoiser(settings), settings.training, self.device)
        return self.trainers[make]

    # -- the evaluation ------------------------------------------------------------------------------------------

    def evaluate(self, job: StudyRun) -> None:
        """Evaluate at moments of training, if there should be any, and at its end; then write the record."""
        folder = job.folder(self.paths)
        end = _trained_at(job, folder)
        assert end is not None
        forget_compiled()
        model = self.evaluator.prepare(load_run(folder, images_seen=end, device=self.device))
        evaluation, moments = job.evaluation, []
        if job.snapshots:
            kept = [seen for seen in snapshots(folder) if seen <= end]
            moments = [self.moment(job, model, seen) for seen in evenly(kept, job.snapshots)[:-1]]
        _take_weights(model, folder, end)
        samples = self.evaluator.run(model, evaluation)
        result = self.evaluator.summarize(model, samples)
        moments += [self.state_at(model, end, samples)] if job.snapshots else []
        record = self.record(job, model, samples, result, moments)
        if evaluation.s_churn:  # without it for comparison, so of no more images than other cells'
            still = replace(evaluation, s_churn=0.0, each=min(evaluation.each, IMAGES))
            record["still"] = _brief(self.evaluator.summarize(model, self.evaluator.run(model, still)))
        self.write(job, record, samples)
        _tidy(RunFolder(folder), self.keep)

    def moment(self, job: StudyRun, model: Model, seen: int) -> dict[str, Any]:
        """K_max and shares after `seen` images; kept in the run folder, as the whole series takes a while."""
        folder, evaluation = job.folder(self.paths), job.evaluation.plain()
        path = RunFolder(folder).results / f"evaluation-{seen:012d}.json"
        known = read_json(path) if path.is_file() else {}
        if known.get("evaluation") != evaluation:
            self.clock.check()
            _take_weights(model, folder, seen)
            samples = self.evaluator.run(model, job.evaluation)
            scores = _brief(self.evaluator.summarize(model, samples, False, _QUICK_RESAMPLES))
            known = {"evaluation": evaluation, "moment": {**self.state_at(model, seen, samples), **scores}}
            write_json(path, known)
        return known["moment"]

    def state_at(self, model: Model, images_seen: int, samples: ScoredSamples) -> dict[str, Any]:
        """A snapshot without its scores: those of the last one are the record's own."""
        return {"images_seen": images_seen, "locality": _locality_of(model, self.device), "cost": cost_of(samples)}

    def record(
        self, job: StudyRun, model: Model, samples: ScoredSamples, result: dict[str, Any], moments: list[dict[str, Any]]
    ) -> dict[str, Any]:
        settings = job.settings
        # All but the detector's own error and the study's prompts, which are the same in every record.
        rows = [{name: row[name] for name in row if name not in ("detector", "prompts")} for row in result["rows"]]
        return {
            **job.cell.facts(settings.preset),
            "seed": job.seed,
            "settings": settings.plain(),
            "evaluation": job.evaluation.plain(),
            "training": _training_record(job, RunFolder(job.folder(self.paths)), model, self.device),
            "ema": model.config["ema"],
            "result": {**result, "rows": rows},
            "quality": quality(samples.scores),
            "shown": shown_record(samples, TrainingRange(job.cell.max_train_objects, settings.conditioner.labels)),
            "snapshots_requested": job.snapshots,
            "snapshots": moments,
            "cost": cost_of(samples),
            "provenance": provenance(self.device),
        }

    def write(self, job: StudyRun, record: dict[str, Any], samples: ScoredSamples) -> None:
        """The images first: where there is a record, everything that belongs to it is there."""
        save_image_grid(make_folder(self.paths.image_grids) / f"{job.name}{IMAGE_GRID}", samples)
        # Settings stay exact: by them the record is recognized.
        write_record(job.record_path(self.paths), StudyRunRecord, {**rounded(record), "settings": record["settings"]})
        write_study(self.paths)
        say(outcome_words(job, record))


# --- what a run folder says ---------------------------------------------------------------------------------


def snapshots(folder: Path) -> list[int]:
    """Moments of which averages are kept, earliest first."""
    return sorted({int(kept.images_seen) for kept in stored_averages(folder)})


def _trained_at(job: StudyRun, folder: Path) -> int | None:
    """The moment at which this training was complete, if it is; another training in the folder is an error."""
    run = RunFolder(folder)
    if not run.config.is_file():
        return None
    run.check(job.settings)
    return next((seen for seen in snapshots(folder) if seen >= job.settings.training.total), None)


def _training_record(job: StudyRun, run: RunFolder, model: Model, device: torch.device) -> dict[str, Any]:
    seen = model.config["images_seen"]
    seconds, last = _training_seconds(run, seen)
    return {
        "images_seen": seen,
        "seconds": round(seconds, 3),
        "images_per_second": round(seen / seconds, 1) if seconds else None,
        "loss": last.get("loss"),
        "weights": sum(p.numel() for p in model.denoiser.parameters()),
        "precision": precision_on(device, job.settings.training.precision),
        "compiled": chosen_strategy(job.settings.training, device) != "eager",
        "peak_memory_bytes": taken_memory(device),
    }


def _training_seconds(run: RunFolder, end: int) -> tuple[float, dict[str, Any]]:
    """Time the training took, over however many sessions, from its log; and the log's last line."""
    seconds, before, last = 0.0, 0, {}
    for line in run.records():
        if line["images_seen"] <= end:
            seconds += (line["images_seen"] - before) / line["images_per_second"]
            before, last = line["images_seen"], line
    return seconds, last


def _brief(result: dict[str, Any]) -> dict[str, Any]:
    """What is kept of an evaluation beside the main one: K_max, and the shares of every K."""
    return {"k_max": result["k_max"], "rows": pick(result["rows"], KEPT)}


def _same_make(settings: Settings) -> Settings:
    """The settings of all runs whose networks train by the same code: scenes and labels are only its data."""
    seen = replace(settings.data, objects=(1, 1), seed=0, quality="fast")
    labels = fitting(settings, {"conditioner": {"labels": "all"}})
    return changed(replace(settings, experiment="", data=seen), labels)


def _locality_of(model: Model, device: torch.device) -> dict[str, Any] | None:
    """Conditional locality on noised truth; None where conditions have no location, or do not count yet."""
    if not isinstance(model.conditioner, SpatialConditioner):
        return None
    try:
        with torch.no_grad():
            return conditional_locality_alone(model, LOCALITY, device)
    except UserError:
        return None


def cost_of(samples: ScoredSamples) -> dict[str, Any]:
    seconds = {f"{what}_seconds": round(taken, 2) for what, taken in samples.seconds.items()}
    return {"images": len(samples.prompts), **seconds}


def _take_weights(model: Model, folder: Path, seen: int) -> None:
    """The weights of another moment in the same module: what was compiled for it stays good."""
    if model.config["images_seen"] != seen:
        model.denoiser.load_state_dict(load_run(folder, images_seen=seen).denoiser.state_dict())
        model.config["images_seen"] = seen


def _tidy(run: RunFolder, keep: _Keep) -> None:
    """Remove what a finished job no longer needs: full states, and perhaps averages before the last."""
    if keep == "everything":
        return
    last = max(snapshots(run.folder))
    earlier = [path for path in run.snapshots.glob("ema-*.safetensors") if f"ema-{last:012d}-" not in path.name]
    for path in [*run.states(), *(earlier if keep == "last" else [])]:
        path.unlink()
