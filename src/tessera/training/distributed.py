"""Several processes that train one network, started by PyTorch's own launcher (`torchrun -m tessera`)."""

import os
from collections.abc import Iterable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors

from tessera.devices import pick_device
from tessera.errors import UserError


@dataclass(frozen=True)
class ProcessGroup:
    """This process and the number of processes that train together."""

    rank: int = 0
    world: int = 1

    @property
    def leads(self) -> bool:
        """Files and messages come from one process only."""
        return self.rank == 0

    def share(self, batch: int) -> int:
        """Images of each step that this process trains on."""
        if batch % self.world:
            raise UserError(f"A batch of {batch} cannot be shared evenly by {self.world} processes.")
        return batch // self.world

    def sum_(self, tensors: Iterable[Tensor]) -> None:
        """Replace each tensor by its sum over all processes."""
        if self.world == 1:
            return
        tensors = list(tensors)
        flat = _flatten_dense_tensors(tensors)  # one message instead of hundreds
        dist.all_reduce(flat)
        for tensor, total in zip(tensors, _unflatten_dense_tensors(flat, tensors)):
            tensor.copy_(total)

    def agree(self, value: bool) -> bool:
        """True on every process as soon as it is True on one."""
        if self.world == 1:
            return value
        vote = torch.tensor(float(value), device="cuda" if dist.get_backend() == "nccl" else "cpu")
        dist.all_reduce(vote)
        return bool(vote > 0)

    def wait(self) -> None:
        if self.world > 1:
            dist.barrier()


ALONE = ProcessGroup()


def join(device_name: str = "auto") -> tuple[ProcessGroup, torch.device]:
    """The group this process was launched into (of one, without a launcher) and the device it uses."""
    world = int(os.environ.get("WORLD_SIZE", "1"))
    device = pick_device(device_name)
    if world == 1:
        return ALONE, device
    if device.type == "cuda":
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
    if not dist.is_initialized():
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    return ProcessGroup(dist.get_rank(), dist.get_world_size()), device


def leave() -> None:
    """Leave the group, so that no process waits for one that has ended."""
    if dist.is_initialized():
        dist.destroy_process_group()
