"""Text-conditioned latent networks (SDXL, SD 1.5 and others) as denoisers.

A condition is one row of numbers, so that samplers and locality measures take it like any other: the text
encoders' sequence, then (SDXL only) their pooled vector and the six numbers about the image's size.
"""

from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from tessera.errors import UserError

SIZES = 6  # numbers about an image's size: original (h, w), crop (top, left), target (h, w)
_FAST = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.CUDNN_ATTENTION, SDPBackend.MATH]


class TextCondition(NamedTuple):
    """The parts of conditions of B rows."""

    sequence: Tensor  # (B, tokens, width)
    pooled: Tensor | None  # (B, P), where the network takes one
    sizes: Tensor | None  # (B, 6)

    def row(self) -> Tensor:
        """All of it side by side, (B, dim)."""
        parts = [part.flatten(1) for part in self if part is not None]
        return torch.cat(parts, dim=1)


class TextUNet(nn.Module):
    """A UNet2DConditionModel whose condition is one row of numbers per latent; it predicts noise or v."""

    def __init__(self, unet: nn.Module, tokens: int):
        super().__init__()
        self.unet, self.tokens = unet, tokens

    @property
    def network(self) -> nn.Module:
        """The network inside, whose modules can be recorded."""
        return self.unet

    @property
    def widths(self) -> tuple[int, int, int]:
        """Width of the sequence, of the pooled vector, and how many numbers about sizes there are."""
        config: Any = self.unet.config
        if config.addition_embed_type != "text_time":
            return config.cross_attention_dim, 0, 0
        pooled = config.projection_class_embeddings_input_dim - SIZES * config.addition_time_embed_dim
        return config.cross_attention_dim, pooled, SIZES

    @property
    def checkpointing(self) -> bool:
        """Whether blocks are recomputed in backward passes."""
        return bool(getattr(self.unet, "is_gradient_checkpointing", False))

    @checkpointing.setter
    def checkpointing(self, wanted: bool) -> None:
        unet: Any = self.unet
        (unet.enable_gradient_checkpointing if wanted else unet.disable_gradient_checkpointing)()

    def parts(self, cond: Tensor) -> TextCondition:
        """Rows (B, dim) split into their parts."""
        width, pooled, sizes = self.widths
        ends = [self.tokens * width, pooled, sizes]
        if cond.ndim != 2 or cond.shape[1] != sum(ends):
            raise UserError(f"This network takes conditions (B, {sum(ends)}), not {tuple(cond.shape)}.")
        text, vector, numbers = cond.split(ends, dim=1)
        sequence = text.unflatten(1, (self.tokens, width))
        return TextCondition(sequence, vector, numbers) if pooled else TextCondition(sequence, None, None)

    def forward(self, x: Tensor, time: Tensor, cond: Tensor) -> Tensor:
        dtype = next(self.unet.parameters()).dtype
        given = self.parts(cond.to(dtype))
        added = None if given.pooled is None else {"text_embeds": given.pooled, "time_ids": given.sizes}
        # Measures that batch gradients ask for plain attention, whose memory grows with the fourth power of the
        # image's side; gradients are taken one by one here, so the frugal kernels may stay. Blocks that are
        # recomputed in the backward pass must find there what they had, and hold one attention at a time.
        with nullcontext() if self.checkpointing else sdpa_kernel(_FAST):
            output = self.unet(x.to(dtype), time, given.sequence, added_cond_kwargs=added, return_dict=False)
        return output[0].to(x.dtype)
