"""Scenes to layers of images, by our own ray tracer or by Blender, behind one face."""

import hashlib
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tessera.render.blender import SAMPLES, render_with_blender
from tessera.render.constants import load_constants
from tessera.render.image_io import to_uint8, width_height
from tessera.render.render import Quality, render
from tessera.render.shards import pack
from tessera.scenes.batch import SceneBatch
from tessera.scenes.camera import ASPECT

CPU = torch.device("cpu")
AT_ONCE = {"cpu": 64, "cuda": 1024, "mps": 256}  # images drawn before they are written
AT_ONCE_IN_BLENDER = 4  # scenes per Blender process: starting one costs little beside rendering


@dataclass(frozen=True)
class Renderer(ABC):
    """Draws scenes at one size; the renderer behind it is ours or Blender's."""

    size: int | tuple[int, int]
    layers: tuple[str, ...]
    batch: int | None = None
    device: torch.device = CPU

    @abstractmethod
    def paint(self, scenes: SceneBatch) -> dict[str, Tensor]:
        """The layers of each scene, as `render` returns them."""

    @property
    @abstractmethod
    def at_once(self) -> int:
        """How many scenes to paint in one go."""

    @property
    @abstractmethod
    def method(self) -> dict[str, Any]:
        """What an image depends on besides its scene and frame."""

    @property
    def settings(self) -> dict[str, Any]:
        frame = {"size": width_height(self.size), "aspect": aspect_of(self.size), "layers": self.layers}
        return {**frame, **self.method}

    def packed(self, scenes: SceneBatch) -> dict[str, Tensor]:
        """The rows of a shard."""
        frame = self.paint(scenes)
        return pack(to_uint8(frame["rgb"]), frame["mask"], scenes, frame.get("depth"))


@dataclass(frozen=True)
class TracingRenderer(Renderer):
    quality: Quality = "true"

    @property
    def at_once(self) -> int:
        return self.batch or AT_ONCE[self.device.type]

    @property
    def method(self) -> dict[str, Any]:
        constants = hashlib.sha256(load_constants().to_json().encode()).hexdigest()[:12]
        return {"backend": "tessera", "quality": self.quality, "look": constants}

    def paint(self, scenes: SceneBatch) -> dict[str, Tensor]:
        return render(scenes, self.size, layers=self.layers, quality=self.quality, device=self.device)


@dataclass(frozen=True)
class BlenderRenderer(Renderer):
    samples: int = SAMPLES
    assets: Path | None = None

    @property
    def at_once(self) -> int:
        return self.batch or AT_ONCE_IN_BLENDER

    @property
    def method(self) -> dict[str, Any]:
        assets = str(self.assets) if self.assets else None
        return {"backend": "blender", "samples": self.samples, "assets": assets}

    def paint(self, scenes: SceneBatch) -> dict[str, Tensor]:
        return render_with_blender(scenes, self.size, self.samples, self.layers, self.assets)


def aspect_of(size: int | tuple[int, int]) -> float:
    """Width over height of the frame that an image of `size` shows."""
    return ASPECT if isinstance(size, int) else size[0] / size[1]
