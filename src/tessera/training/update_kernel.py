"""The whole weight update as one GPU kernel, one program per filter: gradient, Adam, normalization, running averages.

It follows the PyTorch code (`magnitude`, `torch.optim.Adam`, `Averages`) formula by formula and keeps all state where
that code keeps it, so either can continue what the other began.
"""

import math
from collections.abc import Iterable, Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from tessera.models import magnitude
from tessera.models.ema import Averages
from tessera.models.magnitude import WeightNorm

_BLOCK = 512  # numbers worked on together: a longer row takes several passes, so that registers suffice
_WARPS = 4
_PIECE = 4096  # a parameter that is not made of filters is cut into rows of this length

_WEIGHT, _EXP_AVG, _EXP_AVG_SQ, _STEP, _MEANS = (tl.constexpr(column) for column in range(5))  # columns of `addresses`
_ROW_COLUMNS = tl.constexpr(4)  # parameter, where in it the row begins, length, 1 if it is a filter
_EPS, _ONE_MINUS_EPS = tl.constexpr(magnitude.EPS), tl.constexpr(1 - magnitude.EPS)


@triton.jit
def _tensor(address):
    return address.to(tl.pointer_type(tl.float32))


@triton.jit
def _lerp(start, end, weight):
    """As `torch.lerp`: exact at both ends."""
    gap = end - start
    return tl.where(weight < 0.5, start + weight * gap, end - gap * (1.0 - weight))


@triton.jit
def _bias_correction(log_beta, step):
    """1 - beta^step, in double precision since it begins near 0."""
    return 1.0 - tl.exp(step.to(tl.float64) * log_beta)


@triton.jit
def _radial(weight, grad, length, has_grad, block: tl.constexpr):
    """The part of a row's gradient that would only change the row's size, in units of the row."""
    total = tl.zeros([block], tl.float32)
    for begin in range(0, length, block):
        at = begin + tl.arange(0, block)
        inside = (at < length) & has_grad
        total += tl.load(weight + at, inside, 0.0) * tl.load(grad + at, inside, 0.0)
    return tl.div_rn(tl.div_rn(tl.sum(total, 0), length.to(tl.float32)), _ONE_MINUS_EPS)


@triton.jit
def _adam(
    weight, grad, exp_avg, exp_avg_sq, length, has_grad, radial, size, one_minus_betas, root, eps, block: tl.constexpr
):
    """One step of Adam along a row. Returns the row's new sum of squares."""
    total = tl.zeros([block], tl.float32)
    for begin in range(0, length, block):
        at = begin + tl.arange(0, block)
        inside = at < length
        active = inside & has_grad
        w, g = tl.load(weight + at, inside, 0.0), tl.load(grad + at, active, 0.0)
        g -= w * radial
        m = _lerp(tl.load(exp_avg + at, active, 0.0), g, one_minus_betas[0])
        v = _lerp(tl.load(exp_avg_sq + at, active, 0.0), g * g, one_minus_betas[1])
        w -= tl.where(active, tl.div_rn(size * m, tl.div_rn(tl.sqrt_rn(v), root) + eps), 0.0)
        tl.store(exp_avg + at, m, active)
        tl.store(exp_avg_sq + at, v, active)
        tl.store(weight + at, w, active)
        total += w * w
    return tl.sum(total, 0)


@triton.jit
def _update_rows(
    rows,  # (R, 4)
    addresses,  # (P, 4 + averages): addresses of weight, Adam's moments and count, averages
    grads,  # (P,): addresses of gradients, 0 where there is none
    lr,
    one_minus_betas,  # 1 - beta of both moments
    log_betas,
    eps,
    lerp_weights,  # 1 - beta of each average
    project: tl.constexpr,
    normalize: tl.constexpr,
    averages: tl.constexpr,
    block: tl.constexpr,
):
    row = rows + tl.program_id(0).to(tl.int64) * _ROW_COLUMNS
    parameter, row_start = tl.load(row), tl.load(row + 1)
    length, is_filter = tl.load(row + 2).to(tl.int32), tl.load(row + 3) != 0
    entry = addresses + parameter * (_MEANS + averages)
    weight = _tensor(tl.load(entry + _WEIGHT)) + row_start
    address = tl.load(grads + parameter)
    grad, has_grad = _tensor(address) + row_start, address != 0

    radial = 0.0
    if project:
        radial = tl.where(is_filter, _radial(weight, grad, length, has_grad, block), 0.0)

    step = tl.load(_tensor(tl.load(entry + _STEP)), has_grad, 1.0)
    size = (lr / _bias_correction(log_betas[0], step)).to(tl.float32)
    root = tl.sqrt(_bias_correction(log_betas[1], step)).to(tl.float32)
    exp_avg, exp_avg_sq = (
        _tensor(tl.load(entry + _EXP_AVG)) + row_start,
        _tensor(tl.load(entry + _EXP_AVG_SQ)) + row_start,
    )
    squares = _adam(
        weight, grad, exp_avg, exp_avg_sq, length, has_grad, radial, size, one_minus_betas, root, eps, block
    )

    divisor = 1.0
    if normalize:
        rms = tl.div_rn(tl.sqrt_rn(squares), tl.sqrt_rn(length.to(tl.float32)))
        divisor = tl.where(is_filter, rms + _EPS, 1.0)
    tl.debug_barrier()  # the row just written is read again, perhaps by other threads
    for begin in range(0, length, block):
        at = begin + tl.arange(0, block)
        inside = at < length
        w = tl.div_rn(tl.load(weight + at, inside, 0.0), divisor)
        tl.store(weight + at, w, inside)
        for average in tl.static_range(averages):
            mean = _tensor(tl.load(entry + _MEANS + average)) + row_start + at
            tl.store(mean, _lerp(tl.load(mean, inside, 0.0), w, lerp_weights[average]), inside)


