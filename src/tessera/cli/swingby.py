"""The verb `reproduce swingby`: trains, measures and draws the circles of `swingby`."""

import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from tessera import console
from tessera.cli.options import Number
from tessera.devices import DeviceName, pick_device
from tessera.errors import UserError
from tessera.files import make_folder, save_plot
from tessera.provenance import provenance
from tessera.records import SwingbyRecord, new_record
from tessera.studies.swingby.diffusion import SwingbyConfig, finished, jobs, summarize, train_all
from tessera.studies.swingby.figures import swingby_figure
from tessera.studies.swingby.tables import swingby_rows


@dataclass(frozen=True)
class Swingby:
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
    minutes: Number = None
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
        plan, device, share = self.plan(), pick_device(self.device), _parse_share(self.share)
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
        console.publish(new_record(SwingbyRecord, record), self.json, self.out, console.table_of(swingby_rows(rows)))
        console.say(f"{figure} is drawn.")

    def plan(self) -> SwingbyConfig:
        try:
            gaps = tuple(float(word) for word in self.gaps.replace(",", " ").split())
        except ValueError:
            raise UserError(f"`{self.gaps}` is no list of color gaps; write for example 0.2,0.4.") from None
        names = ("seeds", "steps", "batch", "lr", "moments", "images", "levels", "width")
        return SwingbyConfig(gaps, **{name: getattr(self, name) for name in names})


def _parse_share(text: str) -> tuple[int, int]:
    """`1/4` as (1, 4)."""
    match = re.fullmatch(r"(\d+)/(\d+)", text.strip())
    if not match or int(match[1]) >= int(match[2]):
        raise UserError(f"`{text}` is no share of the runs; write for example 0/4.")
    return int(match[1]), int(match[2])
