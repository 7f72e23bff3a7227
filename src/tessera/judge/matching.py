"""Findings against what was asked: one to one within a grid cell, or colour by colour, with reasons in words."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import linear_sum_assignment

from tessera.errors import UserError
from tessera.judge.finding import Finding
from tessera.scenes.vocabulary import COLOR_NAMES

CELL = 1 / 16  # side of a cell of the conditioning grid
PROPER = 0.5  # a thing less proper than this is half-drawn or a blob
FAR, SECOND_RATE = 1e6, 1e3  # costs: never pair beyond a cell; prefer any proper thing to an improper one
EDGE = 1e-6  # a thing on the very edge of the cell is inside, whatever the rounding

Place = tuple[float, float]


@dataclass(frozen=True)
class Verdict:
    """What one picture shows of what was asked of it."""

    ok: bool
    wanted: int
    found: int  # wanted things that are there
    missing: int
    extra: int  # things nobody asked for
    improper: int  # half-drawn things and blobs among all that was found
    reason: str
    pairs: tuple[tuple[int, int], ...] = ()  # (number of the wish, number of the finding)
    things: int = 0  # all that was found


def match(
    findings: Sequence[Finding],
    wanted: Sequence[Place],
    cell: float = CELL,
    extras_allowed: int = 0,
    require_proper: bool = False,
) -> Verdict:
    """Pair findings with wanted places, at most one cell apart in x and in y.

    As many places as possible are filled, and among such pairings the total distance is least. A half-drawn
    thing fills its place and is flagged; with `require_proper` it leaves the place empty.
    """
    wanted = [checked_place(place) for place in wanted]
    pairs = best_pairs(findings, wanted, cell, require_proper)
    extras, improper = left_over(findings, pairs), [f for f in findings if not is_proper(f)]
    filled = {wish for wish, _ in pairs}
    empty = [place for wish, place in enumerate(wanted) if wish not in filled]
    complaints = [
        empty and f"nothing at {listed(empty)}",
        extras and f"{len(extras)} extra near {listed(f.place for f in extras)}",
        improper and f"half-drawn {plural('thing', improper)} at {listed(f.place for f in improper)}",
    ]
    reason = in_words(complaints) or all_well(len(wanted), "place")
    return sum_up(findings, len(wanted), pairs, reason, extras_allowed, require_proper)


def sum_up(
    findings: Sequence[Finding],
    wanted: int,
    pairs: Sequence[tuple[int, int]],
    reason: str,
    extras_allowed: int,
    require_proper: bool,
) -> Verdict:
    """The verdict on these pairs of (wish, finding)."""
    kept = tuple(pair for pair in pairs if is_proper(findings[pair[1]]) or not require_proper)
    extra, improper = len(findings) - len(pairs), sum(not is_proper(f) for f in findings)
    missing = wanted - len(kept)
    ok = missing == 0 and extra <= extras_allowed and not (require_proper and improper)
    return Verdict(ok, wanted, len(kept), missing, extra, improper, reason, kept, len(findings))


def filled_at(verdicts: Sequence[Verdict]) -> list[int]:
    """Pictures that fill each of the places (or show each of the colours) that all of them were asked for."""
    filled = [{wish for wish, _ in verdict.pairs} for verdict in verdicts]
    return [sum(wish in each for each in filled) for wish in range(verdicts[0].wanted)]


def best_pairs(
    findings: Sequence[Finding], wanted: Sequence[Place], cell: float, prefer_proper: bool = False
) -> list[tuple[int, int]]:
    """The Hungarian pairing (wish, finding), without pairs that lie further apart than a cell."""
    if not findings or not wanted:
        return []
    offset = np.array(wanted)[:, None] - np.array([f.place for f in findings])[None]  # (W, F, 2)
    near = np.abs(offset).max(-1) <= cell + EDGE
    cost = np.hypot(offset[..., 0], offset[..., 1])
    if prefer_proper:
        cost = cost + SECOND_RATE * np.array([not is_proper(f) for f in findings])
    rows, columns = linear_sum_assignment(np.where(near, cost, FAR))
    return [(int(w), int(f)) for w, f in zip(rows, columns) if near[w, f]]


def match_colors(
    findings: Sequence[Finding],
    wanted: Mapping[str, int] | Iterable[str],
    extras_allowed: int = 0,
    require_proper: bool = False,
) -> Verdict:
    """The colours found against the colours asked for, each as often as asked; places do not matter."""
    wishes = color_wishes(wanted)
    pairs = pair_colors(findings, wishes)
    missing = Counter(wishes) - Counter(wishes[wish] for wish, _ in pairs)
    extras = Counter(finding.color for finding in left_over(findings, pairs))
    improper = [f for f in findings if not is_proper(f)]
    complaints = [
        missing and f"no {counted(missing)}",
        extras and f"{extras.total()} extra: {counted(extras)}",
        improper and f"half-drawn {plural('thing', improper)}: {counted(Counter(f.color for f in improper))}",
    ]
    reason = in_words(complaints) or all_well(len(wishes), "colour")
    return sum_up(findings, len(wishes), pairs, reason, extras_allowed, require_proper)


def pair_colors(findings: Sequence[Finding], wishes: Sequence[str]) -> list[tuple[int, int]]:
    """Each wish takes a finding of its colour, proper ones and then sure ones first."""
    left = sorted(range(len(findings)), key=lambda n: (not is_proper(findings[n]), -findings[n].confidence))
    pairs = []
    for wish, color in enumerate(wishes):
        choice = next((n for n in left if findings[n].color == color), None)
        if choice is not None:
            left.remove(choice)
            pairs.append((wish, choice))
    return pairs


def color_wishes(wanted: Mapping[str, int] | Iterable[str]) -> list[str]:
    """Colour names, each repeated as often as it is wanted."""
    numbers = dict(wanted) if isinstance(wanted, Mapping) else Counter(wanted)
    for color, number in numbers.items():
        if color not in COLOR_NAMES:
            raise UserError(f"`{color}` is no colour; use {', '.join(COLOR_NAMES)}.")
        if number < 0:
            raise UserError(f"A picture cannot show {number} {color} things.")
    return list(Counter(numbers).elements())


def left_over(findings: Sequence[Finding], pairs: Sequence[tuple[int, int]]) -> list[Finding]:
    """The findings that fill no wish."""
    taken = {finding for _, finding in pairs}
    return [finding for n, finding in enumerate(findings) if n not in taken]


def is_proper(finding: Finding) -> bool:
    return finding.proper >= PROPER


def checked_place(place: Sequence[float]) -> Place:
    try:
        x, y = (float(number) for number in place)
    except (TypeError, ValueError):
        raise UserError(f"A wanted place is a pair (x, y), not {place!r}.") from None
    return x, y


def listed(places: Iterable[Place]) -> str:
    """`(0.65, 0.25)`, or several of them in words."""
    words = [f"({x:.2f}, {y:.2f})" for x, y in places]
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def plural(word: str, things: Sequence) -> str:
    return word if len(things) == 1 else word + "s"


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
