"""How conditions lie to each other in a space of features: cosines of mean differences, and their controls.

Features are (C concepts, S seeds, F numbers). Everything but `products_of` works on inner products
(C, S, C, S), which are small whatever F is, so that resampling seeds and shuffling names cost nothing.
"""

import math
from collections.abc import Hashable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tessera.devices import in_double
from tessera.errors import UserError
from tessera.rng import generator
from tessera.stats import RESAMPLES, p_value, resample_counts, spread_around

Group = Hashable  # the category a concept belongs to
_CHUNK = 2**16  # features multiplied at once in double precision
_ROUNDING = 1e-6  # a difference this small beside the features themselves is rounding
_SPLITS = 32  # random halvings of the seeds
MEASURES = ("off_diagonal", "off_rms", "within", "between", "ratio", "gap")


# -- mean differences (Eq. 3) ------------------------------------------------------------------------------


@dataclass(frozen=True)
class FeatureProducts:
    """Inner products of D differences, and the squared length below which they are rounding."""

    among: Tensor  # (D, S, D, S)
    floor: float


def products_of(features: Tensor, pairs: Sequence[tuple[int, int]]) -> FeatureProducts:
    """Of features (V, S, F): the differences of `pairs` of prompts, multiplied; a part of F at a time."""
    prompt, baseline = torch.tensor(pairs, device=features.device).T
    seeds, size = features.shape[1], len(pairs) * features.shape[1]
    among, squares = torch.zeros(size, size, dtype=torch.float64), 0.0
    for part in features.split(_CHUNK, 2):
        part = in_double(part)
        rows = (part[prompt] - part[baseline]).flatten(0, 1)
        among += (rows @ rows.T).cpu()
        squares += float(part.square().sum())
    length = squares / (features.shape[0] * seeds)
    return FeatureProducts(among.reshape(len(pairs), seeds, len(pairs), seeds), length * _ROUNDING**2)


def mean_products(products: Tensor, weights: Tensor | None = None) -> Tensor:
    """d_i . d_j (..., C, C) from (C, S, C, S); weights (..., S) of the seeds, otherwise all alike."""
    if weights is None:
        return products.mean((1, 3))
    return torch.einsum("...s,isjt,...t->...ij", weights, products, weights)


# -- cosines -----------------------------------------------------------------------------------------------


def cosines(products: Tensor, floor: float = 0.0) -> Tensor:
    """Inner products (..., C, C) as cosines; NaN for concepts whose squared length is not above `floor`."""
    squares = products.diagonal(dim1=-2, dim2=-1)
    lengths = torch.where(squares > floor, squares, torch.nan).sqrt()
    return (products / (lengths[..., :, None] * lengths[..., None, :])).clamp(-1, 1)


def _centered_seeds(products: Tensor) -> Tensor:
    """(C, S, C, S) with every seed's mean over concepts taken out.

    What all concepts share, the baseline included, is gone; C unrelated vectors now have cosine -1 / (C - 1).
    """
    rows = products - products.mean(2, keepdim=True)
    return rows - rows.mean(0, keepdim=True)


def between_halves(products: Tensor, splits: int = _SPLITS, seed: int = 0) -> Tensor:
    """cos(d_i of one half of the seeds, d_j of the other), mean over random halvings: (C, C).

    Its diagonal says how well a concept's own vector repeats, the ceiling for all similarities.
    """
    seeds = products.shape[1]
    if seeds < 2:
        raise UserError("Halves need at least two seeds.")
    orders = _random_orders(seeds, splits, seed)
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


def within_between(matrix: Tensor, groups: Sequence[Group]) -> tuple[Tensor, Tensor]:
    """Mean cosine of two concepts of one category, and of two categories, from (..., C, C)."""
    return _grouped_means(matrix, _numbers_of(groups, matrix.shape[-1]))


def _numbers_of(groups: Sequence[Group], concepts: int) -> Tensor:
    """The number of each concept's category, (C,)."""
    if len(groups) != concepts:
        raise UserError(f"There are {concepts} concepts, but categories for {len(groups)}.")
    names = list(dict.fromkeys(groups))
    if not 1 < len(names) < concepts:
        raise UserError("Within and between need two or more categories, one of them with two concepts.")
    return torch.tensor([names.index(group) for group in groups])


def _grouped_means(matrix: Tensor, numbers: Tensor) -> tuple[Tensor, Tensor]:
    """Means of (..., C, C) above the diagonal over pairs of one category and of two; numbers (..., C)."""
    same = numbers[..., :, None] == numbers[..., None, :]
    upper = torch.ones(matrix.shape[-2:], dtype=torch.bool).triu(1)
    parts = []
    for mask in (same & upper, ~same & upper):
        chosen = torch.where(mask, matrix, 0).sum((-2, -1))
        parts.append(chosen / mask.sum((-2, -1)))
    return parts[0], parts[1]


