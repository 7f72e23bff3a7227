"""f(x) = U U^T x: the smallest model that swings. Two clocks are in use and both are named.

`paper` runs dU/dt = -1/2 dL/dU, the field printed in the source; `flow` is plain gradient flow dU/dt = -dL/dU, the
same path at twice the speed.
"""

import warnings
from operator import itemgetter
from typing import Literal, NamedTuple

import numpy as np

from tessera.studies.swingby.data import Array
from tessera.studies.swingby.integrate import Path, Solver, State, System, solve

Clock = Literal["paper", "flow"]
CLOCK_SPEED: dict[str, float] = {"paper": 1.0, "flow": 2.0}


class _Terms(NamedTuple):
    """The three parts of dW/dt = growth - suppression - noise, each (..., d, d)."""

    growth: Array
    suppression: Array
    noise: Array


def pull(w: Array, a: Array) -> Array:
    """(I - W) A + A (I - W), which for a diagonal A is an elementwise product: (..., d, d)."""
    return (np.eye(w.shape[-1]) - w) * (a[..., :, None] + a[..., None, :])


def gradient(u: Array, a: Array) -> Array:
    """dL/dU = ((W - I) A + A (W - I)) U for U (..., d, d')."""
    return -pull(map_of(u), a) @ u


def field(w: Array, a: Array) -> Array:
    """V(W) = W A + A W - 1/2 (A W^2 + W^2 A + 2 W A W): dW/dt on the paper's clock, (..., d, d)."""
    half = 0.5 * pull(w, a) @ w
    return half + np.swapaxes(half, -1, -2)


def terms(w: Array, a: Array) -> _Terms:
    """Growth, suppression and noise entry by entry. "Noise" is the source's word for a deterministic interaction."""
    rows, columns = a[..., :, None], a[..., None, :]
    diagonal = np.diagonal(w, axis1=-2, axis2=-1)
    by_row = 0.5 * w * diagonal[..., :, None] * (3 * rows + columns)
    by_column = 0.5 * w * diagonal[..., None, :] * (3 * columns + rows)
    suppression = by_row + by_column * (1 - np.eye(w.shape[-1]))
    everything = 0.5 * (rows + columns) * (w @ w) + (w * columns) @ w
    return _Terms(w * (rows + columns), suppression, everything - suppression)


def map_of(u: Array) -> Array:
    """W = U U^T."""
    return u @ np.swapaxes(u, -1, -2)


def flow(w0: Array, a: Array, duration: float, step: float, clock: Clock = "paper", every: int = 1) -> Path:
    """The ODE on W itself, from symmetric starts (..., d, d)."""
    a = CLOCK_SPEED[clock] * a  # the field is linear in a

    def velocity(state: State) -> State:
        return (field(state[0], a),)

    return solve(System(velocity, itemgetter(0), 2 * a.max()), (w0,), duration, step, every=every)


def factor_path(
    u: Array,
    a: Array,
    duration: float,
    step: float,
    solver: Solver = "flow",
    clock: Clock = "paper",
    every: int = 1,
    on_step=None,
) -> Path:
    """The ODE on the factor U (..., d, d'); recorded as W = U U^T.

    Gradient descent on U is U+ = U - step/2 dL/dU (paper) or U - step dL/dU (flow).
    """
    concepts, width = int((a > 0).sum(-1).max()), u.shape[-1]
    if width < concepts:  # U U^T has rank at most d', and gradient flow never adds rank
        warnings.warn(
            f"Width {width} is below the number of concepts {concepts}: "
            f"{concepts - width} of them will never be learned.",
            stacklevel=2,
        )
    a = CLOCK_SPEED[clock] * a  # the gradient is linear in a

    def velocity(state: State) -> State:
        return (-0.5 * gradient(state[0], a),)

    def read(state: State) -> Array:
        return map_of(state[0])

    return solve(System(velocity, read, 2 * a.max()), (u,), duration, step, solver, every, on_step)


def settling_time(w0: Array, a: Array, margin: float = 5.0) -> Array:
    """Paper-clock time after which all concepts are learned: the weakest direction has to grow from its start to 1.

    W0 (..., d, d), a (..., d) -> (...). Directions that are absent from the start do not count.
    """
    eigenvalues = np.linalg.eigvalsh(w0)  # (..., d)
    present = eigenvalues > 1e-12 * np.maximum(eigenvalues[..., -1:], 1e-300)
    smallest = np.where(present, eigenvalues, np.inf).min(-1)
    slowest = np.where(a > 0, a, np.inf).min(-1)
    growth = np.log(np.maximum(1 / np.minimum(smallest, 1.0), np.e)) / (2 * slowest)
    return growth + margin / slowest
