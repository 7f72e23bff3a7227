"""Pixel influence (Eq. 9): how strongly each input pixel moves a probed output pixel, for many probes at once.

An image's Jacobian is never formed. Probes and channels become vectors of vector-Jacobian products, several of
which share one backward pass, as many as a budget of memory allows.
"""

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from tessera.conditioning.labels import check_location
from tessera.errors import UserError
from tessera.models.contract import Denoiser
from tessera.models.model import Model
from tessera.models.precondition import per_image

Method = Literal["auto", "vmap", "rows", "loop"]
Pairs = Literal["same", "all"]
_ALIVE = 0.75  # of what a forward pass keeps, what one backward pass holds at a time; an EDM2 takes about 0.66
_UNREACHED = "Gradients do not reach the input: the denoiser detaches it, or computes where gradients are switched off."


class Pixel(NamedTuple):
    row: int
    col: int


@dataclass(frozen=True)
class GradientConfig:
    """How gradients are computed, which changes the numbers by no more than rounding.

    `vmap` shares one forward pass among all probes and several probes per backward. `rows` gives every probe an
    image of its own, which is best where an output pixel is cheap alone. `loop` is one call per probe and
    channel, for networks whose backward pass cannot be batched. `auto` chooses: rows for networks that offer
    `clean_pixels`, one call at a time on a CPU (after one forward for all), otherwise vmap.
    """

    method: Method = "auto"
    memory: int = 2**30  # bytes for what forward and backward passes hold
    checkpoint: bool = False  # recompute the inside of blocks, where the network can


PLAIN = GradientConfig()


def memory_bytes(gib: float) -> int:
    """A budget in GiB as bytes."""
    if not 0 < gib < math.inf:
        raise UserError(f"A budget of memory is a positive number of GiB, not {gib:g}.")
    return max(1, int(gib * 2**30))


def pixel_of(location: Sequence[float], height: int, width: int) -> Pixel:
    """The pixel that holds a location (x, y) in [0, 1]; right and bottom edges belong to the last one."""
    x, y = check_location(location)
    return Pixel(min(int(y * height), height - 1), min(int(x * width), width - 1))


# -- Eq. 9 -------------------------------------------------------------------------------------------------


def pixel_influence(
    denoise: Denoiser,
    x: Tensor,
    sigma: Tensor | float,
    cond: Any = None,
    *,
    at: Sequence[tuple[int, int]],
    pairs: Pairs = "same",
    how: GradientConfig = PLAIN,
) -> Tensor:
    """Eq. 9 before its mean over images: x (N, C, H, W) at levels () or (N,), P probes: (N, P, H, W).

    Row n may be any image at any noise level, so that a whole trajectory is one call. `pairs` "all" adds up
    the influence of every input channel on every output channel, "same" that of each on itself as the paper.
    """

    def keep(pulls: Tensor, channel: Tensor) -> Tensor:  # (E, n, C, H, W) to (E, n, H, W)
        if pairs == "all":
            return pulls.abs().sum(2)
        return pulls[torch.arange(len(channel), device=pulls.device), :, channel].abs()

    return _swept(denoise, x, sigma, cond, at, how, keep).sum(2)


def jacobian(
    denoise: Denoiser,
    x: Tensor,
    sigma: Tensor | float,
    cond: Any = None,
    *,
    at: Sequence[tuple[int, int]],
    how: GradientConfig = PLAIN,
) -> Tensor:
    """Signed derivatives of the probed pixels, which may be all of a small image: (N, P, C out, C in, H, W)."""
    return _swept(denoise, x, sigma, cond, at, how, lambda pulls, channel: pulls)


# From pulls (E, n, C, H, W) and their output channels (E,) to what is kept, (E, n, ...).
_Keep = Callable[[Tensor, Tensor], Tensor]


def _swept(
    denoise: Denoiser,
    x: Tensor,
    sigma: Tensor | float,
    cond: Any,
    at: Sequence[tuple[int, int]],
    how: GradientConfig,
    keep: _Keep,
) -> Tensor:
    """What `keep` leaves of the derivatives of every probe and channel: (N, P, C, ...)."""
    request = ProbeRequest(bare(denoise), x.detach(), per_image(sigma, x), cond, _checked_probes(at, x))
    rows = how.method == "rows" or (how.method == "auto" and hasattr(request.denoise, "clean_pixels"))
    with _gradient_config(request.denoise, how):
        found = (_by_rows if rows else _by_cotangents)(request, how, keep).movedim(2, 0)
    check_finite(found, request.sigma, "gradient")
    return found


@dataclass(frozen=True)
class ProbeRequest:
    """Images, their levels and conditions, and the pixels probed in all of them."""

    denoise: Denoiser
    x: Tensor  # (N, C, H, W)
    sigma: Tensor  # (N,)
    cond: Any
    at: Tensor  # (P, 2)

    def __getitem__(self, rows: slice | Tensor) -> "ProbeRequest":
        cond = None if self.cond is None else self.cond[rows]
        return ProbeRequest(self.denoise, self.x[rows], self.sigma[rows], cond, self.at)

    def clean(self, x: Tensor) -> Tensor:
        return _attached(self.denoise(x, self.sigma, self.cond))


