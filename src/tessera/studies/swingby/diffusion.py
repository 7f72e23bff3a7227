"""Swing-by in a real diffusion model: circles of two sizes and two colors, three corners shown, prompted with the fourth.

Every run is one color gap and one seed. At several steps of training the network samples all four corners;
size and color are measured in the images, so that a run is a trajectory in concept space.
"""

import itertools
import math
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tessera.config import TrainingConfig
from tessera.console import progress, publish, say, table_of
from tessera.devices import DeviceName, pick_device
from tessera.errors import UserError
from tessera.files import make_folder, read_json, save_plot, write_json
from tessera.models.edm2 import EDM2
from tessera.provenance import provenance
from tessera.records import SwingbyRecord, new_record
from tessera.rows import Rows
from tessera.sampling import sample
from tessera.stats import quantile_range
from tessera.studies.swingby import analysis
from tessera.studies.swingby.circles import CODES, COMPOSITION, TRAINING_CORNERS, CirclesTask
from tessera.studies.swingby.coordinates import coordinates, measure
from tessera.studies.swingby.data import Array
from tessera.studies.swingby.figures import swingby_figure
from tessera.training.stream import Batch
from tessera.training.trainer import Trainer

_SOURCE_GAPS = (0.137, 0.247, 0.358, 0.468, 0.579, 0.689)
_SATURATED = 0.01  # mean squared error of the training corners below which training counts as done
_DRAWN = 0.1  # below which there are circles to measure: the first images have neither size nor color
FEWEST = 3  # evaluations in which an error can fall and rise
RESAMPLES = 1000
_RUN_APART = 2**32  # between the image numbers of two seeds, by which noise is drawn
FORMAT = 3  # 1 had noise from the seeds of the trainer, 2 had no machine


@dataclass(frozen=True)
class SwingbyConfig:
    """What is trained, and when and how it is evaluated."""

    #: Color gaps: the strength of the color concept.
    gaps: tuple[float, ...] = _SOURCE_GAPS
    #: Trainings for each gap.
    seeds: int = 5
    #: Training steps.
    steps: int = 3000
    #: Images per step.
    batch: int = 128
    #: Learning rate.
    lr: float = 0.01
    #: Moments of training at which all corners are sampled.
    moments: int = 32
    #: Images of each corner at each moment.
    images: int = 32
    #: Noise levels of the sampler.
    levels: int = 12
    #: Channels of the first level of the network.
    width: int = 32

    def __post_init__(self):
        if min(self.seeds, self.steps, self.batch, self.images, self.levels, self.width) < 1:
            raise UserError("Seeds, steps, batch, images, levels and width must each be at least 1.")
        if self.moments < FEWEST or not self.gaps:
            raise UserError("At least one color gap and three moments of training are needed.")
        for gap in self.gaps:
            CirclesTask(gap=gap)

    @property
    def evaluation_steps(self) -> list[int]:
        """Steps after which the network is evaluated: evenly spaced in the square root, as learning slows down."""
        roots = np.linspace(1, np.sqrt(self.steps), self.moments)
        return sorted({round(root**2) for root in roots})

    def plain(self) -> dict[str, Any]:
        return {f.name: getattr(self, f.name) for f in fields(SwingbyConfig)} | {"gaps": list(self.gaps)}


# --- one run ------------------------------------------------------------------------------------------------


def train_one(
    gap: float, seed: int, config: SwingbyConfig, trainer: Trainer, on_step: Callable[[], Any] = lambda: None
) -> dict[str, Any]:
    """Train on three corners; the coordinates of all four at every evaluation, as plain data."""
    task = CirclesTask(gap=gap, seed=seed)
    trainer.restart(new_network(seed, config))
    steps, found, losses = set(config.evaluation_steps), [], []
    for step in range(1, config.steps + 1):
        index = torch.arange((step - 1) * config.batch, step * config.batch, device=trainer.device)
        made = task.batch(index)
        loss = trainer.step(Batch(made.images, _one_hot_condition(made.cond), index + seed * _RUN_APART)).loss
        if step in steps:
            found.append(_sample_coordinates(trainer, task, config))
            losses.append(float(loss))
        on_step()
    paths = torch.stack(found).round(decimals=3)  # (T, corners, images, 2)
    record = {"format": FORMAT, "gap": gap, "seed": seed, "plan": _run_plan(config)}
    return {**record, "steps": config.evaluation_steps, "loss": losses, "coordinates": paths.tolist()}


def new_trainer(config: SwingbyConfig, device=None) -> Trainer:
    """One for all runs, so that it is compiled once; its noise is keyed by image number, not by its seed."""
    total = config.steps * config.batch
    settings = TrainingConfig(total, config.batch, lr=config.lr, lr_decay_start=0, lr_warmup=0, p_mean=-0.4, ema=(0.1,))
    return Trainer(new_network(0, config), settings, device)


