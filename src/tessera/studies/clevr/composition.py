"""Composition at inference time: K_max of a model with its conditions composed in each way, and the cost."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro

from tessera import console
from tessera.devices import DeviceName, PrecisionName, pick_device, precision_on
from tessera.errors import UserError
from tessera.evaluation.calibrate import load_calibration
from tessera.evaluation.detector import load_detector
from tessera.evaluation.kmax import TrainingRange
from tessera.evaluation.pipeline import EvaluationConfig, Evaluator, ScoredSamples
from tessera.files import check_writable, make_folder
from tessera.models.loading import check_models, open_model, set_precision
from tessera.models.model_folder import Model
from tessera.provenance import provenance
from tessera.records import CompositionRecord, new_record
from tessera.render.image_io import check_format, save_image
from tessera.rows import turned
from tessera.sampling.compose import COMPOSE_METHODS, compose_by_name
from tessera.sampling.prompts import parse_ks
from tessera.studies.clevr.figures import Panel, drawn
from tessera.studies.clevr.image_grids import ShownImages, shown_of
from tessera.studies.clevr.tables import composition_rows


@dataclass(frozen=True)
class ReproduceComposition:
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
    """Another seed gives other images."""
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
            new_record(CompositionRecord, record),
            self.json,
            self.out,
            console.table_of(turned(composition_rows(rows))),
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
        kept = [{name: row[name] for name in KEPT} for row in scores["rows"]]
        found = {"k_max": scores["k_max"], "rows": kept, "passes": passes(composed, samples, evaluation)}
        return found, shown_of(samples, TrainingRange(scores["max_train_objects"], scores["label"]))


ABOUT = {
    "plain": "all conditions at once",
    "sum": "one condition at a time; the changes are added",
    "project": "every object from a pass with its condition alone",
    "localize": "every cell from a pass with the conditions near it",
}
SHOWN = 4  # images of each K in a figure
KEPT = ("k", "n", "all_found", "exact", "allowed_extras", "two_missing", "found", "extra")


def passes(composed: Any, samples: ScoredSamples, evaluation: EvaluationConfig) -> float:
    """Images denoised for each image that the plain model would denoise."""
    calls = 2 * evaluation.steps - 1  # Heun takes two calls in every step but the last
    return composed.passes / (len(samples.prompts) * calls)
