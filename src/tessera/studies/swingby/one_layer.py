"""f(x) = W x trained by gradient flow or descent: everything is known in closed form (Theorem 4.1)."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tessera.studies.swingby.data import Array
from tessera.studies.swingby.integrate import check_step


def flow(w0: Array, a: Array, times: ArrayLike) -> Array:
    """W(t) = I + (W(0) - I) exp(-A t) for starts (..., d, d) and a (..., d): (T, ..., d, d)."""
    return _decayed(w0, lambda t: np.exp(-a * t), np.asarray(times, float))


def descent(w0: Array, a: Array, rate: float, counts: ArrayLike) -> Array:
    """W_m = I + (W(0) - I) (I - rate A)^m, exact for gradient descent: (T, ..., d, d)."""
    check_step(rate, a.max(), "descent")
    return _decayed(w0, lambda m: (1 - rate * a) ** m, np.asarray(counts))


def certificate(w0: Array, a: Array, s: int) -> NDArray[np.bool_]:
    """True where the error provably falls at every corner: M^T M A + A M^T M >= 0 on the concept axes, M = I - W(0).

    Follows from dE/dt = -y^T M^T M A y with y = exp(-A t) x. Starts (..., d, d), a (..., d) -> bool (...).
    """
    m = np.eye(w0.shape[-1]) - w0
    gram = (np.swapaxes(m, -1, -2) @ m)[..., :s, :s]
    both = gram * (a[..., None, :s] + a[..., :s, None])  # gram A + A gram
    return np.linalg.eigvalsh(both)[..., 0] >= 0


def _decayed(w0: Array, left, moments: Array) -> Array:
    eye = np.eye(w0.shape[-1])
    return np.stack([eye + (w0 - eye) * left(moment)[..., None, :] for moment in moments])
