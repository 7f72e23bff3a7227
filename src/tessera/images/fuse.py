"""On a GPU, long formulas over pixels become one kernel each instead of hundreds."""

import functools
import os
from collections.abc import Callable
from typing import TypeVar

import torch

Function = TypeVar("Function", bound=Callable)
BACKEND = "inductor"
VARIANTS = 64  # a kernel is compiled anew for other numbers of things or sorts of points; allow that often


def fused(function: Function) -> Function:
    """Compile `function` for worlds that ask for it (their `dense` is set); elsewhere call it as it is.

    The world is the first argument. TESSERA_COMPILE=0 switches compilation off everywhere.
    """

    @functools.cache
    def compiled() -> Callable:
        config = torch._dynamo.config
        for limit in ("recompile_limit", "cache_size_limit"):  # the name before and after torch 2.6
            if hasattr(config, limit):
                setattr(config, limit, max(getattr(config, limit), VARIANTS))
        return torch.compile(function, dynamic=True, backend=BACKEND, fullgraph=True)

    @functools.wraps(function)
    def call(world, *rest):
        if torch.compiler.is_compiling() or not world.dense or os.environ.get("TESSERA_COMPILE") == "0":
            return function(world, *rest)
        return compiled()(world, *rest)

    return call  # type: ignore[return-value]
