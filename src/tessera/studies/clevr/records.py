"""Records of finished jobs become one row for each cell, and one file, results/study.json."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tessera.evaluation.kmax import Shares, TrainingRange, evaluations_of, k_max, paper_rule, shares_of
from tessera.files import make_folder, rounded
from tessera.records import StudyRecord, StudyRunRecord, read_record, write_record
from tessera.stats import counted, share_interval
from tessera.studies.clevr.entries import CELLS, IMAGES, StudyEntry
from tessera.studies.clevr.runs import StudyPaths, job_name

RULES = ("paper", "strict")
_PAPER_IMAGES = 8  # of each K, counted by hand
SHARES = ("all_found", "exact", "allowed_extras", "two_missing")
Record = Mapping[str, Any]


def read_records(paths: StudyPaths) -> list[StudyRunRecord]:
    """All records of finished jobs, by name."""
    return [read_record(path, StudyRunRecord) for path in sorted(paths.records.glob("*.json"))]


def rows_of(records: Sequence[Record], preset: str) -> list[dict[str, Any]]:
    """One row for every cell of the table, run or not, in the table's order."""
    return [_row_of(cell, [r for r in records if belongs(r, cell, preset)], preset) for cell in CELLS.values()]


def belongs(record: Record, cell: StudyEntry, preset: str) -> bool:
    return record["cell"] == cell.name and record["preset"] == preset


def _row_of(cell: StudyEntry, records: Sequence[Record], preset: str) -> dict[str, Any]:
    """A cell beside the paper; without records nothing is claimed of it."""
    row: dict[str, Any] = {
        "cell": cell.name,
        "experiment": cell.experiment,
        "max_train_objects": cell.max_train_objects,
        "about": cell.about,
        "preset": preset,
        "paper": cell.paper.plain(),
        "run": bool(records),
    }
    if not records:
        return row
    shares = _shares_by_k([record["result"] for record in records])
    return row | {
        "seeds": [record["seed"] for record in records],
        "k_max": {rule: over_seeds([record["result"]["k_max"][rule] for record in records]) for rule in RULES},
        "k_max_filled": k_max_filled(shares, cell.max_train_objects),
        "as_paper": paper_sized(records),
        "extras": spread_at(records, "extra", succeeded=True),
        "at_zero": spread_at(records, "objects", succeeded=False),
        "shares": shares,
        **_without_churn(cell, [record["still"] for record in records if "still" in record]),
        "well_formed": pooled([record["quality"]["well_formed"] for record in records]),
        "images_seen": [record["training"]["images_seen"] for record in records],
        "training_seconds": [record["training"]["seconds"] for record in records],
        "devices": sorted({record["provenance"]["device"] for record in records}),
    }


