"""f(x) = W_L ... W_1 x, every layer its own: gradient flow and descent on the population loss, any depth and width.

A linear network depends on the data only through a root of their second moment, so r pseudo-samples (the columns of
`inputs`) stand for the whole cloud, and one backward pass over them gives the exact population gradient.
"""

from functools import reduce
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from tessera.errors import UserError
from tessera.rng import generator
from tessera.studies.swingby.data import Array
from tessera.studies.swingby.integrate import (
    EULER_REACH,
    Path,
    State,
    Velocity,
    check_step,
    descend,
    descent_path,
    flow_path,
    watch,
)
from tessera.studies.swingby.starts import root


def pseudo_samples(a: Array) -> Array:
    """The columns sqrt(a_p) e_p with a_p > 0 anywhere: a (..., d) -> (..., d, r)."""
    informative = np.flatnonzero(a.reshape(-1, a.shape[-1]).max(0) > 0)
    return (np.sqrt(a)[..., None] * np.eye(a.shape[-1]))[..., informative]


def velocity(layers: State, inputs: Array, targets: Array) -> State:
    """Minus the gradient of 1/2 ||W inputs - targets||_F^2 for every layer (..., out, in)."""
    activations = [inputs]
    for layer in layers:
        activations.append(layer @ activations[-1])
    error = targets - activations.pop()  # (..., out, r)
    changes = []
    for layer, layer_input in zip(reversed(layers), reversed(activations)):
        changes.append(error @ np.swapaxes(layer_input, -1, -2))
        error = np.swapaxes(layer, -1, -2) @ error
    return tuple(reversed(changes))


def product(layers: State) -> Array:
    """End-to-end map W_L ... W_1."""
    return reduce(lambda below, above: above @ below, layers)


def flow(layers: State, a: Array, duration: float, step: float, every: int = 1, on_step=None) -> Path:
    """Gradient flow by Runge-Kutta on the identity task."""
    speed, fastest = _identity_velocity(a), len(layers) * float(a.max())
    return flow_path(speed, layers, product, fastest, duration, step, every, on_step)


def descent(layers: State, a: Array, rate: float, steps: int, every: int = 1, on_step=None) -> Path:
    """Gradient descent on the identity task."""
    speed, fastest = _identity_velocity(a), len(layers) * float(a.max())
    return descent_path(speed, layers, product, fastest, rate, steps, every, on_step)


def descent_errors(layers: State, a: Array, rate: float, steps: int, point: Array) -> Array:
    """The error at `point` after every step, (steps + 1, ...), without ever forming the end-to-end map."""

    def error(state: State) -> Array:
        out = reduce(lambda below, layer: layer @ below, state, point[:, None])[..., 0]
        return 0.5 * np.square(out - point).sum(-1)

    check_step(rate, len(layers) * float(a.max()), EULER_REACH, "learning rate")
    return watch(descend(_identity_velocity(a), layers, rate, steps), error)


def _identity_velocity(a: Array) -> Velocity:
    inputs = pseudo_samples(a)
    return lambda layers: velocity(layers, inputs, inputs)


def balanced_layers(w0: Array, depth: int) -> State:
    """W_l = W0^{1/depth} for a symmetric positive start: all layers are equal."""
    check_depth(depth)
    if depth == 1:
        return (w0,)
    layer = root(w0, 1 / depth)
    return tuple(layer.copy() for _ in range(depth))


def uniform_layers(seeds: range | NDArray[np.int_], dims: tuple[int, ...]) -> State:
    """The default of torch.nn.Linear without bias, U(-1/sqrt(fan_in), 1/sqrt(fan_in)), for each seed on its own.

    dims = (in, hidden, ..., out) -> layers (seeds, out, in).
    """
    per_seed = [_uniform_network(int(seed), dims) for seed in seeds]
    return tuple(np.stack(layer) for layer in zip(*per_seed))


def _uniform_network(seed: int, dims: tuple[int, ...]) -> list[Array]:
    rng = generator(seed)
    return [rng.uniform(-1, 1, (wide, narrow)) / np.sqrt(narrow) for narrow, wide in pairwise(dims)]


def scalar_mode(w0: float, a: float, depth: int, times: Array) -> Array:
    """One balanced mode: w' = depth a w^{2 - 2/depth} (1 - w), integrated finely; (T,)."""
    from scipy.integrate import solve_ivp

    def speed(_, w):
        return depth * a * w ** (2 - 2 / depth) * (1 - w)

    answer = solve_ivp(speed, (0, times[-1]), [w0], t_eval=times, rtol=1e-11, atol=1e-13, method="DOP853")
    return answer.y[0]


def check_depth(depth: int) -> None:
    if depth < 1:
        raise UserError(f"A deep model needs at least one layer, not {depth}.")
