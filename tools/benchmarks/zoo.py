"""Seconds per image of the shipped models."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, get_args

import tyro
from rich.box import SIMPLE
from rich.table import Table

from benchmarks.training import interval
from doc_tables.study import speed_rows
from tessera.config import look_up
from tessera.console import publish
from tessera.devices import DeviceName, PrecisionName, pick_device, precision_on, synchronize
from tessera.errors import UserError
from tessera.evaluation.pipeline import sample_evenly
from tessera.models.loading import set_precision
from tessera.models.model import Model
from tessera.models.model_folder import load_model, shipped
from tessera.provenance import provenance
from tessera.sampling.prompts import study_prompts


@dataclass(frozen=True)
class BenchZoo:
    """Seconds per image of each shipped model on this machine."""

    each: int = 4
    """Images made together in one round."""
    rounds: int = 3
    """Timed rounds, after one that does not count."""
    steps: int = 32
    """Noise levels of a sample (each but the last takes two calls of the network)."""
    only: Annotated[str | None, tyro.conf.arg(metavar="NAMES", help_behavior_hint="")] = None
    """Only these models, by name or folder (default: all that are shipped)."""
    precision: Annotated[str, tyro.conf.arg(metavar="LIST")] = "auto"
    """Precisions to compare, such as float32,bfloat16, taken in turns; auto is bfloat16 on CUDA, else float32."""
    device: DeviceName = "auto"
    """Where to compute."""
    json: bool = False
    """Print one JSON object."""

    def run(self) -> None:
        if min(self.each, self.rounds, self.steps) < 1:
            raise UserError("A measurement needs at least one image, one round and one step.")
        for precision in self.precisions():
            look_up(precision, dict.fromkeys(get_args(PrecisionName)), "precision")
        names = shipped() if self.only is None else self.only.replace(",", " ").split()
        if not names:
            raise UserError("No models are shipped with this version; tools/pack_zoo.py packs them.")
        device = pick_device(self.device)
        models = {Path(name).name: self.measure(load_model(name, device), device) for name in names}
        record = {"models": models, "steps": self.steps, "each": self.each, "rounds": self.rounds, "seeds": [0]}
        record["provenance"] = provenance(device)
        publish(record, self.json, None, bench_table(record))

    def precisions(self) -> list[str]:
        return self.precision.replace(",", " ").split() or ["auto"]

    def measure(self, model: Model, device) -> dict[str, Any]:
        """Precisions take turns, so that what else the machine does falls on all of them."""
        seconds: dict[str, list[float]] = {}
        for _ in range(self.rounds + 1):
            for precision in dict.fromkeys(precision_on(device, name) for name in self.precisions()):
                seconds.setdefault(precision, []).append(self.timed(model, precision, device))
        weights = sum(p.numel() for p in model.denoiser.parameters())
        spans = {precision: interval(found[1:]) for precision, found in seconds.items()}
        return {"weights": weights, "size": model.size, "seconds_per_image": spans}

    def timed(self, model: Model, precision: str, device) -> float:
        """Seconds per image of one round."""
        set_precision(model, precision, device)
        prompts = study_prompts(model.conditioner, [3], self.each, seed=0)
        begun = time.perf_counter()
        sample_evenly(model, prompts, self.steps, device)
        synchronize(device)
        return (time.perf_counter() - begun) / self.each


def bench_table(record: dict[str, Any]) -> Table:
    table = Table("model", "weights", "precision", "seconds per image", "against the first", box=SIMPLE)
    for row in speed_rows(record):
        table.add_row(*row)
    return table
