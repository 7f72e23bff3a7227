"""What a study would cost before anything is loaded: passes of the UNet, arithmetic, minutes.

The UNet is built without content from its configuration, and `FlopCounterMode` follows one pass of each kind.
Text encoders and the decoding of latents are small beside it and not counted.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from rich.table import Table
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from tessera.analysis.feature_study import by_memory
from tessera.analysis.recording import record
from tessera.errors import UserError
from tessera.models.text_unet import TextUNet
from tessera.studies.text_to_image.blocks import Site, block_hooks
from tessera.studies.text_to_image.features import TextFeatureConfig
from tessera.studies.text_to_image.pipeline import checked_size, find_pipeline, need_diffusers, quiet, reason_of

TOKENS, FACTOR = 77, 8  # of CLIP's text encoder; pixels along one side of a latent's cell
_SDXL_NAME = "stabilityai/stable-diffusion-xl-base-1.0"
_SDXL_UNET: dict[str, Any] = {
    "sample_size": 128,
    "block_out_channels": (320, 640, 1280),
    "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
    "up_block_types": ("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
    "transformer_layers_per_block": (1, 2, 10),
    "attention_head_dim": (5, 10, 20),  # a historical name: it is the number of heads
    "use_linear_projection": True,
    "cross_attention_dim": 2048,
    "addition_embed_type": "text_time",
    "addition_time_embed_dim": 256,
    "projection_class_embeddings_input_dim": 2816,
}


@dataclass(frozen=True)
class PassCost:
    """Arithmetic of one latent's passes."""

    parameters: int
    unet_weights: int  # bytes
    forward_flops: int
    backward_flops: int = 0  # of one product with the Jacobian; the forward pass is remembered
    features: dict[Site, dict[str, int]] = field(default_factory=dict)  # bytes of one latent's features, by hook


def pass_cost(
    name: str | Path,
    dtype: torch.dtype = torch.float32,
    *,
    size: tuple[int, int] | None = None,
    sites: Sequence[Site] = (),
    layers: str = "*",
    gradients: bool = False,
    checkpoint: bool = False,
) -> PassCost:
    """Follow one forward pass and one with a gradient, on tensors without content."""
    need_diffusers()
    from diffusers import UNet2DConditionModel

    with torch.device("meta"), quiet():
        unet: Any = UNet2DConditionModel.from_config(_unet_config(name)).eval().requires_grad_(False).to(dtype)
        net = TextUNet(unet, TOKENS)
        example = _example(net, unet.config, size)
        with FlopCounterMode(display=False) as forward, torch.no_grad():
            net(*example)
        return PassCost(
            parameters=unet.num_parameters(),
            unet_weights=unet.num_parameters() * dtype.itemsize,
            forward_flops=forward.get_total_flops(),
            backward_flops=_backward_flops(net, *example, checkpoint) if gradients else 0,
            features={site: _feature_bytes(net, example, site, layers) for site in sites},
        )


def _unet_config(name: str | Path) -> Mapping[str, Any]:
    """From a folder, from a small file of the hub, or known: SDXL's own needs nothing."""
    from diffusers import UNet2DConditionModel

    if str(name).partition("@")[0] == _SDXL_NAME:
        return _SDXL_UNET
    where, revision = find_pipeline(name)
    try:
        return UNet2DConditionModel.load_config(where, subfolder="unet", revision=revision)
    except Exception as error:  # the hub has a dozen kinds of failure, all of which mean: not available
        raise UserError(f"Could not fetch the configuration of {name}: {reason_of(error, root=True)}") from error


def _example(net: TextUNet, config: Any, size: tuple[int, int] | None) -> tuple[Tensor, Tensor, Tensor]:
    """A latent, its time and its condition."""
    height, width = checked_size(size, config, FACTOR)
    text, pooled, sizes = net.widths
    x = torch.zeros(1, config.in_channels, height // FACTOR, width // FACTOR)
    return x, torch.zeros(1), torch.zeros(1, net.tokens * text + pooled + sizes)


def _backward_flops(net: TextUNet, x: Tensor, time: Tensor, cond: Tensor, checkpoint: bool) -> int:
    x = x.clone().requires_grad_()
    net.checkpointing = checkpoint
    with sdpa_kernel(SDPBackend.MATH):  # as `pixel_influence` has it
        out = net(x, time, cond)
        with FlopCounterMode(display=False) as backward:
            torch.autograd.grad(out[:, 0, 0, 0].sum(), x, retain_graph=True)
    return backward.get_total_flops()


def _feature_bytes(net: TextUNet, example: Any, site: Site, layers: str) -> dict[str, int]:
    own = 1 if site != "maps" else TOKENS  # of attention maps one token's is kept
    hooks = block_hooks(net.unet, site, layers)
    with record(net, hooks, keep=lambda rows: rows.nbytes // own) as activations, torch.no_grad():
        net(*example)
    return {name: sum(sizes) for name, sizes in activations.items()}


# -- a whole study -----------------------------------------------------------------------------------------


def sampling_passes(samples: int, steps: int, guidance: float) -> int:
    return samples * steps * (2 if guidance > 1 else 1)


def feature_passes(config: TextFeatureConfig, cost: PassCost) -> dict[str, int]:
    """Passes of `text_features`, by kind."""
    latents = len(config.rows) * len(config.seeds)
    groups = len(list(by_memory(cost.features[config.site], latents, config.memory)))
    recorded = groups * len(config.at) * latents
    return {
        "sampling": sampling_passes(len(config.sampled) * len(config.seeds), config.last_step, config.guidance),
        "recording": recorded,
        "recording, untrained": recorded * config.null,
    }


def study_cost(cost: PassCost, passes: Mapping[str, int], tflops: float) -> dict[str, Any]:
    """What so many passes of single latents cost, by kind; those called backward are products with the Jacobian."""
    flops = 0
    for kind, count in passes.items():
        flops += count * (cost.backward_flops if kind.endswith("backward") else cost.forward_flops)
    return {
        "passes": dict(passes),
        "pflop": flops / 1e15,
        "tflops": tflops,
        "minutes": flops / (tflops * 1e12) / 60,
        "one_pass": {name: number for name, number in asdict(cost).items() if name != "features"},
    }


def cost_table(found: Mapping[str, Any], title: str | None = None) -> Table:
    """Of `study_cost`."""
    table = Table("what", "how much", title=title)
    for name, count in found["passes"].items():
        table.add_row(f"passes: {name}", f"{count:,}")
    table.add_row("arithmetic", f"{found['pflop']:,.2f} PFLOP")
    table.add_row("time", f"{found['minutes']:,.1f} minutes at {found['tflops']:.3g} TFLOP/s")
    table.add_row("weights of the UNet", f"{found['one_pass']['unet_weights'] / 2**30:.1f} GiB")
    return table
