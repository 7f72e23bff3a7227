"""Train the detector on synthetic images rendered while it trains: minutes on one GPU.

python tools/train_detector.py --out detector
"""

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from _common import program
from synthetic_data import ABSENT, THERE, UNCLEAR, SyntheticData, synthetic_data, target_cells
from tessera.console import print_json, progress, say
from tessera.devices import DeviceName, pick_device
from tessera.errors import UserError
from tessera.evaluation.detector import save_detector
from tessera.evaluation.network import CELLS, DetectorNetwork, NetworkOutput
from tessera.files import make_folder, write_json
from tessera.provenance import provenance

STOCK = 16  # steps whose images are made together: many small batches would keep a GPU waiting
LOOK = 20  # steps between two looks at the loss
LESSON, RANGE = 256, 8192  # images looked at together, and in all, to know what known images look like
SPREAD = 0.9  # radius (in cells) of the halo of half-right answers around a center
WEIGHTS = {"offset": 1.0, "color": 0.3, "shape": 0.3, "size": 0.15, "material": 0.15, "well_formed": 0.3}


class Progress(NamedTuple):
    images: int
    loss: Tensor  # (): reading it waits for the device


def heat(batch: SyntheticData) -> tuple[Tensor, Tensor]:
    """Where centers are, with halos, (B, 1, 64, 64), and which cells count in the loss."""
    steps = torch.arange(CELLS, device=batch.location.device) + 0.5
    dx = steps - (batch.location[..., 0:1] * CELLS)  # (B, N, 64)
    dy = steps - (batch.location[..., 1:2] * CELLS)
    squared = dx[:, :, None, :].square() + dy[:, :, :, None].square()  # (B, N, 64, 64)
    halo = torch.exp(-squared / (2 * SPREAD**2))
    there = torch.where((batch.state == THERE)[..., None, None], halo, 0.0).amax(1, keepdim=True)
    unclear = ((batch.state == UNCLEAR)[..., None, None] & (squared < 4.0**2)).any(1, keepdim=True)
    return there, ~unclear | (there > 0.3)


def loss(sight: NetworkOutput, batch: SyntheticData) -> Tensor:
    """Focal loss for centers; regression and classification where the centers are."""
    target, counts = heat(batch)
    cell, within = target_cells(batch.location)
    center = torch.zeros_like(target).flatten(1)
    there = batch.state == THERE
    center.scatter_add_(1, torch.where(there, cell, 0), there.float())
    center = (center.view_as(target) > 0) & (target > 0.3)
    logit = sight.heads["there"]
    chance = logit.sigmoid()
    found = F.softplus(-logit) * (1 - chance).square()
    false = F.softplus(logit) * chance.square() * (1 - target).pow(4)
    total = (torch.where(center, found, false) * counts).sum() / there.sum().clamp_min(1)
    return total + _attributes(sight, batch, cell, within)


def _attributes(sight: NetworkOutput, batch: SyntheticData, cell: Tensor, within: Tensor) -> Tensor:
    rows, slots = torch.nonzero(batch.state == THERE, as_tuple=True)
    at = cell[rows, slots]

    def here(name: str) -> Tensor:
        return sight.heads[name].flatten(2)[rows, :, at]  # (M, channels)

    clean = (~batch.mixed & (batch.well_formed > 0.5))[rows, slots].float()
    total = WEIGHTS["offset"] * F.l1_loss(here("offset"), within[rows, slots])
    well_formed = batch.well_formed[rows, slots]
    total = total + WEIGHTS["well_formed"] * F.binary_cross_entropy_with_logits(here("well_formed")[:, 0], well_formed)
    for name in ("color", "shape", "size", "material"):
        wrong = F.cross_entropy(here(name), getattr(batch, name)[rows, slots], reduction="none")
        total = total + WEIGHTS[name] * (wrong * clean).mean()
    return total


