"""Processes that share one GPU compute side by side where NVIDIA's MPS can be had: while one compiles, others train."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from tessera.files import make_folder

_CONTROL = "nvidia-cuda-mps-control"
_PIPES = ("CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY")
_PROBE = "import torch; torch.zeros(1, device='cuda').add_(1)"


@contextmanager
def shared_gpu(device: torch.device) -> Iterator[bool]:
    """Let processes compute side by side where NVIDIA's MPS can be had; elsewhere they take turns."""
    control = shutil.which(_CONTROL)
    if device.type != "cuda" or control is None or _PIPES[0] in os.environ:
        yield False
        return
    with tempfile.TemporaryDirectory(prefix="tessera-mps-", ignore_cleanup_errors=True) as folder:
        os.environ.update({name: str(make_folder(Path(folder) / name.lower())) for name in _PIPES})
        started = _call(control, "-d") and _call(sys.executable, "-c", _PROBE)
        if not started:
            _stop(control)
        try:
            yield started
        finally:
            _stop(control)


def _call(*words: str, **more: Any) -> bool:
    return subprocess.run(words, capture_output=True, timeout=120, **more).returncode == 0


def _stop(control: str) -> None:
    if _PIPES[0] in os.environ:
        _call(control, input=b"quit\n")
        for name in _PIPES:
            del os.environ[name]
