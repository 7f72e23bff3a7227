"""Pixel influence of many pixels in one batch, against one gradient at a time."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from rich.table import Table
from torch import Tensor

from tessera.analysis.pixel_influence import GradientConfig, Method, Pixel, memory_bytes, pixel_influence
from tessera.config import Settings, settings_for
from tessera.console import progress, publish
from tessera.devices import DeviceName, peak_memory, pick_device, synchronize
from tessera.errors import UserError
from tessera.models.build import build_denoiser
from tessera.models.contract import Denoiser
from tessera.provenance import provenance
from tessera.sampling.schedule import noise_levels
from tessera.scenes.random import seeded_generator

MOST_PROBES = 4  # of the slow way that are timed unless --whole; the rest would take just as long each


@dataclass(frozen=True)
class BenchLocality:
    """Time Eq. 9 for many probes, levels and images: batched, and by one autograd call per probe and channel."""

    experiment: str = "exp1"
    """Which network, by the experiment it belongs to."""
    preset: str = "small"
    """tiny, small or paper."""
    probes: int = 64
    """Probed pixels."""
    levels: int = 12
    """Noise levels."""
    images: int = 8
    """Images at each level."""
    memory: float = 4.0
    """GiB that gradients may take."""
    method: Method = "auto"
    """How the batched way computes gradients: auto, vmap, rows or loop."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """Of the network, for both ways."""
    whole: bool = False
    """Time all probes of the slow way, rather than a few, scaled up."""
    repeats: int = 3
    """Timed repeats of the batched way; the median counts."""
    seed: int = 0
    """Of weights and images."""
    device: DeviceName = "auto"
    """Where to compute."""
    json: bool = False
    """Print one JSON object on stdout."""
    out: Path | None = None
    """Write the JSON object to this file too."""

    def run(self) -> None:
        if min(self.probes, self.levels, self.images, self.repeats) < 1:
            raise UserError("A measurement needs at least one probe, level, image and repeat.")
        record = self.measure(pick_device(self.device))
        publish(record, self.json, self.out, speed_table(record))

    def measure(self, device: torch.device) -> dict[str, Any]:
        settings, how = (
            settings_for(self.experiment, self.preset),
            GradientConfig(self.method, memory_bytes(self.memory)),
        )
        denoise = awake(settings, self.precision, self.seed).to(device)
        x, sigma, cond = images_for(denoise, self.levels, self.images, self.seed, device)
        at = spread_probes(self.probes, x.shape[-1])
        with progress("measuring", self.repeats + 3) as advance:
            batched, fast = timed(
                lambda: pixel_influence(denoise, x, sigma, cond, at=at, how=how), self.repeats, device, advance
            )
            memory = peak_memory(device)
            few = at if self.whole else at[:: max(1, len(at) // MOST_PROBES)][:MOST_PROBES]
            shared, slow = timed(lambda: plainly(denoise, x, sigma, cond, few, self.levels, True), 1, device, advance)
            alone, _ = timed(lambda: plainly(denoise, x, sigma, cond, few, self.levels, False), 1, device, advance)
        scale = len(at) / len(few)
        index = [at.index(pixel) for pixel in few]
        return {
            "settings": settings.plain(),
            "size": x.shape[-1],
            "probes": self.probes,
            "levels": self.levels,
            "images": self.images,
            "precision": self.precision,
            "method": self.method,
            "seconds": {
                "batched": batched,
                "one_call_per_probe_and_channel": scale * alone,
                "same_with_one_forward_for_all_probes": scale * shared,
            },
            "probes_timed_one_by_one": len(few),
            "ratio": scale * alone / batched,
            "ratio_with_one_forward_for_all_probes": scale * shared / batched,
            "largest_difference": ((fast[:, index] - slow).abs().max() / slow.abs().max()).item(),
            "memory_budget_bytes": how.memory,
            "peak_memory_bytes": memory,
            "seed": self.seed,
            "provenance": provenance(device),
        }


def awake(settings: Settings, precision: str, seed: int) -> Any:
    """An untrained network whose output is not held at zero, so that every layer takes part."""
    denoise = build_denoiser(settings).eval().requires_grad_(False)
    random = seeded_generator(seed)
    for name, parameter in denoise.named_parameters():
        if name.endswith("gain"):
            parameter.copy_(0.5 + 0.5 * torch.rand((), generator=random))
    denoise.precision = precision  # type: ignore[assignment]
    return denoise


def images_for(
    denoise: Any, levels: int, images: int, seed: int, device: torch.device
) -> tuple[Tensor, Tensor, Tensor]:
    """Noise at every level, and the conditions of an empty scene: (S B, 3, H, W), (S B,), (S B, dim)."""
    sigma = noise_levels(levels)[:-1].repeat_interleave(images).to(device)
    shape = (levels * images, 3, denoise.size, denoise.size)
    noise = torch.randn(shape, generator=seeded_generator(seed)).to(device)
    x = noise * (sigma.square() + 0.25).sqrt()[:, None, None, None]
    return x, sigma, torch.zeros(len(x), denoise.cond_dim, device=device)


def spread_probes(count: int, size: int) -> list[Pixel]:
    """Pixels of a square lattice, row by row."""
    side = next(n for n in range(1, count + 1) if n * n >= count)
    if side > size:
        raise UserError(f"An image of {size} x {size} pixels has fewer than {count} to probe.")
    line = [int((n + 0.5) * size / side) for n in range(side)]
    return [Pixel(row, col) for row in line for col in line][:count]


def plainly(
    denoise: Denoiser, x: Tensor, sigma: Tensor, cond: Tensor, at: list[Pixel], levels: int, share: bool
) -> Tensor:
    """Eq. 9 one autograd call at a time: for each level, probe and channel. (S B, P, H, W).

    With `share` all probes of a level use one forward pass, otherwise each has its own.
    """
    parts = []
    for some, level, condition in zip(*(tensor.chunk(levels) for tensor in (x, sigma, cond))):
        some = some.clone().requires_grad_()
        clean = denoise(some, level, condition) if share else None
        maps = [one_probe(clean if share else denoise(some, level, condition), some, pixel) for pixel in at]
        parts.append(torch.stack(maps, dim=1))
    return torch.cat(parts)


def one_probe(clean: Tensor | None, x: Tensor, at: Pixel) -> Tensor:
    assert clean is not None
    pulls = [
        torch.autograd.grad(clean[:, c, at.row, at.col].sum(), x, retain_graph=True)[0][:, c]
        for c in range(clean.shape[1])
    ]
    return torch.stack(pulls).abs().sum(0)


def timed(work: Callable[[], Tensor], repeats: int, device: torch.device, advance: Callable) -> tuple[float, Tensor]:
    """Median seconds, and the last result; on an accelerator one call before the clock starts."""
    if device.type == "cuda":
        work()
        torch.cuda.reset_peak_memory_stats(device)
    seconds = []
    for _ in range(repeats):
        synchronize(device)
        began = time.perf_counter()
        found = work()
        synchronize(device)
        seconds.append(time.perf_counter() - began)
        advance()
    return statistics.median(seconds), found.detach()


def speed_table(record: dict[str, Any]) -> Table:
    what = f"{record['probes']} probes, {record['levels']} levels, {record['images']} images"
    table = Table("way", "seconds", "times slower", title=f"pixel influence: {what}")
    spent = record["seconds"]
    table.add_row("batched", f"{spent['batched']:.2f}", "1")
    slow = ("one_call_per_probe_and_channel", "same_with_one_forward_for_all_probes")
    for name, ratio in zip(slow, ("ratio", "ratio_with_one_forward_for_all_probes")):
        table.add_row(name.replace("_", " "), f"{spent[name]:.2f}", f"{record[ratio]:.2f}")
    return table
