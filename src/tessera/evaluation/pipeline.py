"""The one path on which images and models are scored: load, prompts, sample, detect, score, record."""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tessera.conditioning import Conditioner
from tessera.console import progress
from tessera.errors import UserError
from tessera.evaluation.calibrate import calibration_rows, detector_error, load_calibration
from tessera.evaluation.detection import ObjectDetector
from tessera.evaluation.detector import open_detector
from tessera.evaluation.image_sets import ImageSet, checked_prompt, read_batches
from tessera.evaluation.kmax import Counts, TrainingRange, generalization_record
from tessera.evaluation.matching import CELL, ImageScore, filled_at, score_detections
from tessera.evaluation.results import Evaluation, LengthGeneralization
from tessera.models.contract import TrainsOnPatches, trained_network
from tessera.models.loading import load, set_precision
from tessera.models.model import Model
from tessera.render.image_io import to_float, to_uint8
from tessera.sampling.prompts import Prompt, study_prompts
from tessera.sampling.sample import home
from tessera.sampling.sample_folder import sample_prompts
from tessera.scenes.vocabulary import LOCATIONS
from tessera.stats import RESAMPLES, share_interval

# In one batch: 1024 images of 64 x 64 on CUDA.
_PIXELS_AT_ONCE = {"cuda": 1 << 22, "mps": 1 << 19, "cpu": 1 << 18}
EACH = 64  # images for each K


# --- images -------------------------------------------------------------------------------------------------


def evaluate(
    images: Tensor,
    prompts: Sequence[Any] | Mapping[str, int] | Prompt,
    detector: ObjectDetector | str | Path | None = None,
) -> Evaluation:
    """Detect the objects in images and score them against their prompts.

    Args:
        images: (B, 3, H, W) in [-1, 1], or 8-bit.
        prompts: one prompt for all images or a list with one for each; a prompt is a list of locations (x, y), a list
            of color names, or colors with counts, {"red": 2}.
        detector: anything with `detect(images)`, its registered name, `package.module:name` or folder; by default the
            shipped detector.

    Returns:
        An `Evaluation`: `.images`, one `ImageScore` each with `.detections`, `.found`, `.extra` and `.reason`, and the
        shares `.all_found` and `.exact` as `Interval`s.

    Example:
        >>> import tessera
        >>> images = tessera.load("exp1").sample([(0.65, 0.65)], seeds=range(2), steps=8)
        >>> tessera.evaluate(images, [(0.65, 0.65)])
        Evaluation(2 images, all found in ...)
    """
    if images.dim() != 4 or images.shape[1] != 3:
        raise UserError(f"Images to evaluate are (B, 3, H, W), not {tuple(images.shape)}.")
    # The detector gets 8-bit images, as it would from files.
    shown = to_float(images if images.dtype == torch.uint8 else to_uint8(images))
    return Evaluation(score_images(open_detector(detector), shown, _one_for_each(prompts, len(images))))


def _one_for_each(prompts: Any, count: int) -> list[Prompt]:
    """The prompts of `count` images, given one for all of them or one for each."""
    if _is_one_prompt(prompts):
        return [_as_prompt(prompts)] * count
    if len(prompts) != count:
        raise UserError(f"There are {len(prompts)} prompts for {count} images.")
    return [_as_prompt(prompt) for prompt in prompts]


def _is_one_prompt(prompts: Any) -> bool:
    """Whether this is a single prompt: a `Prompt`, colors, or pairs of numbers."""
    if isinstance(prompts, Prompt | Mapping):
        return True
    return all(isinstance(part, str) or _is_location(part) for part in prompts)


def _is_location(part: Any) -> bool:
    if isinstance(part, Prompt | Mapping) or len(part) != 2:
        return False
    return all(isinstance(number, int | float) for number in part)


def _as_prompt(wanted: Any) -> Prompt:
    return wanted if isinstance(wanted, Prompt) else Prompt(checked_prompt(wanted))


def score_images(
    detector: ObjectDetector, images: Tensor, prompts: Sequence[Prompt], require_well_formed: bool = False
) -> list[ImageScore]:
    """A score for each of the images (B, 3, H, W) in [-1, 1]."""
    found, ood = detector.detect(images)
    return [
        score_detections(detections, prompt.targets, require_well_formed, odd)
        for detections, prompt, odd in zip(found, prompts, ood.tolist(), strict=True)
    ]


class ScoredFolder(NamedTuple):
    """The images of a folder that could be read, with their prompts and scores."""

    prompts: list[Prompt]
    scores: list[ImageScore]
    skipped: dict[str, str]  # file -> why
    width: int


