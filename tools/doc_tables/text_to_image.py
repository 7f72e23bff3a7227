"""Tables of docs/text-to-image.md, from results/sdxl-*.json."""

from collections.abc import Callable
from typing import Any, Protocol

from tessera.rows import NOT_RUN, Rows, or_not_run

WORDINGS = {
    "own": "one wording per category",
    "paper": "the paper's 8 prompts",
    "one": "one wording for all",
    "crossed": "every concept in every wording",
}
Record = dict[str, Any]


class Records(Protocol):
    """Where records are found by name."""

    def one(self, name: str) -> Record | None: ...


def cost(results: Records) -> Rows:
    """What the two commands would take, by `--dry-run`."""
    rows: Rows = [("command", "precision", "passes", "arithmetic", "time")]
    for verb in ("locality", "features"):
        for precision in ("bfloat16", "float32"):
            record = results.one(f"sdxl-dry-run-{verb}-{precision}")
            rows.append((f"`t2i {verb}`", precision, *(cost_cells(record) if record else [NOT_RUN] * 3)))
    return rows


def cost_cells(record: Record) -> list[str]:
    return [
        f"{sum(record['passes'].values()):,}",
        f"{record['pflop']:,.0f} PFLOP",
        f"{record['minutes']:,.0f} min at {record['tflops']:g} TFLOP/s",
    ]


def untrained(results: Records) -> Rows:
    """What untrained networks show, by the wording of the prompts, and a planted truth beside it."""
    rows: Rows = [("network", "prompts", "within / between, all layers", "p, all layers", "other untrained networks")]
    for name, label in (("untrained", "untrained"), ("planted", "untrained, categories planted in the text encoder")):
        record = results.one(f"sdxl-{name}")
        found = {study["prompts"]: study for study in record["studies"]} if record else {}
        rows += [(label, words, *layer_cells(found[key])) for key, words in WORDINGS.items() if key in found]
    return or_not_run(rows)


def layer_cells(study: Record) -> list[str]:
    layers = study["levels"][0]["layers"]
    ratios, ps = [layer["ratio"]["value"] for layer in layers], [layer["p"] for layer in layers]
    bands = [band for layer in layers if (band := layer["null"].get("ratio"))]
    null = ""
    if bands:
        ends = min(band["low"] for band in bands), max(band["high"] for band in bands)
        null = f"{ends[0]:.2f} to {ends[1]:.2f} ({bands[0]['networks']} of them)"
    return [f"{min(ratios):.2f} to {max(ratios):.2f}", f"{min(ps):.3f} to {max(ps):.3f}", null]


SDXL_TABLES: dict[str, Callable[[Any], Rows]] = {"sdxl-cost": cost, "sdxl-untrained": untrained}
