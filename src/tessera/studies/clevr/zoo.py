"""The model zoo: the study's models that ship with the package."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.table import Column, Table

from tessera.config import EXPERIMENTS
from tessera.console import NARROW
from tessera.files import read_json
from tessera.models.model_folder import CARD, CONFIG, WEIGHTS, find_model
from tessera.studies.clevr.entries import CELLS
from tessera.studies.clevr.tables import k_max_words

# Names of the models, and the entry of the study each is.
ZOO = {
    "exp1": "exp1-M3",
    "exp2": "exp2-M3",
    "exp3": "exp3-M3",
    "exp2L": "exp2L-M3",
    "exp1-M1": "exp1-M1",
    "exp2L-M1": "exp2L-M1",
    "color": "color-M5",
}


def described(name: str) -> dict[str, Any]:
    folder = find_model(name)
    config = read_json(folder / CONFIG)
    settings = config.get("settings") or {}
    experiment = settings.get("experiment")
    return {
        "name": name,
        "experiment": experiment,
        "about": EXPERIMENTS[experiment].about if experiment in EXPERIMENTS else "",
        "objects": settings.get("data", {}).get("objects"),
        "size": config["denoiser"]["size"],
        "bytes": size_of(folder),
        "images_seen": config.get("images_seen"),
        "k_max": (config.get("results") or {}).get("k_max"),
        "paper": CELLS[config["cell"]].paper.plain() if config.get("cell") in CELLS else None,
    }


def zoo_table(models: Sequence[dict[str, Any]]) -> Table:
    heads = ("condition", "scenes", "pixels", "MB")
    numbers = [Column(head, max_width=8) for head in ("paper", "ours, paper rule", "strict rule")]
    table = Table(Column("model", no_wrap=True), *heads, *numbers, **NARROW)
    for model in models:
        low, high = model["objects"] or (None, None)
        found = model["k_max"]
        ours = [k_max_words(found[rule]) if found else "not evaluated" for rule in ("paper", "strict")]
        paper = model["paper"]["text"] if model["paper"] else ""
        size, megabytes = str(model["size"]), f"{model['bytes'] / 1e6:.1f}"
        table.add_row(model["name"], model["about"], f"{low}-{high}", size, megabytes, paper, *ours)
    return table


def size_of(folder: Path) -> int:
    return sum((folder / name).stat().st_size for name in (CONFIG, WEIGHTS, CARD))
