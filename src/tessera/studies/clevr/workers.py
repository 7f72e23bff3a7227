"""Several processes share the jobs of the study: while one compiles or evaluates, others train."""

import multiprocessing
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from queue import Empty
from typing import Any, NamedTuple

import torch

from tessera.console import progress, say
from tessera.evaluation.calibrate import load_calibration
from tessera.evaluation.detector import load_detector
from tessera.evaluation.pipeline import Evaluator
from tessera.files import make_folder
from tessera.studies.clevr.records import write_study
from tessera.studies.clevr.reproduce import Clock, Keep, Study
from tessera.studies.clevr.runs import StudyPaths, StudyRun
from tessera.studies.clevr.tables import outcome_words

_CONTROL = "nvidia-cuda-mps-control"
_PIPES = ("CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY")
_PROBE = "import torch; torch.zeros(1, device='cuda').add_(1)"


class Task(NamedTuple):
    """What every worker gets."""

    paths: StudyPaths
    device: torch.device
    minutes: float | None
    keep: Keep
    threads: int

    @property
    def logs(self) -> Path:
        return self.paths.runs / "workers"


class WorkerReport(NamedTuple):
    """A worker on one job."""

    job: str
    finished: bool
    trouble: str | None
    words: list[str]


def run_together(task: Task, jobs: Sequence[StudyRun], workers: int) -> tuple[bool, dict[str, str]]:
    """Whether every job was finished, and which of them failed, by name."""
    todo = [job for job in jobs if job.record(task.paths) is None]
    workers = min(workers, len(todo))
    if not workers:
        return True, {}
    spawn = multiprocessing.get_context("spawn")
    waiting, reports = spawn.Queue(), spawn.Queue()
    for entry in [*todo, *[None] * workers]:
        waiting.put(entry)
    with _shared_gpu(task.device):
        crew = [spawn.Process(target=work, args=(task, n, waiting, reports)) for n in range(workers)]
        for worker in crew:
            worker.start()
        received = listen(crew, reports, len(todo))
        for worker in crew:
            worker.join()
    write_study(task.paths)
    failed = {report.job: report.trouble for report in received if report.trouble}
    lost = [worker.exitcode for worker in crew if worker.exitcode]
    if lost:
        failed["a worker"] = f"ended with code {lost[0]}; {task.logs} says why."
    return not lost and sum(report.finished for report in received) == len(todo), failed


def listen(crew: Sequence[Any], reports: Any, expected: int) -> list[WorkerReport]:
    """Reports until all have come or all workers have left."""
    received: list[WorkerReport] = []
    with progress("jobs", expected) as advance:
        while len(received) < expected and (any(worker.is_alive() for worker in crew) or not reports.empty()):
            try:
                received.append(reports.get(timeout=0.5))
            except (Empty, KeyboardInterrupt):  # an interruption reaches the workers too, and they put their work away
                continue
            for line in received[-1].words:
                say(line)
            advance()
    return received


def work(task: Task, number: int, waiting: Any, reports: Any) -> None:
    """One job after another until none is waiting or the time is up."""
    path = make_folder(task.logs) / f"worker{number}.log"
    with open(path, "a", buffering=1) as log:
        os.dup2(log.fileno(), sys.stderr.fileno())
        torch.set_num_threads(task.threads)
        evaluator = Evaluator(load_detector(device=task.device), load_calibration(), task.device)
        study = Study(task.paths, evaluator, Clock(task.minutes), task.keep)
        while (job := waiting.get()) is not None:
            finished = study.run([job])
            record = job.record(task.paths)
            words = [outcome_words(job, record)] if record else []
            reports.put(WorkerReport(job.name, finished, study.failed.get(job.name), words))
            if not finished:
                break


@contextmanager
def _shared_gpu(device: torch.device) -> Iterator[bool]:
    """Let processes compute side by side where NVIDIA's MPS can be had; elsewhere they take turns."""
    control = shutil.which(_CONTROL)
    if device.type != "cuda" or control is None or _PIPES[0] in os.environ:
        yield False
        return
    with tempfile.TemporaryDirectory(prefix="tessera-mps-", ignore_cleanup_errors=True) as folder:
        os.environ.update({name: str(make_folder(Path(folder) / name.lower())) for name in _PIPES})
        started = call(control, "-d") and call(sys.executable, "-c", _PROBE)
        if not started:
            stop(control)
        try:
            yield started
        finally:
            stop(control)


def call(*words: str, **more: Any) -> bool:
    return subprocess.run(words, capture_output=True, timeout=120, **more).returncode == 0


def stop(control: str) -> None:
    if _PIPES[0] in os.environ:
        call(control, input=b"quit\n")
        for name in _PIPES:
            del os.environ[name]
