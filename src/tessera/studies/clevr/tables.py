"""The study's tables for README and docs, from results/study.json, speedrun.jsonl and the zoo's records."""

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from typing import Any

from tessera.analysis.scatter import training_name
from tessera.conditioning.contract import Location
from tessera.config import EXPERIMENTS, format_count
from tessera.files import read_json, read_lines
from tessera.rows import NOT_RUN, Rows, or_not_run
from tessera.sampling.compose import NEAR
from tessera.scenes.vocabulary import LOCATIONS
from tessera.studies.clevr.entries import ABLATIONS, CELLS, FAR, StudyEntry
from tessera.studies.clevr.records import moments_of
from tessera.studies.clevr.runs import StudyRun

PUBLISHED = "small"  # the preset whose cells the documents show

Record = dict[str, Any]


# --- words --------------------------------------------------------------------------------------------------


def k_max_words(found: Mapping[str, Any]) -> str:
    """`9 [8, 10]`, and the single trainings where there are several."""
    if found["value"] is None:
        return "not asked"
    interval = f"{found['value']} [{found['low']}, {found['high']}]"
    values = found.get("values", [])
    return f"{interval} ({', '.join(map(str, values))})" if len(values) > 1 else interval


def k_max_lines(found: Mapping[str, Any]) -> str:
    """The same for narrow columns: single trainings on a line of their own."""
    return k_max_words(found).replace(" (", "\n(")


def span_words(span: Sequence[int] | None) -> str:
    if span is None:
        return ""
    low, high = span
    return str(low) if low == high else f"{low}-{high}"


# --- cells --------------------------------------------------------------------------------------------------


def study_rows(results: Any) -> dict[str, Record]:
    """Rows of results/study.json by the name of the cell; empty if nothing was run."""
    record = results.one("study")
    found = record["presets"].get(PUBLISHED, []) if record else []
    return {row["cell"]: row for row in found if row["run"]}


def ours(row: Record | None, rule: str = "paper") -> str:
    return k_max_words(row["k_max"][rule]) if row else NOT_RUN


def by_training(experiments: Sequence[tuple[str, str]]) -> Callable[[Any], Rows]:
    """A table like the paper's: a row for each M, for each experiment the paper's K_max and ours."""

    def table(results: Any) -> Rows:
        known = study_rows(results)
        heads = [word for _, name in experiments for word in (f"{name}, paper", "ours")]
        rows: Rows = [("training scenes", *heads)]
        for max_train_objects in range(1, 7):
            cells = [CELLS.get(f"{experiment}-M{max_train_objects}") for experiment, _ in experiments]
            if any(cells):
                words = [word for cell in cells for word in pair(cell, known)]
                rows.append(
                    (f"1-{max_train_objects} objects" if max_train_objects > 1 else "1 object", *words)
                )
        return rows

    return table


def pair(cell: StudyEntry | None, known: Mapping[str, Record]) -> tuple[str, str]:
    return ("", "") if cell is None else (cell.paper.text, ours(known.get(cell.name)))


def at_zero(results: Any) -> Rows:
    """Objects drawn when none is asked for."""
    known = study_rows(results)
    rows: Rows = [("cell", "objects at K = 0, paper", "ours, nine in ten images")]
    for cell in CELLS.values():
        if cell.paper.at_zero is not None:
            row = known.get(cell.name)
            rows.append((cell.name, cell.paper.at_zero, span_words(row["at_zero"]) if row else NOT_RUN))
    return rows


def every_cell(results: Any) -> Rows:
    """All cells with both rules, what the detector's own error leaves open, and what was spent on them."""
    known = study_rows(results)
    heads = (
        "cell",
        "paper",
        "ours, paper rule",
        "strict rule",
        "detector's error leaves",
        "proper objects",
        "images",
        "minutes",
    )
    return [heads, *(cell_row(cell, known.get(cell.name)) for cell in CELLS.values())]


def cell_row(cell: StudyEntry, row: Record | None) -> Sequence[str]:
    if row is None:
        return (cell.name, cell.paper.text, *[NOT_RUN] * 2, "", "", "", "")
    open_range = row["k_max"]["paper"].get("detector_range")
    well_formed, seconds = row["well_formed"]["share"], row["training_seconds"]
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


