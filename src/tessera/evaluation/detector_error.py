"""The detector's own error, measured on rendered truth, and what a count means once it is taken into account.

An image truly fills t of K locations and shows e extras. Of its t + e objects the detector misses some and sees some
that are not there, as often as it did in calibration images of t + e objects; one that is not there is an
extra, or, with a small chance, fills an empty location. This gives P(counted | true), which maximum likelihood
turns round.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import comb

import numpy as np

from tessera.stats import resample_table

STEPS = 400  # of expectation maximization, at most
_SETTLED = 1e-7


@dataclass(frozen=True)
class DetectorError:
    """Images of T objects by what the detector made of them. T -> (missed, false) counts; T -> (seen, empty)."""

    outcomes: Mapping[int, np.ndarray]  # T -> (m, x): images in which m objects were missed, x seen falsely
    false_fills: Mapping[int, tuple[int, int]]  # T -> empty locations that looked filled, and all empty locations

    def missed_and_false(self, objects: int) -> np.ndarray:
        """P(m missed, x false) for an image of so many objects, from the nearest number that was measured."""
        counts = np.asarray(self.outcomes[nearest(objects, self.outcomes)], dtype=float)
        return within(counts / counts.sum(), objects)

    def false_fill(self, objects: int) -> float:
        """The chance that an empty location looks filled."""
        tried = {t: pair for t, pair in self.false_fills.items() if pair[1]}
        if not tried:
            return 0.0
        seen, empty = tried[nearest(objects, tried)]
        return seen / empty

    def landing(self, objects: int, empty: int) -> float:
        """The chance that an object seen falsely stands at one of so many empty locations, and so fills it."""
        chance = self.missed_and_false(objects).sum(0)  # (x,)
        seen = float(chance @ np.arange(len(chance)))  # falsely, in an image
        return min(1.0, empty * self.false_fill(objects) / seen) if seen else 0.0

    def resampled(self, rng: np.random.Generator) -> "DetectorError":
        """The error as another calibration of the same size might have measured it."""
        outcomes = {t: resample_table(np.asarray(counts), rng) for t, counts in self.outcomes.items()}
        fills = {
            t: (int(rng.binomial(empty, seen / empty)) if empty else 0, empty)
            for t, (seen, empty) in self.false_fills.items()
        }
        return DetectorError(outcomes, fills)


def nearest(objects: int, measured: Mapping[int, object]) -> int:
    return min(measured, key=lambda t: (abs(t - objects), t))


def within(chance: np.ndarray, objects: int) -> np.ndarray:
    """No more objects can be missed than there are: what lies beyond counts as missing all."""
    if chance.shape[0] <= objects + 1:
        return chance
    return np.concatenate([chance[:objects], chance[objects:].sum(0, keepdims=True)])


def confusion(error: DetectorError, k: int, extras: int) -> np.ndarray:
    """P(counted | true) over cells (filled 0..k, extra 0..extras), (cells, cells); columns sum to one.

    The last extra cell stands for that many or more.
    """
    table = np.zeros((k + 1, extras + 1, k + 1, extras + 1))  # (counted filled, counted extra, true t, true e)
    for t in range(k + 1):
        for e in range(extras + 1):
            table[:, :, t, e] = _counted_given(error, k, extras, t, e)
    cells = (k + 1) * (extras + 1)
    return table.reshape(cells, cells)


def _counted_given(error: DetectorError, k: int, extras: int, t: int, e: int) -> np.ndarray:
    """What is counted, (k + 1, extras + 1), in an image that fills t locations and shows e extras."""
    counted = np.zeros((k + 1, extras + 1))
    chance, landing = error.missed_and_false(t + e), error.landing(t + e, k - t)
    for missed, false in zip(*np.nonzero(chance)):
        for among_wanted, share in enumerate(missed_among_wanted(t, e, int(missed))):
            for landed, part in enumerate(binomial(int(false), landing) if share else ()):
                more = min(landed, k - t)  # a location is filled once
                shown = e - (missed - among_wanted) + false - more
                counted[t - among_wanted + more, min(shown, extras)] += part * share * chance[missed, false]
    return counted


@lru_cache(maxsize=4096)
def missed_among_wanted(t: int, e: int, missed: int) -> tuple[float, ...]:
    """How many of the missed objects stood at prompted locations: hypergeometric, for 0 .. min(t, missed)."""
    ways = comb(t + e, missed)
    return tuple(comb(t, a) * comb(e, missed - a) / ways for a in range(min(t, missed) + 1))


@lru_cache(maxsize=4096)
def binomial(n: int, p: float) -> tuple[float, ...]:
    return tuple(comb(n, j) * p**j * (1 - p) ** (n - j) for j in range(n + 1))


def unconfuse(counted: np.ndarray, table: np.ndarray, steps: int = STEPS) -> np.ndarray:
    """The most likely true shares (R, cells) behind counted shares (R, cells), by expectation maximization.

    With one location and nothing extra this is Rogan and Gladen's estimate, kept within 0 and 1.
    """
    cells = counted.shape[-1]
    true = 0.9 * counted + 0.1 / cells  # near the answer, and nothing ruled out
    for _ in range(steps):
        expected = np.maximum(true @ table.T, 1e-300)
        better = true * ((counted / expected) @ table)
        moved = np.abs(better - true).max()
        true = better
        if moved < _SETTLED:
            break
    return true / true.sum(-1, keepdims=True)
