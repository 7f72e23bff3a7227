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
from tessera.cli.options import Folder, ImageCount, Locations, ModelName, Number, OpensModels, Printed, WithDetails
from tessera.conditioning import ColorCounts
from tessera.console import progress, publish, say
from tessera.devices import PrecisionName, pick_device
from tessera.errors import UserError
from tessera.files import make_folder, rounded
from tessera.models.loading import open_model, set_precision
from tessera.models.model_folder import Model
from tessera.plots.figures import save_figure
from tessera.provenance import provenance
from tessera.records import LocalityRecord, new_record
from tessera.sampling.prompts import parse_ks, parse_locations

_SOURCES: tuple[Source, ...] = ("generated", "truth")


@dataclass(frozen=True, kw_only=True)
class Locality(OpensModels, Printed, WithDetails):
    """Measure which pixels and which conditions move a pixel, at every noise level on the way to an image."""

    model: ModelName
    """A run folder, a model folder, the name of a shipped model, or a hub id."""
    k: str = "4"
    """How many locations (or colors) to prompt for, such as 4 or 2-6."""
    images: int = 8
    """Images of each scene."""
    scenes: tyro.conf.Fixed[int] = 1
    """Scenes for each K: the study's locations first, then random ones."""
    locations: Locations = None
    """Locations of your own instead, such as "0.65,0.65 0.25,0.65" (x,y in 0..1 from the top left)."""
    probes: Locations = None
    """Locations to probe (default: the prompted locations and the center)."""
    source: Literal["generated", "truth", "both"] = "both"
    """Along the model's own sampling, on noised rendered scenes, or on both in turn."""
    levels: int = 12
    """Noise levels to measure."""
    steps: int = 32
    """Steps of the sampler they are taken from."""
    residual: bool = False
    """Also test the definition: exchange what lies beyond a neighborhood and see what changes."""
    radius: tyro.conf.Fixed[int] = 2
    """Cells to each side that belong to the neighborhood, for --residual."""
    fill: tyro.conf.Fixed[Fill] = "noise"
    """What replaces the image beyond it, for --residual: noise, or the next image."""
    seed: int = 0
    """Random seed of the images."""
    memory: tyro.conf.Fixed[float] = 1.0
    """GiB that gradients may take."""
    rows: tyro.conf.Fixed[int] = 64
    """Images denoised together where no gradient is needed."""
    checkpoint: tyro.conf.Fixed[bool] = False
    """Recompute the inside of the network's blocks to save memory."""
    std: tyro.conf.Fixed[Number] = None
    """Length of the running average, for run folders (default: the shortest one kept)."""
    images_seen: tyro.conf.Fixed[ImageCount] = None
    """Snapshot to take, in images seen, such as 512Ki, for run folders (default: the last)."""
    precision: tyro.conf.Fixed[PrecisionName] = "float32"
    """Of the network; gradients deserve float32."""
    out: Folder = None
    """Folder for figures and locality.json (default: none are written)."""

    def run(self) -> None:
        how = GradientConfig(memory=memory_bytes(self.memory), checkpoint=self.checkpoint)
        if self.rows < 1:
            raise UserError(f"At least one image is denoised at a time, not {self.rows}.")
        device = pick_device(self.device)
        model = open_model(self.model, self.std, self.images_seen, device)
        set_precision(model, self.precision, device)
        plans = self.plans(model, how)
        out = None if self.out is None else make_folder(self.out)
        studies = []
        with progress("locating", sum(len(prompts_of(model.conditioner, plan)) for plan in plans)) as advance:
            for plan in plans:
                studies.append(self.study(model, plan, out, device, advance))
        record = {**self.head(model), **studies[0], "studies": studies, "provenance": provenance(device)}
        publish(
            new_record(LocalityRecord, rounded(record)),
            self.json,
            out / "locality.json" if out else None,
            _study_table(studies),
        )
        if out:
            say(f"Figures and locality.json are in {out}.")

    def plans(self, model: Model, how: GradientConfig) -> list[LocalityConfig]:
        """A plan per K and source."""
        if self.k and 0 in parse_ks(self.k) and model.conditioner.dim and self.locations is None:
            raise UserError("K = 0 prompts no object, so there is no condition whose influence could be measured.")
        locations = self.own_locations(model)
        ks = [len(locations)] if locations else parse_ks(self.k) if model.conditioner.dim else [0]
        probes = None if self.probes is None else parse_locations(self.probes)
        if probes == ():
            raise UserError("At least one location must be probed.")
        return [
            LocalityConfig(
                k=k,
                images=self.images,
                scenes=self.scenes,
                levels=self.levels,
                steps=self.steps,
                source=source,
                seed=self.seed,
                locations=locations,
                probes=probes,
                how=how,
                rows=self.rows,
            )
            for k in ks
            for source in (_SOURCES if self.source == "both" else (self.source,))
        ]

    def own_locations(self, model: Model) -> tuple[tuple[float, float], ...] | None:
        if self.locations is None:
            return None
        if isinstance(model.conditioner, ColorCounts) or not model.conditioner.dim:
            raise UserError("This model has no location conditions.")
        locations = parse_locations(self.locations)
        if not locations:
            raise UserError("K = 0 prompts no object, so there is no condition whose influence could be measured.")
        return locations

    def study(self, model: Model, plan: LocalityConfig, out: Path | None, device, advance) -> dict[str, Any]:
        found = measure_locality(model.denoiser, model.conditioner, model.size, plan, device, advance)
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
        _, cond, trajectory = next(scenes_of(model.denoiser, model.conditioner, model.size, plan, device))
        found = definition_residual(
            model.denoiser,
            trajectory,
            cond,
            model.conditioner,
            radius=self.radius,
            fill=self.fill,
            seed=plan.seed,
            rows=plan.rows,
        )
        return {"radius": found.radius, "cells": found.cells, "fill": found.fill, "levels": found.record(plan.seed)}

    def draw(self, result: LocalityResult, record: dict[str, Any], out: Path, name: str) -> None:
        title = _title_of(Path(self.model).name, record)
        save_figure(result.plot_maps(title), out / f"maps-{name}.png")
        save_figure(result.plot(title), out / f"curves-{name}.png")
        if result.scenes[0].prompt:
            save_figure(figure_conditions(result.scenes[0]), out / f"conditions-{name}.png")
        if "residual" in record:
            save_figure(figure_residual(record["residual"]["levels"]), out / f"residual-{name}.png")

    def head(self, model: Model) -> dict[str, Any]:
        settings = model.config.get("settings") or {}
        return {
            "model": Path(self.model).name,
            "experiment": settings.get("experiment"),
            "images_seen": model.config.get("images_seen"),
            "ema": model.config.get("ema"),
            "max_train_objects": model.max_train_objects,
            "size": model.size,
        }


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