def _by_cotangents(request: ProbeRequest, how: GradientConfig, keep: _Keep) -> Tensor:
    """One forward pass for all probes of some images, then products with their unit vectors: (P, C, N, ...)."""
    per_row = _saved_per_row(lambda some, x: some.clean(x), request)
    at_once = _fitting(how.memory / 2, per_row)
    parts = []
    for rows in slices(len(request.x), at_once):
        parts.append(_one_graph(request[rows], how, keep, per_row))
    return torch.cat(parts, dim=1).unflatten(0, (len(request.at), -1))


def _one_graph(request: ProbeRequest, how: GradientConfig, keep: _Keep, per_row: float) -> Tensor:
    """Derivatives of all probes and channels of images that fit together: (P C, n, ...)."""
    x = request.x.clone().requires_grad_()
    probed = request.clean(x)[:, :, request.at[:, 0], request.at[:, 1]]  # (n, C, P)
    channels, probes = probed.shape[1], probed.shape[2]
    number = torch.arange(probes * channels, device=x.device)  # of each vector: probe by probe, its channels
    # A CPU gains nothing from larger batches, and what one product touches stays in its cache.
    alone = how.method == "loop" or (how.method == "auto" and x.device.type == "cpu")
    product = ProbeProducts(probed, x, "loop" if alone else how.method)
    at_once = 1 if alone else _fitting(how.memory / 2, _ALIVE * per_row * len(x))
    found = []
    for some in number.split(at_once):
        probe, channel = some // channels, some % channels
        picks = probed.new_zeros(len(some), *probed.shape)  # each picks a channel of a probe in every image
        picks[torch.arange(len(some), device=x.device), :, channel, probe] = 1
        found.append(keep(product(picks), channel))
    return torch.cat(found)


class ProbeProducts:
    """Vector-Jacobian products of `out` with respect to x; batched, until a network shows that it cannot."""

    def __init__(self, out: Tensor, x: Tensor, method: Method):
        self.out, self.x, self.method = out, x, method
        self.batched = method in ("auto", "vmap")

    def __call__(self, picks: Tensor) -> Tensor:
        """picks (E, *out.shape) to pulls (E, *x.shape)."""
        if self.batched:
            try:
                return self.pull(picks, is_grads_batched=True)
            except torch.OutOfMemoryError:
                raise
            except RuntimeError:
                if self.method == "vmap":
                    raise
                self.batched = False
        return torch.stack([self.pull(pick) for pick in picks])

    def pull(self, pick: Tensor, **batched: bool) -> Tensor:
        pulled = torch.autograd.grad(self.out, self.x, pick, retain_graph=True, allow_unused=True, **batched)[0]
        if pulled is None:
            raise UserError(_UNREACHED)
        return pulled


def _by_rows(request: ProbeRequest, how: GradientConfig, keep: _Keep) -> Tensor:
    """An image for every probe, one backward pass per channel: (P, C, N, ...)."""
    probes, images = len(request.at), len(request.x)
    own = request.at.repeat_interleave(images, 0)  # (P N, 2)
    image = torch.arange(images, device=request.x.device).repeat(probes)
    each = _saved_per_row(lambda some, x: _own_pixel(some, x, own[:1].expand(len(x), 2)), request)
    parts = []
    for rows in slices(len(own), _fitting(how.memory / (1 + _ALIVE), each)):
        some = request[image[rows]]
        x = some.x.clone().requires_grad_()
        product = ProbeProducts(_own_pixel(some, x, own[rows]), x, "loop")
        picks = torch.eye(x.shape[1], device=x.device, dtype=product.out.dtype)  # (C, C)
        pulls = product(picks[:, None].expand(-1, len(x), -1))  # (C, n, C, H, W)
        parts.append(keep(pulls, torch.arange(len(picks), device=x.device)))
    return torch.cat(parts, dim=1).unflatten(1, (probes, images)).transpose(0, 1)


def _own_pixel(request: ProbeRequest, x: Tensor, at: Tensor) -> Tensor:
    """The clean value (n, C) of one pixel per image, at (n, 2); a network may offer a cheaper way than its image."""
    clean_pixels = getattr(request.denoise, "clean_pixels", None)
    if clean_pixels is not None:
        return _attached(clean_pixels(x, request.sigma, request.cond, at))
    return request.clean(x)[torch.arange(len(x), device=x.device), :, at[:, 0], at[:, 1]]


# -- what surrounds a gradient -------------------------------------------------------------------------------


def bare(denoise: Denoiser) -> Denoiser:
    """The network inside a loaded model."""
    return denoise.denoiser if isinstance(denoise, Model) else denoise


