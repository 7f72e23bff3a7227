"""Training and one denoise call: speed, use of the device, memory."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import tyro
from rich.table import Table
from torch import Tensor

from _common import settings_with
from benchmarks.flops import flops_per_image
from tessera.config import Settings, fitting, parse_changes, settings_for
from tessera.console import publish
from tessera.devices import DeviceName, pick_device, precision_on, synchronize, taken_memory
from tessera.errors import UserError
from tessera.models.build import build_denoiser
from tessera.models.contract import innermost, trained_network
from tessera.models.edm2 import EDM2
from tessera.provenance import provenance
from tessera.stats import student
from tessera.training.run_folder import _stream_for
from tessera.training.strategies import chosen_strategy
from tessera.training.trainer import Trainer

# Dense bfloat16 rates by the vendors' data sheets, operations per second; others count as unknown.
PEAK_FLOPS = {"H200": 989e12, "H100": 989e12, "A100": 312e12, "L40S": 362e12, "RTX 4090": 165e12}


@dataclass(frozen=True)
class BenchTrain:
    """Measure training: images per second with and without rendering, FLOP/s utilization, peak memory."""

    experiment: tyro.conf.Positional[str] = "exp1"
    """Which experiment of the table."""
    preset: str = "small"
    """tiny, small or paper."""
    steps: int = 20
    """Steps timed in each of the rounds."""
    warmup: int = 5
    """Steps before the clock starts (compilation happens there)."""
    rounds: int = 5
    """Rounds, from whose spread the interval is made."""
    profile: bool = False
    """List where the device's time goes, kernel by kernel, in a few more steps."""
    device: DeviceName = "auto"
    """Where to compute."""
    set: tuple[str, ...] = ()
    """Settings other than the preset's, such as denoiser.width=32 training.batch=64."""
    json: bool = False
    """Print one JSON object on stdout."""

    def run(self) -> None:
        if min(self.steps, self.rounds) < 1:
            raise UserError("A measurement needs at least one round of one step.")
        device = pick_device(self.device)
        settings, _ = settings_with(self.experiment, self.preset, self.set)
        record = measure_training(settings, device, self.steps, self.warmup, self.rounds, self.profile)
        publish(record, self.json, None, training_table(record))


def measure_training(
    settings: Settings, device: torch.device, steps: int, warmup: int, rounds: int, profile: bool = False
) -> dict[str, Any]:
    """The record that `bench.py train --json` prints."""
    trainer = Trainer(build_denoiser(settings), settings.training, device)
    batch = settings.training.batch
    batches = _stream_for(settings).steps(0, batch, settings.training.render_batch, device=device)
    begun = time.perf_counter()
    fixed = next(batches)
    for _ in range(warmup + 1):
        trainer.step(fixed)
    synchronize(device)
    startup = time.perf_counter() - begun
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    excluded = rates(lambda: trainer.step(fixed), steps, rounds, batch, device)
    included = rates(lambda: trainer.step(next(batches)), steps, rounds, batch, device)
    seconds_per_total = settings.training.total / included["value"]
    return {
        "settings": settings.plain(),
        "weights": sum(p.numel() for p in trainer.denoiser.parameters()),
        "precision": precision_on(device, settings.training.precision),
        "strategy": trainer.strategy,
        "images_per_second": included,
        "images_per_second_without_rendering": excluded,
        "utilization": utilization(trainer, excluded["value"]),
        "peak_memory_bytes": taken_memory(device),
        "startup_seconds": round(startup, 2),
        "gpu_hours_for_total": round(seconds_per_total / 3600, 3),
        **(where_time_goes(lambda: trainer.step(fixed), device) if profile else {}),
        "seeds": {"training": settings.training.seed, "data": settings.data.seed},
        "provenance": provenance(device),
    }


