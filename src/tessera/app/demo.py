"""The demo without shipped models: draws scenes, evaluates them, trains a tiny network, samples it and evaluates that."""

import hashlib
import json
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
from tessera.app.report.write import write_page
from tessera.config import Settings, format_count
from tessera.evaluation.calibrate import at_study_locations
from tessera.evaluation.detector import Detector, load_detector
from tessera.evaluation.explain import draw_explanation
from tessera.evaluation.matching import ImageScore
from tessera.evaluation.pipeline import score_images
from tessera.models.build import build_denoiser, conditioner_for
from tessera.models.model_folder import Model, denoiser_config
from tessera.plots.image_grid import image_grid
from tessera.provenance import provenance
from tessera.render.image_io import save_png, to_uint8
from tessera.render.render import render
from tessera.sampling.prompts import Prompt, study_prompts
from tessera.sampling.sample_folder import sample_prompts, save_samples
from tessera.scenes.sampling import Scenes
from tessera.scenes.vocabulary import COLORS, LOCATIONS
from tessera.stats import share_interval
from tessera.training.run_folder import RunFolder, RunOutcome, train_run
from tessera.training.trainer import Trainer

_SCENE_SIZES = (64, 128)
_SHEET_COLUMNS = 8
PLACED_KS, PLACED_SIZE = (1, 3, 6, 9), 64
SAMPLED_KS, SAMPLE_STEPS = (1, 2, 3), 18  # the little network saw up to three objects
_STAGE_INK = (30, 30, 30)  # of the empty stage in a drawn mask


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
        """A file of the demo; its path is listed at the end."""
        self.written.append(self.out / name)
        return self.out / name

    # -- scenes --------------------------------------------------------------------------------------------

    def draw_scenes(self, count: int) -> dict[str, Any]:
        """One sheet per size: scenes of one to three objects, each with its mask."""
        scenes = Scenes(objects=(1, 3)).draw(count, self.seed, device=self.device)
        with console.progress("drawing scenes", len(_SCENE_SIZES)) as advance:
            for size in _SCENE_SIZES:
                frame = render(scenes, size, layers=("rgb", "mask"))
                images, masks = to_uint8(frame["rgb"]).cpu(), _colored(frame["mask"].cpu())
                save_png(self.path(f"scenes-{size}.png"), _image_rows(images, masks))
                advance()
        return {"count": count, "sizes": list(_SCENE_SIZES), "objects": int(scenes.count.sum())}

    # -- objects at the study's locations ----------------------------------------------------------------------

    def evaluate_at(self, detector: Detector, each: int) -> list[dict[str, Any]]:
        """Rendered objects at the study's locations: the detector should find each of them."""
        rows, explained = [], []
        with console.progress("detecting placed objects", len(PLACED_KS)) as advance:
            for k in PLACED_KS:
                scenes = at_study_locations(k, each, self.seed, 0, self.device)
                images = render(scenes, PLACED_SIZE)["rgb"]
                prompt = Prompt(LOCATIONS[:k])
                scores = score_images(detector, images, [prompt] * each)
                rows.append(_row_for(k, scores))
                explained.append(draw_explanation(images[0], scores[0], prompt))
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
            watch = _Stopwatch(advance)
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
        model = _newest_model(self.settings, self.run_folder, self.device)
        if model is None:
            return None
        prompts = study_prompts(model.conditioner, list(SAMPLED_KS), each, self.seed)
        facts = {**model.config, "size": model.size, "steps": SAMPLE_STEPS, "seed": self.seed}

        def draw(missing: list[Prompt]) -> Iterator[Tensor]:
            return sample_prompts(model, missing, SAMPLE_STEPS, each, self.device)

        _, images = save_samples(self.out / "samples", facts, prompts, draw)
        self.path("samples/sheet.png")
        scores = score_images(detector, images, prompts)
        return [_row_for(k, scores[n * each : (n + 1) * each]) for n, k in enumerate(SAMPLED_KS)]

    # -- the report ----------------------------------------------------------------------------------------

    def report(self, detector: Detector, each: int) -> None:
        """The little network as it is now, on the same page that any model gets."""
        model = _newest_model(self.settings, self.run_folder, self.device)
        if model is None:
            return
        config = ReportConfig(n=each, ks=SAMPLED_KS, steps=SAMPLE_STEPS, seed=self.seed, images=2, levels=8)
        measurer = ColumnEvaluator(self.device, config, detector)
        name = f"{self.settings.experiment}, {self.settings.preset}"
        subject = measured_model(name, model, measurer, self.out / "measured")
        write_page(ReportData([subject]), measurer, self.path("report.html"), "A first look", "tessera demo")


