"""Listen to the transformer blocks of a UNet: hidden states, and the attention maps of single tokens."""

import difflib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from fnmatch import fnmatchcase
from typing import Any, Literal

import torch
from torch import Tensor, nn

from tessera.analysis.hooks import _first_tensor as first_tensor
from tessera.analysis.recording import FeatureRecording, Keep
from tessera.errors import UserError
from tessera.studies.text_to_image.pipeline import Sdxl

Site = Literal["block", "ff", "attn2", "maps"]
Half = Literal["all", "conditional", "unconditional"]
See = Callable[[str, Tensor], None]  # (name of the block, (B, H W, C), or (B, H W) for a token's map)
SITES = ("block", "ff", "attn2", "maps")
ORDER = ("down_blocks", "mid_block", "up_blocks")  # as they are run; torch lists the middle last
SHOWN = 4  # names a complaint suggests


# -- names -------------------------------------------------------------------------------------------------


def blocks_of(unet: nn.Module) -> dict[str, nn.Module]:
    """All transformer blocks in the order in which they run."""
    found = {
        name: module
        for name, module in unet.named_modules()
        if type(module).__name__ == "BasicTransformerBlock"
    }
    return dict(sorted(found.items(), key=lambda entry: ORDER.index(entry[0].split(".")[0])))


def chosen_blocks(unet: nn.Module, layers: str | Sequence[str] = "*") -> dict[str, nn.Module]:
    """Those whose name fits any of the patterns, such as `mid*` or `up_blocks.0.*`."""
    blocks, wanted = blocks_of(unet), set()
    for pattern in [layers] if isinstance(layers, str) else layers:
        fitting = {name for name in blocks if fnmatchcase(name, pattern)}
        if not fitting:
            raise UserError(
                f"No transformer block is called `{pattern}`; near are {near_names(pattern, blocks)}."
            )
        wanted |= fitting
    return {name: block for name, block in blocks.items() if name in wanted}


def near_names(pattern: str, names: Mapping[str, Any]) -> str:
    """Those that begin most like the pattern."""

    def likeness(name: str) -> float:
        return difflib.SequenceMatcher(None, pattern.rstrip("*"), name[: len(pattern)]).ratio()

    return ", ".join(sorted(names, key=likeness, reverse=True)[:SHOWN])


def position_of(name: str) -> str:
    """`down`, `mid` or `up`."""
    return name.partition("_")[0]


def short_name(name: str) -> str:
    """`mid_block.attentions.0.transformer_blocks.3` as `mid 0.3`, `up_blocks.1.attentions.2...` as `up1 2.0`."""
    parts = name.split(".")
    where = position_of(name) + (parts[1] if parts[1].isdigit() else "")
    return f"{where} {parts[-3]}.{parts[-1]}"


# -- listening ---------------------------------------------------------------------------------------------


@contextmanager
def listen(
    sdxl: Sdxl,
    at: Site = "block",
    layers: str | Sequence[str] = "*",
    *,
    sigmas: Sequence[float] | None = None,
    keep: Keep = "mean",
    tokens: Sequence[int] | int | None = None,
    half: Half = "all",
) -> Iterator[FeatureRecording]:
    """Record every pass inside the `with`: `seen[block]` is a mean over latents, or with `keep="rows"` all of them.

    `block` is the hidden state after the feed-forward layer and its residual, `ff` that layer's term alone,
    `attn2` what cross-attention adds, `maps` its probabilities, averaged over heads: (H W, tokens), or of one
    token (for each row of a pass its own, if several are given) (H W). `sigmas` chooses noise levels. A
    pipeline's own guided call passes the unconditional half of a batch first; `half` picks one.
    """
    blocks = chosen_blocks(sdxl.unet, layers)
    seen = FeatureRecording(list(blocks), keep, sigmas)
    with ExitStack() as stack:
        if sigmas is not None:
            stack.callback(watch_time(sdxl, seen, half).remove)
        stack.enter_context(recording(blocks, at, lambda name, h: seen.add(name, halved(h, half)), tokens))
        yield seen


