"""Models trained with diffusers (`UNet2DModel`, `UNet2DConditionModel`, a scheduler) as denoisers."""

from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tessera.conditioning import Conditioner, SpatialConditioner
from tessera.errors import UserError, needs_extra
from tessera.files import read_json
from tessera.models.adapters import FromVelocity, from_prediction
from tessera.models.model import Model

_UNETS = ("UNet2DModel", "UNet2DConditionModel")
_SMALLEST_SIGNAL = 1e-8  # of the share a_t; a schedule with no signal at its end has no finite sigma there


def from_diffusers(
    unet: nn.Module,
    scheduler: Any,
    conditioner: Conditioner,
    *,
    size: int | None = None,
    max_train_objects: int | None = None,
) -> Model:
    """A diffusers network in pixels as a `Model`, whose denoiser keeps the convention x = clean + sigma * noise.

    The scheduler says what the network predicts (`prediction_type` epsilon, v_prediction or sample) and how much
    noise each of its times has (`alphas_cumprod`, for any `beta_schedule`); a scheduler of flow matching has
    x = (1 - t) clean + t noise and predicts noise - clean. How the condition enters is read off the network's config:

    - more input than output channels: `conditioner.as_map(cond)`, resized, as the extra channels;
    - class embeddings: `cond` as `class_labels`; with `num_class_embeds`, a condition of one number, the class;
    - cross-attention: `cond` as `encoder_hidden_states`, (B, dim / cross_attention_dim, cross_attention_dim);
    - none of these: not at all.

    A conditioner with a method `unet_inputs(cond)` decides instead: it returns keyword arguments of the network.

    Args:
        unet: a `UNet2DModel` or `UNet2DConditionModel`, in pixels from -1 to 1.
        scheduler: the scheduler it was trained with.
        conditioner: what turns prompts into its conditions.
        size: side of its images, where the network's config does not say.
        max_train_objects: most objects in a training scene; the paper's rule for K_max depends on it.

    Returns:
        A `Model` on the device of the network.

    Example:
        >>> import tessera
        >>> from diffusers import DDPMScheduler, UNet2DModel
        >>> from tessera.conditioning import LocationGrid
        >>> widths = {"block_out_channels": (8,), "down_block_types": ("DownBlock2D",), "up_block_types": ("UpBlock2D",)}
        >>> unet = UNet2DModel(32, in_channels=4, out_channels=3, norm_num_groups=4, layers_per_block=1, **widths)
        >>> tessera.from_diffusers(unet, DDPMScheduler(), LocationGrid()).sample([(0.65, 0.65)], steps=2).shape
        torch.Size([1, 3, 32, 32])
    """
    config: Any = unet.config
    size = size or config.sample_size
    if isinstance(size, list | tuple) and len(set(size)) == 1:
        size = size[0]
    if not isinstance(size, int):
        raise UserError(f"The network's images are {size} pixels: name the side of a square, size=64.")
    if config.out_channels != 3:
        raise UserError(
            f"This network has {config.out_channels} output channels, not the three of an image; for latents "
            "use the verbs `tessera t2i`."
        )
    network = _ConditionedUNet(unet, conditioner)
    denoiser = _denoiser(network, scheduler).eval().requires_grad_(False)
    denoiser.to(next(unet.parameters()).device)
    facts = {"kind": type(unet).__name__, "size": size, "scheduler": type(scheduler).__name__}
    return Model(denoiser, conditioner, config={"denoiser": facts}, max_train_objects=max_train_objects)


def _denoiser(network: "_ConditionedUNet", scheduler: Any) -> nn.Module:
    if hasattr(scheduler, "alphas_cumprod"):
        alphas = scheduler.alphas_cumprod.double().clamp(min=_SMALLEST_SIGNAL)
        alphas = alphas[: int((alphas > _SMALLEST_SIGNAL).sum())]
        return from_prediction(scheduler.config.prediction_type, network, alphas, whole_times=True)
    if type(scheduler).__name__.startswith("FlowMatch"):
        network.times = scheduler.config.num_train_timesteps  # the network's time runs to here, ours to 1
        return FromVelocity(network, data_at=0)
    raise UserError(f"A {type(scheduler).__name__} has no `alphas_cumprod` and is none of flow matching.")


