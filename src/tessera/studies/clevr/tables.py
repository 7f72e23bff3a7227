"""Tables of the study, for the terminal, the report and the docs."""

from collections.abc import Mapping, Sequence
from typing import Any

from tessera.rows import NOT_RUN, Rows
from tessera.studies.clevr.entries import CELLS
from tessera.studies.clevr.runs import StudyRun

_PUBLISHED = "small"  # the preset whose entries the documents show

Record = dict[str, Any]

# Tables like the paper's: pairs of (experiment, its title).
TRAINING_TABLES = {
    "study-table1": [("exp1", "exp1"), ("exp2", "exp2"), ("exp2L", "exp2L"), ("color", "color")],
    "study-table2": [
        ("exp1", "all labels"),
        ("exp2", "one"),
        ("exp2-random", "random number"),
        ("exp2-drop", "all but one"),
    ],
    "study-lists": [("exp3", "exp3"), ("exp3L", "exp3L")],
}


def k_max_words(found: Mapping[str, Any]) -> str:
    """`9 [8, 10]`, and the single trainings where there are several."""
    if found["value"] is None:
        return "not evaluated"
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


def study_rows(record: Record | None) -> dict[str, Record]:
    """Rows of results/study.json by the name of the entry; empty if nothing was run."""
    found = record["presets"].get(_PUBLISHED, []) if record else []
    return {row["cell"]: row for row in found if row["run"]}


def ours(row: Record | None, rule: str = "paper") -> str:
    return k_max_words(row["k_max"][rule]) if row else NOT_RUN


def training_table(name: str, record: Record | None) -> Rows:
    """A row for each M, with the paper's K_max and ours for each experiment; `record` is results/study.json."""
    known, experiments = study_rows(record), TRAINING_TABLES[name]
    heads = ["training scenes"]
    for _, title in experiments:
        heads += [f"{title}, paper", "ours"]
    rows: Rows = [tuple(heads)]
    for max_train_objects in range(1, 7):
        row = [f"1-{max_train_objects} objects" if max_train_objects > 1 else "1 object"]
        for experiment, _ in experiments:
            entry = CELLS.get(f"{experiment}-M{max_train_objects}")
            row += [entry.paper.text, ours(known.get(entry.name))] if entry else ["", ""]
        if any(row[1:]):
            rows.append(tuple(row))
    return rows


def composition_rows(rows: Sequence[Mapping[str, Any]]) -> Rows:
    """One row for each model and composition."""
    ks = sorted({row["k"] for line in rows for row in line["rows"]})
    head = ("model", "composition", "K_max, paper rule", "strict", *(f"K = {k}" for k in ks), "passes")
    return [head, *(_composition_row(line, ks) for line in rows)]


def _composition_row(line: Mapping[str, Any], ks: Sequence[int]) -> Sequence[str]:
    shares = {row["k"]: f"{row['all_found']['value']:.0%}" for row in line["rows"]}
    rules = (k_max_words(line["k_max"][rule]) for rule in ("paper", "strict"))
    return line["model"], line["way"], *rules, *(shares.get(k, "") for k in ks), f"{line['passes']:.1f}"


_BOUND = ("in renders", "nearest two, cells")
_CROWDING_HEAD = ("model", "K", "the study's locations all found", *_BOUND, "far apart, all found", *_BOUND)


def crowding_rows(records: Sequence[Mapping[str, Any]]) -> Rows:
    """All K locations found: the study's, and as many far apart, beside rendered scenes that have them all."""
    rows: Rows = [_CROWDING_HEAD]
    for record in records:
        study, apart = record["study"], record["apart"]
        for here, there in zip(study["rows"], apart["rows"]):
            rows.append((record["model"], str(here["k"]), *_crowd_words(here), *_crowd_words(there)))
        for rule in study["k_max"]:
            near, far = (k_max_words(arranged["k_max"][rule]) for arranged in (study, apart))
            rows.append((record["model"], f"K_max, {rule} rule", near, "", "", far, "", ""))
    return rows


def _crowd_words(row: Mapping[str, Any]) -> tuple[str, str, str]:
    gap = row["nearest_cells"]
    shares = (row["all_found"]["value"], row["rendered"]["all_found"]["value"])
    drawn, seen = (f"{share:.0%}" for share in shares)
    return drawn, seen, "" if gap is None else f"{gap:.1f}"


def crowding_pair_rows(records: Sequence[Mapping[str, Any]]) -> Rows:
    """Two of the study's locations at a time, by how many cells lie between them."""
    rows: Rows = [("model", "cells apart", "pairs", "both drawn", "the worst pair", "both found in renders")]
    for record in records:
        for cells in sorted({pair["cells"] for pair in record["pairs"]}):
            group = [pair for pair in record["pairs"] if pair["cells"] == cells]
            images = sum(pair["n"] for pair in group)
            drawn = sum(pair["both"] for pair in group) / images
            seen = sum(pair["rendered"] for pair in group) / images
            worst = min(pair["both"] / pair["n"] for pair in group)
            shares = (f"{share:.0%}" for share in (drawn, worst, seen))
            rows.append((record["model"], str(cells), str(len(group)), *shares))
    return rows


def outcome_words(job: StudyRun, record: Mapping[str, Any]) -> str:
    k_max = record["result"]["k_max"]
    ours = ", ".join(f"{k_max_words(found)} by the {rule} rule" for rule, found in k_max.items())
    return f"{job.name}: K_max {ours}; the paper has {job.cell.paper.text or 'nothing'}."
