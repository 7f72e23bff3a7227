"""The study on several workers: the records of one process, whoever is killed meanwhile."""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from study_fixtures import MINUTE, with_set
from tessera.files import read_json

pytest.importorskip("distributed")
CELLS = "exp1-M1,exp2L-M1"
SMALL = ["--total", "8", "--k", "0-1", "--each", "1", "--steps", "2", "--seeds", "2"]


def command(folder: Path, *more: str) -> list[str]:
    words = ["--only", CELLS, *MINUTE, *SMALL, "--root", folder / "runs", "--results", folder, *more]
    return with_set("reproduce", "fig4", *words)


def results_of(folder: Path) -> dict[str, dict]:
    """Everything in the records that does not say when and how fast."""
    records = {path.stem: read_json(path) for path in sorted((folder / "study").glob("*.json"))}
    return {
        name: {"result": record["result"], "loss": record["training"]["loss"], "settings": record["settings"]}
        for name, record in records.items()
    }


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The results of one process that does one job after another."""
    folder = tmp_path_factory.mktemp("alone")
    subprocess.run([sys.executable, "-m", "tessera", *map(str, command(folder))], check=True, capture_output=True)
    return results_of(folder)


@pytest.mark.slow
def test_two_processes_leave_the_records_of_one(alone, call, tmp_path):
    assert call(*command(tmp_path, "--parallel", "2")) == 0
    assert results_of(tmp_path) == alone
    assert (tmp_path / "study.json").is_file() and list((tmp_path / "figures").glob("fig4*"))


DOC = Path(__file__).parents[2] / "docs" / "scaling-out.md"


def documented(verb: str, folder: Path) -> list[str]:
    """The `dask` command of docs/scaling-out.md, as this Python runs it in another folder than /shared."""
    line = next(line for line in DOC.read_text().splitlines() if f"dask {verb} " in line)
    words = shlex.split(line.replace("/shared", str(folder)))
    return [sys.executable, "-m", *words[words.index("dask") :], "--no-dashboard"]


@pytest.fixture
def cluster(tmp_path):
    """A scheduler and two workers as the documentation starts them: the scheduler's file, and the workers' processes."""
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "cwd": tmp_path}
    processes = [subprocess.Popen([*documented("scheduler", tmp_path), "--port", "0"], **quiet)]
    file = tmp_path / "scheduler.json"
    while not file.is_file():
        time.sleep(0.1)
    processes += [subprocess.Popen(documented("worker", tmp_path), **quiet) for _ in range(2)]
    yield file, processes[1:]
    for process in processes:
        process.kill()
        process.wait()


@pytest.mark.slow
def test_a_worker_and_the_driver_are_killed(alone, cluster, tmp_path):
    """The cluster goes on without its driver; the same command joins it, and nothing is trained twice."""
    file, workers = cluster
    words = [sys.executable, "-m", "tessera", *map(str, command(tmp_path, "--cluster", str(file), "--json"))]
    driver = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    logs = tmp_path / "runs" / "workers"
    while len(list(logs.glob("*.log"))) < 2:
        time.sleep(0.1)
    os.kill(workers[0].pid, signal.SIGKILL)
    driver.kill()
    driver.wait()
    again = subprocess.run(words, capture_output=True, text=True, timeout=240)
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout)["finished"] is True
    assert results_of(tmp_path) == alone
    for name in alone:
        lines = (tmp_path / "runs" / name / "log.jsonl").read_text().splitlines()
        seen = [json.loads(line)["images_seen"] for line in lines]
        assert seen == sorted(set(seen)), f"{name} was trained twice: {seen}"


def test_an_address_without_a_scheduler_is_one_sentence(call, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("tessera.cluster.pool._CONNECTING", 1)
    assert call(*command(tmp_path, "--cluster", "tcp://127.0.0.1:1")) == 2
    assert "No dask scheduler answers at `tcp://127.0.0.1:1`" in capsys.readouterr().err
