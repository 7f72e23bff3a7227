"""The verb `demo`: a first look, from nothing to a report."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import tyro

from tessera import console
from tessera.cli.options import OnDevice, Printed, WithDetails
from tessera.config import Settings, settings_for
from tessera.devices import pick_device
from tessera.errors import UserError
from tessera.files import make_folder

_OF_TRAINING = ("train_minutes", "experiment", "count", "each")  # options that shipped models have no use for


@dataclass(frozen=True, kw_only=True)
class Demo(OnDevice, Printed, WithDetails):
    """Sample, evaluate and report the shipped models or, without them or with --train, a tiny one that is trained first.

    The same command carries its training on.
    """

    #: Folder for report.html, summary.json and what they are made from.
    out: Path = Path("demo")
    #: About how many minutes to spend on sampling, evaluating and measuring the shipped models.
    minutes: float = 3.0
    #: Train a tiny network, even where models are shipped.
    train: bool = False
    #: With --train: minutes of training; 0 leaves training out.
    train_minutes: tyro.conf.Fixed[float] = 2.0
    #: With --train: the experiment; the local convolutional networks are the first to position objects.
    experiment: tyro.conf.Fixed[str] = "exp1C"
    #: With --train: scenes in each image grid.
    count: tyro.conf.Fixed[int] = 16
    #: With --train: images for each K.
    each: tyro.conf.Fixed[int] = 16
    #: Random seed of scenes and samples.
    seed: tyro.conf.Fixed[int] = 0

    def run(self) -> None:
        if min(self.count, self.each) < 1:
            raise UserError("The demo needs at least one image of each kind (--set count, --set each).")
        if min(self.train_minutes, self.minutes) < 0:
            raise UserError(f"Nothing can take {min(self.train_minutes, self.minutes):g} minutes.")
        from tessera.app.report.showcase import models_to_show

        settings = settings_for(self.experiment, "tiny")
        names = models_to_show()
        if names and not self.train:
            self.show_shipped(names)
        else:
            self.train_a_little(settings)

    def show_shipped(self, names: Sequence[str]) -> None:
        """The models that come with Tessera, within minutes."""
        for name in _OF_TRAINING:
            if getattr(self, name) != getattr(Demo, name):
                raise UserError(f"--set {name}=... is for training a tiny network: add --train.")
        from tessera.app.report.showcase import showcase, showcase_table
        from tessera.evaluation.detector import load_detector

        device = pick_device(self.device)
        detector = load_detector(device=device)
        out = make_folder(self.out)
        summary = showcase(names, out, detector, device, self.minutes, self.seed)
        verdicts = [f"{model['name']}: {model['verdict']}" for model in summary["models"]]
        console.publish(summary, self.json, out / "summary.json", showcase_table(summary), *verdicts)
        console.say(f"That took {summary['seconds']:.0f} s. The report is {(out / 'report.html').resolve()}")

    def train_a_little(self, settings: Settings) -> None:
        from tessera.app.demo import Tour, conclusions, summary_table

        tour = Tour(make_folder(self.out), pick_device(self.device), settings, self.seed)
        summary = {"seed": self.seed, **tour.show(self.count, self.each, self.train_minutes)}
        kept = tour.path("summary.json")
        console.publish(summary, self.json, kept, summary_table(summary), *conclusions(summary))
        for path in tour.written:
            console.say(f"  {path}")
