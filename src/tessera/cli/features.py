"""The verb `features`: are conditions disentangled inside a model, more than inside one that learned nothing?"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from tessera.analysis.feature_figures import figure_early, figure_layers, figure_leakage, figure_matrices, names_of
from tessera.analysis.feature_study import FeatureResult
from tessera.analysis.features import FeatureConfig, Source, chosen_steps, concepts_for, feature_study
from tessera.analysis.hooks import MODULATION, OUTPUT
from tessera.analysis.pixel_influence import memory_bytes
from tessera.cli.options import Colors, Folder, ImageCount, ModelName, Number, OpensModels, Printed, WithDetails
from tessera.console import progress, publish, say
from tessera.devices import PrecisionName, pick_device
from tessera.errors import UserError
from tessera.files import make_folder, rounded
from tessera.models.loading import open_model, set_precision
from tessera.models.model_folder import Model
from tessera.plots.figures import save_figure
from tessera.provenance import provenance
from tessera.sampling.prompts import parse_colors


@dataclass(frozen=True, kw_only=True)
class Features(OpensModels, Printed, WithDetails):
    """Compare conditions by what they change inside a network, against the same network untrained."""

    model: ModelName
    """A run folder, a model folder, the name of a shipped model, or a hub id."""
    at: Annotated[str, tyro.conf.arg(metavar="PATTERNS", help_behavior_hint="")] = f"{MODULATION},{OUTPUT}"
    """Hooks to record, such as encoder.*,output (default: all modulation layers, and the output)."""
    colors: Colors = None
    """Colors to compare, such as red,blue,green (default: all; models with location conditions compare the study's locations)."""
    k: int = 4
    """Conditions prompted together when one is removed: the first of those compared."""
    seeds: int = 10
    """Images for every condition, from the same seeds."""
    sigmas: str = "10,2,0.4"
    """Noise levels to measure; the sampler's nearest are taken."""
    source: Source = "generated"
    """Noisy images: each condition's own sampling, one sampling shared by all, or noised rendered truth."""
    nulls: int = 19
    """Untrained networks that make the null band."""
    steps: tyro.conf.Fixed[int] = 32
    """Steps of the sampler the noise levels are taken from."""
    rows: tyro.conf.Fixed[int] = 64
    """Images denoised together."""
    memory: tyro.conf.Fixed[float] = 2.0
    """GiB of features held at a time; less means more passes."""
    seed: int = 0
    """Random seed of the images."""
    std: tyro.conf.Fixed[Number] = None
    """Length of the running average, for run folders (default: the shortest one kept)."""
    images: tyro.conf.Fixed[ImageCount] = None
    """Snapshot to take, in images seen, such as 512Ki, for run folders (default: the last)."""
    precision: tyro.conf.Fixed[PrecisionName] = "float32"
    """Of the network; differences of features deserve float32."""
    out: Folder = None
    """Folder for figures and features.json (default: none are written)."""

    def run(self) -> None:
        device = pick_device(self.device)
        model = open_model(self.model, self.std, self.images, device)
        set_precision(model, self.precision, device)
        plan = self.plan(model)
        out = None if self.out is None else make_folder(self.out)
        with progress("looking inside", (1 + plan.nulls) * len(chosen_steps(plan))) as advance:
            study = feature_study(model, plan, device, advance)
        record = {**self.head(model, plan), **study.to_dict(), "provenance": provenance(device)}
        tables = [study.table(number) for number in range(len(study.sigmas))]
        if out:
            self.draw(study, out)
        publish(rounded(record), self.json, out / "features.json" if out else None, *tables)
        if out:
            say(f"Figures and features.json are in {out}.")

    def plan(self, model: Model) -> FeatureConfig:
        """Reject bad prompts before any work is done."""
        return FeatureConfig(
            concepts=concepts_for(model.conditioner, None if self.colors is None else parse_colors(self.colors)),
            k=self.k,
            seeds=self.seeds,
            sigmas=_parse_sigmas(self.sigmas),
            at=tuple(self.at.replace(",", " ").split()),
            source=self.source,
            nulls=self.nulls,
            steps=self.steps,
            rows=self.rows,
            memory=memory_bytes(self.memory),
            seed=self.seed,
        )

    def draw(self, study: FeatureResult, out: Path) -> None:
        name = Path(self.model).name
        for number in range(len(study.sigmas)):
            save_figure(figure_matrices(study, number, name), out / f"matrices-{number + 1}.png")
            save_figure(figure_early(study, number, name), out / f"encoder-{number + 1}.png")
        save_figure(figure_layers(study, name), out / "layers.png")
        save_figure(figure_leakage(study, name), out / "leakage.png")

    def head(self, model: Model, plan: FeatureConfig) -> dict[str, Any]:
        settings = model.config.get("settings") or {}
        return {
            "model": Path(self.model).name,
            "experiment": settings.get("experiment"),
            "images_seen": model.config.get("images_seen"),
            "ema": model.config.get("ema"),
            "max_train_objects": model.max_train_objects,
            "size": model.size,
            "concepts": names_of(plan.concepts),
            "k": plan.k,
            "removed": names_of(plan.concepts[: plan.k]),
            "seeds": plan.seeds,
            "seed": plan.seed,
            "source": plan.source,
            "steps": plan.steps,
            "untrained_networks": plan.nulls,
        }


def _parse_sigmas(text: str) -> tuple[float, ...]:
    """`10,2,0.4` as numbers."""
    try:
        return tuple(float(word) for word in text.replace(",", " ").split())
    except ValueError:
        raise UserError(f"`{text}` is no list of noise levels; write for example 10,2,0.4.") from None
