"""Scenes to layers of images at one size, in batches: what `tessera render` draws with."""

import hashlib
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tessera.render.constants import load_constants
from tessera.render.image_io import to_uint8, width_height
from tessera.render.render import Quality, render
from tessera.render.shards import pack
from tessera.scenes.batch import SceneBatch
from tessera.scenes.raycast import ImageFrame

CPU = torch.device("cpu")
BATCH = {"cpu": 64, "cuda": 1024, "mps": 256}  # images drawn before they are written


@dataclass(frozen=True)
class Renderer:
    """Draws scenes at one size."""

    size: int | tuple[int, int]
    layers: tuple[str, ...]
    batch: int | None = None
    device: torch.device = CPU
    quality: Quality = "true"

    @property
    def batch_size(self) -> int:
        """How many scenes to draw in one call."""
        return self.batch or BATCH[self.device.type]

    @property
    def settings(self) -> dict[str, Any]:
        """What an image depends on besides its scene."""
        constants = hashlib.sha256(load_constants().to_json().encode()).hexdigest()[:12]
        return {
            "size": width_height(self.size),
            "aspect": ImageFrame.of(self.size).aspect,
            "layers": self.layers,
            "backend": "tessera",
            "quality": self.quality,
            "look": constants,
        }

    def render(self, scenes: SceneBatch) -> dict[str, Tensor]:
        """The layers of each scene, as `render` returns them."""
        return render(scenes, self.size, layers=self.layers, quality=self.quality, device=self.device)

    def packed(self, scenes: SceneBatch) -> dict[str, Tensor]:
        """The rows of a shard."""
        frame = self.render(scenes)
        return pack(to_uint8(frame["rgb"]), frame["mask"], scenes, frame.get("depth"))
