"""What the programs of this folder share: options from a dataclass, errors in one sentence, timing, setting overrides.

A program holds a dataclass with its options and `run()`, and ends with `main = program(Options)`.
"""

import resource
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import tyro

from tessera.config import Settings, parse_changes, settings_for
from tessera.devices import peak_memory, synchronize
from tessera.errors import UserError


def run(options: type, words: Sequence[str] | None = None, name: str | None = None) -> None:
    """Parse the options and run them; bad input is one sentence on stderr and exit code 2."""
    name = name or Path(sys.argv[0]).name
    settings = (tyro.conf.FlagCreatePairsOff, tyro.conf.OmitArgPrefixes)
    try:
        given: Any = tyro.cli(options, args=words, prog=name, description=options.__doc__, config=settings)
        sys.exit(given.run() or 0)
    except UserError as error:
        print(f"{name}: {' '.join(str(error).split())}", file=sys.stderr)
        sys.exit(2)


def program(options: type) -> Callable[..., None]:
    """The `main` of a program with these options; `words` replace those of the command line."""

    def main(words: Sequence[str] | None = None) -> None:
        run(options, words)

    return main


# --- settings ---------------------------------------------------------------------------------------------------


def settings_with(experiment: str, preset: str, overrides: Sequence[str]) -> tuple[Settings, Mapping[str, Any]]:
    """The settings of an experiment with `training.batch=64` and the like on top, and these changes by group."""
    changes = parse_changes(overrides)
    return settings_for(experiment, preset, changes), changes


# --- timing -----------------------------------------------------------------------------------------------------


def timed(work: Callable[[], Any], repeats: int, device, advance: Callable) -> tuple[list[float], Any]:
    """Seconds of each repeat after one warm-up, and the last result."""
    times: list[float] = []
    for turn in range(repeats + 1):
        synchronize(device)
        began = time.perf_counter()
        result = work()
        synchronize(device)
        if turn:
            times.append(time.perf_counter() - began)
        advance()
    return times, result


def seconds(times: list[float]) -> dict[str, dict[str, float]]:
    return {"seconds": {"median": statistics.median(times), "min": min(times), "max": max(times)}}


def rate(count: int, times: list[float]) -> dict[str, float]:
    """Per second: the median, and the slowest and fastest repeat."""
    return {"median": count / statistics.median(times), "min": count / max(times), "max": count / min(times)}


def reset_peak_memory(device) -> None:
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def device_or_process_peak(device) -> int:
    """Largest memory on the device; on a CPU, of the whole process so far."""
    known = peak_memory(device)
    unit = 1 if sys.platform == "darwin" else 1024
    return known if known is not None else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
