"""Where runs begin: factors U by alignment, positive, or Gaussian, one seed per run."""

from collections.abc import Iterable

import numpy as np

from tessera.errors import UserError
from tessera.rng import generator
from tessera.studies.swingby.data import Array


def aligned_map(omega: Array | float, rho: Array | float) -> Array:
    """W0 of two concepts whose rows of U have norm omega and cosine rho: (..., 2, 2)."""
    omega, rho = np.broadcast_arrays(omega, rho)
    if (np.abs(rho) > 1).any():
        raise UserError("The alignment rho is a cosine and must lie between -1 and 1.")
    cosines = np.where(np.eye(2, dtype=bool), 1.0, rho[..., None, None])
    return omega[..., None, None] ** 2 * cosines


def positive_factors(seeds: Iterable[int], omega: float, shape: tuple[int, int], low=0.5, high=1.5) -> Array:
    """U = omega * uniform(low, high), all entries positive: (seeds, d, d')."""
    return omega * np.stack([generator(seed).uniform(low, high, shape) for seed in seeds])


def gaussian_factors(seeds: Iterable[int], scale: float, shape: tuple[int, int]) -> Array:
    """U with independent N(0, scale^2) entries: (seeds, d, d')."""
    return scale * np.stack([generator(seed).standard_normal(shape) for seed in seeds])


def unit_factors(kind: str, seeds: Iterable[int], shape: tuple[int, int]) -> Array:
    """U of size 1, positive or Gaussian with rows of norm about 1: (seeds, d, d')."""
    if kind == "positive":
        return positive_factors(seeds, 1.0, shape)
    return gaussian_factors(seeds, 1 / np.sqrt(shape[1]), shape)


def root(w0: Array, power: float = 0.5) -> Array:
    """W0^power, symmetric; with power 1/2 the U with U U^T = W0. Starts (..., d, d)."""
    values, vectors = _spectrum(w0)
    return (vectors * (values**power)[..., None, :]) @ np.swapaxes(vectors, -1, -2)


def factor(w0: Array) -> Array:
    """A U (d, rank) with U U^T = W0: directions absent from W0 are absent from U and stay absent."""
    values, vectors = _spectrum(w0)
    present = values > 1e-12 * values[-1]
    return vectors[:, present] * np.sqrt(values[present])


def _spectrum(w0: Array) -> tuple[Array, Array]:
    values, vectors = np.linalg.eigh(w0)
    symmetric = np.allclose(w0, np.swapaxes(w0, -1, -2), rtol=0, atol=1e-12)
    if not symmetric or (values < -1e-12 * np.abs(values).max(-1, keepdims=True)).any():
        raise UserError("W0 must be symmetric without negative eigenvalues, or it has no real root.")
    return np.maximum(values, 0), vectors
