"""Condition influence (Eq. 10) by removing conditions one at a time, and conditional locality, one number.

Forward passes only. All ablations of an image go through the network together.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tessera.analysis.pixel_influence import bare, slices
from tessera.conditioning import Conditioner
from tessera.errors import UserError
from tessera.models.contract import Denoiser
from tessera.models.precondition import per_image
from tessera.rng import generator
from tessera.stats import RESAMPLES, group_counts, mean_of_draws, p_value, quantile_range

_BAND_SHARE = 0.5  # conditions matter where their influence is at least this share of its largest
_BAND_RULE = (
    "the noise levels next to the one where removing conditions changes the prompted locations most,"
    " as long as the change is at least {share:g} of that"
)


# -- Eq. 10 ------------------------------------------------------------------------------------------------


def ablated(conditioner: Conditioner, cond: Tensor, names: Sequence[Any] | None = None) -> Tensor:
    """`cond` (N, dim) less each of its conditions in turn, (N, K, dim).

    `names` lists the conditions, and thereby their order; otherwise they come in the conditioner's own.
    """
    keys = list(range(_number_of_conditions(conditioner, cond)) if names is None else names)
    if not keys:
        raise UserError("K = 0 prompts no object, so there is no condition whose influence could be measured.")
    return torch.stack([conditioner.without(cond, key) for key in keys], dim=1)


def _number_of_conditions(conditioner: Conditioner, cond: Tensor) -> int:
    """K, the same in every row."""
    numbers = {len(found) for found in conditioner.conditions(cond)}
    if len(numbers) > 1:
        raise UserError("All images measured together must have equally many conditions.")
    return numbers.pop() if numbers else 0


@torch.no_grad()
def condition_influence(
    denoise: Denoiser,
    x: Tensor,
    sigma: Tensor | float,
    cond: Tensor,
    conditioner: Conditioner,
    names: Sequence[Any] | None = None,
    *,
    rows: int = 64,
) -> Tensor:
    """Eq. 10 at every pixel: x (N, C, H, W) at levels () or (N,), cond (N, dim): (N, K, H, W).

    At most `rows` images are denoised together.
    """
    without = ablated(conditioner, cond, names)  # (N, K, dim)
    conds = torch.cat([cond[:, None], without], dim=1)  # (N, 1 + K, dim)
    levels = per_image(sigma, x)
    parts = []
    for some in slices(len(x), max(1, rows // conds.shape[1])):
        clean = _variants_of(bare(denoise), x[some], levels[some], conds[some])  # (n, 1 + K, C, H, W)
        parts.append((clean[:, 1:] - clean[:, :1]).norm(dim=2))
    found = torch.cat(parts)
    check_finite(found, levels)
    return found


def _variants_of(denoise: Denoiser, x: Tensor, sigma: Tensor, conds: Tensor) -> Tensor:
    """Every image under each of its conditions (n, V, dim): (n, V, C, H, W).

    Rounding depends on a row's position in its batch. Exactly local networks denoise one variant at a time, so
    that every row keeps its position and what cannot matter changes nothing at all.
    """
    if getattr(denoise, "exactly_local", False):
        return torch.stack([denoise(x, sigma, one) for one in conds.unbind(1)], dim=1)
    variants = conds.shape[1]
    rows = (x.repeat_interleave(variants, 0), sigma.repeat_interleave(variants), conds.flatten(0, 1))
    return denoise(*rows).unflatten(0, (-1, variants))


def check_finite(found: Tensor, sigma: Tensor) -> None:
    fine = found.flatten(1).isfinite().all(1)
    if not bool(fine.all()):
        raise UserError(f"The denoiser's output is not finite at noise level {sigma[~fine][0].item():.4g}.")


# -- one number --------------------------------------------------------------------------------------------


def _shares_of_own(influence: np.ndarray) -> np.ndarray:
    """I_j(location j) / sum_k I_k(location j): (..., K locations, K conditions) to (..., K); NaN where nothing moves."""
    total = influence.sum(-1)
    own = np.diagonal(influence, axis1=-2, axis2=-1)
    return np.divide(own, total, out=np.full_like(total, np.nan), where=total > 0)


def strength(influence: np.ndarray) -> np.ndarray:
    """How much conditions matter at each level: sum over k of I_k, mean over locations and images, (S,)."""
    return influence.sum(-1).mean((0, 2))


def band_of(strengths: np.ndarray, share: float = _BAND_SHARE) -> slice:
    """The levels next to the strongest, without a gap, whose strength is at least `share` of it."""
    if not strengths.max() > 0:
        raise UserError("Removing conditions changes nothing at any noise level: the denoiser ignores them.")
    peak = int(strengths.argmax())
    weak = np.flatnonzero(strengths < share * strengths[peak])
    first = max((level + 1 for level in weak if level < peak), default=0)
    last = min((level for level in weak if level > peak), default=len(strengths))
    return slice(int(first), int(last))


def conditional_locality(
    influence: np.ndarray,
    sigmas: Sequence[float],
    groups: Sequence[int] | None = None,
    *,
    band_share: float = _BAND_SHARE,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> dict[str, Any]:
    """Mean share of its own condition at a prompted location: 1 is perfectly local, 1 / K not at all.

    `influence` (B, S, K, K) holds I_k(location j) at [b, s, j, k] for B images at S falling noise levels. The
    interval draws images again, or whole `groups` (B,) of them, such as those of one scene, where there are
    several. The null gives every image's locations to its conditions in random order.
    """
    influence = np.asarray(influence, dtype=float)
    _check_influence(influence, sigmas)
    strengths = strength(influence)
    band = band_of(strengths, band_share)
    shares = _shares_of_own(influence)  # (B, S, K)
    rng = generator(seed)
    draws = group_counts(rng, len(influence), groups, resamples)  # (R, B)
    score = mean_of_draws(shares[:, band], draws)
    nulls = shuffled(influence[:, band], rng, resamples)
    return {
        "value": score.value,
        "low": score.low,
        "high": score.high,
        "k": influence.shape[-1],
        "no_locality": 1 / influence.shape[-1],
        "null": {**summary(nulls), "p_value": p_value(nulls, (score.value or 0) - 1e-12)},
        "band": _band_record(sigmas, band, band_share),
        "by_level": level_records(sigmas, shares, strengths, draws),
        "images": len(influence),
        "scenes": 1 if groups is None else len(set(groups)),
        "resamples": resamples,
        "seed": seed,
    }


def _check_influence(influence: np.ndarray, sigmas: Sequence[float]) -> None:
    if influence.ndim != 4 or influence.shape[-1] == 0:
        raise UserError("Conditional locality needs at least one condition: K = 0 prompts no object.")
    if influence.shape[-2] != influence.shape[-1] or influence.shape[1] != len(sigmas):
        raise UserError(f"Influence is (images, levels, K locations, K conditions), not {influence.shape}.")
    if not np.isfinite(influence).all():
        raise UserError("The influence of conditions holds values that are not finite.")


def shuffled(influence: np.ndarray, rng: np.random.Generator, times: int) -> np.ndarray:
    """Mean share with every image's locations in random order, `times` over: (times,)."""
    images, _, k = influence.shape[:3]
    total = influence.sum(-1, keepdims=True)
    parts = np.divide(influence, total, out=np.full_like(influence, np.nan), where=total > 0)
    by_image = _mean_defined(parts, (1,))  # (B, K, K)
    orders = rng.permuted(np.tile(np.arange(k), (times, images, 1)), axis=-1)  # (times, B, K)
    rows, locations = np.arange(images)[None, :, None], np.arange(k)
    return _mean_defined(by_image[rows, locations, orders], (1, 2))


