"""Names for the inside of a network, patterns that choose among them, and forward hooks that read features there.

Every submodule of any torch network, EDM2 and diffusers UNets alike, is a hook under its own name. In the blocks of
EDM2 and of local networks, `NAME.scale` is the modulation layer: features multiplied by factors of noise level and
condition. Two kinds more: `output`, what the whole network returns, and `NAME.maps`, the probabilities of the
diffusers attention NAME, mean over heads.
"""

import difflib
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from fnmatch import fnmatchcase
from typing import Any
from unittest.mock import patch

from torch import Tensor, nn

from tessera.errors import UserError
from tessera.models.contract import innermost

OUTPUT, SCALE, _MAPS = "output", "scale", "maps"
MODULATION = "**.scale"  # all modulation layers, in encoder and decoder
_WITHOUT_MODULATION = ("mid_block", "up_blocks")  # stand for them in diffusers UNets
_SUGGESTED = 5  # names that an error message lists

_OnFeatures = Callable[[Tensor], None]


# -- names -------------------------------------------------------------------------------------------------


def network_of(denoiser: Any) -> nn.Module:
    """The torch module of a denoiser or of a loaded model."""
    network = denoiser if isinstance(denoiser, nn.Module) else getattr(denoiser, "denoiser", None)
    if not isinstance(network, nn.Module):
        raise UserError(f"Only features of a torch network can be recorded, not of a {type(denoiser).__name__}.")
    return network


def find_hooks(denoiser: Any) -> dict[str, nn.Module]:
    """Everything that can be recorded, in the order in which the network lists it.

    Names are those of the innermost network where a denoiser wraps one: tiles, patches, adapters.
    """
    network = network_of(denoiser)
    hooks: dict[str, nn.Module] = {}
    for name, module in innermost(network).named_modules():
        if name and not _is_container(module):
            hooks[name] = module
        if hasattr(module, "get_attention_scores"):
            hooks[f"{name}.{_MAPS}"] = module
    return hooks | {OUTPUT: network}


def _is_container(module: nn.Module) -> bool:
    """Containers are never called themselves."""
    return isinstance(module, nn.ModuleDict | nn.ModuleList)


# -- patterns ----------------------------------------------------------------------------------------------


def chosen_hooks(denoiser: Any, at: str | Sequence[str]) -> dict[str, nn.Module]:
    """The hooks that any of the patterns names, in the network's order.

    `*` stands for (part of) one part of a dotted name, `**` for any number of parts. A container stands for
    the hooks directly in it: `encoder.*` means all blocks of the encoder, as `encoder` does.
    """
    hooks = find_hooks(denoiser)
    modules = innermost(network_of(denoiser)).named_modules()
    containers = [name for name, module in modules if name and _is_container(module)]
    chosen: set[str] = set()
    for pattern in [at] if isinstance(at, str) else at:
        fitting = _fitting(pattern, hooks, containers)
        if not fitting and pattern == MODULATION:
            for other in _WITHOUT_MODULATION:
                fitting |= _fitting(other, hooks, containers)
        if not fitting:
            raise UserError(no_such_hook(pattern, [*containers, *hooks]))
        chosen |= fitting
    if not chosen:
        raise UserError("At least one hook must be recorded.")
    return {name: hook for name, hook in hooks.items() if name in chosen}


def _fitting(pattern: str, hooks: Iterable[str], containers: Iterable[str]) -> set[str]:
    """The hooks that match a pattern, and the outermost hooks in the containers that match it."""
    fitting = {name for name in hooks if matches(name, pattern)}
    for container in containers:
        if matches(container, pattern):
            fitting.update(_directly_in(container, hooks))
    return fitting


def matches(name: str, pattern: str) -> bool:
    return _parts_match(name.split("."), pattern.split("."))


def _parts_match(parts: Sequence[str], pattern: Sequence[str]) -> bool:
    if not pattern:
        return not parts
    if pattern[0] == "**":
        return any(_parts_match(parts[skip:], pattern[1:]) for skip in range(len(parts) + 1))
    return bool(parts) and fnmatchcase(parts[0], pattern[0]) and _parts_match(parts[1:], pattern[1:])


def _directly_in(container: str, hooks: Iterable[str]) -> list[str]:
    """The outermost modules of a container: none of those inside another hook."""
    outermost: list[str] = []
    for name in hooks:  # a module is listed before those inside it
        if name.startswith(container + ".") and not (outermost and name.startswith(outermost[-1] + ".")):
            outermost.append(name)
    return outermost


def no_such_hook(pattern: str, names: Iterable[str]) -> str:
    """An error message with the names that begin most like the pattern."""
    start = pattern.rstrip("*.")

    def likeness(name: str) -> float:
        return difflib.SequenceMatcher(None, start, name[: len(pattern)]).ratio()

    near = sorted(names, key=likeness, reverse=True)[:_SUGGESTED]
    if pattern == MODULATION:
        return "This network has no modulation layers, the default; name other hooks, such as --at 'down_blocks.*'."
    return f"No hook in this network is called `{pattern}`; near are {', '.join(near)}."


# -- forward hooks -----------------------------------------------------------------------------------------


def watch(name: str, module: nn.Module, on_features: _OnFeatures, stack: ExitStack) -> None:
    """Call `on_features` in every forward pass, until the stack is closed."""
    if name.endswith(f".{_MAPS}"):
        _watch_attention(module, on_features, stack)
    else:  # a forward hook that returns nothing changes nothing
        handle = module.register_forward_hook(lambda _, given, returned: on_features(_first_tensor(returned)))
        stack.callback(handle.remove)


def _watch_attention(attention: Any, on_features: _OnFeatures, stack: ExitStack) -> None:
    """Probabilities (B, H W, tokens), mean over heads, by the plain formula: fused kernels never form them."""
    from diffusers.models.attention_processor import AttnProcessor

    compute = attention.get_attention_scores

    def scores(*given: Any) -> Tensor:
        probabilities = compute(*given)  # (B heads, H W, tokens)
        on_features(probabilities.unflatten(0, (-1, attention.heads)).mean(1))
        return probabilities

    stack.enter_context(patch.object(attention, "processor", AttnProcessor()))
    stack.enter_context(patch.object(attention, "get_attention_scores", scores))


def _first_tensor(returned: Any) -> Tensor:
    """Some modules of other networks return a tuple with their features first."""
    if isinstance(returned, Tensor):
        return returned
    if isinstance(returned, tuple | list) and returned and isinstance(returned[0], Tensor):
        return returned[0]
    raise UserError(f"A recorded module returns a {type(returned).__name__} instead of features.")
