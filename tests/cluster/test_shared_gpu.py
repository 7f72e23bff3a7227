"""A GPU is shared only where it can be."""

import os
import stat

import pytest
import torch

from tessera.cluster import shared_gpu as sharing
from tessera.cluster.shared_gpu import _PIPES, shared_gpu


@pytest.fixture
def daemon(tmp_path, monkeypatch):
    """A stand-in for NVIDIA's control program that writes down how it is called."""
    program = tmp_path / sharing._CONTROL
    program.write_text(f'#!/bin/sh\necho "$1$(cat)" >> {tmp_path}/calls\n')
    program.chmod(program.stat().st_mode | stat.S_IEXEC)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return tmp_path / "calls"


@pytest.mark.parametrize(("probe", "works"), [("pass", True), ("raise SystemExit(1)", False)])
def test_a_gpu_is_shared_while_it_is_needed_and_only_if_it_works(daemon, monkeypatch, probe, works):
    monkeypatch.setattr(sharing, "_PROBE", probe)
    with shared_gpu(torch.device("cuda")) as shared:
        assert shared is works and all((name in os.environ) is works for name in _PIPES)
    assert daemon.read_text().split() == ["-d", "quit"] and not any(name in os.environ for name in _PIPES)


def test_a_cpu_needs_no_sharing(daemon):
    with shared_gpu(torch.device("cpu")) as shared:
        assert not shared and not daemon.exists()
