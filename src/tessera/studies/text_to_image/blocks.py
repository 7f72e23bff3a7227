"""The transformer blocks of a diffusers UNet: their names, and where in them features are recorded."""

from fnmatch import fnmatchcase
from typing import Literal

from torch import nn

from tessera.analysis.hooks import no_such_hook
from tessera.errors import UserError

Site = Literal["block", "ff", "attn2", "maps"]
# What is recorded of a block: the hidden state after its feed-forward layer and residual, that layer's term alone,
# what cross-attention adds, or the probabilities of cross-attention.
SITES: dict[Site, str] = {"block": "", "ff": ".ff", "attn2": ".attn2", "maps": ".attn2.maps"}


def blocks_of(unet: nn.Module) -> list[str]:
    """The names of all transformer blocks."""
    kinds = {name: type(module).__name__ for name, module in unet.named_modules()}
    return [name for name, kind in kinds.items() if kind == "BasicTransformerBlock"]


def checked_site(name: str) -> Site:
    for site in SITES:
        if site == name:
            return site
    raise UserError(f"Features can be recorded at {', '.join(SITES)}, not at `{name}`.")


def block_hooks(unet: nn.Module, site: Site = "block", layers: str = "*") -> list[str]:
    """Names of hooks for `record`, for blocks whose name fits any of the patterns, such as `mid*,up_blocks.0.*`."""
    blocks, chosen = blocks_of(unet), set()
    for pattern in layers.split(","):
        fitting = {name for name in blocks if fnmatchcase(name, pattern)}
        if not fitting:
            raise UserError(no_such_hook(pattern, blocks))
        chosen |= fitting
    return [name + SITES[checked_site(site)] for name in blocks if name in chosen]


def block_of(hook: str) -> str:
    """The name of the block that a hook belongs to."""
    return hook.removesuffix(".maps").removesuffix(".attn2").removesuffix(".ff")


def position_of(name: str) -> str:
    """`down`, `mid` or `up`."""
    return name.partition("_")[0]


def short_name(name: str) -> str:
    """`mid_block.attentions.0.transformer_blocks.3` as `mid 0.3`, `up_blocks.1.attentions.2...` as `up1 2.0`."""
    parts = name.split(".")
    where = position_of(name) + (parts[1] if parts[1].isdigit() else "")
    return f"{where} {parts[-3]}.{parts[-1]}"
