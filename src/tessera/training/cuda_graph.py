"""A step's gradients as a CUDA graph: its hundreds of small kernels are recorded once, then started as one.

Small networks leave a GPU waiting for Python. The recording runs the very kernels of the step it was made from.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from tessera.console import say
from tessera.training.stream import Batch

WARM_UPS = 3  # compilers and cuDNN choose their kernels before anything is recorded


class Replay:
    """`work` on batches of one shape, from a recording. What it leaves in tensors stays in the same memory."""

    def __init__(self, work: Callable[[Batch], Tensor]):
        self.work = work
        self.graph: torch.cuda.CUDAGraph | None = None
        self.refused = False  # a network may do what cannot be recorded, such as wait for the CPU

    def __call__(self, batch: Batch) -> Tensor:
        """The number that `work` returns, ()."""
        if self.graph is None and not self.refused:
            self.record(batch)
        if self.graph is None:
            return self.work(batch)
        for held, new in zip(parts(self.held), parts(batch), strict=True):
            held.copy_(new)
        self.graph.replay()
        return self.result.clone()  # the next replay overwrites it

    def record(self, batch: Batch) -> None:
        self.held = Batch(*(part.clone() for part in parts(batch)))
        stream = torch.cuda.Stream(batch.images.device)
        stream.wait_stream(torch.cuda.current_stream(batch.images.device))
        with torch.cuda.stream(stream):
            for _ in range(WARM_UPS):
                self.work(self.held)
        stream.synchronize()
        torch.cuda.empty_cache()  # the recording keeps memory of its own
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
                self.result = self.work(self.held)
        except RuntimeError as error:
            self.refused = True
            say(f"Training goes on more slowly, as its steps cannot be recorded: {first_line(error)}")
        else:
            self.graph = graph


def parts(batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
    return batch.images, batch.cond, batch.index


def first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0]
