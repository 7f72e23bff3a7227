"""Intervals, 95% each: shares, means, ratios, correlations and whatever else is bootstrapped.

Bootstraps take the generator they draw from, so that a number and its interval can be made again.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tessera.rng import generator

_Z95 = 1.959963984540054  # two-sided 95% point of the normal distribution
RESAMPLES = 1000
_FEW_KINDS = 64  # distinct values up to which a multinomial draw of their counts is the cheaper bootstrap

Array = np.ndarray


class Interval(NamedTuple):
    """A value with its 95% interval and the number of samples behind it; None where nothing was measured."""

    value: float | None
    low: float | None
    high: float | None
    n: int | None = None

    def complement(self) -> "Interval":
        """Of a share: the share of all others."""
        if self.value is None or self.low is None or self.high is None:
            return self
        return Interval(1 - self.value, 1 - self.high, 1 - self.low, self.n)

    def to_dict(self) -> dict[str, Any]:
        return self._asdict()

    def __str__(self) -> str:
        if self.value is None:
            return "not measured"
        ends = "" if self.low is None else f" [{self.low:.3g}, {self.high:.3g}]"
        return f"{self.value:.3g}{ends}"


# --- shares -------------------------------------------------------------------------------------------------


def wilson(count: Any, n: int) -> tuple[Any, Any]:
    """Wilson's score interval for a share counted `count` times in `n`; arrays give arrays.

    As `scipy.stats.binomtest(...).proportion_ci("wilson")`, which takes one whole count at a time: shares corrected
    for the detector's error are no whole counts, and the bootstrap of K_max needs thousands.
    """
    if n < 1:
        raise ValueError("An interval needs at least one sample.")
    share, widen = np.asarray(count, dtype=float) / n, _Z95 * _Z95 / n
    middle = (share + widen / 2) / (1 + widen)
    half = _Z95 * np.sqrt(share * (1 - share) / n + widen / (4 * n)) / (1 + widen)
    # Rounding must not push the ends off 0 and 1, where they belong exactly.
    low = np.where(share <= 0, 0.0, np.maximum(middle - half, 0.0))
    high = np.where(share >= 1, 1.0, np.minimum(middle + half, 1.0))
    return (float(low), float(high)) if low.ndim == 0 else (low, high)


def share_interval(count: int, n: int) -> Interval:
    """A share with its Wilson interval; empty where nothing was counted."""
    return Interval(count / n, *wilson(count, n), int(n)) if n else Interval(None, None, None, 0)


def counted(share: Mapping[str, Any]) -> int:
    """How often it was counted, of a share that was stored as an interval."""
    return round(share["value"] * share["n"]) if share["n"] else 0


# --- resampling ---------------------------------------------------------------------------------------------


def quantile_range(values: Array, level: float = 0.95, axis: int | None = None) -> tuple[Any, Any]:
    """The middle `level` of resampled values, along an axis or over all of them."""
    low, high = np.quantile(values, [(1 - level) / 2, (1 + level) / 2], axis=axis)
    return (float(low), float(high)) if np.ndim(low) == 0 else (low, high)


def whole_range(values: Array) -> tuple[int, int]:
    """The middle 95% of resampled whole numbers, widened to whole numbers."""
    low, high = quantile_range(values)
    return math.floor(low), math.ceil(high)


def resample_rows(rng: np.random.Generator, n: int, resamples: int = RESAMPLES) -> Array:
    """Indices (R, n) drawn with replacement."""
    return rng.integers(n, size=(resamples, n))


def resample_counts(rng: np.random.Generator, n: int, resamples: int = RESAMPLES) -> Array:
    """How often each of n samples occurs when n are drawn with replacement, (R, n)."""
    return rng.multinomial(n, np.full(n, 1 / n), size=resamples)


def resample_table(table: Array, rng: np.random.Generator, n: int | None = None, resamples: int | None = None) -> Array:
    """Counts (...) by kind of sample as n samples (default: as many) drawn with replacement give them, (R, ...)."""
    total = table.sum()
    drawn = rng.multinomial(total if n is None else n, table.ravel() / total, size=resamples)
    return drawn.reshape(*drawn.shape[:-1], *table.shape)


def group_counts(rng: np.random.Generator, n: int, groups: Sequence[int] | None, resamples: int = RESAMPLES) -> Array:
    """As `resample_counts`, but whole groups (n,) are drawn, where there are several: (R, n)."""
    names = np.arange(n) if groups is None or len(set(groups)) < 2 else np.asarray(groups)
    kinds, member = np.unique(names, return_inverse=True)
    return resample_counts(rng, len(kinds), resamples)[:, member]


def resampled_means(values: Array, rng: np.random.Generator, resamples: int = RESAMPLES) -> Array:
    """Means (R,) of samples drawn from `values` with replacement."""
    kinds, counts = np.unique(values, return_counts=True)
    if len(kinds) > _FEW_KINDS:
        return values[resample_rows(rng, len(values), resamples)].mean(1)
    drawn = rng.multinomial(len(values), counts / len(values), size=resamples)
    return drawn @ kinds / len(values)


def mean_interval(values: Any, rng: np.random.Generator, resamples: int = RESAMPLES) -> Interval:
    """A mean with its bootstrap interval; empty where there are no values."""
    values = np.asarray(values, dtype=float)
    if not len(values):
        return Interval(None, None, None, 0)
    return Interval(float(values.mean()), *quantile_range(resampled_means(values, rng, resamples)), len(values))


def _weighted_means(values: Array, draws: Array) -> Array:
    """Mean over all defined values (B, ...) of each resample, given as counts (R, B); empty ones are left out."""
    flat = values.reshape(len(values), -1)
    defined = np.isfinite(flat)
    totals, counts = draws @ np.where(defined, flat, 0).sum(1), draws @ defined.sum(1)
    return totals[counts > 0] / counts[counts > 0]


def mean_of_draws(values: Array, draws: Array) -> Interval:
    """The mean of all defined values (B, ...), with the interval of its resamples (R, B)."""
    if not np.isfinite(values).any():
        return Interval(None, None, None, 0)
    return Interval(float(np.nanmean(values)), *quantile_range(_weighted_means(values, draws)), len(values))


def ratio_of_sums(parts: Any, wholes: Any, rng: np.random.Generator, resamples: int = RESAMPLES) -> Interval:
    """sum(parts) / sum(wholes) over samples (n,), which are drawn again whole; n counts what is in the wholes."""
    parts, wholes = np.asarray(parts, dtype=float), np.asarray(wholes, dtype=float)
    if not wholes.sum():
        return Interval(None, None, None, 0)
    rows = resample_rows(rng, len(parts), resamples)
    ratios = parts[rows].sum(1) / np.maximum(wholes[rows].sum(1), 1)
    return Interval(float(parts.sum() / wholes.sum()), *quantile_range(ratios), int(wholes.sum()))


def spread_around(
    value: float, resampled: Any, bounds: tuple[float, float] = (-math.inf, math.inf)
) -> tuple[float, float] | None:
    """95% interval: the spread of the resampled values (R,), laid around the value itself.

    Drawing seeds again repeats some, which makes every mean noisier and shifts its cosines; the shift is an
    artifact and taken out, the spread is what we are after. None where nothing is known.
    """
    resampled = np.asarray(resampled, dtype=float)
    known = resampled[np.isfinite(resampled)]
    if not len(known) or not math.isfinite(value):
        return None
    low, high = quantile_range(known - known.mean() + value)
    return max(low, bounds[0]), min(high, bounds[1])


def student(values: Sequence[float]) -> Interval:
    """The mean of a few repeats with Student's t interval."""
    from scipy.stats import t

    n, middle = len(values), float(np.mean(values))
    if n < 2:
        return Interval(middle, None, None, n)
    half = float(t.ppf(0.975, n - 1) * np.std(values, ddof=1) / math.sqrt(n))
    return Interval(middle, middle - half, middle + half, n)


