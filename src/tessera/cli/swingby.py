"""The verb `reproduce swingby`: trains, measures and draws the circles of `swingby`."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import matplotlib
import numpy as np
import tyro
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tessera import console
from tessera.devices import DeviceName, pick_device
from tessera.errors import UserError
from tessera.files import make_folder, save_plot
from tessera.provenance import provenance
from tessera.studies.swingby.figures import rings, sheet, star
from tessera.studies.swingby.swingby import SwingbyConfig, finished, jobs, summarize, train_all
from tessera.studies.swingby.tables import swingby_rows


@dataclass(frozen=True)
class ReproduceSwingby:
    """Swing-by in a diffusion model: train on three corners of (size, color), watch the fourth. Carries on."""

    gaps: str = ",".join(f"{gap:g}" for gap in SwingbyConfig.gaps)
    """Color gaps: the strength of the color concept."""
    seeds: int = SwingbyConfig.seeds
    """Trainings for each gap."""
    steps: int = SwingbyConfig.steps
    """Training steps."""
    batch: int = SwingbyConfig.batch
    """Images per step."""
    lr: float = SwingbyConfig.lr
    """Learning rate."""
    moments: int = SwingbyConfig.moments
    """Moments of training at which all corners are drawn."""
    images: int = SwingbyConfig.images
    """Images of each corner at each moment."""
    levels: int = SwingbyConfig.levels
    """Noise levels on the way from noise to image."""
    width: int = SwingbyConfig.width
    """Channels of the first level of the network."""
    share: Annotated[str, tyro.conf.arg(metavar="I/N")] = "0/1"
    """Train only every Nth run from the Ith on: for several processes on one folder."""
    minutes: float | None = None
    """Begin no run after this many minutes; the same command carries on. 0 only sums up what is there."""
    root: Path = Path("runs/swingby")
    """Folder of the runs' records."""
    out: Path = Path("results/swingby.json")
    """Where the summary goes; the figure lies beside it."""
    device: DeviceName = "auto"
    """Where to compute."""
    json: bool = False
    """Print one JSON object."""

    def run(self) -> None:
        plan, device, share = self.plan(), pick_device(self.device), parse_share(self.share)
        own = [job for number, job in enumerate(jobs(plan)) if number % share[1] == share[0]]
        missing = sum(finished(self.root, gap, seed, plan) is None for gap, seed in own)
        with console.progress("training", missing * plan.steps) as advance:
            minutes = math.inf if self.minutes is None else self.minutes
            train_all(plan, self.root, device, advance, share, minutes)
        rows = summarize(plan, self.root)
        if not rows:
            raise UserError(f"{self.root} has no finished run of this plan.")
        record = {"plan": plan.plain(), "gaps": rows, "provenance": provenance(device)}
        figure = self.out.with_suffix(".png")
        make_folder(self.out.parent)
        save_plot(swingby_figure(rows), figure)
        console.publish(record, self.json, self.out, console.table_of(swingby_rows(rows)))
        console.say(f"{figure} is drawn.")

    def plan(self) -> SwingbyConfig:
        try:
            gaps = tuple(float(word) for word in self.gaps.replace(",", " ").split())
        except ValueError:
            raise UserError(f"`{self.gaps}` is no list of color gaps; write for example 0.2,0.4.") from None
        names = ("seeds", "steps", "batch", "lr", "moments", "images", "levels", "width")
        return SwingbyConfig(gaps, **{name: getattr(self, name) for name in names})


def parse_share(text: str) -> tuple[int, int]:
    """`1/4` as (1, 4)."""
    match = re.fullmatch(r"(\d+)/(\d+)", text.strip())
    if not match or int(match[1]) >= int(match[2]):
        raise UserError(f"`{text}` is no share of the runs; write for example 0/4.")
    return int(match[1]), int(match[2])


def swingby_figure(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """Paths through concept space, and the error at the composition over training."""
    figure, ((left, right),) = sheet(2, width=4.6, height=4.0)
    shades = matplotlib.colormaps["viridis"](np.linspace(0.05, 0.9, max(1, len(rows))))
    for row, shade in zip(rows, shades):
        path, steps = np.array(row["path"]), np.array(row["steps"])
        left.plot(*path.T, color=shade, lw=1.6, label=f"{row['gap']:.2f}")
        right.plot(steps, row["error"], color=shade, lw=1.6)
        right.fill_between(steps, *row["band"], color=shade, alpha=0.15, lw=0)
        if row["trained_at"]:
            right.plot(row["trained_at"], np.interp(row["trained_at"], steps, row["error"]), "o", color=shade)
    concept_square(left)
    right.set(xscale="log", xlabel="training step", ylabel="error at small blue", ylim=(0, None))
    right.set_title("dots: the three shown corners are learned", fontsize=9)
    left.legend(title="color gap", loc="center left", bbox_to_anchor=(-0.62, 0.5), frameon=False)
    return figure


def concept_square(ax: Axes) -> None:
    rings(ax, np.array([[0, 0], [0, 1], [1, 0]]))
    star(ax, np.ones(2))
    ax.set(xlim=(-0.1, 1.1), ylim=(-0.1, 1.1), xlabel="blue", ylabel="small", aspect="equal")
    ax.set_title("what small blue looks like", fontsize=9)
