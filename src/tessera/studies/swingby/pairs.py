"""Two concepts, thousands of runs: the four entries of U as flat arrays, one column per run.

Batches of 2x2 matrix products are slow; written out, the same equations run at memory speed.
"""

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from tessera.studies.swingby.analysis import MONOTONE, THRESHOLD, swung
from tessera.studies.swingby.data import Array
from tessera.studies.swingby.integrate import State, trajectory
from tessera.studies.swingby.starts import aligned_map, root
from tessera.studies.swingby.symmetric import settling_time

_RUNS_AT_ONCE = 1024  # runs integrated together: small enough that their state stays in the processor's cache
_STRIDE = 0.05  # step times the larger a until the strong concept is learned; the error of w12 is about 1e-6
_LATE_STRIDE = 0.15  # afterwards, when only motion at the rate of the weak concept is left


class _PairRuns(NamedTuple):
    """The first, lowest and last error of a batch of two-concept runs and the largest rise, each (B,)."""

    first: Array
    lowest: Array
    rise: Array
    last: Array

    def swings(self, threshold: float = THRESHOLD) -> np.ndarray:
        """The swing-by verdict of every run."""
        return swung(*self, threshold)


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


def _velocity(a1: Array, a2: Array, state: State) -> State:
    return (pair_velocity(state[0], a1, a2),)


def _pair_map(u: Array) -> tuple[Array, Array, Array]:
    """w11, w12, w22 of W = U U^T for u (4, B)."""
    return u[0] * u[0] + u[1] * u[1], u[0] * u[2] + u[1] * u[3], u[2] * u[2] + u[3] * u[3]


def _pair_error(u: Array, mu1: Array, mu2: Array) -> Array:
    """E at the composition (mu1, mu2) for u (4, B)."""
    w11, w12, w22 = _pair_map(u)
    weak = w11 * mu1 + w12 * mu2 - mu1
    strong = w12 * mu1 + w22 * mu2 - mu2
    return 0.5 * (weak * weak + strong * strong)


def run_pairs(w0: Array, mu: Array, a: Array, on_chunk=None) -> _PairRuns:
    """Runs from W0 (B, 2, 2) on data mu (B, 2), a (B, 2) until all is learned.

    Every run has its own step and end; runs of similar length are integrated together. `on_chunk(n)` reports progress.
    """
    u0 = root(w0).reshape(len(w0), 4).T  # (4, B)
    lengths, counts = _step_lengths(w0, a)
    results = np.empty((4, len(w0)))
    longest_first = np.argsort(-counts.sum(0), kind="stable")
    for start in range(0, len(w0), _RUNS_AT_ONCE):
        chunk = longest_first[start : start + _RUNS_AT_ONCE]
        schedule = _step_schedule(lengths[:, chunk], counts[:, chunk])
        (a1, a2), (mu1, mu2) = a[chunk].T.copy(), mu[chunk].T.copy()
        states = trajectory(partial(_velocity, a1, a2), (u0[:, chunk],), schedule)
        results[:, chunk] = _summarize(states, mu1, mu2)
        if on_chunk:
            on_chunk(len(chunk))
    return _PairRuns(*results)


def _step_lengths(w0: Array, a: Array) -> tuple[Array, np.ndarray]:
    """Length and number of the early and of the late steps of every run, each (2, B)."""
    ends = settling_time(w0, a)
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


def _summarize(states: Iterator[State], mu1: Array, mu2: Array) -> tuple[Array, Array, Array, Array]:
    """First and lowest error, largest rise and last error of every run, without keeping the curves."""
    first = error = _pair_error(next(states)[0], mu1, mu2)
    lowest, height = first.copy(), np.zeros_like(first)
    for (u,) in states:
        error = _pair_error(u, mu1, mu2)
        np.minimum(lowest, error, out=lowest)
        np.maximum(height, error - lowest, out=height)
    return first, lowest, height, error


def threshold_alignment(omega: ArrayLike, mu: tuple[float, float], a: Array, digits: int = 5) -> Array:
    """rho_c(omega): the alignment above which the error at the composition rises at all, by bisection."""
    omega = np.atleast_1d(omega).astype(float)
    low, high = np.zeros_like(omega), np.full_like(omega, 0.999)
    mus, moments = np.tile(mu, (len(omega), 1)), np.tile(a, (len(omega), 1))
    for _ in range(int(np.ceil(digits * np.log2(10)))):
        middle = (low + high) / 2
        up = run_pairs(aligned_map(omega, middle), mus, moments).rise > MONOTONE
        low, high = np.where(up, low, middle), np.where(up, middle, high)
    return (low + high) / 2
