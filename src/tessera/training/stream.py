"""Training images, endless and reproducible: sample i is the same on any machine and in any process."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from tessera.conditioning import Conditioner
from tessera.render.render import Quality, render
from tessera.scenes import Scenes
from tessera.scenes.batch import Rows


@dataclass(frozen=True)
class Batch(Rows):
    """Samples of a stream."""

    images: Tensor  # (B, 3, H, W) in [-1, 1]
    cond: Tensor  # (B, dim)
    index: Tensor  # (B,), their numbers in the stream


class NumberedSamples(Protocol):
    """Training images, each made from its number alone."""

    def samples(self, index: Tensor) -> Batch:
        """The samples numbered `index` (B,), made on its device."""
        ...

    def steps(
        self, start: int, batch: int, render_batch: int = 1, rank: int = 0, world: int = 1, device=None
    ) -> Iterator[Batch]:
        """This process's share of every training step, from the step that begins with sample `start`.

        Several steps are rendered together, since drawing and rendering are faster in large batches. These groups of
        steps begin at multiples of their own length, so a resumed run renders the very same ones.
        """
        share, together = batch // world, max(1, render_batch // batch)
        first = start // batch
        while True:
            begin = first - first % together
            step = torch.arange(begin, begin + together, device=device)
            own = step[:, None] * batch + rank * share + torch.arange(share, device=device)  # (steps, share)
            samples = self.samples(own.flatten())
            for number in range(first - begin, together):
                yield samples[number * share : (number + 1) * share]
            first = begin + together


@dataclass(frozen=True)
class Stream(NumberedSamples):
    """Scenes drawn, rendered and encoded as conditions, by sample number."""

    scenes: Scenes
    size: int
    conditioner: Conditioner
    seed: int = 0
    quality: Quality = "fast"

    def batch(self, start: int, count: int, device=None) -> Batch:
        """Samples start .. start + count - 1."""
        return self.samples(torch.arange(start, start + count, device=device))

    def samples(self, index: Tensor) -> Batch:
        scenes = self.scenes.numbered(index, self.seed)[0]
        images = render(scenes, size=self.size, quality=self.quality)["rgb"]
        return Batch(images, self.conditioner.encode(scenes, index, self.seed), index)
