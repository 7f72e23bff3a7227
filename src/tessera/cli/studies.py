"""The studies of `reproduce` that stand beside the tables: their settings, each with a `run()`."""

from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
import tyro

from tessera import console
from tessera.analysis.locality import Source
from tessera.analysis.locality_figures import figure_scatter
from tessera.analysis.pixel_influence import GradientConfig, memory_bytes
from tessera.analysis.scatter import FEWEST, coefficient_lines, gather_points, scatter_record
from tessera.cli.options import Folder
from tessera.conditioning import ColorCounts
from tessera.config import parse_count
from tessera.console import progress, publish, say
from tessera.devices import DeviceName, PrecisionName, pick_device, precision_on
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
from tessera.studies.clevr.composition import ABOUT, SHOWN, passes
from tessera.studies.clevr.composition import KEPT as composition_KEPT
from tessera.studies.clevr.crowding import Question, far_apart, pair_record, scored, summarized
from tessera.studies.clevr.crowding import drawn as crowding_drawn
from tessera.studies.clevr.fig12 import cifar_settings, fig12
from tessera.studies.clevr.figures import Panel, drawn
from tessera.studies.clevr.image_grids import ShownImages, shown_of
from tessera.studies.clevr.learning import FEWEST as learning_FEWEST
from tessera.studies.clevr.learning import drawn as learning_drawn
from tessera.studies.clevr.learning import has_course, learning
from tessera.studies.clevr.learning import table as learning_table
from tessera.studies.clevr.records import read_records
from tessera.studies.clevr.runs import StudyPaths
from tessera.studies.clevr.scatter import READINGS, all_readings, points_of
from tessera.studies.clevr.tables import composition_rows, crowding_pair_rows, crowding_rows


@dataclass(frozen=True)
class Fig12:
    """Figure 12: train an EDM2 on CIFAR-10 (or carry on) and measure pixel influence at each noise level."""

    cifar: Annotated[Path, tyro.conf.arg(metavar="PATH")]
    """The official archive in its binary version (cifar-10-binary.tar.gz), or its folder."""
    out: Path = Path("fig12")
    """Folder for the run, fig12.png and fig12.json."""
    preset: str = "small"
    """tiny, small or paper."""
    total: Annotated[str | None, tyro.conf.arg(metavar="COUNT", help_behavior_hint="")] = None
    """Images to train on, such as 4Mi (default: the preset's)."""
    images: int = 8
    """Images over which gradients are averaged."""
    levels: int = 12
    """Noise levels at which influence is measured."""
    source: Source = "truth"
    """The model's own samples, or noised test images."""
    seed: int = 0
    """Random seed of images and samples."""
    memory: float = 1.0
    """GiB that gradients may take."""
    device: DeviceName = "auto"
    """Where to compute."""
    json: bool = False
    """Print one JSON object on stdout."""

    def run(self) -> None:
        if self.images < 1:
            raise UserError(f"At least one image must be measured, not {self.images}.")
        device = pick_device(self.device)
        total = None if self.total is None else parse_count(self.total)
        total_images = cifar_settings(self.preset, total).training.total
        with progress("training", total_images) as advance:
            seen = [0]

            def moved(images: int) -> None:
                advance(images - seen[0])
                seen[0] = images

            record = fig12(
                self.cifar,
                self.out,
                preset=self.preset,
                total=total,
                images=self.images,
                levels=self.levels,
                source=self.source,
                seed=self.seed,
                how=GradientConfig(memory=memory_bytes(self.memory)),
                device=device,
                on_step=moved,
            )
        say(f"Figure and record are in {self.out}.")
        sides = record["growth"]["side_low_noise"], record["growth"]["side_high_noise"]
        publish(record, self.json, None, "90% side: {:.1f} pixels at low noise, {:.1f} at high.".format(*sides))


@dataclass(frozen=True)
class Learning:
    """K_max along training, and whether a number of objects never shown is learned without being lost again."""

    k: int = 4
    """How many objects: more than training shows, for most cells."""
    preset: str = "small"
    """Preset of the trainings."""
    results: Path = Path("results")
    """Where the records of `tessera reproduce --snapshots N` lie; learning-kK.json and its figure go there."""
    json: bool = False
    """Print one JSON object."""

    def run(self) -> None:
        records = [r for r in read_records(StudyPaths(results=self.results)) if r["preset"] == self.preset]
        rows = [learning(record, self.k) for record in records if has_course(record, self.k)]
        if not rows:
            raise UserError(
                f"{self.results} has no training at {self.preset} with evaluations of K = {self.k} "
                f"at {learning_FEWEST} moments or more; `tessera reproduce table1 --snapshots 8` makes them."
            )
        made = {"k": self.k, "preset": self.preset, "cells": rows, "provenance": provenance(torch.device("cpu"))}
        figure = make_folder(self.results / "figures") / f"learning-k{self.k}-{self.preset}.png"
        save_plot(learning_drawn(rows, self.k), figure)
        console.publish(
            new_record(LearningRecord, made), self.json, self.results / f"learning-k{self.k}.json", learning_table(rows)
        )
        console.say(f"{figure} is learning_drawn.")


