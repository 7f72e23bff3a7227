"""Ablation of the fast paths of training: each one on and off in the same run, whole steps, rendering included.

    python tools/bench.py strategies exp1 --preset small --out results/bench-strategies-h200.json

A path stays in the code if training is at least 10% faster with it (`REQUIRED_GAIN`) on a device it is made for.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
import tyro
from rich.table import Table

from _common import settings_with
from tessera.config import Settings, Strategy
from tessera.console import publish, say
from tessera.devices import DeviceName, pick_device, precision_on, synchronize
from tessera.errors import UserError
from tessera.models.build import build_denoiser
from tessera.provenance import provenance
from tessera.scenes.random import normal
from tessera.stats import student
from tessera.training.run_folder import _stream_for
from tessera.training.strategies import chosen_strategy, forget_compiled
from tessera.training.trainer import Trainer

REQUIRED_GAIN = 1.1
NO_TRITON = SimpleNamespace(util=SimpleNamespace(find_spec=lambda name: None))

# Fast path: the strategies with and without it; the module that chooses it; the attribute that turns it off.
STRATEGY_PATHS: dict[str, tuple[Strategy, Strategy]] = {
    "CUDA graph": ("graph", "compiled"),
    "torch.compile": ("compiled", "eager"),
}
MODULE_PATHS = {"scene kernel": "tessera.scenes.sampling", "render kernel": "tessera.render.render"}
TRAINER_PATHS = {"update kernel": ("update_kernel", None), "noise kernel": ("normal_fn", normal)}
PATHS = (*STRATEGY_PATHS, *TRAINER_PATHS, *MODULE_PATHS)


@dataclass(frozen=True)
class BenchStrategies:
    """Measure what each fast path of training gains: CUDA graph, torch.compile, and four fused kernels."""

    experiment: tyro.conf.Positional[str] = "exp1"
    """Which experiment of the table."""
    preset: str = "small"
    """tiny, small or paper."""
    paths: tuple[str, ...] = PATHS
    """Fast paths to measure, such as "CUDA graph" "update kernel"."""
    steps: int = 16
    """Fewest steps of a round; rounds are made of whole groups of steps whose images are rendered together."""
    rounds: int = 8
    """Rounds with and without each path, in turns."""
    device: DeviceName = "auto"
    """Where to compute."""
    set: tuple[str, ...] = ()
    """Settings other than the preset's, such as denoiser.width=32 training.batch=64."""
    json: bool = False
    """Print one JSON object on stdout."""
    out: Path | None = None
    """Write the JSON object to this file too."""

    def run(self) -> None:
        if min(self.steps, self.rounds) < 1:
            raise UserError("A measurement needs at least one round of one step.")
        if unknown := [path for path in self.paths if path not in PATHS]:
            raise UserError(f"There is no fast path `{unknown[0]}`; known are {', '.join(PATHS)}.")
        device = pick_device(self.device)
        settings, _ = settings_with(self.experiment, self.preset, self.set)
        record = measure_paths(settings, device, self.paths, self.steps, self.rounds)
        publish(record, self.json, self.out, gain_table(record))


def measure_paths(
    settings: Settings, device: torch.device, paths: tuple[str, ...], steps: int, rounds: int
) -> dict[str, Any]:
    """The record that `bench.py strategies --json` prints."""
    measured: dict[str, Any] = {}
    for path in paths:
        if reason := why_not(path, settings, device):
            measured[path] = {"not_measured": reason}
        else:
            measured[path] = measure_path(path, settings, device, steps, rounds)
        say(f"{path}: {sentence(measured[path])}")
    return {
        "kind": "bench-strategies",
        "settings": settings.plain(),
        "precision": precision_on(device, settings.training.precision),
        "strategy": chosen_strategy(settings.training, device),
        "required_gain": REQUIRED_GAIN,
        "paths": measured,
        "provenance": provenance(device),
    }


