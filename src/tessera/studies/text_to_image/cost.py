"""What a study would cost, without weights and without running it: passes, arithmetic, bytes, minutes.

The network is built of tensors that have shapes but no content, and one pass of each kind is followed.
"""

import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from tessera.devices import synchronize
from tessera.errors import UserError
from tessera.files import read_json
from tessera.models.text_unet import TextUNet
from tessera.studies.text_to_image.build import (
    END,
    FULL,
    LONGEST,
    PAD_2,
    START,
    make_encoders,
    make_unet,
    make_vae,
    unet_config,
)
from tessera.studies.text_to_image.disentangle import groups_of
from tessera.studies.text_to_image.hooks import Site, chosen_blocks, recording
from tessera.studies.text_to_image.pipeline import (
    HUB_ID,
    INDEX,
    checked_size,
    find_pipeline,
    first_line,
    need_diffusers,
    quiet,
    root_of,
)

SDXL_NAME = "stabilityai/stable-diffusion-xl-base-1.0"
CLIP_WORDS = 49_408  # in the vocabulary of SDXL's text encoders
SPARE = 1.15  # device memory beyond what tensors hold: kernels' workspaces, fragments
GIB = 2**30


# -- following one pass ------------------------------------------------------------------------------------


class Peak(TorchDispatchMode):
    """Counts the bytes of all tensors made inside, and the most that lived at the same time."""

    def __init__(self) -> None:
        super().__init__()
        self.live, self.most = 0, 0
        self.known: dict[int, weakref.ref] = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        given = {key_of(each) for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor)}
        for tensor in tree_leaves(made):
            if isinstance(tensor, Tensor) and key_of(tensor) not in given:
                self.watch(tensor.untyped_storage())
        return made

    def watch(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        if key in self.known:
            return
        size = storage.nbytes()
        self.live += size
        self.most = max(self.most, self.live)

        def gone(_: weakref.ref) -> None:
            self.live -= size
            del self.known[key]

        self.known[key] = weakref.ref(storage, gone)


def key_of(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata


@dataclass(frozen=True)
class PassCost:
    """Of one latent: arithmetic and memory of the passes a study is made of."""

    weights: int  # bytes of all parts
    unet_weights: int  # bytes of the UNet alone
    parameters: int  # of the UNet
    forward_flops: int
    backward_flops: int
    forward_bytes: int  # most that a pass holds for each latent
    gradient_bytes: int  # the same while gradients are taken, one probe at a time
    decode_flops: int
    decode_bytes: int
    image_floats: int
    floats: dict[str, dict[str, int]]  # of one latent's features, by site and block


@dataclass(frozen=True)
class Parts:
    """Configurations of a pipeline's parts: enough to know what it costs."""

    unet: Mapping[str, Any]
    make_vae: Any
    make_encoders: Any


def parts_of(name: str | Path) -> Parts:
    """From a folder, from the hub's small files, or known: SDXL's own need nothing."""
    if str(name).partition("@")[0] == SDXL_NAME:
        words = {START: CLIP_WORDS - 2, END: CLIP_WORDS - 1, PAD_2: 0}
        vocabulary = dict.fromkeys(map(str, range(CLIP_WORDS - len(words))), 0) | words
        return Parts(unet_config(FULL), lambda: make_vae(FULL), lambda: make_encoders(FULL, vocabulary))
    folder = configs_at(name)
    return Parts(
        read_json(folder / "unet" / "config.json"),
        lambda: vae_from(folder),
        lambda: [encoder_from(path) for path in sorted(folder.glob("text_encoder*"))],
    )


def configs_at(name: str | Path) -> Path:
    """A local folder, or the JSON files of a hub repository."""
    where, revision = find_pipeline(name)
    if (Path(where) / INDEX).is_file():
        return Path(where)
    assert HUB_ID.fullmatch(str(name))
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(where, revision=revision or None, allow_patterns=["*.json"]))
    except Exception as error:  # the hub has a dozen kinds of failure, all of which mean: not available
        raise UserError(
            f"Could not fetch the configuration of {name}: {first_line(root_of(error))}"
        ) from error


def vae_from(folder: Path) -> nn.Module:
    from diffusers import AutoencoderKL

    with quiet():
        made: Any = AutoencoderKL.from_config(read_json(folder / "vae" / "config.json"))
    return made


def encoder_from(folder: Path) -> nn.Module:
    import transformers

    config = read_json(folder / "config.json")
    kind = getattr(transformers, config["architectures"][0])
    return kind(transformers.CLIPTextConfig.from_dict(config))


def pass_cost(
    name: str | Path,
    dtype: torch.dtype = torch.float32,
    *,
    size: tuple[int, int] | None = None,
    sites: Sequence[Site] = ("block",),
    layers: str | Sequence[str] = "*",
    gradients: bool = True,
    checkpoint: bool = False,
) -> PassCost:
    """Follow one forward pass, one with a gradient, and one decoding, on tensors without content."""
    need_diffusers()
    parts = parts_of(name)
    with FakeTensorMode(), quiet():
        with made_in(dtype):
            unet, encoders = make_unet(parts.unet), parts.make_encoders()
        vae = parts.make_vae()  # always in single precision
        net = TextUNet(unet, LONGEST)
        x, time_, cond = example(net, unet.config, size)
        with (
            torch.no_grad(),
            counting(chosen_blocks(unet, layers), sites) as floats,
            followed() as (work, peak),
        ):
            net(x, time_, cond)
        forward = work.get_total_flops(), peak.most
        backward = gradient_cost(net, x, time_, cond, checkpoint) if gradients else (0, 0)
        decoding = decode_cost(vae, x)
        weights = sum(bytes_of(part) for part in (unet, *encoders, vae))
    return PassCost(
        weights=weights,
        unet_weights=bytes_of(unet),
        parameters=sum(parameter.numel() for parameter in unet.parameters()),
        forward_flops=forward[0],
        backward_flops=backward[0],
        forward_bytes=forward[1],
        gradient_bytes=backward[1],
        decode_flops=decoding[0],
        decode_bytes=decoding[1],
        image_floats=decoding[2],
        floats=floats,
    )


@contextmanager
def counting(blocks: Mapping[str, nn.Module], sites: Sequence[Site]) -> Iterator[dict[str, dict[str, int]]]:
    """How many numbers one latent gives at each site of each block."""
    found: dict[str, dict[str, int]] = {site: dict.fromkeys(blocks, 0) for site in sites}

    def note(site: str, block: str, h: Tensor) -> None:
        found[site][block] = h[0].numel()

    with ExitStack() as stack:
        for site in sites:
            stack.enter_context(recording(blocks, site, partial(note, site), tokens=1))
        yield found


@contextmanager
def made_in(dtype: torch.dtype) -> Iterator[None]:
    """Weights without content cannot be converted; they are made in the right precision."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextmanager
def followed() -> Iterator[tuple[FlopCounterMode, Peak]]:
    with FlopCounterMode(display=False) as work, Peak() as peak:
        yield work, peak


def example(net: TextUNet, config: Any, size: tuple[int, int] | None) -> tuple[Tensor, Tensor, Tensor]:
    """A latent, its time and its condition."""
    factor, least = 8, 2 ** (len(config.block_out_channels) - 1)
    height, width = checked_size(size or (config.sample_size * factor,) * 2, factor, least)
    text, pooled, sizes = net.widths
    x = torch.zeros(1, config.in_channels, height // factor, width // factor)
    return x, torch.zeros(1), torch.zeros(1, net.tokens * text + pooled + sizes)


def gradient_cost(
    net: TextUNet, x: Tensor, time_: Tensor, cond: Tensor, checkpoint: bool = False
) -> tuple[int, int]:
    """Of one product with the Jacobian, while the forward pass is remembered for the next."""
    x = x.clone().requires_grad_()
    net.checkpointing = checkpoint
    with Peak() as peak, sdpa_kernel(SDPBackend.MATH):  # as `pixel_influence` has it
        out = net(x, time_, cond)
        with FlopCounterMode(display=False) as work:
            torch.autograd.grad(out[:, 0, 0, 0].sum(), x, retain_graph=True)
    return work.get_total_flops(), peak.most


def decode_cost(vae: nn.Module, x: Tensor) -> tuple[int, int, int]:
    """Arithmetic, memory, and numbers in the image."""
    decoder: Any = vae.eval()
    with torch.no_grad(), followed() as (work, peak):
        image = decoder.decode(x).sample
    return work.get_total_flops(), peak.most, image.numel()


def bytes_of(module: nn.Module) -> int:
    return sum(parameter.numel() * parameter.element_size() for parameter in module.parameters())


# -- a whole study -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Bill:
    """What a study takes: passes by kind, arithmetic, memory of the device and of the host."""

    passes: dict[str, int]
    flops: int
    device_bytes: int
    host_bytes: int
    groups: int = 1  # how often the same latents are listened to, because features do not fit at once

    def minutes(self, tflops: float) -> float:
        return self.flops / (tflops * 1e12) / 60

    def record(self, tflops: float, cost: PassCost) -> dict[str, Any]:
        shown = {key: value for key, value in asdict(cost).items() if key != "floats"}
        recorded = {
            site: {"blocks": len(each), "floats": sum(each.values())} for site, each in cost.floats.items()
        }
        return {
            "passes": self.passes,
            "pflop": self.flops / 1e15,
            "tflops": tflops,
            "minutes": self.minutes(tflops),
            "device_bytes": self.device_bytes,
            "host_bytes": self.host_bytes,
            "groups": self.groups,
            "one_pass": shown | {"recorded": recorded},
        }


def walk_passes(walks: int, steps: int, guidance: float) -> int:
    return walks * steps * (2 if guidance > 1 else 1)


def locality_bill(
    cost: PassCost,
    *,
    seeds: int,
    steps: int,
    guidance: float,
    levels: int,
    probes: int,
    words: int,
    word_levels: int,
    ways: int,
    batch: int,
    rows: int,
    memory: int = 0,
    channels: int = 4,
) -> Bill:
    """Walks, gradients (two passes more at each level find out what fits), words, and some images."""
    forward = {
        "walking": walk_passes(seeds, steps, guidance),
        "gradients, forward": levels * (seeds + 3) if probes else 0,
        "words": word_levels * seeds * (1 + words) * ways if words else 0,
    }
    backward = levels * seeds * probes * channels
    decodings = 1 + levels
    flops = sum(forward.values()) * cost.forward_flops + backward * cost.backward_flops
    passing = cost.forward_bytes * max(batch, rows, 1 + words)
    # What a gradient takes is found out with two latents; then as many go together as half the memory holds.
    together = max(2, min(seeds, memory // 2 // max(cost.gradient_bytes, 1)))
    held = max(passing, together * cost.gradient_bytes if probes else 0, cost.decode_bytes)
    return Bill(
        passes=forward | {"gradients, backward": backward, "decoding": decodings},
        flops=flops + decodings * cost.decode_flops,
        device_bytes=int(SPARE * (cost.weights + held)),
        host_bytes=0,
    )


def features_bill(
    cost: PassCost,
    *,
    site: Site,
    rows: int,
    prompts: int,
    seeds: int,
    steps: int,
    at: Sequence[int],
    guidance: float,
    null: int,
    outputs: bool,
    memory: int,
    batch: int,
    element: int,
) -> Bill:
    """`rows` are listened to, `prompts` of them are walked; features are held in groups that fit into `memory`."""
    sizes = {name: floats * rows * seeds * element for name, floats in cost.floats[site].items()}
    groups = groups_of(sizes, memory)
    held = max(sum(sizes[name] for name in group) for group in groups)
    recorded = len(at) * len(groups) * rows * seeds
    forward = {
        "walking": walk_passes(prompts * seeds, steps if outputs else max(at), guidance),
        "listening": recorded,
        "listening, untrained": recorded * null,
    }
    decodings = prompts * seeds if outputs else 0
    images = decodings * cost.image_floats * 4
    # One layer at a time goes back to the device, where its inner products are taken.
    at_once = max(max(sizes.values()), images)
    passing = cost.forward_bytes * batch + held // (rows * seeds) * batch
    weights = cost.weights + (
        cost.unet_weights if null else 0
    )  # an untrained network stands beside the trained
    return Bill(
        passes=forward | {"decoding": decodings},
        flops=sum(forward.values()) * cost.forward_flops + decodings * cost.decode_flops,
        device_bytes=int(SPARE * (weights + max(passing, at_once, cost.decode_bytes * bool(outputs)))),
        host_bytes=max(held, images),
        groups=len(groups),
    )


def added(bills: Sequence[Bill]) -> Bill:
    """Several studies, one after the other."""
    names = dict.fromkeys(name for bill in bills for name in bill.passes)
    return Bill(
        passes={name: sum(bill.passes.get(name, 0) for bill in bills) for name in names},
        flops=sum(bill.flops for bill in bills),
        device_bytes=max(bill.device_bytes for bill in bills),
        host_bytes=max(bill.host_bytes for bill in bills),
        groups=max(bill.groups for bill in bills),
    )


# -- speed -------------------------------------------------------------------------------------------------


def sustained_tflops(device: torch.device, dtype: torch.dtype, repeats: int = 3) -> float:
    """Arithmetic per second of one of SDXL's large transformer blocks, measured here and now."""
    from diffusers.models.attention import BasicTransformerBlock

    block: Any = BasicTransformerBlock(1280, 20, 64, cross_attention_dim=2048).to(device, dtype).eval()
    hidden = torch.randn(1, 1024, 1280, device=device, dtype=dtype)
    text = torch.randn(1, LONGEST, 2048, device=device, dtype=dtype)

    @torch.no_grad()
    def run() -> float:
        synchronize(device)
        begun = time.perf_counter()
        block(hidden, encoder_hidden_states=text)
        synchronize(device)
        return time.perf_counter() - begun

    with FlopCounterMode(display=False) as work:
        run()
    return work.get_total_flops() / min(run() for _ in range(repeats)) / 1e12
