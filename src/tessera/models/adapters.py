"""Networks trained under other conventions as denoisers: noise, v or sample prediction (DDPM), flow matching.

Everything here is about x = clean + sigma * noise. A network trained on another mixture gets x rescaled to it.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from tessera.errors import UserError
from tessera.models.precondition import like_image, per_image

_Predict = Callable[[Tensor, Tensor, Any], Tensor]  # (x in the network's own scale, its time (B,), cond)


class _Adapted(nn.Module, ABC):
    """Shared by the adapters: keeps the network, and images in its own range of values.

    `shift` and `scale` turn our images in [-1, 1] into the network's: theirs = shift + scale * ours. A
    network trained on [0, 1] has shift 0.5 and scale 0.5.
    """

    def __init__(self, predict: _Predict, shift: float = 0.0, scale: float = 1.0):
        super().__init__()
        if scale <= 0:
            raise UserError(f"A range of values needs a positive scale, not {scale}.")
        self.predict = predict
        self.shift, self.scale = shift, scale

    @property
    def network(self) -> nn.Module | None:
        """The network inside, whose modules can be recorded; None for a plain function."""
        return self.predict if isinstance(self.predict, nn.Module) else None

    def forward(self, x: Tensor, sigma: Tensor | float, cond: Any = None) -> Tensor:
        sigma = per_image(sigma, x) * self.scale  # in the network's range of values
        return (self.clean(self.shift + self.scale * x, sigma, cond) - self.shift) / self.scale

    @abstractmethod
    def clean(self, x: Tensor, sigma: Tensor, cond: Any) -> Tensor:
        """The clean image in the network's range of values, for noise level sigma (B,) in that range."""


class DiscreteTime(_Adapted):
    """Networks trained on sqrt(a_t) clean + sqrt(1 - a_t) noise; `alphas` are the falling a_t (T,).

    The time of a noise level is interpolated in ln(sigma); `whole_times` rounds it, for networks that look it
    up in a table.
    """

    log_sigmas: Tensor

    def __init__(
        self, predict: _Predict, alphas: Tensor, *, whole_times: bool = False, shift: float = 0.0, scale: float = 1.0
    ):
        super().__init__(predict, shift, scale)
        alphas = alphas.double()
        falling = alphas.ndim == 1 and len(alphas) > 1 and bool((alphas.diff() < 0).all())
        if not falling or not bool(((alphas > 0) & (alphas < 1)).all()):
            raise UserError("The signal's shares must be a falling list of two or more numbers between 0 and 1.")
        self.whole_times = whole_times
        self.register_buffer("log_sigmas", ((1 - alphas) / alphas).log().float() / 2)

    def time(self, sigma: Tensor) -> Tensor:
        """Noise level (B,) to the network's time (B,), clamped to the range of training."""
        wanted = sigma.log().clamp(self.log_sigmas[0], self.log_sigmas[-1]).to(self.log_sigmas.dtype)
        above = torch.searchsorted(self.log_sigmas, wanted).clamp(1, len(self.log_sigmas) - 1)
        low, high = self.log_sigmas[above - 1], self.log_sigmas[above]
        time = above - 1 + (wanted - low) / (high - low)
        return time.round().long() if self.whole_times else time

    def _output(self, x: Tensor, sigma: Tensor, cond: Any) -> tuple[Tensor, Tensor, Tensor]:
        """The network's output for x in its own scale, then sqrt(a) and sqrt(1 - a) of the level."""
        signal = like_image((1 + sigma.square()).rsqrt())
        return self.predict(signal * x, self.time(sigma), cond), signal, like_image(sigma) * signal


class FromNoise(DiscreteTime):
    """The network predicts the noise (DDPM)."""

    def clean(self, x: Tensor, sigma: Tensor, cond: Any) -> Tensor:
        noise, _, _ = self._output(x, sigma, cond)
        return x - like_image(sigma) * noise


class FromV(DiscreteTime):
    """The network predicts v = sqrt(a) noise - sqrt(1 - a) clean (Salimans and Ho 2022)."""

    def clean(self, x: Tensor, sigma: Tensor, cond: Any) -> Tensor:
        v, signal, noise_share = self._output(x, sigma, cond)
        return signal * (signal * x) - noise_share * v


class _StraightPath(_Adapted):
    """Networks trained on a straight path between an image and noise (flow matching).

    `data_at` is the time at which the path is at the image: 0 means (1 - t) clean + t noise, 1 the reverse.
    """

    def __init__(self, predict: _Predict, *, data_at: int = 1, shift: float = 0.0, scale: float = 1.0):
        super().__init__(predict, shift, scale)
        if data_at not in (0, 1):
            raise UserError(f"A path is at the image at time 0 or 1, not {data_at}.")
        self.data_at = data_at

    def _output(self, x: Tensor, sigma: Tensor, cond: Any) -> tuple[Tensor, Tensor, Tensor]:
        """The network's output, the point of the path it was given, and the share of noise there."""
        share = sigma / (1 + sigma)
        here = x * like_image(1 - share)
        time = share if self.data_at == 0 else 1 - share
        return self.predict(here, time, cond), here, like_image(share)


class FromVelocity(_StraightPath):
    """The network predicts the path's velocity: noise - clean for `data_at` 0, clean - noise for 1."""

    def clean(self, x: Tensor, sigma: Tensor, cond: Any) -> Tensor:
        velocity, here, share = self._output(x, sigma, cond)
        return here + share * (velocity if self.data_at == 1 else -velocity)


class FromPathEnd(_StraightPath):
    """The network predicts the image at the path's end."""

    def clean(self, x: Tensor, sigma: Tensor, cond: Any) -> Tensor:
        return self._output(x, sigma, cond)[0]


class _FromClean(DiscreteTime):
    """The network predicts the clean image at a discrete time."""

    def clean(self, x: Tensor, sigma: Tensor, cond: Any) -> Tensor:
        return self._output(x, sigma, cond)[0]


_PREDICTIONS: dict[str, type[DiscreteTime]] = {  # under the names of diffusers
    "epsilon": FromNoise,
    "v_prediction": FromV,
    "sample": _FromClean,
}


def from_prediction(kind: str, predict: _Predict, alphas: Tensor, **options: Any) -> DiscreteTime:
    """The denoiser of a network that predicts `epsilon`, `v_prediction` or `sample`; `alphas` (T,) as in DiscreteTime."""
    if kind not in _PREDICTIONS:
        raise UserError(f"The network predicts `{kind}`; understood are {', '.join(_PREDICTIONS)}.")
    return _PREDICTIONS[kind](predict, alphas, **options)


def linear_alphas(steps: int = 1000, first: float = 1e-4, last: float = 0.02) -> Tensor:
    """The signal's shares a_t of the original DDPM schedule, (steps,)."""
    return (1 - torch.linspace(first, last, steps, dtype=torch.float64)).cumprod(0)


def cosine_alphas(steps: int = 1000, offset: float = 0.008) -> Tensor:
    """The signal's shares of the cosine schedule (Nichol and Dhariwal 2021), losses capped at 0.999."""
    angle = (torch.arange(steps + 1, dtype=torch.float64) / steps + offset) / (1 + offset) * math.pi / 2
    curve = angle.cos().square()
    losses = (1 - curve[1:] / curve[:-1]).clamp(max=0.999)
    return (1 - losses).cumprod(0)