def new_network(seed: int, config: SwingbyConfig) -> EDM2:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return EDM2(32, cond_dim=4, width=config.width, mult=(1, 2, 2), blocks=1, attention=(), head_width=config.width)


def _one_hot_condition(cond: Tensor) -> Tensor:
    """Radius and color around zero. Not divided by their spread: a small gap must stay a weak signal."""
    return 2 * cond - 1


def _sample_coordinates(trainer: Trainer, task: CirclesTask, config: SwingbyConfig) -> Tensor:
    """Concept coordinates of images of every corner, with the weights as they are: (corners, images, 2)."""
    count, corners = config.images, range(len(CODES))
    cond = torch.cat([task.conditions(corner, count, trainer.device) for corner in corners])
    seeds = [*range(count)] * len(corners)  # the same noise for every corner
    network, cond = trainer.denoiser.eval(), _one_hot_condition(cond)
    images = sample(network, cond, task.size, seeds, steps=config.levels, batch=len(seeds), device=trainer.device)
    network.train()
    return coordinates(measure(images, task.blur), task).cpu().unflatten(0, (len(corners), count))


# --- all runs -----------------------------------------------------------------------------------------------


def jobs(config: SwingbyConfig, share: tuple[int, int] = (0, 1)) -> Iterator[tuple[float, int]]:
    """Every gap once before any of them again; of several processes each takes its share."""
    every = itertools.product(range(config.seeds), config.gaps)
    for seed, gap in itertools.islice(every, share[0], None, share[1]):
        yield gap, seed


def run_path(folder: Path, gap: float, seed: int) -> Path:
    return folder / f"gap{gap:g}-seed{seed}.json"


def _run_plan(config: SwingbyConfig) -> dict[str, Any]:
    """The settings that one run depends on."""
    return {name: value for name, value in config.plain().items() if name not in ("gaps", "seeds")}


def finished(folder: Path, gap: float, seed: int, config: SwingbyConfig) -> dict[str, Any] | None:
    """The record of this run, if there is one."""
    path = run_path(folder, gap, seed)
    found = read_json(path) if path.is_file() else {}
    same = found.get("format") == FORMAT and found.get("plan") == _run_plan(config) and found.get("gap") == gap
    return found if same else None


def train_all(
    config: SwingbyConfig, folder: Path, device=None, share: tuple[int, int] = (0, 1), minutes: float = math.inf
) -> None:
    """Train what is missing. No run begins after `minutes`."""
    make_folder(folder)
    begun, trainer = time.monotonic(), new_trainer(config, device)
    missing = [job for job in jobs(config, share) if finished(folder, *job, config) is None]
    with progress("training", len(missing) * config.steps) as advance:
        for gap, seed in missing:
            if time.monotonic() - begun >= 60 * minutes:
                return
            run = train_one(gap, seed, config, trainer, advance)
            write_json(run_path(folder, gap, seed), {**run, "provenance": provenance(trainer.device)})


# --- analysis of the runs ----------------------------------------------------------------------------------


def summarize(config: SwingbyConfig, folder: Path) -> list[dict[str, Any]]:
    """One row for each gap that has runs."""
    rows = []
    for gap in config.gaps:
        runs = [run for seed in range(config.seeds) if (run := finished(folder, gap, seed, config))]
        if runs:
            rows.append(summary(gap, runs))
    return rows


