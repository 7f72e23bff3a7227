"""Independent commands over many processes or machines, on dask.distributed.

A piece of work is a `tessera` command. A task starts it as a subprocess, so that a crash costs this piece alone, and the
scheduler hands the pieces of a worker that died to others. What a command wrote stays on a folder that all machines share;
it is the record of what is finished, and neither the scheduler nor the driver has to survive.
"""

import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.live import Live
from rich.table import Table

from tessera.console import NARROW, say, stderr
from tessera.errors import UserError, needs_extra
from tessera.files import make_folder

RETRIES = 3  # of a piece that was killed
WORKERS_LOST = 10  # to one piece, before it is believed to be what kills them
_CONNECTING = 60  # seconds to wait for a scheduler
_GPU = "GPU"  # what a worker with an accelerator offers, `dask worker --resources GPU=1`


@dataclass(frozen=True)
class Piece:
    """One command, and its name, which no other piece has."""

    name: str
    words: tuple[str, ...]
    program: tuple[str, ...] = ("-m", "tessera.cluster.child")  # what Python runs; it ends when its stdin closes


@dataclass(frozen=True)
class PieceOutcome:
    """How a piece ended: its exit code, and its last line on stderr."""

    name: str
    code: int
    message: str = ""


class PieceKilled(Exception):
    """The process of a piece ended by a signal; another attempt may succeed."""


def run_piece(piece: Piece, logs: str, deadline: float | None = None, threads: int | None = None) -> PieceOutcome:
    """Run a command to its end, in a process of its own. This is the task that a worker gets."""
    words = list(piece.words)
    if deadline is not None:
        minutes = (deadline - time.time()) / 60
        if minutes <= 0:
            return PieceOutcome(piece.name, 130)
        words += ["--minutes", f"{minutes:.3f}"]
    with open(make_folder(Path(logs)) / f"{piece.name}.log", "ab") as log:
        child = subprocess.Popen(
            [sys.executable, *piece.program, *words],
            stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=log, env=_environment(threads),
        )  # fmt: skip
        code = child.wait()
    last = last_line(Path(logs) / f"{piece.name}.log")
    if code < 0:
        raise PieceKilled(f"{piece.name} was ended by signal {-code}: {last}")
    return PieceOutcome(piece.name, code, last)


def _environment(threads: int | None) -> dict[str, str]:
    """As many threads as the driver says, and on a machine with several GPUs the one that is the worker's turn."""
    more = {} if threads is None else {"OMP_NUM_THREADS": str(threads)}
    gpu = _own_gpu()
    return {**os.environ, **more, **({} if gpu is None else {"CUDA_VISIBLE_DEVICES": gpu})}


def _own_gpu() -> str | None:
    from distributed import get_worker

    if "CUDA_VISIBLE_DEVICES" in os.environ:  # whoever started the worker has chosen
        return None
    import torch

    count, name = torch.cuda.device_count(), get_worker().name
    return str(name % count) if count > 1 and isinstance(name, int) else None


def last_line(path: Path) -> str:
    """The last line of a log, however long the log is."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, path.stat().st_size - 4096))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return ""
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


# --- the cluster ----------------------------------------------------------------------------------------------------


@contextmanager
def connected(where: str | None, workers: int = 1) -> Iterator[Any]:
    """A dask client: of the scheduler at an address or in a scheduler file, or of processes on this machine."""
    distributed = _dask()
    import dask

    with dask.config.set({"distributed.scheduler.allowed-failures": WORKERS_LOST}):
        if where is None:
            cluster = distributed.LocalCluster(
                n_workers=workers, threads_per_worker=1, resources={_GPU: 1}, dashboard_address=None,
                silence_logs=logging.CRITICAL,
            )  # fmt: skip
            with cluster, distributed.Client(cluster) as client:
                yield client
        else:
            with _remote_client(distributed, where) as client:
                yield client


def _dask() -> Any:
    with needs_extra("Several processes or machines need dask", "cluster", "distributed"):
        import distributed
    return distributed


def _remote_client(distributed: Any, where: str) -> Any:
    how = {"address": where} if "://" in where or not Path(where).exists() else {"scheduler_file": where}
    try:
        return distributed.Client(timeout=_CONNECTING, **how)
    except (OSError, ValueError, TimeoutError) as error:
        raise UserError(f"No dask scheduler answers at `{where}`: {error}") from error


def run_pieces(
    client: Any,
    pieces: Sequence[Piece],
    logs: Path,
    *,
    minutes: float | None = None,
    threads: int | None = None,
    on_outcome: Callable[[PieceOutcome], None] = lambda outcome: None,
) -> dict[str, PieceOutcome]:
    """Run every piece once on some worker, and report each when it ends.

    The scheduler owns each name: while one driver's pieces run, the same command started again joins them.
    """
    from distributed import fire_and_forget, wait

    deadline = None if minutes is None else time.time() + 60 * minutes
    names = {}
    for piece in pieces:
        future = client.submit(
            run_piece, piece, str(logs.resolve()), deadline, threads,
            key=piece.name, retries=RETRIES, pure=False, resources=_resources(client),
        )  # fmt: skip
        fire_and_forget(future)  # a cluster goes on when its driver is killed
        names[future] = piece.name
    outcomes: dict[str, PieceOutcome] = {}
    waiting = set(names)
    with _live_table(client, logs, len(pieces)) as show:
        while waiting:
            try:
                done = wait(waiting, timeout=1, return_when="FIRST_COMPLETED").done
            except TimeoutError:
                done = set()
            for future in done:
                outcome = _outcome_of(future, names[future])
                outcomes[outcome.name] = outcome
                on_outcome(outcome)
            waiting -= done
            show(outcomes)
    return outcomes


def _resources(client: Any) -> dict[str, float]:
    """Workers that offer GPUs take one piece for each; others take one for each of their threads."""
    known = client.scheduler_info()["workers"].values()
    return {_GPU: 1} if any(worker["resources"].get(_GPU) for worker in known) else {}


def _outcome_of(future: Any, name: str) -> PieceOutcome:
    if future.status == "finished":
        return future.result()
    if future.status == "cancelled":
        return PieceOutcome(name, 130, "cancelled")
    return PieceOutcome(name, 1, str(future.exception()))


@contextmanager
def _live_table(client: Any, logs: Path, total: int) -> Iterator[Callable[[Mapping[str, PieceOutcome]], None]]:
    """What every worker does now, on a terminal; elsewhere only a note if there are no workers."""
    idle = False  # when last looked at
    view = Live(console=stderr, transient=True) if stderr.is_terminal else nullcontext()
    with view as live:

        def show(outcomes: Mapping[str, PieceOutcome]) -> None:
            nonlocal idle
            working = client.processing()
            if not working and not idle:
                say("The cluster has no workers; the pieces wait for some.")
            idle = not working
            if live is not None:
                live.update(_table(working, logs, len(outcomes), total))

        yield show


def _table(working: Mapping[str, Sequence[Any]], logs: Path, done: int, total: int) -> Table:
    table = Table("worker", "piece", "its last line", title=f"{done} of {total} pieces ended", **NARROW)
    for worker, names in sorted(working.items()):
        for name in map(str, names[:1]):  # the others wait for it
            table.add_row(worker.rpartition("/")[2], name, last_line(logs / f"{name}.log"))
    return table