def why_not(path: str, settings: Settings, device: torch.device) -> str | None:
    """Why a path cannot be measured here, if it cannot."""
    if path == "torch.compile":
        return None
    if device.type != "cuda":
        return f"needs a CUDA device, not {device.type}"
    if path == "CUDA graph" and settings.training.micro_batch:
        return "needs a step without micro-batches"
    return None


def measure_path(path: str, settings: Settings, device: torch.device, steps: int, rounds: int) -> dict[str, Any]:
    """Images per second with and without a path, and their ratio."""
    training = settings.training
    together = max(1, training.render_batch // training.batch)
    steps = -(-steps // together) * together
    forget_compiled()
    sides = {}
    for used in (True, False):
        with path_used(path, used):
            sides[used] = Side(path, used, settings, device)
    rates: dict[bool, list[float]] = {True: [], False: []}
    for number in range(rounds):
        for used in (True, False) if number % 2 else (False, True):  # neither is always the first one
            with path_used(path, used):
                rates[used].append(steps * training.batch / seconds_of(sides[used].step, steps, device))
    ratios = [fast / slow for fast, slow in zip(rates[True], rates[False], strict=True)]
    gain = student(ratios)
    return {
        "strategy": {"with": sides[True].trainer.strategy, "without": sides[False].trainer.strategy},
        "images_per_second": {"with": student(rates[True]).to_dict(), "without": student(rates[False]).to_dict()},
        "gain": gain.to_dict(),
        "is_enough": sum(ratios) / rounds >= REQUIRED_GAIN,
        "startup_seconds": {"with": sides[True].startup, "without": sides[False].startup},
        "steps_per_round": steps,
    }


class Side:
    """A training with, or without, a fast path, after the steps in which kernels are compiled and recorded."""

    def __init__(self, path: str, used: bool, settings: Settings, device: torch.device):
        begun = time.perf_counter()
        training = settings.training
        if path in STRATEGY_PATHS:
            training = replace(training, strategy=STRATEGY_PATHS[path][0 if used else 1])
        self.trainer = Trainer(build_denoiser(settings), training, device)
        if path in TRAINER_PATHS and not used:
            setattr(self.trainer, *TRAINER_PATHS[path])
        self.batches = _stream_for(settings).steps(0, training.batch, training.render_batch, device=device)
        for _ in range(max(1, training.render_batch // training.batch)):  # rounds begin with a new group
            self.step()
        synchronize(device)
        self.startup = round(time.perf_counter() - begun, 2)

    def step(self) -> None:
        self.trainer.step(next(self.batches))


@contextmanager
def path_used(path: str, used: bool) -> Iterator[None]:
    """Hide Triton from the module that would choose its kernel, for the paths that are chosen while training runs."""
    with ExitStack() as stack:
        if path in MODULE_PATHS and not used:
            stack.enter_context(mock.patch(f"{MODULE_PATHS[path]}.importlib", NO_TRITON))
        yield


def seconds_of(work: Callable[[], None], times: int, device: torch.device) -> float:
    synchronize(device)
    begun = time.perf_counter()
    for _ in range(times):
        work()
    synchronize(device)
    return time.perf_counter() - begun


def sentence(entry: dict[str, Any]) -> str:
    if "not_measured" in entry:
        return f"not measured, {entry['not_measured']}"
    gain = entry["gain"]
    spread = "" if gain["low"] is None else f" [{gain['low']:.3f}, {gain['high']:.3f}]"
    return f"{gain['value']:.3f} times as fast{spread}"


def gain_table(record: dict[str, Any]) -> Table:
    table = Table("fast path", "with", "without", "gain", title="images per second of training")
    for path, entry in record["paths"].items():
        rates = entry.get("images_per_second")
        cells = ("-", "-") if rates is None else (f"{rates[side]['value']:,.1f}" for side in ("with", "without"))
        table.add_row(path, *cells, sentence(entry))
    return table
