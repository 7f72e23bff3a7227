"""Detections against a prompt: one to one within a grid cell, or color by color, with the reason in words."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import linear_sum_assignment

from tessera.errors import UserError
from tessera.evaluation.detection import Detection
from tessera.scenes.vocabulary import COLOR_NAMES

CELL = 1 / 16  # side of a cell of the conditioning grid
_WELL_FORMED = 0.5  # below, an object is half-drawn or a blob
FAR, SECOND_RATE = (1e6, 1e3)  # costs: never pair beyond a cell; prefer any well-formed object to a malformed one
_EDGE = 1e-6  # an object on the very edge of the cell is inside, whatever the rounding

Location = tuple[float, float]
Pairs = list[tuple[int, int]]  # (number of the location or color, number of the detection)


@dataclass(frozen=True)
class ImageScore:
    """Detections in one image, and which of the prompted locations (or colors) they fill."""

    detections: list[Detection]
    found: list[bool]  # for each prompted location or color, whether an object fills it
    extra: int  # objects that fill none
    reason: str
    ok: bool  # all found, nothing extra (and nothing malformed, where that is required)
    pairs: tuple[tuple[int, int], ...] = ()
    ood_score: float = 0.0  # above 1 the image is unlike those that the detector was trained on

    @property
    def wanted(self) -> int:
        return len(self.found)

    @property
    def num_found(self) -> int:
        return sum(self.found)

    @property
    def missing(self) -> int:
        return self.wanted - self.num_found

    @property
    def objects(self) -> int:
        return len(self.detections)

    @property
    def malformed(self) -> int:
        return sum(not is_well_formed(detection) for detection in self.detections)

    @property
    def ood(self) -> bool:
        """Whether the image is unlike those that the detector was trained on."""
        return self.ood_score > 1

    def succeeds(self, extras_allowed: int = 0) -> bool:
        """Whether everything in the prompt is there, with no more extras than training may add."""
        return self.missing == 0 and self.extra <= extras_allowed

    def to_dict(self) -> dict[str, Any]:
        counts = {name: getattr(self, name) for name in ("wanted", "missing", "extra", "malformed", "objects")}
        return {
            "ok": self.ok,
            "found": self.found,
            **counts,
            "reason": self.reason,
            "pairs": [list(pair) for pair in self.pairs],
            "ood_score": self.ood_score,
            "detections": [detection._asdict() for detection in self.detections],
        }


def score_detections(
    detections: Sequence[Detection],
    prompt: Sequence[Any] | Mapping[str, int],
    require_well_formed: bool = False,
    ood_score: float = 0.0,
) -> ImageScore:
    """Detections against prompted locations, [(x, y), ...], or prompted colors, ["red", ...] or {"red": 2, ...}."""
    if isinstance(prompt, Mapping) or any(isinstance(part, str) for part in prompt):
        return match_colors(detections, prompt, require_well_formed, ood_score)
    return match(detections, prompt, CELL, require_well_formed, ood_score)


def match(
    detections: Sequence[Detection],
    wanted: Sequence[Location],
    cell: float = CELL,
    require_well_formed: bool = False,
    ood_score: float = 0.0,
) -> ImageScore:
    """Pair detections with prompted locations, at most one cell apart in x and in y.

    As many locations as possible are filled, and among such pairings the total distance is least. A half-drawn
    object fills its location and is flagged; with `require_well_formed` it leaves the location empty.
    """
    wanted = [checked_location(location) for location in wanted]
    pairs = _best_pairs(detections, wanted, cell, require_well_formed)
    filled = {number for number, _ in pairs}
    empty = [location for number, location in enumerate(wanted) if number not in filled]
    missing = f"nothing at {_listed(empty)}" if empty else ""
    return _score(detections, len(wanted), pairs, missing, "location", require_well_formed, ood_score)


def match_colors(
    detections: Sequence[Detection],
    wanted: Mapping[str, int] | Iterable[str],
    require_well_formed: bool = False,
    ood_score: float = 0.0,
) -> ImageScore:
    """Detected colors against prompted colors, each as often as prompted; locations do not matter."""
    colors = wanted_colors(wanted)
    pairs = _color_pairs(detections, colors)
    left = Counter(colors) - Counter(colors[number] for number, _ in pairs)
    missing = f"no {_counted(left)}" if left else ""
    return _score(detections, len(colors), pairs, missing, "color", require_well_formed, ood_score)


def filled_at(scores: Sequence[ImageScore]) -> list[int]:
    """Images that fill each of the locations (or show each of the colors) of the one prompt they share."""
    return [sum(column) for column in zip(*(score.found for score in scores))]


def is_well_formed(detection: Detection) -> bool:
    return detection.well_formed >= _WELL_FORMED


def wanted_colors(wanted: Mapping[str, int] | Iterable[str]) -> list[str]:
    """Color names, each repeated as often as it is prompted."""
    numbers = dict(wanted) if isinstance(wanted, Mapping) else Counter(wanted)
    for color, number in numbers.items():
        if color not in COLOR_NAMES:
            raise UserError(f"`{color}` is no color; use {', '.join(COLOR_NAMES)}.")
        if number < 0:
            raise UserError(f"An image cannot show {number} {color} objects.")
    return list(Counter(numbers).elements())


def checked_location(location: Sequence[float]) -> Location:
    try:
        x, y = (float(number) for number in location)
    except (TypeError, ValueError):
        raise UserError(f"A prompted location is a pair (x, y), not {location!r}.") from None
    return x, y


# --- pairing ------------------------------------------------------------------------------------------------


def _best_pairs(
    detections: Sequence[Detection], wanted: Sequence[Location], cell: float, prefer_well_formed: bool
) -> Pairs:
    """The Hungarian pairing, without pairs that lie further apart than a cell."""
    if not detections or not wanted:
        return []
    offset = np.array(wanted)[:, None] - np.array([d.location for d in detections])[None]  # (W, D, 2)
    near = np.abs(offset).max(-1) <= cell + _EDGE
    cost = np.hypot(offset[..., 0], offset[..., 1])
    if prefer_well_formed:
        cost = cost + SECOND_RATE * np.array([not is_well_formed(d) for d in detections])
    rows, columns = linear_sum_assignment(np.where(near, cost, FAR))
    return [(int(w), int(d)) for w, d in zip(rows, columns) if near[w, d]]


def _color_pairs(detections: Sequence[Detection], colors: Sequence[str]) -> Pairs:
    """Each prompted color takes a detection of its color, well-formed ones and then sure ones first."""
    left = sorted(range(len(detections)), key=lambda n: (not is_well_formed(detections[n]), -detections[n].confidence))
    pairs = []
    for number, color in enumerate(colors):
        choice = next((n for n in left if detections[n].color == color), None)
        if choice is not None:
            left.remove(choice)
            pairs.append((number, choice))
    return pairs


# --- scores -------------------------------------------------------------------------------------------------


def _score(
    detections: Sequence[Detection],
    wanted: int,
    pairs: Pairs,
    missing: str,
    what: str,
    require_well_formed: bool,
    ood_score: float,
) -> ImageScore:
    """`missing` says what of the prompt is missing; `what` is prompted: a location or a color."""
    taken = {detection for _, detection in pairs}
    extras = [detection for n, detection in enumerate(detections) if n not in taken]
    malformed = [detection for detection in detections if not is_well_formed(detection)]
    complaints = [
        missing,
        _complaint(f"{len(extras)} extra", extras, what, "near"),
        _complaint(f"half-drawn {'object' if len(malformed) == 1 else 'objects'}", malformed, what, "at"),
    ]
    reason = "; ".join(filter(None, complaints)) or _all_well(wanted, what)
    kept = tuple(pair for pair in pairs if is_well_formed(detections[pair[1]]) or not require_well_formed)
    filled = {number for number, _ in kept}
    found = [number in filled for number in range(wanted)]
    ok = all(found) and not extras and not (require_well_formed and malformed)
    return ImageScore(list(detections), found, len(extras), reason, ok, kept, ood_score)


def _complaint(wrong: str, detections: Sequence[Detection], what: str, where: str) -> str:
    """`1 extra near (0.65, 0.25)`, or `2 extra: red, blue` where colors were prompted; empty without any."""
    if not detections:
        return ""
    if what == "color":
        return f"{wrong}: {_counted(Counter(detection.color for detection in detections))}"
    return f"{wrong} {where} {_listed([detection.location for detection in detections])}"


def _listed(locations: Sequence[Location]) -> str:
    """`(0.65, 0.25)`, or several of them in words."""
    *first, last = [f"({x:.2f}, {y:.2f})" for x, y in locations]
    return f"{', '.join(first)} and {last}" if first else last


def _counted(colors: Counter[str]) -> str:
    """`red, 2 blue`."""
    return ", ".join(f"{number} {color}" if number > 1 else color for color, number in colors.items())


def _all_well(wanted: int, what: str) -> str:
    if wanted == 0:
        return "empty prompt, nothing found"
    return f"the {what} is filled" if wanted == 1 else f"all {wanted} {what}s are filled"
