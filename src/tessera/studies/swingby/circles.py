"""The circles task: one disc whose color (red or blue) and size (big or small) are the two concepts.

Training shows three of the four corners; the fourth, small and blue, is the composition that training never shows. Every
image is a function of (seed, index) alone, on any device and in any batch.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from tessera.errors import UserError
from tessera.scenes.random import normal, uniform

CODES = ((0, 0), (0, 1), (1, 0), (1, 1))  # (blue, small): big red, small red, big blue, small blue
TRAINING_CORNERS = (0, 1, 2)
COMPOSITION = 3
_SMALLEST_RADIUS = 0.1


class _Circles(NamedTuple):
    """A batch of images and what they show."""

    images: Tensor  # (B, 3, size, size) in [-1, 1]
    cond: Tensor  # (B, 4): radius, red, green, blue of this disc
    corner: Tensor  # (B,) index into CODES
    center: Tensor  # (B, 2) as (x, y) in [-1, 1]


@dataclass(frozen=True)
class CirclesTask:
    """Discs on a bright ground. Lengths are in units of half the image, colors in [0, 1]."""

    #: Distance between red and blue in the channels that differ: the strength of the color concept.
    gap: float = 0.4
    #: Distance between the two mean radii: the strength of the size concept.
    size_gap: float = 0.4
    #: Side of the image in pixels.
    size: int = 32
    seed: int = 0
    #: Softness of the edge: standard deviation in pixels.
    blur: float = 1.0
    #: Standard deviation of the pixel noise.
    noise: float = 0.001
    #: Radius half way between big and small.
    middle: float = 0.45

    def __post_init__(self):
        if not 0 < self.gap <= 0.8:
            raise UserError(f"The color gap must lie in (0, 0.8], not {self.gap:g}.")
        if not 0 < self.size_gap < 2 * self.middle:
            raise UserError(f"The size gap must lie in (0, {2 * self.middle:g}), not {self.size_gap:g}.")
        if self.size < 8 or self.blur < 0 or self.noise < 0:
            raise UserError("Images need at least 8 pixels a side, and blur and noise must not be negative.")

    def batch(self, index: Tensor, corners: tuple[int, ...] = TRAINING_CORNERS) -> _Circles:
        """Images numbered `index` (B,); number i shows corner i modulo the number of corners."""
        corner = torch.tensor(corners, device=index.device)[index % len(corners)]
        code = torch.tensor(CODES, device=index.device, dtype=torch.float32)[corner]  # (B, 2)
        cond, center = self.describe(index, code)
        return _Circles(self.draw(index, cond, center), cond, corner, center)

    def describe(self, index: Tensor, code: Tensor) -> tuple[Tensor, Tensor]:
        """Radius and color (B, 4) and center (B, 2), spread around the means of the codes (B, 2)."""
        spread = 2 * uniform(self.seed, index, "circle", 6) - 1  # (B, 6) in [-1, 1)
        mean = self.mean_condition(code)
        radius = (mean[:, :1] + spread[:, :1] * 3 * self.size_gap / 8).clamp(min=_SMALLEST_RADIUS)
        color = mean[:, 1:] + spread[:, 1:4] * self.gap / 8
        return torch.cat([radius, color], dim=1), 0.5 * spread[:, 4:]

    def mean_condition(self, code: Tensor) -> Tensor:
        """Mean radius and color of codes (B, 2), as samples are conditioned on them: (B, 4)."""
        blue, small = code[:, 0], code[:, 1]
        low, high = 0.5 - self.gap / 2, 0.5 + self.gap / 2
        radius = self.middle + self.size_gap * (0.5 - small)
        green = torch.full_like(blue, low)
        return torch.stack([radius, high - self.gap * blue, green, low + self.gap * blue], dim=1)

    def conditions(self, corner: int, count: int, device=None) -> Tensor:
        """`count` times the mean condition of a corner, (count, 4)."""
        code = torch.tensor([CODES[corner]], dtype=torch.float32, device=device)
        return self.mean_condition(code).expand(count, -1)

    def draw(self, index: Tensor, cond: Tensor, center: Tensor) -> Tensor:
        """Blend the disc over its ground, add noise, and go from [0, 1] to [-1, 1]."""
        ground = 0.8 + 0.2 * uniform(self.seed, index, "ground", 3)  # (B, 3)
        cover = blurred(disc(center, cond[:, 0], self.size), self.blur)  # (B, 1, H, W)
        image = cover * cond[:, 1:, None, None] + (1 - cover) * ground[:, :, None, None]
        if self.noise:
            grain = normal(self.seed, index, "grain", 3 * self.size**2).view_as(image)
            image = image + self.noise * grain
        return 2 * image.clamp(0, 1) - 1


def disc(center: Tensor, radius: Tensor, size: int) -> Tensor:
    """1 in pixels whose center lies inside, 0 outside: centers (B, 2), radii (B,) -> (B, 1, size, size)."""
    x, y = pixel_grid(size, center.device)
    away = (x - center[:, 0, None, None]).square() + (y - center[:, 1, None, None]).square()
    return (away <= radius[:, None, None].square()).float()[:, None]


def pixel_grid(size: int, device=None) -> tuple[Tensor, Tensor]:
    """x (1, size) and y (size, 1) of the pixel centers in [-1, 1]."""
    line = (torch.arange(size, device=device, dtype=torch.float32) + 0.5) * 2 / size - 1
    return line[None, :], line[:, None]


def blurred(mask: Tensor, sigma: float) -> Tensor:
    """Gaussian blur of (B, 1, H, W)."""
    if sigma == 0:
        return mask
    reach = int(3 * sigma + 0.5)
    offsets = torch.arange(-reach, reach + 1, device=mask.device, dtype=mask.dtype)
    kernel = torch.exp(-0.5 * (offsets / sigma).square())
    return averaged(mask, kernel / kernel.sum())


def averaged(images: Tensor, kernel: Tensor) -> Tensor:
    """(B, 1, H, W) convolved with a kernel (2r + 1,) along both sides; edge pixels are repeated beyond the edge."""
    padded = functional.pad(images, (len(kernel) // 2,) * 4, mode="replicate")
    return functional.conv2d(functional.conv2d(padded, kernel.view(1, 1, 1, -1)), kernel.view(1, 1, -1, 1))
