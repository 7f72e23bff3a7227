"""Analysis of a run: order of the concepts, swing-by, number of descents."""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import isotonic_regression

from tessera.errors import UserError
from tessera.stats import p_value
from tessera.studies.swingby.data import Array

MONOTONE = 1e-9  # a continuous flow on the population loss that rises by less has not risen
THRESHOLD = 1e-4  # share of the first error that counts as a rise
_COMES_BACK = 0.1  # share of the rise that may be left at the end
_HYSTERESIS = 1e-3  # error change below which a turn is not counted as a descent


class Swing(NamedTuple):
    """The largest rise of an error curve after an earlier minimum. `t_max` is None for a monotone curve."""

    t_min: float
    e_min: float
    t_max: float | None
    e_max: float | None
    rise: float
    rise_over_first: float
    swing_by: bool


def rise(errors: Array) -> Array:
    """max over t of E(t) - min_{u <= t} E(u), along the first axis: (T, ...) -> (...)."""
    return (errors - np.minimum.accumulate(errors, axis=0)).max(0)


def check_threshold(threshold: float) -> None:
    if not 0 <= threshold < math.inf:
        raise UserError(f"The threshold is a share of the first error, 0 or more, not {threshold:g}.")


def chance_of_rise(errors: Array, drawn: Array) -> dict[str, float]:
    """The rise that measuring alone reaches in 5% of cases, and the p-value of the rise of the errors (T,).

    By chance is: the best falling curve for the errors with the scatter of resamples `drawn` (R, T) around their mean.
    """
    falling = isotonic_regression(errors, increasing=False).x
    by_chance = rise((falling + drawn - drawn.mean(0)).T)
    return {"rise_by_chance": float(np.quantile(by_chance, 0.95)), "p": p_value(by_chance, float(rise(errors)))}


def swings(errors: Array, threshold: float = THRESHOLD) -> NDArray[np.bool_]:
    """The verdict for many curves (T, ...): a rise of at least `threshold` E(0) that is undone by the end."""
    return swung(errors[0], errors.min(0), rise(errors), errors[-1], threshold)


def swung(first: Array, lowest: Array, height: Array, last: Array, threshold: float) -> NDArray[np.bool_]:
    """The same verdict from the height of the rise and the first, lowest and last error."""
    return (height > MONOTONE) & (height >= threshold * first) & (last - lowest <= _COMES_BACK * height)


def swing(times: Array, errors: Array, threshold: float = THRESHOLD) -> Swing:
    """One curve in full, its turning points refined between samples."""
    height = float(rise(errors))
    if height <= MONOTONE:
        low = int(errors.argmin())
        return Swing(float(times[low]), float(errors[low]), None, None, 0.0, 0.0, False)
    high = int((errors - np.minimum.accumulate(errors)).argmax())
    low = int(errors[: high + 1].argmin())
    t_min, e_min = refine(times, errors, low, 0.02 * height)
    t_max, e_max = refine(times, errors, high, 0.02 * height)
    verdict = bool(swings(errors, threshold))
    return Swing(t_min, e_min, t_max, e_max, e_max - e_min, (e_max - e_min) / float(errors[0]), verdict)


def refine(times: Array, values: Array, at: int, most: float = np.inf) -> tuple[float, float]:
    """The top or bottom of the parabola through three neighboring samples.

    Where that would change the value by more than `most`, the samples are too coarse for it and stay as they are.
    """
    plain = float(times[at]), float(values[at])
    if at == 0 or at == len(times) - 1:
        return plain
    back, ahead = np.diff(times[at - 1 : at + 2])  # times may be spaced unevenly
    left, right = np.diff(values[at - 1 : at + 2]) / (back, ahead)  # slopes on both sides
    bend = (right - left) / (back + ahead)
    if bend == 0:
        return plain
    slope = (left * ahead + right * back) / (back + ahead)  # at the sample itself
    shift, gain = -slope / (2 * bend), -(slope**2) / (4 * bend)
    return (plain[0] + float(shift), plain[1] + float(gain)) if abs(gain) <= most else plain


def turns(errors: Array, hysteresis: float = _HYSTERESIS) -> list[int]:
    """Indices of the valleys and peaks of one curve, in turn, counting only changes larger than `hysteresis`.

    Begins with a valley; a curve that only falls has none before its end and gives an empty list.
    """
    found: list[int] = []
    best, sign = 0, 1.0  # sign +1: descending, the next turn is a valley
    for at, value in enumerate(errors):
        if sign * value < sign * errors[best]:
            best = at
        elif sign * (value - errors[best]) > hysteresis:
            found.append(best)
            best, sign = at, -sign
    return found if len(found) % 2 == 0 else [*found, best]


