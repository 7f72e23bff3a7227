"""f(x) = W x trained by gradient flow or descent: everything is known in closed form (Theorem 4.1)."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tessera.studies.swingby.data import Array
from tessera.studies.swingby.integrate import EULER_REACH, check_step


def flow(w0: Array, a: Array, times: ArrayLike) -> Array:
    """W(t) = I + (W(0) - I) exp(-A t) for starts (..., d, d) and a (..., d): (T, ..., d, d)."""
    return _decayed(w0, lambda t: np.exp(-a * t), np.asarray(times, float))


def descent(w0: Array, a: Array, rate: float, counts: ArrayLike) -> Array:
    """W_m = I + (W(0) - I) (I - rate A)^m, exact for gradient descent: (T, ..., d, d)."""
    check_step(rate, float(a.max()), EULER_REACH, "learning rate")
    return _decayed(w0, lambda m: (1 - rate * a) ** m, np.asarray(counts))


def component(w0: Array, a: Array, t: float, z: Array) -> Array:
    """f_k(z) = (1 - e^{-a_k t}) z_k + sum_i e^{-a_i t} w_ki(0) z_i: growth plus what is left of the start.

    The sum runs over all d coordinates; stopping at s would be right only for z within the concept axes.
    """
    return (1 - np.exp(-a * t)) * z + w0 @ (np.exp(-a * t) * z)


def half_times(a: Array) -> Array:
    """From a zero start concept k is half learned at ln 2 / a_k (never, where a_k = 0)."""
    with np.errstate(divide="ignore"):
        return np.log(2) / a


def certificate(w0: Array, a: Array, s: int) -> NDArray[np.bool_]:
    """True where the error provably falls at every corner: M^T M A + A M^T M >= 0 on the concept axes, M = I - W(0).

    Follows from dE/dt = -y^T M^T M A y with y = exp(-A t) x. Starts (..., d, d), a (..., d) -> bool (...).
    """
    m = np.eye(w0.shape[-1]) - w0
    gram = (np.swapaxes(m, -1, -2) @ m)[..., :s, :s]
    both = gram * (a[..., None, :s] + a[..., :s, None])  # gram A + A gram
    return np.linalg.eigvalsh(both)[..., 0] >= 0


def small_start_certificate(w0: Array, a: Array, s: int) -> NDArray[np.bool_]:
    """The simpler sufficient condition ||M^T M - I||_2 <= a_min / a_max on the concept axes."""
    m = np.eye(w0.shape[-1]) - w0
    gram = (np.swapaxes(m, -1, -2) @ m)[..., :s, :s]
    return np.linalg.norm(gram - np.eye(s), 2, axis=(-2, -1)) <= a[..., :s].min(-1) / a[..., :s].max(-1)


def _decayed(w0: Array, left, moments: Array) -> Array:
    eye = np.eye(w0.shape[-1])
    return np.stack([eye + (w0 - eye) * left(moment)[..., None, :] for moment in moments])
