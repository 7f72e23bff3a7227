"""Tables of the CLEVR study, from results/study.json, speedrun.jsonl and the records of single studies."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import combinations
from typing import Any

from tessera.analysis.scatter import training_name
from tessera.conditioning.contract import Location
from tessera.config import EXPERIMENTS, format_count
from tessera.files import read_lines
from tessera.rows import NOT_RUN, Rows, or_not_run
from tessera.sampling.compose import NEAR
from tessera.scenes.vocabulary import LOCATIONS
from tessera.studies.clevr.entries import ABLATIONS, CELLS, FAR, StudyEntry
from tessera.studies.clevr.tables import (
    TRAINING_TABLES,
    Record,
    composition_rows,
    crowding_pair_rows,
    crowding_rows,
    ours,
    span_words,
    study_rows,
    training_table,
)


def at_zero(results: Any) -> Rows:
    """Objects drawn when the prompt is empty."""
    known = study_rows(results.one("study"))
    rows: Rows = [("cell", "objects at K = 0, paper", "ours, nine in ten images")]
    for cell in CELLS.values():
        if cell.paper.at_zero is not None:
            row = known.get(cell.name)
            rows.append((cell.name, cell.paper.at_zero, span_words(row["at_zero"]) if row else NOT_RUN))
    return rows


def every_cell(results: Any) -> Rows:
    """All cells with both rules, what the detector's own error leaves open, and what was spent on them."""
    known = study_rows(results.one("study"))
    heads = (
        "cell",
        "paper",
        "ours, paper rule",
        "strict rule",
        "range from the detector's error",
        "well-formed objects",
        "images",
        "minutes",
    )
    return [heads, *(cell_row(cell, known.get(cell.name)) for cell in CELLS.values())]


def cell_row(cell: StudyEntry, row: Record | None) -> Sequence[str]:
    if row is None:
        return (cell.name, cell.paper.text, *[NOT_RUN] * 2, "", "", "", "")
    open_range = row["k_max"]["paper"].get("detector_range")
    well_formed, seconds = row["well_formed"]["value"], row["training_seconds"]
    return (
        cell.name,
        cell.paper.text,
        ours(row),
        ours(row, "strict"),
        span_words(open_range),
        "" if well_formed is None else f"{100 * well_formed:.1f}%",
        format_count(max(row["images_seen"])),
        f"{sum(seconds) / len(seconds) / 60:.1f}",
    )


OURS = ("exp2L-M3", "patch radius 2, loss in the center, stochastic sampling")

COMPARED = [OURS, *[(cell.name, cell.about) for cell in ABLATIONS]]

ONE_OBJECT = [("exp1-M1", "one object, global network"), ("exp2L-M1", "one object, local network")]

WITH_COORDS = [("exp1-M3", "with coordinate channels"), ("exp2-M3", "with coordinate channels")]


def ablations(results: Any) -> Rows:
    known = study_rows(results.one("study"))
    rows: Rows = [("cell", "what differs", "paper", "ours, paper rule", "strict rule")]
    for name, about in sorted([*COMPARED, *ONE_OBJECT, *WITH_COORDS]):
        row = known.get(name)
        rows.append((name, about, CELLS[name].paper.text, ours(row), ours(row, "strict")))
    return rows


def extras(results: Any) -> Rows:
    """Trainings with unlabeled objects: K_max with and without counting extra objects."""
    known = study_rows(results.one("study"))
    heads = ("ours, paper rule", "extras not counted", "strict rule", "extras at K = 0", "where K succeeds")
    rows: Rows = [("cell", "paper", *heads)]
    for cell in CELLS.values():
        label = EXPERIMENTS[cell.experiment].labels
        row = known.get(cell.name)
        if label != "all" and row:
            numbers = (str(row["k_max_filled"]), ours(row, "strict"), span_words(row["at_zero"]))
            rows.append((cell.name, cell.paper.text, ours(row), *numbers, span_words(row["extras"])))
            if still := row.get("still"):
                numbers = (str(still["k_max_filled"]), ours(still, "strict"), "")
                rows.append((still_name(cell.name), cell.paper.text, ours(still), *numbers, ""))
    return or_not_run(rows)


def still_name(name: str) -> str:
    """The row of a cell's evaluation with deterministic sampling."""
    return f"{name}, deterministic"


