"""`tessera demo`: a first look, from nothing to a report.

Shows the shipped models; where there are none it draws scenes, detectors them, trains a little network and samples it.
"""

import hashlib
import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from rich.table import Table
from torch import Tensor

from tessera import console
from tessera.app.report.columns import ReportData, measured_model
from tessera.app.report.measure import ColumnEvaluator, ReportConfig
from tessera.app.report.showcase import models_to_show, showcase, showcase_table
from tessera.app.report.write import write_page
from tessera.cli.sample import drawn, save_samples
from tessera.config import Settings, format_count, settings_for
from tessera.devices import DeviceName, pick_device
from tessera.errors import UserError
from tessera.evaluation.calibrate import at_study_locations
from tessera.evaluation.detection import Detection
from tessera.evaluation.detector import Detector, load_detector
from tessera.evaluation.explain import draw_explanation
from tessera.evaluation.matching import Verdict, match
from tessera.files import make_folder
from tessera.models.build import build_denoiser, conditioner_for
from tessera.models.model_folder import Model, denoiser_config
from tessera.plots.image_grid import image_grid
from tessera.provenance import provenance
from tessera.render.image_io import save_png, to_uint8
from tessera.render.render import render
from tessera.sampling.prompts import Prompt, study_prompts
from tessera.scenes.sampling import Scenes
from tessera.scenes.vocabulary import COLORS, LOCATIONS
from tessera.stats import share_record
from tessera.studies.clevr.evaluate import verdict_on
from tessera.training.run_folder import Outcome, RunFolder, train_run
from tessera.training.trainer import Trainer

SCENE_SIZES = (64, 128)
SHEET_COLUMNS = 8
PLACED_KS, PLACED_SIZE = (1, 3, 6, 9), 64
SAMPLED_KS, SAMPLE_STEPS = (1, 2, 3), 18  # the little network saw up to three objects
OF_TRAINING = ("train_minutes", "experiment", "count", "each")  # options that shipped models have no use for
STAGE_INK = (30, 30, 30)  # of the empty stage in a drawn mask


@dataclass(frozen=True)
class Demo:
    """A first look, from nothing to a report. Without shipped models it trains a tiny one; again, it carries on."""

    out: Path = Path("demo")
    """Folder for report.html, summary.json and what they are made from."""
    minutes: float = 3.0
    """About how long drawing, detecting and locating the shipped models may take."""
    train: bool = False
    """Train a tiny network even where models are shipped."""
    train_minutes: float = 2.0
    """With --train: train a tiny network for so long; 0 leaves training out."""
    experiment: str = "exp1C"
    """With --train: which experiment; the local convolutional ones learn to position objects soonest."""
    count: int = 16
    """With --train: scenes on each contact sheet."""
    each: int = 16
    """With --train: images for each K."""
    seed: int = 0
    """Stream of scenes and of samples."""
    device: DeviceName = "auto"
    """Where to compute."""
    json: bool = False
    """Print the summary on stdout."""

    def run(self) -> None:
        self.check()
        settings = settings_for(self.experiment, "tiny")
        torch.set_num_threads(free_threads(torch.get_num_threads(), os.getloadavg()[0]))
        names = models_to_show()
        if names and not self.train:
            self.check_only_of_shipped()
            self.show_shipped(names)
        else:
            self.train_a_little(settings)

    def check_only_of_shipped(self) -> None:
        for name in OF_TRAINING:
            if getattr(self, name) != getattr(Demo, name):
                raise UserError(f"--{name.replace('_', '-')} is for training a tiny network: add --train.")

    def show_shipped(self, names: Sequence[str]) -> None:
        """The models that come with Tessera, within minutes."""
        device = pick_device(self.device)
        detector = load_detector(device=device)
        out = make_folder(self.out)
        summary = showcase(names, out, detector, device, self.minutes, self.seed)
        verdicts = [f"{model['name']}: {model['verdict']}" for model in summary["models"]]
        console.publish(summary, self.json, out / "summary.json", showcase_table(summary), *verdicts)
        console.say(f"That took {summary['seconds']:.0f} s. The report is {(out / 'report.html').resolve()}")

    def train_a_little(self, settings: Settings) -> None:
        tour = Tour(make_folder(self.out), pick_device(self.device), settings, self.seed)
        summary = {"seed": self.seed, **tour.show(self.count, self.each, self.train_minutes)}
        kept = tour.path("summary.json")
        console.publish(summary, self.json, kept, summary_table(summary), *conclusions(summary))
        for path in tour.written:
            console.say(f"  {path}")

    def check(self) -> None:
        if min(self.count, self.each) < 1:
            raise UserError("The demo needs at least one image of each kind (--count, --each).")
        if min(self.train_minutes, self.minutes) < 0:
            raise UserError(f"Nothing can take {min(self.train_minutes, self.minutes):g} minutes.")


