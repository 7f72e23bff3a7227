"""Detections against what was asked: one to one within a grid cell, or color by color, with reasons in words."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import linear_sum_assignment

from tessera.errors import UserError
from tessera.evaluation.detection import Detection
from tessera.scenes.vocabulary import COLOR_NAMES

CELL = 1 / 16  # side of a cell of the conditioning grid
WELL_FORMED = 0.5  # an object less proper than this is half-drawn or a blob
FAR, SECOND_RATE = 1e6, 1e3  # costs: never pair beyond a cell; prefer any proper object to an malformed one
EDGE = 1e-6  # an object on the very edge of the cell is inside, whatever the rounding

Location = tuple[float, float]


@dataclass(frozen=True)
class Verdict:
    """What one image shows of what was asked of it."""

    ok: bool
    wanted: int
    found: int  # wanted objects that are there
    missing: int
    extra: int  # objects nobody asked for
    malformed: int  # half-drawn objects and blobs among all that was found
    reason: str
    pairs: tuple[tuple[int, int], ...] = ()  # (number of the prompt, number of the detection)
    objects: int = 0  # all that was found


def match(
    detections: Sequence[Detection],
    wanted: Sequence[Location],
    cell: float = CELL,
    extras_allowed: int = 0,
    require_well_formed: bool = False,
) -> Verdict:
    """Pair detections with wanted locations, at most one cell apart in x and in y.

    As many locations as possible are filled, and among such pairings the total distance is least. A half-drawn
    object fills its location and is flagged; with `require_well_formed` it leaves the location empty.
    """
    wanted = [checked_location(location) for location in wanted]
    pairs = best_pairs(detections, wanted, cell, require_well_formed)
    extras, malformed = left_over(detections, pairs), [f for f in detections if not is_well_formed(f)]
    filled = {prompt for prompt, _ in pairs}
    empty = [location for prompt, location in enumerate(wanted) if prompt not in filled]
    complaints = [
        empty and f"nothing at {listed(empty)}",
        extras and f"{len(extras)} extra near {listed(f.location for f in extras)}",
        malformed and f"half-drawn {plural('object', malformed)} at {listed(f.location for f in malformed)}",
    ]
    reason = in_words(complaints) or all_well(len(wanted), "location")
    return sum_up(detections, len(wanted), pairs, reason, extras_allowed, require_well_formed)


def sum_up(
    detections: Sequence[Detection],
    wanted: int,
    pairs: Sequence[tuple[int, int]],
    reason: str,
    extras_allowed: int,
    require_well_formed: bool,
) -> Verdict:
    """The verdict on these pairs of (prompt, detection)."""
    kept = tuple(pair for pair in pairs if is_well_formed(detections[pair[1]]) or not require_well_formed)
    extra, malformed = len(detections) - len(pairs), sum(not is_well_formed(f) for f in detections)
    missing = wanted - len(kept)
    ok = missing == 0 and extra <= extras_allowed and not (require_well_formed and malformed)
    return Verdict(ok, wanted, len(kept), missing, extra, malformed, reason, kept, len(detections))


def filled_at(verdicts: Sequence[Verdict]) -> list[int]:
    """Images that fill each of the locations (or show each of the colors) that all of them were asked for."""
    filled = [{prompt for prompt, _ in verdict.pairs} for verdict in verdicts]
    return [sum(prompt in each for each in filled) for prompt in range(verdicts[0].wanted)]


def best_pairs(
    detections: Sequence[Detection], wanted: Sequence[Location], cell: float, prefer_well_formed: bool = False
) -> list[tuple[int, int]]:
    """The Hungarian pairing (prompt, detection), without pairs that lie further apart than a cell."""
    if not detections or not wanted:
        return []
    offset = np.array(wanted)[:, None] - np.array([f.location for f in detections])[None]  # (W, F, 2)
    near = np.abs(offset).max(-1) <= cell + EDGE
    cost = np.hypot(offset[..., 0], offset[..., 1])
    if prefer_well_formed:
        cost = cost + SECOND_RATE * np.array([not is_well_formed(f) for f in detections])
    rows, columns = linear_sum_assignment(np.where(near, cost, FAR))
    return [(int(w), int(f)) for w, f in zip(rows, columns) if near[w, f]]


def match_colors(
    detections: Sequence[Detection],
    wanted: Mapping[str, int] | Iterable[str],
    extras_allowed: int = 0,
    require_well_formed: bool = False,
) -> Verdict:
    """The colors found against the colors asked for, each as often as asked; locations do not matter."""
    prompts = wanted_colors(wanted)
    pairs = pair_colors(detections, prompts)
    missing = Counter(prompts) - Counter(prompts[prompt] for prompt, _ in pairs)
    extras = Counter(detection.color for detection in left_over(detections, pairs))
    malformed = [f for f in detections if not is_well_formed(f)]
    complaints = [
        missing and f"no {counted(missing)}",
        extras and f"{extras.total()} extra: {counted(extras)}",
        malformed
        and f"half-drawn {plural('object', malformed)}: {counted(Counter(f.color for f in malformed))}",
    ]
    reason = in_words(complaints) or all_well(len(prompts), "color")
    return sum_up(detections, len(prompts), pairs, reason, extras_allowed, require_well_formed)


def pair_colors(detections: Sequence[Detection], prompts: Sequence[str]) -> list[tuple[int, int]]:
    """Each prompt takes a detection of its color, proper ones and then sure ones first."""
    left = sorted(
        range(len(detections)), key=lambda n: (not is_well_formed(detections[n]), -detections[n].confidence)
    )
    pairs = []
    for prompt, color in enumerate(prompts):
        choice = next((n for n in left if detections[n].color == color), None)
        if choice is not None:
            left.remove(choice)
            pairs.append((prompt, choice))
    return pairs


def wanted_colors(wanted: Mapping[str, int] | Iterable[str]) -> list[str]:
    """Color names, each repeated as often as it is wanted."""
    numbers = dict(wanted) if isinstance(wanted, Mapping) else Counter(wanted)
    for color, number in numbers.items():
        if color not in COLOR_NAMES:
            raise UserError(f"`{color}` is no color; use {', '.join(COLOR_NAMES)}.")
        if number < 0:
            raise UserError(f"An image cannot show {number} {color} objects.")
    return list(Counter(numbers).elements())


def left_over(detections: Sequence[Detection], pairs: Sequence[tuple[int, int]]) -> list[Detection]:
    """The detections that fill no prompt."""
    taken = {detection for _, detection in pairs}
    return [detection for n, detection in enumerate(detections) if n not in taken]


def is_well_formed(detection: Detection) -> bool:
    return detection.well_formed >= WELL_FORMED


def checked_location(location: Sequence[float]) -> Location:
    try:
        x, y = (float(number) for number in location)
    except (TypeError, ValueError):
        raise UserError(f"A wanted location is a pair (x, y), not {location!r}.") from None
    return x, y


def listed(locations: Iterable[Location]) -> str:
    """`(0.65, 0.25)`, or several of them in words."""
    words = [f"({x:.2f}, {y:.2f})" for x, y in locations]
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def plural(word: str, objects: Sequence) -> str:
    return word if len(objects) == 1 else word + "s"


def in_words(complaints: Iterable) -> str:
    """The complaints there are, as one line."""
    return "; ".join(complaint for complaint in complaints if complaint)


def counted(colors: Counter[str]) -> str:
    """`red, 2 blue`."""
    return ", ".join(f"{number} {color}" if number > 1 else color for color, number in colors.items())


def all_well(wanted: int, what: str) -> str:
    if wanted == 0:
        return "nothing asked, nothing there"
    return f"the {what} is filled" if wanted == 1 else f"all {wanted} {what}s are filled"