def paper_sized(results: Any) -> Rows:
    """Evaluations of eight images for each K, as the paper's, beside ours of all images."""
    known = study_rows(results.one("study"))
    drawn = ("any 8: median [5%, 95%]", "any 64")
    rows: Rows = [("cell", "paper, 8 images", "ours, all images", "ours, the first 8", *drawn)]
    for cell in CELLS.values():
        row = known.get(cell.name)
        if row and cell.paper.k_max is not None and not cell.variant:
            sized = row["as_paper"]
            evaluations = [
                f"{some['median']} [{some['low']}, {some['high']}]" for some in (sized["any"], sized["any_64"])
            ]
            rows.append((cell.name, cell.paper.text, ours(row), ", ".join(map(str, sized["first"])), *evaluations))
    return or_not_run(rows)


LOCAL = ("exp2L-M3-k1", "exp2L-M3-k2", "exp2L-M3-k3", "exp2L-M1", "exp2L-M3", "exp2L-M5", FAR.name, "exp3L-M3")

CROWDED = tuple(range(4, 11))


def patches(results: Any) -> Rows:
    """Local networks: images with all K locations found, beside how many pairs of locations share a patch."""
    known = study_rows(results.one("study"))
    rows: Rows = [("", *(f"K = {k}" for k in CROWDED))]
    for radius in (1, 2, 3):
        pairs = (str(pairs_within(LOCATIONS[:k], radius)) for k in CROWDED)
        rows.append((f"pairs of locations within {radius} cells", *pairs))
    for name in LOCAL:
        row = known.get(name, {})
        rows.append((name, *found_words(row)))
        if still := row.get("still"):
            rows.append((still_name(name), *found_words(still)))
    return rows


def found_words(row: Mapping[str, Any]) -> list[str]:
    shares = row.get("shares", {})
    return [percent_or_not_run(shares.get(str(k), {}).get("all_found")) for k in CROWDED]


def percent_or_not_run(share: Mapping[str, Any] | None) -> str:
    """`80%`; a K that was not prompted has no share."""
    return f"{share['value']:.0%}" if share else NOT_RUN


def pairs_within(locations: Sequence[Location], radius: int, cells: int = 16) -> int:
    """Pairs of locations of which one lies in the patch around the other's cell."""
    own = [(int(x * cells), int(y * cells)) for x, y in locations]
    return sum(max(abs(a[0] - b[0]), abs(a[1] - b[1])) <= radius for a, b in combinations(own, 2))


HEADLINE = ("exp1-M3", "exp2-M3", "exp2L-M1", "exp2L-M3", "exp3-M3", "exp3L-M3")


def headline(results: Any) -> Rows:
    """For the README: K_max of six experiments and the machine that trained them."""
    known = study_rows(results.one("study"))
    rows: Rows = []
    for name in HEADLINE:
        cell, row = CELLS[name], known.get(name)
        if row:
            seen = "1 object" if cell.max_train_objects == 1 else f"1 to {cell.max_train_objects} objects"
            reached = f"{ours(row)}{still_words(row)}; the paper's network {cell.paper.text}"
            rows.append((f"K_max of {cell.experiment}, trained on {seen}, 64x64", reached, ", ".join(row["devices"])))
    return [*rows, *fastest(results)]


def still_words(row: Record) -> str:
    """K_max of the same weights by deterministic sampling, where they are evaluated by stochastic sampling."""
    return f", by deterministic sampling {ours(row['still'])}" if "still" in row else ""


def fastest(results: Any) -> Rows:
    """The quickest speed-run that arrived: the first of its evaluations that passed."""
    arrived = [record for record in speed_records(results) if record["reached"]]
    if not arrived:
        return []
    best = min(arrived, key=lambda record: record["minutes"])
    what = f"speed-run: from nothing to exp1 with K_max {best['target']}, 64x64"
    compiling = best["first_step_seconds"] / 60
    minutes = f"{best['minutes']:.1f} minutes to the first evaluation that passes, {compiling:.1f} of them compiling"
    return [(what, minutes, best["provenance"]["device"])]


def speed_log(results: Any) -> Rows:
    """Every variant of the speed-run, in the order tried."""
    rows: Rows = [("variant", "what was tried", "minutes", "K_max reached", "images", "machine", "commit")]
    rows += [speed_row(record) for record in speed_records(results)]
    return or_not_run(rows)


