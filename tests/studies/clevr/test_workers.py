"""Several jobs at once: the same records as one after another, and a GPU shared only where it can be."""

import os
import stat

import pytest
import torch

from tessera.files import read_json
from tessera.studies.clevr import workers as crew
from tessera.studies.clevr.workers import _PIPES, WorkerReport, _shared_gpu, listen


@pytest.mark.slow
def test_two_processes_leave_the_records_of_one(call, minute, tmp_path):
    small = ["--total", "8", "--k", "0-1", "--each", "1", "--steps", "2", "--seeds", "1"]
    for name, more in {"together": ["--parallel", "2"], "alone": []}.items():
        locations = ["--root", tmp_path / name / "runs", "--results", tmp_path / name]
        words = ["--only", "exp1-M1,exp2L-M1", *minute, *small, *locations, *more]
        assert call("reproduce", "fig4", *words) == 0
    for record in ("exp1-M1-tiny-seed0", "exp2L-M1-tiny-seed0"):
        one, other = (read_json(tmp_path / name / "study" / f"{record}.json") for name in ("alone", "together"))
        assert one["result"] == other["result"] and one["training"]["loss"] == other["training"]["loss"]
    assert (tmp_path / "together" / "study.json").is_file()


class Gone:
    """A worker that has left, and a queue with what it said before."""

    def __init__(self, said):
        self.said = list(said)

    def is_alive(self):
        return False

    def empty(self):
        return not self.said

    def get(self, timeout):
        return self.said.pop(0)


def test_what_a_worker_said_before_it_died_is_heard_and_no_more_is_waited_for(capsys):
    worker = Gone([WorkerReport("exp1-M1", True, None, ["exp1-M1: K_max 1"])])
    assert [report.job for report in listen([worker], worker, 3)] == ["exp1-M1"]
    assert "K_max 1" in capsys.readouterr().err


@pytest.fixture
def daemon(tmp_path, monkeypatch):
    """A stand-in for NVIDIA's control program that writes down how it is called."""
    program = tmp_path / crew._CONTROL
    program.write_text(f'#!/bin/sh\necho "$1$(cat)" >> {tmp_path}/calls\n')
    program.chmod(program.stat().st_mode | stat.S_IEXEC)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return tmp_path / "calls"


@pytest.mark.parametrize(("probe", "works"), [("pass", True), ("raise SystemExit(1)", False)])
def test_a_gpu_is_shared_while_it_is_needed_and_only_if_it_works(daemon, monkeypatch, probe, works):
    monkeypatch.setattr(crew, "_PROBE", probe)
    with _shared_gpu(torch.device("cuda")) as shared:
        assert shared is works and all((name in os.environ) is works for name in _PIPES)
    assert daemon.read_text().split() == ["-d", "quit"] and not any(name in os.environ for name in _PIPES)


def test_a_cpu_needs_no_sharing(daemon):
    with _shared_gpu(torch.device("cpu")) as shared:
        assert not shared and not daemon.exists()