@dataclass
class Tour:
    """The stations of the demo, and the files they leave behind."""

    out: Path
    device: torch.device
    settings: Settings
    seed: int
    written: list[Path] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)

    def show(self, count: int, each: int, minutes: float) -> dict[str, Any]:
        """Every station in turn. Returns the summary."""
        with self.clock("detector"):
            detector = load_detector(device=self.device)  # first: without it there is nothing to show
        with self.clock("scenes"):
            scenes = self.draw_scenes(count)
        with self.clock("placed"):
            placed = self.evaluate_at(detector, each)
        with self.clock("training"):
            trained = self.train(minutes)
        with self.clock("sampled"):
            sampled = self.evaluate_sampled(detector, each)
        with self.clock("report"):
            self.report(detector, each)
        return {
            "scenes": scenes,
            "placed": placed,
            "trained": trained,
            "sampled": sampled,
            "seconds": self.seconds,
            "provenance": provenance(self.device),
        }

    @contextmanager
    def clock(self, station: str) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self.seconds[station] = round(time.perf_counter() - began, 2)

    def path(self, name: str) -> Path:
        """A file of the demo, remembered so that its path can be told at the end."""
        self.written.append(self.out / name)
        return self.out / name

    # -- scenes --------------------------------------------------------------------------------------------

    def draw_scenes(self, count: int) -> dict[str, Any]:
        """One sheet per size: scenes of one to three objects, each with its mask."""
        scenes = Scenes(objects=(1, 3)).draw(count, self.seed, device=self.device)
        with console.progress("drawing scenes", len(SCENE_SIZES)) as advance:
            for size in SCENE_SIZES:
                frame = render(scenes, size, layers=("rgb", "mask"))
                images, masks = to_uint8(frame["rgb"]).cpu(), colored(frame["mask"].cpu())
                save_png(self.path(f"scenes-{size}.png"), image_rows(images, masks))
                advance()
        return {"count": count, "sizes": list(SCENE_SIZES), "objects": int(scenes.count.sum())}

    # -- objects at the study's locations ----------------------------------------------------------------------

    def evaluate_at(self, detector: Detector, each: int) -> list[dict[str, Any]]:
        """Rendered objects at the study's locations: the detector should find each of them."""
        rows, explained = [], []
        with console.progress("detecting placed objects", len(PLACED_KS)) as advance:
            for k in PLACED_KS:
                scenes = at_study_locations(k, each, self.seed, 0, self.device)
                images = render(scenes, PLACED_SIZE)["rgb"]
                found, ood = detector.look(images)
                verdicts = [match(detections, LOCATIONS[:k]) for detections in found]
                rows.append(row_for(k, found, verdicts))
                explained.append(
                    draw_explanation(images[0], found[0], verdicts[0], LOCATIONS[:k], float(ood[0]))
                )
                advance()
        save_png(self.path("placed-explained.png"), image_grid(explained, columns=2))
        return rows

    # -- a little training ---------------------------------------------------------------------------------

    @property
    def run_folder(self) -> Path:
        """Other settings, as another version may have, get another folder rather than a refusal."""
        mark = hashlib.sha256(json.dumps(self.settings.plain(), sort_keys=True).encode()).hexdigest()[:8]
        return self.out / f"run-{mark}"

    def train(self, minutes: float) -> dict[str, Any] | None:
        """Train for some minutes, from where the last demo stopped."""
        if minutes == 0:
            return None
        with console.progress(f"training, {minutes:g} min", 60 * minutes) as advance:
            watch = Stopwatch(advance)
            outcome = train_run(
                self.settings,
                self.run_folder,
                device=self.device,
                minutes=minutes,
                on_step=watch.step,
                on_message=console.say,
            )
        return training_record(self.settings, outcome)

    # -- what it learned -----------------------------------------------------------------------------------

    def evaluate_sampled(self, detector: Detector, each: int) -> list[dict[str, Any]] | None:
        """Images made by the little network as it is now, evaluated."""
        model = newest_model(self.settings, self.run_folder, self.device)
        if model is None:
            return None
        prompts = study_prompts(model.conditioner, list(SAMPLED_KS), each, self.seed)
        facts = {**model.config, "size": model.size, "steps": SAMPLE_STEPS, "seed": self.seed}

        def draw(missing: list[Prompt]) -> Iterator[Tensor]:
            return drawn(model, missing, SAMPLE_STEPS, each, self.device)

        _, images = save_samples(self.out / "samples", facts, prompts, draw)
        self.path("samples/sheet.png")
        found = detector.find(images)
        verdicts = [
            verdict_on(detections, prompt, model.conditioner)
            for detections, prompt in zip(found, prompts, strict=True)
        ]
        groups = [slice(n * each, (n + 1) * each) for n in range(len(SAMPLED_KS))]
        return [row_for(k, found[rows], verdicts[rows]) for k, rows in zip(SAMPLED_KS, groups, strict=True)]

    # -- the report ----------------------------------------------------------------------------------------

    def report(self, detector: Detector, each: int) -> None:
        """The little network as it is now, on the same page that any model gets."""
        model = newest_model(self.settings, self.run_folder, self.device)
        if model is None:
            return
        config = ReportConfig(n=each, ks=SAMPLED_KS, steps=SAMPLE_STEPS, seed=self.seed, images=2, levels=8)
        measurer = ColumnEvaluator(self.device, config, detector)
        name = f"{self.settings.experiment}, {self.settings.preset}"
        subject = measured_model(name, model, measurer, self.out / "measured")
        write_page(ReportData([subject]), measurer, self.path("report.html"), "A first look", "tessera demo")


