"""How conditions lie to each other in a space of features: cosines of mean differences, and their controls.

Features are (C concepts, S seeds, F numbers). Everything but the first step works on inner products
(C, S, C, S), which are small whatever F is, so that resampling seeds and shuffling names cost nothing.
"""

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from tessera.devices import double_home, in_double
from tessera.errors import UserError
from tessera.rng import generator
from tessera.stats import RESAMPLES, p_value, resample_counts, spread_around

Group = Hashable  # the category a concept belongs to
CHUNK = 2**16  # features multiplied at once in double precision
ROUNDING = 1e-6  # a difference this small beside the features themselves is rounding
_SPLITS = 32  # random halvings of the seeds
MEASURES = ("off_diagonal", "off_rms", "within", "between", "ratio", "gap")
_COMPARE: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"gap": torch.sub, "ratio": torch.div}


# -- mean differences (Eq. 3) ------------------------------------------------------------------------------


def differences(features: Tensor, baseline: Tensor | None = None) -> Tensor:
    """Each seed's features (C, S, ...) less those of its own baseline (S, ...): (C, S, F).

    A baseline (1, ...), such as a mean over seeds, serves all of them; without one features are taken as
    differences already.
    """
    _check_features(features, baseline)
    flat = features.flatten(2)
    return flat if baseline is None else flat - baseline.flatten(1)


def mean_differences(features: Tensor, baseline: Tensor | None = None) -> Tensor:
    """d_i = mean over seeds of h(concept i) - h(nothing), as (C, F)."""
    return differences(features, baseline).mean(1)


def inner_products(rows: Tensor, others: Tensor | None = None) -> Tensor:
    """Of all rows (N, F) with all others (M, F), or with each other, added up in double precision: (N, M)."""
    others = rows if others is None else others
    total = torch.zeros(len(rows), len(others), dtype=torch.float64, device=double_home(rows.device))
    for left, right in zip(rows.split(CHUNK, 1), others.split(CHUNK, 1), strict=True):
        total += in_double(left) @ in_double(right).T
    return total.cpu()


def seed_products(found: Tensor) -> Tensor:
    """Differences (C, S, F) to the inner product of every pair of them, (C, S, C, S)."""
    concepts, seeds = found.shape[:2]
    return inner_products(found.flatten(0, 1)).reshape(concepts, seeds, concepts, seeds)


def mean_products(products: Tensor, weights: Tensor | None = None) -> Tensor:
    """d_i . d_j (..., C, C) from (C, S, C, S); weights (..., S) of the seeds, otherwise all alike."""
    if weights is None:
        return products.mean((1, 3))
    return torch.einsum("...s,isjt,...t->...ij", weights, products, weights)


def _rounding_floor(features: Tensor) -> float:
    """Squared length below which a difference between rows of features (C, S, ...) is rounding."""
    return float(in_double(features.flatten(2)).square().sum(2).mean()) * ROUNDING**2


# -- cosines -----------------------------------------------------------------------------------------------


def cosines(products: Tensor, floor: float = 0.0) -> Tensor:
    """Inner products (..., C, C) as cosines; NaN for concepts whose squared length is not above `floor`."""
    squares = products.diagonal(dim1=-2, dim2=-1)
    lengths = torch.where(squares > floor, squares, torch.nan).sqrt()
    return (products / (lengths[..., :, None] * lengths[..., None, :])).clamp(-1, 1)


def cosine_matrix(vectors: Tensor, floor: float = 0.0) -> Tensor:
    """M_ij = d_i . d_j / |d_i||d_j| of vectors (C, ...): (C, C)."""
    return cosines(inner_products(vectors.flatten(1)), floor)


def centered(products: Tensor) -> Tensor:
    """Inner products (..., C, C) of the same vectors less their grand mean.

    What all concepts share, the baseline included, is gone; C unrelated vectors now have cosine -1 / (C - 1).
    """
    rows = products - products.mean(-1, keepdim=True)
    return rows - rows.mean(-2, keepdim=True)


def _centered_seeds(products: Tensor) -> Tensor:
    """(C, S, C, S) with every seed's mean over concepts taken out."""
    rows = products - products.mean(2, keepdim=True)
    return rows - rows.mean(0, keepdim=True)