def where_time_goes(work: Callable[[], Any], device: torch.device, steps: int = 3, most: int = 40) -> dict[str, Any]:
    """Milliseconds per step of each kind of kernel, and the busiest kernels (operations, on a CPU)."""
    from torch.profiler import ProfilerActivity, profile

    on_gpu = device.type == "cuda"
    activity = ProfilerActivity.CUDA if on_gpu else ProfilerActivity.CPU
    with profile(activities=[activity]) as seen:
        for _ in range(steps):
            work()
        synchronize(device)
    rows = [
        (event.self_device_time_total if on_gpu else event.self_cpu_time_total, event.count, event.key)
        for event in seen.key_averages()
    ]
    kinds: dict[str, float] = {}
    for spent, _, name in rows:
        kinds[kind_of(name)] = kinds.get(kind_of(name), 0.0) + spent / 1e3 / steps
    busiest = [
        {"name": name, "ms": round(spent / 1e3 / steps, 3), "calls": count / steps}
        for spent, count, name in sorted(rows, reverse=True)[:most]
    ]
    return {"kinds": {kind: round(ms, 3) for kind, ms in kinds.items()}, "kernels": busiest}


# The first word that a kernel's name contains says what it does.
KINDS = {
    "sdpa": "attention",
    "flash": "attention",
    "wgrad": "convolution",
    "dgrad": "convolution",
    "fprop": "convolution",
    "conv": "convolution",
    "gemm": "matrix product",
    "nvjet": "matrix product",
    "Adam": "optimizer",
    "multi_tensor": "optimizer",
    "_update_rows": "optimizer",
}


def kind_of(kernel: str) -> str:
    compiled = kernel.startswith("triton_")  # such names list the operations fused, convolutions' too
    return "fused" if compiled else next((kind for word, kind in KINDS.items() if word in kernel), "other")


def rates(work: Callable[[], Any], steps: int, rounds: int, images: int, device: torch.device) -> dict[str, Any]:
    """Images per second over several rounds, with a 95% interval of their mean."""
    found = []
    for _ in range(rounds):
        synchronize(device)
        begun = time.perf_counter()
        for _ in range(steps):
            work()
        synchronize(device)
        found.append(steps * images / (time.perf_counter() - begun))
    return {**interval(found), "rounds": rounds, "steps_per_round": steps}


def interval(values: list[float]) -> dict[str, Any]:
    """Mean and 95% interval (Student's t)."""
    return student(values).to_dict()


def utilization(trainer: Trainer, images_per_second: float) -> dict[str, Any]:
    """Arithmetic done per second, of the network alone, and its share of what the device could do."""
    network = innermost(trainer.denoiser)
    if not isinstance(network, EDM2):
        return {"flops_per_image": None, "flops_per_second": None, "share_of_peak": None}
    views = getattr(trainer.settings, "patches", 1)
    per_image = views * flops_per_image(network)
    rate, peak = per_image * images_per_second, peak_flops(trainer.device)
    share = None if peak is None else rate / peak
    return {"flops_per_image": per_image, "flops_per_second": rate, "share_of_peak": share}


def peak_flops(device: torch.device) -> float | None:
    if device.type != "cuda":
        return None
    name = torch.cuda.get_device_name(device)
    return next((rate for word, rate in PEAK_FLOPS.items() if word in name), None)


def training_table(record: dict[str, Any]) -> Table:
    table = Table("what", "value", title="training speed")
    use, memory = record["utilization"], record["peak_memory_bytes"]
    rows = {
        "weights": f"{record['weights']:,}",
        "images/s, rendering included": spread(record["images_per_second"]),
        "images/s, rendering excluded": spread(record["images_per_second_without_rendering"]),
        "network TFLOP/s": "-" if use["flops_per_second"] is None else f"{use['flops_per_second'] / 1e12:.3g}",
        "share of the device's peak": "-" if use["share_of_peak"] is None else f"{use['share_of_peak']:.1%}",
        "peak memory": "-" if memory is None else f"{memory / 2**30:.2f} GiB",
        "hours for the whole training": f"{record['gpu_hours_for_total']:.3g}",
    }
    for name, value in rows.items():
        table.add_row(name, value)
    return table


