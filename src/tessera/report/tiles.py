"""Pictures for the page: sampled ones with the judge's boxes, and heat-maps of locality at every noise level."""

import base64
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib
import numpy as np
import torch
from torch import Tensor

from tessera.images.pictures import png_bytes, to_float
from tessera.judge.explain import describe, half_sides
from tessera.judge.finding import Finder, Finding
from tessera.judge.matching import Verdict, is_proper, match, match_colors
from tessera.judge.truth import picture_aspect
from tessera.locality.figures import FAINT, GAMMA, HEAT, condition_color, condition_name
from tessera.locality.study import Located, Probe
from tessera.report.subjects import Subject
from tessera.study.strips import Shown

HEADLINE_KS = (0, 1, 3, 6, 9, 12)  # the rows seen at once; the others unfold
MOST_PROBES = 5


def data_uri(picture: Tensor) -> str:
    """A picture (3, H, W) as a PNG inside the page."""
    return "data:image/png;base64," + base64.b64encode(png_bytes(picture)).decode()


# --- samples ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Box:
    """Around a finding, in units of the picture's sides."""

    left: float
    top: float
    width: float
    height: float
    kind: str  # good, bad or odd
    words: str


@dataclass(frozen=True)
class Tile:
    """One sampled picture as the page shows it."""

    src: str
    boxes: list[Box]
    rings: list[tuple[float, float, str]]  # asked places, and whether they are filled
    colors: list[tuple[str, str]]  # asked colours, and whether they are there
    score: str  # such as 3/3 +1
    ok: bool
    strange: bool  # not a scene the judge knows
    words: str


def tiles_of(subject: Subject, judge: Finder, most: int) -> dict[int, list[Tile]]:
    """The first pictures of every K, looked at again so that the boxes can be drawn."""
    rows = {k: shown[:most] for k, shown in subject.shown.items() if shown}
    every = [shown for row in rows.values() for shown in row]
    if not every:
        return {}
    found, strange = judge.look(to_float(torch.stack([shown.picture for shown in every])))
    made = iter(tile(*each, subject.by_color) for each in zip(every, found, (strange > 1).tolist()))
    return {k: [next(made) for _ in row] for k, row in rows.items()}


def tile(shown: Shown, findings: Sequence[Finding], strange: bool, by_color: bool) -> Tile:
    verdict = (match_colors if by_color else match)(findings, shown.wanted)
    filled = {wish for wish, _ in verdict.pairs}
    marks = ["good" if n in filled else "bad" for n in range(len(shown.wanted))]
    unknown = "; not a scene the judge knows" if strange else ""
    return Tile(
        src=data_uri(shown.picture),
        boxes=boxes(shown.picture, findings, verdict),
        rings=[] if by_color else [(x, y, mark) for (x, y), mark in zip(shown.wanted, marks)],
        colors=list(zip(shown.wanted, marks)) if by_color else [],
        score=f"{shown.found}/{len(shown.wanted)}" + (f" +{shown.extra}" if shown.extra else ""),
        ok=shown.ok,
        strange=strange,
        words=verdict.reason + unknown,
    )


def boxes(picture: Tensor, findings: Sequence[Finding], verdict: Verdict) -> list[Box]:
    aspect = picture_aspect(picture.shape[-1], picture.shape[-2])
    used = {finding for _, finding in verdict.pairs}
    return [box(f, aspect, kind_of(n, f, used)) for n, f in enumerate(findings)]


def kind_of(number: int, finding: Finding, used: set[int]) -> str:
    """Orange is half-drawn, green fills a wish, red is extra."""
    return "odd" if not is_proper(finding) else "good" if number in used else "bad"


def box(finding: Finding, aspect: float, kind: str) -> Box:
    (x, y), (half_x, half_y) = finding.place, half_sides(finding, aspect)
    return Box(x - half_x, y - half_y, 2 * half_x, 2 * half_y, kind, describe(finding))


# --- heat-maps ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cross:
    """An asked place on a heat-map; the stronger, the more its condition moves the probe."""

    x: float
    y: float
    color: str
    strength: float


@dataclass(frozen=True)
class Map:
    """A heat-map with what is drawn over it, in units of the picture's sides."""

    src: str
    words: str
    square: tuple[float, float, float] | None = None  # left, top, side
    crosses: tuple[Cross, ...] = ()
    ring: tuple[float, float, str] | None = None


@dataclass(frozen=True)
class Frame:
    """Everything seen at one noise level."""

    sigma: float
    in_band: bool
    clean: Map
    pixels: list[Map]  # one for each probe
    conditions: list[Map]  # one for each condition


