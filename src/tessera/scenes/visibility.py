"""Does every thing show enough of itself? The generator demands 200 visible pixels at 320x240."""

from typing import Literal

import torch
from torch import Tensor

from tessera.scenes.batch import SceneBatch

Visibility = Literal["fast", "exact", "off"]


def all_visible(scenes: SceneBatch, how: Visibility) -> Tensor:
    """Whether each scene hides none of its things, (B,)."""
    return torch.ones(len(scenes), dtype=torch.bool, device=scenes.device)
