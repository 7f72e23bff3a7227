"""Many locations, or locations close together: why a model stops filling them as K grows.

As K grows, the study's locations also come closer to one another, so K_max alone cannot separate the two causes. Here a model
is prompted with the same numbers of locations as far apart as possible, and with the study's locations two at a time, a number
within the training range. Rendered scenes at the same locations bound what any model could reach under occlusion.
"""

import math
from collections.abc import Sequence
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tessera import console
from tessera.conditioning.contract import Location
from tessera.evaluation.calibrate import visible_at
from tessera.evaluation.kmax import Counts, TrainingRange, generalization_record
from tessera.evaluation.matching import CELL, ImageScore, filled_at
from tessera.evaluation.pipeline import Evaluator, score_images
from tessera.evaluation.results import Evaluation
from tessera.models.model_folder import Model
from tessera.render.render import render
from tessera.rows import columns, pick
from tessera.sampling.prompts import Prompt, own_prompts
from tessera.scenes.placement import reachable
from tessera.scenes.vocabulary import LOCATIONS, SIZES

_ACROSS = round(1 / CELL)  # cells along one side of the grid
KEPT = ("k", "n", "all_found", "two_missing", "found", "extra")


class Question(NamedTuple):
    """So many images of these locations."""

    kind: str  # study, apart or pair
    locations: tuple[Location, ...]
    images: int


class _Reply(NamedTuple):
    """What a model made of a question, and the detector of rendered scenes at the same locations."""

    question: Question
    targets: tuple[Location, ...]  # the locations as the conditioner encodes them
    drawn: list[ImageScore]
    rendered: list[ImageScore]


def far_apart(k: int) -> tuple[Location, ...]:
    """Centers of k cells that official scenes can fill, whose nearest two are as far apart as farthest-first goes."""
    middles = (torch.arange(_ACROSS) + 0.5) / _ACROSS
    cells = torch.cartesian_prod(middles, middles)
    # Objects of every size may stand in these by the official rules.
    cells = cells[torch.stack([reachable(cells, size) for size in SIZES]).all(0)]
    apart = torch.cdist(cells, cells)  # (N, N)
    best: tuple[float, list[int]] = (-1.0, [])
    for first in range(len(cells)):
        chosen = [first]
        while len(chosen) < k:
            chosen.append(int(apart[chosen].amin(0).argmax()))
        nearest = smallest_gap(cells[chosen].tolist())
        if nearest > best[0]:
            best = (nearest, chosen)
    return tuple((x, y) for x, y in cells[best[1]].tolist())


def smallest_gap(locations: Sequence[Location]) -> float:
    """Distance of the nearest two; there is none among fewer."""
    return min((math.dist(one, other) for one, other in combinations(locations, 2)), default=math.inf)


# --- asking -------------------------------------------------------------------------------------------------


def scored(
    evaluator: Evaluator, model: Model, questions: Sequence[Question], *, steps: int, s_churn: float, seed: int
) -> list[_Reply]:
    """All questions in one go, as images of different questions fill a batch together."""
    prompts = [own_prompts(model.conditioner, locations, images, seed) for _, locations, images in questions]
    flat = [prompt for several in prompts for prompt in several]
    scores = iter(evaluator.score(model, flat, steps, s_churn).scores)
    replies = []
    with console.progress("rendering", len(questions)) as advance:
        for question, several in zip(questions, prompts):
            seen = rendered(evaluator, several, model.size, seed)
            replies.append(_Reply(question, several[0].targets, [next(scores) for _ in several], seen))
            advance()
    return replies


def rendered(evaluator: Evaluator, prompts: Sequence[Prompt], size: int, seed: int) -> list[ImageScore]:
    """The detector on scenes that do have an object at every prompted location: the best a model could do."""
    scenes = visible_at(prompts[0].targets, len(prompts), seed, device=evaluator.device)
    return score_images(evaluator.detector, render(scenes, size)["rgb"], prompts)


# --- records ------------------------------------------------------------------------------------------------


