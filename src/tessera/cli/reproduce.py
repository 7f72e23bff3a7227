"""The verbs `reproduce` and `reproduce status`."""

import os
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints

import tyro
from rich.table import Column, Table

from tessera.cli.options import (
    Changes,
    Folder,
    ImageCount,
    List,
    Number,
    OnDevice,
    Printed,
    StudyOptions,
    Text,
    Whole,
    parse_settings,
)
from tessera.cluster.plan import ClusterConditions, enough_workers, forecast
from tessera.config import PRESETS, fitting, format_count, look_up, parse_changes, parse_count, parse_value
from tessera.console import publish, say, table_of
from tessera.devices import pick_device
from tessera.errors import UserError
from tessera.evaluation.pipeline import EvaluationConfig
from tessera.files import make_folder
from tessera.records import PlanRecord, new_record
from tessera.registry import Registry
from tessera.sampling.prompts import parse_ks
from tessera.studies.clevr.entries import CELLS, TARGETS, StudyEntry, cells_for, with_ks
from tessera.studies.clevr.figures import FIGURES, save_figure
from tessera.studies.clevr.records import read_records, rows_of, write_study
from tessera.studies.clevr.runs import (
    ANOTHER_RUN,
    Estimate,
    Speeds,
    StudyPaths,
    StudyRun,
    estimate,
    images_seen,
    job_name,
)
from tessera.studies.clevr.tables import NOT_RUN, k_max_lines, outcome_words, span_words

_WORKERS = (1, 8, 64)  # of a cluster, in forecasts

# What is no table or figure of cells; everything else is in `entries.py`. A study is a dataclass with a `run()`.
_TASKS = Registry(
    "tessera.tasks",
    "study",
    {
        "fig12": "tessera.cli.studies:Fig12",
        "scatter": "tessera.cli.studies:Scatter",
        "learning": "tessera.cli.studies:Learning",
        "crowding": "tessera.cli.studies:Crowding",
        "composition": "tessera.cli.studies:Composition",
        "swingby": "tessera.studies.swingby.diffusion:Swingby",
        "theory": "tessera.studies.theory.checks:Theory",
        "closed-form": "tessera.studies.theory.closed_form:ClosedForm",
    },
)


@dataclass(frozen=True, kw_only=True)
class Reproduce(OnDevice, Printed):
    """Repeat a table, figure or study: train what is missing, sample, evaluate, record. Carries on if stopped.

    Every study has defaults of its own. `--set` changes settings of the trainings (training.total=4Mi) and of the study (pairs=8);
    a name that is not known is answered with those that are.
    """

    #: table1, table2, fig1, fig4, fig5, fig8, lists (exp3 and exp3L), ablations, all; fig12 (CIFAR-10), scatter,
    #: learning, crowding, composition, swingby, theory, closed-form.
    what: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="WHAT")]
    #: For crowding, composition and closed-form: a run folder, a model folder, or the name of a shipped model.
    model: Annotated[tyro.conf.Positional[str | None], tyro.conf.arg(metavar="[MODEL]", help_behavior_hint="")] = None
    #: Size of the trainings: tiny, small or paper (default: small).
    preset: Text = None
    #: Trainings of each cell, with seeds 0, 1, ... (default: 3).
    seeds: Whole = None
    #: Images to train each network on, such as 4Mi (default: the preset's).
    total: ImageCount = None
    #: How many objects to prompt for, such as 0-12 (default: the study's).
    k: List = None
    #: Images evaluated for each K (default: 64, and 256 for exp2L).
    each: Whole = None
    #: Noise levels of the sampler (default: 32).
    steps: Whole = None
    #: Number of snapshots along training that are evaluated, the last at its end (default: only the end).
    snapshots: Whole = None
    #: Run only these cells, such as exp1-M3,exp2L-M1.
    only: List = None
    #: Folder for the runs: weights and logs of the trainings (default: runs/study).
    root: Folder = None
    #: Folder for records, study.json and figures (default: results).
    results: Folder = None
    #: File or folder for the results of fig12, scatter, composition, swingby or closed-form.
    out: Folder = None
    #: Stop after this many minutes, ready to be carried on by the same command.
    minutes: Number = None
    #: Run the jobs on the workers of a dask scheduler: its address, or the file that it wrote.
    cluster: Text = None
    #: List the jobs and the time they are expected to take, and do nothing.
    dry_run: bool = False
    #: Change a setting of the study or of its trainings; may be repeated.
    set: Changes = ()

    def run(self) -> int | None:
        return self.study().run()

    def study(self) -> Any:
        """The study with its own settings, its class's defaults where nothing is given."""
        look_up(self.what, dict.fromkeys([*TARGETS, *_TASKS]), "table, figure or study")
        kind = _TableStudy if self.what in TARGETS else _TASKS[self.what]
        hints = get_type_hints(kind, include_extras=True)
        found: dict[str, Any] = {}
        for option in fields(self):
            name, value = option.name, getattr(self, option.name)
            if name in ("set", "threads"):
                continue
            if name not in hints and name not in ("what", "device") and value not in (None, False):
                raise UserError(f"`reproduce {self.what}` has no --{name.replace('_', '-')}.")
            if name in hints and value is not None:
                is_switch = isinstance(value, bool)
                found[name] = value if is_switch else parse_value(hints[name], str(value), f"--{name}")
        of_trainings = [text for text in self.set if "changes" in hints and "." in text.partition("=")[0]]
        own = [text for text in self.set if text not in of_trainings]
        found |= parse_settings(own, hints, f"setting of `reproduce {self.what}`")
        if of_trainings:
            found["changes"] = tuple(of_trainings)
        missing = [f for f in fields(kind) if f.default is f.default_factory and f.name not in found]
        if missing:
            raise UserError(f"`reproduce {self.what}` needs --set {missing[0].name}=VALUE.")
        return kind(**found)