def _checked_probes(at: Sequence[tuple[int, int]], x: Tensor) -> Tensor:
    """Probes as (P, 2), if there are some and all lie in the images x."""
    if x.ndim != 4:
        raise UserError(f"Images come as (N, C, H, W), not {tuple(x.shape)}.")
    if not bool(x.isfinite().all()):
        raise UserError("The noisy images hold values that are not finite.")
    if not len(at):
        raise UserError("At least one pixel must be probed.")
    height, width = x.shape[-2:]
    for row, col in at:
        if not (0 <= row < height and 0 <= col < width):
            raise UserError(f"The probe ({row}, {col}) lies outside an image of {height} x {width} pixels.")
    return torch.tensor([tuple(pixel) for pixel in at], device=x.device)


def _attached(clean: Tensor) -> Tensor:
    if not clean.requires_grad:
        raise UserError(_UNREACHED)
    return clean


def check_finite(found: Tensor, sigma: Tensor, what: str) -> None:
    """found (N, ...), of images at levels sigma (N,)."""
    fine = found.flatten(1).isfinite().all(1)
    if not bool(fine.all()):
        raise UserError(f"The denoiser's {what} is not finite at noise level {sigma[~fine][0].item():.4g}.")


@contextlib.contextmanager
def _gradient_config(denoise: Denoiser, how: GradientConfig) -> Iterator[None]:
    """Gradients on, recomputation as configured, attention by formulas whose backward can be batched."""
    recomputing = checkpointing(denoise) if how.checkpoint else contextlib.nullcontext()
    with torch.inference_mode(False), torch.enable_grad(), sdpa_kernel(SDPBackend.MATH), recomputing:
        yield


@contextlib.contextmanager
def checkpointing(denoise: Denoiser) -> Iterator[None]:
    """Every part of the network that can recompute its blocks does so for a while."""
    modules = denoise.modules() if isinstance(denoise, nn.Module) else ()
    parts: list[Any] = [part for part in modules if hasattr(part, "checkpointing")]
    before = [part.checkpointing for part in parts]
    try:
        for part in parts:
            part.checkpointing = True
        yield
    finally:
        for part, was in zip(parts, before):
            part.checkpointing = was


def _saved_per_row(run: Callable[[ProbeRequest, Tensor], Tensor], request: ProbeRequest) -> float:
    """Bytes a forward pass keeps for each image: two images less one, so that weights do not count."""
    one, two = (saved_bytes(run, request, images) for images in (1, 2))
    return max(two - one, request.x[0].numel() * request.x.element_size())


def saved_bytes(run: Callable[[ProbeRequest, Tensor], Tensor], request: ProbeRequest, images: int) -> int:
    """Bytes of all tensors that a forward pass of so many images saves for its backward pass."""
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        # Returned as it is, an output saved by its own node would hold the whole graph in a cycle that is never released.
        return tensor.detach()

    some = request[torch.zeros(images, dtype=torch.long, device=request.x.device)]
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        run(some, some.x.clone().requires_grad_())
    return sum(kept.values())


def _fitting(memory: float, each: float) -> int:
    return max(1, int(memory // each))


def slices(total: int, at_once: int) -> list[slice]:
    return [slice(start, min(start + at_once, total)) for start in range(0, total, at_once)]


# -- what is read off an influence map -------------------------------------------------------------------------


def total_energy(influence: Tensor) -> Tensor:
    """Sum of squares over the image: (..., H, W) to (...)."""
    return influence.double().square().sum((-2, -1))


def smallest_square(influence: Tensor, at: Sequence[tuple[int, int]], share: float = 0.9) -> Tensor:
    """Side of the smallest square around each probe with `share` of the energy: (..., P, H, W) to (..., P).

    Squares reach 0, 1, 2, ... pixels to each side, so sides are odd; where they leave the image there is
    nothing to count. No influence at all fits into one pixel.
    """
    if not 0 < share <= 1:
        raise UserError(f"A share of the energy lies above 0 and up to 1, not {share:g}.")
    probes = _checked_probes(at, influence.reshape(-1, 1, *influence.shape[-2:]))
    energy = influence.double().square().flatten(-2)  # (..., P, H W)
    distance = _rings(probes, *influence.shape[-2:]).expand(energy.shape)
    reach = energy.new_zeros(*energy.shape[:-1], max(influence.shape[-2:]))
    within = reach.scatter_add(-1, distance, energy).cumsum(-1)  # (..., P, radii)
    enough = within >= share * within[..., -1:] * (1 - 1e-12)  # rounding must not add one ring
    return 2 * enough.int().argmax(-1) + 1


def _rings(probes: Tensor, height: int, width: int) -> Tensor:
    """How far every pixel lies from each probe, the larger of rows and columns: (P, H W) long."""
    rows, cols = (torch.arange(side, device=probes.device) for side in (height, width))
    down = (rows - probes[:, :1]).abs()  # (P, H)
    right = (cols - probes[:, 1:]).abs()  # (P, W)
    return torch.maximum(down[:, :, None], right[:, None, :]).flatten(1)
