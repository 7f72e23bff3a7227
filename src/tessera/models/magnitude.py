"""Operations that keep the size of activations: the building blocks of EDM2 (Karras et al. 2024, appendix B).

Weights are matrices (outputs, kernel * kernel * inputs), one filter per row, in the memory order of
channels_last convolutions: a row norm is one contiguous pass, and no weight is copied into another layout.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tessera.errors import UserError

EPS = 1e-4  # added to the root mean square, in every norm
_SILU_SIZE = 0.596  # root mean square of silu(z) for a standard normal z

# What is fastest on a kind of device. Tensor cores need multiples of eight channels; FOLDING is for `upsampled_conv`.
_CHANNELS_BY = {"cuda": 8}
_FOLDING: dict[str, Literal["transposed", "phases"]] = {"cuda": "phases"}

WeightNorm = Literal["after-update", "in-forward", "projected"]


def normalize(x: Tensor, dim: int | Sequence[int] | None = None) -> Tensor:
    """x / (eps + rms), the mean over `dim` (all but the first if not given); eps stands beside the root."""
    dims = list(range(1, x.ndim)) if dim is None else [dim] if isinstance(dim, int) else list(dim)
    precise = torch.promote_types(x.dtype, torch.float32)
    length = torch.linalg.vector_norm(x, dim=dims, keepdim=True, dtype=precise)  # gradient 0 at a zero row
    count = math.prod([x.shape[d] for d in dims])
    return x / (EPS + length / math.sqrt(count)).to(x.dtype)


def mp_silu(x: Tensor) -> Tensor:
    """Eq. 81."""
    return F.silu(x).div_(_SILU_SIZE)  # in place: on a CPU a new tensor of this size costs more than the division


def mp_sum(a: Tensor, b: Tensor, balance: float = 0.5) -> Tensor:
    """Weighted sum of uncorrelated a and b without change of size; b has weight `balance`. Eq. 88."""
    size = math.hypot(1 - balance, balance)
    # Not torch.add(alpha=): compiled together with a matrix product, torch 2.13 forgets alpha.
    return a * ((1 - balance) / size) + b * (balance / size)


def mp_cat(a: Tensor, b: Tensor, balance: float = 0.5) -> Tensor:
    """Channels of a, then of b; `balance` sets how much of the result's energy b carries. Eq. 103."""
    channels_a, channels_b = a.shape[1], b.shape[1]
    size = math.sqrt((channels_a + channels_b) / ((1 - balance) ** 2 + balance**2))
    scale_a = size * (1 - balance) / math.sqrt(channels_a)
    scale_b = size * balance / math.sqrt(channels_b)
    return torch.cat([a * scale_a, b * scale_b], dim=1)


class Fourier(nn.Module):
    """Random cosine features of a number, of unit size: sqrt(2) cos(f x + phase). Eq. 75."""

    freqs: Tensor
    phases: Tensor

    def __init__(self, width: int):
        super().__init__()
        self.register_buffer("freqs", 2 * math.pi * torch.randn(width))
        self.register_buffer("phases", 2 * math.pi * torch.rand(width))

    def forward(self, x: Tensor) -> Tensor:
        """(B,) to (B, width), never below float32."""
        x = x.to(self.freqs.dtype)
        return math.sqrt(2) * torch.cos(x[:, None] * self.freqs + self.phases)