@dataclass(frozen=True, kw_only=True)
class _TableStudy(StudyOptions):
    """Cells of the paper's tables and figures: what is missing is trained, sampled and evaluated."""

    what: str
    preset: str = "small"
    seeds: int = 3
    total: str | None = None
    each: int | None = None
    k: str | None = None
    steps: int = 32
    snapshots: int = 0
    only: str | None = None
    root: Path = Path("runs/study")
    results: Path = Path("results")
    minutes: float | None = None
    keep: Literal["everything", "averages", "last"] = "averages"  # of a run once its record is written
    parallel: int = 1  # processes on this machine
    cluster: str | None = None
    first_seed: int = 0
    figures: bool = True
    dry_run: bool = False
    changes: tuple[str, ...] = ()  # of settings of the trainings; what makes a cell stays as it is

    def run(self) -> int | None:
        paths, jobs = StudyPaths(self.root, self.results), self.jobs()
        if self.dry_run:
            speeds = Speeds(paths)
            _show_plan([estimate(job, paths, speeds) for job in jobs], self.json)
            return None
        finished, failed = self.work(paths, jobs)
        figures = self.draw(paths)
        rows = self.rows(paths, jobs)
        record = {"finished": finished, "failed": failed, "figures": figures, "cells": rows}
        publish(record, self.json, None, status_table(rows))
        if not finished:
            say("Stopped before the end; the same command carries on.")
        return 1 if failed else None if finished or self.minutes is not None else 130

    def jobs(self) -> list[StudyRun]:
        """One job for each cell and seed; all cells once before any of them again."""
        if min(self.seeds, self.parallel) < 1 or self.snapshots < 0:
            raise UserError("At least one seed and one process are needed, and no fewer than 0 snapshots.")
        ks = None if self.k is None else tuple(parse_ks(self.k))
        cells = [with_ks(cell, ks) for cell in cells_for(self.what, self.only)]
        return [self.job(cell, self.first_seed + seed) for seed in range(self.seeds) for cell in cells]

    def job(self, cell: StudyEntry, seed: int) -> StudyRun:
        changes = fitting(cell.settings(self.preset, seed), parse_changes(self.changes))
        if self.total is not None:
            changes.setdefault("training", {})["total"] = parse_count(self.total)
        settings = cell.settings(self.preset, seed, changes)
        if self.snapshots:
            every = max(1, settings.training.total // self.snapshots)
            changes.setdefault("training", {})["snapshot"] = every
            settings = cell.settings(self.preset, seed, changes)
        each = cell.each if self.each is None else self.each
        evaluation = EvaluationConfig(cell.ks, each, self.steps, s_churn=cell.s_churn)
        return StudyRun(cell, seed, settings, evaluation, self.snapshots)

    def work(self, paths: StudyPaths, jobs: Sequence[StudyRun]) -> tuple[bool, dict[str, str]]:
        from tessera.evaluation.calibrate import load_calibration
        from tessera.evaluation.detector import load_detector
        from tessera.evaluation.pipeline import Evaluator
        from tessera.studies.clevr.reproduce import Clock, Study

        for folder in (paths.runs, paths.records):  # before the work, which could not be kept
            make_folder(folder)
        if self.parallel > 1 or self.cluster:
            return self.work_on_cluster(paths, jobs)
        device = pick_device(self.device)
        evaluator = Evaluator(load_detector(device=device), load_calibration(), device)
        study = Study(paths, evaluator, Clock(self.minutes), self.keep)
        return study.run(jobs), study.failed

    def work_on_cluster(self, paths: StudyPaths, jobs: Sequence[StudyRun]) -> tuple[bool, dict[str, str]]:
        """Each job is a piece: this command with one cell and one seed. Its record says that it is finished."""
        from tessera.cluster.pool import Piece, PieceOutcome, connected, run_pieces
        from tessera.cluster.shared_gpu import shared_gpu

        todo = {job.name: job for job in jobs if job.record(paths) is None}
        failed: dict[str, str] = {}

        def on_outcome(outcome: PieceOutcome) -> None:
            job = todo[outcome.name]
            if record := job.record(paths):
                say(outcome_words(job, record))
            elif outcome.code not in (0, 130):  # not stopped by its time limit
                failed[outcome.name] = outcome.message
                say(f"{outcome.name} failed: {outcome.message}")

        if not todo:
            return True, {}
        here = None if self.cluster else pick_device(self.device)
        processes = min(self.parallel, len(todo))
        threads = max(1, (os.cpu_count() or 1) // processes) if here else None
        with shared_gpu(here) if here else nullcontext(), connected(self.cluster, processes) as client:
            pieces = [Piece(name, self.words_of(job)) for name, job in todo.items()]
            run_pieces(
                client, pieces, paths.runs / "workers", minutes=self.minutes, threads=threads, on_outcome=on_outcome
            )
        write_study(paths)
        return all(job.record(paths) is not None for job in todo.values()), failed

    def words_of(self, job: StudyRun) -> tuple[str, ...]:
        """The command that does one job alone."""
        own = {"only": job.cell.name, "seeds": 1, "root": self.root.resolve(), "results": self.results.resolve()}
        same = ("preset", "total", "each", "k", "steps", "snapshots", "device")
        given = own | {name: getattr(self, name) for name in same if getattr(self, name) is not None}
        settings = (f"first_seed={job.seed}", "figures=off", f"keep={self.keep}", *self.changes)
        options = [word for name, value in given.items() for word in (f"--{name}", str(value))]
        return ("reproduce", self.what, *options, *[word for text in settings for word in ("--set", text)])

    def draw(self, paths: StudyPaths) -> list[str]:
        if not self.figures:
            return []
        names = list(FIGURES) if self.what == "all" else [self.what] if self.what in FIGURES else []
        drawn = [save_figure(name, paths, self.preset) for name in names]
        for path in filter(None, drawn):
            say(f"{path} is drawn.")
        return [str(path) for path in drawn if path]

    def rows(self, paths: StudyPaths, jobs: Sequence[StudyRun]) -> list[dict[str, Any]]:
        wanted = {job.cell.name for job in jobs}
        return [row for row in rows_of(read_records(paths), self.preset) if row["cell"] in wanted]


# --- the plan -----------------------------------------------------------------------------------------------


def _show_plan(plan: Sequence[Estimate], as_json: bool) -> None:
    known = [one.minutes for one in plan if one.minutes is not None]
    totals = {
        "images": sum(one.images for one in plan),
        "samples": sum(one.samples for one in plan),
        "minutes": sum(known) if len(known) == len(plan) else None,
        "minutes_known": sum(known),
        "unknown": len(plan) - len(known),
    }
    head = (Column("job", no_wrap=True), "state", "images to train", "images to evaluate", "minutes")
    rows = [(one.job, one.state, format_count(one.images), str(one.samples), _minutes_words(one)) for one in plan]
    forecasts = [forecast(known, workers) for workers in _WORKERS] if known else []
    scale = [("workers", "hours", "95% of simulated runs", "efficiency")]
    for one in forecasts:
        span = f"{one.low / 60:.2f} to {one.high / 60:.2f}"
        scale.append((str(one.workers), f"{one.minutes / 60:.2f}", span, f"{one.efficiency:.0%}"))
    record = {"jobs": [one.plain() for one in plan], **totals, "forecasts": [one.to_dict() for one in forecasts]}
    tables = [table_of([head, *rows]), *([table_of(scale)] if forecasts else [])]
    publish(new_record(PlanRecord, record), as_json, None, *tables, *_plan_words(plan, totals, known))


def _minutes_words(one: Estimate) -> str:
    if one.minutes is None:
        return "unknown"
    return f"{one.minutes:.1f}" + (" + evaluation" if one.evaluation_minutes is None else "")


def _plan_words(plan: Sequence[Estimate], totals: Mapping[str, Any], known: Sequence[float]) -> list[str]:
    jobs, images, samples, minutes = len(plan), totals["images"], totals["samples"], totals["minutes_known"]
    blocked = sum(one.state == ANOTHER_RUN for one in plan)
    sentences = {
        f"{jobs} jobs, {images:,} images to train on, {samples:,} images to sample and evaluate.": True,
        f"How long {totals['unknown']} of them take is unknown: no speed of their networks is recorded "
        f"(`tools/bench.py train`); the others take about {minutes:.1f} minutes.": totals["unknown"],
        f"Expected: {minutes:.1f} minutes, at the speeds recorded in results/.": not totals["unknown"],
        "Evaluations (sampling and detecting) are not included where no earlier cell of the network gives their "
        "speed.": any(one.samples and one.evaluation_minutes is None for one in plan),
        f"More than {enough_workers(known)} workers do not help: the longest job takes {max(known, default=0):.1f} minutes. "
        f"Simulated with guesses: {ClusterConditions().summary}.": known,
        f"{blocked} cannot begin: runs with other settings lie in their folders (--root elsewhere).": blocked,
    }
    return [sentence for sentence, applies in sentences.items() if applies]


# --- status -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Status(Printed):
    """Every cell of the study: the paper's K_max, ours by both rules with 95% intervals, or not run."""

    #: Preset of the trainings: tiny, small or paper.
    preset: str = "small"
    #: Folder of the runs; of cells that are partly trained, the number of images seen is shown.
    root: Path = Path("runs/study")
    #: Folder of the records of finished cells.
    results: Path = Path("results")

    def run(self) -> None:
        look_up(self.preset, PRESETS, "preset")
        paths = StudyPaths(self.root, self.results)
        rows = rows_of(read_records(paths), self.preset)
        for row in rows:
            folder = paths.runs / job_name(row["cell"], row["preset"], 0)
            row["images_trained"] = None if row["run"] else images_seen(folder) or None
        run = sum(row["run"] for row in rows)
        record = {"preset": self.preset, "cells": rows, "run": run, "of": len(CELLS)}
        words = f"{run} of {len(rows)} cells were run at `{self.preset}`."
        publish(record, self.json, None, status_table(rows), words)


def status_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    whole = [Column(head, no_wrap=True) for head in ("cell", "ours,\npaper rule", "ours,\nstrict rule")]
    head = (whole[0], "paper", *whole[1:], "K = 0,\npaper", "K = 0,\nours", "images")
    return table_of([head, *map(_status_cells, rows)])


def _status_cells(row: Mapping[str, Any]) -> list[str]:
    paper = row["paper"]
    known, at_zero = [row["cell"], paper["text"]], paper["at_zero"] or ""
    if not row["run"]:
        seen = row.get("images_trained")
        return [*known, NOT_RUN, "", at_zero, "", f"{format_count(seen)} so far" if seen else ""]
    k_max = row["k_max"]
    ours = [k_max_lines(k_max[rule]) for rule in ("paper", "strict")]
    return [*known, *ours, at_zero, span_words(row["at_zero"]), format_count(max(row["images_seen"]))]
