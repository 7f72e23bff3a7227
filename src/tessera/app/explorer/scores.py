"""What the detector says of a model's images, with boxes to draw."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from tessera.app.explorer.models import SessionModel
from tessera.evaluation.detection import Detection, ObjectDetector
from tessera.evaluation.explain import describe, half_sides
from tessera.evaluation.matching import Verdict, is_well_formed, wanted_colors
from tessera.evaluation.truth import image_aspect
from tessera.render.image_io import to_float, to_uint8
from tessera.sampling.prompts import Prompt
from tessera.studies.clevr.evaluate import succeeded, verdict_on


def evaluated(
    detector: ObjectDetector, entry: SessionModel, prompts: Sequence[Prompt], images: Tensor
) -> list[dict[str, Any]]:
    """One record per image (N, 3, H, W). The detector sees 8-bit images, as it would in files."""
    found, ood = detector.look(to_float(to_uint8(images)))
    return [
        record(entry, prompt, detections, float(odd)) for prompt, detections, odd in zip(prompts, found, ood)
    ]


def record(
    entry: SessionModel, prompt: Prompt, detections: Sequence[Detection], ood: float
) -> dict[str, Any]:
    verdict = verdict_on(detections, prompt, entry.model.conditioner)
    location_of = {detection: location_index for location_index, detection in verdict.pairs}
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
        "filled": filled(verdict),
        "prompts": list(wanted_colors(prompt.wanted)) if entry.told == "colors" else list(prompt.targets),
        "detections": [
            {
                "what": describe(detection),
                "location": list(detection.location),
                "box": box_of(detection, side),
                "location_index": location_of.get(number),
                "well_formed": is_well_formed(detection),
            }
            for number, detection in enumerate(detections)
        ],
    }


def filled(verdict: Verdict) -> list[bool]:
    """For every prompt, whether something fills it."""
    taken = {location_index for location_index, _ in verdict.pairs}
    return [location_index in taken for location_index in range(verdict.wanted)]


def box_of(detection: Detection, side: int) -> list[float]:
    """Left, top, right and bottom in [0, 1]."""
    (x, y), (half_x, half_y) = detection.location, half_sides(detection, image_aspect(side, side))
    return [x - half_x, y - half_y, x + half_x, y + half_y]