@contextmanager
def recording(
    blocks: Mapping[str, nn.Module],
    at: Site,
    see: See,
    tokens: Sequence[int] | int | None = None,
) -> Iterator[None]:
    """Call `see` with what passes at every block; the network is as before afterwards, whatever happens."""
    if at not in SITES:
        raise UserError(f"One can listen at {', '.join(SITES)}, not at `{at}`.")
    with ExitStack() as stack:
        for name, block in blocks.items():
            if at == "maps":
                stack.enter_context(mapped(block.attn2, name, see, tokens))  # type: ignore[arg-type]
            else:
                module: Any = block if at == "block" else getattr(block, at)
                stack.callback(watch_output(module, name, see))
        yield


def watch_output(module: nn.Module, name: str, see: See) -> Callable[[], None]:
    """See what a module returns; the hook returns nothing, so nothing changes. Gives its own removal."""
    return module.register_forward_hook(lambda _, given, returned: see(name, first_tensor(returned))).remove


def watch_time(sdxl: Sdxl, seen: FeatureRecording, half: Half) -> Any:
    """Tell `seen` the noise level of every pass, from the time the UNet is given."""
    table = sdxl.plain.log_sigmas  # type: ignore[attr-defined]

    def note(_: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> None:
        time = torch.as_tensor(named["timestep"] if "timestep" in named else given[1]).detach().reshape(-1)
        time = time.to(table).clamp(0, len(table) - 1)
        low = time.floor().long().clamp(max=len(table) - 2)
        level = torch.lerp(table[low], table[low + 1], time - low).exp()
        seen.pass_sigmas = level if len(level) == 1 else halved(level, half)

    return sdxl.unet.register_forward_pre_hook(note, with_kwargs=True)


def halved(rows: Tensor, half: Half) -> Tensor:
    """A guided pipeline's batch is [unconditional, told]."""
    if half == "all":
        return rows
    unconditional, conditional = rows.chunk(2)
    return conditional if half == "conditional" else unconditional


# -- attention maps ----------------------------------------------------------------------------------------


@contextmanager
def mapped(attention: Any, name: str, see: See, tokens: Sequence[int] | int | None) -> Iterator[None]:
    """Cross-attention by the plain formula for a while: the usual kernels never form the probabilities."""
    before = attention.processor
    attention.processor = ShownAttention(name, see, tokens)
    try:
        yield
    finally:
        attention.processor = before


class ShownAttention:
    """Attention with its probabilities in sight, instead of a diffusers processor."""

    def __init__(self, name: str, see: See, tokens: Sequence[int] | int | None):
        self.name, self.see, self.tokens = name, see, tokens

    def __call__(
        self,
        attn: Any,
        hidden_states: Tensor,
        encoder_hidden_states: Tensor | None = None,
        attention_mask: Tensor | None = None,
        temb: Tensor | None = None,
    ) -> Tensor:
        """hidden_states (B, H W, C) look at encoder_hidden_states (B, tokens, width)."""
        conditional = hidden_states if encoder_hidden_states is None else encoder_hidden_states
        query, key, value = (
            attn.head_to_batch_dim(part)
            for part in (attn.to_q(hidden_states), attn.to_k(conditional), attn.to_v(conditional))
        )
        mask = attn.prepare_attention_mask(attention_mask, conditional.shape[1], len(conditional))
        shares = attn.get_attention_scores(query, key, mask)  # (B heads, H W, tokens)
        self.see(self.name, self.columns(shares.unflatten(0, (len(conditional), -1)).mean(1)))
        out = attn.to_out[1](attn.to_out[0](attn.batch_to_head_dim(shares @ value)))
        return (out + hidden_states if attn.residual_connection else out) / attn.rescale_output_factor

    def columns(self, shares: Tensor) -> Tensor:
        """Of shares (B, H W, tokens) the asked token's, (B, H W), or all."""
        if self.tokens is None:
            return shares
        if isinstance(self.tokens, int):
            return shares[..., self.tokens]
        if len(self.tokens) != len(shares):
            raise UserError(f"There are {len(self.tokens)} tokens for {len(shares)} latents.")
        wanted = torch.tensor(list(self.tokens), device=shares.device)
        return shares[torch.arange(len(shares), device=shares.device), :, wanted]
