"""The demo without shipped models: draws scenes, evaluates them, trains a tiny network, and reports on its samples."""

import hashlib
import itertools
import json
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

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
from tessera.evaluation.kmax import TrainingRange
from tessera.evaluation.pipeline import score_images, summarize
from tessera.models.build import build_denoiser, conditioner_for
from tessera.models.model_folder import Model, denoiser_config
from tessera.plots.image_grid import image_grid, sample_grid
from tessera.provenance import provenance
from tessera.render.image_io import save_png, to_uint8
from tessera.render.render import render
from tessera.rows import plural
from tessera.sampling.prompts import Prompt
from tessera.scenes.sampling import Scenes
from tessera.scenes.vocabulary import COLORS, LOCATIONS
from tessera.training.run_folder import RunFolder, train_run
from tessera.training.trainer import Trainer

_SCENE_SIZES = (64, 128)
_SHEET_COLUMNS = 8
_PLACED_KS, _PLACED_SIZE = (1, 3, 6, 9), 64
_SAMPLED_KS, _SAMPLE_STEPS = (1, 2, 3), 18  # the little network saw up to three objects
_STAGE_INK = (30, 30, 30)  # of the empty stage in a drawn mask

_Found = TypeVar("_Found")
Rows = list[dict[str, Any]]


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
        detector = load_detector(device=self.device)  # first: without it there is nothing to show
        return {
            "scenes": self.timed("scenes", self.draw_scenes, count),
            "placed": self.timed("placed", self.evaluate_placed, detector, each),
            "trained": self.timed("training", self.train, minutes),
            "sampled": self.timed("sampled", self.evaluate_sampled, detector, each),
            "seconds": self.seconds,
            "provenance": provenance(self.device),
        }

    def timed(self, station: str, work: Callable[..., _Found], *given: Any) -> _Found:
        began = time.perf_counter()
        found = work(*given)
        self.seconds[station] = round(time.perf_counter() - began, 2)
        return found

    def path(self, name: str) -> Path:
        """A file of the demo; its path is listed at the end."""
        self.written.append(self.out / name)
        return self.out / name

    def draw_scenes(self, count: int) -> dict[str, Any]:
        """One sheet per size: scenes of one to three objects, each with its mask."""
        scenes = Scenes(objects=(1, 3)).draw(count, self.seed, device=self.device)
        columns = min(_SHEET_COLUMNS, count)
        for size in _SCENE_SIZES:
            frame = render(scenes, size, layers=("rgb", "mask"))
            images, masks = to_uint8(frame["rgb"]).cpu(), _colored(frame["mask"].cpu())
            rows = itertools.chain.from_iterable(zip(images.split(columns), masks.split(columns)))
            sheet = torch.cat([image_grid(row, columns=columns) for row in rows], dim=1)
            save_png(self.path(f"scenes-{size}.png"), sheet)
        return {"count": count, "sizes": list(_SCENE_SIZES), "objects": int(scenes.count.sum())}

    def evaluate_placed(self, detector: Detector, each: int) -> Rows:
        """Rendered objects at the study's locations: the detector should find each of them."""
        prompts, scores, explained = [], [], []
        with console.progress("detecting placed objects", len(_PLACED_KS)) as advance:
            for k in _PLACED_KS:
                images = render(at_study_locations(k, each, self.seed, 0, self.device), _PLACED_SIZE)["rgb"]
                same = [Prompt(LOCATIONS[:k])] * each
                prompts += same
                scores += score_images(detector, images, same)
                explained.append(draw_explanation(images[0], scores[-each], same[0]))
                advance()
        save_png(self.path("placed-explained.png"), image_grid(explained, columns=2))
        return _counted(summarize(prompts, scores, TrainingRange(), _PLACED_SIZE)["rows"])

    @property
    def run_folder(self) -> Path:
        """Other settings, as another version may have, get another folder rather than a refusal."""
        mark = hashlib.sha256(json.dumps(self.settings.plain(), sort_keys=True).encode()).hexdigest()[:8]
        return self.out / f"run-{mark}"

    def train(self, minutes: float) -> dict[str, Any] | None:
        """Train for some minutes, from where the last demo stopped."""
        if minutes == 0:
            return None
        settings = self.settings
        with console.progress(f"training, {minutes:g} min", 60 * minutes) as advance:
            began = time.monotonic()

            def step(images_seen: int) -> None:
                # The bar shows the time, of which so much is given.
                advance(to=time.monotonic() - began, note=plural(images_seen, "image"))

            outcome = train_run(
                settings, self.run_folder, device=self.device, minutes=minutes, on_step=step, on_message=console.say
            )
        return {
            "experiment": settings.experiment,
            "preset": settings.preset,
            "images_seen": outcome.images_seen,
            "total": settings.training.total,
            "finished": outcome.finished,
            **{name: outcome.record.get(name) for name in ("loss", "images_per_second")},
        }

    def evaluate_sampled(self, detector: Detector, each: int) -> Rows | None:
        """Samples of the little network as it is now, evaluated, on the same page that any model gets."""
        settings = self.settings
        model = _newest_model(settings, self.run_folder, self.device)
        if model is None:
            return None
        config = ReportConfig(n=each, ks=_SAMPLED_KS, steps=_SAMPLE_STEPS, seed=self.seed, images=2, levels=8)
        measurer = ColumnEvaluator(self.device, config, detector)
        name = f"{settings.experiment}, {settings.preset}"
        subject = measured_model(name, model, measurer, self.out / "measured")
        write_page(ReportData([subject]), measurer, self.path("report.html"), "A first look", "tessera demo")
        shown = list(itertools.chain.from_iterable(subject.shown.values()))
        sheet = sample_grid(torch.stack([one.image for one in shown]), [one.wanted for one in shown], _SHEET_COLUMNS)
        save_png(self.path("samples.png"), sheet)
        return _counted(subject.rows)


