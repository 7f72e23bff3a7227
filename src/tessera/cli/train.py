"""The verbs `train` and `ema`."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import torch
import tyro

from tessera.cli.options import flags_for, given, note_unused_settings
from tessera.config import Settings, format_count, parse_count, parse_range, settings_for
from tessera.console import say
from tessera.devices import DeviceName
from tessera.errors import UserError
from tessera.models.build import conditioner_for
from tessera.models.model_folder import is_model_folder, save_model
from tessera.models.run_snapshots import format_std, is_run, load_run
from tessera.plots.image_grid import sample_grid
from tessera.render.image_io import save_png
from tessera.sampling.prompts import study_prompts
from tessera.sampling.sample import sample
from tessera.sampling.schedule import noise_levels
from tessera.training.distributed import join, leave
from tessera.training.progress_bar import ProgressBar
from tessera.training.run_folder import RunFolder, RunOutcome, train_run
from tessera.training.trainer import Trainer

ConditionerFlags, DataFlags = flags_for("conditioner"), flags_for("data")
DenoiserFlags, TrainingFlags = flags_for("denoiser"), flags_for("training")
SHEET_KS, SHEET_EACH, SHEET_STEPS = (1, 3, 6), 6, 16  # the sheet at snapshots is a quick look


@dataclass(frozen=True)
class Train:
    """Train one experiment of the study. The same command carries an interrupted run on, exactly."""

    experiment: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="EXPERIMENT")]
    """One of exp1, exp2, exp2-random, exp2-drop, exp3, exp2L, exp3L, exp1C, exp2C, color."""
    objects: Annotated[str | None, tyro.conf.arg(metavar="RANGE", help_behavior_hint="(default: 1-3)")] = None
    """Fewest and most objects in a training scene."""
    preset: str = "small"
    """Size of the whole: tiny (32 px, minutes on a CPU), small (64 px, minutes on a GPU), paper (128 px)."""
    total: Annotated[str | None, tyro.conf.arg(metavar="COUNT", help_behavior_hint="(from preset)")] = None
    """Images to train on, such as 4Mi."""
    out: Annotated[Path | None, tyro.conf.arg(metavar="DIR", help_behavior_hint="")] = None
    """Run folder (default: runs/EXPERIMENT-M-PRESET)."""
    minutes: float | None = None
    """Pause after this many minutes, ready to be carried on."""
    device: DeviceName = "auto"
    """Where to compute."""
    tensorboard: Literal["auto", "on", "off"] = "auto"
    """Write TensorBoard events too; auto does so where TensorBoard is installed."""
    conditioner: ConditionerFlags = field(default_factory=ConditionerFlags)  # type: ignore[valid-type]
    """What the network is told."""
    data: DataFlags = field(default_factory=DataFlags)  # type: ignore[valid-type]
    """The scenes and how they are drawn."""
    denoiser: DenoiserFlags = field(default_factory=DenoiserFlags)  # type: ignore[valid-type]
    """The network."""
    training: TrainingFlags = field(default_factory=TrainingFlags)  # type: ignore[valid-type]
    """Optimizer, noise levels, averages, and how the work is done."""

    def run(self) -> int | None:
        settings = self.settings()
        folder = self.out or Path("runs") / settings.run_name
        group, device = join(self.device)
        try:
            with ProgressBar(settings, folder, group, self.tensorboard) as watch:
                outcome = train_run(
                    settings,
                    folder,
                    device=device,
                    group=group,
                    minutes=self.minutes,
                    on_step=watch.step,
                    on_record=watch.record,
                    on_snapshot=save_sample_grid,
                    on_message=watch.say,
                )
        finally:
            leave()
        if group.leads:
            say(ending(outcome, folder))
        return 130 if outcome.interrupted and not outcome.finished else None

    def settings(self) -> Settings:
        """Preset, experiment, then what was given on the command line."""
        changes = {
            group: given(group, getattr(self, group))
            for group in ("conditioner", "data", "denoiser", "training")
        }
        if self.objects is not None:
            changes["data"]["objects"] = parse_range(self.objects)
        if self.total is not None:
            changes["training"]["total"] = parse_count(self.total)
        settings = settings_for(self.experiment, self.preset, changes)
        note_unused_settings(changes, [settings])
        return settings


def save_sample_grid(run: RunFolder, trainer: Trainer) -> None:
    """A few images for 1, 3 and 6 conditions, made with the averaged weights: samples/IMAGES.png."""
    settings = run.settings()
    conditioner = conditioner_for(settings)
    prompts = study_prompts(conditioner, list(SHEET_KS) if conditioner.dim else [0], SHEET_EACH, seed=0)
    made = sample(
        trainer.averaged(),
        torch.cat([conditioner.at(prompt.wanted) for prompt in prompts]),
        settings.data.size,
        [prompt.seed for prompt in prompts],
        sigmas=noise_levels(SHEET_STEPS),
    )
    sheet = sample_grid(made.float().cpu(), [prompt.wanted for prompt in prompts], columns=SHEET_EACH)
    save_png(run.samples / f"{trainer.images_seen:012d}.png", sheet)


def ending(outcome: RunOutcome, folder: Path) -> str:
    seen, seconds = outcome.images_seen, outcome.seconds
    if outcome.finished:
        return f"Trained on {format_count(seen)} images in {seconds:.0f} s; the run is in {folder}."
    return f"Paused at {format_count(seen)} images; the same command carries on from {folder}."


@dataclass(frozen=True)
class Ema:
    """Make a model folder from a run, with a running average of any length, chosen after the fact."""

    folder: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(name="run", metavar="RUN")]
    """The run folder."""
    std: float = 0.05
    """Length of the average, as a share of the training: 0.05 looks back about a twentieth."""
    images: Annotated[str | None, tyro.conf.arg(metavar="COUNT", help_behavior_hint="")] = None
    """Snapshot at which the average ends, in images seen, such as 512Ki (default: the last)."""
    out: Path | None = None
    """Model folder to write (default: RUN/models/std-STD)."""
    full: bool = False
    """Keep weights in float32 rather than in half precision."""

    def run(self) -> None:
        if not is_run(self.folder):
            raise UserError(f"{self.folder} is not a run folder.")
        model = load_run(self.folder, self.std, None if self.images is None else parse_count(self.images))
        out = self.out or self.folder / "models" / f"std-{format_std(self.std)}"
        if out.exists() and not is_model_folder(out) and any(out.iterdir()):
            raise UserError(f"{out} holds something else than a model; choose another folder (--out).")
        kept = {key: model.config[key] for key in ("settings", "images_seen", "ema")}
        save_model(out, model.denoiser, model.conditioner, kept, half=not self.full)
        say(f"The average of std {self.std:g} at {model.config['images_seen']} images is in {out}.")
