"""Images in which there is nothing to find: noise, flat gray, and dead leaves with the statistics of photographs."""

from collections.abc import Callable

import torch
from torch import Tensor

from tessera.render.image_io import width_height
from tessera.render.render import render
from tessera.scenes.sampling import Scenes

_LEAVES = 120  # patches on an image of the dead-leaves kind
_NOISE_STD = 0.5


def _pure_noise(count: int, height: int, width: int, chance: torch.Generator) -> Tensor:
    return (_NOISE_STD * torch.randn(count, 3, height, width, generator=chance)).clamp(-1, 1)


def _flat_gray(count: int, height: int, width: int, chance: torch.Generator) -> Tensor:
    """One level of gray per image, from black to white."""
    level = 2 * torch.rand(count, 1, 1, 1, generator=chance) - 1
    return level.expand(count, 3, height, width).clone()


def _clouds(count: int, height: int, width: int, chance: torch.Generator) -> Tensor:
    """Colored noise whose amplitude falls as 1 / frequency, as that of photographs does."""
    white = torch.randn(count, 3, height, width, generator=chance)
    down, across = torch.fft.fftfreq(height)[:, None] * height, torch.fft.rfftfreq(width)[None] * width
    amplitude = 1 / torch.hypot(down, across).clamp_min(1)
    field = torch.fft.irfft2(torch.fft.rfft2(white) * amplitude, s=(height, width))
    # Channels of photographs go together: mostly light and dark, some color.
    light, tint = field.mean(1, keepdim=True), field - field.mean(1, keepdim=True)
    image = light / light.flatten(1).std(1).view(-1, 1, 1, 1)
    return (0.45 * image + 0.2 * tint / tint.flatten(1).std(1).view(-1, 1, 1, 1)).clamp(-1, 1)


def _dead_leaves(count: int, height: int, width: int, chance: torch.Generator) -> Tensor:
    """Flat patches of all sizes that hide one another: edges and occlusion as in small photographs."""
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


_FOREIGN: dict[str, Callable[[int, int, int, torch.Generator], Tensor]] = {
    "pure noise": _pure_noise,
    "flat gray": _flat_gray,
    "clouds": _clouds,
    "dead leaves": _dead_leaves,
}
_EMPTY = "empty scene"
KINDS = (_EMPTY, *_FOREIGN)


def nothing_to_find(kind: str, count: int, size: int | tuple[int, int], seed: int, device=None) -> Tensor:
    """Images (B, 3, H, W) of one of the KINDS."""
    if kind == _EMPTY:  # the stage with its camera and lamps jittered
        return render(Scenes(objects=0).draw(count, seed, device=device), size)["rgb"]
    width, height = width_height(size)
    return _FOREIGN[kind](count, height, width, torch.Generator().manual_seed(seed)).to(device)