def between_halves(products: Tensor, splits: int = _SPLITS, seed: int = 0) -> Tensor:
    """cos(d_i of one half of the seeds, d_j of the other), mean over random halvings: (C, C).

    Its diagonal says how well a concept's own vector repeats, the ceiling for all similarities.
    """
    seeds = products.shape[1]
    if seeds < 2:
        raise UserError("Halves need at least two seeds.")
    rng = generator(seed)
    orders = torch.from_numpy(rng.permuted(np.tile(np.arange(seeds), (splits, 1)), axis=1))
    first = torch.zeros(splits, seeds, dtype=products.dtype).scatter_(1, orders[:, : seeds // 2], 1.0)
    second = 1 - first
    crossed = torch.einsum("rs,isjt,rt->rij", first, products, second)  # (R, C, C)
    lengths = [mean_products(products, half).diagonal(dim1=-2, dim2=-1).sqrt() for half in (first, second)]
    found = crossed / (lengths[0][:, :, None] * lengths[1][:, None, :])
    return ((found + found.mT) / 2).mean(0)


def off_diagonal(matrix: Tensor) -> Tensor:
    """Mean of M_ij over i != j, of matrices (..., C, C): (...)."""
    concepts = matrix.shape[-1]
    total = matrix.sum((-2, -1)) - matrix.diagonal(dim1=-2, dim2=-1).sum(-1)
    return total / (concepts * (concepts - 1))


def off_rms(matrix: Tensor) -> Tensor:
    """Root mean square of M_ij over i != j: how far from right angles, where signs would cancel in the mean."""
    return off_diagonal(matrix.square()).sqrt()


# -- within and between categories -------------------------------------------------------------------------


def _same_group(groups: Sequence[Group]) -> Tensor:
    """Which pairs of concepts share a category, (C, C); the diagonal is left to the caller."""
    numbers = numbered(groups)
    return numbers[:, None] == numbers[None, :]


def numbered(groups: Sequence[Group]) -> Tensor:
    names = list(dict.fromkeys(groups))
    return torch.tensor([names.index(group) for group in groups])


def within_between(matrix: Tensor, groups: Sequence[Group]) -> tuple[Tensor, Tensor]:
    """Mean cosine of two concepts of one category, and of two categories, from (..., C, C)."""
    _check_groups(groups, matrix.shape[-1])
    return _masked_means(matrix, _same_group(groups))


def _masked_means(matrix: Tensor, same: Tensor) -> tuple[Tensor, Tensor]:
    """Means of (..., C, C) above the diagonal where `same` (..., C, C) holds and where it does not."""
    upper = torch.ones(matrix.shape[-2:], dtype=torch.bool).triu(1)
    parts = []
    for mask in (same & upper, ~same & upper):
        chosen = torch.where(mask, matrix, 0).sum((-2, -1))
        parts.append(chosen / mask.sum((-2, -1)))
    return parts[0], parts[1]


def permutation_p(
    matrix: Tensor,
    groups: Sequence[Group],
    *,
    by: Literal["gap", "ratio"] = "gap",
    shuffles: int = RESAMPLES,
    seed: int = 0,
) -> float:
    """Chance of a gap (or ratio) as large when the names of the concepts are shuffled; (C, C) cosines."""
    _check_groups(groups, len(matrix))
    compare = _COMPARE[by]
    rng = generator(seed)
    orders = torch.from_numpy(rng.permuted(np.tile(np.arange(len(matrix)), (shuffles, 1)), axis=1))
    numbers = numbered(groups)[orders]  # (shuffles, C)
    shuffled = compare(*_masked_means(matrix, numbers[:, :, None] == numbers[:, None, :]))
    found = compare(*within_between(matrix, groups))
    if not bool(found.isfinite()):
        return math.nan
    return p_value(shuffled.numpy(), float(found) - 1e-12)


def repetition_p(halves: Tensor, *, shuffles: int = RESAMPLES, seed: int = 0) -> float:
    """Chance of a diagonal as large when the second half's names are shuffled; halves (C, C)."""
    rng = generator(seed)
    orders = torch.from_numpy(rng.permuted(np.tile(np.arange(len(halves)), (shuffles, 1)), axis=1))
    shuffled = halves[torch.arange(len(halves)), orders].mean(1)
    found = halves.diagonal().mean()
    if not bool(found.isfinite()):
        return math.nan
    return p_value(shuffled.numpy(), float(found) - 1e-12)


# -- seeds drawn again -------------------------------------------------------------------------------------


def seed_weights(seeds: int, resamples: int = RESAMPLES, seed: int = 0) -> Tensor:
    """Shares (R, S) of each seed when S of them are drawn again with replacement."""
    return torch.from_numpy(resample_counts(generator(seed), seeds, resamples) / seeds)


# -- all of it for one hook -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Disentanglement:
    """How far apart concepts are in one space.

    With categories, `within` and `between` are means over pairs of concepts (the paper's). Without, every
    concept is compared with itself over other seeds: `within` and `between` are means of `between_halves`,
    on and off its diagonal. Numbers that are not defined are NaN.
    """

    matrix: Tensor  # (C, C) cosines of the mean differences
    off_diagonal: float
    within: float
    between: float
    p: float  # of the gap, names shuffled
    intervals: dict[str, tuple[float, float] | None]  # 95%, seeds drawn again
    lengths: Tensor  # (C,) |d_i|

    @property
    def off_rms(self) -> float:
        return float(off_rms(self.matrix))

    @property
    def ratio(self) -> float:
        return self.within / self.between if self.between else math.nan

    @property
    def gap(self) -> float:
        return self.within - self.between

    def record(self) -> dict[str, Any]:
        return {
            **{name: with_interval(getattr(self, name), self.intervals.get(name)) for name in MEASURES},
            "p": known(self.p),
            "lengths": [known(length) for length in self.lengths.tolist()],
            "matrix": known_table(self.matrix),
        }


def disentanglement(
    features: Tensor, baseline: Tensor | None = None, groups: Sequence[Group] | None = None, **options: Any
) -> Disentanglement:
    """Of features (C, S, ...) against a baseline (S, ...); options as for `from_products`."""
    found = differences(features, baseline)
    scale = features if baseline is None else baseline[None]
    return from_products(seed_products(found), groups, floor=_rounding_floor(scale), **options)


def from_products(
    products: Tensor,
    groups: Sequence[Group] | None = None,
    *,
    center: bool = False,
    floor: float = 0.0,
    resamples: int = RESAMPLES,
    shuffles: int = RESAMPLES,
    seed: int = 0,
) -> Disentanglement:
    """The same from inner products (C, S, C, S) of differences; `center` takes the grand mean out first."""
    _check_products(products)
    products = _centered_seeds(products) if center else products
    inner = mean_products(products)
    # Centered rounding is smaller than rounding; the floor belongs to what went in.
    matrix = cosines(inner, floor)
    seeds = products.shape[1]
    again = None if seeds < 2 else cosines(mean_products(products, seed_weights(seeds, resamples, seed)), floor)
    measured, spread, p = (
        alone(products, matrix, again, shuffles, seed)
        if groups is None
        else _grouped(matrix, again, groups, shuffles, seed)
    )
    intervals = {} if spread is None else _intervals_of(measured, spread)
    lengths = inner.diagonal().clamp(min=0).sqrt()
    return Disentanglement(
        matrix, measured["off_diagonal"], measured["within"], measured["between"], p, intervals, lengths
    )


Measured = dict[str, float]
_Spread = dict[str, Tensor] | None


def _grouped(
    matrix: Tensor, again: Tensor | None, groups: Sequence[Group], shuffles: int, seed: int
) -> tuple[Measured, _Spread, float]:
    """Within and between categories, of the matrix and of its resampled ones (R, C, C)."""

    def measures(cosine: Tensor) -> dict[str, Tensor]:
        within, between = within_between(cosine, groups)
        return {**_off_measures(cosine), "within": within, "between": between}

    measured = {name: float(value) for name, value in measures(matrix).items()}
    spread = None if again is None else measures(again)
    return measured, spread, permutation_p(matrix, groups, shuffles=shuffles, seed=seed)


def alone(
    products: Tensor, matrix: Tensor, again: Tensor | None, shuffles: int, seed: int
) -> tuple[Measured, _Spread, float]:
    """Every concept is its own category: compared with itself over halves of the seeds."""
    measured = {name: float(value) for name, value in _off_measures(matrix).items()}
    measured |= {"within": math.nan, "between": math.nan}
    if again is None or not bool(matrix.isfinite().all()):
        return measured, None if again is None else _off_measures(again), math.nan
    halves = between_halves(products, seed=seed)
    measured |= {"within": float(halves.diagonal().mean()), "between": float(off_diagonal(halves))}
    return measured, _off_measures(again), repetition_p(halves, shuffles=shuffles, seed=seed)


def _off_measures(matrix: Tensor) -> dict[str, Tensor]:
    return {"off_diagonal": off_diagonal(matrix), "off_rms": off_rms(matrix)}


def _intervals_of(measured: Measured, spread: dict[str, Tensor]) -> dict[str, tuple[float, float] | None]:
    """95% of each measure that was resampled, and of ratio and gap where both their parts were."""
    found = {name: spread_around(measured[name], values, (-1.0, 1.0)) for name, values in spread.items()}
    if "within" in spread:
        within, between = spread["within"], spread["between"]
        ratio = measured["within"] / measured["between"] if measured["between"] else math.nan
        found["ratio"] = spread_around(ratio, within / between)
        found["gap"] = spread_around(measured["within"] - measured["between"], within - between)
    return found


# -- null bands --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Band:
    """The range of a number over n untrained networks."""

    low: float
    high: float
    mean: float
    n: int

    @property
    def chance_outside(self) -> float:
        """Of one more such network to lie outside, on either side."""
        return min(1.0, 2 / (self.n + 1))

    def clears(self, value: float) -> str | None:
        """On which side of the band a value lies: `above`, `below`, or None for inside or unknown."""
        return "above" if value > self.high else "below" if value < self.low else None

    def record(self) -> dict[str, Any]:
        return {
            "low": self.low,
            "high": self.high,
            "mean": self.mean,
            "networks": self.n,
            "chance_outside": self.chance_outside,
        }


def null_band(values: Sequence[float]) -> Band | None:
    """The band of a number measured in untrained networks; None where it is known in none of them."""
    finite = [float(value) for value in values if math.isfinite(value)]
    return Band(min(finite), max(finite), sum(finite) / len(finite), len(finite)) if finite else None


# -- plain data and checks ---------------------------------------------------------------------------------


def known(value: float) -> float | None:
    """JSON has no NaN."""
    return float(value) if math.isfinite(value) else None


def known_table(values: Tensor) -> list[list[float | None]]:
    """A matrix as rows of numbers."""
    return [list(map(known, row)) for row in values.tolist()]


def with_interval(value: float, ends: tuple[float, float] | None) -> dict[str, float | None]:
    low, high = ends or (math.nan, math.nan)
    return {"value": known(value), "low": known(low), "high": known(high)}


def _check_features(features: Tensor, baseline: Tensor | None) -> None:
    if features.ndim < 3 or len(features) < 2:
        raise UserError(f"Features are (two or more concepts, seeds, numbers), not {tuple(features.shape)}.")
    if baseline is not None:
        fits = baseline.shape[1:] == features.shape[2:] and len(baseline) in (1, features.shape[1])
        if not fits:
            shapes = f"{tuple(baseline.shape)} for features {tuple(features.shape)}"
            raise UserError(f"A baseline is (seeds, numbers) like the features, not {shapes}.")


def _check_products(products: Tensor) -> None:
    if products.ndim != 4 or products.shape[:2] != products.shape[2:] or len(products) < 2:
        raise UserError(f"Inner products are (C, S, C, S) with C > 1, not {tuple(products.shape)}.")


def _check_groups(groups: Sequence[Group], concepts: int) -> None:
    if len(groups) != concepts:
        raise UserError(f"There are {concepts} concepts, but categories for {len(groups)}.")
    if not 1 < len(set(groups)) < concepts:
        raise UserError("Within and between need two or more categories, one of them with two concepts.")
