"""The verb `features`: are conditions disentangled inside a model, more than inside one that learned nothing?"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.box import SIMPLE
from rich.table import Table

from tessera.analysis.feature_figures import (
    figure_early,
    figure_layers,
    figure_leakage,
    figure_matrices,
    names_of,
)
from tessera.analysis.feature_statistics import Band, known, null_band
from tessera.analysis.features import (
    FeatureConfig,
    FeatureResult,
    FeatureStudy,
    Level,
    Source,
    check_plan,
    chosen_steps,
    concepts_for,
    feature_study,
    mean_over_hooks,
)
from tessera.analysis.hooks import MODULATION, OUTPUT, SCALE, chosen_hooks
from tessera.analysis.pixel_influence import memory_bytes
from tessera.console import progress, publish, say
from tessera.devices import DeviceName, PrecisionName, pick_device
from tessera.errors import UserError
from tessera.files import make_folder, rounded
from tessera.models.loading import open_model, set_precision
from tessera.models.model_folder import Model
from tessera.plots.figures import save_figure
from tessera.provenance import provenance
from tessera.sampling.prompts import parse_colors

# The numbers of a hook that are set beside those of untrained networks.
BANDED: dict[str, Callable[[FeatureResult], float]] = {
    "off_diagonal": lambda found: found.raw.off_diagonal,
    "off_rms": lambda found: found.raw.off_rms,
    "within": lambda found: found.raw.within,
    "between": lambda found: found.raw.between,
    "gap": lambda found: found.raw.gap,
    "centered_off_diagonal": lambda found: found.centered.off_diagonal,
    "centered_off_rms": lambda found: found.centered.off_rms,
    "leakage": lambda found: found.leak.leakage,
    "locality": lambda found: found.leak.locality,
}
TABLED = {"off_diagonal": "cosine between", "off_rms": "rms cosine", "leakage": "leakage"}


@dataclass(frozen=True)
class Features:
    """Compare conditions by what they change inside a network, against the same network untrained."""

    model: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="RUN|MODEL")]
    """A run folder, a model folder, the name of a shipped model, or a hub id."""
    at: Annotated[str, tyro.conf.arg(metavar="PATTERNS", help_behavior_hint="")] = f"{MODULATION},{OUTPUT}"
    """Hooks to look at, such as encoder.*,output (default: all modulation layers, and the output)."""
    colors: Annotated[str | None, tyro.conf.arg(metavar="COLORS", help_behavior_hint="")] = None
    """Colors to compare, such as red,blue,green (default: all; models told hooks compare the study's)."""
    k: int = 4
    """How many to ask for together where one is removed; the first ones of those compared."""
    seeds: int = 10
    """Images for every condition, from the same seeds."""
    sigmas: str = "10,2,0.4"
    """Noise levels to look at; the sampler's nearest are taken."""
    source: Source = "generated"
    """Noisy images: each condition's own sampling, one sampling shared by all, or noised rendered truth."""
    nulls: int = 19
    """Untrained networks that make the null band."""
    steps: int = 32
    """Steps of the sampler the noise levels are taken from."""
    rows: int = 64
    """Images denoised together."""
    memory: float = 2.0
    """GiB of features held at a time; less means more passes."""
    seed: int = 0
    """Another seed looks at other images."""
    std: float | None = None
    """Length of the running average, for run folders (default: the shortest one kept)."""
    images: Annotated[str | None, tyro.conf.arg(metavar="COUNT", help_behavior_hint="")] = None
    """Snapshot to take, in images seen, such as 512Ki, for run folders (default: the last)."""
    precision: PrecisionName = "float32"
    """Of the network; differences of features deserve float32."""
    out: Annotated[Path | None, tyro.conf.arg(metavar="DIR", help_behavior_hint="")] = None
    """Folder for figures and features.json (default: none are written)."""
    device: DeviceName = "auto"
    """Where to compute."""
    json: bool = False
    """Print one JSON object on stdout."""

    def run(self) -> None:
        device = pick_device(self.device)
        model = open_model(self.model, self.std, self.images, device)
        set_precision(model, self.precision, device)
        plan = self.plan(model)
        out = None if self.out is None else make_folder(self.out)
        with progress("looking inside", (1 + plan.nulls) * len(chosen_steps(plan))) as advance:
            study = feature_study(model, plan, device, advance)
        record = {**self.head(model, plan), **study_record(study), "provenance": provenance(device)}
        if out:
            self.draw(study, plan, out)
        publish(rounded(record), self.json, out / "features.json" if out else None, *level_tables(study))
        if out:
            say(f"Figures and features.json are in {out}.")

    def plan(self, model: Model) -> FeatureConfig:
        """Everything wrong with the prompts is told before any work is done."""
        plan = FeatureConfig(
            concepts=concepts_for(
                model.conditioner, None if self.colors is None else parse_colors(self.colors)
            ),
            k=self.k,
            seeds=self.seeds,
            sigmas=parse_sigmas(self.sigmas),
            at=tuple(self.at.replace(",", " ").split()),
            source=self.source,
            nulls=self.nulls,
            steps=self.steps,
            rows=self.rows,
            memory=memory_bytes(self.memory),
            seed=self.seed,
        )
        check_plan(plan, model.conditioner)
        chosen_hooks(model, plan.at)
        return plan

    def draw(self, study: FeatureStudy, plan: FeatureConfig, out: Path) -> None:
        name = Path(self.model).name
        for number, sigma in enumerate(study.sigmas):
            given = (
                study.learned[number],
                [null[number] for null in study.nulls],
                plan.concepts,
                sigma,
                name,
            )
            save_figure(figure_matrices(*given), out / f"matrices-{number + 1}.png")
            save_figure(figure_early(*given), out / f"encoder-{number + 1}.png")
        save_figure(figure_layers(study, name), out / "layers.png")
        save_figure(figure_leakage(study, name, plan.k), out / "leakage.png")

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


def parse_sigmas(text: str) -> tuple[float, ...]:
    """`10,2,0.4` as numbers."""
    try:
        return tuple(float(word) for word in text.replace(",", " ").split())
    except ValueError:
        raise UserError(f"`{text}` is no list of noise levels; write for example 10,2,0.4.") from None


# -- records -----------------------------------------------------------------------------------------------


def study_record(study: FeatureStudy) -> dict[str, Any]:
    """Numbers of a study, JSON-ready."""
    return {
        "levels": [
            {
                "sigma": sigma,
                "beside_untrained": beside_untrained(study.learned[number], at_level(study, number)),
                "hooks": [
                    hook_record(name, found, [null[name] for null in at_level(study, number)])
                    for name, found in study.learned[number].items()
                ],
            }
            for number, sigma in enumerate(study.sigmas)
        ]
    }


def at_level(study: FeatureStudy, number: int) -> list[Level]:
    """The untrained networks at one noise level."""
    return [null[number] for null in study.nulls]


def beside_untrained(level: Level, nulls: Sequence[Level]) -> dict[str, dict[str, Any]]:
    """For every number: its mean over hooks, that of the untrained networks, and hooks outside the band."""
    return {key: beside(key, level, nulls) for key in BANDED}


def beside(key: str, level: Level, nulls: Sequence[Level]) -> dict[str, Any]:
    value = mean_over_hooks(level, BANDED[key])
    band = null_band([mean_over_hooks(null, BANDED[key]) for null in nulls])
    return {
        "mean": known(value),
        "null": band.record() if band else None,
        "clears": band.clears(value) if band else None,
        "hooks": counted(key, level, nulls),
    }


def counted(key: str, level: Level, nulls: Sequence[Level]) -> dict[str, int]:
    sides = {"below": 0, "inside": 0, "above": 0}
    for name, found in level.items():
        band = band_of(key, [null[name] for null in nulls])
        if band is not None and math.isfinite(value := BANDED[key](found)):
            sides[band.clears(value) or "inside"] += 1
    return sides


def hook_record(name: str, found: FeatureResult, nulls: Sequence[FeatureResult]) -> dict[str, Any]:
    bands = {key: band_of(key, nulls) for key in BANDED}
    return {
        "name": name,
        "raw": found.raw.record(),
        "centered": found.centered.record(),
        "removal": found.leak.record(),
        "null": {key: band.record() if band else None for key, band in bands.items()},
        "clears": {key: band.clears(BANDED[key](found)) if band else None for key, band in bands.items()},
    }


def band_of(key: str, nulls: Sequence[FeatureResult]) -> Band | None:
    return null_band([BANDED[key](null) for null in nulls])


# -- tables ------------------------------------------------------------------------------------------------


def level_tables(study: FeatureStudy) -> list[Table]:
    return [
        level_table(sigma, study.learned[number], at_level(study, number))
        for number, sigma in enumerate(study.sigmas)
    ]


def level_table(sigma: float, level: Level, nulls: Sequence[Level]) -> Table:
    """A row per hook; behind each number the range of the untrained networks."""
    title = f"sigma {sigma:.3g}, in brackets: untrained"
    table = Table(box=SIMPLE, title=title, title_justify="left", pad_edge=False, collapse_padding=True)
    for column in ("hook", *TABLED.values()):
        table.add_column(column, no_wrap=True)
    for name, found in level.items():
        here = [null[name] for null in nulls]
        cells = (banded_cell(BANDED[key](found), band_of(key, here)) for key in TABLED)
        table.add_row(name.removesuffix(f".{SCALE}"), *cells)
    table.add_section()
    table.add_row("mean over hooks", *(mean_cell(key, level, nulls) for key in TABLED))
    return table


def mean_cell(key: str, level: Level, nulls: Sequence[Level]) -> str:
    band = null_band([mean_over_hooks(null, BANDED[key]) for null in nulls])
    return banded_cell(mean_over_hooks(level, BANDED[key]), band)


def banded_cell(value: float, band: Band | None) -> str:
    """A number, bold where it lies outside the band, and the band."""
    said = f"{value:.2f}" if math.isfinite(value) else "-"
    if band is None:
        return said
    said = f"[bold]{said}[/]" if band.clears(value) else said
    return f"{said} ({band.low:.2f}..{band.high:.2f})"