def rises(times: Array, errors: Array, hysteresis: float = _HYSTERESIS) -> list[tuple[float, float, float, float]]:
    """Every rise as (t_valley, e_valley, t_peak, e_peak)."""
    events = turns(errors, hysteresis)
    return [(*refine(times, errors, low), *refine(times, errors, high)) for low, high in zip(events[::2], events[1::2])]


def descents(errors: Array, hysteresis: float = _HYSTERESIS) -> int:
    """How many times the curve falls: 1 for an ordinary curve, 2 for a double descent, and so on."""
    events = [0, *turns(errors, hysteresis), len(errors) - 1]
    return int((-np.diff(errors[events]) > hysteresis).sum())


def crossing(times: Array, values: Array, level: float = 0.5) -> float:
    """First time a curve reaches `level` from below (linear between samples); infinity if it never does."""
    above = np.flatnonzero(values >= level)
    if not len(above):
        return math.inf
    around = slice(max(above[0] - 1, 0), above[0] + 1)
    return float(np.interp(level, values[around], times[around]))


def half_times(times: Array, w: Array, s: int, level: float = 0.5) -> Array:
    """When each concept's own entry w_kk reaches `level`: maps (T, d, d) -> (s,)."""
    return np.array([crossing(times, w[:, k, k], level) for k in range(s)])


def order(concept_times: Array) -> list[int]:
    """Concepts numbered from 1 in the order in which they were learned; those never learned are left out."""
    ranked = np.argsort(concept_times, kind="stable")
    return [int(k) + 1 for k in ranked if np.isfinite(concept_times[k])]


class _Stage(NamedTuple):
    what: Literal["all grow", "suppression", "growth"]
    concept: int | None  # numbered from 1
    start: float
    end: float


def stages(times: Array, w: Array, s: int) -> list[_Stage]:
    """All entries grow; the strongest major saturates and suppresses its minors; the next major grows; and so on.

    Suppression by k begins where the largest minor it shares with a concept still to come turns over; growth of the
    next concept begins where its own entry overtakes the minors of its row.
    """
    learned = [k - 1 for k in order(half_times(times, w, s))]
    found = [_Stage("all grow", None, 0.0, float(times[-1]))]
    for rank, k in enumerate(learned[:-1]):
        after = learned[rank + 1 :]
        begins = int(np.searchsorted(times, found[-1].start))
        shared = np.abs(w[begins:, k, after]).max(-1)  # (T',)
        peak = begins + int(shared.argmax())
        found.append(_Stage("suppression", k + 1, float(times[peak]), found[0].end))
        coming = after[0]
        ahead = np.abs(w[peak:, coming, coming]) >= np.abs(w[peak:, coming, learned[: rank + 1]]).max(-1)
        overtakes = peak + int(ahead.argmax()) if ahead.any() else len(times) - 1
        found.append(_Stage("growth", coming + 1, float(times[overtakes]), found[0].end))
    return [stage._replace(end=later.start) for stage, later in pairwise(found)] + found[-1:]


def hierarchy_kept(errors: Array, pairs: Sequence[tuple[int, int]]) -> float:
    """Share of ordered pairs (u <= v) of corners with E(u) <= E(v): errors (corners,)."""
    return float(np.mean([errors[low] <= errors[high] for low, high in pairs]))


def turnover(r: float) -> float:
    """Size of the strong entry at which the minor turns: w22* = 2 (1 + r) / (3 + r), r = a1/a2."""
    return 2 * (1 + r) / (3 + r)


def peak_height(r: float, rho: float, omega: float) -> float:
    """Closed-form largest minor, C(r) rho omega^{1-r}, while the weak entry is still small."""
    c = turnover(r) ** ((1 + r) / 2) * ((1 - r) / (3 + r)) ** ((1 - r) / 4)
    return c * rho * omega ** (1 - r)


def peak_time(r: float, omega: float, a2: float) -> float:
    """Closed-form time of that peak (paper clock)."""
    return float(np.log(2 * (1 + r) / (1 - r) * (1 - omega**2) / omega**2) / (2 * a2))


def minor_path(times: Array, omega: float, rho: float, a1: float, a2: float) -> Array:
    """w12(t) from the logistic strong entry, while the weak entry is still small (paper clock): (T,)."""
    r, w0 = a1 / a2, omega**2
    strong = w0 * np.exp(2 * a2 * times) / (1 + w0 * np.expm1(2 * a2 * times))
    left = (1 - strong) / (1 - w0)
    return rho * w0 * (strong / w0) ** ((1 + r) / 2) * left ** ((1 - r) / 4)
