"""Condition influence (Eq. 10) by removing conditions one at a time, and conditional locality, one number.

Forward passes only. All ablations of an image go through the network together.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tessera.analysis.pixel_influence import bare, check_finite, slices
from tessera.conditioning import Conditioner
from tessera.errors import UserError
from tessera.models.contract import Denoiser
from tessera.models.precondition import per_image
from tessera.rng import generator
from tessera.stats import RESAMPLES, group_counts, mean_of_draws, p_value, quantile_range

_BAND_SHARE = 0.5  # conditions matter where their influence is at least this share of its largest
_BAND_RULE = (
    "the noise levels next to the one where removing conditions changes the prompted locations most,"
    f" as long as the change is at least {_BAND_SHARE:g} of that"
)


# -- Eq. 10 ------------------------------------------------------------------------------------------------


def ablated(conditioner: Conditioner, cond: Tensor, names: Sequence[Any] | None = None) -> Tensor:
    """`cond` (N, dim) less each of its conditions in turn, (N, K, dim).

    `names` lists the conditions, and thereby their order; otherwise they come in the conditioner's own.
    """
    if names is None:
        numbers = {len(found) for found in conditioner.conditions(cond)}
        if len(numbers) > 1:
            raise UserError("All images measured together must have equally many conditions.")
        names = range(max(numbers, default=0))
    if not len(names):
        raise UserError("K = 0 prompts no object, so there is no condition whose influence could be measured.")
    return torch.stack([conditioner.without(cond, name) for name in names], dim=1)


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
    return removal_influence(denoise, x, sigma, cond, ablated(conditioner, cond, names), rows=rows)


@torch.no_grad()
def removal_influence(
    denoise: Denoiser, x: Tensor, sigma: Tensor | float, cond: Tensor, without: Tensor, *, rows: int = 64
) -> Tensor:
    """The same for conditions less one part each, `without` (N, K, dim)."""
    conds = torch.cat([cond[:, None], without], dim=1)  # (N, 1 + K, dim)
    levels = per_image(sigma, x)
    parts = []
    for some in slices(len(x), max(1, rows // conds.shape[1])):
        clean = _variants_of(bare(denoise), x[some], levels[some], conds[some])  # (n, 1 + K, C, H, W)
        parts.append((clean[:, 1:] - clean[:, :1]).norm(dim=2))
    found = torch.cat(parts)
    check_finite(found, levels, "output")
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


# -- one number --------------------------------------------------------------------------------------------


def _shares(influence: np.ndarray) -> np.ndarray:
    """I_k(location j) / sum over k, (..., K locations, K conditions); NaN at locations where nothing moves."""
    total = influence.sum(-1, keepdims=True)
    return np.divide(influence, total, out=np.full_like(influence, np.nan), where=total > 0)


def band_of(strengths: np.ndarray) -> slice:
    """The levels next to the strongest, without a gap, whose strength is at least `_BAND_SHARE` of it."""
    if not strengths.max() > 0:
        raise UserError("Removing conditions changes nothing at any noise level: the denoiser ignores them.")
    peak = int(strengths.argmax())
    weak = np.flatnonzero(strengths < _BAND_SHARE * strengths[peak])
    first = max((level + 1 for level in weak if level < peak), default=0)
    last = min((level for level in weak if level > peak), default=len(strengths))
    return slice(int(first), int(last))


def conditional_locality(
    influence: np.ndarray,
    sigmas: Sequence[float],
    groups: Sequence[int] | None = None,
    *,
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
    strengths = influence.sum(-1).mean((0, 2))  # how much conditions matter at each level, (S,)
    band = band_of(strengths)
    shares = _shares(influence)
    own = np.diagonal(shares, axis1=-2, axis2=-1)  # (B, S, K)
    rng = generator(seed)
    draws = group_counts(rng, len(influence), groups, resamples)  # (R, B)
    score = mean_of_draws(own[:, band], draws)
    null = _shuffled(shares[:, band], rng, resamples)
    null_low, null_high = quantile_range(null)
    by_level = []
    for level, sigma in enumerate(sigmas):
        found = mean_of_draws(own[:, level], draws)  # null where nothing moves anything
        ends = {"locality": found.value, "low": found.low, "high": found.high}
        by_level.append({"sigma": float(sigma), **ends, "strength": float(strengths[level])})
    return {
        "value": score.value,
        "low": score.low,
        "high": score.high,
        "k": influence.shape[-1],
        "no_locality": 1 / influence.shape[-1],
        "null": {
            "value": float(null.mean()),
            "low": null_low,
            "high": null_high,
            "p_value": p_value(null, (score.value or 0) - 1e-12),  # rounding must not look like chance
        },
        "band": {
            "sigma_min": float(min(sigmas[band])),
            "sigma_max": float(max(sigmas[band])),
            "levels": band.stop - band.start,
            "first": band.start,
            "share": _BAND_SHARE,
            "rule": _BAND_RULE,
        },
        "by_level": by_level,
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


def _shuffled(shares: np.ndarray, rng: np.random.Generator, times: int) -> np.ndarray:
    """Mean share (times,) of the own condition with every image's locations in random order; shares (B, S, K, K)."""
    images, _, k = shares.shape[:3]
    by_image = _mean_known(shares, (1,))  # (B, K, K)
    orders = rng.permuted(np.tile(np.arange(k), (times, images, 1)), axis=-1)  # (times, B, K)
    rows, locations = np.arange(images)[None, :, None], np.arange(k)
    return _mean_known(by_image[rows, locations, orders], (1, 2))


def _mean_known(values: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
    """Mean over what is not NaN; NaN where nothing is left, without a warning."""
    return np.ma.masked_invalid(values).mean(axes).filled(np.nan)
