"""Images for the page: sampled ones with the detector's boxes, and heat-maps of locality at every noise level."""

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib
import numpy as np
import torch
from torch import Tensor

from tessera.analysis.locality import Probe, SceneLocality
from tessera.analysis.locality_figures import FAINT, condition_name
from tessera.app.report.columns import ReportColumn
from tessera.evaluation.detection import Detection, ObjectDetector
from tessera.evaluation.explain import describe, half_sides
from tessera.evaluation.matching import ImageScore, is_well_formed, score_detections
from tessera.evaluation.truth import image_aspect
from tessera.plots.figures import GAMMA, HEAT, condition_color
from tessera.render.image_io import png_bytes, to_float
from tessera.studies.clevr.image_grids import ShownImages

HEADLINE_KS = (0, 1, 3, 6, 9, 12)  # the rows seen at once; the others unfold
_MOST_PROBES = 5


def _data_uri(image: Tensor) -> str:
    """An image (3, H, W) as a PNG inside the page."""
    return "data:image/png;base64," + base64.b64encode(png_bytes(image)).decode()


# --- samples ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Box:
    """Around a detection, in units of the image's sides."""

    left: float
    top: float
    width: float
    height: float
    kind: str  # good, bad or odd
    words: str


@dataclass(frozen=True)
class Tile:
    """One sampled image as the page shows it."""

    src: str
    boxes: list[_Box]
    rings: list[tuple[float, float, str]]  # prompted locations, and whether they are found
    colors: list[tuple[str, str]]  # prompted colors, and whether they are found
    score: str  # such as 3/3 +1
    ok: bool
    ood: bool  # not a scene the detector knows
    words: str


def tiles_of(subject: ReportColumn, detector: ObjectDetector, most: int) -> dict[int, list[Tile]]:
    """The first images of every K, looked at again so that the boxes can be drawn."""
    rows = {k: shown[:most] for k, shown in subject.shown.items() if shown}
    every = [shown for row in rows.values() for shown in row]
    if not every:
        return {}
    found, ood = detector.detect(to_float(torch.stack([shown.image for shown in every])))
    made = iter(tile(*each, subject.by_color) for each in zip(every, found, (ood > 1).tolist()))
    return {k: [next(made) for _ in row] for k, row in rows.items()}


def tile(shown: ShownImages, detections: Sequence[Detection], ood: bool, by_color: bool) -> Tile:
    score = score_detections(detections, shown.wanted)
    colors = ["good" if found else "bad" for found in score.found]
    unknown = "; unlike the images the detector was trained on" if ood else ""
    return Tile(
        src=_data_uri(shown.image),
        boxes=boxes(shown.image, score),
        rings=[] if by_color else [(x, y, color) for (x, y), color in zip(shown.wanted, colors)],
        colors=list(zip(shown.wanted, colors)) if by_color else [],
        score=f"{shown.found}/{len(shown.wanted)}" + (f" +{shown.extra}" if shown.extra else ""),
        ok=shown.ok,
        ood=ood,
        words=score.reason + unknown,
    )


def boxes(image: Tensor, score: ImageScore) -> list[_Box]:
    aspect = image_aspect(image.shape[-1], image.shape[-2])
    used = {detection for _, detection in score.pairs}
    return [box(f, aspect, kind_of(n, f, used)) for n, f in enumerate(score.detections)]


def kind_of(number: int, detection: Detection, used: set[int]) -> str:
    """Orange is half-drawn, green fills a prompt, red is extra."""
    return "odd" if not is_well_formed(detection) else "good" if number in used else "bad"


def box(detection: Detection, aspect: float, kind: str) -> _Box:
    (x, y), (half_x, half_y) = detection.location, half_sides(detection, aspect)
    return _Box(x - half_x, y - half_y, 2 * half_x, 2 * half_y, kind, describe(detection))


# --- heat-maps ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Cross:
    """A prompted location on a heat map; its opacity is the influence of its condition on the probe."""

    x: float
    y: float
    color: str
    strength: float


@dataclass(frozen=True)
class _Map:
    """A heat-map with what is drawn over it, in units of the image's sides."""

    src: str
    words: str
    square: tuple[float, float, float] | None = None  # left, top, side
    crosses: tuple[_Cross, ...] = ()
    ring: tuple[float, float, str] | None = None


@dataclass(frozen=True)
class _HeatmapFrame:
    """Everything seen at one noise level."""

    sigma: float
    in_band: bool
    clean: _Map
    pixels: list[_Map]  # one for each probe
    conditions: list[_Map]  # one for each condition


