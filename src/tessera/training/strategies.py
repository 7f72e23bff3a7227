"""How a training step is executed: plain PyTorch, compiled, or replayed as a CUDA graph; the numbers stay the same.

`tools/bench_strategies.py` measures each of these fast paths against the same training without it.
"""

import importlib.util
from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from tessera.config import Strategy, TrainingConfig
from tessera.console import say
from tessera.errors import UserError
from tessera.models.ema import Averages
from tessera.models.magnitude import WeightNorm
from tessera.scenes.random import normal, stream_key
from tessera.training.distributed import ALONE, ProcessGroup
from tessera.training.stream import Batch

_WARM_UPS = 3  # compilers and cuDNN choose their kernels before anything is recorded

_UpdateFunction = Callable[[float, list[float]], bool]  # (learning rate, lerp weights): whether it was done


def chosen_strategy(
    settings: TrainingConfig, device: torch.device, group: ProcessGroup = ALONE, dropout: bool = False
) -> Strategy:
    """The strategy of the settings; `auto` is the fastest one that this device and this training allow."""
    # A CUDA graph repeats the same kernels, so a step must be one pass of one process, without random masks.
    replayable = device.type == "cuda" and group.world == 1 and not settings.micro_batch and not dropout
    if settings.strategy == "graph" and not replayable:
        raise UserError(
            "--training.strategy graph needs one process on a CUDA device, no micro-batches and no dropout; "
            "use compiled."
        )
    if settings.strategy != "auto":
        return settings.strategy
    if device.type != "cuda":
        return "eager"
    return "graph" if replayable else "compiled"


def forget_compiled() -> None:
    """Reset the compiler before another network: under one function name it compiles only a few and then gives up.

    Compiled kernels stay in the compiler's cache on disk, so a similar network starts quickly.
    """
    torch.compiler.reset()


class CompiledNormal:
    """`normal` as one kernel, wherever that does not change its numbers.

    Compilers have been observed to get 64-bit integer arithmetic wrong, so each shape is checked on its first use.
    """

    def __init__(self) -> None:
        torch.compiler.assume_constant_result(stream_key)  # its checksum would split the compiled graph
        self.compiled = torch.compile(normal, dynamic=False)
        self.trusted: dict[tuple[int, int], bool] = {}

    def __call__(self, seed: int, index: Tensor, stream: str, count: int) -> Tensor:
        shape = (len(index), count)
        if shape not in self.trusted:
            compiled, expected = (draw(seed, index, stream, count) for draw in (self.compiled, normal))
            self.trusted[shape] = torch.allclose(compiled, expected, atol=1e-5)
        return (self.compiled if self.trusted[shape] else normal)(seed, index, stream, count)


class Replay:
    """`work` on batches of one shape, replayed from a CUDA graph: its hundreds of kernels are launched as one.

    Small networks otherwise leave a GPU waiting for Python. Whatever `work` writes into tensors (the gradients) stays at
    the same addresses.
    """

    def __init__(self, work: Callable[[Batch], Tensor]):
        self.work = work
        self.graph: torch.cuda.CUDAGraph | None = None
        self.failed = False  # a network may do what cannot be recorded, such as wait for the CPU

    def __call__(self, batch: Batch) -> Tensor:
        """The number that `work` returns, ()."""
        if self.graph is None and not self.failed:
            self._record(batch)
        if self.graph is None:
            return self.work(batch)
        for held, new in zip(vars(self.inputs).values(), vars(batch).values(), strict=True):
            held.copy_(new)
        self.graph.replay()
        return self.result.clone()  # the next replay overwrites it

    def _record(self, batch: Batch) -> None:
        self.inputs = batch.map(Tensor.clone)
        stream = torch.cuda.Stream(batch.images.device)
        stream.wait_stream(torch.cuda.current_stream(batch.images.device))
        with torch.cuda.stream(stream):
            for _ in range(_WARM_UPS):
                self.work(self.inputs)
        stream.synchronize()
        torch.cuda.empty_cache()  # the graph reserves memory of its own
        graph = torch.cuda.CUDAGraph()
        try:
            # Other threads (data loading, logging) may use the GPU meanwhile: hence "thread_local".
            with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
                self.result = self.work(self.inputs)
        except RuntimeError as error:
            self.failed = True
            reason = str(error).strip().split("\n")[0]
            say(f"Training continues without a CUDA graph, as a step cannot be recorded: {reason}")
        else:
            self.graph = graph


def make_update_kernel(
    optimizer: torch.optim.Adam, averages: Averages, filters: Iterable[nn.Parameter], weight_norm: WeightNorm
) -> _UpdateFunction | None:
    """The weight update as one kernel on CUDA devices that have Triton, else None."""
    if averages.live[0].device.type != "cuda" or not importlib.util.find_spec("triton"):
        return None
    from tessera.training.update_kernel import UpdateKernel

    return UpdateKernel(optimizer, averages, filters, weight_norm)