OURS = ("exp2L-M3", "patch radius 2, loss in the center, fresh noise")
COMPARED = [OURS, *[(cell.name, cell.about) for cell in ABLATIONS]]
ONE_OBJECT = [("exp1-M1", "one object, global network"), ("exp2L-M1", "one object, local network")]
WITH_COORDS = [("exp1-M3", "with coordinate channels"), ("exp2-M3", "with coordinate channels")]


def ablations(results: Any) -> Rows:
    known = study_rows(results)
    rows: Rows = [("cell", "what differs", "paper", "ours, paper rule", "strict rule")]
    for name, about in sorted([*COMPARED, *ONE_OBJECT, *WITH_COORDS]):
        row = known.get(name)
        rows.append((name, about, CELLS[name].paper.text, ours(row), ours(row, "strict")))
    return rows


def extras(results: Any) -> Rows:
    """Trainings that showed objects without telling them: K_max with and without counting what nobody asked for."""
    known = study_rows(results)
    heads = ("ours, paper rule", "extras not counted", "strict rule", "extras at K = 0", "where K succeeds")
    rows: Rows = [("cell", "paper", *heads)]
    for cell in CELLS.values():
        label = EXPERIMENTS[cell.experiment]["conditioner"]["label"]
        row = known.get(cell.name)
        if label != "all" and row:
            numbers = (str(row["k_max_filled"]), ours(row, "strict"), span_words(row["at_zero"]))
            rows.append((cell.name, cell.paper.text, ours(row), *numbers, span_words(row["extras"])))
            if still := row.get("still"):
                numbers = (str(still["k_max_filled"]), ours(still, "strict"), "")
                rows.append((still_name(cell.name), cell.paper.text, ours(still), *numbers, ""))
    return or_not_run(rows)


def still_name(name: str) -> str:
    """The line of a cell's evaluation without fresh noise."""
    return f"{name}, no fresh noise"


def paper_sized(results: Any) -> Rows:
    """Evaluations of eight images for each K, as the paper's, beside ours of all images."""
    known = study_rows(results)
    drawn = ("any 8: median [5%, 95%]", "any 64")
    rows: Rows = [("cell", "paper, 8 images", "ours, all images", "ours, the first 8", *drawn)]
    for cell in CELLS.values():
        row = known.get(cell.name)
        if row and cell.paper.k_max is not None and not cell.variant:
            sized = row["as_paper"]
            evaluations = [
                f"{some['median']} [{some['low']}, {some['high']}]"
                for some in (sized["any"], sized["any_64"])
            ]
            rows.append(
                (cell.name, cell.paper.text, ours(row), ", ".join(map(str, sized["first"])), *evaluations)
            )
    return or_not_run(rows)


LOCAL = (
    "exp2L-M3-k1",
    "exp2L-M3-k2",
    "exp2L-M3-k3",
    "exp2L-M1",
    "exp2L-M3",
    "exp2L-M5",
    FAR.name,
    "exp3L-M3",
)
CROWDED = tuple(range(4, 11))


def patches(results: Any) -> Rows:
    """Local networks: images with all K locations filled, beside how many pairs of locations share a patch."""
    known = study_rows(results)
    rows: Rows = [("", *(f"K = {k}" for k in CROWDED))]
    for radius in (1, 2, 3):
        pairs = (str(pairs_within(LOCATIONS[:k], radius)) for k in CROWDED)
        rows.append((f"pairs of locations within {radius} cells", *pairs))
    for name in LOCAL:
        row = known.get(name, {})
        rows.append((name, *filled_words(row)))
        if still := row.get("still"):
            rows.append((still_name(name), *filled_words(still)))
    return rows


def filled_words(row: Mapping[str, Any]) -> list[str]:
    shares = row.get("shares", {})
    return [percent_or_not_run(shares.get(str(k), {}).get("all_found")) for k in CROWDED]


def percent_or_not_run(share: Mapping[str, Any] | None) -> str:
    """`80%`; a K that was not asked for has no share."""
    return f"{share['share']:.0%}" if share else NOT_RUN


def pairs_within(locations: Sequence[Location], radius: int, cells: int = 16) -> int:
    """Pairs of which one lies in the patch around the other's cell."""
    own = [(int(x * cells), int(y * cells)) for x, y in locations]
    return sum(max(abs(a[0] - b[0]), abs(a[1] - b[1])) <= radius for a, b in combinations(own, 2))