@dataclass(frozen=True)
class Scatter:
    """Length generalization against conditional locality, over the evaluations taken along training (Figure 2, right)."""

    preset: str = "small"
    """Preset of the trainings."""
    rule: Literal["strict", "paper"] = "strict"
    """Whose K_max is drawn; scatter.json has the coefficients of both."""
    max_train_objects: int | None = 3
    """Draw trainings on 1 to this many objects only (None: all); with more of them K_max has less room to grow."""
    results: Path = Path("results")
    """Where the records of `tessera reproduce --snapshots N` lie; scatter.json and its figure go there."""
    points: str | None = None
    """Plot these instead: files of points, or pairs of records: locality.json,detector.json,locality.json,detector.json,..."""
    out: Folder = None
    """With points: folder for scatter.png and scatter.json (default: none are written)."""
    resamples: int = 2000
    """Bootstrap resamples."""
    seed: int = 0
    """Of the bootstrap."""
    json: bool = False
    """Print one JSON object."""

    def run(self) -> None:
        if self.points is not None:
            return self.plot_points([Path(word) for word in self.points.replace(",", " ").split()])
        paths = StudyPaths(results=self.results)
        records = [record for record in read_records(paths) if record["preset"] == self.preset]
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
        figure = make_folder(paths.figures) / f"scatter-{self.preset}.png"
        save_plot(figure_scatter(points, made), figure, dpi=120)
        say(f"{figure} is drawn.")
        publish(new_record(ScatterRecord, made), self.json, self.results / "scatter.json", *coefficient_lines(made))

    def plot_points(self, files: list[Path]) -> None:
        points = gather_points(files, self.rule)
        record = {**scatter_record(points, self.resamples, self.seed), "provenance": provenance()}
        out = None if self.out is None else make_folder(self.out)
        if out:
            save_figure(figure_scatter(points, record), out / "scatter.png")
            say(f"scatter.png and scatter.json are in {out}.")
        file = out and out / "scatter.json"
        publish(new_record(ScatterRecord, record), self.json, file, *coefficient_lines(record))


@dataclass(frozen=True)
class Composition:
    """K_max of a model with its conditions composed at inference time in each way, beside models that need none."""

    model: tyro.conf.Positional[str] = "exp2"
    """The model whose conditions are composed: a run folder, a model folder or the name of a shipped model."""
    beside: str = "exp1,exp2L"
    """Models evaluated as they are, for comparison; `none` for none."""
    ways: str = ",".join(COMPOSE_METHODS)
    """Ways to compose the conditions of the first model."""
    radius: int = 2
    """Cells to each side that belong to an object, for project and localize."""
    k: str = "1-12"
    """Numbers of objects in the prompts."""
    each: int = 64
    """Images for each K."""
    steps: int = 32
    """Noise levels of the sampler."""
    s_churn: float = 0.0
    """S_churn of stochastic sampling, for all of them."""
    batch: int = 256
    """Images in one batch of the network."""
    seed: int = 0
    """Random seed of the images."""
    precision: PrecisionName = "auto"
    """Of the networks; auto is bfloat16 on CUDA and float32 elsewhere."""
    out: Path | None = None
    """Write the JSON object to this file, such as results/composition.json."""
    figure: Path | None = None
    """Draw the first images of every K here, side by side for all of them (.webp or .png)."""
    device: DeviceName = "auto"
    """Where to compute."""
    json: bool = False
    """Print one JSON object."""

    def run(self) -> None:
        self.check_figure()
        device, jobs = pick_device(self.device), self.jobs()
        evaluation = EvaluationConfig(tuple(parse_ks(self.k)), self.each, self.steps, self.seed, self.s_churn)
        check_models(name for name, _ in jobs)
        evaluator = Evaluator(load_detector(device=device), load_calibration(), device)
        rows, panels = [], []
        for name, way in jobs:
            console.say(f"{name}, {way}")
            model = open_model(name, None, None, device)
            set_precision(model, self.precision, device)
            scores, shown = self.evaluated(evaluator, model, way, evaluation)
            rows.append({"model": name, "way": way, **scores})
            panels.append(Panel(f"{Path(name).name}, {way}", ABOUT[way], shown))
        settings = {
            "radius": self.radius,
            "evaluation": evaluation.plain(),
            "precision": precision_on(device, self.precision),
        }
        record = {**settings, "rows": rows, "provenance": provenance(device)}
        console.publish(
            new_record(CompositionRecord, record), self.json, self.out, console.table_of(turned(composition_rows(rows)))
        )
        if self.figure:
            make_folder(self.figure.parent)
            save_image(self.figure, drawn(panels, evaluation.ks, min(SHOWN, self.each)))
            console.say(f"{self.figure} is drawn.")

    def check_figure(self) -> None:
        if self.figure:
            check_format(self.figure)
            check_writable(self.figure)

    def jobs(self) -> list[tuple[str, str]]:
        """Model and way of every line of the table."""
        ways = self.ways.replace(",", " ").split()
        for way in ways:
            if way not in COMPOSE_METHODS:
                raise UserError(
                    f"There is no way `{way}` to compose conditions; there are {', '.join(COMPOSE_METHODS)}."
                )
        others = [] if self.beside == "none" else self.beside.replace(",", " ").split()
        return [*((self.model, way) for way in ways), *((name, "plain") for name in others)]

    def evaluated(
        self, evaluator: Evaluator, model: Model, way: str, evaluation: EvaluationConfig
    ) -> tuple[dict[str, Any], dict[int, list[ShownImages]]]:
        """K_max and shares, and network passes per image and step; and some of the images."""
        composed = compose_by_name(model.denoiser, model.conditioner, way, self.radius, self.batch)
        composed_model = model.copy_with(denoiser=composed)
        samples = evaluator.run(composed_model, evaluation)
        scores = evaluator.summarize(composed_model, samples)
        kept = pick(scores["rows"], composition_KEPT)
        found = {"k_max": scores["k_max"], "rows": kept, "passes": passes(composed, samples, evaluation)}
        return found, shown_of(samples, TrainingRange(scores["max_train_objects"], scores["label"]))


