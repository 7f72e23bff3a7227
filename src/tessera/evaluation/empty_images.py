"""Images in which there is nothing to find: noise, flat gray, and dead leaves with the statistics of photographs."""

from collections.abc import Callable

import torch
from torch import Tensor

from tessera.render.render import render
from tessera.scenes.sampling import Scenes

_LEAVES = 120  # patches on an image of the dead-leaves kind
_NOISE_STD = 0.5


def _empty_scenes(count: int, size: int | tuple[int, int], seed: int, device=None) -> Tensor:
    """The stage with its camera and lamps jittered, and no object on it."""
    return render(Scenes(objects=0).draw(count, seed, device=device), size)["rgb"]


def _pure_noise(count: int, size: int | tuple[int, int], seed: int) -> Tensor:
    return (_NOISE_STD * torch.randn(count, 3, *frame(size), generator=seeded_generator(seed))).clamp(-1, 1)


def _flat_gray(count: int, size: int | tuple[int, int], seed: int) -> Tensor:
    """One level of gray per image, from black to white."""
    level = 2 * torch.rand(count, 1, 1, 1, generator=seeded_generator(seed)) - 1
    return level.expand(count, 3, *frame(size)).clone()


def _clouds(count: int, size: int | tuple[int, int], seed: int) -> Tensor:
    """Colored noise whose amplitude falls as 1 / frequency, as that of photographs does."""
    height, width = frame(size)
    white = torch.randn(count, 3, height, width, generator=seeded_generator(seed))
    down, across = torch.fft.fftfreq(height)[:, None] * height, torch.fft.rfftfreq(width)[None] * width
    amplitude = 1 / torch.hypot(down, across).clamp_min(1)
    field = torch.fft.irfft2(torch.fft.rfft2(white) * amplitude, s=(height, width))
    # Channels of photographs go together: mostly light and dark, some color.
    light, tint = field.mean(1, keepdim=True), field - field.mean(1, keepdim=True)
    image = light / light.flatten(1).std(1).view(-1, 1, 1, 1)
    return (0.45 * image + 0.2 * tint / tint.flatten(1).std(1).view(-1, 1, 1, 1)).clamp(-1, 1)


def _dead_leaves(count: int, size: int | tuple[int, int], seed: int) -> Tensor:
    """Flat patches of all sizes that hide one another: edges and occlusion as in small photographs."""
    (height, width), chance = frame(size), seeded_generator(seed)
    row = (torch.arange(height)[:, None] + 0.5) / height
    column = (torch.arange(width)[None] + 0.5) / width
    image = torch.zeros(count, 3, height, width)
    for _ in range(_LEAVES):
        x, y, stretch, kind = torch.rand(4, count, 1, 1, generator=chance)
        radius = 0.04 / (0.08 + torch.rand(count, 1, 1, generator=chance))  # many small ones, few large
        color = 2 * torch.rand(count, 3, 1, 1, generator=chance) - 1
        dx, dy = (column - x).abs() * (0.6 + stretch), (row - y).abs() / (0.6 + stretch)
        inside = torch.where(kind < 0.5, torch.hypot(dx, dy), torch.maximum(dx, dy)) < radius  # (B, H, W)
        image = torch.where(inside[:, None], color, image)
    return image


_FOREIGN: dict[str, Callable[[int, int | tuple[int, int], int], Tensor]] = {
    "pure noise": _pure_noise,
    "flat gray": _flat_gray,
    "clouds": _clouds,
    "dead leaves": _dead_leaves,
}
_EMPTY = "empty scene"
KINDS = (_EMPTY, *_FOREIGN)


def nothing_to_find(kind: str, count: int, size: int | tuple[int, int], seed: int, device=None) -> Tensor:
    """Images (B, 3, H, W) of one of the KINDS."""
    if kind == _EMPTY:
        return _empty_scenes(count, size, seed, device)
    return _FOREIGN[kind](count, size, seed).to(device)


def frame(size: int | tuple[int, int]) -> tuple[int, int]:
    """Height and width of an image of `size`, one number or (width, height)."""
    return (size, size) if isinstance(size, int) else (size[1], size[0])


def seeded_generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)
