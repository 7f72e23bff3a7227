"""Images per second of the renderer, the time to draw scenes, and memory."""

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import torch
from rich.table import Table

from _common import device_or_process_peak, rate, reset_peak_memory, seconds, timed
from tessera import console
from tessera.config import parse_range
from tessera.devices import DeviceName, pick_device
from tessera.errors import UserError
from tessera.provenance import provenance
from tessera.render.image_io import parse_size, width_height
from tessera.render.render import Quality, render
from tessera.scenes.batch import SceneBatch
from tessera.scenes.sampling import Scenes

FIRST_BATCHES = {"cpu": 64, "cuda": 8192, "mps": 256}
COUNTS = {"cpu": 512, "cuda": 16384, "mps": 4096}  # a repeat of a second or more


@dataclass(frozen=True)
class BenchRender:
    """Images per second of the renderer, with the time to draw the scenes beside it, for each quality."""

    size: str = "64"
    """128 squeezes the 4:3 frame to a square; 320x240 has square pixels."""
    count: int | None = None
    """Images per repeat (default 512 on a CPU, 16384 on a GPU)."""
    objects: str = "3"
    """Objects per image: a number or a range."""
    quality: Quality | None = None
    """Only this quality; without it, each of them."""
    batch: int | None = None
    """Images rendered at once (default 64 on a CPU, 8192 on a GPU)."""
    repeats: int = 5
    """Timed repeats; the median counts."""
    seed: int = 0
    """Stream of scenes."""
    device: DeviceName = "auto"
    """Where to render."""
    json: bool = False
    """Print one JSON object."""
    out: Path | None = None
    """Write the JSON object to this file too."""

    def run(self) -> None:
        record = self.measure()
        console.publish(record, self.json, self.out, speed_table(record))

    def measure(self) -> dict[str, Any]:
        for name in ("count", "repeats", "batch"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise UserError(f"--{name} must be at least 1, not {getattr(self, name)}.")
        device, size = pick_device(self.device), parse_size(self.size)
        count = self.count or COUNTS[device.type]
        batch = min(count, self.batch or FIRST_BATCHES[device.type])
        rules = Scenes(objects=parse_range(self.objects, "objects"))
        qualities = [self.quality] if self.quality else list(get_args(Quality))
        with console.progress("measuring", (self.repeats + 1) * (1 + len(qualities))) as advance:
            drawing, scenes = self.time_drawing(rules, count, device, advance)
            measured = {
                quality: self.time_rendering(scenes, size, quality, batch, drawing, advance) for quality in qualities
            }
        return {
            "size": width_height(size),
            "squeezed": isinstance(size, int),
            "count": count,
            "objects": self.objects,
            "batch": batch,
            "repeats": self.repeats,
            "seed": self.seed,
            "scene_drawing": {**seconds(drawing), "scenes_per_second": rate(count, drawing)},
            "quality": measured,
            "threads": torch.get_num_threads(),
            "provenance": provenance(device),
        }

    def time_drawing(self, rules: Scenes, count: int, device, advance: Callable) -> tuple[list[float], SceneBatch]:
        """Seconds to draw all scenes, and the scenes."""
        return timed(lambda: rules.draw(count, self.seed, device=device), self.repeats, device, advance)

    def time_rendering(
        self, scenes: SceneBatch, size, quality: Quality, batch: int, drawing: list[float], advance: Callable
    ) -> dict[str, Any]:
        """Images stay on the device, as they do when training consumes them."""

        def draw_all() -> None:
            for first in range(0, len(scenes), batch):
                render(scenes[first : first + batch], size, quality=quality, device=scenes.device)

        reset_peak_memory(scenes.device)
        spent, _ = timed(draw_all, self.repeats, scenes.device, advance)
        both = statistics.median(spent) + statistics.median(drawing)
        return {
            "images_per_second": rate(len(scenes), spent),
            "images_per_second_with_drawing": {"median": len(scenes) / both},
            **seconds(spent),
            "drawing_over_rendering": statistics.median(drawing) / statistics.median(spent),
            "peak_memory_bytes": device_or_process_peak(scenes.device),
        }


def speed_table(record: dict[str, Any]) -> Table:
    width, height = record["size"]
    title = f"{record['count']} images of {width}x{height}, {record['objects']} objects"
    table = Table("what", "per second", "seconds", "peak memory", title=title)
    drawing = record["scene_drawing"]
    table.add_row("drawing scenes", f"{drawing['scenes_per_second']['median']:,.0f}", shown(drawing), "")
    for quality, numbers in record["quality"].items():
        speed = f"{numbers['images_per_second']['median']:,.0f}"
        memory = f"{numbers['peak_memory_bytes'] / 1e9:.2f} GB"
        table.add_row(f"rendering, {quality}", speed, shown(numbers), memory)
    return table


def shown(numbers: dict[str, Any]) -> str:
    return f"{numbers['seconds']['median']:.3f}"
