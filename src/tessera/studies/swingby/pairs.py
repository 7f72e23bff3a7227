"""Two concepts, thousands of runs: the four entries of U as flat arrays, one column per run.

Batches of 2x2 matrix products are slow; written out, the same equations run at memory speed.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from tessera.studies.swingby.analysis import COMES_BACK, MONOTONE, THRESHOLD
from tessera.studies.swingby.data import Array
from tessera.studies.swingby.starts import aligned_map, root
from tessera.studies.swingby.symmetric import settling_time

_RUNS_AT_ONCE = 1024  # runs integrated together: small enough that their state stays in the processor's cache
_STRIDE = 0.05  # step times the larger a until the strong concept is learned; the error of w12 is about 1e-6
_LATE_STRIDE = 0.15  # afterwards, when only motion at the rate of the weak concept is left


@dataclass(frozen=True)
class _PairRuns:
    """What a batch of two-concept runs did, each (B,)."""

    first: Array
    lowest: Array
    rise: Array
    last: Array

    def swings(self, threshold: float = THRESHOLD) -> np.ndarray:
        """The swing-by verdict of every run."""
        returned = self.last - self.lowest <= COMES_BACK * self.rise
        return (self.rise > MONOTONE) & (self.rise >= threshold * self.first) & returned


def pair_velocity(u: Array, a1: Array, a2: Array) -> Array:
    """dU/dt on the paper's clock for the four entries (u11, u12, u21, u22) of U, (4, B).

    The map itself would need three entries only, but a start with nearly parallel rows is nearly singular, and rounding then
    pushes W out of the positive cone, where it diverges; U cannot leave it.
    """
    w11, w12, w22 = _pair_map(u)
    p11, p12, p22 = a1 * (1 - w11), -0.5 * (a1 + a2) * w12, a2 * (1 - w22)  # half of (I-W)A + A(I-W)
    out = np.empty_like(u)
    out[:2] = p11 * u[:2] + p12 * u[2:]
    out[2:] = p12 * u[:2] + p22 * u[2:]
    return out


def _pair_map(u: Array) -> tuple[Array, Array, Array]:
    """w11, w12, w22 of W = U U^T for u (4, B)."""
    return u[0] * u[0] + u[1] * u[1], u[0] * u[2] + u[1] * u[3], u[2] * u[2] + u[3] * u[3]


def pair_map_velocity(w: Array, a1: Array, a2: Array) -> Array:
    """(w11', w12', w22') on the paper's clock for w (3, B): the same motion in the entries of the map."""
    w11, w12, w22 = w
    square = (a1 + a2) * w12**2
    minor = w12 * (a1 + a2 - 0.5 * w11 * (3 * a1 + a2) - 0.5 * w22 * (3 * a2 + a1))
    return np.stack([2 * a1 * w11 * (1 - w11) - square, minor, 2 * a2 * w22 * (1 - w22) - square])


def _pair_error(u: Array, mu1: Array, mu2: Array) -> Array:
    """E at the composition (mu1, mu2) for u (4, B)."""
    w11, w12, w22 = _pair_map(u)
    weak = w11 * mu1 + w12 * mu2 - mu1
    strong = w12 * mu1 + w22 * mu2 - mu2
    return 0.5 * (weak * weak + strong * strong)


def run_pairs(w0: Array, mu: Array, a: Array, duration: ArrayLike | None = None, on_chunk=None) -> _PairRuns:
    """Runs from W0 (B, 2, 2) on data mu (B, 2), a (B, 2) until all is learned (or for `duration`, paper clock).

    Every run has its own step and end; runs of similar length are integrated together. `on_chunk(n)` reports progress.
    """
    u0 = root(w0).reshape(len(w0), 4).T  # (4, B)
    ends = settling_time(w0, a) if duration is None else np.broadcast_to(np.asarray(duration, float), len(w0))
    lengths, counts = _step_lengths(w0, a, ends)
    results = np.empty((4, len(w0)))
    longest_first = np.argsort(-counts.sum(0), kind="stable")
    for start in range(0, len(w0), _RUNS_AT_ONCE):
        runs_at_once = longest_first[start : start + _RUNS_AT_ONCE]
        schedule = _step_schedule(lengths[:, runs_at_once], counts[:, runs_at_once])
        (a1, a2), (mu1, mu2) = a[runs_at_once].T.copy(), mu[runs_at_once].T.copy()
        states = _integrate_pairs(u0[:, runs_at_once], a1, a2, schedule)
        results[:, runs_at_once] = summarize(states, mu1, mu2)
        if on_chunk:
            on_chunk(len(runs_at_once))
    return _PairRuns(*results)


def _step_lengths(w0: Array, a: Array, ends: Array) -> tuple[Array, np.ndarray]:
    """Length and number of the early and of the late steps of every run, each (2, B)."""
    early = np.minimum(_strong_settles(w0, a), ends)
    spans = np.stack([early, ends - early])
    counts = np.ceil(spans * a.max(-1) / np.array([[_STRIDE], [_LATE_STRIDE]])).astype(int)
    return spans / counts.clip(1), counts


def _step_schedule(lengths: Array, counts: np.ndarray) -> Array:
    """Early steps, late steps, then steps of length zero, so that no run depends on the others of its batch: (steps, B)."""
    at = np.arange(counts.sum(0).max())[:, None]
    late = np.where(at < counts.sum(0), lengths[1], 0.0)
    return np.where(at < counts[0], lengths[0], late)


def _strong_settles(w0: Array, a: Array) -> Array:
    """When the stronger concept is learned and only slow motion is left (paper clock), (B,)."""
    own = np.take_along_axis(np.diagonal(w0, axis1=-2, axis2=-1), a.argmax(-1)[:, None], -1)[:, 0]
    return (0.5 * np.log(1 / own.clip(1e-300, 1)) + 5) / a.max(-1)


def _integrate_pairs(u: Array, a1: Array, a2: Array, lengths: Array) -> Iterator[Array]:
    """Fourth-order Runge-Kutta on u (4, B); `lengths` (steps, B) has a step of its own for every run."""
    yield u
    for step in lengths:
        half, sixth = 0.5 * step, step / 6
        k1 = pair_velocity(u, a1, a2)
        k2 = pair_velocity(u + half * k1, a1, a2)
        k3 = pair_velocity(u + half * k2, a1, a2)
        k4 = pair_velocity(u + step * k3, a1, a2)
        k2 += k3
        k2 *= 2
        k2 += k1
        k2 += k4
        u = u + sixth * k2
        yield u


def summarize(states: Iterator[Array], mu1: Array, mu2: Array) -> tuple[Array, Array, Array, Array]:
    """First and lowest error, largest rise and last error of every run, without keeping the curves."""
    first = error = _pair_error(next(states), mu1, mu2)
    lowest, height = first.copy(), np.zeros_like(first)
    for u in states:
        error = _pair_error(u, mu1, mu2)
        np.minimum(lowest, error, out=lowest)
        np.maximum(height, error - lowest, out=height)
    return first, lowest, height, error


def threshold_alignment(omega: ArrayLike, mu: tuple[float, float], a: Array, digits: int = 5) -> Array:
    """rho_c(omega): the alignment above which the error at the composition rises at all, by bisection."""
    omega = np.atleast_1d(np.asarray(omega, float))
    low, high = np.zeros_like(omega), np.full_like(omega, 0.999)
    mus, moments = np.tile(mu, (len(omega), 1)), np.tile(a, (len(omega), 1))
    for _ in range(int(np.ceil(digits * np.log2(10)))):
        middle = (low + high) / 2
        up = run_pairs(aligned_map(omega, middle), mus, moments).rise > MONOTONE
        low, high = np.where(up, low, middle), np.where(up, middle, high)
    return (low + high) / 2
