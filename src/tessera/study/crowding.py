"""Is it how many, or how close? Why a model asked for ever more places stops filling them.

The study's places become more as K grows, and they also come closer to one another, so K_max alone cannot tell which of
the two a model fails at. Here it is asked for the same numbers of places as far apart as they go, and for the study's
places two at a time, which training shows. Rendered scenes at the very places say how much of that could be seen.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import tyro
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tessera import console
from tessera.conditioners import ColorCounts
from tessera.conditioners.contract import Place
from tessera.denoiser.folder import Model
from tessera.devices import DeviceName, pick_device
from tessera.errors import UserError
from tessera.files import make_folder, save_plot
from tessera.images.render import render
from tessera.judge.calibrate import visible_at
from tessera.judge.intervals import share_record
from tessera.judge.kmax import Counts, length_generalization
from tessera.judge.matching import CELL, Verdict, filled_at, match
from tessera.provenance import provenance
from tessera.sampler.asking import Ask, check_number, parse_ks, wish
from tessera.sampler.verbs import open_model
from tessera.scenes.placement import reachable
from tessera.scenes.vocabulary import LOCATIONS, SIZES
from tessera.study.exam import Examiner, label_of
from tessera.study.tables import crowding_pair_rows, crowding_rows
from tessera.study.verbs import open_judge

ACROSS = round(1 / CELL)  # cells along one side of the grid
KEPT = ("k", "n", "all_filled", "near", "found", "extra")


@dataclass(frozen=True)
class ReproduceCrowding:
    """Ask a model for the study's places, for as many far apart and for two at a time: is it how many, or how close?"""

    model: tyro.conf.Positional[str] = "exp1"
    """A run folder, a model folder or the name of a shipped model; it must be told places."""
    k: str = "1-12"
    """Numbers of places to ask for."""
    each: int = 64
    """Pictures for each K."""
    pairs: int = 16
    """Pictures for each pair of the study's places."""
    steps: int = 32
    """Noise levels on the way from noise to picture."""
    churn: float = 0.0
    """Fresh noise on the way."""
    seed: int = 0
    """Another seed gives other pictures."""
    results: Path = Path("results")
    """Where crowding-MODEL.json and its figure go."""
    device: DeviceName = "auto"
    """Where to compute."""
    json: bool = False
    """Print one JSON object."""

    def run(self) -> None:
        device = pick_device(self.device)
        model = open_model(self.model, None, None, device)
        questions = self.questions(model)
        figures = make_folder(self.results / "figures")  # before the work, lest it be lost
        examiner = Examiner(open_judge(device), None, device)
        replies = answered(examiner, examiner.ready(model), questions, self)
        name = Path(self.model).name
        asked = {"each": self.each, "pairs": self.pairs, "steps": self.steps, "churn": self.churn}
        made = {
            "model": name,
            "seen_max": model.seen_max,
            "exam": {**asked, "seed": self.seed},
            "study": marked(model, [reply for reply in replies if reply.question.kind == "study"]),
            "apart": marked(model, [reply for reply in replies if reply.question.kind == "apart"]),
            "pairs": [pair_record(reply) for reply in replies if reply.question.kind == "pair"],
            "provenance": provenance(device),
        }
        figure = figures / f"crowding-{name}.png"
        save_plot(drawn(made), figure)
        tables = (console.table_of(rows) for rows in (crowding_rows([made]), crowding_pair_rows([made])))
        console.publish(made, self.json, self.results / f"crowding-{name}.json", *tables)
        console.say(f"{figure} is drawn.")

    def questions(self, model: Model) -> "list[Question]":
        """Everything to ask, or why it cannot be asked."""
        if isinstance(model.tell, ColorCounts):
            raise UserError(f"{self.model} is not told places, so there is nothing to crowd.")
        if min(self.each, self.pairs, self.steps) < 1:
            raise UserError("Every question needs at least one picture, and at least one step.")
        ks = [k for k in parse_ks(self.k) if k]
        for k in ks:
            check_number(model.tell, k, len(LOCATIONS))
        if not ks:
            raise UserError("Nothing asked for is never crowded: --k needs a number above 0.")
        pairs = combinations(LOCATIONS[: max(ks)], 2)
        return [
            *(Question("study", LOCATIONS[:k], self.each) for k in ks),
            *(Question("apart", far_apart(k), self.each) for k in ks),
            *(Question("pair", pair, self.pairs) for pair in pairs),
        ]


class Question(NamedTuple):
    """So many pictures of these places."""

    kind: str  # study, apart or pair
    places: tuple[Place, ...]
    pictures: int


class Reply(NamedTuple):
    """What a model made of a question, and the judge of rendered scenes at the same places."""

    question: Question
    aims: tuple[Place, ...]  # the places as the model was told them
    drawn: list[Verdict]
    rendered: list[Verdict]


def far_apart(k: int) -> tuple[Place, ...]:
    """Centres of k cells that official scenes can fill, whose nearest two are as far apart as farthest-first goes."""
    cells = fillable_cells()
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


def fillable_cells() -> torch.Tensor:
    """Centres (N, 2) of the cells where things of every size may stand by the official rules."""
    middles = (torch.arange(ACROSS) + 0.5) / ACROSS
    centres = torch.cartesian_prod(middles, middles)
    return centres[torch.stack([reachable(centres, size) for size in SIZES]).all(0)]


def smallest_gap(places: Sequence[Place]) -> float:
    """Distance of the nearest two; there is none among fewer."""
    return min((math.dist(one, other) for one, other in combinations(places, 2)), default=math.inf)