def _mean_defined(values: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
    """Mean over what is not NaN; NaN where nothing is left, without a warning."""
    known = np.isfinite(values)
    total, count = np.where(known, values, 0).sum(axes), known.sum(axes)
    return np.divide(total, count, out=np.full(total.shape, np.nan), where=count > 0)


def summary(values: np.ndarray) -> dict[str, float]:
    low, high = quantile_range(values)
    return {"value": float(values.mean()), "low": low, "high": high}


def _band_record(sigmas: Sequence[float], band: slice, share: float) -> dict[str, Any]:
    inside = [float(sigma) for sigma in sigmas[band]]
    return {
        "sigma_min": min(inside),
        "sigma_max": max(inside),
        "levels": len(inside),
        "first": band.start,
        "share": share,
        "rule": _BAND_RULE.format(share=share),
    }


def level_records(
    sigmas: Sequence[float], shares: np.ndarray, strengths: np.ndarray, draws: np.ndarray
) -> list[dict[str, Any]]:
    """Locality of each level alone, null where nothing moves anything."""
    records = []
    for level, sigma in enumerate(sigmas):
        found = mean_of_draws(shares[:, level], draws)
        records.append(
            {"sigma": float(sigma), "locality": found.value, "low": found.low, "high": found.high}
            | {"strength": float(strengths[level])}
        )
    return records
