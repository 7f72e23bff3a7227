"""The whole weight update as one GPU kernel, a program per filter: gradient, Adam, unit size, running averages.

The plain PyTorch code (`magnitude`, `torch.optim.Adam`, `Averages`) says what is right and is followed formula by
formula. All state stays where that code keeps it, so either may carry on what the other began.
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

BLOCK = 512  # numbers worked on together: a longer row takes several turns, so that registers suffice
WARPS = 4
PIECE = 4096  # a parameter that is not made of filters is cut into rows of this length

WEIGHT, FIRST, SECOND, STEP, MEANS = (tl.constexpr(column) for column in range(5))  # columns of `homes`
ROW_COLUMNS = tl.constexpr(4)  # parameter, where in it the row begins, length, 1 if it is a filter
EPS, SHRUNK = tl.constexpr(magnitude.EPS), tl.constexpr(1 - magnitude.EPS)


@triton.jit
def _tensor(address):
    return address.to(tl.pointer_type(tl.float32))


@triton.jit
def _toward(start, end, share):
    """As `torch.lerp`: exact at both ends."""
    gap = end - start
    return tl.where(share < 0.5, start + share * gap, end - gap * (1.0 - share))


@triton.jit
def _bias_correction(log_beta, step):
    """1 - beta^step, in double precision since it begins near 0."""
    return 1.0 - tl.exp(step.to(tl.float64) * log_beta)


@triton.jit
def _radial(weight, pull, length, moved, block: tl.constexpr):
    """The part of a row's gradient that would only change the row's size, in units of the row."""
    total = tl.zeros([block], tl.float32)
    for begin in range(0, length, block):
        at = begin + tl.arange(0, block)
        inside = (at < length) & moved
        total += tl.load(weight + at, inside, 0.0) * tl.load(pull + at, inside, 0.0)
    return tl.div_rn(tl.div_rn(tl.sum(total, 0), length.to(tl.float32)), SHRUNK)


@triton.jit
def _adam(weight, pull, first, second, length, moved, radial, size, gains, root, eps, block: tl.constexpr):
    """One step of Adam along a row. Returns the row's new sum of squares."""
    total = tl.zeros([block], tl.float32)
    for begin in range(0, length, block):
        at = begin + tl.arange(0, block)
        inside = at < length
        fed = inside & moved
        w, g = tl.load(weight + at, inside, 0.0), tl.load(pull + at, fed, 0.0)
        g -= w * radial
        m = _toward(tl.load(first + at, fed, 0.0), g, gains[0])
        v = _toward(tl.load(second + at, fed, 0.0), g * g, gains[1])
        w -= tl.where(fed, tl.div_rn(size * m, tl.div_rn(tl.sqrt_rn(v), root) + eps), 0.0)
        tl.store(first + at, m, fed)
        tl.store(second + at, v, fed)
        tl.store(weight + at, w, fed)
        total += w * w
    return tl.sum(total, 0)


@triton.jit
def _update_rows(
    rows,  # (R, 4)
    homes,  # (P, 4 + averages): addresses of weight, Adam's moments and count, averages
    pulls,  # (P,): addresses of gradients, 0 where there is none
    lr,
    gains,  # 1 - beta of both moments
    log_betas,
    eps,
    shares,  # how far each average moves
    project: tl.constexpr,
    normalize: tl.constexpr,
    averages: tl.constexpr,
    block: tl.constexpr,
):
    row = rows + tl.program_id(0).to(tl.int64) * ROW_COLUMNS
    parameter, begins = tl.load(row), tl.load(row + 1)
    length, is_filter = tl.load(row + 2).to(tl.int32), tl.load(row + 3) != 0
    home = homes + parameter * (MEANS + averages)
    weight = _tensor(tl.load(home + WEIGHT)) + begins
    address = tl.load(pulls + parameter)
    pull, moved = _tensor(address) + begins, address != 0

    radial = 0.0
    if project:
        radial = tl.where(is_filter, _radial(weight, pull, length, moved, block), 0.0)

    step = tl.load(_tensor(tl.load(home + STEP)), moved, 1.0)
    size = (lr / _bias_correction(log_betas[0], step)).to(tl.float32)
    root = tl.sqrt(_bias_correction(log_betas[1], step)).to(tl.float32)
    first, second = _tensor(tl.load(home + FIRST)) + begins, _tensor(tl.load(home + SECOND)) + begins
    squares = _adam(weight, pull, first, second, length, moved, radial, size, gains, root, eps, block)

    divisor = 1.0
    if normalize:
        rms = tl.div_rn(tl.sqrt_rn(squares), tl.sqrt_rn(length.to(tl.float32)))
        divisor = tl.where(is_filter, rms + EPS, 1.0)
    tl.debug_barrier()  # the row just written is read again, perhaps by other threads
    for begin in range(0, length, block):
        at = begin + tl.arange(0, block)
        inside = at < length
        w = tl.div_rn(tl.load(weight + at, inside, 0.0), divisor)
        tl.store(weight + at, w, inside)
        for average in tl.static_range(averages):
            mean = _tensor(tl.load(home + MEANS + average)) + begins + at
            tl.store(mean, _toward(tl.load(mean, inside, 0.0), w, shares[average]), inside)