@dataclass(frozen=True)
class Viewer:
    """The frames of one model, from high noise to low, and the one to open with."""

    name: str
    frames: list[Frame]
    start: int
    probes: list[str]
    wishes: list[tuple[str, str]]  # name and colour of each condition
    source: str


def viewer(subject: Subject) -> Viewer | None:
    located, record = subject.located, subject.locality
    if located is None or record is None:
        return None
    found = record["conditional_locality"]
    band = (found["band"]["sigma_min"], found["band"]["sigma_max"]) if found else None
    frames = [frame(located, level, band) for level in range(len(located.sigmas))]
    inside = [level for level, one in enumerate(frames) if one.in_band]
    return Viewer(
        name=subject.name,
        frames=frames,
        start=inside[len(inside) // 2] if inside else len(frames) // 2,
        probes=[probe_name(probe) for probe in chosen(located)],
        wishes=[(wish_name(want, k), condition_color(k)) for k, want in enumerate(located.wanted)],
        source=record["plan"]["source"],
    )


def probe_name(probe: Probe) -> str:
    """`place 1` for the probe at the first asked place, which records call `loc 0`."""
    found = re.fullmatch(r"loc (\d+)", probe.name)
    return f"place {int(found[1]) + 1}" if found else probe.name


def wish_name(want: Any, number: int) -> str:
    return want if isinstance(want, str) else f"place {number + 1}"


def chosen(located: Located) -> list[Probe]:
    """The probes shown: the first asked places, and the centre."""
    return located.probes if len(located.probes) <= MOST_PROBES else [*located.probes[:4], located.probes[-1]]


def frame(located: Located, level: int, band: tuple[float, float] | None) -> Frame:
    sigma = located.sigmas[level]
    picture = located.clean[level]
    shown = picture if picture.shape[0] == 3 else picture[:1].expand(3, -1, -1)
    loudest = float(located.told_maps[level].max()) if located.told_maps.shape[1] else 1.0
    return Frame(
        sigma=sigma,
        in_band=band is not None and band[0] <= sigma <= band[1],
        clean=Map(data_uri(shown), f"denoised at noise level {sigma:.3g}", crosses=places(located)),
        pixels=[pixel_map(located, level, located.probes.index(probe)) for probe in chosen(located)],
        conditions=[
            condition_map(located, level, k, loudest) for k in range(min(4, located.told_maps.shape[1]))
        ],
    )


def places(located: Located) -> tuple[Cross, ...]:
    spots = [(k, want) for k, want in enumerate(located.wanted) if not isinstance(want, str)]
    return tuple(Cross(x, y, condition_color(k), 1.0) for k, (x, y) in spots)


def pixel_map(located: Located, level: int, probe: int) -> Map:
    """Eq. 9 around a probe, the square with 90% of its energy, and how much each condition moves it."""
    heat = located.influence[level, probe]
    height, width = heat.shape
    at, side = located.probes[probe].at, int(located.sides[level, probe])
    left, top = (at.col + 0.5 - side / 2) / width, (at.row + 0.5 - side / 2) / height
    told = located.told.mean(0)  # (S, P, K)
    loudest = max(float(told.max()), 1e-30) if told.numel() else 1.0
    crosses = [
        Cross(cross.x, cross.y, cross.color, faded(float(told[level, probe, k]) / loudest))
        for k, cross in enumerate(places(located))
    ]
    words = f"{located.probes[probe].name}: 90% of the influence within {side} of {width} pixels"
    return Map(data_uri(heated(heat)), words, (left, top, side / width), tuple(crosses))


def faded(share: float) -> float:
    return round(min(1.0, FAINT + (1 - FAINT) * float(np.sqrt(max(share, 0.0)))), 3)


def condition_map(located: Located, level: int, k: int, loudest: float) -> Map:
    """Eq. 10 everywhere: what changes when condition k is taken away."""
    want = located.wanted[k]
    ring = None if isinstance(want, str) else (*want, condition_color(k))
    words = f"what changes without {condition_name(want)}"
    return Map(data_uri(heated(located.told_maps[level, k], loudest)), words, ring=ring)


def heated(values: Tensor, loudest: float | None = None) -> Tensor:
    """Influence (H, W) in colours (3, H, W), 8-bit; the root of it, or nothing but the probe would be seen."""
    top = max(float(values.max()) if loudest is None else loudest, 1e-30)
    shares = (values.double() / top).clamp(0, 1).pow(GAMMA).numpy()
    colors = matplotlib.colormaps[HEAT](shares)[..., :3]
    return torch.from_numpy((255 * colors).round().astype(np.uint8)).permute(2, 0, 1)