class _AddressTable:
    """Addresses on the device, copied there only when one of them has changed."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.known: list[int] | None = None
        self.table = torch.empty(0, dtype=torch.long, device=device)

    def on_device(self, addresses: list[int]) -> Tensor:
        if addresses != self.known:
            self.known, self.table = addresses, _to_device(addresses, self.device)
        return self.table


class UpdateKernel:
    """Updates all parameters that `averages` follows, with Adam's state where `optimizer` keeps it.

    Gradients are left as they are. A parameter without one keeps its Adam state, and its weights up to normalization.
    """

    def __init__(
        self, optimizer: torch.optim.Adam, averages: Averages, filters: Iterable[Tensor], weight_norm: WeightNorm
    ) -> None:
        self.optimizer, self.averages, self.weight_norm = optimizer, averages, weight_norm
        self.parameters = averages.live
        self.device = self.parameters[0].device
        self.rows = _to_device(_row_table(self.parameters, filters), self.device)  # (R, 4)
        self.addresses, self.grads = _AddressTable(self.device), _AddressTable(self.device)

    def __call__(self, lr: float, lerp_weights: Sequence[float]) -> bool:
        """Update weights and averages. False, and nothing is changed, if a tensor is of an unsupported kind."""
        grads = [parameter.grad for parameter in self.parameters]
        states = [self._adam_state(p, grad) for p, grad in zip(self.parameters, grads, strict=True)]
        tensors = self._state_tensors(states)
        addresses = [_address(tensor) for tensor in tensors]
        # Gradients are new tensors in every step, the others at known addresses have been checked before.
        unchecked = grads if addresses == self.addresses.known else [*grads, *tensors]
        if not all(tensor is None or self._is_supported(tensor) for tensor in unchecked):
            return False
        if steps := [state["step"] for state, grad in zip(states, grads, strict=True) if grad is not None]:
            torch._foreach_add_(steps, 1)
        self._launch(addresses, [_address(grad) for grad in grads], lr, lerp_weights)
        torch.autograd.graph.increment_version(self.parameters)  # as any change in place does
        return True

    def _adam_state(self, parameter: Tensor, grad: Tensor | None) -> dict[str, Tensor]:
        """Created with the first gradient, as `torch.optim.Adam` does."""
        state = self.optimizer.state[parameter]
        if grad is not None and not state:
            state["step"] = torch.zeros((), device=self.device)
            state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(parameter), torch.zeros_like(parameter)
        return state

    def _state_tensors(self, states: list[dict[str, Tensor]]) -> list[Tensor | None]:
        """What stays from step to step, parameter by parameter, in the order of the columns of `addresses`."""
        averages = zip(*self.averages.means.values(), strict=True)
        tensors: list[Tensor | None] = []
        for parameter, state, means in zip(self.parameters, states, averages, strict=True):
            tensors += [parameter, *map(state.get, ("exp_avg", "exp_avg_sq", "step")), *means]
        return tensors

    def _is_supported(self, tensor: Tensor) -> bool:
        return tensor.dtype == torch.float32 and tensor.device == self.device and tensor.is_contiguous()

    def _launch(self, addresses: list[int], grads: list[int], lr: float, lerp_weights: Sequence[float]) -> None:
        group = self.optimizer.param_groups[0]
        one_minus_betas = tuple(1.0 - beta for beta in group["betas"])
        log_betas = tuple(math.log(beta) if beta > 0 else -math.inf for beta in group["betas"])
        with torch.cuda.device_of(self.rows):
            _update_rows[(len(self.rows),)](
                self.rows, self.addresses.on_device(addresses), self.grads.on_device(grads),
                float(lr), one_minus_betas, log_betas, float(group["eps"]), tuple(map(float, lerp_weights)),
                project=self.weight_norm == "projected", normalize=self.weight_norm != "in-forward",
                averages=len(lerp_weights), block=_BLOCK, num_warps=_WARPS,
            )  # fmt: skip


def _row_table(parameters: Sequence[Tensor], filters: Iterable[Tensor]) -> list[tuple[int, int, int, int]]:
    """Parameter, first number, length, and 1 for a filter, of every row."""
    known = {id(weight) for weight in filters}
    rows = []
    for number, parameter in enumerate(parameters):
        is_filter, count = id(parameter) in known, parameter.numel()
        length = parameter.shape[1] if is_filter else _PIECE
        for first in range(0, count, length):
            rows.append((number, first, min(length, count - first), int(is_filter)))
    return rows


def _to_device(numbers: Sequence, device: torch.device) -> Tensor:
    """Whole numbers as a tensor on the device, without waiting for it.

    The pinned copy is a new one each time: PyTorch does not reuse its memory until the transfer is done.
    """
    tensor = torch.tensor(numbers, dtype=torch.long)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor


def _address(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()
