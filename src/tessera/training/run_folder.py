"""A run is one folder: config.json, log.jsonl, snapshots/, samples/, results/. The same command carries on.

A full state (weights, optimizer, averages) is written whole or not at all and carries its own checksum; the
newest undamaged one counts. Averages are kept in half precision at every snapshot, so that any other length
can be had afterwards.
"""

import fcntl
import json
import math
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tessera.config import Settings, first_difference, format_count
from tessera.console import say
from tessera.errors import UserError
from tessera.files import atomic, make_folder, read_lines, write_json
from tessera.models.build import build_denoiser, conditioner_for
from tessera.models.checkpoint_io import halved, read_sealed, write_sealed
from tessera.models.run_snapshots import average_file, run_settings
from tessera.scenes import Scenes
from tessera.training.distributed import ALONE, ProcessGroup
from tessera.training.stream import Stream
from tessera.training.trainer import Trainer, train
from tessera.version import __version__

STATES_KEPT = 2  # the newest, and one to fall back on
LOG_STEPS = 20  # steps between two lines of the log, and between two looks for NaN
FREE = {  # settings that may change when a run is carried on: they leave what is computed as it is
    f"training.{name}"
    for name in ("total", "snapshot", "checkpoint", "strategy", "render_batch", "micro_batch")
}
TOTAL = "training.total"  # not free where the rate falls to 0 toward it


@dataclass(frozen=True)
class Outcome:
    """How a call of `train_run` ended."""

    images_seen: int
    seconds: float
    finished: bool
    interrupted: bool = False  # by Ctrl-C or SIGTERM
    record: dict[str, Any] = field(default_factory=dict)  # the last line of the log


