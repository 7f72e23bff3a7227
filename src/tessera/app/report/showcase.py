"""What `tessera demo` shows of the shipped models: samples, evaluation and locality within minutes, on whatever machine."""

import time
import timeit
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from rich.box import SIMPLE
from rich.table import Table

from tessera.app.report.columns import ReportColumn, ReportData, best_scores, measured_model, subject_record
from tessera.app.report.measure import LOCALITY_K, ColumnEvaluator, ReportConfig
from tessera.app.report.write import write_page
from tessera.console import say
from tessera.devices import synchronize
from tessera.evaluation.detection import ObjectDetector
from tessera.models.model import Model
from tessera.models.model_folder import load_model, shipped
from tessera.models.patchwise import Patchwise
from tessera.provenance import provenance
from tessera.rows import pick
from tessera.stats import counted
from tessera.studies.clevr.tables import k_max_words

_MODELS = ("exp1", "exp2", "exp2L")
_KS = (1, 3, 6, 9)
# Images for each K and steps of the sampler, the best that the time allows.
_LADDER = ((8, 18), (6, 16), (4, 16), (3, 14), (2, 12), (1, 12), (1, 8))
_SLOW = 0.25  # seconds for a call: from here on locality is measured on noised scenes, which need no sampling
PROBES, CHANNELS = LOCALITY_K + 1, 3
_BACKWARD = 0.5  # calls that a backward pass of one probe and channel costs when many go together
_HASTE = 1.3  # what is planned takes about so much longer: detecting, the page, others on the machine
_PATIENT = ReportConfig(n=1, ks=_KS, steps=1, images=1, levels=1)  # content with whatever was measured before


def models_to_show() -> list[str]:
    """Those of the demo's models that come with this version."""
    return [name for name in _MODELS if name in shipped()]


def showcase(
    names: Sequence[str], out: Path, detector: ObjectDetector, device: torch.device, minutes: float, seed: int = 0
) -> dict[str, Any]:
    """Measure the models within about `minutes` and write report.html. Returns the summary."""
    begun = time.monotonic()
    found = ReportData()
    for number, name in enumerate(names):
        left = 60 * minutes - (time.monotonic() - begun)
        found.subjects.append(shown(name, out, detector, device, left / (len(names) - number), seed))
    measurer = ColumnEvaluator(device, _PATIENT, detector)
    write_page(found, measurer, out / "report.html", "The shipped models", "tessera demo")
    return {
        "models": [subject_record(subject) for subject in found.subjects],
        "drawn": {subject.name: _drawn_rows(subject) for subject in found.subjects},
        "seconds": round(time.monotonic() - begun, 1),
        "seed": seed,
        "provenance": provenance(device),
    }


def shown(
    name: str, out: Path, detector: ObjectDetector, device: torch.device, seconds: float, seed: int
) -> ReportColumn:
    model = load_model(name, device)
    folder = out / "measured" / name
    measurer = ColumnEvaluator(device, replace(_PATIENT, seed=seed), detector)
    if not measurer.knows(model, folder):
        measurer.config = config_within(model, device, seconds, seed)
    return measured_model(name, model, measurer, folder, best_scores(model))


# --- what the time allows -----------------------------------------------------------------------------------


def config_within(model: Model, device: torch.device, seconds: float, seed: int = 0) -> ReportConfig:
    """The most images and steps that this machine manages with this network in the given time."""
    each = seconds_per_call(model, device)
    say(f"One call of the network takes {1000 * each:.0f} ms here.")
    for n, steps in _LADDER:
        config = ReportConfig(
            n=n, ks=_KS, steps=steps, seed=seed, images=1, levels=min(8, steps),
            source="truth" if each > _SLOW else "generated",
        )  # fmt: skip
        if _HASTE * each * calls(config, isinstance(model.denoiser, Patchwise)) <= seconds:
            return config
    return replace(config, levels=6)


def calls(config: ReportConfig, patchwise: bool) -> float:
    """Network calls, for one image each, that an evaluation and a locality study take."""
    n, steps, levels = config.n or 1, config.steps or 1, config.levels or 1
    evaluation = n * len(_KS) * (2 * steps - 1)
    way = 0 if config.source == "truth" else 2 * steps - 1
    pixels = 0.0 if patchwise else levels * _BACKWARD * PROBES * CHANNELS  # a patch alone costs next to nothing
    return evaluation + way + pixels + levels * (1 + LOCALITY_K)


@torch.no_grad()
def seconds_per_call(model: Model, device: torch.device) -> float:
    """For one image, once everything is warm."""
    x = torch.randn(1, 3, model.size, model.size, device=device)
    cond = model.conditioner.at((), device=device)

    def call() -> None:
        model.denoiser(x, torch.ones((), device=device), cond)
        synchronize(device)

    return min(timeit.repeat(call, number=1, repeat=2))


# --- tables ------------------------------------------------------------------------------------------------


def _drawn_rows(subject: ReportColumn) -> list[dict[str, Any]]:
    """What was drawn here and now, whatever the model's card says."""
    rows = (subject.evaluation or {"result": {"rows": []}})["result"]["rows"]
    return pick(rows, ("k", "n", "all_found", "found", "extra"))


def showcase_table(summary: dict[str, Any]) -> Table:
    """A row for each model: what was drawn here for every K, K_max from its card, and its locality."""
    ks = sorted({row["k"] for rows in summary["drawn"].values() for row in rows})
    table = Table("model", *(f"K = {k}" for k in ks), "K_max", "paper", "locality", box=SIMPLE)
    for model in summary["models"]:
        drawn = {row["k"]: row for row in summary["drawn"][model["name"]]}
        found, k_max = model["conditional_locality"], (model["k_max"] or {}).get("paper")
        table.add_row(
            model["name"],
            *(filled(drawn.get(k)) for k in ks),
            k_max_words(k_max) if k_max else "",
            model["paper"]["text"],
            f"{found['value']:.2f}" if found else "",
        )
    table.caption = "K: images with all locations filled, of those drawn here"
    return table


def filled(row: dict[str, Any] | None) -> str:
    return "" if row is None else f"{counted(row['all_found'])} of {row['n']}"