@dataclass(frozen=True)
class Crowding:
    """Sample at the study's locations, at as many far apart and at two at a time: does number or distance limit K?"""

    model: tyro.conf.Positional[str] = "exp1"
    """A run folder, a model folder or the name of a shipped model; its conditions must be locations."""
    k: str = "1-12"
    """Numbers of locations in the prompts."""
    each: int = 64
    """Images for each K."""
    pairs: int = 16
    """Images for each pair of the study's locations."""
    steps: int = 32
    """Noise levels of the sampler."""
    s_churn: float = 0.0
    """S_churn of stochastic sampling."""
    seed: int = 0
    """Random seed of the images."""
    results: Path = Path("results")
    """Where crowding-MODEL.json and its figure go."""
    device: DeviceName = "auto"
    """Where to compute."""
    json: bool = False
    """Print one JSON object."""

    def run(self) -> None:
        device = pick_device(self.device)
        model = open_model(self.model, None, None, device)
        questions = self.questions(model)
        figures = make_folder(self.results / "figures")  # before the work, lest it be lost
        evaluator = Evaluator(load_detector(device=device), None, device)
        replies = scored(
            evaluator, evaluator.prepare(model), questions, steps=self.steps, s_churn=self.s_churn, seed=self.seed
        )
        name = Path(self.model).name
        settings = {"each": self.each, "pairs": self.pairs, "steps": self.steps, "s_churn": self.s_churn}
        made = {
            "model": name,
            "max_train_objects": model.max_train_objects,
            "evaluation": {**settings, "seed": self.seed},
            "study": summarized(model, [reply for reply in replies if reply.question.kind == "study"]),
            "apart": summarized(model, [reply for reply in replies if reply.question.kind == "apart"]),
            "pairs": [pair_record(reply) for reply in replies if reply.question.kind == "pair"],
            "provenance": provenance(device),
        }
        figure = figures / f"crowding-{name}.png"
        save_plot(crowding_drawn(made), figure)
        tables = (console.table_of(rows) for rows in (crowding_rows([made]), crowding_pair_rows([made])))
        console.publish(new_record(CrowdingRecord, made), self.json, self.results / f"crowding-{name}.json", *tables)
        console.say(f"{figure} is crowding_drawn.")

    def questions(self, model: Model) -> "list[Question]":
        """All prompts, or why there are none."""
        if isinstance(model.conditioner, ColorCounts):
            raise UserError(f"{self.model} is not conditioned on locations.")
        if min(self.each, self.pairs, self.steps) < 1:
            raise UserError("Every question needs at least one image, and at least one step.")
        ks = [k for k in parse_ks(self.k) if k]
        for k in ks:
            check_number(model.conditioner, k, len(LOCATIONS))
        if not ks:
            raise UserError("--k needs a number above 0.")
        pairs = combinations(LOCATIONS[: max(ks)], 2)
        return [
            *(Question("study", LOCATIONS[:k], self.each) for k in ks),
            *(Question("apart", far_apart(k), self.each) for k in ks),
            *(Question("pair", pair, self.pairs) for pair in pairs),
        ]