def learn(
    network: DetectorNetwork,
    total: int,
    batch: int,
    rate: float,
    seed: int,
    device,
    minutes: float = 0.0,
    grafted: float = 0.0,
) -> Iterator[Progress]:
    """Train in place; yields after every step. The learning rate rises over 2% of the way and falls as a cosine.

    With `minutes`, the way ends when they are spent, if `total` images were not reached before.
    """
    optimizer = torch.optim.AdamW(network.parameters(), lr=rate, weight_decay=1e-4)
    steps, started = math.ceil(total / batch), time.monotonic()
    low_precision = torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda")
    network.to(device).to(memory_format=torch.channels_last).train()  # type: ignore[call-overload]
    for step in range(steps):
        turn = step % STOCK
        if turn == 0:
            stock = synthetic_data(seed, step // STOCK, min(STOCK, steps - step) * batch, device, grafted)
        lesson = stock.rows(slice(turn * batch, (turn + 1) * batch))
        way = max(step / steps, (time.monotonic() - started) / (60 * minutes) if minutes else 0.0)
        if step and way >= 1:  # one step at least, however short the time
            return
        way = min(way, 1.0)
        for group in optimizer.param_groups:
            group["lr"] = rate * min(way / 0.02, 0.5 * (1 + math.cos(math.pi * way)))
        with low_precision:
            sight = network(lesson.images.contiguous(memory_format=torch.channels_last))
        value = loss(sight, lesson)
        optimizer.zero_grad(set_to_none=True)
        value.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 5.0)
        optimizer.step()
        yield Progress((step + 1) * batch, value.detach())


@torch.no_grad()
def measure_range(
    network: DetectorNetwork,
    seed: int,
    device,
    images: int = RANGE,
    on_lesson: Callable[[], Any] = lambda: None,
    grafted: float = 0.0,
) -> dict[str, Tensor]:
    """What the summaries of known images look like: mean and whitening matrix, and their 99.9% distance."""
    network.eval()
    summaries = []
    for number in range(max(1, images // LESSON)):
        on_lesson()
        lesson = synthetic_data(seed, number, LESSON, device, grafted)
        known = (lesson.state != ABSENT).any(1)
        summaries.append(network(lesson.images[known]).summary.cpu().double())  # some devices have no float64
    rows = torch.cat(summaries)
    mean = rows.mean(0)
    spread = torch.cov((rows - mean).T) + 1e-4 * torch.eye(rows.shape[1], dtype=rows.dtype)
    whiten = torch.linalg.inv(torch.linalg.cholesky(spread))
    distance = ((rows - mean) @ whiten.T).square().sum(1).sqrt()
    return {"mean": mean.float(), "whiten": whiten.float(), "limit": distance.quantile(0.999).float()[None]}


@dataclass(frozen=True)
class TrainDetector:
    """Train the detector anew, from synthetic images alone."""

    out: Path = Path("detector")
    """Folder for the weights."""
    total: int = 1_500_000
    """Images to learn from."""
    batch: int = 384
    """Images in one step."""
    rate: float = 2e-3
    """Largest learning rate."""
    minutes: float = 0.0
    """End after so many minutes, learning rate included, if the total is not reached before (0: no limit)."""
    seed: int = 0
    """Seed of weights and images."""
    grafted: float = 0.0
    """Share of images with a stretched, doubled or touching object, as generators draw them (0.3 in docs/notebook.md)."""
    device: DeviceName = "auto"
    """Where to compute."""
    json: bool = False
    """Print one JSON object."""

    def run(self) -> None:
        if min(self.total, self.batch) < 1 or self.minutes < 0 or self.rate <= 0 or not 0 <= self.grafted <= 1:
            raise UserError("Total, batch and rate must be positive, --minutes not negative, and --grafted a share.")
        device, folder = pick_device(self.device), make_folder(self.out)
        torch.manual_seed(self.seed)
        network, started, last = DetectorNetwork(), time.monotonic(), None
        with progress("learning to see", self.total) as advance:
            for last in learn(
                network, self.total, self.batch, self.rate, self.seed, device, self.minutes, self.grafted
            ):
                if (last.images // self.batch) % LOOK == 0:
                    speed = last.images / (time.monotonic() - started)
                    advance(LOOK * self.batch, note=f"loss {float(last.loss):.3f}  {speed:,.0f} images/s")
        assert last is not None  # there is a first image, hence a first step
        took = time.monotonic() - started
        save_detector(folder, network, self.known_range(network, device))
        record = {
            "images": last.images,
            "loss": float(last.loss),
            "seconds": took,
            "images_per_second": last.images / took,
            "settings": {
                name: getattr(self, name) for name in ("total", "batch", "rate", "minutes", "seed", "grafted")
            },
            "provenance": provenance(device),
        }
        write_json(folder / "training.json", record)
        if self.json:
            print_json(record)
        else:
            say(f"wrote {folder}: {last.images:,} images in {took / 60:.1f} minutes")

    def known_range(self, network: DetectorNetwork, device) -> dict[str, Tensor]:
        """Looked at on fewer images where fewer were learned from."""
        images = min(RANGE, max(LESSON, self.total))
        with progress("learning what is known", images // LESSON) as advance:
            return measure_range(network, self.seed + 10, device, images, advance, self.grafted)


main = program(TrainDetector)

if __name__ == "__main__":
    main()
