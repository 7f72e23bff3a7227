"""Devices, precisions, threads and memory; `auto` takes the best device of this machine."""

import ctypes
import os
import sys
from typing import Literal

from tessera.errors import UserError

_TRIM_THRESHOLD, _MMAP_THRESHOLD = (-1, -3)  # parameters of mallopt, from malloc.h

DeviceName = Literal["auto", "cpu", "cuda", "mps"]
PrecisionName = Literal["auto", "float32", "bfloat16"]  # of activations; float16 is for training alone


def pick_device(name: str = "auto"):
    """The torch device called `name`; `auto` prefers CUDA, then Apple silicon, then the CPU."""
    import torch

    available = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if name == "auto":
        name = next(kind for kind, here in available.items() if here)
    if not available.get(name.split(":")[0]):  # cuda:1 is one of several
        raise UserError(f"This machine has no {name} device; try --device cpu.")
    return torch.device(name)


def precision_on(device, name: str = "auto") -> str:
    """The precision called `name`; `auto` is bfloat16 on CUDA and float32 elsewhere."""
    if name != "auto":
        return name
    return "bfloat16" if device.type == "cuda" else "float32"


def double_home(device):
    """Where tensors of a device can be doubles: Apple's GPUs have none, so theirs go to the CPU."""
    import torch

    return torch.device("cpu") if device.type == "mps" else device


def in_double(values):
    """The tensor in double precision, on its own device if that has any."""
    return values.to(double_home(values.device)).double()


def synchronize(device) -> None:
    """Wait for queued work, so that a clock read afterwards is honest."""
    import torch

    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def peak_memory(device) -> int | None:
    """Largest number of bytes this process held on `device`, where that is known."""
    import torch

    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None


def taken_memory(device) -> int | None:
    """Largest number of bytes this process took from `device`, where that is known.

    More than `peak_memory`, and the right one for training: a recorded step keeps memory that counts as free.
    """
    import torch

    return torch.cuda.max_memory_reserved(device) if device.type == "cuda" else None


def use_threads(threads: int = 0) -> None:
    """So many CPU threads from now on; 0 takes those that other work leaves free."""
    import torch

    if threads < 0:
        raise UserError(f"A number of threads is not negative, as {threads} is.")
    torch.set_num_threads(threads or free_threads(torch.get_num_threads(), os.getloadavg()[0]))


def keep_memory() -> None:
    """Let glibc reuse the memory of deleted tensors; by default it returns large blocks and asks for new, empty pages."""
    if not sys.platform.startswith("linux"):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # not in every C library
    if mallopt is not None:
        mallopt(_TRIM_THRESHOLD, 256 * 2**20)
        mallopt(_MMAP_THRESHOLD, 32 * 2**20)


def free_threads(threads: int, load: float) -> int:
    """How many threads to use, of at most `threads`, beside other work on this machine.

    Threads that share a core with others wait for each other: on two busy cores, two threads train 13 times slower than one.
    """
    affinity = getattr(os, "sched_getaffinity", None)  # not on macOS
    cores = len(affinity(0)) if affinity else os.cpu_count() or 1
    return max(1, min(threads, cores - round(load)))
