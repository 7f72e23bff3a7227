"""The studies of `reproduce` that stand beside the tables: their settings, each with a `run()`."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any, Literal

import torch
from matplotlib.figure import Figure

from tessera.analysis.locality import LocalityConfig, Source
from tessera.analysis.locality_figures import figure_scatter
from tessera.analysis.pixel_influence import GradientConfig, memory_bytes
from tessera.analysis.scatter import FEWEST, coefficient_lines, gather_points, scatter_record
from tessera.cli.options import Folder, ImageCount, Printed, StudyOptions
from tessera.conditioning import ColorCounts
from tessera.config import parse_count
from tessera.console import progress, publish, say, table_of
from tessera.devices import PrecisionName, pick_device, precision_on
from tessera.errors import UserError
from tessera.evaluation.calibrate import load_calibration
from tessera.evaluation.detector import load_detector
from tessera.evaluation.kmax import TrainingRange
from tessera.evaluation.pipeline import EvaluationConfig, Evaluator
from tessera.files import check_writable, make_folder, save_plot
from tessera.models.loading import check_models, open_model, set_precision
from tessera.models.model_folder import Model
from tessera.plots.figures import save_figure
from tessera.provenance import provenance
from tessera.records import CompositionRecord, CrowdingRecord, LearningRecord, ScatterRecord, new_record
from tessera.render.image_io import check_format, save_image
from tessera.rows import pick, turned
from tessera.sampling.compose import COMPOSE_METHODS, compose_by_name
from tessera.sampling.prompts import check_number, parse_ks
from tessera.scenes.vocabulary import LOCATIONS
from tessera.studies.clevr import composition, crowding, learning
from tessera.studies.clevr.fig12 import cifar_settings, fig12
from tessera.studies.clevr.figures import Panel, drawn
from tessera.studies.clevr.image_grids import shown_of
from tessera.studies.clevr.records import read_records
from tessera.studies.clevr.runs import StudyPaths
from tessera.studies.clevr.scatter import READINGS, all_readings, points_of
from tessera.studies.clevr.tables import composition_rows, crowding_pair_rows, crowding_rows


def _save(figure: Figure, path: Path, dpi: int = 110) -> None:
    save_plot(figure, path, dpi)
    say(f"{path} is drawn.")


@dataclass(frozen=True, kw_only=True)
class Fig12(StudyOptions):
    """Figure 12: train an EDM2 on CIFAR-10 (or carry on) and measure pixel influence at each noise level."""

    cifar: Path  # the official archive in its binary version (cifar-10-binary.tar.gz), or its folder
    out: Path = Path("fig12")  # folder for the run, fig12.png and fig12.json
    preset: str = "small"
    total: ImageCount = None  # images to train on; None: as many as the preset has
    images: int = 8  # over which gradients are averaged
    levels: int = 12  # of noise, at which influence is measured
    source: Source = "truth"  # noised test images, or the model's own samples
    seed: int = 0  # of images and samples
    memory: float = 1.0  # GiB that gradients may take

    def run(self) -> None:
        if self.images < 1:
            raise UserError(f"At least one image must be measured, not {self.images}.")
        device = pick_device(self.device)
        settings = cifar_settings(self.preset, None if self.total is None else parse_count(self.total))
        how = GradientConfig(memory=memory_bytes(self.memory))
        plan = LocalityConfig(0, self.images, levels=self.levels, source=self.source, seed=self.seed, how=how)
        with progress("training", settings.training.total) as advance:
            record = fig12(self.cifar, self.out, settings, plan, device, lambda images: advance(to=images))
        say(f"Figure and record are in {self.out}.")
        sides = record["growth"]["side_low_noise"], record["growth"]["side_high_noise"]
        publish(record, self.json, None, "90% side: {:.1f} pixels at low noise, {:.1f} at high.".format(*sides))


@dataclass(frozen=True, kw_only=True)
class _AlongTrainings(Printed):
    """Settings of studies of the records that `tessera reproduce --snapshots N` wrote."""

    preset: str = "small"  # of the trainings
    results: Path = Path("results")  # where the records lie, and where the study's record and figure go

    def records(self) -> list[Any]:
        return [r for r in read_records(StudyPaths(results=self.results)) if r["preset"] == self.preset]

    def figure(self, name: str) -> Path:
        return make_folder(self.results / "figures") / f"{name}-{self.preset}.png"


@dataclass(frozen=True, kw_only=True)
class Learning(_AlongTrainings):
    """K_max along training, and whether a number of objects never shown is learned without being lost again."""

    k: int = 4  # objects: more than training shows, for most cells

    def run(self) -> None:
        rows = [learning.learning(record, self.k) for record in self.records() if learning.has_course(record, self.k)]
        if not rows:
            raise UserError(
                f"{self.results} has no training at {self.preset} with evaluations of K = {self.k} "
                f"at {learning.FEWEST} moments or more; `tessera reproduce table1 --snapshots 8` makes them."
            )
        _save(learning.drawn(rows, self.k), self.figure(f"learning-k{self.k}"))
        made = {"k": self.k, "preset": self.preset, "cells": rows, "provenance": provenance(torch.device("cpu"))}
        file = self.results / f"learning-k{self.k}.json"
        publish(new_record(LearningRecord, made), self.json, file, learning.table(rows))


@dataclass(frozen=True, kw_only=True)
class Scatter(_AlongTrainings):
    """Length generalization against conditional locality, over the evaluations taken along training (Figure 2, right)."""

    rule: Literal["strict", "paper"] = "strict"  # whose K_max is drawn; scatter.json has the coefficients of both
    max_train_objects: int | None = 3  # of the trainings drawn (None: any); with more, K_max has less room to grow
    points: str | None = None  # files of points, or pairs of records of `locality` and `evaluate`, to plot instead
    out: Folder = None  # with points: folder for scatter.png and scatter.json; None: none are written
    resamples: int = 2000  # of the bootstrap
    seed: int = 0  # of the bootstrap

    def run(self) -> None:
        if self.points is not None:
            return self.plot_points([Path(word) for word in self.points.replace(",", " ").split()])
        records = self.records()
        alike = [record for record in records if self.max_train_objects in (None, record["max_train_objects"])]
        points = points_of(alike, READINGS[self.rule])
        if len(points) < FEWEST:
            raise UserError(
                f"{self.results} has too few evaluations along trainings at {self.preset}; "
                "`tessera reproduce table1 --snapshots 8` makes them."
            )
        made = {
            **scatter_record(points),
            "rule": self.rule,
            "max_train_objects": self.max_train_objects,
            "readings": [*all_readings(alike, self.max_train_objects), *all_readings(records, None)],
            "preset": self.preset,
            "provenance": provenance(),
        }
        _save(figure_scatter(points, made), self.figure("scatter"), dpi=120)
        publish(new_record(ScatterRecord, made), self.json, self.results / "scatter.json", *coefficient_lines(made))

    def plot_points(self, files: list[Path]) -> None:
        points = gather_points(files, self.rule)
        record = {**scatter_record(points, self.resamples, self.seed), "provenance": provenance()}
        out = self.out and make_folder(self.out)
        if out:
            save_figure(figure_scatter(points, record), out / "scatter.png")
            say(f"scatter.png and scatter.json are in {out}.")
        file = out and out / "scatter.json"
        publish(new_record(ScatterRecord, record), self.json, file, *coefficient_lines(record))


@dataclass(frozen=True, kw_only=True)
class _OfModel(StudyOptions):
    """Settings of studies that sample a model."""

    k: str = "1-12"  # numbers of objects in the prompts
    each: int = 64  # images for each K
    steps: int = 32  # noise levels of the sampler
    s_churn: float = 0.0  # of stochastic sampling
    seed: int = 0  # of the images


@dataclass(frozen=True, kw_only=True)
class Composition(_OfModel):
    """K_max of a model with its conditions composed at inference time in each way, beside models that need none."""

    model: str = "exp2"  # whose conditions are composed: a run folder, a model folder or the name of a shipped model
    beside: str = "exp1,exp2L"  # models evaluated as they are, for comparison; `none` for none
    ways: str = ",".join(COMPOSE_METHODS)  # to compose the conditions of the first model
    radius: int = 2  # cells to each side that belong to an object, for project and localize
    batch: int = 256  # images in one batch of the network
    precision: PrecisionName = "auto"  # of the networks; auto is bfloat16 on CUDA and float32 elsewhere
    out: Path | None = None  # file of the record, such as results/composition.json
    figure: Path | None = None  # drawing of the first images of every K for all of them (.webp or .png)

    def run(self) -> None:
        if self.figure:
            check_format(self.figure)
            check_writable(self.figure)
        device, jobs = pick_device(self.device), list(self.jobs())
        evaluation = EvaluationConfig(tuple(parse_ks(self.k)), self.each, self.steps, self.seed, self.s_churn)
        check_models(name for name, _ in jobs)
        evaluator = Evaluator(load_detector(device=device), load_calibration(), device)
        rows, panels = [], []
        for name, way in jobs:
            say(f"{name}, {way}")
            model = open_model(name, None, None, device)
            set_precision(model, self.precision, device)
            composed = compose_by_name(model.denoiser, model.conditioner, way, self.radius, self.batch)
            composed_model = model.copy_with(denoiser=composed)
            samples = evaluator.run(composed_model, evaluation)
            scores = evaluator.summarize(composed_model, samples)
            found = {"k_max": scores["k_max"], "rows": pick(scores["rows"], composition.KEPT)}
            cost = composition.passes(composed, samples, evaluation)  # of the network, per image and step
            rows.append({"model": name, "way": way, **found, "passes": cost})
            shown = shown_of(samples, TrainingRange(scores["max_train_objects"], scores["label"]))
            panels.append(Panel(f"{Path(name).name}, {way}", composition.ABOUT[way], shown))
        record = {
            "radius": self.radius,
            "evaluation": evaluation.plain(),
            "precision": precision_on(device, self.precision),
            "rows": rows,
            "provenance": provenance(device),
        }
        publish(new_record(CompositionRecord, record), self.json, self.out, table_of(turned(composition_rows(rows))))
        if self.figure:
            make_folder(self.figure.parent)
            save_image(self.figure, drawn(panels, evaluation.ks, min(composition.SHOWN, self.each)))
            say(f"{self.figure} is drawn.")

    def jobs(self) -> Iterator[tuple[str, str]]:
        """Model and way of every line of the table."""
        for way in self.ways.replace(",", " ").split():
            if way not in COMPOSE_METHODS:
                known = ", ".join(COMPOSE_METHODS)
                raise UserError(f"There is no way `{way}` to compose conditions; there are {known}.")
            yield self.model, way
        for name in [] if self.beside == "none" else self.beside.replace(",", " ").split():
            yield name, "plain"


@dataclass(frozen=True, kw_only=True)
class Crowding(_OfModel):
    """Sample at the study's locations, at as many far apart and at two at a time: does number or distance limit K?"""

    model: str = "exp1"  # a run folder, a model folder or a shipped model, whose conditions are locations
    pairs: int = 16  # images for each pair of the study's locations
    results: Path = Path("results")  # where crowding-MODEL.json and its figure go

    def run(self) -> None:
        device = pick_device(self.device)
        model = open_model(self.model, None, None, device)
        questions = self.questions(model)
        figures = make_folder(self.results / "figures")  # before the work, lest it be lost
        evaluator = Evaluator(load_detector(device=device), None, device)
        how: dict[str, Any] = {"steps": self.steps, "s_churn": self.s_churn, "seed": self.seed}
        replies: dict[str, list[Any]] = {"study": [], "apart": [], "pair": []}
        for reply in crowding.scored(evaluator, evaluator.prepare(model), questions, **how):
            replies[reply.question.kind].append(reply)
        name = Path(self.model).name
        made = {
            "model": name,
            "max_train_objects": model.max_train_objects,
            "evaluation": {"each": self.each, "pairs": self.pairs, **how},
            "study": crowding.summarized(model, replies["study"]),
            "apart": crowding.summarized(model, replies["apart"]),
            "pairs": [crowding.pair_record(reply) for reply in replies["pair"]],
            "provenance": provenance(device),
        }
        _save(crowding.drawn(made), figures / f"crowding-{name}.png")
        tables = table_of(crowding_rows([made])), table_of(crowding_pair_rows([made]))
        publish(new_record(CrowdingRecord, made), self.json, self.results / f"crowding-{name}.json", *tables)

    def questions(self, model: Model) -> list[crowding.Question]:
        """All prompts, or why there are none."""
        if isinstance(model.conditioner, ColorCounts):
            raise UserError(f"{self.model} is not conditioned on locations.")
        if min(self.each, self.pairs, self.steps) < 1:
            raise UserError("Every question needs at least one image, and at least one step.")
        ks = [k for k in parse_ks(self.k) if k]
        if not ks:
            raise UserError("--k needs a number above 0.")
        for k in ks:
            check_number(model.conditioner, k, len(LOCATIONS))
        return [
            *(crowding.Question("study", LOCATIONS[:k], self.each) for k in ks),
            *(crowding.Question("apart", crowding.far_apart(k), self.each) for k in ks),
            *(crowding.Question("pair", pair, self.pairs) for pair in combinations(LOCATIONS[: max(ks)], 2)),
        ]