def spread(rate: dict[str, Any]) -> str:
    ends = "" if rate["low"] is None else f" ({rate['low']:,.1f} to {rate['high']:,.1f})"
    return f"{rate['value']:,.1f}{ends}"


# -- one denoise call --------------------------------------------------------------------------------------


COMPARED = {"edm2": "exp1", "localconv": "exp1C", "patchwise": "exp2L"}  # network: a row that uses it


@dataclass(frozen=True)
class BenchDenoise:
    """Compare one denoise call of the patchwise and the local convolutional network with the global one."""

    preset: str = "small"
    """tiny, small or paper."""
    batch: int = 16
    """Images per call."""
    repeats: int = 10
    """Timed calls of each network."""
    device: DeviceName = "auto"
    """Where to compute."""
    set: tuple[str, ...] = ()
    """Settings of all networks, such as denoiser.width=32 training.precision=bfloat16."""
    json: bool = False
    """Print one JSON object on stdout."""

    def run(self) -> None:
        if min(self.batch, self.repeats) < 1:
            raise UserError("A measurement needs at least one image and one call.")
        device = pick_device(self.device)
        changes, rows = parse_changes(self.set), {}
        for kind, row in COMPARED.items():
            own = fitting(settings_for(row, self.preset), changes)
            rows[kind] = settings_for(row, self.preset, own)
        record = measure_denoising(rows, device, self.batch, self.repeats)
        publish(record, self.json, None, denoise_table(record))


def measure_denoising(rows: dict[str, Settings], device: torch.device, batch: int, repeats: int) -> dict[str, Any]:
    """The record that `bench.py denoise --json` prints; ratios are to the global network."""
    found = {kind: time_one(settings, device, batch, repeats) for kind, settings in rows.items()}
    settings = rows["edm2"]
    base = found["edm2"]["seconds"]["value"]
    for entry in found.values():
        entry["ratio"] = entry["seconds"]["value"] / base
    return {
        "preset": settings.preset,
        "size": settings.data.size,
        "batch": batch,
        "repeats": repeats,
        "precision": precision_on(device, settings.training.precision),
        "strategy": chosen_strategy(settings.training, device),
        "networks": found,
        "provenance": provenance(device),
    }


def time_one(settings: Settings, device: torch.device, batch: int, repeats: int) -> dict[str, Any]:
    """Weights and seconds of one call."""
    denoiser = build_denoiser(settings).to(device).eval().requires_grad_(False)
    denoiser.precision = precision_on(device, settings.training.precision)  # type: ignore[assignment]
    if chosen_strategy(settings.training, device) != "eager":
        trained_network(denoiser).compile(dynamic=False)
    size = settings.data.size
    x = torch.randn(batch, 3, size, size, generator=torch.Generator().manual_seed(0)).to(device)
    cond = torch.zeros(batch, denoiser.cond_dim, device=device)  # type: ignore[call-overload]
    sigma = torch.tensor(1.0, device=device)
    seconds = timed(lambda: denoiser(x, sigma, cond), repeats, device)
    return {"weights": sum(p.numel() for p in denoiser.parameters()), "seconds": interval(seconds)}


def timed(work: Callable[[], Tensor], repeats: int, device: torch.device) -> list[float]:
    """Seconds of each call, after two that do not count."""
    found = []
    with torch.no_grad():
        for _ in range(repeats + 2):
            synchronize(device)
            begun = time.perf_counter()
            work()
            synchronize(device)
            found.append(time.perf_counter() - begun)
    return found[2:]


def denoise_table(record: dict[str, Any]) -> Table:
    table = Table("network", "weights", "ms per call", "against global", title="one denoise call")
    for kind, entry in record["networks"].items():
        row = (f"{entry['weights']:,}", f"{1e3 * entry['seconds']['value']:.2f}", f"{entry['ratio']:.2f} x")
        table.add_row(kind, *row)
    return table