def speed_records(results: Any) -> list[Record]:
    path = results.folder / "speedrun.jsonl"
    return read_lines(path) if path.is_file() else []


def speed_row(record: Record) -> Sequence[str]:
    minutes = f"{record['minutes']:.2f}" if record["reached"] else f"not within {record['training_minutes']:.1f}"
    where = record["provenance"]
    return (
        record["variant"],
        record["note"] or changes_words(record["changes"]),
        minutes,
        str(record["k_max"]) if record["k_max"] is not None else "",
        format_count(record["images_seen"]),
        where["device"],
        where["commit"] or "",
    )


def changes_words(changes: Mapping[str, Mapping[str, Any]]) -> str:
    """`denoiser.width 32, training.batch 256`."""
    words = [f"{group}.{name} {value}" for group, values in changes.items() for name, value in values.items()]
    return ", ".join(words) or "as the preset has it"


def learning(results: Any) -> Rows:
    """K_max at moments of training, and whether a number of objects was lost again."""
    rows: Rows = [
        ("training", "K_max along training", "K", "images with all K", "lost again", "chance alone, 95%", "p")
    ]
    for record in results.several("learning-k*"):
        rows += [learning_row(cell, record["k"]) for cell in record["cells"]]
    return or_not_run(rows)


def learning_row(cell: Mapping[str, Any], k: int) -> Sequence[str]:
    shares = " ".join(f"{share['value']:.0%}" for share in cell["all_found"])
    numbers = (f"{cell[name]:.2f}" for name in ("rise", "rise_by_chance"))
    course = " ".join(map(str, cell["k_max"]))
    p = "< 0.001" if cell["p"] < 0.001 else f"{cell['p']:.3f}"
    return training_name(cell["cell"], cell["seed"]), course, str(k), shares, *numbers, p


def zoo_speed(results: Any) -> Rows:
    rows: Rows = [("model", "weights", "machine", "precision", "seconds per image", "against the first")]
    for record in results.several("bench-zoo*"):
        for name, weights, *speed in speed_rows(record):
            rows.append((name, weights, record["provenance"]["device"], *speed))
    return or_not_run(rows)


def speed_rows(record: Record) -> Rows:
    """What `bench.py zoo` found: a row for each model and precision, beside the first precision."""
    rows: Rows = []
    for name, one in record["models"].items():
        spans = one["seconds_per_image"]
        first = next(iter(spans.values()))["value"]
        for precision, span in spans.items():
            ratio = f"{span['value'] / first:.2f} x"
            rows.append((name, f"{one['weights']:,}", precision, f"{span['value']:.2f}", ratio))
    return rows


USUAL_RADIUS = 2  # cells


def compose(results: Any) -> Rows:
    """A failing model with conditions composed in several ways, and other models beside it."""
    rows = [named(row, record) for record in results.several("composition*") for row in record["rows"]]
    return composition_rows(rows) if rows else [("model", "K_max, paper rule"), (NOT_RUN, NOT_RUN)]


def named(row: Record, record: Record) -> Record:
    """Run folders by their last part; whether sampling was stochastic, and the radius if not the usual."""
    noisy = ", stochastic sampling" if record["evaluation"].get("s_churn") else ""
    radius = record["radius"]
    reach = f", radius {radius}" if row["way"] in NEAR and radius != USUAL_RADIUS else ""
    return {**row, "model": row["model"].rsplit("/", 1)[-1] + noisy, "way": row["way"] + reach}


def crowding(results: Any) -> Rows:
    return or_not_run(crowding_rows(results.several("crowding-*")))


def crowding_pairs(results: Any) -> Rows:
    return or_not_run(crowding_pair_rows(results.several("crowding-*")))


def by_training(name: str, results: Any) -> Rows:
    return training_table(name, results.one("study"))


STUDY_TABLES: dict[str, Callable[[Any], Rows]] = {
    **{name: partial(by_training, name) for name in TRAINING_TABLES},
    "study-at-zero": at_zero,
    "study-cells": every_cell,
    "study-ablations": ablations,
    "study-extras": extras,
    "study-patches": patches,
    "study-eight": paper_sized,
    "speed-log": speed_log,
    "learning": learning,
    "composition": compose,
    "crowding": crowding,
    "crowding-pairs": crowding_pairs,
    "zoo-speed": zoo_speed,
}
