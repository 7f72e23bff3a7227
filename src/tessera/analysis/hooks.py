"""Names for the inside of a network, patterns that choose among them, and hooks that look there.

Every submodule is a hook under its own name. Two kinds more: `output`, what the whole network returns, and
`NAME.scale`, the modulation layer of the block NAME: its features just multiplied by what noise level and
condition say.
"""

import difflib
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Literal

from torch import Tensor, nn

from tessera.errors import UserError
from tessera.models.edm2 import Block, expand_to_map
from tessera.models.local_conv import LocalBlock, resized
from tessera.models.views import innermost

OUTPUT, SCALE = "output", "scale"
MODULATION = "**.scale"  # all modulation layers, in encoder and decoder
SHOWN = 5  # names a complaint suggests

See = Callable[[Tensor], None]


@dataclass(frozen=True)
class Hook:
    """Where to look: what a module returns, or the product inside a block."""

    module: nn.Module
    kind: Literal["module", "scale"] = "module"

    def watch(self, see: See, stack: ExitStack) -> None:
        """Call `see` with the features of every pass, until the stack is closed."""
        if self.kind == "module":
            watch_module(self.module, see, stack)
        elif isinstance(self.module, Block):
            watch_scale(self.module, see, stack)
        else:
            watch_local_scale(self.module, see, stack)


# -- names -------------------------------------------------------------------------------------------------


def network_of(denoiser: Any) -> nn.Module:
    """The torch module of a denoiser or of a loaded model."""
    network = denoiser if isinstance(denoiser, nn.Module) else getattr(denoiser, "denoiser", None)
    if not isinstance(network, nn.Module):
        raise UserError(f"Only a torch network has an inside to record, not a {type(denoiser).__name__}.")
    return network


def find_hooks(denoiser: Any) -> dict[str, Hook]:
    """Everything that can be recorded, in the order in which the network lists it.

    A network that only wraps another, as on tiles or patches, is looked through: names are the inner one's.
    """
    network = network_of(denoiser)
    found: dict[str, Hook] = {}
    for name, module in innermost(network).named_modules():
        if name and not is_container(module):
            found[name] = Hook(module)
        if isinstance(module, Block | LocalBlock):
            found[f"{name}.{SCALE}"] = Hook(module, "scale")
    return found | {OUTPUT: Hook(network)}


def containers_of(denoiser: Any) -> list[str]:
    """Names that stand for the hooks inside them, such as `encoder` and `encoder.64`."""
    modules = innermost(network_of(denoiser)).named_modules()
    return [name for name, module in modules if name and is_container(module)]


def is_container(module: nn.Module) -> bool:
    """Containers are never called themselves."""
    return isinstance(module, nn.ModuleDict | nn.ModuleList)


# -- patterns ----------------------------------------------------------------------------------------------


def chosen_hooks(denoiser: Any, at: str | Sequence[str]) -> dict[str, Hook]:
    """The hooks that any of the patterns names, in the network's order.

    `*` stands for (part of) one part of a dotted name, `**` for any number of parts. A container stands for
    the hooks directly in it: `encoder.*` means all blocks of the encoder, as `encoder` does.
    """
    hooks, containers = find_hooks(denoiser), containers_of(denoiser)
    wanted: set[str] = set()
    for pattern in [at] if isinstance(at, str) else at:
        direct = {name for name in hooks if matches(name, pattern)}
        holders = [name for name in containers if matches(name, pattern)]
        inside = {name for holder in holders for name in directly_in(holder, hooks)}
        if not direct | inside:
            raise UserError(complaint(pattern, hooks, containers))
        wanted |= direct | inside
    if not wanted:
        raise UserError("At least one hook must be recorded.")
    return {name: hook for name, hook in hooks.items() if name in wanted}


def matches(name: str, pattern: str) -> bool:
    return parts_match(name.split("."), pattern.split("."))


def parts_match(parts: Sequence[str], wanted: Sequence[str]) -> bool:
    if not wanted:
        return not parts
    if wanted[0] == "**":
        return any(parts_match(parts[skip:], wanted[1:]) for skip in range(len(parts) + 1))
    return bool(parts) and fnmatchcase(parts[0], wanted[0]) and parts_match(parts[1:], wanted[1:])


def directly_in(holder: str, hooks: Mapping[str, Hook]) -> list[str]:
    """The outermost modules of a container: none of those inside another hook."""
    modules = [name for name, hook in hooks.items() if hook.kind == "module"]
    inside = [name for name in modules if name.startswith(holder + ".")]
    return [name for name in inside if not any(name.startswith(other + ".") for other in inside)]


def complaint(pattern: str, hooks: Mapping[str, Hook], containers: Sequence[str]) -> str:
    names = [*containers, *hooks]
    near = difflib.get_close_matches(pattern, names, n=SHOWN, cutoff=0.4) or names[:SHOWN]
    return f"No hook in this network is called `{pattern}`; near are {', '.join(near)}."


# -- hooks -------------------------------------------------------------------------------------------------


def watch_module(module: nn.Module, see: See, stack: ExitStack) -> None:
    """See what a module returns; hooks return nothing, so nothing changes."""
    handle = module.register_forward_hook(lambda _, given, returned: see(first_tensor(returned)))
    stack.callback(handle.remove)


def watch_scale(block: Block, see: See, stack: ExitStack) -> None:
    """See the product of an EDM2 block's first convolution with its factors (B, C) or (B, C, H', W').

    The convolution is not always called as a module, so the block's method is what we listen to.
    """
    pending: list[Tensor] = []
    convolve = block.first_conv

    def note(_: nn.Module, given: tuple[Any, ...]) -> None:
        pending[:] = [given[1]]

    def listening(small: Tensor, x: Tensor) -> Tensor:
        y = convolve(small, x)
        see(y * expand_to_map(pending.pop()).to(y.dtype))
        return y

    stack.callback(block.register_forward_pre_hook(note).remove)
    stack.callback(restored, block, block.__dict__.get("first_conv"))
    block.__dict__["first_conv"] = listening


def restored(block: Block, before: Any) -> None:
    """The block's method as it was; an outer recording's, where there is one."""
    if before is None:
        block.__dict__.pop("first_conv", None)
    else:
        block.__dict__["first_conv"] = before


def watch_local_scale(block: nn.Module, see: See, stack: ExitStack) -> None:
    """The same in a local block, whose factors are a map over cells."""
    assert isinstance(block, LocalBlock)
    pending: list[Tensor] = []

    def note(_: nn.Module, given: Any, returned: Tensor) -> None:
        pending[:] = [returned + 1]

    def multiply(_: nn.Module, given: Any, y: Tensor) -> None:
        see(y * resized(pending.pop(), y.shape[-1]).to(y.dtype))

    stack.callback(block.emb.register_forward_hook(note).remove)
    stack.callback(block.res0.register_forward_hook(multiply).remove)


def first_tensor(returned: Any) -> Tensor:
    """Some modules of other networks return a tuple with their features first."""
    if isinstance(returned, Tensor):
        return returned
    if isinstance(returned, tuple | list) and returned and isinstance(returned[0], Tensor):
        return returned[0]
    raise UserError(f"A recorded hook returns a {type(returned).__name__} instead of features.")
