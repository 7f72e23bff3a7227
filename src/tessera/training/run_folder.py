"""Training in a run folder: config.json, log.jsonl, snapshots/, samples/, results/. The same command continues it.

A full state (weights, optimizer, averages) is written whole or not at all and carries its own checksum; training
continues from the newest undamaged one. Averages are stored in half precision at every snapshot, from which
`models.run_snapshots` reconstructs averages of any other length.
"""

import fcntl
import json
import math
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any, TypedDict

import torch
from torch import Tensor

from tessera.config import Settings, first_difference, format_count, seal_of, settings_from
from tessera.console import say
from tessera.errors import UserError
from tessera.files import atomic, check_types, fits_type, make_folder, read_lines, reading, write_json
from tessera.models.build import build_denoiser, conditioner_for
from tessera.models.checkpoint_io import read_checkpoint, read_facts, to_half, write_checkpoint
from tessera.models.model_folder import current_weight_name
from tessera.models.run_snapshots import average_file, run_settings
from tessera.scenes import Scenes
from tessera.training.distributed import ALONE, ProcessGroup
from tessera.training.stream import NumberedSamples, Stream
from tessera.training.trainer import Trainer, TrainingStep, train
from tessera.version import __version__

_STATES_KEPT = 2  # the newest, and one to fall back on
_LOG_STEPS = 20  # steps between two lines of the log, and between two checks for NaN


@dataclass(frozen=True)
class RunOutcome:
    """How a call of `train_run` ended."""

    images_seen: int
    seconds: float
    finished: bool
    interrupted: bool = False  # by Ctrl-C or SIGTERM
    record: dict[str, Any] = field(default_factory=dict)  # the last line of the log


class _StateFacts(TypedDict):
    images_seen: int
    losses: list[float]
    settings: dict[str, Any]