def permutation_p(matrix: Tensor, groups: Sequence[Group], *, shuffles: int = RESAMPLES, seed: int = 0) -> float:
    """Chance of a gap as large when the names of the concepts are shuffled; (C, C) cosines."""
    numbers = _numbers_of(groups, len(matrix))
    gaps = []
    for orders in (_random_orders(len(matrix), shuffles, seed), torch.arange(len(matrix))):
        within, between = _grouped_means(matrix, numbers[orders])
        gaps.append(within - between)
    return _chance_of(gaps[1], gaps[0])


def repetition_p(halves: Tensor, *, shuffles: int = RESAMPLES, seed: int = 0) -> float:
    """Chance of a diagonal as large when the second half's names are shuffled; halves (C, C)."""
    orders = _random_orders(len(halves), shuffles, seed)
    return _chance_of(halves.diagonal().mean(), halves[torch.arange(len(halves)), orders].mean(1))


def _random_orders(count: int, times: int, seed: int) -> Tensor:
    """So many orders (times, count) of the first whole numbers."""
    return torch.from_numpy(generator(seed).permuted(np.tile(np.arange(count), (times, 1)), axis=1))


def _chance_of(value: Tensor, shuffled: Tensor) -> float:
    """How often shuffled values (R,) are as large, but for rounding; NaN where the value is not known."""
    return p_value(shuffled.numpy(), float(value) - 1e-12) if bool(value.isfinite()) else math.nan


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
    lengths: Tensor  # (C,) |d_i|
    intervals: dict[str, tuple[float, float] | None]  # 95%, seeds drawn again
    off_diagonal: float
    off_rms: float
    within: float
    between: float
    p: float  # of the gap, names shuffled

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
    """Of features (C, S, ...) less those of a baseline (S, ...), seed by seed; options as for `from_products`.

    A baseline (1, ...), such as a mean over seeds, serves all of them; without one features are taken as
    differences already.
    """
    _check_features(features, baseline)
    concepts = len(features)
    baseline = torch.zeros_like(features[0]) if baseline is None else baseline.expand_as(features[0])
    rows = torch.cat([features, baseline[None]]).flatten(2)
    found = products_of(rows, [(concept, concepts) for concept in range(concepts)])
    return from_products(found.among, groups, floor=found.floor, **options)


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
    inner, seeds = mean_products(products), products.shape[1]
    # Centered rounding is smaller than rounding; the floor belongs to what went in.
    matrix = cosines(inner, floor)
    measures, intervals = _measures_of(matrix, groups), {}
    if seeds > 1:
        again = cosines(mean_products(products, seed_weights(seeds, resamples, seed)), floor)  # (R, C, C)
        for name, values in _measures_of(again, groups).items():
            bounds = () if name in ("ratio", "gap") else ((-1.0, 1.0),)
            intervals[name] = spread_around(float(measures[name]), values, *bounds)
    measured = {name: float(measures[name]) for name in measures if name not in ("ratio", "gap")}
    if groups is None:
        measured |= _repetition(products, matrix, shuffles, seed)
    else:
        measured["p"] = permutation_p(matrix, groups, shuffles=shuffles, seed=seed)
    return Disentanglement(matrix, inner.diagonal().clamp(min=0).sqrt(), intervals, **measured)


def _measures_of(matrix: Tensor, groups: Sequence[Group] | None) -> dict[str, Tensor]:
    """Of cosines (..., C, C): (...) each."""
    found = {"off_diagonal": off_diagonal(matrix), "off_rms": off_rms(matrix)}
    if groups is not None:
        within, between = within_between(matrix, groups)
        found |= {"within": within, "between": between, "ratio": within / between, "gap": within - between}
    return found


def _repetition(products: Tensor, matrix: Tensor, shuffles: int, seed: int) -> dict[str, float]:
    """Every concept as its own category: compared with itself over halves of the seeds."""
    if products.shape[1] < 2 or not bool(matrix.isfinite().all()):
        return dict.fromkeys(("within", "between", "p"), math.nan)
    halves = between_halves(products, seed=seed)
    p = repetition_p(halves, shuffles=shuffles, seed=seed)
    return {"within": float(halves.diagonal().mean()), "between": float(off_diagonal(halves)), "p": p}


# -- null bands --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Band:
    """The range of a number over some untrained networks."""

    low: float
    high: float
    mean: float
    networks: int

    @property
    def chance_outside(self) -> float:
        """Of one more such network to lie outside, on either side."""
        return min(1.0, 2 / (self.networks + 1))

    def clears(self, value: float) -> str | None:
        """On which side of the band a value lies: `above`, `below`, or None for inside or unknown."""
        return "above" if value > self.high else "below" if value < self.low else None

    def record(self) -> dict[str, Any]:
        return {**asdict(self), "chance_outside": self.chance_outside}


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