def downsample(x: Tensor, resample_filter: Sequence[float] = (1, 1)) -> Tensor:
    """Halve the side with a separable filter; the default is the mean of 2 x 2 pixels."""
    if is_box(resample_filter):
        return F.avg_pool2d(x, 2)
    kernel = _outer_filter(resample_filter, x)
    return F.conv2d(x, kernel, groups=x.shape[1], stride=2, padding=(len(resample_filter) - 1) // 2)


def upsample(x: Tensor, resample_filter: Sequence[float] = (1, 1)) -> Tensor:
    """Double the side with a separable filter; the default repeats every pixel."""
    if is_box(resample_filter):
        return _repeat2x(x)
    kernel = 4 * _outer_filter(resample_filter, x)
    return F.conv_transpose2d(x, kernel, groups=x.shape[1], stride=2, padding=(len(resample_filter) - 1) // 2)


def _repeat2x(x: Tensor) -> Tensor:
    """Every pixel four times. As an expansion its gradient is a sum; that of F.interpolate is a slow scatter."""
    batch, channels, height, width = x.shape
    pixels = x.permute(0, 2, 3, 1)[:, :, None, :, None]  # (B, H, 1, W, 1, C), contiguous in channels_last
    repeated = pixels.expand(batch, height, 2, width, 2, channels)
    return repeated.reshape(batch, 2 * height, 2 * width, channels).permute(0, 3, 1, 2)


def is_box(resample_filter: Sequence[float]) -> bool:
    return len(resample_filter) == 2 and resample_filter[0] == resample_filter[1]


def _outer_filter(resample_filter: Sequence[float], like: Tensor) -> Tensor:
    """One (k, k) filter of sum 1 for every channel of `like`: (C, 1, k, k)."""
    row = torch.tensor(resample_filter, dtype=torch.float32, device=like.device)
    square = torch.outer(row, row) / row.sum() ** 2
    return square.to(like.dtype).expand(like.shape[1], 1, -1, -1)


class MPConv(nn.Module):
    """Convolution or linear layer without bias whose filters are normalize(w) * gain / sqrt(fan_in). Eq. 66.

    Rows are stored un-scaled and drawn from N(0, 1). For `weight_norm` see `set_weight_norm`.
    """

    def __init__(self, inputs: int, outputs: int, kernel: int = 1):
        super().__init__()
        self.inputs, self.outputs, self.kernel = inputs, outputs, kernel
        self.weight = nn.Parameter(torch.randn(outputs, kernel * kernel * inputs))
        self.weight_norm: WeightNorm = "after-update"

    def extra_repr(self) -> str:
        return f"{self.inputs}, {self.outputs}, kernel={self.kernel}"

    def rows(self) -> Tensor:
        """The stored filters, (outputs, fan_in)."""
        if self.weight_norm == "in-forward" and self.training:
            with torch.no_grad():
                self.weight.copy_(normalize(self.weight))
        return self.weight

    def scaled(self, gain: Tensor | float = 1.0) -> Tensor:
        """The filters the layer computes with, (outputs, fan_in), in the precision they are stored in."""
        return unit_rows([self]) * (gain / math.sqrt(self.weight.shape[1]))

    def forward(self, x: Tensor, gain: Tensor | float = 1.0) -> Tensor:
        """(B, inputs) or (B, inputs, H, W) to as many outputs, zero padded, in the precision of x."""
        return _apply_filters(x, self.scaled(gain).to(x.dtype), self.kernel)


def unit_rows(layers: Sequence[MPConv]) -> Tensor:
    """Normalized filters of layers of one fan-in, stacked: one pass however many the layers."""
    rows = torch.cat([layer.rows() for layer in layers]) if len(layers) > 1 else layers[0].rows()
    normalized = layers[0].weight_norm == "projected" and layers[0].training  # by the trainer, after each update
    return rows if normalized else normalize(rows)


def _apply_filters(x: Tensor, filters: Tensor, kernel: int) -> Tensor:
    """Filters (outputs, kernel * kernel * inputs) on (B, C) or (B, C, H, W)."""
    if x.ndim == 2:
        return F.linear(x, filters)
    if kernel == 1:  # in channels_last a 1 x 1 convolution is a plain matrix product
        return F.linear(x.permute(0, 2, 3, 1), filters).permute(0, 3, 1, 2)
    multiple = _CHANNELS_BY.get(x.device.type, 1) if x.dtype.itemsize == 2 else 1
    return aligned_conv(x, as_kernel(filters, kernel), multiple)


def aligned_conv(x: Tensor, kernels: Tensor, multiple: int) -> Tensor:
    """The same convolution with zero channels added up to a multiple: the first and the last layer need them."""
    outputs, inputs, side, _ = kernels.shape
    more_in, more_out = -inputs % multiple, -outputs % multiple
    if more_in or more_out:
        x = F.pad(x, (0, 0, 0, 0, 0, more_in))
        kernels = F.pad(kernels, (0, 0, 0, 0, 0, more_in, 0, more_out))
    return F.conv2d(x, kernels, padding=side // 2)[:, :outputs]


def as_kernel(filters: Tensor, kernel: int) -> Tensor:
    """Rows as a convolution kernel (outputs, inputs, k, k): a channels_last view, no copy."""
    return filters.unflatten(1, (kernel, kernel, -1)).permute(0, 3, 1, 2)


def upsampled_conv(x: Tensor, filters: Tensor) -> Tensor:
    """A 3 x 3 convolution of the pixel-doubled x, at 4/9 of its cost.

    Every output pixel depends on only 2 x 2 different inputs, so the nine weights of a filter add up to four, different
    ones for each of the 2 x 2 phases of output pixels.
    """
    fold = _phase_conv if _FOLDING.get(x.device.type) == "phases" else _folded_transpose
    return fold(x, as_kernel(filters, 3))


def _folded_transpose(x: Tensor, kernels: Tensor) -> Tensor:
    """All phases as one transposed convolution: its 4 x 4 kernel is the flipped 3 x 3 one, blurred by a box."""
    flipped = kernels.flip(2, 3)  # (outputs, inputs, 3, 3)
    tall = F.pad(flipped, (0, 0, 0, 1)) + F.pad(flipped, (0, 0, 1, 0))
    square = F.pad(tall, (0, 1)) + F.pad(tall, (1, 0))  # (outputs, inputs, 4, 4)
    return F.conv_transpose2d(x, square.transpose(0, 1).to(x.dtype), stride=2, padding=1)


def _phase_conv(x: Tensor, kernels: Tensor) -> Tensor:
    """All phases as channels of one 2 x 2 convolution of stride 1; a compiler merges the interleaving after it."""
    batch, _, height, width = x.shape
    phases = _folded_filter(_folded_filter(kernels, 2), 4).transpose(0, 1)  # (2, 2, outputs, inputs, 2, 2)
    flat = phases.flatten(0, 2).to(x.dtype, memory_format=torch.channels_last)
    y = F.conv2d(x, flat, padding=1).permute(0, 2, 3, 1).unflatten(-1, (2, 2, -1))  # (B, H+1, W+1, 2, 2, C)
    rows = []  # each (B, H, W, 2, C)
    for i in (0, 1):
        left, right = (y[:, i : i + height, j : j + width, i, j] for j in (0, 1))
        rows.append(torch.stack([left, right], dim=3))
    return torch.stack(rows, dim=2).reshape(batch, 2 * height, 2 * width, -1).permute(0, 3, 1, 2)


def _folded_filter(kernels: Tensor, dim: int) -> Tensor:
    """Three weights along `dim` on doubled pixels are two weights on the pixels: others for even and odd outputs."""
    before, here, after = kernels.unbind(dim)
    even, odd = [before, here + after], [before + here, after]
    return torch.stack([torch.stack(even, dim), torch.stack(odd, dim)])


# -- keeping the stored filters at unit size ------------------------------------------------------------


def magnitude_layers(model: nn.Module) -> Iterable[MPConv]:
    return (module for module in model.modules() if isinstance(module, MPConv))


def set_weight_norm(model: nn.Module, how: WeightNorm) -> None:
    """Where the stored filters are normalized while `model` trains. Evaluation normalizes in its forward.

    `after-update`: the trainer calls `normalize_weights` after each optimizer step (the paper's text). Correct for any
    stored weights: the forward normalizes once more, which projects the gradient.
    `in-forward`: every training forward overwrites the stored filters first (the reference code).
    `projected`: as after-update, but the training forward uses the stored filters as they are, and the trainer calls
    `project_gradients` once before the optimizer. Exact: one normalization brings a row's rms to 1 - eps within eps times
    the change of its size in one update, so the second divisor rms + eps is 1 to float32 rounding, and its gradient is
    the projection that `project_gradients` applies. It saves one reduction per weight and forward, and under gradient
    accumulation all projections but one.
    """
    if how not in ("after-update", "in-forward", "projected"):
        raise UserError(f"There is no weight normalization `{how}`; choose after-update, in-forward or projected.")
    for layer in magnitude_layers(model):
        layer.weight_norm = how


def normalize_weights(model: nn.Module) -> None:
    """Put every stored filter back to unit size (forced weight normalization, section 2.3)."""
    _normalize_rows_([layer.weight for layer in magnitude_layers(model)])


def project_gradients(model: nn.Module) -> None:
    """Remove from each filter's gradient what would only change its size. Needed by `projected` alone."""
    pairs = [(layer.weight.grad, layer.weight) for layer in magnitude_layers(model)]
    _project_rows_([(grad, weight) for grad, weight in pairs if grad is not None])


@torch.no_grad()
def _normalize_rows_(weights: Sequence[Tensor]) -> None:
    """In place; on lists of plain tensors, so that `torch.compile` can fuse the whole pass."""
    sizes = [torch.linalg.vector_norm(w, dim=1, keepdim=True) for w in weights]  # (outputs, 1) each
    for size, weight in zip(sizes, weights, strict=True):
        weight.div_(EPS + size / math.sqrt(weight.shape[1]))


@torch.no_grad()
def _project_rows_(pairs: Sequence[tuple[Tensor, Tensor]]) -> None:
    """In place on each gradient of (gradient, weight): derivative of w / (eps + rms) at rms = 1 - eps."""
    for grad, weight in pairs:
        radial = (weight * grad).mean(dim=1, keepdim=True) / (1 - EPS)
        grad.addcmul_(weight, radial, value=-1)