def summary(gap: float, runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Path, error and rise at the composition, over the seeds of one gap."""
    steps = np.array(runs[0]["steps"], dtype=float)
    everything = np.array([run["coordinates"] for run in runs])  # (S, T, corners, N, 2)
    composed = everything[:, :, COMPOSITION]  # (S, T, N, 2)
    path, errors = composed.mean((0, 2)), error_of(composed)
    shown = everything[:, :, list(TRAINING_CORNERS)]
    drawn_at = _first_below(steps, shown, _DRAWN)
    first = 0 if drawn_at is None else int(np.searchsorted(steps, drawn_at))
    drawn = slice(min(first, len(steps) - FEWEST), None)
    return {
        "gap": gap,
        "seeds": len(runs),
        "machines": sorted({run["provenance"]["device"] for run in runs}),
        "images": composed.shape[2],
        "steps": steps.tolist(),
        "path": path.round(4).tolist(),
        "error": errors.round(5).tolist(),
        "band": [part.round(5).tolist() for part in error_band(composed)],
        "error_by_seed": [error_of(one[None]).round(5).tolist() for one in composed],
        "first": _first_learned(steps, path),
        "drawn_at": drawn_at,
        "trained_at": _first_below(steps, shown, _SATURATED),
        **rise_record(steps[drawn], composed[:, drawn]),
    }


def error_of(composed: Array) -> Array:
    """Mean squared distance to (1, 1) of the mean coordinates, (S, T, N, 2) -> (T,)."""
    return np.square(1 - composed.mean((0, 2))).mean(-1)


def _resampled_errors(composed: Array, seed: int, resamples: int) -> Array:
    """The error of bootstrap samples: of seeds, and of images within each, (R, T)."""
    rng, (seeds, _, images, _) = np.random.default_rng(seed), composed.shape
    errors = []
    for _ in range(resamples):
        rows = rng.integers(seeds, size=(seeds,))
        errors.append(error_of(np.stack([composed[row][:, rng.integers(images, size=images)] for row in rows])))
    return np.stack(errors)


def error_band(composed: Array, resamples: int = 400) -> tuple[Array, Array]:
    """95% of the error's resamples at each moment."""
    return quantile_range(_resampled_errors(composed, 0, resamples), axis=0)


def rise_record(steps: Array, composed: Array, resamples: int = RESAMPLES) -> dict[str, Any]:
    """How far the error rises after a minimum, and how often chance alone reaches that."""
    errors = error_of(composed)
    swing, rise = analysis.swing(steps, errors), float(analysis.rise(errors))
    drawn = _resampled_errors(composed, 1, resamples)
    low, high = quantile_range(analysis.rise(drawn.T))
    chance = analysis.chance_of_rise(errors, drawn)
    # Null and interval are those of the samples, so the rise compared with them is theirs, not a parabola's.
    return {
        "rise": {"value": rise, "low": low, "high": high},
        **chance,
        "step_of_minimum": swing.t_min,
        "step_of_maximum": swing.t_max,
        "swing_by": swing.swing_by and rise > chance["rise_by_chance"],
    }


def _first_learned(steps: Array, path: Array, level: float = 0.5) -> dict[str, Any]:
    """When each concept of the composition crosses the middle for the last time, and which was first."""
    times = {name: last_crossing(steps, path[:, axis], level) for axis, name in enumerate(("color", "size"))}
    known = {name: time for name, time in times.items() if time is not None}
    return {**times, "concept": min(known, key=known.__getitem__) if known else None}


def last_crossing(steps: Array, values: Array, level: float) -> float | None:
    """From when on the values stay above the level; None if they end below it."""
    below = np.flatnonzero(values < level)
    if values[-1] < level:
        return None
    return float(steps[0] if not len(below) else steps[below[-1] + 1])


def _first_below(steps: Array, shown: Array, limit: float) -> float | None:
    """The first moment at which the error of the training corners (S, T, 3, N, 2) is below the limit."""
    target = np.array(CODES, dtype=float)[list(TRAINING_CORNERS)]  # (3, 2)
    error = np.square(shown.mean((0, 3)) - target).mean((1, 2))  # (T,)
    done = np.flatnonzero(error < limit)
    return float(steps[done[0]]) if len(done) else None


# --- the study ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Swingby(SwingbyConfig):
    """Swing-by in a diffusion model: train on three corners of (size, color), sample the fourth. Carries on."""

    #: Train only every Nth run from the Ith on, I/N: for several processes on one folder.
    share: str = "0/1"
    #: Begin no run after this many minutes; the same command carries on. 0 only sums up what is there.
    minutes: float | None = None
    #: Folder of the runs' records.
    root: Path = Path("runs/swingby")
    #: File of the summary; the figure lies beside it.
    out: Path = Path("results/swingby.json")
    #: Where to compute.
    device: DeviceName = "auto"
    #: Print one JSON object.
    json: bool = False

    def run(self) -> None:
        device, minutes = pick_device(self.device), math.inf if self.minutes is None else self.minutes
        train_all(self, self.root, device, _parse_share(self.share), minutes)
        rows = summarize(self, self.root)
        if not rows:
            raise UserError(f"{self.root} has no finished run of this plan.")
        record = {"plan": self.plain(), "gaps": rows, "provenance": provenance(device)}
        figure = self.out.with_suffix(".png")
        make_folder(self.out.parent)
        save_plot(swingby_figure(rows), figure)
        publish(new_record(SwingbyRecord, record), self.json, self.out, table_of(swingby_rows(rows)))
        say(f"{figure} is drawn.")


def swingby_rows(gaps: Sequence[Mapping[str, Any]]) -> Rows:
    """One row for each color gap."""
    rows: Rows = [("gap", "trainings", "first learned", "error at the end", "rise", "by chance, 95%", "p", "swing-by")]
    for gap in gaps:
        row = (
            f"{gap['gap']:.3f}",
            str(gap["seeds"]),
            gap["first"]["concept"] or "neither",
            f"{gap['error'][-1]:.3f}",
            "{value:.3f} [{low:.3f}, {high:.3f}]".format(**gap["rise"]),
            f"{gap['rise_by_chance']:.3f}",
            f"{gap['p']:.3f}",
            "yes" if gap["swing_by"] else "no",
        )
        rows.append(row)
    return rows


def _parse_share(text: str) -> tuple[int, int]:
    """`1/4` as (1, 4)."""
    match = re.fullmatch(r"(\d+)/(\d+)", text.strip())
    if not match or int(match[1]) >= int(match[2]):
        raise UserError(f"`{text}` is no share of the runs; write for example 0/4.")
    return int(match[1]), int(match[2])
