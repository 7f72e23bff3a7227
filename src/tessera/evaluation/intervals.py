"""95% intervals: Wilson's for shares, the percentile bootstrap for means, quantiles for anything resampled."""

import math
from typing import Any

import numpy as np

Z95 = 1.959963984540054  # two-sided 95% point of the normal distribution
RESAMPLES = 1000


def wilson(count: float | np.ndarray, n: int, z: float = Z95) -> tuple[Any, Any]:
    """Wilson's score interval for a share seen `count` times in `n`; arrays give arrays."""
    if n < 1:
        raise ValueError("An interval needs at least one image.")
    share, widen = np.asarray(count, dtype=float) / n, z * z / n
    middle = (share + widen / 2) / (1 + widen)
    half = z * np.sqrt(share * (1 - share) / n + widen / (4 * n)) / (1 + widen)
    # Rounding must not push the ends off 0 and 1, where they belong exactly.
    low = np.where(share <= 0, 0.0, np.maximum(middle - half, 0.0))
    high = np.where(share >= 1, 1.0, np.minimum(middle + half, 1.0))
    return (float(low), float(high)) if low.ndim == 0 else (low, high)


def share_record(count: int, n: int) -> dict[str, Any]:
    """A share with its Wilson interval, or nulls where nothing was counted."""
    if n == 0:
        return {"share": None, "low": None, "high": None, "count": 0, "n": 0}
    low, high = wilson(count, n)
    return {"share": count / n, "low": low, "high": high, "count": int(count), "n": int(n)}


def mean_record(
    values: np.ndarray, rng: np.random.Generator, resamples: int = RESAMPLES
) -> dict[str, float | None]:
    """A mean with its bootstrap interval."""
    values = np.asarray(values, dtype=float)
    if not len(values):
        return {"mean": None, "low": None, "high": None}
    low, high = quantile_range(resampled_means(values, rng, resamples))
    return {"mean": float(values.mean()), "low": low, "high": high}


def resampled_means(values: np.ndarray, rng: np.random.Generator, resamples: int = RESAMPLES) -> np.ndarray:
    """Means (resamples,) of samples drawn from `values` with replacement."""
    kinds, counts = np.unique(values, return_counts=True)
    if len(kinds) > 64:
        return values[rng.integers(len(values), size=(resamples, len(values)))].mean(1)
    drawn = rng.multinomial(len(values), counts / len(values), size=resamples)  # the same law, much less work
    return drawn @ kinds / len(values)


def quantile_range(values: np.ndarray, level: float = 0.95) -> tuple[float, float]:
    """The middle `level` of resampled values."""
    low, high = np.quantile(values, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def whole_range(values: np.ndarray, level: float = 0.95) -> tuple[int, int]:
    """The middle `level` of resampled whole numbers, widened to whole numbers."""
    low, high = quantile_range(values, level)
    return math.floor(low), math.ceil(high)
