"""The Structured Identity Mapping data: one Gaussian cluster per concept axis; the network learns to copy its input."""

from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tessera.errors import UserError
from tessera.rng import generator

Array = NDArray[np.floating[Any]]


@dataclass(frozen=True)
class Sim:
    """s concepts in `dim` coordinates; cluster p lies at mu_p on axis p and all share one diagonal covariance."""

    mu: tuple[float, ...]
    sigma: tuple[float, ...] | float = 0.05
    dim: int | None = None
    #: Seed of a random rotation applied alike to training and test points; None keeps the axes.
    rotation: int | None = None
    #: One more cluster at the origin; every cluster then weighs 1/(s+1).
    origin: bool = False
    #: Keep training points out of the ball of radius min(mu)/2 around the composition of all concepts.
    truncate: bool = False

    def __post_init__(self):
        if not self.mu or not all(np.isfinite(m) and m > 0 for m in self.mu):
            raise UserError(f"Signal strengths mu must be positive numbers, not {_format_numbers(self.mu)}.")
        if np.size(self.sigma) not in (1, self.s):
            raise UserError(
                f"Give one sigma for all concepts or one for each of the {self.s}, not {np.size(self.sigma)}."
            )
        if not all(np.isfinite(v) and v >= 0 for v in self.spread):
            raise UserError(f"Diversities sigma must not be negative: {_format_numbers(self.spread)}.")
        if self.truncate and self.s < 2:
            raise UserError("With one concept the composition is its own cluster; truncate would leave nothing.")
        if self.s > self.d:
            raise UserError(f"{self.s} concepts do not fit into {self.d} dimensions; s must not exceed d.")

    @property
    def s(self) -> int:
        return len(self.mu)

    @property
    def d(self) -> int:
        return self.s if self.dim is None else self.dim

    @cached_property
    def spread(self) -> Array:
        """One diversity per concept, (s,)."""
        return np.broadcast_to(np.asarray(self.sigma, float), self.s)

    @property
    def clusters(self) -> int:
        return self.s + self.origin

    @cached_property
    def a(self) -> Array:
        """Eigenvalues of the uncentred second moment along the concept axes, (d,)."""
        return second_moment(self.mu, self.spread, self.d, self.clusters)

    @cached_property
    def turn(self) -> Array:
        """The rotation from concept axes to coordinates, (d, d)."""
        if self.rotation is None:
            return np.eye(self.d)
        q, r = np.linalg.qr(generator(self.rotation).standard_normal((self.d, self.d)))
        return q * np.sign(np.diag(r))  # Haar: the sign fixes the freedom QR leaves

    @cached_property
    def codes(self) -> Array:
        """All 2^s corners as binary rows, (2^s, s), the first concept slowest."""
        return np.array(list(product((0.0, 1.0), repeat=self.s)))

    @cached_property
    def corners(self) -> Array:
        """The points that stand for the codes, (2^s, d)."""
        return self.point(self.codes)

    @cached_property
    def target(self) -> Array:
        """All concepts at once: the main out-of-distribution point, (d,)."""
        return self.point(np.ones(self.s))

    @cached_property
    def centers(self) -> Array:
        """Means of the training clusters, (clusters, d); the optional origin comes last."""
        return self.point(np.eye(self.clusters, self.s))

    def point(self, code: ArrayLike) -> Array:
        """x^(v) = sum_p v_p mu_p e_p for codes (..., s): points (..., d)."""
        axes = np.asarray(code, float) * np.array(self.mu)  # (..., s)
        return axes @ self.turn[:, : self.s].T

    def concepts(self, points: Array) -> Array:
        """Coordinates along the concept axes in units of mu, so that corner v reads v: (..., d) -> (..., s)."""
        return (points @ self.turn[:, : self.s]) / np.array(self.mu)

    def draw(self, n: int, seed: int) -> Array:
        """n training points from every cluster, (clusters * n, d), cluster after cluster."""
        if n < 1:
            raise UserError(f"Each cluster needs at least one sample, not {n}.")
        rng = generator(seed)
        centers = np.repeat(self.centers, n, axis=0)  # (N, d)
        points = centers + self._noise(len(centers), rng)
        while self.truncate and (inside := self._near_target(points)).any():
            points[inside] = centers[inside] + self._noise(int(inside.sum()), rng)
        return points

    def _noise(self, count: int, rng: np.random.Generator) -> Array:
        return rng.standard_normal((count, self.s)) * self.spread @ self.turn[:, : self.s].T

    def _near_target(self, points: Array) -> NDArray[np.bool_]:
        return np.linalg.norm(points - self.target, axis=-1) < 0.5 * min(self.mu)


def second_moment(mu: ArrayLike, sigma: ArrayLike, dim: int, clusters: int | None = None) -> Array:
    """a_p = sigma_p^2 + mu_p^2 / clusters for settings mu (..., s), sigma broadcastable; zero beyond s: (..., d)."""
    mu, sigma = np.broadcast_arrays(mu, sigma)
    s = mu.shape[-1]
    a = np.zeros((*mu.shape[:-1], dim))
    a[..., :s] = sigma**2 + mu**2 / (clusters or s)
    return a


def population_loss(w: Array, a: Array) -> Array:
    """L = 1/2 tr((W - I) A (W - I)^T) for maps (..., d, d) and a diagonal A given as (..., d)."""
    off = w - np.eye(w.shape[-1])
    return 0.5 * (np.square(off) * a[..., None, :]).sum((-2, -1))


def error_at(w: Array, point: Array) -> Array:
    """E = 1/2 ||W x - x||^2 at points (..., d) broadcast against maps (..., d, d)."""
    miss = np.einsum("...ij,...j->...i", w, point) - point
    return 0.5 * np.square(miss).sum(-1)


def ordered_pairs(codes: Array) -> list[tuple[int, int]]:
    """All (lower, upper) with lower <= upper in every concept and lower != upper (Appendix B's partial order)."""
    is_below = (codes[:, None] <= codes[None]).all(-1) & ~np.eye(len(codes), dtype=bool)
    return [(int(low), int(high)) for low, high in np.argwhere(is_below)]


def _format_numbers(values) -> str:
    return ", ".join(f"{value:g}" for value in values)
