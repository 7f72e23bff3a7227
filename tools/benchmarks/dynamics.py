"""Seconds of a phase diagram of the swing-by model."""

import os
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from tessera import console
from tessera.errors import UserError
from tessera.provenance import provenance
from tessera.studies.swingby.sweep import PhaseSettings, phase_diagram


@dataclass(frozen=True)
class BenchDynamics:
    """Seconds for a phase diagram (signal ratio by size of the start) of the symmetric model, every run to its end."""

    cells: int = 40
    """Settings per axis."""
    seeds: int = 20
    """Starts per setting."""
    repeats: int = 3
    """Timed repeats; the median counts."""
    json: bool = False
    """Print one JSON object."""
    out: Path | None = None
    """Write the JSON object to this file too."""

    def run(self) -> None:
        record = self.measure()
        console.publish(record, self.json, self.out, speed_table(record))

    def measure(self) -> dict[str, Any]:
        settings = PhaseSettings(cells=self.cells, seeds=self.seeds)
        settings.check()
        if self.repeats < 1:
            raise UserError(f"--repeats must be at least 1, not {self.repeats}.")
        runs = self.cells**2 * self.seeds
        seconds = []
        with console.progress("runs", runs * self.repeats) as advance:
            for _ in range(self.repeats):
                began = time.perf_counter()
                phase = phase_diagram(settings, advance)
                seconds.append(time.perf_counter() - began)
        middle = statistics.median(seconds)
        return {
            "cells": self.cells,
            "seeds": self.seeds,
            "runs": runs,
            "repeats": self.repeats,
            "seconds": {"median": middle, "min": min(seconds), "max": max(seconds)},
            "runs_per_second": runs / middle,
            "swing_by_share": float(phase.share.mean()),
            "cores": os.cpu_count(),
            "threads_used": 1,
            "provenance": provenance(),
        }


def speed_table(record: dict[str, Any]) -> Table:
    table = Table("runs", "seconds (median)", "fastest", "slowest", "runs per second")
    spent = record["seconds"]
    table.add_row(
        str(record["runs"]),
        *(f"{spent[name]:.2f}" for name in ("median", "min", "max")),
        f"{record['runs_per_second']:.0f}",
    )
    return table