@dataclass(frozen=True)
class _Viewer:
    """The frames of one model, from high noise to low, and the one to open with."""

    name: str
    frames: list[_HeatmapFrame]
    start: int
    probes: list[str]
    prompts: list[tuple[str, str]]  # name and color of each condition
    source: str


def viewer(subject: ReportColumn) -> _Viewer | None:
    result, record = subject.result, subject.locality
    if result is None or record is None:
        return None
    found = record["conditional_locality"]
    band = (found["band"]["sigma_min"], found["band"]["sigma_max"]) if found else None
    frames = [frame(result, level, band) for level in range(len(result.sigmas))]
    inside = [level for level, one in enumerate(frames) if one.in_band]
    return _Viewer(
        name=subject.name,
        frames=frames,
        start=inside[len(inside) // 2] if inside else len(frames) // 2,
        probes=[probe.title for probe in chosen(result)],
        prompts=[(_prompt_name(want, k), condition_color(k)) for k, want in enumerate(result.prompt)],
        source=record["plan"]["source"],
    )


def _prompt_name(want: Any, number: int) -> str:
    return want if isinstance(want, str) else f"location {number + 1}"


def chosen(result: SceneLocality) -> list[Probe]:
    """The probes shown: the first prompted locations, and the center."""
    return result.probes if len(result.probes) <= _MOST_PROBES else [*result.probes[:4], result.probes[-1]]


def frame(result: SceneLocality, level: int, band: tuple[float, float] | None) -> _HeatmapFrame:
    sigma = result.sigmas[level]
    image = result.clean[level]
    shown = image if image.shape[0] == 3 else image[:1].expand(3, -1, -1)
    loudest = float(result.condition_influence_maps[level].max()) if result.condition_influence_maps.shape[1] else 1.0
    return _HeatmapFrame(
        sigma=sigma,
        in_band=band is not None and band[0] <= sigma <= band[1],
        clean=_Map(_data_uri(shown), f"denoised at noise level {sigma:.3g}", crosses=locations(result)),
        pixels=[_pixel_map(result, level, result.probes.index(probe)) for probe in chosen(result)],
        conditions=[
            _condition_map(result, level, k, loudest) for k in range(min(4, result.condition_influence_maps.shape[1]))
        ],
    )


def locations(result: SceneLocality) -> tuple[_Cross, ...]:
    spots = [(k, want) for k, want in enumerate(result.prompt) if not isinstance(want, str)]
    return tuple(_Cross(x, y, condition_color(k), 1.0) for k, (x, y) in spots)


def _pixel_map(result: SceneLocality, level: int, probe: int) -> _Map:
    """Eq. 9 around a probe, the square with 90% of its energy, and how much each condition moves it."""
    heat = result.influence[level, probe]
    height, width = heat.shape
    at, side = result.probes[probe].at, int(result.sides[level, probe])
    left, top = (at.col + 0.5 - side / 2) / width, (at.row + 0.5 - side / 2) / height
    condition_influence = result.condition_influence.mean(0)  # (S, P, K)
    loudest = max(float(condition_influence.max()), 1e-30) if condition_influence.numel() else 1.0
    crosses = [
        _Cross(cross.x, cross.y, cross.color, _faded(float(condition_influence[level, probe, k]) / loudest))
        for k, cross in enumerate(locations(result))
    ]
    words = f"{result.probes[probe].title}: 90% of the influence within {side} of {width} pixels"
    return _Map(_data_uri(_heated(heat)), words, (left, top, side / width), tuple(crosses))


def _faded(share: float) -> float:
    return round(min(1.0, FAINT + (1 - FAINT) * float(np.sqrt(max(share, 0.0)))), 3)


def _condition_map(result: SceneLocality, level: int, k: int, loudest: float) -> _Map:
    """Eq. 10 everywhere: what changes when condition k is taken away."""
    want = result.prompt[k]
    ring = None if isinstance(want, str) else (*want, condition_color(k))
    words = f"what changes without {condition_name(want)}"
    return _Map(_data_uri(_heated(result.condition_influence_maps[level, k], loudest)), words, ring=ring)


def _heated(values: Tensor, loudest: float | None = None) -> Tensor:
    """Influence (H, W) in colors (3, H, W), 8-bit; the root of it, or nothing but the probe would be seen."""
    top = max(float(values.max()) if loudest is None else loudest, 1e-30)
    shares = (values.double() / top).clamp(0, 1).pow(GAMMA).numpy()
    colors = matplotlib.colormaps[HEAT](shares)[..., :3]
    return torch.from_numpy((255 * colors).round().astype(np.uint8)).permute(2, 0, 1)