def summarized(model: Model, replies: Sequence[_Reply]) -> dict[str, Any]:
    """K_max and the shares of every K, location by location."""
    counts = [Counts.of(len(reply.targets), reply.drawn) for reply in replies]
    training = TrainingRange.of(model.config.get("settings"))
    scores = generalization_record(counts, training.max_train_objects, training.label)
    rows = pick(scores["rows"], KEPT)
    details = {len(reply.targets): _location_by_location(reply) for reply in replies}
    return {"k_max": scores["k_max"], "rows": [{**row, **details[row["k"]]} for row in rows]}


def _location_by_location(reply: _Reply) -> dict[str, Any]:
    gap = smallest_gap(reply.targets)
    return {
        "locations": [list(location) for location in reply.question.locations],
        "nearest_cells": None if math.isinf(gap) else gap / CELL,
        "filled_at": filled_at(reply.drawn),
        "rendered": {
            "all_found": Evaluation(reply.rendered).all_found.to_dict(),
            "filled_at": filled_at(reply.rendered),
        },
    }


def pair_record(reply: _Reply) -> dict[str, Any]:
    """Two of the study's locations, by their numbers in the study's order, and how often both are filled."""
    (x, y), (u, v) = reply.targets
    return {
        "pair": [LOCATIONS.index(location) for location in reply.question.locations],
        "cells": round(max(abs(x - u), abs(y - v)) / CELL),
        "both": sum(score.missing == 0 for score in reply.drawn),
        "rendered": sum(score.missing == 0 for score in reply.rendered),
        "n": len(reply.drawn),
    }


# --- figure -------------------------------------------------------------------------------------------------


def drawn(record: dict[str, Any]) -> Figure:
    """Left: how often each of the study's locations is filled, by K. Right: all of them, and of as many far apart."""
    figure = Figure(figsize=(9.6, 4.2))
    left, right = figure.subplots(1, 2)
    _draw_locations(left, record["study"]["rows"])
    for name, label, shade in (("study", "the study's locations", "C3"), ("apart", "far apart", "C0")):
        _draw_shares(right, record[name]["rows"], label, shade)
    right.set(xlabel="K, prompted locations", ylabel="images with all of them filled", ylim=(0, 1.03))
    if record["max_train_objects"]:
        right.axvspan(0.5, record["max_train_objects"] + 0.5, color="0.93", lw=0, label="shown in training", zorder=0)
    right.legend(frameon=False, fontsize=8)
    figure.suptitle(record["model"])
    return figure


def _draw_locations(ax: Axes, rows: Sequence[dict[str, Any]]) -> None:
    most = max(row["k"] for row in rows)
    shares = np.full((most, len(rows)), np.nan)
    for column, row in enumerate(rows):
        shares[: row["k"], column] = np.array(row["filled_at"]) / row["n"]
    ax.imshow(shares, cmap="RdYlGn", vmin=0, vmax=1, aspect="auto")
    for (location, column), share in np.ndenumerate(shares):
        if not np.isnan(share):
            shade = "white" if abs(share - 0.5) > 0.4 else "black"  # the ends of the color map are dark
            ax.text(column, location, f"{100 * share:.0f}", ha="center", va="center", fontsize=7, color=shade)
    ax.set(xlabel="K, prompted locations", title="images with this location filled, %")
    ax.set_xticks(range(len(rows)), [str(row["k"]) for row in rows])
    ax.set_yticks(range(most), [f"{x:.2f}, {y:.2f}" for x, y in LOCATIONS[:most]], fontsize=7)


def _draw_shares(ax: Axes, rows: Sequence[dict[str, Any]], label: str, shade: str) -> None:
    ks, shares = [row["k"] for row in rows], [row["all_found"] for row in rows]
    ax.plot(ks, [share["value"] for share in shares], "o-", color=shade, ms=3, label=label)
    low, high = columns(shares, "low", "high")
    ax.fill_between(ks, low, high, color=shade, alpha=0.12, lw=0)
    seen = [row["rendered"]["all_found"]["value"] for row in rows]
    ax.plot(ks, seen, ":", color=shade, lw=1, label=f"{label}, rendered")
