"""The verb `report`: whatever is known of runs, models and records, measured where it is missing, as one page."""

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from tessera.app.report.columns import ReportData, gather, subject_record
from tessera.app.report.measure import ColumnEvaluator, ReportConfig, config_record
from tessera.app.report.verdict import verdict
from tessera.app.report.write import kept_beside, write_page
from tessera.cli.options import Folder, List, OpensModels, Printed, Text, Whole, WithDetails
from tessera.console import publish, say
from tessera.devices import pick_device
from tessera.errors import UserError
from tessera.provenance import provenance
from tessera.sampling.prompts import parse_ks


@dataclass(frozen=True, kw_only=True)
class Report(OpensModels, Printed, WithDetails):
    """Write one self-contained page about runs, models and results: how far each composes, why, and how we know."""

    #: Run folders, models (folder, shipped name, hub id), records or folders of them; several stand side by side.
    sources: Annotated[tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(metavar="RUN|MODEL|RESULTS ...")]
    #: The page to write.
    out: Path = Path("report.html")
    #: Images evaluated for each K.
    n: Whole = None
    #: How many objects to prompt for, such as 0-12 (default: all of the study; quick 1,3,6,9).
    k: List = None
    #: Noise levels on the way from noise to image.
    steps: Whole = None
    #: Few images and few noise levels: a first look within minutes on a CPU.
    quick: bool = False
    #: Random seed of the images.
    seed: int = 0
    #: Heading of the page (default: the names of what it shows).
    title: tyro.conf.Fixed[Text] = None
    #: Where measurements of models are kept (default: OUT's name with -measured; those of runs stay in the run).
    keep: tyro.conf.Fixed[Folder] = None

    def run(self) -> None:
        config = self.config()
        device = pick_device(self.device)
        measurer = ColumnEvaluator(device, config)
        found = gather(self.sources, measurer, self.keep or kept_beside(self.out))
        write_page(found, measurer, self.out, self.title, self.command())
        record = {**summary(found), "config": config_record(config), "provenance": provenance(device)}
        publish(record, self.json, None, *conclusions(found))
        say(f"The report is {self.out.resolve()}")

    def config(self) -> ReportConfig:
        if not self.sources:
            raise UserError("Name at least one run, model or record to report on.")
        if any(number is not None and number < 1 for number in (self.n, self.steps)):
            raise UserError("At least one image for each K and one step are needed.")
        if self.out.suffix.lower() not in (".html", ".htm"):
            raise UserError(f"A report is a page, such as report.html, not {self.out.name}.")
        ks = None if self.k is None else tuple(sorted(set(parse_ks(self.k))))
        return ReportConfig(n=self.n, ks=ks, steps=self.steps, quick=self.quick, seed=self.seed)

    def command(self) -> str:
        """What remakes this page."""
        words = ["tessera", "report", *self.sources, "--out", str(self.out)]
        for name in ("n", "k", "steps", "title", "keep"):
            value = getattr(self, name)
            words += [] if value is None else [f"--{name}", str(value)]
        words += ["--quick"] if self.quick else []
        return shlex.join(words + (["--seed", str(self.seed)] if self.seed else []))


def summary(found: ReportData) -> dict[str, Any]:
    return {"subjects": [subject_record(subject) for subject in found.subjects]}


def conclusions(found: ReportData) -> list[str]:
    lines = []
    for subject in found.subjects:
        said = verdict(subject.scores, subject.locality)
        lines += [f"{subject.name}: {said.headline}", *(f"  {doubt}" for doubt in said.doubts)]
    return lines
