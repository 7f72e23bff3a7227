"""The network that finds objects: fully convolutional, one prediction for each 2x2 pixels of a 128x128 image."""

from itertools import pairwise
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tessera.scenes.vocabulary import COLOR_NAMES, MATERIALS, SHAPES, SIZES

SIDE = 128  # every image is brought to this size first, so that objects have one scale
CELLS = 64  # predictions per side
HEADS = {
    "there": 1,  # is an object's center here
    "offset": 2,  # where in the cell, (x, y) in cells
    "well_formed": 1,  # is it a well-formed object
    "color": len(COLOR_NAMES),
    "shape": len(SHAPES),
    "size": len(SIZES),
    "material": len(MATERIALS),
}


class NetworkOutput(NamedTuple):
    """What the detector sees: raw outputs per head (B, channels, 64, 64), and a summary of the image (B, F)."""

    heads: dict[str, Tensor]
    summary: Tensor


def to_canvas(images: Tensor) -> Tensor:
    """Images (B, 3, H, W) of any size, squeezed or enlarged to 128x128."""
    height, width = images.shape[-2:]
    if height > SIDE or width > SIDE:
        images = F.interpolate(images, (min(height, SIDE), min(width, SIDE)), mode="area")
    if images.shape[-2:] != (SIDE, SIDE):
        images = F.interpolate(images, (SIDE, SIDE), mode="bilinear", align_corners=False)
    return images


class _DetectorDownsample(nn.Module):
    """Convolution, normalization, rectifier."""

    def __init__(self, inputs: int, outputs: int, kernel: int = 3, stride: int = 1):
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False)
        self.norm = nn.BatchNorm2d(outputs)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.norm(self.conv(x)))


class _DetectorResidual(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.first, self.second = _DetectorDownsample(width, width), _DetectorDownsample(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.second(self.first(x))


class DetectorNetwork(nn.Module):
    """A small U-Net: 64 -> 8 -> 64 cells per side, with skips."""

    def __init__(self, widths: tuple[int, ...] = (24, 56, 128, 192), depths: tuple[int, ...] = (0, 1, 2, 2)):
        super().__init__()
        self.config = {"widths": list(widths), "depths": list(depths)}
        self.stem = _DetectorDownsample(12, widths[0])
        self.down = nn.ModuleList(_DetectorDownsample(a, b, stride=2) for a, b in pairwise(widths))
        self.deep = nn.ModuleList(
            nn.Sequential(*(_DetectorResidual(w) for _ in range(d))) for w, d in zip(widths, depths)
        )
        self.up = nn.ModuleList(_DetectorDownsample(b, a, kernel=1) for a, b in pairwise(widths))
        self.merge = nn.ModuleList(_DetectorResidual(w) for w in widths[:-1])
        self.head = nn.Sequential(_DetectorDownsample(widths[0], 48), nn.Conv2d(48, sum(HEADS.values()), 1))
        nn.init.constant_(self.head[1].bias[:1], -4.0)  # type: ignore[index, arg-type]  # most cells hold nothing

    def forward(self, images: Tensor) -> NetworkOutput:
        """Images (B, 3, H, W) in [-1, 1], any size."""
        x = self.stem(F.pixel_unshuffle(to_canvas(images), 2))  # (B, 12, 64, 64) in
        x = self.deep[0](x)
        skips = []
        for down, deep in zip(self.down, self.deep[1:]):
            skips.append(x)
            x = deep(down(x))
        summary = torch.cat([x.mean((2, 3)), skips[-1].mean((2, 3))], dim=1)
        for up, merge, skip in zip(reversed(self.up), reversed(self.merge), reversed(skips)):
            x = merge(F.interpolate(up(x), scale_factor=2, mode="nearest") + skip)
        channels = self.head(x).float().split(list(HEADS.values()), dim=1)
        return NetworkOutput(dict(zip(HEADS, channels)), summary.float())


def fold_norms(network: DetectorNetwork) -> DetectorNetwork:
    """Merge each normalization into its convolution: the same function, a third of the memory traffic."""
    from torch.nn.utils.fusion import fuse_conv_bn_eval

    for step in [module for module in network.modules() if isinstance(module, _DetectorDownsample)]:
        step.conv = fuse_conv_bn_eval(step.conv.eval(), step.norm.eval())  # type: ignore[type-var, assignment]
        step.norm = nn.Identity()  # type: ignore[assignment]
    return network
