"""The verb `locality`: which pixels and which conditions influence a pixel."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import tyro
from rich.table import Table

from tessera.analysis.locality import LocalityConfig, LocalityResult, Source, measure_locality, prompts_of, scenes_of
from tessera.analysis.locality_figures import figure_conditions, figure_residual
from tessera.analysis.pixel_influence import GradientConfig, memory_bytes
from tessera.analysis.residual import Fill, definition_residual
from tessera.cli.options import Folder, ImageCount, Locations, OpensOneModel
from tessera.conditioning import ColorCounts
from tessera.console import progress, publish, say
from tessera.devices import pick_device
from tessera.errors import UserError
from tessera.files import make_folder, rounded
from tessera.models.model_folder import Model
from tessera.plots.figures import save_figure
from tessera.provenance import provenance
from tessera.records import LocalityRecord, new_record
from tessera.sampling.prompts import parse_ks, parse_locations

_SOURCES: tuple[Source, ...] = ("generated", "truth")


@dataclass(frozen=True, kw_only=True)
class Locality(OpensOneModel):
    """Measure which pixels and which conditions move a pixel, at every noise level on the way to an image."""

    #: Number of locations (or colors) in the prompts, such as 4 or 2-6.
    k: str = "4"
    #: Images sampled or rendered of each scene, over which influence is averaged.
    images: int = 8
    #: Scenes for each K: the study's locations first, then random ones.
    scenes: tyro.conf.Fixed[int] = 1
    #: Prompt for these locations instead, such as "0.65,0.65 0.25,0.65" (x,y in 0..1 from the top left).
    locations: Locations = None
    #: Locations of the pixels whose influences are measured (default: the prompted locations and the center).
    probes: Locations = None
    #: Noisy images: from the model's own sampling, from noised rendered scenes, or both in turn.
    source: Literal["generated", "truth", "both"] = "both"
    #: Number of noise levels at which influence is measured.
    levels: int = 12
    #: Steps of the sampler from which the noise levels are taken.
    steps: int = 32
    #: Also test the definition of locality: replace the image beyond a neighborhood and measure what changes.
    residual: bool = False
    #: Cells to each side that belong to the neighborhood, for --residual.
    radius: tyro.conf.Fixed[int] = 2
    #: What replaces the image beyond it, for --residual: noise, or the next image.
    fill: tyro.conf.Fixed[Fill] = "noise"
    #: Random seed of the images.
    seed: int = 0
    #: GiB that gradients may take.
    memory: tyro.conf.Fixed[float] = 1.0
    #: Images denoised together where no gradient is needed.
    rows: tyro.conf.Fixed[int] = 64
    #: Recompute the inside of the network's blocks to save memory.
    checkpoint: tyro.conf.Fixed[bool] = False
    #: Snapshot to take, in images seen, such as 512Ki, for run folders (default: the last).
    images_seen: tyro.conf.Fixed[ImageCount] = None
    #: Folder for figures and locality.json (default: none are written).
    out: Folder = None

    def run(self) -> None:
        how = GradientConfig(memory=memory_bytes(self.memory), checkpoint=self.checkpoint)
        if self.rows < 1:
            raise UserError(f"At least one image is denoised at a time, not {self.rows}.")
        device = pick_device(self.device)
        model = self.opened(self.images_seen, device)
        plans = self.plans(model, how)
        out = self.out and make_folder(self.out)
        studies = []
        with progress("locating", sum(len(prompts_of(model.conditioner, plan)) for plan in plans)) as advance:
            for plan in plans:
                studies.append(self.study(model, plan, out, device, advance))
        record = {**self.facts(model), **studies[0], "studies": studies, "provenance": provenance(device)}
        file = out and out / "locality.json"
        publish(new_record(LocalityRecord, rounded(record)), self.json, file, _study_table(studies))
        if out:
            say(f"Figures and locality.json are in {out}.")

    def plans(self, model: Model, how: GradientConfig) -> list[LocalityConfig]:
        """A plan per K and source."""
        by_location = model.conditioner.dim and not isinstance(model.conditioner, ColorCounts)
        if self.locations is not None and not by_location:
            raise UserError("This model has no location conditions.")
        locations = None if self.locations is None else parse_locations(self.locations)
        ks = parse_ks(self.k) if model.conditioner.dim else [0]
        if locations is not None:
            ks = [len(locations)]
        if 0 in ks and model.conditioner.dim:
            raise UserError("K = 0 prompts no object, so there is no condition whose influence could be measured.")
        probes = None if self.probes is None else parse_locations(self.probes)
        if probes == ():
            raise UserError("At least one location must be probed.")
        names = ("images", "scenes", "levels", "steps", "seed", "rows")
        shared: dict[str, Any] = {name: getattr(self, name) for name in names}
        plans = []
        for k in ks:
            for source in _SOURCES if self.source == "both" else (self.source,):
                plans.append(LocalityConfig(k=k, source=source, locations=locations, probes=probes, how=how, **shared))
        return plans

    def study(self, model: Model, plan: LocalityConfig, out: Path | None, device, advance) -> dict[str, Any]:
        found = measure_locality(model, plan, device, advance)
        record: dict[str, Any] = {
            "k": plan.k,
            "source": plan.source,
            "images": plan.images * len(found.scenes),
            "seed": plan.seed,
            "steps": plan.steps,
            **found.to_dict(),
        }
        if self.residual:
            record["residual"] = self.test_definition(model, plan, device)
        if out:
            self.draw(found, record, out, f"k{plan.k:02d}-{plan.source}")
        return record

    def test_definition(self, model: Model, plan: LocalityConfig, device) -> dict[str, Any]:
        """On the first scene."""
        scene = next(scenes_of(model, plan, device))
        how: dict[str, Any] = {"radius": self.radius, "fill": self.fill, "seed": plan.seed, "rows": plan.rows}
        found = definition_residual(model.denoiser, scene.trajectory, scene.cond, model.conditioner, **how)
        return {"radius": found.radius, "cells": found.cells, "fill": found.fill, "levels": found.record(plan.seed)}

    def draw(self, result: LocalityResult, record: dict[str, Any], out: Path, name: str) -> None:
        title = _title_of(Path(self.model).name, record)
        save_figure(result.plot_maps(title), out / f"maps-{name}.png")
        save_figure(result.plot(title), out / f"curves-{name}.png")
        scene = result.scenes[0]
        if scene.prompt:
            figure = figure_conditions(scene.condition_influence_maps, scene.sigmas, scene.prompt)
            save_figure(figure, out / f"conditions-{name}.png")
        if "residual" in record:
            save_figure(figure_residual(record["residual"]["levels"]), out / f"residual-{name}.png")


def _title_of(name: str, record: dict[str, Any]) -> str:
    found = record["conditional_locality"]
    source = "own samples" if record["source"] == "generated" else "noised truth"
    said = f"{name},  K = {record['k']},  {source}" if record["k"] else f"{name},  {source}"
    if found is None:
        return said
    return f"{said}:  conditional locality {found['value']:.2f}  ({found['low']:.2f} to {found['high']:.2f})"


def _study_table(studies: list[dict[str, Any]]) -> Table:
    table = Table("K", "images", "conditional locality", "null", "band of sigma", "90% side", "energy")
    for study in studies:
        found, levels = study["conditional_locality"], study["levels"]
        ends = [f"{levels[0][name]:.3g} .. {levels[-1][name]:.3g}" for name in ("side90", "energy")]
        table.add_row(f"{study['k']}", study["source"], *_locality_words(found), *ends)
    return table


def _locality_words(found: dict[str, Any] | None) -> tuple[str, str, str]:
    if found is None:
        return "-", "-", "-"
    null, band = found["null"], found["band"]
    return (
        f"{found['value']:.3f} ({found['low']:.3f} to {found['high']:.3f})",
        f"{null['value']:.3f} ({null['low']:.3f} to {null['high']:.3f})",
        f"{band['sigma_min']:.3g} to {band['sigma_max']:.3g}",
    )
