"""Images for the page: sampled ones with the detector's boxes, and heat maps of locality at every noise level."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tessera.analysis.locality import Probe, SceneLocality
from tessera.analysis.locality_figures import FAINT, condition_name
from tessera.app.report.columns import ReportColumn
from tessera.evaluation.detection import ObjectDetector
from tessera.evaluation.matching import ImageScore
from tessera.evaluation.pipeline import score_images
from tessera.plots.figures import condition_color, heat_colors
from tessera.render.image_io import to_float
from tessera.sampling.prompts import Prompt
from tessera.studies.clevr.image_grids import ShownImages

HEADLINE_KS = (0, 1, 3, 6, 9, 12)  # the rows seen at once; the others unfold
_MOST_PROBES, _MOST_CONDITIONS = 5, 4


# --- samples ------------------------------------------------------------------------------------------------


class Tile(NamedTuple):
    """A sampled image as it was kept, and what the detector finds in it, for the boxes."""

    shown: ShownImages
    score: ImageScore


def tiles_of(subject: ReportColumn, detector: ObjectDetector, most: int) -> dict[int, list[Tile]]:
    """The first images of every K."""
    rows = {k: shown[:most] for k, shown in subject.shown.items() if shown}
    every = [shown for row in rows.values() for shown in row]
    if not every:
        return {}
    images = to_float(torch.stack([shown.image for shown in every]))
    tiles = map(Tile, every, score_images(detector, images, [Prompt(shown.wanted) for shown in every]))
    return {k: list(itertools.islice(tiles, len(row))) for k, row in rows.items()}


# --- heat maps ----------------------------------------------------------------------------------------------


class _Cross(NamedTuple):
    """A prompted location on a heat map; its opacity is the influence of its condition on the probe."""

    x: float
    y: float
    color: str
    strength: float


@dataclass(frozen=True)
class _Map:
    """A heat map with what is drawn over it, in units of the image's sides."""

    image: Tensor  # (3, H, W), 8-bit or in [-1, 1]
    words: str
    square: tuple[float, float, float] | None = None  # left, top, side
    crosses: Sequence[_Cross] = ()
    ring: tuple[float, float, str] | None = None


def viewer(subject: ReportColumn) -> dict[str, Any] | None:
    """The frames of one model, from high noise to low, and the one to open with."""
    result, record = subject.result, subject.locality
    if result is None or record is None:
        return None
    found = record["conditional_locality"]
    band = found["band"] if found else {"sigma_min": math.inf, "sigma_max": math.inf}
    inside = [n for n, sigma in enumerate(result.sigmas) if band["sigma_min"] <= sigma <= band["sigma_max"]]
    return {
        "name": subject.name,
        "frames": [_frame(result, level, level in inside) for level in range(len(result.sigmas))],
        "start": inside[len(inside) // 2] if inside else len(result.sigmas) // 2,
        "probes": [probe.title for probe in _shown_probes(result)],
        "prompts": [
            (want if isinstance(want, str) else f"location {k + 1}", condition_color(k))
            for k, want in enumerate(result.prompt)
        ],
    }


def _shown_probes(result: SceneLocality) -> list[Probe]:
    """The first prompted locations, and the center."""
    return result.probes if len(result.probes) <= _MOST_PROBES else [*result.probes[:4], result.probes[-1]]


def _frame(result: SceneLocality, level: int, in_band: bool) -> dict[str, Any]:
    """Everything seen at one noise level: the denoised image, a map for each probe and one for each condition."""
    sigma, image = result.sigmas[level], result.clean[level]
    shown = image if image.shape[0] == 3 else image[:1].expand(3, -1, -1)
    conditions = range(min(_MOST_CONDITIONS, result.condition_influence_maps.shape[1]))
    return {
        "sigma": sigma,
        "in_band": in_band,
        "clean": _Map(shown, f"denoised at noise level {sigma:.3g}", crosses=_locations(result)),
        "pixels": [_pixel_map(result, level, result.probes.index(probe)) for probe in _shown_probes(result)],
        "conditions": [_condition_map(result, level, k) for k in conditions],
    }


def _locations(result: SceneLocality) -> list[_Cross]:
    spots = [(k, want) for k, want in enumerate(result.prompt) if not isinstance(want, str)]
    return [_Cross(x, y, condition_color(k), 1.0) for k, (x, y) in spots]


def _pixel_map(result: SceneLocality, level: int, probe: int) -> _Map:
    """Eq. 9 around a probe, the square with 90% of its energy, and how much each condition moves it."""
    heat = result.influence[level, probe]
    height, width = heat.shape
    at, side = result.probes[probe].at, int(result.sides[level, probe])
    left, top = (at.col + 0.5 - side / 2) / width, (at.row + 0.5 - side / 2) / height
    influence = result.condition_influence.mean(0)  # (S, P, K)
    if influence.numel():
        influence = influence / influence.max().clamp_min(1e-30)
    strengths = (FAINT + (1 - FAINT) * influence[level, probe].clamp_min(0).sqrt()).tolist()
    crosses = [cross._replace(strength=round(strength, 3)) for cross, strength in zip(_locations(result), strengths)]
    words = f"{result.probes[probe].title}: 90% of the influence within {side} of {width} pixels"
    return _Map(heat_colors(heat), words, (left, top, side / width), crosses)


def _condition_map(result: SceneLocality, level: int, k: int) -> _Map:
    """Eq. 10 everywhere: what changes when condition k is taken away."""
    want, maps = result.prompt[k], result.condition_influence_maps[level]
    ring = None if isinstance(want, str) else (*want, condition_color(k))
    return _Map(heat_colors(maps[k], float(maps.max())), f"what changes without {condition_name(want)}", ring=ring)