def _newest_model(settings: Settings, folder: Path, device: torch.device) -> Model | None:
    """The averaged network where training stands now, between snapshots too; None if it never began."""
    trainer = Trainer(build_denoiser(settings), settings.training, device)
    if RunFolder(folder).resume(trainer) is None:
        return None
    std = max(settings.training.ema)  # after so little training a long average gives the best images
    denoiser = trainer.averaged(std)
    facts = {"images_seen": trainer.images_seen, "ema": std}
    config = {"denoiser": denoiser_config(denoiser), "settings": settings.plain(), **facts}
    return Model(denoiser, conditioner_for(settings), config=config)


def _counted(rows: Iterable[Mapping[str, Any]]) -> Rows:
    """What was counted for each K, briefly."""
    return [
        {
            "k": row["k"],
            "images": row["n"],
            "as_prompted": row["exact"],
            **{name: row[name]["value"] for name in ("found", "extra", "objects")},
        }
        for row in rows
    ]


def _colored(masks: Tensor) -> Tensor:
    """Instance masks (B, H, W) as 8-bit images (B, 3, H, W), a color per object."""
    inks = torch.tensor([_STAGE_INK, *COLORS.values()], dtype=torch.uint8)
    number = torch.where(masks > 0, (masks - 1) % len(COLORS) + 1, 0)
    return inks[number].permute(0, 3, 1, 2)


# --- tables and sentences ------------------------------------------------------------------------------------------------


def summary_table(summary: dict[str, Any]) -> Table:
    table = Table("images", "K prompted", "n", "as prompted", "95%", "found", "extra", title="what the detector found")
    for name, station in (("rendered", "placed"), ("sampled", "sampled")):
        for row in summary[station] or []:
            share = row["as_prompted"]
            words = f"{share['value']:.0%}", f"{share['low']:.0%} to {share['high']:.0%}"
            table.add_row(name, str(row["k"]), str(row["images"]), *words, f"{row['found']:.2f}", f"{row['extra']:.2f}")
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
