"""A text-to-image pipeline taken apart: text to conditions, latents to cleaner latents, latents to images."""

import contextlib
import copy
import logging
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from tessera.analysis.pixel_influence import slices
from tessera.errors import UserError, needs_extra
from tessera.files import read_json
from tessera.models.adapters import from_prediction
from tessera.models.contract import Denoiser
from tessera.models.model_folder import HUB_ID
from tessera.models.text_unet import TextCondition, TextUNet
from tessera.sampling.guidance import guided
from tessera.sampling.sample import matched
from tessera.sampling.schedule import seeded_noise
from tessera.sampling.solvers import SamplingStep, euler
from tessera.sampling.trajectory import Trajectory, collect

Nothing = Literal["default", "empty", "zeros"]
_INDEX = "model_index.json"


class Sdxl:
    """A loaded pipeline. Its denoiser keeps the one contract, so any sampler and measure runs on it."""

    def __init__(self, pipe: Any, name: str = "", size: tuple[int, int] | None = None):
        _check_pipeline(pipe, name)
        self.pipe, self.unet, self.vae = pipe, pipe.unet, pipe.vae
        self.tokenizers = _parts_called(pipe, ("tokenizer", "tokenizer_2"))
        self.encoders = _parts_called(pipe, ("text_encoder", "text_encoder_2"))
        for part in (self.unet, self.vae, *self.encoders):
            part.eval().requires_grad_(False)  # or every backward pass would fill gradients of all weights
        self.device, self.dtype = self.unet.device, self.unet.dtype
        self.exact = torch.promote_types(self.dtype, torch.float32)  # precision outside the network: at least single
        self.net = TextUNet(self.unet, self.tokenizers[0].model_max_length)
        self.has_pooled = self.net.widths[1] > 0
        factor = int(pipe.vae_scale_factor)  # pixels along one side of a latent's cell
        self.size = checked_size(size, self.unet.config, factor)  # (height, width) in pixels
        self.latent = (self.unet.config.in_channels, self.size[0] // factor, self.size[1] // factor)  # (C, H, W)

    def chosen_nothing(self, nothing: Nothing) -> Nothing:
        """What guidance moves away from, where `default` is what the pipeline's own does."""
        if nothing != "default":
            return nothing
        return "zeros" if getattr(self.pipe.config, "force_zeros_for_empty_prompt", False) else "empty"

    def twin(self, unet: nn.Module, encoders: Sequence[nn.Module] = ()) -> "Sdxl":
        """The same around another network of its kind, and other text encoders if some are given."""
        other = copy.copy(self)
        other.unet, other.net = unet, TextUNet(unet, self.net.tokens)
        other.encoders = list(encoders or self.encoders)
        other.__dict__.pop("plain", None)  # it was made around the first network
        return other

    # -- text ----------------------------------------------------------------------------------------------

    def conditioner(self, prompts: str | Sequence[str]) -> Tensor:
        """Conditions (B, dim) for prompts."""
        prompts = [prompts] if isinstance(prompts, str) else list(prompts)
        unique = list(dict.fromkeys(prompts))
        rows = torch.tensor([unique.index(prompt) for prompt in prompts], device=self.device)
        return self.encode(unique).row()[rows]

    def unconditional(self, nothing: Nothing = "default") -> Tensor:
        """The condition (1, dim) that guidance moves away from: the empty prompt's, or embeddings that are all zero."""
        empty = self.encode([""])
        if self.chosen_nothing(nothing) == "zeros":
            pooled = None if empty.pooled is None else torch.zeros_like(empty.pooled)
            empty = empty._replace(sequence=torch.zeros_like(empty.sequence), pooled=pooled)
        return empty.row()

    def tokens(self, prompt: str) -> list[str]:
        """The prompt's own tokens, as text, without start, end and padding."""
        with quiet():
            numbers = self.tokenizers[0](prompt, add_special_tokens=False).input_ids
        return self.tokenizers[0].convert_ids_to_tokens(numbers)

    @torch.no_grad()
    def encode(self, prompts: list[str]) -> TextCondition:
        """The network's condition for B prompts, at least in single precision."""
        for prompt in prompts:
            length = len(self.tokens(prompt)) + 2  # its start and its end
            if length > self.net.tokens:
                raise UserError(
                    f'The prompt "{prompt[:40]}..." has {length} tokens with its start and end;'
                    f" the text encoder reads {self.net.tokens}."
                )
        sequences, pooled = [], None
        for tokenizer, encoder in zip(self.tokenizers, self.encoders):
            padded = tokenizer(prompts, padding="max_length", max_length=self.net.tokens, return_tensors="pt")
            encoded = encoder(padded.input_ids.to(self.device), output_hidden_states=self.has_pooled)
            # SDXL uses the last layer but one, and the second encoder's projection of the end token.
            sequences.append(encoded.hidden_states[-2] if self.has_pooled else encoded.last_hidden_state)
            pooled = encoded[0] if self.has_pooled else None
        sequence = torch.cat(sequences, dim=-1).to(self.exact)
        if pooled is None:
            return TextCondition(sequence, None, None)
        sizes = torch.tensor([*self.size, 0, 0, *self.size], dtype=self.exact, device=self.device)
        return TextCondition(sequence, pooled.to(self.exact), sizes.expand(len(prompts), -1))

    # -- denoising -----------------------------------------------------------------------------------------

    @cached_property
    def plain(self) -> Denoiser:
        """The conditional network, without guidance."""
        scheduler = self.pipe.scheduler
        kind = scheduler.config.prediction_type
        return from_prediction(kind, self.net, scheduler.alphas_cumprod).to(self.device)

    def denoiser(self, guidance: float = 1.0, nothing: Nothing = "default") -> Denoiser:
        """The denoiser of latents x = clean + sigma * noise, guided away from `nothing` by more than 1."""
        if guidance <= 1:
            return self.plain
        unconditional = self.unconditional(nothing)

        def weaker(x: Tensor, sigma: Tensor, cond: Any = None) -> Tensor:
            return self.plain(x, sigma, unconditional.expand(len(x), -1))

        return guided(self.plain, weaker, guidance)

    def sigmas(self, steps: int) -> Tensor:
        """Noise levels (steps + 1,) of the pipeline's schedule, falling to 0."""
        return self.schedule(steps).sigmas.float().cpu()

    def schedule(self, steps: int) -> Any:
        from diffusers import EulerDiscreteScheduler

        if steps < 1:
            raise UserError(f"Sampling needs at least one step, not {steps}.")
        with quiet():  # the noise levels of the pipeline's own schedule, whatever its solver
            schedule = EulerDiscreteScheduler.from_config(self.pipe.scheduler.config)
            schedule.set_timesteps(steps)
        return schedule

    def start(self, seeds: Sequence[int], steps: int) -> Tensor:
        """Where sampling in so many steps begins, one seed per latent: (B, C, H, W)."""
        noise = seeded_noise(seeds, self.latent, self.device).to(self.exact)
        return noise * float(self.schedule(steps).init_noise_sigma)

    def trajectory(
        self,
        cond: Tensor,
        *,
        steps: int = 50,
        seeds: Sequence[int] = range(1),
        guidance: float = 5.0,
        nothing: Nothing = "default",
        keep: Sequence[int] | None = None,
        batch: int | None = None,
        advance: Callable[[], Any] = lambda: None,
    ) -> Trajectory:
        """Latents of Euler's method at the steps `keep`, counted from 0; by default at step `steps`, the samples.

        `cond` is (len(seeds), dim) or (1, dim). Nothing after the last step kept is computed.
        """
        if not len(seeds):
            raise UserError("At least one seed is needed.")
        keep = (steps,) if keep is None else keep
        sigmas = self.sigmas(steps)[: max(keep) + 1]
        given: Any = matched(cond, len(seeds))
        denoise = self.denoiser(guidance, nothing)

        def batches() -> Iterator[Iterator[SamplingStep]]:
            for rows in slices(len(seeds), batch or len(seeds)):
                yield euler(partial(denoise, cond=given[rows]), self.start(seeds[rows], steps), sigmas)
                advance()

        return collect(batches(), keep)

    @torch.no_grad()
    def decode(self, latents: Tensor) -> Tensor:
        """Images (B, 3, H, W) in [-1, 1] from latents, one at a time in single precision: half overflows."""
        with quiet():
            self.vae.to(self.exact)
        scaled = latents.to(self.exact) / self.vae.config.scaling_factor
        return torch.cat([self.vae.decode(one).sample.clamp(-1, 1) for one in scaled.split(1)])


# -- loading -----------------------------------------------------------------------------------------------


def load_sdxl(
    name: str | Path,
    device: Any = None,
    dtype: torch.dtype = torch.float32,
    *,
    size: tuple[int, int] | None = None,
    variant: str | None = None,
) -> Sdxl:
    """The pipeline in a diffusers folder, never touching the net, or behind a hub id such as `someone/model@revision`.

    `size` is (height, width) in pixels, by default that of its training. Weights are read from safetensors only.
    """
    need_diffusers()
    where, revision = find_pipeline(name)
    pipe = _read_pipeline(where, torch_dtype=dtype, revision=revision, variant=variant)
    return Sdxl(pipe.to(device or "cpu"), str(name), size)


def _read_pipeline(where: str, **options: Any) -> Any:
    """From a folder or the hub, or one sentence about why not."""
    local = Path(where).is_dir()
    with quiet():
        try:
            pipe = need_diffusers().from_pretrained(where, use_safetensors=True, local_files_only=local, **options)
        except Exception as error:  # a dozen kinds of failure, all of which mean: not to be had
            attempt = f"load {where}" if local else f"fetch {where} from the hub"
            raise UserError(f"Could not {attempt}: {reason_of(error, root=not local)}") from error
    pipe.set_progress_bar_config(disable=True)
    return pipe


def reason_of(error: BaseException, root: bool) -> str:
    """The first line of an error, or of the one at its root: hub libraries wrap it several times."""
    while root and (inner := error.__cause__ or error.__context__) is not None:
        error = inner
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def need_diffusers() -> Any:
    """The pipelines of diffusers, or one sentence about how to get them."""
    with needs_extra("SDXL needs some more packages", "t2i", "transformers", "diffusers"), quiet():
        import transformers  # noqa: F401
        from diffusers import DiffusionPipeline
    return DiffusionPipeline


def find_pipeline(name: str | Path) -> tuple[str, str | None]:
    """A folder, or a hub id and its revision."""
    path = Path(name).expanduser()
    if (path / _INDEX).is_file():
        index = read_json(path / _INDEX)
        if not isinstance(index, dict) or "unet" not in index:
            raise UserError(f"The pipeline in {path} has no UNet; SDXL, SD 1.5 and their kin have one.")
        return str(path), None
    if path.exists():
        raise UserError(f"{path} is no diffusers folder: it has no {_INDEX}.")
    if not HUB_ID.fullmatch(str(name)):
        raise UserError(f"There is no folder {name}, and it is no hub id such as someone/model.")
    repo, _, revision = str(name).partition("@")
    return repo, revision or None


def _parts_called(pipe: Any, names: Sequence[str]) -> list[Any]:
    """Those of a pipeline's parts that it has."""
    return [part for name in names if (part := getattr(pipe, name, None)) is not None]


def _check_pipeline(pipe: Any, name: str) -> None:
    """Only text-to-latent networks of the UNet2DConditionModel kind are understood."""
    unet: Any = getattr(pipe, "unet", None)
    if type(unet).__name__ != "UNet2DConditionModel":
        raise UserError(f"{name} has no UNet2DConditionModel; SDXL, SD 1.5 and their kin have one.")
    if unet.config.in_channels != unet.config.out_channels:
        raise UserError(
            f"{name} takes {unet.config.in_channels} channels and gives {unet.config.out_channels};"
            " networks for inpainting are not understood."
        )
    if unet.config.addition_embed_type not in (None, "text_time"):
        raise UserError(
            f"{name} is conditioned on more than text ({unet.config.addition_embed_type}), which is not understood."
        )


def checked_size(size: tuple[int, int] | None, config: Any, factor: int) -> tuple[int, int]:
    """(height, width) in pixels, by default that of training, which the network's two halves must be able to share."""
    height, width = size or (config.sample_size * factor,) * 2
    unit = factor * 2 ** (len(config.block_out_channels) - 1)
    if any(side < unit or side % unit for side in (height, width)):
        raise UserError(f"Sides of this model's images are multiples of {unit} pixels, not {height} x {width}.")
    return height, width


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Libraries that talk about torchvision, deprecations, long prompts and local files are silenced for a while.

    So are their progress bars, but for those of downloads.
    """
    with warnings.catch_warnings(), contextlib.ExitStack() as stack:
        warnings.simplefilter("ignore")
        stack.callback(logging.disable, logging.root.manager.disable)
        logging.disable(logging.WARNING)
        for library in ("diffusers", "transformers"):
            bars: Any = sys.modules.get(f"{library}.utils.logging")
            if bars and bars.is_progress_bar_enabled():
                stack.callback(bars.enable_progress_bar)
                bars.disable_progress_bar()
        yield
