"""The detector's score of each image, with boxes to draw."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from tessera.app.explorer.models import SessionModel
from tessera.evaluation.detection import Detection, ObjectDetector
from tessera.evaluation.explain import describe, half_sides
from tessera.evaluation.matching import is_well_formed, wanted_colors
from tessera.evaluation.truth import image_aspect
from tessera.render.image_io import to_float, to_uint8
from tessera.sampling.prompts import Prompt
from tessera.studies.clevr.evaluate import succeeded, verdict_on


def score_images(
    detector: ObjectDetector, entry: SessionModel, prompts: Sequence[Prompt], images: Tensor
) -> list[dict[str, Any]]:
    """One record per image (N, 3, H, W), rounded to 8 bits as in files."""
    found, ood = detector.look(to_float(to_uint8(images)))
    return [
        _record(entry, prompt, detections, float(odd)) for prompt, detections, odd in zip(prompts, found, ood)
    ]


def _record(
    entry: SessionModel, prompt: Prompt, detections: Sequence[Detection], ood: float
) -> dict[str, Any]:
    verdict = verdict_on(detections, prompt, entry.model.conditioner)
    target_of = {detection: target for target, detection in verdict.pairs}
    taken, by_color = set(target_of.values()), entry.condition_kind == "colors"
    side = entry.model.size
    return {
        "ok": succeeded(verdict, entry.training),
        "wanted": verdict.wanted,
        "found": verdict.found,
        "missing": verdict.missing,
        "extra": verdict.extra,
        "malformed": verdict.malformed,
        "reason": verdict.reason,
        "ood": ood,
        "filled": [n in taken for n in range(verdict.wanted)],
        "targets": list(wanted_colors(prompt.wanted)) if by_color else list(prompt.targets),
        "detections": [
            {
                "description": describe(detection),
                "location": list(detection.location),
                "box": _box(detection, side),
                "target": target_of.get(number),
                "well_formed": is_well_formed(detection),
            }
            for number, detection in enumerate(detections)
        ],
    }


def _box(detection: Detection, side: int) -> list[float]:
    """Left, top, right and bottom in [0, 1]."""
    (x, y), (half_x, half_y) = detection.location, half_sides(detection, image_aspect(side, side))
    return [x - half_x, y - half_y, x + half_x, y + half_y]
