"""Time integration of systems of arrays, many runs at once; steps beyond the stable limit are refused."""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import repeat
from typing import Literal, NamedTuple

import numpy as np

from tessera.errors import UserError
from tessera.studies.swingby.data import Array, error_at

State = tuple[Array, ...]
_Velocity = Callable[[State], State]
Solver = Literal["flow", "descent"]  # continuous time by Runge-Kutta, or gradient descent

# Largest step * rate at which a mode exp(-rate t) still decays: of fourth-order Runge-Kutta, and of Euler's method.
_STABLE: dict[Solver, float] = {"flow": 2.785293563, "descent": 2.0}
_STEP_NAMES: dict[Solver, str] = {"flow": "step", "descent": "learning rate"}
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


class System(NamedTuple):
    """A network in training."""

    velocity: _Velocity  # of its weights
    read: Callable[[State], Array]  # its end-to-end map
    fastest: float  # the largest rate near the solution


def solve(
    system: System, state: State, duration: float, step: float, solver: Solver = "flow", every: int = 1, on_step=None
) -> Path:
    """The path over `duration`. The step of a descent is its learning rate, and time is their number times that rate."""
    check_step(step, system.fastest, solver)
    steps = step_count(duration, step)
    states = trajectory(system.velocity, state, repeat(step, steps), solver)
    return Path(step * np.arange(0, steps + 1, every), watch(states, system.read, every, on_step))


def trajectory(
    velocity: _Velocity, state: State, steps: Iterable[float | Array], solver: Solver = "flow"
) -> Iterator[State]:
    """The start, and the state after every step, whose lengths may differ from run to run.

    Descent needs minus a gradient as `velocity`.
    """
    advance = _runge_kutta if solver == "flow" else _euler
    yield state
    for m, step in enumerate(steps, 1):
        state = advance(velocity, state, step)
        if m % _CHECK_EVERY == 0:
            _check_finite(state, m)
        yield state
    _check_finite(state, m)


def _runge_kutta(velocity: _Velocity, state: State, step: float | Array) -> State:
    """One step of classical fourth order."""
    k1 = velocity(state)
    k2 = velocity(_ahead(state, k1, step / 2))
    k3 = velocity(_ahead(state, k2, step / 2))
    k4 = velocity(_ahead(state, k3, step))
    for p, q, r, s in zip(k1, k2, k3, k4):
        q += r  # in place, which spares phase diagrams the memory of the sums
        q *= 2
        q += p
        q += s
    return _ahead(state, k2, step / 6)


def _euler(velocity: _Velocity, state: State, step: float | Array) -> State:
    return _ahead(state, velocity(state), step)


def _ahead(state: State, slope: State, length: float | Array) -> State:
    return tuple(part + length * change for part, change in zip(state, slope))


def watch(states: Iterable[State], read: Callable[[State], Array], every: int = 1, on_step=None) -> Array:
    """`read` of every `every`-th state, stacked along a new first axis; `on_step()` counts progress."""
    values = []
    for m, state in enumerate(states):
        if m % every == 0:
            values.append(read(state))
        if on_step and m:
            on_step()
    return np.stack(values)


def _check_finite(state: State, step: int) -> None:
    if not all(np.isfinite(part).all() for part in state):
        raise UserError(
            f"The run diverged before step {step}: the step is stable near the solution, "
            "but this start is too large for it; take a smaller step or a smaller start."
        )


def check_step(step: float, fastest: float, solver: Solver) -> None:
    """Refuse a step with which the fastest mode near the solution would grow; name the limit."""
    name = _STEP_NAMES[solver]
    _check_positive(step, name)
    if fastest > 0 and step * fastest >= _STABLE[solver]:
        limit = _STABLE[solver] / fastest
        raise UserError(f"A {name} of {step:g} diverges here; the stable limit is {limit:.4g}.")


def step_count(duration: float, step: float) -> int:
    check_time(duration, step)
    return max(1, round(duration / step))


def check_time(duration: float, step: float, name: str = "step") -> None:
    _check_positive(step, name)
    if not (duration > 0 and math.isfinite(duration / step)):
        raise UserError(f"The time to run must be positive and finite, not {duration:g}.")


def _check_positive(step: float, name: str) -> None:
    if not step > 0:
        raise UserError(f"The {name} must be positive, not {step:g}.")
