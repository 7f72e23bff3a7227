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
from tessera.dynamics.figures import rings, sheet, star
from tessera.dynamics.swingby import Plan, finished, jobs, summarise, train_all
from tessera.dynamics.tables import swingby_rows
from tessera.errors import UserError
from tessera.files import make_folder, save_plot
from tessera.provenance import provenance


@dataclass(frozen=True)
class ReproduceSwingby:
    """Swing-by in a diffusion model: train on three corners of (size, colour), watch the fourth. Carries on."""

    gaps: str = ",".join(f"{gap:g}" for gap in Plan.gaps)
    """Colour gaps: the strength of the colour concept."""
    seeds: int = Plan.seeds
    """Trainings for each gap."""
    steps: int = Plan.steps
    """Training steps."""
    batch: int = Plan.batch
    """Pictures per step."""
    lr: float = Plan.lr
    """Learning rate."""
    moments: int = Plan.moments
    """Moments of training at which all corners are drawn."""
    pictures: int = Plan.pictures
    """Pictures of each corner at each moment."""
    levels: int = Plan.levels
    """Noise levels on the way from noise to picture."""
    width: int = Plan.width
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
        rows = summarise(plan, self.root)
        if not rows:
            raise UserError(f"{self.root} has no finished run of this plan.")
        record = {"plan": plan.plain(), "gaps": rows, "provenance": provenance(device)}
        figure = self.out.with_suffix(".png")
        make_folder(self.out.parent)
        save_plot(swingby_figure(rows), figure)
        console.publish(record, self.json, self.out, console.table_of(swingby_rows(rows)))
        console.say(f"{figure} is drawn.")

    def plan(self) -> Plan:
        try:
            gaps = tuple(float(word) for word in self.gaps.replace(",", " ").split())
        except ValueError:
            raise UserError(f"`{self.gaps}` is no list of colour gaps; write for example 0.2,0.4.") from None
        names = ("seeds", "steps", "batch", "lr", "moments", "pictures", "levels", "width")
        return Plan(gaps, **{name: getattr(self, name) for name in names})


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
    left.legend(title="colour gap", loc="center left", bbox_to_anchor=(-0.62, 0.5), frameon=False)
    return figure


def concept_square(ax: Axes) -> None:
    rings(ax, np.array([[0, 0], [0, 1], [1, 0]]))
    star(ax, np.ones(2))
    ax.set(xlim=(-0.1, 1.1), ylim=(-0.1, 1.1), xlabel="blue", ylabel="small", aspect="equal")
    ax.set_title("what small blue looks like", fontsize=9)
