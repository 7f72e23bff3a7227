"""f(x) = W_L ... W_1 x, every layer its own: gradient flow and descent on the population loss, any depth and width.

A linear network depends on the data only through a root of their second moment, so r pseudo-samples (the columns of
`inputs`) stand for the whole cloud, and one backward pass over them gives the exact population gradient.
"""

from collections.abc import Iterable
from functools import partial, reduce
from itertools import pairwise, repeat

import numpy as np

from tessera.errors import UserError
from tessera.rng import generator
from tessera.studies.swingby.data import Array
from tessera.studies.swingby.integrate import Path, Solver, State, System, check_step, solve, trajectory, watch
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


def path(
    layers: State, a: Array, duration: float, step: float, solver: Solver = "flow", every: int = 1, on_step=None
) -> Path:
    """Gradient flow or descent on the identity task."""
    inputs = pseudo_samples(a)
    system = System(partial(velocity, inputs=inputs, targets=inputs), product, len(layers) * a.max())
    return solve(system, layers, duration, step, solver, every, on_step)


def descent_errors(layers: State, a: Array, rate: float, steps: int, point: Array) -> Array:
    """The error at `point` after every step, (steps + 1, ...), without ever forming the end-to-end map."""

    def error(state: State) -> Array:
        out = reduce(lambda below, layer: layer @ below, state, point[:, None])[..., 0]
        return 0.5 * np.square(out - point).sum(-1)

    check_step(rate, len(layers) * a.max(), "descent")
    inputs = pseudo_samples(a)
    speed = partial(velocity, inputs=inputs, targets=inputs)
    return watch(trajectory(speed, layers, repeat(rate, steps), "descent"), error)


def balanced_layers(w0: Array, depth: int) -> State:
    """W_l = W0^{1/depth} for a symmetric positive start: all layers are equal."""
    check_depth(depth)
    if depth == 1:
        return (w0,)
    layer = root(w0, 1 / depth)
    return tuple(layer.copy() for _ in range(depth))


def uniform_layers(seeds: Iterable[int], dims: tuple[int, ...]) -> State:
    """The default of torch.nn.Linear without bias, U(-1/sqrt(fan_in), 1/sqrt(fan_in)), for each seed on its own.

    dims = (in, hidden, ..., out) -> layers (seeds, out, in).
    """
    rngs = [generator(seed) for seed in seeds]
    layers = []
    for narrow, wide in pairwise(dims):
        layers.append(np.stack([rng.uniform(-1, 1, (wide, narrow)) for rng in rngs]) / np.sqrt(narrow))
    return tuple(layers)


def check_depth(depth: int) -> None:
    if depth < 1:
        raise UserError(f"A deep model needs at least one layer, not {depth}.")