HEADLINE = ("exp1-M3", "exp2-M3", "exp2L-M1", "exp2L-M3", "exp3-M3", "exp3L-M3")


def headline(results: Any) -> Rows:
    """For the README: what was asked of three trainings, K_max, and the machine that trained them."""
    known = study_rows(results)
    rows: Rows = []
    for name in HEADLINE:
        cell, row = CELLS[name], known.get(name)
        if row:
            seen = "1 object" if cell.max_train_objects == 1 else f"1 to {cell.max_train_objects} objects"
            told = f"{ours(row)}{still_words(row)}; the paper's network {cell.paper.text}"
            rows.append(
                (f"K_max of {cell.experiment}, trained on {seen}, 64x64", told, ", ".join(row["devices"]))
            )
    return [*rows, *fastest(results)]


def still_words(row: Record) -> str:
    """What the same weights do without the fresh noise they are examined with, where they are."""
    return f", without fresh noise {ours(row['still'])}" if "still" in row else ""


def fastest(results: Any) -> Rows:
    """The quickest speed-run that arrived: the first of its evaluations that passed."""
    arrived = [record for record in speed_records(results) if record["reached"]]
    if not arrived:
        return []
    best = min(arrived, key=lambda record: record["minutes"])
    what = f"speed-run: from nothing to exp1 with K_max {best['target']}, 64x64"
    compiling = best["first_step_seconds"] / 60
    told = f"{best['minutes']:.1f} minutes to the first evaluation that passes, {compiling:.1f} of them compiling"
    return [(what, told, best["provenance"]["device"])]


# --- speed --------------------------------------------------------------------------------------------------


def speed_log(results: Any) -> Rows:
    """Every variant of the speed-run, in the order tried."""
    rows: Rows = [("variant", "what was tried", "minutes", "K_max reached", "images", "machine", "commit")]
    rows += [speed_row(record) for record in speed_records(results)]
    return or_not_run(rows)


def speed_records(results: Any) -> list[Record]:
    path = results.folder / "speedrun.jsonl"
    return read_lines(path) if path.is_file() else []


def speed_row(record: Record) -> Sequence[str]:
    minutes = (
        f"{record['minutes']:.2f}" if record["reached"] else f"not within {record['training_minutes']:.1f}"
    )
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
    told = [f"{group}.{name} {value}" for group, values in changes.items() for name, value in values.items()]
    return ", ".join(told) or "as the preset has it"


def sweep(results: Any) -> Rows:
    """Networks tried for `small`: their speed alone on a GPU, and how far they composed after the same training."""
    ks = (7, 8, 9)
    rows: Rows = [
        ("network", "weights", "images/s", "images seen", "K_max", *(f"K - 2 filled, K = {k}" for k in ks))
    ]
    for path in sorted((results.folder / "sweep").glob("evaluation-*.json")):
        evaluation, speed = (
            read_json(path),
            read_json(path.with_name(path.name.replace("evaluation", "speed"))),
        )
        near = {row["k"]: row["two_missing"] for row in evaluation["result"]["rows"]}
        rows.append(
            (
                network_words(evaluation["settings"]["denoiser"]),
                f"{evaluation['training']['weights'] / 1e6:.1f}M",
                f"{speed['images_per_second']['mean']:,.0f}",
                format_count(evaluation["training"]["images_seen"]),
                k_max_words(evaluation["result"]["k_max"]["paper"]),
                *(percent_or_not_run(near.get(k)) for k in ks),
            )
        )
    return or_not_run(rows)


def network_words(denoiser: Mapping[str, Any]) -> str:
    channels = "-".join(str(denoiser["width"] * mult) for mult in denoiser["mult"])
    told = denoiser["width"] * (denoiser["emb_mult"] or max(denoiser["mult"]))
    return (
        f"tiles of {denoiser['tile']}, {channels} channels, {denoiser['blocks']} a level, told through {told}"
    )


def learning(results: Any) -> Rows:
    """K_max at moments of training, and whether a number of objects was lost again."""
    rows: Rows = [
        ("training", "K_max on the way", "K", "images with all K", "lost again", "chance alone, 95%", "p")
    ]
    for record in results.several("learning-k*"):
        rows += [learning_row(cell, record["k"]) for cell in record["cells"]]
    return or_not_run(rows)


