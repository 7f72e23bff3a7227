"""Names and layouts of the reference EDM2 code, so that ours can be compared with its weights and outputs."""

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import Tensor

from tessera.errors import UserError
from tessera.models.edm2 import EDM2
from tessera.models.ema import std_to_exponent

_ARGUMENTS = {
    "img_resolution": "size",
    "img_channels": "channels",
    "label_dim": "cond_dim",
    "model_channels": "width",
    "channel_mult": "mult",
    "channel_mult_noise": "noise_mult",
    "channel_mult_emb": "emb_mult",
    "num_blocks": "blocks",
    "attn_resolutions": "attention",
    "channels_per_head": "head_width",
    "resample_filter": "resample_filter",
    "label_balance": "label_balance",
    "concat_balance": "concat_balance",
    "res_balance": "residual_balance",
    "attn_balance": "attention_balance",
    "clip_act": "clip",
    "sigma_data": "sigma_data",
    "logvar_channels": "logvar_width",
    "dropout": "dropout",
}
_TOP = {
    "unet.out_gain": "out_gain",
    "unet.out_conv.weight": "out.weight",
    "unet.emb_noise.weight": "noise.weight",
    "unet.emb_label.weight": "cond.weight",
    "unet.emb_fourier.freqs": "fourier.freqs",
    "unet.emb_fourier.phases": "fourier.phases",
}
_INSIDE = {
    "emb_gain": "gain",
    "conv_res0.weight": "res0.weight",
    "conv_res1.weight": "res1.weight",
    "conv_skip.weight": "skip.weight",
    "emb_linear.weight": "emb.weight",
    "attn_qkv.weight": "qkv.weight",
    "attn_proj.weight": "proj.weight",
    "weight": "weight",  # the first convolution, which is not a block
}
_SIDES = {"enc": "encoder", "dec": "decoder"}


def from_reference(config: Mapping[str, Any], state: Mapping[str, Tensor]) -> EDM2:
    """The same network from constructor arguments and weights under the names of the reference code."""
    model = EDM2(**our_config(config))
    model.load_state_dict(our_state(state, model))
    return model


def our_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Constructor arguments under our names; `use_fp16` is a matter of running, not of the network."""
    unknown = set(config) - set(_ARGUMENTS) - {"use_fp16"}
    if unknown:
        raise UserError(f"The reference network has no argument {', '.join(sorted(unknown))}.")
    return {_ARGUMENTS[name]: value for name, value in config.items() if name in _ARGUMENTS}


def our_name(name: str) -> str:
    """`unet.enc.64x64_block0.conv_res0.weight` is our `encoder.64.block0.res0.weight`."""
    entry = re.fullmatch(r"unet\.(enc|dec)\.(\d+)x\2_(\w+)\.(.+)", name)
    if entry is None:
        return _TOP.get(name, name)
    side, resolution, location, rest = entry.groups()
    return f"{_SIDES[side]}.{resolution}.{location}.{_INSIDE.get(rest, rest)}"


def our_state(state: Mapping[str, Tensor], model: EDM2) -> dict[str, Tensor]:
    """Weights, or gradients, or averages of weights, in our names and layouts."""
    heads = {name: getattr(module, "heads", 0) for name, module in model.named_modules()}
    renamed = {our_name(name): value for name, value in state.items()}
    return {name: our_layout(name, value, heads.get(name[: -len(".qkv.weight")], 0)) for name, value in renamed.items()}


def our_layout(name: str, value: Tensor, heads: int) -> Tensor:
    """(out, in, k, k) to (out, k k in); in qkv the fastest row index (q, k or v) becomes the slowest."""
    if value.ndim == 4:
        value = value.permute(0, 2, 3, 1).flatten(1)
    if name.endswith("qkv.weight"):
        value = value.unflatten(0, (heads, -1, 3)).permute(2, 0, 1, 3).flatten(0, 2)
    return value.contiguous()


def response(std: float, now: int, length: int) -> np.ndarray:
    """Weight of each of the steps 0 .. length - 1 in the average at step `now`, summing to 1."""
    steps = np.arange(length, dtype=np.float64)
    weights = np.where(steps <= now, steps ** std_to_exponent(std), 0.0)
    return weights / weights.sum()