class RunFolder:
    """The files of one run."""

    def __init__(self, folder: Path):
        self.folder = Path(folder)
        self.config, self.log = self.folder / "config.json", self.folder / "log.jsonl"
        self.snapshots, self.samples = self.folder / "snapshots", self.folder / "samples"
        self.results = self.folder / "results"

    # -- opening -------------------------------------------------------------------------------------------

    def prepare(self, settings: Settings) -> None:
        """Make the folder, or check that the run in it is this one."""
        self.check(settings)
        for path in (self.folder, self.snapshots, self.samples, self.results):
            make_folder(path)
        write_json(self.config, {"tessera": __version__, **settings.plain()})

    def check(self, settings: Settings) -> None:
        if difference := self.difference(settings):
            name, was, now = difference
            raise UserError(
                f"{self.folder} holds another run: its {name} is {shown(was)}, not {shown(now)}; "
                "choose another folder or the same setting."
            )

    def difference(self, settings: Settings) -> tuple[str, Any, Any] | None:
        """The first setting in which the run that lies here, if any, is another one; how it is, and should be."""
        free = FREE - {TOTAL} if settings.training.cooldown else FREE
        return first_difference(self.settings(), settings, free) if self.config.exists() else None

    def settings(self) -> Settings:
        return run_settings(self.folder)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Hold the folder for this process; the system lets go when the process ends, however it ends."""
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

    def save_state(self, trainer: Trainer) -> Path:
        path = self.snapshots / f"state-{trainer.images_seen:012d}.safetensors"
        write_sealed(path, trainer.tensors(), {"images_seen": trainer.images_seen})
        for old in self.states()[STATES_KEPT:]:
            old.unlink()
        return path

    def resume(self, trainer: Trainer, on_message: Callable[[str], None] = say) -> Path | None:
        """Load the newest undamaged state, saying so when a newer one had to be passed over."""
        states = self.states()
        for path, before in zip_longest(states, states[1:]):
            try:
                tensors, facts = read_sealed(path)
                trainer.load(tensors, facts["images_seen"])
                return path
            except (UserError, KeyError) as error:
                then = f"going back to {before.name}" if before else "beginning anew, as there is no other"
                on_message(f"Passing over {path.name}, {then}: {error}")
        return None

    # -- averages ------------------------------------------------------------------------------------------

    def save_averages(self, trainer: Trainer) -> None:
        for std in trainer.averages.stds:
            facts = {"images_seen": trainer.images_seen, "std": std}
            path = average_file(self.folder, trainer.images_seen, std)
            write_sealed(path, halved(trainer.averages.state(std)), facts)

    # -- log -----------------------------------------------------------------------------------------------

    def records(self) -> list[dict[str, Any]]:
        """Lines of the log; a line cut short by a kill is no line."""
        return read_lines(self.log) if self.log.exists() else []

    def trim_log(self, images_seen: int) -> None:
        """Forget what was logged after the state a run resumes from: it will be logged again."""
        kept = [record for record in self.records() if record["images_seen"] <= images_seen]
        with atomic(self.log) as temporary:
            temporary.write_text("".join(json.dumps(record) + "\n" for record in kept))

    def write_record(self, record: dict[str, Any]) -> None:
        try:
            with open(self.log, "a") as file:
                file.write(json.dumps(record, allow_nan=False) + "\n")
        except OSError as error:
            raise UserError(f"Could not write {self.log}: {error.strerror or error}.") from error


def shown(value: Any) -> str:
    return f"`{','.join(map(str, value)) if isinstance(value, tuple) else value}`"


# -- training in a folder ----------------------------------------------------------------------------------


def stream_for(settings: Settings) -> Stream:
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
    minutes: float | None = None,
    on_record: Callable[[dict[str, Any]], None] | None = None,
    on_snapshot: Callable[[RunFolder, Trainer], None] | None = None,
    on_step: Callable[[int], None] | None = None,
    on_message: Callable[[str], None] = say,
) -> Outcome:
    """Train until the total, from the newest state in `folder` on. `minutes` pauses before.

    A `trainer` of an earlier run with the same network and training settings saves compiling them again.
    """
    run = RunFolder(folder)
    with run.alone() if group.leads else unlocked(), gentle_stop() as stop:
        if group.leads:
            run.prepare(settings)
        group.wait()
        if trainer is None:
            trainer = Trainer(build_denoiser(settings), settings.training, device, group)
        else:
            trainer.restart(build_denoiser(settings))
        begun = run.resume(trainer, on_message if group.leads else silent)
        if begun and group.leads:
            on_message(f"Carrying on from {begun.name} ({format_count(trainer.images_seen)} images).")
        if group.leads:
            run.trim_log(trainer.images_seen)
        group.wait()
        keeper = RunLog(run, trainer, on_record, on_snapshot)
        deadline = math.inf if minutes is None else time.monotonic() + 60 * minutes
        for step in train(trainer, stream_for(settings)):
            stop.patient = True
            keeper.after(step.loss, step.lr)
            if on_step:
                on_step(step.images_seen)
            # Asking all processes costs them a wait, so several ask each other only now and then.
            prompt = group.world == 1 or step.images_seen // settings.training.batch % LOG_STEPS == 0
            if prompt and group.agree(stop.requested or time.monotonic() > deadline):
                break
        return replace(keeper.finish(), interrupted=stop.requested)


class RunLog:
    """What happens after each step besides training: log, watch for NaN, snapshots, full states."""

    def __init__(self, run: RunFolder, trainer: Trainer, on_record=None, on_snapshot=None):
        self.run, self.trainer = run, trainer
        self.on_record, self.on_snapshot = on_record, on_snapshot
        self.start = self.mark = time.monotonic()
        self.losses: list[Tensor] = []
        self.record: dict[str, Any] = {}
        self.saved_at = trainer.images_seen

    def after(self, loss: Tensor, lr: float) -> None:
        settings, seen = self.trainer.settings, self.trainer.images_seen
        self.losses.append(loss)
        done = seen >= settings.total
        snapshot = done or crossed(seen, settings.batch, settings.snapshot)
        checkpoint = snapshot or crossed(seen, settings.batch, settings.checkpoint)
        if checkpoint or seen // settings.batch % LOG_STEPS == 0:
            self.log(lr)
        if checkpoint:
            self.check_weights()
        keeps = snapshot and self.trainer.group.leads
        if keeps:
            self.run.save_averages(self.trainer)
        if checkpoint:
            self.save()
        if keeps and self.on_snapshot:  # last: whatever goes wrong in it, the state is safe
            self.on_snapshot(self.run, self.trainer)

    def log(self, lr: float) -> None:
        """One line for the steps since the last one. Looking at the loss waits for the device, so rarely."""
        mean, now = torch.stack(self.losses).mean(), time.monotonic()
        self.check_loss(mean)
        settings, seen = self.trainer.settings, self.trainer.images_seen
        speed = len(self.losses) * settings.batch / max(now - self.mark, 1e-9)
        self.record = {
            "images_seen": seen,
            "loss": round(float(mean), 6),
            "lr": lr,
            "images_per_second": round(speed, 1),
            "seconds": round(now - self.start, 3),
        }
        self.losses, self.mark = [], now
        if self.trainer.group.leads:
            self.run.write_record(self.record)
            if self.on_record:
                self.on_record(self.record)

    def check_loss(self, mean: Tensor) -> None:
        if not bool(torch.isfinite(mean)):
            self.give_up("The loss became NaN or infinite")

    def check_weights(self) -> None:
        """No bad state is ever written."""
        if not self.trainer.finite():
            self.give_up("A weight became NaN or infinite")

    def give_up(self, what: str) -> None:
        good = self.run.states()
        last = f"the last good state is {good[0]}" if good else "no state had been written yet"
        raise UserError(f"{what} by image {self.trainer.images_seen}; {last}. Try a smaller --training.lr.")

    def save(self) -> None:
        if self.trainer.group.leads and self.saved_at != self.trainer.images_seen:
            self.run.save_state(self.trainer)
        self.saved_at = self.trainer.images_seen

    def finish(self) -> Outcome:
        """Keep where training stopped, whether at the end or before."""
        if self.saved_at != self.trainer.images_seen:
            if self.losses:
                self.check_loss(torch.stack(self.losses).mean())
            self.check_weights()
            self.save()
        self.trainer.group.wait()
        seen = self.trainer.images_seen
        done = seen >= self.trainer.settings.total
        return Outcome(seen, time.monotonic() - self.start, done, record=self.record)


def crossed(seen: int, batch: int, every: int) -> bool:
    """Whether the last step passed a multiple of `every`."""
    return seen // every > (seen - batch) // every


@dataclass
class Stop:
    """What Ctrl-C has come to: asked for, and whether there is a step worth waiting for."""

    requested: bool = False
    patient: bool = False


@contextmanager
def gentle_stop() -> Iterator[Stop]:
    """Ctrl-C or SIGTERM lets the step finish and the state be saved; a second one does not wait.

    Nor does the first until training says it is `patient`: before its first step is done there is nothing to save,
    and compiling that step may take minutes.
    """
    stop = Stop()

    def remember(number, frame):
        if stop.requested or not stop.patient:
            raise KeyboardInterrupt
        stop.requested = True

    try:
        before = {kind: signal.signal(kind, remember) for kind in (signal.SIGINT, signal.SIGTERM)}
    except ValueError:  # not the main thread: signals belong to someone else
        before = {}
    try:
        yield stop
    finally:
        for kind, handler in before.items():
            signal.signal(kind, handler)


@contextmanager
def unlocked() -> Iterator[None]:
    yield


def silent(message: str) -> None:
    pass