def p_value(null: Array, value: float) -> float:
    """Of a value at least this large by chance, `null` being values by chance; never 0."""
    return float((1 + (np.asarray(null) >= value).sum()) / (1 + len(null)))


# --- correlation --------------------------------------------------------------------------------------------


def pearson(a: Array, b: Array) -> float:
    """NaN where one of them does not vary."""
    a, b = a - a.mean(), b - b.mean()
    size = float(np.sqrt((a @ a) * (b @ b)))
    return float(a @ b) / size if size > 1e-12 else float("nan")


def spearman(a: Array, b: Array) -> float:
    """Pearson's coefficient of ranks, ties sharing theirs."""
    from scipy.stats import rankdata

    return pearson(rankdata(a), rankdata(b))


def correlate(of: Callable[[Array, Array], float], a: Array, b: Array, resamples: Iterable[Array]) -> Interval:
    """A coefficient of pairs, with the interval of its resamples, index arrays, in which both sides vary."""
    value, each = of(a, b), np.array([of(a[rows], b[rows]) for rows in resamples])
    known = each[np.isfinite(each)]
    low, high = quantile_range(known) if len(known) else (None, None)
    return Interval(value if math.isfinite(value) else None, low, high, len(a))


# --- along a curve ------------------------------------------------------------------------------------------


def binomial_curves(seed: int, shares: Array, n: int | Array, resamples: int = RESAMPLES) -> Array:
    """Shares (R, ...) as as many new samples might have shown them."""
    shares = np.asarray(shares, dtype=float)
    return generator(seed).binomial(n, shares, size=(resamples, *shares.shape)) / n