def over_seeds(found: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The middle K_max of several trainings; its interval covers those of all of them.

    Evaluations that left out K = 1 have no K_max.
    """
    known = [one for one in found if one["value"] is not None]
    if not known:
        return {**found[0], "values": []}
    found, values = known, [one["value"] for one in known]
    record: dict[str, Any] = {
        "value": statistics.median_low(values),
        "low": min(one["low"] for one in found),
        "high": max(one["high"] for one in found),
        "values": values,
        "tested_to": min(one["tested_to"] for one in found),
    }
    if all("corrected" in one for one in found):
        record["corrected"] = {
            "value": statistics.median_low([one["corrected"]["value"] for one in found]),
            "low": min(one["corrected"]["low"] for one in found),
            "high": max(one["corrected"]["high"] for one in found),
        }
        record["detector_range"] = [
            min(one["detector_range"][0] for one in found),
            max(one["detector_range"][1] for one in found),
        ]
    return record


def spread_at(records: Sequence[Record], what: str, succeeded: bool) -> list[int] | None:
    """The numbers that nine in ten images lie between: at K = 0, or (`succeeded`) where K succeeds."""
    rows = [row for record in records for row in record["result"]["rows"]]
    chosen = [row[what]["typical"] for row in rows if (row["succeeds"]["paper"] if succeeded else row["k"] == 0)]
    return [min(low for low, _ in chosen), max(high for _, high in chosen)] if chosen else None


def _without_churn(cell: StudyEntry, evaluations: Sequence[Record]) -> dict[str, Any]:
    """The evaluations of the same models without stochastic sampling, where there were any."""
    if not evaluations:
        return {}
    shares = _shares_by_k(evaluations)
    found = {rule: over_seeds([evaluation["k_max"][rule] for evaluation in evaluations]) for rule in RULES}
    return {"still": {"k_max": found, "k_max_filled": k_max_filled(shares, cell.max_train_objects), "shares": shares}}


def moments_of(record: Record) -> list[Record]:
    """The evaluations along a training; the scores of the last, at its end, are those of the record."""
    if not record["snapshots"]:
        return []
    *before, end = record["snapshots"]
    scores = {name: record["result"][name] for name in ("k_max", "rows")}
    return [*before, {**scores, **end}]


def _shares_by_k(evaluations: Sequence[Record]) -> dict[str, dict[str, Record]]:
    """Shares of every K over the images of all seeds."""
    by_k: dict[str, list[Record]] = {}
    for evaluation in evaluations:
        for row in evaluation["rows"]:
            by_k.setdefault(str(row["k"]), []).append(row)
    return {k: {name: pooled([row[name] for row in rows]) for name in SHARES} for k, rows in by_k.items()}


def k_max_filled(shares: Mapping[str, Mapping[str, Record]], max_train_objects: int) -> int:
    """K_max by the paper rule if extras were never counted: it asks only whether locations are filled."""
    training = TrainingRange(max_train_objects)
    verdicts = {}
    for k, row in shares.items():
        filled, near = row["all_found"]["value"], row["two_missing"]["value"]
        verdicts[int(k)] = paper_rule(int(k), Shares(filled, filled, filled, near), 0, training)
    return k_max(verdicts)


def paper_sized(records: Sequence[Record]) -> dict[str, Any]:
    """K_max in evaluations of eight images for each K, as many as the paper's: the first eight, any eight; and any 64."""
    result = records[0]["result"]
    training = TrainingRange(result["max_train_objects"], result["label"])
    kept = [{int(k): _shown_table(int(k), rows) for k, rows in record["shown"].items()} for record in records]
    counts = _all_counts(records)
    return {
        "images": _PAPER_IMAGES,
        "first": [_evaluation_of(tables, training) for tables in kept],
        "any": drawn_again(_PAPER_IMAGES, counts, training),
        "any_64": drawn_again(IMAGES, counts, training),
    }


def drawn_again(images: int, counts: Mapping[int, np.ndarray], training: TrainingRange) -> dict[str, Any]:
    """Where K_max lies in evaluations of so many of the counted images."""
    evaluations = evaluations_of(images, counts, training)
    low, middle, high = np.quantile(evaluations, [0.05, 0.5, 0.95], method="inverted_cdf").tolist()
    return {"median": middle, "low": low, "high": high, "share": 0.9}


def _evaluation_of(tables: Mapping[int, np.ndarray], training: TrainingRange) -> int:
    """K_max by the paper rule of the images in these tables."""
    return k_max({k: paper_rule(k, shares_of(table, training), 0, training) for k, table in tables.items()})


def _shown_table(k: int, rows: Sequence[Sequence[int]]) -> np.ndarray:
    """Shown images by (filled, extra), as the evaluation counts them."""
    table = np.zeros((k + 1, max(extra for _, extra, *_ in rows) + 2), dtype=int)
    for filled, extra, *_ in rows:
        table[filled, extra] += 1
    return table


def _all_counts(records: Sequence[Record]) -> dict[int, np.ndarray]:
    """Images of all seeds by (filled, extra), for every K."""
    tables: dict[int, list[np.ndarray]] = {}
    for row in (row for record in records for row in record["result"]["rows"]):
        tables.setdefault(row["k"], []).append(np.array(row["counts"]))
    return {k: added(each) for k, each in tables.items()}


def added(tables: Sequence[np.ndarray]) -> np.ndarray:
    """The sum of tables of which some have more columns."""
    widest = max(table.shape[1] for table in tables)
    return np.sum([np.pad(table, ((0, 0), (0, widest - table.shape[1]))) for table in tables], axis=0)


def pooled(shares: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return share_interval(sum(map(counted, shares)), sum(share["n"] for share in shares)).to_dict()


def write_study(paths: StudyPaths) -> dict[str, Any]:
    """results/study.json: every cell at every size that has a record."""
    records = read_records(paths)
    presets = sorted({record["preset"] for record in records})
    content = {
        "presets": {preset: rows_of(records, preset) for preset in presets},
        "records": [f"study/{job_name(record['cell'], record['preset'], record['seed'])}.json" for record in records],
        "commits": sorted({record["provenance"]["commit"] or "unknown" for record in records}),
    }
    return write_record(make_folder(paths.results) / "study.json", StudyRecord, rounded(content))