class AddressTable:
    """Addresses on the device, sent again only when one of them has changed."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.known: list[int] | None = None
        self.table = torch.empty(0, dtype=torch.long, device=device)

    def holding(self, addresses: list[int]) -> Tensor:
        if addresses != self.known:
            self.known, self.table = addresses, sent(addresses, self.device)
        return self.table


class UpdateKernel:
    """Updates all parameters that `averages` follows, with Adam's state where `optimizer` keeps it.

    Gradients stay as they are. A parameter without one keeps its Adam state, and its weights but for their size.
    """

    def __init__(
        self,
        optimizer: torch.optim.Adam,
        averages: Averages,
        filters: Iterable[Tensor],
        weight_norm: WeightNorm,
    ) -> None:
        self.optimizer, self.averages, self.weight_norm = optimizer, averages, weight_norm
        self.parameters = averages.live
        self.device = self.parameters[0].device
        self.rows = sent(row_table(self.parameters, filters), self.device)  # (R, 4)
        self.homes, self.pulls = AddressTable(self.device), AddressTable(self.device)

    def __call__(self, lr: float, shares: Sequence[float]) -> bool:
        """Update, each average moving by its share. False, and nothing moved, if a tensor does not suit."""
        pulls = [parameter.grad for parameter in self.parameters]
        states = [self.adam_state(p, pull) for p, pull in zip(self.parameters, pulls, strict=True)]
        kept = self.kept(states)
        homes = [address(tensor) for tensor in kept]
        unchecked = pulls if homes == self.homes.known else [*pulls, *kept]
        if not all(tensor is None or self.suits(tensor) for tensor in unchecked):
            return False
        if steps := [state["step"] for state, pull in zip(states, pulls, strict=True) if pull is not None]:
            torch._foreach_add_(steps, 1)
        self.launch(homes, [address(pull) for pull in pulls], lr, shares)
        torch.autograd.graph.increment_version(self.parameters)  # as any change in place does
        return True

    def adam_state(self, parameter: Tensor, pull: Tensor | None) -> dict[str, Tensor]:
        """Begun with the first gradient."""
        state = self.optimizer.state[parameter]
        if pull is not None and not state:
            state["step"] = torch.zeros((), device=self.device)
            state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(parameter), torch.zeros_like(parameter)
        return state

    def kept(self, states: list[dict[str, Tensor]]) -> list[Tensor | None]:
        """What stays from step to step, parameter by parameter, in the order of the columns of `homes`."""
        parts = ([state.get(part) for state in states] for part in ("exp_avg", "exp_avg_sq", "step"))
        columns = zip(self.parameters, *parts, *self.averages.means.values(), strict=True)
        return [tensor for tensors in columns for tensor in tensors]

    def suits(self, tensor: Tensor) -> bool:
        return tensor.dtype == torch.float32 and tensor.device == self.device and tensor.is_contiguous()

    def launch(self, homes: list[int], pulls: list[int], lr: float, shares: Sequence[float]) -> None:
        group = self.optimizer.param_groups[0]
        gains, logarithms = zip(*((1.0 - beta, logarithm(beta)) for beta in group["betas"]))
        with torch.cuda.device_of(self.rows):
            _update_rows[(len(self.rows),)](
                self.rows, self.homes.holding(homes), self.pulls.holding(pulls),
                float(lr), gains, logarithms, float(group["eps"]), tuple(map(float, shares)),
                project=self.weight_norm == "projected", normalize=self.weight_norm != "in-forward",
                averages=len(shares), block=BLOCK, num_warps=WARPS,
            )  # fmt: skip


def row_table(parameters: Sequence[Tensor], filters: Iterable[Tensor]) -> list[tuple[int, int, int, int]]:
    """Parameter, first number, length, and 1 for a filter, of every row."""
    known = {id(weight) for weight in filters}
    rows = []
    for number, parameter in enumerate(parameters):
        is_filter, count = id(parameter) in known, parameter.numel()
        length = parameter.shape[1] if is_filter else PIECE
        for first in range(0, count, length):
            rows.append((number, first, min(length, count - first), int(is_filter)))
    return rows


def sent(numbers: Sequence, device: torch.device) -> Tensor:
    """Whole numbers as a tensor on the device, without waiting for it.

    The pinned copy is new each time: PyTorch keeps its memory from other use until the transfer is done.
    """
    here = torch.tensor(numbers, dtype=torch.long)
    return here.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else here


def address(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()


def logarithm(beta: float) -> float:
    return math.log(beta) if beta > 0 else -math.inf
