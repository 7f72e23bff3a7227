"""Images per second of the detector."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.table import Table

from _common import rate, reset_peak_memory, seconds, timed
from tessera import console
from tessera.devices import DeviceName, peak_memory, pick_device
from tessera.errors import UserError
from tessera.evaluation.detector import load_detector
from tessera.provenance import provenance
from tessera.render.image_io import parse_size, width_height
from tessera.render.render import render
from tessera.scenes.sampling import Scenes

COUNTS = {"cpu": 512, "cuda": 32768, "mps": 4096}
DISTINCT = 256  # rendered images, repeated to make up the count: what they show does not change the speed


@dataclass(frozen=True)
class BenchDetector:
    """Images per second of the detector, from images in memory to lists of detections."""

    size: str = "64"
    """Size of the images, such as 64 or 320x240."""
    count: int | None = None
    """Images per repeat (default 512 on a CPU, 32768 on a GPU)."""
    objects: int = 6
    """Objects in each image."""
    repeats: int = 5
    """Timed repeats; the median counts."""
    weights: Path | None = None
    """Folder of another detector, as tools/train_detector.py wrote it."""
    seed: int = 0
    """Stream of scenes."""
    device: DeviceName = "auto"
    """Where to compute."""
    json: bool = False
    """Print one JSON object."""
    out: Path | None = None
    """Write the JSON object to this file too."""

    def run(self) -> None:
        record = self.measure()
        console.publish(record, self.json, self.out, speed_table(record))

    def measure(self) -> dict[str, Any]:
        device = pick_device(self.device)
        count = COUNTS[device.type] if self.count is None else self.count
        if count < 1 or self.repeats < 1:
            raise UserError("--count and --repeats must be at least 1.")
        detector, images = load_detector(self.weights, device), self.images(count, device)
        reset_peak_memory(device)
        with console.progress("measuring", self.repeats + 1) as advance:
            spent, (found, _) = timed(lambda: detector.detect(images), self.repeats, device, advance)
        return {
            "size": width_height(parse_size(self.size)),
            "count": count,
            "objects": self.objects,
            "found_per_image": sum(map(len, found)) / count,
            "repeats": self.repeats,
            "seed": self.seed,
            "images_per_second": rate(count, spent),
            **seconds(spent),
            "peak_memory_bytes": peak_memory(device),
            "threads": torch.get_num_threads(),
            "provenance": provenance(device),
        }

    def images(self, count: int, device) -> torch.Tensor:
        scenes = Scenes(objects=self.objects).draw(min(count, DISTINCT), self.seed, device=device)
        images = render(scenes, parse_size(self.size), quality="fast")["rgb"]
        return images[torch.arange(count, device=images.device) % len(images)]


def speed_table(record: dict[str, Any]) -> Table:
    width, height = record["size"]
    table = Table("images per second", "slowest", "fastest", "seconds", title=f"detector, {width}x{height}")
    speed = record["images_per_second"]
    cells = [f"{speed[name]:,.0f}" for name in ("median", "min", "max")]
    table.add_row(*cells, f"{record['seconds']['median']:.3f}")
    return table
