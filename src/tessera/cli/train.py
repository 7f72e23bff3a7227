"""The verb `train`."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import torch
import tyro

from tessera.cli.options import Changes, File, Folder, Number, OnDevice
from tessera.cli.refusals import value_of
from tessera.config import Settings, changed, checked, format_count, parse_changes, settings_for
from tessera.console import say
from tessera.models.build import conditioner_for
from tessera.models.run_snapshots import read_settings
from tessera.plots.image_grid import sample_grid
from tessera.render.image_io import save_png
from tessera.sampling.prompts import study_prompts
from tessera.sampling.sample import sample
from tessera.sampling.schedule import noise_levels
from tessera.training.distributed import join, leave
from tessera.training.progress_bar import ProgressBar
from tessera.training.run_folder import RunFolder, RunOutcome, train_run
from tessera.training.trainer import Trainer

SHEET_KS, SHEET_EACH, SHEET_STEPS = (1, 3, 6), 6, 16  # the image grid at snapshots is a quick look


@dataclass(frozen=True, kw_only=True)
class Train(OnDevice):
    """Train one experiment. The same command carries an interrupted run on, exactly.

    EXPERIMENT, where it is given, comes first. The defaults shown are those of the experiment, the preset and the network.
    """

    settings: Annotated[Settings, tyro.conf.arg(name="")] = field(default_factory=Settings)
    #: Change a less common setting, such as training.beta1=0.95; may be repeated.
    set: Changes = ()
    #: Take all settings from this file, such as the config.json of a run; options change them.
    config: File = None
    #: Run folder (default: runs/EXPERIMENT-M-PRESET).
    out: Folder = None
    #: Pause after this many minutes, ready to be carried on.
    minutes: Number = None
    #: Write TensorBoard events too; auto does so where TensorBoard is installed.
    tensorboard: Literal["auto", "on", "off"] = "auto"

    @staticmethod
    def defaults(words: Sequence[str]) -> "Train":
        """The settings of the experiment, preset, network and conditioner that the command line names."""
        if file := value_of(words, ["--config"]):
            return Train(settings=read_settings(Path(file)))
        experiment = words[0] if words and not words[0].startswith("-") else Settings.experiment
        kinds = {name: value_of(words, [f"--{name}.kind"]) for name in ("conditioner", "denoiser")}
        changes = {name: {"kind": kind} for name, kind in kinds.items() if kind}
        return Train(settings=settings_for(experiment, value_of(words, ["--preset"]) or Settings.preset, changes))

    def run(self) -> int | None:
        settings = checked(changed(self.settings, parse_changes(self.set)))
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
                    on_snapshot=_save_sample_grid,
                )
        finally:
            leave()
        if group.leads:
            say(_ending(outcome, folder))
        return 130 if outcome.interrupted and not outcome.finished else None


def _save_sample_grid(run: RunFolder, trainer: Trainer) -> None:
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


def _ending(outcome: RunOutcome, folder: Path) -> str:
    seen, seconds = outcome.images_seen, outcome.seconds
    if outcome.finished:
        return f"Trained on {format_count(seen)} images in {seconds:.0f} s; the run is in {folder}."
    return f"Paused at {format_count(seen)} images; the same command carries on from {folder}."