class RunFolder:
    """The files of one run."""

    def __init__(self, folder: Path):
        self.folder = Path(folder)
        self.config, self.log = self.folder / "config.json", self.folder / "log.jsonl"
        self.snapshots, self.samples = self.folder / "snapshots", self.folder / "samples"
        self.results = self.folder / "results"
        self.losses: list[float] = []  # of the resumed state, since the last line of the log

    # -- opening -------------------------------------------------------------------------------------------

    def prepare(self, settings: Settings) -> None:
        """Create the folder, or check that the run in it has the same settings."""
        self.check(settings)
        for path in (self.folder, self.snapshots, self.samples, self.results):
            make_folder(path)
        write_json(self.config, {"tessera": __version__, **settings.plain()})

    def check(self, settings: Settings) -> None:
        if difference := self.difference(settings):
            name, old, new = difference
            raise UserError(
                f"{self.folder} holds another run: its {name} is {_format_value(old)}, not {_format_value(new)}; "
                "choose another folder or the same setting."
            )

    def difference(self, settings: Settings) -> tuple[str, Any, Any] | None:
        """The first setting in which the run in this folder, if any, differs: its name, old and new value."""
        known = [self.settings()] if self.config.exists() else []
        # config.json can be lost or exchanged, but not what the newest state says it was trained with.
        sealed = [read_facts(path).get("settings") for path in self.states()[:1]]
        known += [settings_from(one) for one in sealed if one]
        return next(filter(None, (first_difference(old, settings) for old in known)), None)

    def settings(self) -> Settings:
        return run_settings(self.folder)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Lock the folder for this process; the system unlocks it when the process ends, however it ends."""
        with open(make_folder(self.folder) / ".lock", "w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise UserError(f"Another process is training in {self.folder}.") from None
            yield

    # -- full states ---------------------------------------------------------------------------------------

    def states(self) -> list[Path]:
        """Newest first."""
        return sorted(self.snapshots.glob("state-*.safetensors"), reverse=True)

    def save_state(self, trainer: Trainer, losses: Sequence[Tensor] = ()) -> Path:
        """`losses` are those of the steps since the last line of the log."""
        path = self.snapshots / f"state-{trainer.images_seen:012d}.safetensors"
        facts = {"images_seen": trainer.images_seen, "losses": [float(loss) for loss in losses]}
        sealed = {"settings": self.settings().plain()} if self.config.exists() else {}
        write_checkpoint(path, trainer.tensors(), facts | sealed)
        older = self.states()[1:]
        # A state of an interruption goes first, so that a run leaves the same files however often it was interrupted.
        every, batch = trainer.settings.checkpoint, trainer.settings.batch
        regular = [old for old in older if crossed(int(old.stem.partition("-")[2]), batch, every)]
        for old in older:
            if old not in (regular or older)[: _STATES_KEPT - 1]:
                old.unlink()
        return path

    def resume(self, trainer: Trainer, on_message: Callable[[str], None] = say) -> Path | None:
        """Load the newest undamaged state, with a message for each damaged one that is skipped."""
        states = self.states()
        for path, older in zip_longest(states, states[1:]):
            try:
                tensors, facts = read_checkpoint(path)
                current = {current_weight_name(name): tensor for name, tensor in tensors.items()}
                check_types(_StateFacts, facts, f"The facts of {path}")
                with reading(path):
                    trainer.load(current, facts["images_seen"])
                self.losses = facts.get("losses", [])
                return path
            except (UserError, KeyError) as error:
                then = f"falling back to {older.name}" if older else "beginning anew, as there is no other"
                on_message(f"Skipping {path.name}, {then}: {error}")
        return None

    # -- averages ------------------------------------------------------------------------------------------

    def save_averages(self, trainer: Trainer) -> None:
        for std in trainer.averages.stds:
            facts = {"images_seen": trainer.images_seen, "std": std, "seal": seal_of(self.settings())}
            path = average_file(self.folder, trainer.images_seen, std)
            write_checkpoint(path, to_half(trainer.averages.state(std)), facts)

    def has_no_samples(self, trainer: Trainer) -> bool:
        """Whether averages were stored at this moment of training, but no image was sampled with them."""
        seen, std = trainer.images_seen, trainer.averages.stds[0]
        return average_file(self.folder, seen, std).exists() and not [*self.samples.glob(f"{seen:012d}.*")]

    # -- log -----------------------------------------------------------------------------------------------

    def records(self) -> list[dict[str, Any]]:
        """Lines of the log, without damaged ones, such as one cut short by a kill."""
        lines = read_lines(self.log) if self.log.exists() else []
        return [line for line in lines if isinstance(line, dict) and fits_type(line.get("images_seen"), int)]

    def trim_log(self, images_seen: int) -> None:
        """Remove what was logged after the state a run resumes from: it will be logged again."""
        kept = [record for record in self.records() if record["images_seen"] <= images_seen]
        with atomic(self.log) as temporary:
            temporary.write_text("".join(json.dumps(record) + "\n" for record in kept))

    def write_record(self, record: dict[str, Any]) -> None:
        try:
            with open(self.log, "a") as file:
                file.write(json.dumps(record, allow_nan=False) + "\n")
        except OSError as error:
            raise UserError(f"Could not write {self.log}: {error.strerror or error}.") from error


def _format_value(value: Any) -> str:
    return f"`{','.join(map(str, value)) if isinstance(value, tuple) else value}`"


# -- training in a folder ----------------------------------------------------------------------------------


def _ignore(*values: Any) -> None:
    """The callback where none is given."""


def _stream_for(settings: Settings) -> Stream:
    """The training images of a run."""
    data = settings.data
    return Stream(Scenes(objects=data.objects), data.size, conditioner_for(settings), data.seed, data.quality)


def train_run(
    settings: Settings,
    folder: Path,
    *,
    device=None,
    group: ProcessGroup = ALONE,
    trainer: Trainer | None = None,
    stream: NumberedSamples | None = None,
    minutes: float | None = None,
    on_record: Callable[[dict[str, Any]], Any] = _ignore,
    on_snapshot: Callable[[RunFolder, Trainer], Any] = _ignore,
    on_step: Callable[[int], Any] = _ignore,
    on_message: Callable[[str], None] = say,
) -> RunOutcome:
    """Train until the total, from the newest state in `folder` on, or pause after so many `minutes`.

    A `trainer` of an earlier run with the same network and training settings saves compiling them again. A `stream`
    of other images replaces the rendered scenes of the settings.
    """
    run, message = RunFolder(folder), on_message if group.leads else _ignore
    with run.alone() if group.leads else nullcontext(), gentle_stop() as stop:
        if group.leads:
            run.prepare(settings)
        group.wait()
        if trainer is None:
            trainer = Trainer(build_denoiser(settings), settings.training, device, group)
        else:
            trainer.restart(build_denoiser(settings))
        if state := run.resume(trainer, message):
            message(f"Carrying on from {state.name} ({format_count(trainer.images_seen)} images).")
        if group.leads:
            run.trim_log(trainer.images_seen)
        group.wait()
        log = RunLog(run, trainer, on_record, on_snapshot)
        if state and group.leads and run.has_no_samples(trainer):  # a kill came between the state and its samples
            on_snapshot(run, trainer)
        deadline = math.inf if minutes is None else time.monotonic() + 60 * minutes
        for step in train(trainer, stream or _stream_for(settings)):
            stop.patient = True
            log.after_step(step)
            on_step(step.images_seen)
            # Processes must stop after the same step. Agreeing on it makes them wait, so they do so rarely.
            agree_now = group.world == 1 or step.images_seen // settings.training.batch % _LOG_STEPS == 0
            if agree_now and group.agree(stop.requested or time.monotonic() > deadline):
                break
        return replace(log.finish(), interrupted=stop.requested)


class RunLog:
    """Everything after a step besides training: log lines, the check for NaN, snapshots, full states."""

    def __init__(
        self, run: RunFolder, trainer: Trainer, on_record: Callable = _ignore, on_snapshot: Callable = _ignore
    ):
        self.run, self.trainer = run, trainer
        self.on_record, self.on_snapshot = on_record, on_snapshot
        self.start = self.last_line = time.monotonic()
        self.losses = [torch.tensor(loss, device=trainer.device) for loss in run.losses]  # since the last line
        self.record: dict[str, Any] = {}
        self.saved_at = trainer.images_seen

    def after_step(self, step: TrainingStep) -> None:
        settings, leads = self.trainer.settings, self.trainer.group.leads
        done = step.images_seen >= settings.total
        snapshot = done or crossed(step.images_seen, settings.batch, settings.snapshot)
        checkpoint = snapshot or crossed(step.images_seen, settings.batch, settings.checkpoint)
        self.losses.append(step.loss)
        if checkpoint or step.images_seen // settings.batch % _LOG_STEPS == 0:
            self._write_line(step)
        if checkpoint:  # the check comes first: no bad state is ever written
            self._check("A weight", self.trainer.finite())
        if snapshot and leads:
            self.run.save_averages(self.trainer)
        if checkpoint:
            self._save_state()
        if snapshot and leads:  # last: if it fails, the state is safe
            self.on_snapshot(self.run, self.trainer)

    def finish(self) -> RunOutcome:
        """Save where training stopped, at the end or before."""
        images_seen = self.trainer.images_seen
        if self.saved_at != images_seen:
            if self.losses:
                self._check("The loss", torch.stack(self.losses).mean().isfinite())
            self._check("A weight", self.trainer.finite())
            self._save_state()
        self.trainer.group.wait()
        done = images_seen >= self.trainer.settings.total
        return RunOutcome(images_seen, time.monotonic() - self.start, done, record=self.record)

    def _write_line(self, step: TrainingStep) -> None:
        # Reading the loss waits for the device, so it is read only here.
        mean, now = torch.stack(self.losses).mean(), time.monotonic()
        self._check("The loss", mean.isfinite())
        speed = len(self.losses) * self.trainer.settings.batch / max(now - self.last_line, 1e-9)
        self.record = {
            "images_seen": step.images_seen,
            "loss": round(float(mean), 6),
            "lr": step.lr,
            "images_per_second": round(speed, 1),
            "seconds": round(now - self.start, 3),
        }
        self.losses, self.last_line = [], now
        if self.trainer.group.leads:
            self.run.write_record(self.record)
            self.on_record(self.record)

    def _check(self, what: str, is_finite: bool | Tensor) -> None:
        if not is_finite:
            states = self.run.states()
            last = f"the last good state is {states[0]}" if states else "no state had been written yet"
            where = f"{what} became NaN or infinite by image {self.trainer.images_seen}"
            raise UserError(f"{where}; {last}. Try a smaller --training.lr.")

    def _save_state(self) -> None:
        if self.trainer.group.leads and self.saved_at != self.trainer.images_seen:
            self.run.save_state(self.trainer, self.losses)
        self.saved_at = self.trainer.images_seen


def crossed(images_seen: int, batch: int, every: int) -> bool:
    """Whether the last step passed a multiple of `every`."""
    return images_seen // every > (images_seen - batch) // every


@dataclass
class _Stop:
    """Whether the user requested a stop, and whether there is a step to wait for."""

    requested: bool = False
    patient: bool = False


@contextmanager
def gentle_stop() -> Iterator[_Stop]:
    """After Ctrl-C or SIGTERM the step is finished and the state saved; a second one interrupts at once.

    So does the first until training sets `patient`: before its first step there is nothing to save, and compiling that
    step may take minutes.
    """
    stop = _Stop()

    def request(number, frame):
        if stop.requested or not stop.patient:
            raise KeyboardInterrupt
        stop.requested = True

    try:
        before = {kind: signal.signal(kind, request) for kind in (signal.SIGINT, signal.SIGTERM)}
    except ValueError:  # signals can be handled in the main thread only
        before = {}
    try:
        yield stop
    finally:
        for kind, handler in before.items():
            signal.signal(kind, handler)
