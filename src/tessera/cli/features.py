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
from tessera.cli.options import Colors, Folder, ImageCount, OpensOneModel
from tessera.config import parse_numbers
from tessera.console import progress, publish, say
from tessera.devices import pick_device
from tessera.files import make_folder, rounded
from tessera.models.model_folder import Model
from tessera.plots.figures import save_figure
from tessera.provenance import provenance
from tessera.records import FeaturesRecord, new_record
from tessera.sampling.prompts import parse_colors


@dataclass(frozen=True, kw_only=True)
class Features(OpensOneModel):
    """Compare conditions by what they change inside a network, against the same network untrained."""

    #: Hooks to record, such as encoder.*,output (default: all modulation layers, and the output).
    at: Annotated[str, tyro.conf.arg(metavar="PATTERNS", help_behavior_hint="")] = f"{MODULATION},{OUTPUT}"
    #: Colors to compare, such as red,blue,green (default: all; models with location conditions compare the study's
    #: locations).
    colors: Colors = None
    #: Number of conditions prompted together, of which one is removed at a time: the first of those compared.
    k: int = 4
    #: Images for every condition; all conditions have the same seeds.
    seeds: int = 10
    #: Noise levels at which features are measured; the nearest of the sampler are taken.
    sigmas: str = "10,2,0.4"
    #: Noisy images: from each condition's own sampling, from one sampling shared by all, or from noised renders.
    source: Source = "generated"
    #: Number of untrained networks to compare with.
    nulls: int = 19
    #: Steps of the sampler the noise levels are taken from.
    steps: tyro.conf.Fixed[int] = 32
    #: Images denoised together.
    rows: tyro.conf.Fixed[int] = 64
    #: GiB of features held at a time; less means more passes.
    memory: tyro.conf.Fixed[float] = 2.0
    #: Random seed of the images.
    seed: int = 0
    #: Snapshot to take, in images seen, such as 512Ki, for run folders (default: the last).
    images: tyro.conf.Fixed[ImageCount] = None
    #: Folder for figures and features.json (default: none are written).
    out: Folder = None

    def run(self) -> None:
        device = pick_device(self.device)
        model = self.opened(self.images, device)
        plan = self.plan(model)
        out = self.out and make_folder(self.out)
        with progress("looking inside", (1 + plan.nulls) * len(chosen_steps(plan))) as advance:
            study = feature_study(model, plan, device, advance)
        record = {**self.head(model, plan), **study.to_dict(), "provenance": provenance(device)}
        tables = [study.table(number) for number in range(len(study.sigmas))]
        if out:
            self.draw(study, out)
        publish(new_record(FeaturesRecord, rounded(record)), self.json, out and out / "features.json", *tables)
        if out:
            say(f"Figures and features.json are in {out}.")

    def plan(self, model: Model) -> FeatureConfig:
        """Reject bad prompts before any work is done."""
        names = ("k", "seeds", "source", "nulls", "steps", "rows", "seed")
        shared: dict[str, Any] = {name: getattr(self, name) for name in names}
        return FeatureConfig(
            concepts=concepts_for(model.conditioner, None if self.colors is None else parse_colors(self.colors)),
            sigmas=parse_numbers(self.sigmas, what="noise levels", example="10,2,0.4"),
            at=tuple(self.at.replace(",", " ").split()),
            memory=memory_bytes(self.memory),
            **shared,
        )

    def draw(self, study: FeatureResult, out: Path) -> None:
        name = Path(self.model).name
        for number in range(len(study.sigmas)):
            save_figure(figure_matrices(study, number, name), out / f"matrices-{number + 1}.png")
            save_figure(figure_early(study, number, name), out / f"encoder-{number + 1}.png")
        save_figure(figure_layers(study, name), out / "layers.png")
        save_figure(figure_leakage(study, name), out / "leakage.png")

    def head(self, model: Model, plan: FeatureConfig) -> dict[str, Any]:
        return {
            **self.facts(model),
            "concepts": names_of(plan.concepts),
            "k": plan.k,
            "removed": names_of(plan.concepts[: plan.k]),
            "seeds": plan.seeds,
            "seed": plan.seed,
            "source": plan.source,
            "steps": plan.steps,
            "untrained_networks": plan.nulls,
        }