def score_folder(
    images: ImageSet, detector: ObjectDetector, require_well_formed: bool = False, strict: bool = False
) -> ScoredFolder:
    """Every image of a folder that can be read, scored; none at all is an error."""
    if strict and images.left_out:
        raise UserError(next(iter(images.left_out.values())))
    found = ScoredFolder([], [], dict(images.left_out), images.size[0] if images.size else 0)

    def skip(file: Path, error: UserError) -> None:
        if strict:
            raise error
        found.skipped[str(file)] = str(error)

    with progress("detecting", len(images.prompts)) as advance:
        for prompts, batch in read_batches(images, skip):
            found.prompts.extend(prompts)
            found.scores.extend(score_images(detector, batch, prompts, require_well_formed))
            found = found._replace(width=batch.shape[-1])
            advance(len(prompts))
    if not found.scores:
        first = next(iter(found.skipped.values()), "there are none.")
        raise UserError(f"None of the {len(images.prompts)} images in {images.folder} could be evaluated: {first}")
    return found


# --- scores of many images ----------------------------------------------------------------------------------


def summarize(
    prompts: Sequence[Prompt],
    scores: Sequence[ImageScore],
    training: TrainingRange,
    width: int,
    calibration: dict[str, Any] | None = None,
    corrected: bool = True,
    seed: int = 0,
    resamples: int = RESAMPLES,
) -> dict[str, Any]:
    """K_max by both rules, K50 and the shares of every K, with intervals.

    With a `calibration` the numbers are given as counted and, if `corrected`, as the detector's own error leaves them.
    """
    groups: dict[int, list[int]] = {}
    for number, prompt in enumerate(prompts):
        groups.setdefault(prompt.k, []).append(number)
    by_color = any(prompt.colors for prompt in prompts)
    trust = calibration and calibration_rows(calibration, width, "study" if at_study_locations(prompts) else "official")
    counts = {k: Counts.of(k, [scores[n] for n in numbers]) for k, numbers in groups.items()}
    error = detector_error(trust["rows"], by_color) if trust and corrected else None
    most, label = training.max_train_objects, training.label
    record = generalization_record(list(counts.values()), most, label, error, seed, resamples)
    for row in record["rows"]:
        numbers = groups[row["k"]]
        row["ood"] = _ood_share([scores[n] for n in numbers])
        row["counts"] = counts[row["k"]].table().tolist()  # images by (filled, extra)
        row["detector"] = _detector_row(trust, row["k"])
        row.update(_by_location([prompts[n] for n in numbers], [scores[n] for n in numbers]))
    detector = {"size": trust["size"], "arrangement": trust["arrangement"]} if trust else None
    return {**record, "cell": CELL, "detector": detector}


def _ood_share(scores: Sequence[ImageScore]) -> dict[str, Any]:
    return share_interval(sum(score.ood for score in scores), len(scores)).to_dict()


def _detector_row(trust: dict[str, Any] | None, k: int) -> dict[str, Any] | None:
    """The detector's own error for one number of objects, where it is known, beside the number it qualifies."""
    row = trust["rows"].get(str(k)) if trust else None
    return {name: row[name] for name in ("exact_count", "clean", "location_recall", "false_objects")} if row else None


def at_study_locations(prompts: Sequence[Prompt]) -> bool:
    """Whether every prompt holds the first K of the study's locations."""
    placed = [prompt for prompt in prompts if prompt.locations]
    return bool(placed) and all(prompt.wanted == LOCATIONS[: prompt.k] for prompt in placed)


def _by_location(prompts: Sequence[Prompt], scores: Sequence[ImageScore]) -> dict[str, Any]:
    """How often each location (or color) is filled, where all these images have the same prompt."""
    wanted = {prompt.wanted for prompt in prompts}
    return {"prompts": list(wanted.pop()), "filled_at": filled_at(scores)} if len(wanted) == 1 else {}


def quality(scores: Sequence[ImageScore]) -> dict[str, Any]:
    """Image quality over all K: the share of objects that are well-formed, and of images out of distribution."""
    objects = sum(score.objects for score in scores)
    malformed = sum(score.malformed for score in scores)
    return {"well_formed": share_interval(objects - malformed, objects).to_dict(), "ood": _ood_share(scores)}


# --- models -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class EvaluationConfig:
    """`each` images for every K; image n of K has one seed, whichever model makes it."""

    ks: tuple[int, ...]
    each: int = EACH
    steps: int = 32
    seed: int = 0
    s_churn: float = 0.0

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