def learning_row(cell: Mapping[str, Any], k: int) -> Sequence[str]:
    shares = " ".join(f"{share['share']:.0%}" for share in cell["all_found"])
    numbers = (f"{cell[name]:.2f}" for name in ("rise", "rise_by_chance"))
    way = " ".join(map(str, cell["k_max"]))
    p = "< 0.001" if cell["p"] < 0.001 else f"{cell['p']:.3f}"
    return training_name(cell["cell"], cell["seed"]), way, str(k), shares, *numbers, p


EARLIER = {
    "exp2L-M3-whole": "exp2L-M3, the loss counts all of a patch",
    "exp2L-M3-ring": "exp2L-M3, the center and the cells beside it",
    "exp2L-M3-center": "exp2L-M3, the center alone",
    "exp2L-M5-k3": "exp2L-M5, the center alone of patches of 3 cells to each side (fresh noise)",
    "exp2L-M5-far": "exp2L-M5, the same, but told only what is within 2 cells (fresh noise)",
    "exp1-M3-cooldown": "exp1-M3, the rate falls to 0 over the last third",
    "exp3-M3-anywhere": "exp3-M3, objects in random slots of the list",
    "color-M3-small": "color-M3, the network and the rate of the other cells",
    "color-M3-attention": "color-M3, attention at two resolutions, the rate falls to 0 over the last third",
    "color-M3-blocks": "color-M3, two blocks at each level besides: the network of now",
}


def earlier(results: Any) -> Rows:
    """Trainings of the study's cells under settings that were given up."""
    ks = (1, 2, 3, 8)
    rows: Rows = [("training", "images", "K_max on the way", *(f"all filled, K = {k}" for k in ks))]
    for name, about in EARLIER.items():
        path = results.folder / "earlier" / f"{name}.json"
        if path.is_file():
            record = read_json(path)
            way = " ".join(str(moment["k_max"]["paper"]["value"]) for moment in moments_of(record))
            filled = {row["k"]: row["all_found"] for row in record["result"]["rows"]}
            seen = format_count(record["training"]["images_seen"])
            rows.append((about, seen, way, *(percent_or_not_run(filled.get(k)) for k in ks)))
    return or_not_run(rows)


def zoo_speed(results: Any) -> Rows:
    rows: Rows = [("model", "weights", "machine", "precision", "seconds per image", "against the first")]
    for record in results.several("bench-zoo*"):
        for name, weights, *speed in speed_rows(record):
            rows.append((name, weights, record["provenance"]["device"], *speed))
    return or_not_run(rows)


def speed_rows(record: Record) -> Rows:
    """What `bench zoo` found: a row for each model and precision, beside the first precision."""
    rows: Rows = []
    for name, one in record["models"].items():
        spans = one["seconds_per_image"]
        first = next(iter(spans.values()))["mean"]
        for precision, span in spans.items():
            ratio = f"{span['mean'] / first:.2f} x"
            rows.append((name, f"{one['weights']:,}", precision, f"{span['mean']:.2f}", ratio))
    return rows


def repair_rows(rows: Sequence[Mapping[str, Any]]) -> Rows:
    """One line for each model and way."""
    ks = sorted({row["k"] for line in rows for row in line["rows"]})
    head = ("model", "asked", "K_max, paper rule", "strict", *(f"K = {k}" for k in ks), "passes")
    return [head, *(repair_row(line, ks) for line in rows)]


def repair_row(line: Mapping[str, Any], ks: Sequence[int]) -> Sequence[str]:
    shares = {row["k"]: f"{row['all_found']['share']:.0%}" for row in line["rows"]}
    rules = (k_max_words(line["k_max"][rule]) for rule in ("paper", "strict"))
    return line["model"], line["way"], *rules, *(shares.get(k, "") for k in ks), f"{line['passes']:.1f}"


USUAL_RADIUS = 2  # cells that a way takes for near, if not said


def compose(results: Any) -> Rows:
    """A failing model asked in other ways, and others beside it, perhaps from records of their own."""
    rows = [named(row, record) for record in results.several("repair*") for row in record["rows"]]
    return repair_rows(rows) if rows else [("model", "K_max, paper rule"), (NOT_RUN, NOT_RUN)]


