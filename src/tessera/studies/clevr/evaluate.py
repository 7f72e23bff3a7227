"""The evaluation a model sits: images for every K with fixed seeds, made in few large batches, then evaluated."""

import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tessera.conditioning import ColorCounts, Conditioner
from tessera.console import progress
from tessera.devices import synchronize
from tessera.errors import UserError
from tessera.evaluation.calibrate import detector_error, evaluation_row, trusted
from tessera.evaluation.detection import ObjectDetector
from tessera.evaluation.kmax import Counts, TrainingRange, length_generalization
from tessera.evaluation.matching import CELL, Verdict, filled_at, match, match_colors
from tessera.models.loading import set_precision
from tessera.models.model_folder import Model
from tessera.models.views import SeesPatches, trained_network
from tessera.render.image_io import to_float, to_uint8
from tessera.sampling.prompts import Prompt, study_prompts
from tessera.sampling.sample import sample_batches
from tessera.sampling.schedule import noise_levels
from tessera.stats import share_record
from tessera.studies.clevr.entries import IMAGES

PIXELS_AT_ONCE = {
    "cuda": 1 << 22,
    "mps": 1 << 19,
    "cpu": 1 << 18,
}  # in one batch: 1024 images of 64 x 64 on CUDA


@dataclass(frozen=True)
class EvaluationConfig:
    """What is asked: `each` images for every K; image n of K has one seed, whichever model makes it."""

    ks: tuple[int, ...]
    each: int = IMAGES
    steps: int = 32
    seed: int = 0
    s_churn: float = 0.0  # fresh noise while sampling

    def __post_init__(self):
        if self.each < 1 or self.steps < 1:
            raise UserError("An evaluation needs at least one image for each K, and at least one step.")

    @property
    def images(self) -> int:
        return len(self.ks) * self.each

    def prompts(self, conditioner: Conditioner) -> list[Prompt]:
        return study_prompts(conditioner, list(self.ks), self.each, self.seed)

    def plain(self) -> dict[str, Any]:
        return {**asdict(self), "ks": list(self.ks)}


class Answers(NamedTuple):
    """A model's images and what the detector says of them, in the order they were asked for."""

    prompts: list[Prompt]
    images: Tensor  # (N, 3, H, W), 8-bit
    verdicts: list[Verdict]
    ood: list[bool]
    seconds: dict[str, float]


class Evaluator:
    """Sets the evaluation to one model after another, with one detector."""

    def __init__(self, detector: ObjectDetector, calibration: dict[str, Any] | None, device: torch.device):
        self.detector, self.calibration, self.device = detector, calibration, device

    def ready(self, model: Model) -> Model:
        """The model as it samples soonest: on CUDA in bfloat16, patches, of which there are many, compiled."""
        set_precision(model, "auto", self.device)
        if self.device.type == "cuda" and isinstance(model.denoiser, SeesPatches):
            trained_network(model.denoiser).compile(dynamic=False)
        return model.to(self.device)

    def run(self, model: Model, evaluation: EvaluationConfig) -> Answers:
        """All images of an evaluation, evaluated."""
        return self.answer(model, evaluation.prompts(model.conditioner), evaluation.steps, evaluation.s_churn)

    def answer(self, model: Model, prompts: list[Prompt], steps: int, s_churn: float = 0.0) -> Answers:
        """An image for each ask, evaluated. The detector sees 8-bit images, as it would in files."""
        begun = time.perf_counter()
        images = to_uint8(made(model, prompts, steps, self.device, s_churn))
        synchronize(self.device)
        sampled = time.perf_counter()
        found, ood_score = self.detector.look(to_float(images))
        verdicts = [
            verdict_on(detections, prompt, model.conditioner) for detections, prompt in zip(found, prompts)
        ]
        seconds = {"sampling": sampled - begun, "judging": time.perf_counter() - sampled}
        return Answers(prompts, images.cpu(), verdicts, (ood_score > 1).tolist(), seconds)

    def mark(
        self, model: Model, answers: Answers, corrected: bool = True, resamples: int = 1000
    ) -> dict[str, Any]:
        """K_max by both rules and the shares of every K, with intervals; `corrected` for the detector's error too."""
        groups: dict[int, list[int]] = {}
        for number, prompt in enumerate(answers.prompts):
            groups.setdefault(len(prompt.wanted), []).append(number)
        by_color = isinstance(model.conditioner, ColorCounts)
        trust = trusted(self.calibration, model.size, "official" if by_color else "study")
        counts = {k: Counts.of(k, [answers.verdicts[n] for n in numbers]) for k, numbers in groups.items()}
        error = detector_error(trust["rows"], by_color) if trust and corrected else None
        scores = length_generalization(
            list(counts.values()), model.max_train_objects, label_of(model), error, 0, resamples
        )
        for row in scores["rows"]:
            numbers = groups[row["k"]]
            row["ood"] = share_record(sum(answers.ood[n] for n in numbers), len(numbers))
            row["counts"] = counts[row["k"]].table().tolist()  # images by (filled, extra)
            row["filled_at"] = filled_at([answers.verdicts[n] for n in numbers])
            row["detector"] = evaluation_row(trust, row["k"])
        detector = {"size": trust["size"], "arrangement": trust["arrangement"]} if trust else None
        return {**scores, "cell": CELL, "detector": detector}


def made(
    model: Model, prompts: Sequence[Prompt], steps: int, device: torch.device, s_churn: float = 0.0
) -> Tensor:
    """Images (N, 3, H, W) for all asks. Batches are all of one size, so that one compiled network does."""
    pixels = PIXELS_AT_ONCE.get(device.type, PIXELS_AT_ONCE["cpu"])
    batch = even_batch(len(prompts), max(1, pixels // model.size**2))
    missing = -len(prompts) % batch
    padded = [*prompts, *[prompts[-1]] * missing]
    cond = torch.cat([model.conditioner.at(prompt.wanted) for prompt in padded])
    seeds = [prompt.seed for prompt in padded]
    batches = sample_batches(
        model.denoiser,
        cond,
        model.size,
        seeds,
        batch=batch,
        sigmas=noise_levels(steps),
        s_churn=s_churn,
        device=device,
    )
    images = []
    with progress("sampling", (steps + 1) * (len(padded) // batch)) as advance:
        for sampling in batches:
            for step in sampling:
                advance()
                samples = step.x
            images.append(samples)
    return torch.cat(images)[: len(prompts)]


def even_batch(count: int, most: int) -> int:
    """The size of batches that share `count` images evenly, none larger than `most`."""
    return math.ceil(count / math.ceil(count / most))


def verdict_on(detections, prompt: Prompt, conditioner: Conditioner) -> Verdict:
    return (
        match_colors(detections, prompt.wanted)
        if isinstance(conditioner, ColorCounts)
        else match(detections, prompt.targets)
    )


def label_of(model: Model) -> str:
    return (model.config.get("settings") or {}).get("conditioner", {}).get("label", "all")


def quality(answers: Answers) -> dict[str, Any]:
    """Image quality over all Ks: objects that are proper ones, and images the detector does not recognize."""
    objects = sum(verdict.objects for verdict in answers.verdicts)
    malformed = sum(verdict.malformed for verdict in answers.verdicts)
    return {
        "well_formed": share_record(objects - malformed, objects),
        "ood": share_record(sum(answers.ood), len(answers.ood)),
    }


def succeeded(verdict: Verdict, training: TrainingRange) -> bool:
    """Whether one image shows all that was asked, and no more besides than training may add."""
    return verdict.missing == 0 and verdict.extra <= training.extras_allowed
