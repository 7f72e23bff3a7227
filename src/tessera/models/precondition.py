"""Scalings that let one network serve all noise levels (Karras et al. 2022, table 1), and networks built around them."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor, nn

from tessera.config import listed
from tessera.errors import UserError
from tessera.models.contract import check_input

Precision = Literal["float32", "bfloat16", "float16"]
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def preconditioned(
    network: Callable[[Tensor, Tensor], Tensor], x: Tensor, sigma: Tensor | float, sigma_data: float
) -> Tensor:
    """c_skip x + c_out network(c_in x, c_noise): the clean image, for x (B, C, H, W) and sigma () or (B,)."""
    sigma = per_image(sigma, x)
    total = sigma.square() + sigma_data**2
    c_skip, c_out, c_in = sigma_data**2 / total, sigma * sigma_data * total.rsqrt(), total.rsqrt()
    return like_image(c_skip) * x + like_image(c_out) * network(like_image(c_in) * x, sigma.log() / 4)


def loss_weight(sigma: Tensor, sigma_data: float) -> Tensor:
    """What makes the expected loss of an untrained network 1 at every noise level."""
    return (sigma.square() + sigma_data**2) / (sigma * sigma_data).square()


def per_image(sigma: Tensor | float, x: Tensor) -> Tensor:
    """One noise level per image of x: () or (B,) or (B, 1, 1, 1) becomes (B,), at least float32."""
    sigma = torch.as_tensor(sigma, device=x.device, dtype=torch.promote_types(x.dtype, torch.float32))
    return sigma.reshape(-1).expand(x.shape[0])


def like_image(values: Tensor) -> Tensor:
    """(B,) as (B, 1, 1, 1)."""
    return values[:, None, None, None]


def constructor_config(arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a network's constructor (its `locals()`) as plain data, from which the same is built again."""
    plain = arguments | arguments.get("network", {})
    if "conditioner" in plain:
        plain["conditioner"] = plain["conditioner"].config
    return listed({name: plain[name] for name in plain if name not in ("self", "__class__", "network")})


class PreconditionedNetwork(nn.Module, ABC):
    """Denoiser D(x; sigma, cond) around a network `raw` of unit-size inputs, with a learned log error (EDM2 Eq. 21)."""

    size: int
    cond_dim: int
    channels: int
    sigma_data: float
    out_gain: nn.Parameter
    logvar_fourier: nn.Module
    logvar_linear: nn.Module
    _precision: Precision = "float32"

    @abstractmethod
    def raw(self, x: Tensor, noise: Tensor, cond: Tensor) -> Tensor:
        """F(x; c_noise, cond), for x of unit size (B, C, H, W), c_noise (B,) and cond (B, cond_dim)."""

    def forward(self, x: Tensor, sigma: Tensor | float, cond: Tensor | None = None) -> Tensor:
        """The clean image (B, C, H, W) for noisy x, noise level () or (B,) and condition (B, cond_dim); None is zero."""
        x = x.to(self.out_gain.dtype)
        cond = check_input(x, cond, self.channels, self.size, self.cond_dim)
        return preconditioned(lambda scaled, noise: self.raw(scaled, noise, cond), x, sigma, self.sigma_data)

    def logvar(self, sigma: Tensor | float) -> Tensor:
        """u(sigma): the log of the error the network expects of itself (Eq. 21), shaped like sigma."""
        sigma = torch.as_tensor(sigma, device=self.out_gain.device, dtype=self.out_gain.dtype)
        features = self.logvar_fourier(sigma.reshape(-1).log() / 4)
        return self.logvar_linear(features).reshape(sigma.shape)

    @property
    def precision(self) -> Precision:
        """Of activations inside the network; weights, embedding and the final sum stay in float32."""
        return self._precision

    @precision.setter
    def precision(self, name: Precision) -> None:
        if name not in _DTYPES:
            raise UserError(f"There is no precision `{name}`; choose {', '.join(_DTYPES)}.")
        self._precision = name

    def activations(self, x: Tensor) -> Tensor:
        """x in the memory format and precision of activations; float32 stands for that of the weights, perhaps float64."""
        if self._precision != "float32":
            x = x.to(_DTYPES[self._precision])
        return x.contiguous(memory_format=torch.channels_last)
