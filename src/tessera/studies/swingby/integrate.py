"""Time integration of systems of arrays, many runs at once; steps beyond the stable limit are refused."""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from tessera.errors import UserError
from tessera.studies.swingby.data import Array, error_at

State = tuple[Array, ...]
Velocity = Callable[[State], State]

_RK4_REACH = 2.785293563  # fourth-order Runge-Kutta damps exp(-rate t) while step * rate stays below this
EULER_REACH = 2.0
_CHECK_EVERY = 64  # steps between two checks that all numbers are finite


@dataclass(frozen=True)
class Path:
    """A run, or a batch of runs: `w[m]` is the end-to-end map at `times[m]`."""

    times: Array  # (T,)
    w: Array  # (T, ..., d, d)

    def outputs(self, point: Array) -> Array:
        """The trajectory f(t; point), (T, ..., d)."""
        return np.einsum("...ij,...j->...i", self.w, point)

    def error(self, point: Array) -> Array:
        """Half the squared error at `point` over time, (T, ...)."""
        return error_at(self.w, point)


def runge_kutta(velocity: Velocity, state: State, step: float | Array, steps: int) -> Iterator[State]:
    """Classical fourth order; yields the start and then every step. `step` may differ from run to run."""

    def ahead(slope: State, length) -> State:
        return tuple(part + length * change for part, change in zip(state, slope))

    yield state
    for m in range(1, steps + 1):
        k1 = velocity(state)
        k2 = velocity(ahead(k1, step / 2))
        k3 = velocity(ahead(k2, step / 2))
        k4 = velocity(ahead(k3, step))
        state = ahead(tuple(p + 2 * q + 2 * r + s for p, q, r, s in zip(k1, k2, k3, k4)), step / 6)
        if m % _CHECK_EVERY == 0 or m == steps:
            _check_finite(state, m)
        yield state


def descend(velocity: Velocity, state: State, rate: float, steps: int) -> Iterator[State]:
    """Plain gradient descent when `velocity` is minus a gradient; yields the start and then every step."""
    yield state
    for m in range(1, steps + 1):
        state = tuple(part + rate * change for part, change in zip(state, velocity(state)))
        if m % _CHECK_EVERY == 0 or m == steps:
            _check_finite(state, m)
        yield state


def watch(states: Iterable[State], read: Callable[[State], Array], every: int = 1, on_step=None) -> Array:
    """`read` of every `every`-th state, stacked along a new first axis; `on_step()` counts progress."""
    values = []
    for m, state in enumerate(states):
        if m % every == 0:
            values.append(read(state))
        if on_step and m:
            on_step()
    return np.stack(values)


def flow_path(
    velocity: Velocity,
    state: State,
    read: Callable[[State], Array],
    fastest: float,
    duration: float,
    step: float,
    every: int = 1,
    on_step=None,
) -> Path:
    """Runge-Kutta for `duration`; `read` gives the end-to-end map, `fastest` is the largest rate near the solution."""
    check_step(step, fastest, _RK4_REACH)
    steps = step_count(duration, step)
    states = runge_kutta(velocity, state, step, steps)
    return Path(step * np.arange(0, steps + 1, every), watch(states, read, every, on_step))


def descent_path(
    velocity: Velocity,
    state: State,
    read: Callable[[State], Array],
    fastest: float,
    rate: float,
    steps: int,
    every: int = 1,
    on_step=None,
) -> Path:
    """Gradient descent; time is rate * steps."""
    check_step(rate, fastest, EULER_REACH, "learning rate")
    states = descend(velocity, state, rate, steps)
    return Path(rate * np.arange(0, steps + 1, every), watch(states, read, every, on_step))


def _check_finite(state: State, step: int) -> None:
    if not all(np.isfinite(part).all() for part in state):
        raise UserError(
            f"The run diverged before step {step}: the step is stable near the solution, "
            "but this start is too large for it; take a smaller step or a smaller start."
        )


def check_step(step: float, fastest: float, reach: float, what: str = "step") -> None:
    """Refuse a step with which the fastest mode near the solution would grow; name the limit."""
    if not step > 0:
        raise UserError(f"The {what} must be positive, not {step:g}.")
    if fastest > 0 and step * fastest >= reach:
        limit = reach / fastest
        raise UserError(f"A {what} of {step:g} diverges here; the stable limit is {limit:.4g}.")


def step_count(duration: float, step: float) -> int:
    check_time(duration, step)
    return max(1, round(duration / step))


def check_time(duration: float, step: float) -> None:
    if not (duration > 0 and math.isfinite(duration / step)):
        raise UserError(f"The time to run must be positive and finite, not {duration:g}.")
