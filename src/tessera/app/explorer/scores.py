"""The detector's score of each image, with boxes to draw."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from tessera.app.explorer.models import SessionModel
from tessera.evaluation.detection import ObjectDetector
from tessera.evaluation.explain import box_edges, describe
from tessera.evaluation.matching import ImageScore, is_well_formed, wanted_colors
from tessera.evaluation.pipeline import score_images
from tessera.render.image_io import to_float, to_uint8
from tessera.sampling.prompts import Prompt


def score_records(
    detector: ObjectDetector, entry: SessionModel, prompts: Sequence[Prompt], images: Tensor
) -> list[dict[str, Any]]:
    """One record per image (N, 3, H, W), rounded to 8 bits as in files."""
    scores = score_images(detector, to_float(to_uint8(images)), prompts)
    return [_record(entry, prompt, score) for prompt, score in zip(prompts, scores)]


def _record(entry: SessionModel, prompt: Prompt, score: ImageScore) -> dict[str, Any]:
    target_of = {detection: target for target, detection in score.pairs}
    counts = {name: getattr(score, name) for name in ("wanted", "missing", "extra", "malformed", "reason")}
    return {
        "ok": score.succeeds(entry.training.extras_allowed),
        "num_found": score.num_found,
        **counts,
        "ood": score.ood_score,
        "found": score.found,
        "targets": wanted_colors(prompt.colors) if prompt.colors else prompt.targets,
        "detections": [
            {
                "description": describe(detection),
                "location": detection.location,
                "box": box_edges(detection),  # left, top, right and bottom
                "target": target_of.get(number),
                "well_formed": is_well_formed(detection),
            }
            for number, detection in enumerate(score.detections)
        ],
    }