class ScoredSamples(NamedTuple):
    """A model's samples and their scores, in the order of the prompts."""

    prompts: list[Prompt]
    images: Tensor  # (N, 3, H, W), 8-bit
    scores: list[ImageScore]
    seconds: dict[str, float]


class Evaluator:
    """Runs evaluations of one model after another, with one detector."""

    def __init__(self, detector: ObjectDetector, calibration: dict[str, Any] | None, device: torch.device | str):
        self.detector, self.calibration, self.device = detector, calibration, torch.device(device)

    def prepare(self, model: Model) -> Model:
        """The model as it samples fastest: on CUDA in bfloat16, patches, of which there are many, compiled."""
        set_precision(model, "auto", self.device)
        if self.device.type == "cuda" and isinstance(model.denoiser, TrainsOnPatches):
            trained_network(model.denoiser).compile(dynamic=False)
        return model.to(self.device)

    def run(self, model: Model, config: EvaluationConfig) -> ScoredSamples:
        """All samples of an evaluation, scored."""
        return self.score(model, config.prompts(model.conditioner), config.steps, config.s_churn)

    def score(self, model: Model, prompts: list[Prompt], steps: int, s_churn: float = 0.0) -> ScoredSamples:
        """One sample for each prompt, scored. The detector gets 8-bit images, as it would from files."""
        start = time.perf_counter()
        images = to_uint8(sample_evenly(model, prompts, steps, self.device, s_churn))
        sampled = time.perf_counter()
        scores = score_images(self.detector, to_float(images), prompts)
        seconds = {"sampling": sampled - start, "detecting": time.perf_counter() - sampled}
        return ScoredSamples(prompts, images, scores, seconds)

    def summarize(
        self, model: Model, samples: ScoredSamples, corrected: bool = True, resamples: int = RESAMPLES
    ) -> dict[str, Any]:
        """`summarize` for the samples of a model."""
        training = TrainingRange.of(model.config.get("settings"))
        return summarize(
            samples.prompts, samples.scores, training, model.size, self.calibration, corrected, 0, resamples
        )


def length_generalization(
    model: Model | str | Path,
    ks: Sequence[int] = tuple(range(13)),
    samples: int = EACH,
    *,
    steps: int = 32,
    seed: int = 0,
    s_churn: float = 0.0,
    detector: ObjectDetector | str | Path | None = None,
    device: torch.device | str | None = None,
) -> LengthGeneralization:
    """Measure up to how many objects a model shows what it is prompted with.

    Args:
        model: a `Model`, or anything that `tessera.load` takes.
        ks: numbers of objects; those that the model's conditioner cannot express are left out.
        samples: images for every K.
        steps: noise levels of the sampler.
        seed: random seed; image n of K depends on the seed, K and n only.
        s_churn: strength of stochastic sampling (S_churn, Karras et al. 2022).
        detector: as for `tessera.evaluate`; by default the shipped detector, whose own error is corrected for.
        device: where to compute; by default where the model is.

    Returns:
        A `LengthGeneralization` with the `Interval`s `.k_max`, `.k_max_strict` and `.k50`, `.by_k`, `.to_dict()`,
        `.table()`, which `print` shows, and `.plot()`.

    Example:
        >>> import tessera
        >>> curve = tessera.length_generalization("exp1", range(3), samples=2, steps=4)
        >>> sorted(curve.by_k)
        [0, 1, 2]
    """
    model = load(model, device=device)
    capacity = getattr(model.conditioner, "capacity", None)
    known = tuple(k for k in ks if capacity is None or k <= capacity)
    calibration = load_calibration() if detector is None else None
    evaluator = Evaluator(open_detector(detector), calibration, device or home(model.denoiser, None))
    scored = evaluator.run(model.to(evaluator.device), EvaluationConfig(known, samples, steps, seed, s_churn))
    return LengthGeneralization(evaluator.summarize(model, scored))


def sample_evenly(
    model: Model, prompts: Sequence[Prompt], steps: int, device: torch.device, s_churn: float = 0.0
) -> Tensor:
    """Images (N, 3, H, W) for all prompts, in batches of one size, so that one compiled network does for all."""
    pixels = _PIXELS_AT_ONCE.get(device.type, _PIXELS_AT_ONCE["cpu"])
    batch = _even_batch(len(prompts), max(1, pixels // model.size**2))
    padded = [*prompts, *[prompts[-1]] * (-len(prompts) % batch)]
    return torch.cat(list(sample_prompts(model, padded, steps, batch, device, s_churn=s_churn)))[: len(prompts)]


def _even_batch(count: int, most: int) -> int:
    """The size of batches that share `count` images evenly, none larger than `most`."""
    return math.ceil(count / math.ceil(count / most))