def named(row: Record, record: Record) -> Record:
    """Run folders by their last part; whether there was fresh noise, and what counts as near if not the usual."""
    noisy = ", fresh noise" if record["evaluation"].get("s_churn") else ""
    radius = record["radius"]
    reach = f", radius {radius}" if row["way"] in NEAR and radius != USUAL_RADIUS else ""
    return {**row, "model": row["model"].rsplit("/", 1)[-1] + noisy, "way": row["way"] + reach}


# --- crowding -----------------------------------------------------------------------------------------------


ARRANGED = ("study", "apart")
CROWDING_HEAD = (
    "model",
    "K",
    "the study's locations all filled",
    "in renders",
    "nearest two, cells",
    "far apart, all filled",
    "in renders",
    "nearest two, cells",
)


def crowding_rows(records: Sequence[Mapping[str, Any]]) -> Rows:
    """All K locations filled: the study's, and as many far apart, beside rendered scenes that have them all."""
    rows: Rows = [CROWDING_HEAD]
    for record in records:
        for pair in zip(*(record[kind]["rows"] for kind in ARRANGED)):
            rows.append(
                (record["model"], str(pair[0]["k"]), *(word for row in pair for word in crowd_words(row)))
            )
        for rule in record["study"]["k_max"]:
            found = (k_max_words(record[kind]["k_max"][rule]) for kind in ARRANGED)
            rows.append((record["model"], f"K_max, {rule} rule", *(w for k in found for w in (k, "", ""))))
    return rows


def crowd_words(row: Mapping[str, Any]) -> tuple[str, str, str]:
    gap = row["nearest_cells"]
    shares = (row["all_found"]["share"], row["rendered"]["all_found"]["share"])
    drawn, seen = (f"{share:.0%}" for share in shares)
    return drawn, seen, "" if gap is None else f"{gap:.1f}"


def crowding_pair_rows(records: Sequence[Mapping[str, Any]]) -> Rows:
    """Two of the study's locations at a time, by how many cells lie between them."""
    rows: Rows = [("model", "cells apart", "pairs", "both drawn", "the worst pair", "both found in renders")]
    for record in records:
        for cells in sorted({pair["cells"] for pair in record["pairs"]}):
            group = [pair for pair in record["pairs"] if pair["cells"] == cells]
            images = sum(pair["n"] for pair in group)
            drawn, seen = (sum(pair[what] for pair in group) / images for what in ("both", "rendered"))
            worst = min(pair["both"] / pair["n"] for pair in group)
            shares = (f"{share:.0%}" for share in (drawn, worst, seen))
            rows.append((record["model"], str(cells), str(len(group)), *shares))
    return rows


def crowding(results: Any) -> Rows:
    return or_not_run(crowding_rows(results.several("crowding-*")))


def crowding_pairs(results: Any) -> Rows:
    return or_not_run(crowding_pair_rows(results.several("crowding-*")))


STUDY_TABLES: dict[str, Callable[[Any], Rows]] = {
    "study-table1": by_training([("exp1", "exp1"), ("exp2", "exp2"), ("exp2L", "exp2L"), ("color", "color")]),
    "study-table2": by_training(
        [
            ("exp1", "all labels"),
            ("exp2", "one"),
            ("exp2-random", "random number"),
            ("exp2-drop", "all but one"),
        ]
    ),
    "study-lists": by_training([("exp3", "exp3"), ("exp3L", "exp3L")]),
    "study-at-zero": at_zero,
    "study-cells": every_cell,
    "study-ablations": ablations,
    "study-extras": extras,
    "study-patches": patches,
    "study-eight": paper_sized,
    "speed-log": speed_log,
    "sweep": sweep,
    "learning": learning,
    "study-earlier": earlier,
    "repair": compose,
    "crowding": crowding,
    "crowding-pairs": crowding_pairs,
    "zoo-speed": zoo_speed,
}


def outcome_words(job: StudyRun, record: dict[str, Any]) -> str:
    k_max = record["result"]["k_max"]
    ours = ", ".join(f"{k_max_words(found)} by the {rule} rule" for rule, found in k_max.items())
    return f"{job.name}: K_max {ours}; the paper has {job.cell.paper.text or 'nothing'}."
