"""From the identity task to diffusion: a linear conditional denoiser that becomes SIM when the noise is strong.

The denoiser predicts the clean x0 from the condition c = x0 and the noisy y = x0 + tau n, scaled to y / sqrt(1 + tau^2).
At large tau the image carries no information, the output depends on the condition alone, and the condition's block of
the denoiser obeys the identity-map dynamics.
"""

import numpy as np

from tessera.errors import UserError
from tessera.studies.swingby import deep, one_layer
from tessera.studies.swingby.data import Array
from tessera.studies.swingby.integrate import Path, State, System, solve
from tessera.studies.swingby.starts import root


def input_moment(a: Array, tau: float) -> Array:
    """Second moment of [c ; y / sqrt(1 + tau^2)], (2d, 2d)."""
    if not tau > 0:
        raise UserError(f"The noise level tau must be positive, not {tau:g}.")
    scale, moment = 1 / np.sqrt(1 + tau**2), np.diag(a)
    noisy = (moment + tau**2 * np.eye(len(a))) * scale**2
    return np.block([[moment, scale * moment], [scale * moment, noisy]])


def one_layer_flow(a: Array, tau: float, times: Array) -> Array:
    """B(t) of x0_hat = B [c ; y'] under gradient flow from zero, in closed form: (T, d, 2d)."""
    goal = np.eye(len(a), 2 * len(a))  # copying the condition is the exact answer
    values, vectors = np.linalg.eigh(input_moment(a, tau))
    decay = np.exp(-values * np.asarray(times)[:, None])  # (T, 2d)
    return goal - (goal @ vectors * decay[:, None, :]) @ vectors.T


def distance_from_sim(a: Array, tau: float, times: Array) -> float:
    """Largest difference, over time and entries, between the condition block and SIM's one-layer closed form."""
    sim = one_layer.flow(np.zeros((len(a), len(a))), a, times)
    return float(np.abs(one_layer_flow(a, tau, times)[..., : len(a)] - sim).max())


def two_layer_flow(w0: Array, a: Array, tau: float, duration: float, step: float) -> Path:
    """B = W2 W1, balanced in the condition block, with zero weights for the image at the start; recorded as B (d, 2d)."""
    d = len(a)
    moment = input_moment(a, tau)
    inputs = root(moment)  # (2d, 2d)
    below, above = deep.balanced_layers(w0, 2)
    layers = (np.concatenate([below, np.zeros((d, d))], axis=1), above)

    def velocity(state: State) -> State:
        return deep.velocity(state, inputs, inputs[:d])

    return solve(System(velocity, deep.product, 2 * np.linalg.eigvalsh(moment)[-1]), layers, duration, step)


def condition_error(blocks: Array, point: Array) -> Array:
    """E at the composition from the condition alone (y = 0): blocks (T, d, 2d) -> (T,)."""
    d = len(point)
    return 0.5 * np.square(blocks[..., :d] @ point - point).sum(-1)


def full_error(blocks: Array, point: Array, tau: float) -> Array:
    """Expected E with the noisy image of the composition as input too: (T,)."""
    d, scale = len(point), 1 / np.sqrt(1 + tau**2)
    signal = blocks[..., :d] @ point + blocks[..., d:] @ point * scale
    noise = (tau * scale) ** 2 * np.square(blocks[..., d:]).sum((-2, -1))
    return 0.5 * (np.square(signal - point).sum(-1) + noise)