# --- asking -------------------------------------------------------------------------------------------------


def answered(
    examiner: Examiner, model: Model, questions: Sequence[Question], settings: ReproduceCrowding
) -> list[Reply]:
    """All questions in one go, as pictures of different questions fill a batch together."""
    asks = [wish(model.tell, places, pictures, settings.seed) for _, places, pictures in questions]
    flat = [ask for several in asks for ask in several]
    verdicts = iter(examiner.answer(model, flat, settings.steps, settings.churn).verdicts)
    replies = []
    with console.progress("rendering", len(questions)) as advance:
        for question, several in zip(questions, asks):
            seen = rendered(examiner, several, model.size, settings.seed)
            replies.append(Reply(question, several[0].aims, [next(verdicts) for _ in several], seen))
            advance()
    return replies


def rendered(examiner: Examiner, asks: Sequence[Ask], size: int, seed: int) -> list[Verdict]:
    """The judge on scenes that do have a thing wherever one is asked for: the best a model could do."""
    aims = asks[0].aims
    scenes = visible_at(aims, len(asks), seed, device=examiner.device)
    found, _ = examiner.judge.look(render(scenes, size)["rgb"])
    return [match(findings, aims) for findings in found]


# --- records ------------------------------------------------------------------------------------------------


def marked(model: Model, replies: Sequence[Reply]) -> dict[str, Any]:
    """K_max and the shares of every K, place by place."""
    counts = [Counts.of(len(reply.aims), reply.drawn) for reply in replies]
    marks = length_generalization(counts, model.seen_max, label_of(model))
    rows = [{name: row[name] for name in KEPT} for row in marks["rows"]]
    by_k = {len(reply.aims): reply for reply in replies}
    return {"k_max": marks["k_max"], "rows": [{**row, **place_by_place(by_k[row["k"]])} for row in rows]}


def place_by_place(reply: Reply) -> dict[str, Any]:
    gap = smallest_gap(reply.aims)
    return {
        "places": [list(place) for place in reply.question.places],
        "nearest_cells": None if math.isinf(gap) else gap / CELL,
        "filled_at": filled_at(reply.drawn),
        "rendered": {"all_filled": all_filled(reply.rendered), "filled_at": filled_at(reply.rendered)},
    }


def pair_record(reply: Reply) -> dict[str, Any]:
    """Two of the study's places, by their numbers in the study's order, and how often both are filled."""
    (x, y), (u, v) = reply.aims
    return {
        "pair": [LOCATIONS.index(place) for place in reply.question.places],
        "cells": round(max(abs(x - u), abs(y - v)) / CELL),
        "both": all_filled(reply.drawn)["count"],
        "rendered": all_filled(reply.rendered)["count"],
        "n": len(reply.drawn),
    }


def all_filled(verdicts: Sequence[Verdict]) -> dict[str, Any]:
    return share_record(sum(verdict.missing == 0 for verdict in verdicts), len(verdicts))


# --- figure -------------------------------------------------------------------------------------------------


def drawn(record: dict[str, Any]) -> Figure:
    """Left: how often each of the study's places is filled, by K. Right: all of them, and of as many far apart."""
    figure = Figure(figsize=(9.6, 4.2))
    left, right = figure.subplots(1, 2)
    draw_places(left, record["study"]["rows"])
    for name, label, shade in (("study", "the study's places", "C3"), ("apart", "far apart", "C0")):
        draw_shares(right, record[name]["rows"], label, shade)
    right.set(xlabel="K, places asked for", ylabel="pictures with all of them filled", ylim=(0, 1.03))
    if record["seen_max"]:
        right.axvspan(0.5, record["seen_max"] + 0.5, color="0.93", lw=0, label="shown in training", zorder=0)
    right.legend(frameon=False, fontsize=8)
    figure.suptitle(record["model"])
    return figure


def draw_places(ax: Axes, rows: Sequence[dict[str, Any]]) -> None:
    most = max(row["k"] for row in rows)
    shares = np.full((most, len(rows)), np.nan)
    for column, row in enumerate(rows):
        shares[: row["k"], column] = np.array(row["filled_at"]) / row["n"]
    ax.imshow(shares, cmap="RdYlGn", vmin=0, vmax=1, aspect="auto")
    for (place, column), share in np.ndenumerate(shares):
        if not np.isnan(share):
            shade = "white" if abs(share - 0.5) > 0.4 else "black"  # the ends of the colour map are dark
            ax.text(column, place, f"{100 * share:.0f}", ha="center", va="center", fontsize=7, color=shade)
    ax.set(xlabel="K, places asked for", title="pictures with this place filled, %")
    ax.set_xticks(range(len(rows)), [str(row["k"]) for row in rows])
    ax.set_yticks(range(most), [f"{x:.2f}, {y:.2f}" for x, y in LOCATIONS[:most]], fontsize=7)


def draw_shares(ax: Axes, rows: Sequence[dict[str, Any]], label: str, shade: str) -> None:
    ks, shares = [row["k"] for row in rows], [row["all_filled"] for row in rows]
    ax.plot(ks, [share["share"] for share in shares], "o-", color=shade, ms=3, label=label)
    low, high = ([share[end] for share in shares] for end in ("low", "high"))
    ax.fill_between(ks, low, high, color=shade, alpha=0.12, lw=0)
    seen = [row["rendered"]["all_filled"]["share"] for row in rows]
    ax.plot(ks, seen, ":", color=shade, lw=1, label=f"{label}, rendered")
