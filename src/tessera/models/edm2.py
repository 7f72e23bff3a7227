"""EDM2 (Karras et al. 2024, config G): a preconditioned U-Net whose activations and weights keep unit size.

Activations are (B, C, H, W) in channels_last memory. Every interior location has a stable name:
`encoder.64.block0`, `decoder.16.in0`.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tessera.errors import UserError
from tessera.models.magnitude import (
    Fourier,
    MPConv,
    downsample,
    is_box,
    mp_cat,
    mp_silu,
    mp_sum,
    normalize,
    unit_rows,
    upsample,
    upsampled_conv,
)
from tessera.models.precondition import PreconditionedNetwork, constructor_config

_FEW_TOKENS = 64


class Block(nn.Module):
    """Residual block; noise level and condition enter as one factor per channel. What is narrower than a head does not attend."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        emb_width: int,
        *,
        side: Literal["encoder", "decoder"],
        resample: Literal["keep", "down", "up"] = "keep",
        attends: bool = False,
        head_width: int = 64,
        resample_filter: Sequence[float] = (1, 1),
        residual_balance: float = 0.3,
        attention_balance: float = 0.3,
        clip: float = 256,
        dropout: float = 0,
    ):
        super().__init__()
        self.inputs, self.outputs, self.heads = inputs, outputs, outputs // head_width if attends else 0
        self.side, self.resample, self.resample_filter = side, resample, tuple(resample_filter)
        self.residual_balance, self.attention_balance = residual_balance, attention_balance
        self.clip, self.dropout = clip, dropout
        # A gain of 0 turns noise level and condition off at first: every factor begins at 1.
        self.gain = nn.Parameter(torch.zeros(()))
        self.res0 = MPConv(outputs if side == "encoder" else inputs, outputs, kernel=3)
        self.emb = MPConv(emb_width, outputs)
        self.scale = nn.Identity()  # where features can be recorded that condition and noise level have scaled
        self.res1 = MPConv(outputs, outputs, kernel=3)
        self.skip = MPConv(inputs, outputs) if inputs != outputs else None
        self.qkv = MPConv(outputs, 3 * outputs) if self.heads else None  # rows: q of all heads, then k, then v
        self.proj = MPConv(outputs, outputs) if self.heads else None

    def forward(self, x: Tensor, factors: Tensor) -> Tensor:
        """x (B, inputs, H, W), factors (B, outputs)."""
        small = x
        x = self.resized(x)
        if self.side == "encoder":
            x = normalize(x if self.skip is None else self.skip(x), dim=1)
        y = self.first_conv(small, x)
        y = mp_silu(self.scale(y * factors.to(y.dtype)[:, :, None, None]))
        if self.dropout:
            y = F.dropout(y, self.dropout, self.training)
        y = self.res1(y)
        if self.side == "decoder" and self.skip is not None:
            x = self.skip(x)
        x = mp_sum(x, y, self.residual_balance)
        if self.qkv is not None:
            x = mp_sum(x, self.attend(x), self.attention_balance)
        # Sums and concatenations keep the size of activations only on average; the limit keeps float16 from overflow.
        return x.clamp(-self.clip, self.clip)

    def resized(self, x: Tensor) -> Tensor:
        if self.resample == "down":
            return downsample(x, self.resample_filter)
        return upsample(x, self.resample_filter) if self.resample == "up" else x

    def first_conv(self, small: Tensor, x: Tensor) -> Tensor:
        """res0(mp_silu(x)). Where x only repeats the pixels of `small`, computed from those at 4/9 of the cost."""
        if self.resample == "up" and self.side == "decoder" and is_box(self.resample_filter):
            return upsampled_conv(mp_silu(small), self.res0.scaled())
        return self.res0(mp_silu(x))

    def attend(self, x: Tensor) -> Tensor:
        """Cosine attention: queries, keys and values are unit size per head."""
        batch, channels, height, width = x.shape
        assert self.qkv is not None and self.proj is not None
        qkv = self.qkv(x).permute(0, 2, 3, 1)  # (B, H, W, 3 C), contiguous in channels_last
        qkv = qkv.reshape(batch, height * width, 3, self.heads, channels // self.heads)
        q, k, v = normalize(qkv, dim=-1).permute(2, 0, 3, 1, 4)  # each (B, heads, H W, C / heads)
        values = attention(q, k, v).transpose(1, 2)
        return self.proj(values.reshape(batch, height, width, channels).permute(0, 3, 1, 2))


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Softmax attention of (B, heads, tokens, C) each."""
    tokens = q.shape[2]
    if tokens >= _FEW_TOKENS and tokens % 8 == 0:
        return F.scaled_dot_product_attention(q, k, v)
    # Fused kernels are made for long sequences of multiples of 8; for the 25 tokens of a patch they are slower.
    return (q @ k.mT / math.sqrt(q.shape[3])).softmax(-1) @ v


class EDM2(PreconditionedNetwork):
    """Denoiser D(x; sigma, cond). Condition vectors are (B, cond_dim); None stands for all zeros.

    `attention` lists resolutions; the first block of the decoder attends in any case. What is narrower than one
    head does not. `coords` appends the x and y coordinate of every pixel to the input.
    """

    coords: Tensor | None

    def __init__(
        self,
        size: int,
        cond_dim: int = 0,
        width: int = 128,
        mult: Sequence[int] = (1, 2, 3, 4),
        blocks: int = 3,
        attention: Sequence[int] = (16, 8),
        head_width: int = 64,
        channels: int = 3,
        coords: bool = False,
        noise_mult: int | None = None,
        emb_mult: int | None = None,
        resample_filter: Sequence[float] = (1, 1),
        label_balance: float = 0.5,
        concat_balance: float = 0.5,
        residual_balance: float = 0.3,
        attention_balance: float = 0.3,
        clip: float = 256,
        sigma_data: float = 0.5,
        logvar_width: int = 128,
        dropout: float = 0,
    ):
        config = constructor_config(locals())
        super().__init__()
        self.config = config
        _check_levels(size, mult, width, attention, head_width)
        self.size, self.cond_dim, self.channels, self.sigma_data = size, cond_dim, channels, sigma_data
        self.label_balance, self.concat_balance = label_balance, concat_balance
        self.checkpointing = False  # a second forward of each block in exchange for the memory of its activations

        widths = [width * m for m in mult]
        noise_width = width * noise_mult if noise_mult else widths[0]
        emb_width = width * emb_mult if emb_mult else max(widths)
        self.register_buffer("coords", coordinates(size) if coords else None, persistent=False)
        self.fourier = Fourier(noise_width)
        self.noise = MPConv(noise_width, emb_width)
        self.cond = MPConv(cond_dim, emb_width) if cond_dim else None

        block = partial(
            Block,
            emb_width=emb_width,
            head_width=head_width,
            resample_filter=resample_filter,
            residual_balance=residual_balance,
            attention_balance=attention_balance,
            clip=clip,
            dropout=dropout,
        )
        sides = [size >> level for level in range(len(widths))]
        levels = [(side, width, side in attention) for side, width in zip(sides, widths)]
        inputs = channels + 1 + (2 if coords else 0)
        self.encoder, skips = _build_encoder(inputs, levels, blocks, block)
        self.decoder = _build_decoder(skips, levels, blocks, block)
        self.out = MPConv(widths[0], channels, kernel=3)
        # With this gain at 0 an untrained network returns its input times c_skip: the loss is 1 at every noise level.
        self.out_gain = nn.Parameter(torch.zeros(()))
        self.logvar_fourier = Fourier(logvar_width)
        self.logvar_linear = MPConv(logvar_width, 1)

    def raw(self, x: Tensor, noise: Tensor, cond: Tensor) -> Tensor:
        factors = iter(self.factors(self.embed(noise, cond)))
        x = self.activations(self.with_constants(x))
        skips: list[Tensor] = []
        for name, entry in _entries(self.encoder):
            x = entry(x) if name == "conv" else self.run(entry, x, next(factors))
            skips.append(x)
        for name, entry in _entries(self.decoder):
            if name.startswith("block"):
                x = mp_cat(x, skips.pop(), self.concat_balance)
            x = self.run(entry, x, next(factors))
        return self.out(x, self.out_gain).to(self.out_gain.dtype)

    def run(self, block: Block, x: Tensor, factors: Tensor) -> Tensor:
        if self.checkpointing and torch.is_grad_enabled():
            return checkpoint(block, x, factors, use_reentrant=False)
        return block(x, factors)

    def embed(self, noise: Tensor, cond: Tensor) -> Tensor:
        """Noise level and condition as one vector (B, emb_width)."""
        emb = self.noise(self.fourier(noise))
        if self.cond is not None:
            # The reference code multiplies by sqrt(cond_dim), so that one-hot class labels have unit size.
            emb = mp_sum(emb, self.cond(cond.to(emb.dtype) * math.sqrt(self.cond_dim)), self.label_balance)
        return mp_silu(emb)

    def factors(self, emb: Tensor) -> tuple[Tensor, ...]:
        """The factors per channel of all blocks (1 at the start of training), in order of use, as one matrix product."""
        blocks = self.blocks()
        gains = torch.cat([block.gain.expand(block.outputs) for block in blocks])  # (sum of outputs,)
        filters = unit_rows([block.emb for block in blocks]) * (gains / math.sqrt(emb.shape[1]))[:, None]
        return (F.linear(emb, filters) + 1).split([block.outputs for block in blocks], dim=1)

    def blocks(self) -> list[Block]:
        """In order of use."""
        return [entry for name, entry in _entries(self.encoder) + _entries(self.decoder) if name != "conv"]

    def with_constants(self, x: Tensor) -> Tensor:
        """Append a channel of ones, which replaces biases, and the coordinates if the network has them."""
        extra = [torch.ones_like(x[:, :1])]
        if self.coords is not None:
            extra.append(self.coords.to(x.dtype).expand(x.shape[0], -1, -1, -1))
        return torch.cat([x, *extra], dim=1)


_Level = tuple[int, int, bool]  # side, channels, and whether its blocks attend


def _build_encoder(
    inputs: int, levels: list[_Level], blocks: int, block: Callable[..., Block]
) -> tuple[nn.ModuleDict, list[int]]:
    """Levels from high to low resolution, and the channels of what each entry leaves for the decoder."""
    encoder, now = nn.ModuleDict(), levels[0][1]
    skips = [now]
    for side, width, attends in levels:
        level = nn.ModuleDict()
        if not encoder:
            level["conv"] = MPConv(inputs, width, kernel=3)
        else:
            level["down"] = block(now, now, side="encoder", resample="down")
            skips.append(now)
        for i in range(blocks):
            level[f"block{i}"] = block(now, width, side="encoder", attends=attends)
            skips.append(now := width)
        encoder[str(side)] = level
    return encoder, skips


def _build_decoder(skips: list[int], levels: list[_Level], blocks: int, block: Callable[..., Block]) -> nn.ModuleDict:
    """Levels from low to high resolution; each `block` takes one of the encoder's skips, latest first."""
    decoder, now = nn.ModuleDict(), levels[-1][1]
    for side, width, attends in reversed(levels):
        level = nn.ModuleDict()
        if not decoder:
            level["in0"] = block(now, now, side="decoder", attends=True)
            level["in1"] = block(now, now, side="decoder")
        else:
            level["up"] = block(now, now, side="decoder", resample="up")
        for i in range(blocks + 1):
            level[f"block{i}"] = block(now + skips.pop(), width, side="decoder", attends=attends)
            now = width
        decoder[str(side)] = level
    return decoder


def _entries(levels: nn.ModuleDict) -> list[tuple[str, Any]]:
    """(name inside its level, module), in order of use."""
    found: list[tuple[str, Any]] = []
    for level in levels.values():
        assert isinstance(level, nn.ModuleDict)
        found += level.items()
    return found


def coordinates(size: int) -> Tensor:
    """x and y of every pixel center in [-1, 1], (1, 2, size, size)."""
    line = (torch.arange(size) + 0.5) / size * 2 - 1
    return torch.stack(torch.meshgrid(line, line, indexing="xy"))[None]


def _check_levels(size: int, mult: Sequence[int], width: int, attention: Sequence[int], head_width: int) -> None:
    """Sides can be halved, and heads share the channels of a level that attends evenly."""
    if not mult or width < 1 or min(mult) < 1:
        raise UserError(f"A network needs a positive width and some levels, not {width} and {tuple(mult)}.")
    step = 2 ** (len(mult) - 1)
    if size < step or size % step:
        raise UserError(f"With {len(mult)} levels an image's side is a multiple of {step}, not {size}.")
    if head_width < 1:
        raise UserError(f"An attention head needs at least one channel, not {head_width}.")
    attending = {width * m for level, m in enumerate(mult) if size >> level in attention}
    for channels in sorted(attending | {width * mult[-1]}):
        if channels > head_width and channels % head_width:
            raise UserError(f"Heads of {head_width} channels do not divide the {channels} of a level that attends.")
