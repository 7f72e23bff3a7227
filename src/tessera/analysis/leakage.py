"""Locality in feature space: does removing a condition change only the features which that condition spans?

Definition 1 with directions instead of pixels. d_i is what concept i alone adds to the features, r_i what goes
when it is taken out of K. A local conditional score in this space has r_i along d_i and nowhere else.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tessera.analysis.feature_statistics import known, known_table, mean_products, seed_weights, with_interval
from tessera.errors import UserError
from tessera.stats import RESAMPLES, spread_around

_RTOL = 1e-6  # directions that lie this close to the span of others count as inside it


@dataclass(frozen=True)
class Leakage:
    """Where the change goes when one of K conditions is removed; shares of its energy add up to 1."""

    own: Tensor  # (K,) along the removed concept's own vector d_i
    others: Tensor  # (K,) in the span of all concepts' vectors, but not along d_i
    elsewhere: Tensor  # (K,) outside that span
    coefficients: Tensor  # (C, K): r_k is best written as sum over j of [j, k] d_j
    intervals: dict[str, tuple[float, float] | None]  # 95%, seeds drawn again

    @property
    def leakage(self) -> float:
        """Mean share of energy that is not along the removed concept's own vector."""
        return float((1 - self.own).mean())

    @property
    def locality(self) -> float:
        """Mean over concepts j of |a_jj| / sum_k |a_jk|: 1 if only its own removal moves it, 1 / K for none."""
        return float(_own_shares(self.coefficients))

    def record(self) -> dict[str, Any]:
        shares = {name: getattr(self, name) for name in ("own", "others", "elsewhere")}
        return {
            "leakage": with_interval(self.leakage, self.intervals.get("leakage")),
            "locality": with_interval(self.locality, self.intervals.get("locality")),
            "no_locality": 1 / len(self.own),
            **{name: known(float(value.mean())) for name, value in shares.items()},
            "own_each": [known(value) for value in self.own.tolist()],
            "coefficients": known_table(self.coefficients),
        }


def leakage(
    products: Tensor, concepts: int, *, floor: float = 0.0, resamples: int = RESAMPLES, seed: int = 0
) -> Leakage:
    """From inner products (C + K, S, C + K, S) of all d, then all r; concepts removed are the first K."""
    removed = len(products) - concepts
    if not 1 <= removed <= concepts:
        raise UserError(f"Of {concepts} concepts one can remove 1 to {concepts}, not {removed}.")
    own, others, elsewhere, coefficients = parts(mean_products(products), concepts, floor)
    intervals = {}
    if products.shape[1] > 1:
        again = parts(mean_products(products, seed_weights(products.shape[1], resamples, seed)), concepts, floor)
        measured = {"leakage": float((1 - own).mean()), "locality": float(_own_shares(coefficients))}
        spread = {"leakage": (1 - again[0]).mean(-1), "locality": _own_shares(again[3])}
        intervals = {name: spread_around(measured[name], spread[name], (0.0, 1.0)) for name in measured}
    return Leakage(own, others, elsewhere, coefficients, intervals)


def parts(inner: Tensor, concepts: int, floor: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Own, others, elsewhere (..., K) and coefficients (..., C, K) from inner products (..., C + K, C + K)."""
    among, across = inner[..., :concepts, :concepts], inner[..., :concepts, concepts:]
    energy = inner.diagonal(dim1=-2, dim2=-1)
    energy = torch.where(energy > floor, energy, math.nan)  # what moves nothing has no direction
    removed = inner.shape[-1] - concepts
    lengths, energy = energy[..., :removed], energy[..., concepts:]  # |d_i|^2, |r_i|^2
    own = across[..., :removed, :].diagonal(dim1=-2, dim2=-1).square() / (lengths * energy)
    coefficients = torch.linalg.pinv(among, rtol=_RTOL, hermitian=True) @ across
    coefficients = torch.where(energy[..., None, :].isnan(), math.nan, coefficients)
    spanned = (across * coefficients).sum(-2) / energy
    return own, (spanned - own).clamp(min=0), (1 - spanned).clamp(min=0), coefficients


def _own_shares(coefficients: Tensor) -> Tensor:
    """|a_jj| / sum_k |a_jk|, mean over the K removed concepts j, from (..., C, K): (...)."""
    removed = coefficients.shape[-1]
    size = coefficients[..., :removed, :].abs()
    return (size.diagonal(dim1=-2, dim2=-1) / size.sum(-1)).mean(-1)