class _Stopwatch:
    """Moves a bar by the seconds that pass, so that it ends when the time does."""

    def __init__(self, advance):
        self.advance, self.mark = advance, time.monotonic()

    def step(self, images_seen: int) -> None:
        now = time.monotonic()
        self.advance(now - self.mark, note=f"{images_seen:,} images")
        self.mark = now


def _newest_model(settings: Settings, folder: Path, device: torch.device) -> Model | None:
    """The averaged network where training stands now, between snapshots too; None if it never began."""
    trainer = Trainer(build_denoiser(settings), settings.training, device)
    if RunFolder(folder).resume(trainer) is None:
        return None
    std = max(settings.training.ema)  # after so little training a long average looks best
    denoiser = trainer.averaged(std)
    facts = {"images_seen": trainer.images_seen, "ema": std}
    config = {"denoiser": denoiser_config(denoiser), "settings": settings.plain(), **facts}
    return Model(denoiser, conditioner_for(settings), config=config)


def training_record(settings: Settings, outcome: RunOutcome) -> dict[str, Any]:
    return {
        "experiment": settings.experiment,
        "preset": settings.preset,
        "images_seen": outcome.images_seen,
        "total": settings.training.total,
        "finished": outcome.finished,
        "loss": outcome.record.get("loss"),
        "images_per_second": outcome.record.get("images_per_second"),
    }


def _row_for(k: int, scores: Sequence[ImageScore]) -> dict[str, Any]:
    """The images for one K, with a 95% interval."""
    count = len(scores)
    return {
        "k": k,
        "images": count,
        "as_prompted": share_interval(sum(score.ok for score in scores), count).to_dict(),
        "found": sum(score.num_found for score in scores) / count,
        "extra": sum(score.extra for score in scores) / count,
        "objects": sum(score.objects for score in scores) / count,
    }


# --- drawing ------------------------------------------------------------------------------------------------


def _colored(masks: Tensor) -> Tensor:
    """Instance masks (B, H, W) as 8-bit images (B, 3, H, W), a color per object."""
    inks = torch.tensor([_STAGE_INK, *COLORS.values()], dtype=torch.uint8)
    number = torch.where(masks > 0, (masks - 1) % len(COLORS) + 1, 0)
    return inks[number].permute(0, 3, 1, 2)


def _image_rows(images: Tensor, masks: Tensor) -> Tensor:
    """A row of images, under it the row of their masks, and so on."""
    columns = min(_SHEET_COLUMNS, len(images))
    blank = torch.full_like(images[:1], 255)
    rows: list[Tensor] = []
    for first in range(0, len(images), columns):
        for layer in (images, masks):
            row = layer[first : first + columns]
            rows += [*row, *blank.expand(columns - len(row), -1, -1, -1)]
    return image_grid(rows, columns=columns)


# --- tables and sentences ------------------------------------------------------------------------------------------------


def summary_table(summary: dict[str, Any]) -> Table:
    table = Table("images", "K prompted", "n", "as prompted", "95%", "found", "extra", title="what the detector saw")
    for name, station in (("rendered", "placed"), ("sampled", "sampled")):
        for row in summary[station] or []:
            share = row["as_prompted"]
            table.add_row(
                name,
                str(row["k"]),
                str(row["images"]),
                f"{share['value']:.0%}",
                f"{share['low']:.0%} to {share['high']:.0%}",
                f"{row['found']:.2f}",
                f"{row['extra']:.2f}",
            )
    return table


def conclusions(summary: dict[str, Any]) -> list[str]:
    """How far the training got, and what to do next."""
    trained, took = summary["trained"], sum(summary["seconds"].values())
    lines = ["No training was requested."]
    if trained:
        seen, total = format_count(trained["images_seen"]), format_count(trained["total"])
        more = "" if trained["finished"] else "; run the demo again to carry on"
        lines = [f"The {trained['preset']} network of {trained['experiment']} has seen {seen} of {total} images{more}."]
    return [*lines, f"That took {took:.0f} s. Results:"]