def free_threads(threads: int, load: float) -> int:
    """How many threads to use beside the work already going on.

    Threads that share a core with others wait for each other: on two busy cores, two are several times slower
    than one.
    """
    return max(1, min(threads, (os.cpu_count() or 1) - round(load)))


class Stopwatch:
    """Moves a bar by the seconds that pass, so that it ends when the time does."""

    def __init__(self, advance):
        self.advance, self.mark = advance, time.monotonic()

    def step(self, images_seen: int) -> None:
        now = time.monotonic()
        self.advance(now - self.mark, note=f"{images_seen:,} images")
        self.mark = now


def newest_model(settings: Settings, folder: Path, device: torch.device) -> Model | None:
    """The averaged network where training stands now, between snapshots too; None if it never began."""
    trainer = Trainer(build_denoiser(settings), settings.training, device)
    if RunFolder(folder).resume(trainer) is None:
        return None
    std = max(settings.training.ema)  # after so little training a long average looks best
    denoiser = trainer.averaged(std)
    facts = {"images_seen": trainer.images_seen, "ema": std}
    config = {"denoiser": denoiser_config(denoiser), "settings": settings.plain(), **facts}
    return Model(denoiser, conditioner_for(settings), config)


def training_record(settings: Settings, outcome: Outcome) -> dict[str, Any]:
    return {
        "experiment": settings.experiment,
        "preset": settings.preset,
        "images_seen": outcome.images_seen,
        "total": settings.training.total,
        "finished": outcome.finished,
        "loss": outcome.record.get("loss"),
        "images_per_second": outcome.record.get("images_per_second"),
    }


def row_for(k: int, found: Sequence[Sequence[Detection]], verdicts: Sequence[Verdict]) -> dict[str, Any]:
    """What the images for one K show, with a 95% interval."""
    count = len(verdicts)
    return {
        "k": k,
        "images": count,
        "composed_denoiser": share_record(sum(verdict.ok for verdict in verdicts), count),
        "found": sum(verdict.found for verdict in verdicts) / count,
        "extra": sum(verdict.extra for verdict in verdicts) / count,
        "objects": sum(map(len, found)) / count,
    }


# --- drawing ------------------------------------------------------------------------------------------------


def colored(masks: Tensor) -> Tensor:
    """Instance masks (B, H, W) as 8-bit images (B, 3, H, W), a color per object."""
    inks = torch.tensor([STAGE_INK, *COLORS.values()], dtype=torch.uint8)
    number = torch.where(masks > 0, (masks - 1) % len(COLORS) + 1, 0)
    return inks[number].permute(0, 3, 1, 2)


def image_rows(images: Tensor, masks: Tensor) -> Tensor:
    """A row of images, under it the row of their masks, and so on."""
    columns = min(SHEET_COLUMNS, len(images))
    blank = torch.full_like(images[:1], 255)
    rows: list[Tensor] = []
    for first in range(0, len(images), columns):
        for layer in (images, masks):
            row = layer[first : first + columns]
            rows += [*row, *blank.expand(columns - len(row), -1, -1, -1)]
    return image_grid(rows, columns=columns)


# --- telling ------------------------------------------------------------------------------------------------


def summary_table(summary: dict[str, Any]) -> Table:
    table = Table(
        "images", "K asked", "n", "as asked", "95%", "found", "extra", title="what the detector saw"
    )
    for name, station in (("rendered", "placed"), ("sampled", "sampled")):
        for row in summary[station] or []:
            share = row["composed_denoiser"]
            table.add_row(
                name,
                str(row["k"]),
                str(row["images"]),
                f"{share['share']:.0%}",
                f"{share['low']:.0%} to {share['high']:.0%}",
                f"{row['found']:.2f}",
                f"{row['extra']:.2f}",
            )
    return table


def conclusions(summary: dict[str, Any]) -> list[str]:
    """How far the training got, and what to do next."""
    trained, took = summary["trained"], sum(summary["seconds"].values())
    lines = ["No training was asked for."]
    if trained:
        seen, total = format_count(trained["images_seen"]), format_count(trained["total"])
        more = "" if trained["finished"] else "; run the demo again to carry on"
        lines = [
            f"The {trained['preset']} network of {trained['experiment']} has seen {seen} of {total} images{more}."
        ]
    return [*lines, f"That took {took:.0f} s. Look at:"]
