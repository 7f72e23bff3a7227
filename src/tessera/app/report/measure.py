"""Measurements of a model for a report, kept beside it: an evaluation with images, locality with heat maps."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tessera.analysis.locality import LocalityConfig, LocalityResult, Probe, SceneLocality, Source, measure_locality
from tessera.analysis.pixel_influence import Pixel
from tessera.conditioning import ColorCounts, Conditioner
from tessera.console import progress, say
from tessera.errors import UserError
from tessera.evaluation.calibrate import load_calibration
from tessera.evaluation.detection import ObjectDetector
from tessera.evaluation.detector import load_detector
from tessera.evaluation.kmax import TrainingRange
from tessera.evaluation.pipeline import EvaluationConfig, Evaluator, quality
from tessera.files import make_folder
from tessera.models.checkpoint_io import digest, read_checkpoint, write_checkpoint
from tessera.models.loading import set_precision
from tessera.models.model_folder import Model
from tessera.provenance import provenance
from tessera.records import Record as ResultRecord
from tessera.records import ReportEvaluationRecord, ReportLocalityRecord, covers, read_record, write_record
from tessera.rows import plural
from tessera.sampling.prompts import study_prompts
from tessera.scenes.vocabulary import COLOR_NAMES, LOCATIONS
from tessera.studies.clevr import image_grids
from tessera.studies.clevr.reproduce import cost_of
from tessera.version import __version__

EVALUATION_FILE, IMAGES = "report-evaluation.json", f"report-evaluation{image_grids.IMAGE_GRID}"
LOCALITY, MAPS = "report-locality.json", "report-locality.safetensors"
_QUICK_KS = (1, 3, 6, 9)
LOCALITY_K = 4  # locations of the prompts whose locality is measured, as in the paper's Figure 10

Record = dict[str, Any]


@dataclass(frozen=True)
class ReportConfig:
    """How much is measured; None leaves the choice to `quick`."""

    n: int | None = None  # images for each K
    ks: tuple[int, ...] | None = None
    steps: int | None = None
    quick: bool = False
    seed: int = 0
    images: int | None = None  # whose locality is measured
    levels: int | None = None  # noise levels at which it is
    source: Source | None = None  # None: generated, or whatever was measured before

    def evaluation(self, conditioner: Conditioner, evaluated_elsewhere: bool = False) -> EvaluationConfig:
        """The evaluation to run; where counts are known already, only the images to show are sampled."""
        few = self.quick or evaluated_elsewhere
        ks = self.ks or (_QUICK_KS if self.quick else tuple(range(max_conditions(conditioner) + 1)))
        known = tuple(k for k in ks if k <= max_conditions(conditioner))
        if not known:
            raise UserError(f"Prompts of this model have 0 to {max_conditions(conditioner)} conditions.")
        return EvaluationConfig(
            known, self.n or (image_grids.COLUMNS if few else 64), self.steps or (16 if self.quick else 32), self.seed
        )

    def plan(self, conditioner: Conditioner) -> LocalityConfig:
        steps = self.steps or (16 if self.quick else 32)
        return LocalityConfig(
            k=min(LOCALITY_K, max_conditions(conditioner)),
            images=self.images or (2 if self.quick else 8),
            levels=min(steps, self.levels or (8 if self.quick else 12)),
            steps=steps,
            source=self.source or "generated",
            seed=self.seed,
        )


def max_conditions(conditioner: Conditioner) -> int:
    """The largest K of the study for such a model."""
    known = len(COLOR_NAMES) if isinstance(conditioner, ColorCounts) else len(LOCATIONS)
    return known if conditioner.capacity is None else min(known, conditioner.capacity)


def targets_of(conditioner: Conditioner, ks: Iterable[str | int]) -> dict[int, tuple[Any, ...]]:
    """Where, for each K of the study, objects must appear (or in which colors), as its conditioner encodes it."""
    return {len(prompt.wanted): prompt.targets for prompt in study_prompts(conditioner, [int(k) for k in ks], 1, 0)}


def _identity(model: Model) -> Record:
    """What distinguishes two sets of weights, whatever their names."""
    facts = {name: model.config.get(name) for name in ("images_seen", "ema")}
    weights = {name: value.detach().cpu() for name, value in model.denoiser.state_dict().items()}
    return {**facts, "sha256": model.config.get("sha256") or digest(weights, "")}


class ColumnEvaluator:
    """Measures models on one device with one detector; what was measured before is read back."""

    def __init__(self, device: torch.device, config: ReportConfig, detector: ObjectDetector | None = None):
        self.device, self.config = device, config
        self.evaluator = Evaluator(detector or load_detector(device=device), load_calibration(), device)

    def knows(self, model: Model, keep: Path) -> bool:
        """Whether everything that the configuration needs was measured before."""
        evaluated = not model.conditioner.dim or self._known_evaluation(
            model, keep, self.config.evaluation(model.conditioner)
        )
        return bool(evaluated and self._known_locality(model, keep, self.config.plan(model.conditioner)))

    # -- images and counts -------------------------------------------------------------------------------

    def evaluation(
        self, model: Model, keep: Path, name: str, evaluated_elsewhere: bool = False
    ) -> tuple[Record, dict[int, list[image_grids.ShownImages]]] | None:
        """The evaluation's record and the images kept of it, by K; None for an unconditional model."""
        if not model.conditioner.dim:
            return None
        wanted = self.config.evaluation(model.conditioner, evaluated_elsewhere)
        record = self._known_evaluation(model, keep, wanted)
        if record is None:
            say(f"{name}: sampling and evaluating {plural(wanted.images, 'image')}")
            record = self._evaluate(model, wanted, keep)
        targets = targets_of(model.conditioner, record["shown"])
        return record, image_grids.load_image_grid(keep / IMAGES, record, targets)

    def _known_evaluation(self, model: Model, keep: Path, wanted: EvaluationConfig) -> Record | None:
        """The record of an earlier evaluation that covers this one, if its images are there too."""
        record = _kept(keep / EVALUATION_FILE, keep / IMAGES, model, ReportEvaluationRecord)
        return record if record and covers(record["evaluation"], wanted.plain(), ("each", "steps")) else None

    def _evaluate(self, model: Model, evaluation: EvaluationConfig, keep: Path) -> Record:
        set_precision(model, "auto", self.device)
        samples = self.evaluator.run(model.to(self.device), evaluation)
        record = {
            "model": _identity(model),
            "evaluation": evaluation.plain(),
            "result": self.evaluator.summarize(model, samples),
            "quality": quality(samples.scores),
            "shown": image_grids.shown_record(samples, TrainingRange.of(model.config.get("settings"))),
            "cost": cost_of(samples),
            "provenance": provenance(self.device),
        }
        # First: where there is a record, there are its images.
        image_grids.save_image_grid(make_folder(keep) / IMAGES, samples)
        return write_record(keep / EVALUATION_FILE, ReportEvaluationRecord, record)

    # -- locality ------------------------------------------------------------------------------------------

    def locality(self, model: Model, keep: Path, name: str) -> tuple[Record, SceneLocality]:
        """The record of a locality study, and what was measured in its first scene."""
        plan = self.config.plan(model.conditioner)
        record = self._known_locality(model, keep, plan)
        if record is None:
            say(f"{name}: measuring locality")
            return self._measure_locality(model, plan, keep)
        return record, load_locality(keep / MAPS)

    def _known_locality(self, model: Model, keep: Path, plan: LocalityConfig) -> Record | None:
        """The record of a study that covers this one, if its maps are there too."""
        wanted = {name: value for name, value in _brief(plan).items() if name != "source" or self.config.source}
        record = _kept(keep / LOCALITY, keep / MAPS, model, ReportLocalityRecord)
        return record if record and covers(record["plan"], wanted, ("images", "scenes", "levels", "steps")) else None

    def _measure_locality(self, model: Model, plan: LocalityConfig, keep: Path) -> tuple[Record, SceneLocality]:
        set_precision(model, "float32", self.device)  # gradients deserve it
        model.to(self.device)
        with progress("measuring locality", None):  # a single scene: no steps to count
            found = measure_locality(model, plan, self.device)
        record = {
            "model": _identity(model),
            "plan": _brief(plan),
            "size": model.size,
            **_locality_record(found),
            "provenance": provenance(self.device),
        }
        _save_locality(make_folder(keep) / MAPS, found.scenes[0])
        return write_record(keep / LOCALITY, ReportLocalityRecord, record), found.scenes[0]