class _ConditionedUNet(nn.Module):
    """A diffusers UNet as a function of (x, time, cond), for cond (B, dim) or None."""

    def __init__(self, unet: nn.Module, conditioner: Conditioner):
        super().__init__()
        self.unet, self.conditioner, self.times = unet, conditioner, 1
        self.route = "own" if hasattr(conditioner, "unet_inputs") else _route(unet.config, conditioner)

    @property
    def network(self) -> nn.Module:
        """The network inside, whose modules can be recorded."""
        return self.unet

    def forward(self, x: Tensor, time: Tensor, cond: Any = None) -> Tensor:
        if cond is None:
            cond = self.conditioner.at((), device=x.device).expand(len(x), -1)
        cond, given = cond.to(x), {}
        if self.route == "own":
            given = self.conditioner.unet_inputs(cond)  # type: ignore[attr-defined]
        elif self.route == "channels":
            assert isinstance(self.conditioner, SpatialConditioner)
            maps = F.interpolate(self.conditioner.as_map(cond), size=x.shape[-2:])  # (B, channels, H, W)
            x = torch.cat([x, maps], dim=1)
        elif self.route == "class_labels":
            number = getattr(self.unet.config, "num_class_embeds", None)
            given = {"class_labels": cond[:, 0].round().long() if number else cond}
        if cross := getattr(self.unet.config, "cross_attention_dim", None):
            tokens = cond if self.route == "tokens" else cond.new_zeros(len(x), cross)
            given.setdefault("encoder_hidden_states", tokens.unflatten(1, (-1, cross)))
        return self.unet(x, time * self.times, return_dict=False, **given)[0]


def _route(config: Any, conditioner: Conditioner) -> str:
    """How conditions enter a network: `channels`, `class_labels`, `tokens` or `none`."""
    extra, dim = config.in_channels - config.out_channels, conditioner.dim
    if extra:
        if not isinstance(conditioner, SpatialConditioner) or conditioner.map_channels != extra:
            raise UserError(f"The network takes {extra} extra channels, and this conditioner's map has others.")
        return "channels"
    if getattr(config, "num_class_embeds", None):
        if dim != 1:
            raise UserError(f"The network takes one class per image, and this condition has {dim} numbers.")
        return "class_labels"
    if getattr(config, "class_embed_type", None):
        return "class_labels"
    cross = getattr(config, "cross_attention_dim", None) if dim else None
    if cross and dim % cross == 0:
        return "tokens"
    if dim:
        raise UserError(
            f"A condition of {dim} numbers has no way into this network: its config has no extra channels, "
            f"class embeddings or cross-attention of a width that divides {dim}."
        )
    return "none"


# -- folders -----------------------------------------------------------------------------------------------


def is_diffusers_folder(path: Path | str) -> bool:
    """Whether a folder holds a UNet in the format of diffusers, at its top or under `unet`."""
    return _unet_folder(Path(path)) is not None


def load_diffusers(folder: Path | str, conditioner: Conditioner, *, size: int | None = None) -> Model:
    """The network and scheduler in a folder as a model; weights are read from safetensors only."""
    with needs_extra("Models of diffusers need one more extra", "t2i", "diffusers"):
        import diffusers
    folder = Path(folder)
    unet_folder = _unet_folder(folder)
    scheduler_folder = _folder_with(folder, "scheduler", "scheduler_config.json")
    if unet_folder is None:
        raise UserError(f"{folder} holds no UNet in the format of diffusers.")
    if scheduler_folder is None:
        raise UserError(f"{folder} holds no scheduler_config.json: save the scheduler of training there.")
    unet_class = read_json(unet_folder / "config.json")["_class_name"]
    scheduler_class = read_json(scheduler_folder / "scheduler_config.json").get("_class_name", "DDPMScheduler")
    try:
        unet = getattr(diffusers, unet_class).from_pretrained(unet_folder, use_safetensors=True)
        scheduler = getattr(diffusers, scheduler_class).from_pretrained(scheduler_folder)
    except (OSError, ValueError, AttributeError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise UserError(f"The model in {folder} could not be read: {reason}") from error
    return from_diffusers(unet, scheduler, conditioner, size=size)


def _unet_folder(folder: Path) -> Path | None:
    found = _folder_with(folder, "unet", "config.json")
    return found if found and read_json(found / "config.json").get("_class_name") in _UNETS else None


def _folder_with(folder: Path, name: str, file: str) -> Path | None:
    """Which of a folder's own folder `name` and the folder itself holds such a file, if any."""
    return next((here for here in (folder / name, folder) if (here / file).is_file()), None)
