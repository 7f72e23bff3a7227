"""How length generalization comes about: K_max and the share of right images at moments of training.

The learning dynamics ask whether a composition is learned once and for all or is lost again on the way (swing-by). Here
the composition is a number of objects that training never shows.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from rich.table import Table

from tessera.analysis.scatter import training_name
from tessera.plots.figures import distinct_colors
from tessera.rows import columns
from tessera.stats import binomial_curves, counted
from tessera.studies.clevr.records import Record, moments_of
from tessera.studies.swingby import analysis

FEWEST = 3  # moments, below which nothing can fall, rise and fall again
_RESAMPLES = 2000


def has_course(record: Record, k: int) -> bool:
    moments = moments_of(record)
    return len(moments) >= FEWEST and all(_row_at(moment, k) is not None for moment in moments)


def _row_at(moment: Mapping[str, Any], k: int) -> Mapping[str, Any] | None:
    return next((row for row in moment["rows"] if row["k"] == k), None)


def learning(record: Record, k: int) -> dict[str, Any]:
    """One training's course: images, K_max by the paper rule, share of images that show all K, and its rise."""
    moments = moments_of(record)
    shares = [_row_at(moment, k)["all_found"] for moment in moments]  # type: ignore[index]
    return {
        "cell": record["cell"],
        "seed": record["seed"],
        "images": [moment["images_seen"] for moment in moments],
        "k_max": [moment["k_max"]["paper"]["value"] for moment in moments],
        "all_found": shares,
        **loss_of_what_was_learned(shares),
    }


def loss_of_what_was_learned(shares: Sequence[Mapping[str, Any]], seed: int = 0) -> dict[str, Any]:
    """How far the error rises after a minimum, and how often the scatter of so few images would do as much."""
    count, total = np.array([(counted(share), share["n"]) for share in shares]).T
    errors = 1 - count / total
    drawn = 1 - binomial_curves(seed, count / total, total, _RESAMPLES)  # (R, T)
    return {"rise": float(analysis.rise(errors)), **analysis.chance_of_rise(errors, drawn)}


def table(rows: Sequence[Mapping[str, Any]]) -> Table:
    shown = Table("cell", "seed", "K_max on the way", "share on the way", "lost again", "by chance", "p")
    for row in rows:
        along = " ".join(map(str, row["k_max"])), " ".join(f"{share['value']:.2f}" for share in row["all_found"])
        numbers = (f"{row[name]:.3f}" for name in ("rise", "rise_by_chance", "p"))
        shown.add_row(row["cell"], str(row["seed"]), *along, *numbers)
    return shown


def drawn(rows: Sequence[Mapping[str, Any]], k: int) -> Figure:
    """K_max and the share of images with all K objects, over images seen."""
    figure = Figure(figsize=(9.6, 3.6))
    left, right = figure.subplots(1, 2)
    for row, shade in zip(rows, distinct_colors(len(rows))):
        images = np.array(row["images"]) / 2**20
        shares = row["all_found"]
        name = training_name(row["cell"], row["seed"])
        left.plot(images, row["k_max"], "o-", color=shade, ms=3)
        right.plot(images, [share["value"] for share in shares], "o-", color=shade, ms=3, label=name)
        right.fill_between(images, *columns(shares, "low", "high"), color=shade, alpha=0.12, lw=0)
    left.set(xlabel="images seen (Mi)", ylabel="K_max, paper rule", ylim=(0, None))
    right.set(xlabel="images seen (Mi)", ylabel=f"images with all {k} objects", ylim=(0, 1.02))
    left.yaxis.set_major_locator(MaxNLocator(integer=True))
    right.legend(frameon=False, fontsize=7, loc="center left", bbox_to_anchor=(1.01, 0.5))
    return figure