def _kept(path: Path, beside: Path, model: Model, kind: type[ResultRecord]) -> Record | None:
    """A record of these very weights, measured by this version, if the images or maps beside it are there too."""
    known = read_record(path, kind) if path.is_file() and beside.is_file() else None
    same = known and known["model"] == _identity(model) and known["provenance"]["tessera"] == __version__
    return dict(known) if known and same else None


def _locality_record(found: LocalityResult) -> Record:
    """The record of a study; a network that ignores its conditions has no conditional locality, and a note says so."""
    try:
        return found.to_dict()
    except UserError as error:
        pixels_alone = [
            replace(scene, own_condition_influence=scene.own_condition_influence[:, :, :0]) for scene in found.scenes
        ]
        return {**LocalityResult(pixels_alone, found.seed).to_dict(), "note": str(error)}


def _brief(plan: LocalityConfig) -> Record:
    return {name: getattr(plan, name) for name in ("k", "images", "scenes", "levels", "steps", "source", "seed")}


# --- files -------------------------------------------------------------------------------


def _save_locality(path: Path, result: SceneLocality) -> None:
    tensors = {f.name: value for f in fields(SceneLocality) if isinstance(value := getattr(result, f.name), Tensor)}
    facts = {
        "wanted": list(result.prompt),
        "probes": [[probe.name, *probe.at] for probe in result.probes],
        "sigmas": result.sigmas,
    }
    write_checkpoint(path, tensors, facts)


def load_locality(path: Path) -> SceneLocality:
    tensors, facts = read_checkpoint(path)
    wanted = tuple(want if isinstance(want, str) else tuple(want) for want in facts["wanted"])
    probes = [Probe(name, Pixel(row, col)) for name, row, col in facts["probes"]]
    return SceneLocality(prompt=wanted, probes=probes, sigmas=facts["sigmas"], **tensors)


def config_record(config: ReportConfig) -> Record:
    return {name: value for name, value in asdict(config).items() if value is not None}
