"""What the judge says of a model's pictures, with boxes to draw."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from tessera.explorer.shelf import Exhibit
from tessera.images.pictures import to_float, to_uint8
from tessera.judge.explain import describe, half_sides
from tessera.judge.finding import Finder, Finding
from tessera.judge.matching import Verdict, color_wishes, is_proper
from tessera.judge.truth import picture_aspect
from tessera.sampler.asking import Ask
from tessera.study.exam import succeeded, verdict_on


def judged(judge: Finder, exhibit: Exhibit, asks: Sequence[Ask], pictures: Tensor) -> list[dict[str, Any]]:
    """One record per picture (N, 3, H, W). The judge sees 8-bit pictures, as it would in files."""
    found, strange = judge.look(to_float(to_uint8(pictures)))
    return [record(exhibit, ask, findings, float(odd)) for ask, findings, odd in zip(asks, found, strange)]


def record(exhibit: Exhibit, ask: Ask, findings: Sequence[Finding], strange: float) -> dict[str, Any]:
    verdict = verdict_on(findings, ask, exhibit.model.tell)
    wish_of = {finding: wish for wish, finding in verdict.pairs}
    side = exhibit.model.size
    return {
        "ok": succeeded(verdict, exhibit.training),
        "wanted": verdict.wanted,
        "found": verdict.found,
        "missing": verdict.missing,
        "extra": verdict.extra,
        "improper": verdict.improper,
        "reason": verdict.reason,
        "strange": strange,
        "filled": filled(verdict),
        "wishes": list(color_wishes(ask.wanted)) if exhibit.told == "colors" else list(ask.aims),
        "findings": [
            {
                "what": describe(finding),
                "place": list(finding.place),
                "box": box_of(finding, side),
                "wish": wish_of.get(number),
                "proper": is_proper(finding),
            }
            for number, finding in enumerate(findings)
        ],
    }


def filled(verdict: Verdict) -> list[bool]:
    """For every wish, whether something fills it."""
    taken = {wish for wish, _ in verdict.pairs}
    return [wish in taken for wish in range(verdict.wanted)]


def box_of(finding: Finding, side: int) -> list[float]:
    """Left, top, right and bottom in [0, 1]."""
    (x, y), (half_x, half_y) = finding.place, half_sides(finding, picture_aspect(side, side))
    return [x - half_x, y - half_y, x + half_x, y + half_y]
