"""Where a number comes from: versions, hardware, date and commit, stored beside every result."""

import datetime
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

from tessera.version import __version__


def commit() -> str | None:
    """Short hash of the checkout this package lives in (with `+` when files differ), if there is one.

    For a copy without its history, the environment variable TESSERA_COMMIT names it.
    """
    if commit_from_environment := os.environ.get("TESSERA_COMMIT"):
        return commit_from_environment
    here = Path(__file__).parent

    def git(*words: str) -> str:
        return subprocess.run(
            ["git", "-C", str(here), *words], capture_output=True, text=True, check=True, timeout=5
        ).stdout.strip()

    try:
        git("ls-files", "--error-unmatch", Path(__file__).name)  # else the checkout is of some other project
        return git("rev-parse", "--short", "HEAD") + ("+" if git("status", "--porcelain", "-uno") else "")
    except (OSError, subprocess.SubprocessError):
        return None


def device_name(device) -> str:
    import torch

    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    threads = torch.get_num_threads()
    return f"{device.type} ({platform.machine()}, {threads} thread{'' if threads == 1 else 's'})"


def provenance(device=None) -> dict[str, Any]:
    """The facts every published number carries."""
    import numpy
    import torch

    return {
        "tessera": __version__,
        "commit": commit(),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "device": device_name(device) if device is not None else None,
    }
