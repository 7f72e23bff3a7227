"""Records of finished jobs become one row for each cell, and one file, results/study.json."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tessera.evaluation.kmax import RULES, Shares, TrainingRange, evaluations_of, k_max, paper_rule, shares_of
from tessera.files import check_types, make_folder, reading, rounded
from tessera.records import StudyRecord, StudyRunRecord, read_record, write_record
from tessera.rows import columns
from tessera.stats import counted, share_interval
from tessera.studies.clevr.entries import CELLS, IMAGES, StudyEntry
from tessera.studies.clevr.runs import StudyPaths, job_name

_PAPER_IMAGES = 8  # of each K, counted by hand
_SHARES = ("all_found", "exact", "allowed_extras", "two_missing")
Record = Mapping[str, Any]


@dataclass(frozen=True)
class _TrainingEntries:
    """What a row takes of a record's training."""

    images_seen: int
    seconds: float


def read_records(paths: StudyPaths) -> list[StudyRunRecord]:
    """All records of finished jobs, by name."""
    found = []
    for path in sorted(paths.records.glob("*.json")):
        found.append(read_record(path, StudyRunRecord))
        check_types(_TrainingEntries, found[-1]["training"], f"The training in {path}")
        with reading(path):  # what a row needs of it is there
            _row_of(next(iter(CELLS.values())), found[-1:], found[-1]["preset"], again=False)
    return found


def rows_of(records: Sequence[Record], preset: str) -> list[dict[str, Any]]:
    """One row for every cell of the table, run or not, in the table's order."""
    by_cell: dict[str, list[Record]] = {name: [] for name in CELLS}
    for record in records:
        if record["preset"] == preset and record["cell"] in CELLS:
            by_cell[record["cell"]].append(record)
    return [_row_of(CELLS[name], own, preset) for name, own in by_cell.items()]


def _row_of(cell: StudyEntry, records: Sequence[Record], preset: str, again: bool = True) -> dict[str, Any]:
    """A cell beside the paper; without records nothing is claimed of it. Drawing evaluations `again` takes its time."""
    row = {**cell.facts(preset), "run": bool(records)}
    if not records:
        return row
    still = [record["still"] for record in records if "still" in record]
    return row | {
        "seeds": [record["seed"] for record in records],
        **_pooled_scores(cell, [record["result"] for record in records]),
        "as_paper": _paper_sized(records, again),
        "extras": spread_at(records, "extra", succeeded=True),
        "at_zero": spread_at(records, "objects", succeeded=False),
        **({"still": _pooled_scores(cell, still)} if still else {}),
        "well_formed": _pooled([record["quality"]["well_formed"] for record in records]),
        "images_seen": [record["training"]["images_seen"] for record in records],
        "training_seconds": [record["training"]["seconds"] for record in records],
        "devices": sorted({record["provenance"]["device"] for record in records}),
    }


def _pooled_scores(cell: StudyEntry, evaluations: Sequence[Record]) -> dict[str, Any]:
    """K_max and shares over the evaluations of all seeds."""
    shares = _shares_by_k(evaluations)
    return {
        "k_max": {rule: over_seeds([evaluation["k_max"][rule] for evaluation in evaluations]) for rule in RULES},
        "k_max_filled": k_max_filled(shares, cell.max_train_objects),
        "shares": shares,
    }


def over_seeds(found: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The middle K_max of several trainings; its interval covers those of all of them.

    Evaluations that left out K = 1 have no K_max.
    """
    known = [one for one in found if one["value"] is not None]
    if not known:
        return {**found[0], "values": []}
    record = {**_middle(known), "values": [one["value"] for one in known]}
    record["tested_to"] = min(one["tested_to"] for one in known)
    if all("corrected" in one for one in known):
        record["corrected"] = _middle([one["corrected"] for one in known])
        lows, highs = zip(*(one["detector_range"] for one in known))
        record["detector_range"] = [min(lows), max(highs)]
    return record


def _middle(found: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The middle value, and the range that covers all intervals."""
    values, lows, highs = columns(found, "value", "low", "high")
    return {"value": statistics.median_low(values), "low": min(lows), "high": max(highs)}


def spread_at(records: Sequence[Record], what: str, succeeded: bool) -> list[int] | None:
    """The numbers that nine in ten images lie between: at K = 0, or (`succeeded`) where K succeeds."""
    rows = [row for record in records for row in record["result"]["rows"]]
    chosen = [row[what]["typical"] for row in rows if (row["succeeds"]["paper"] if succeeded else row["k"] == 0)]
    return [min(low for low, _ in chosen), max(high for _, high in chosen)] if chosen else None


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
    return {k: {name: _pooled([row[name] for row in rows]) for name in _SHARES} for k, rows in by_k.items()}


def k_max_filled(shares: Mapping[str, Mapping[str, Record]], max_train_objects: int) -> int:
    """K_max by the paper rule if extras were never counted: it asks only whether locations are filled."""
    training = TrainingRange(max_train_objects)
    verdicts = {}
    for k, row in shares.items():
        filled, near = row["all_found"]["value"], row["two_missing"]["value"]
        verdicts[int(k)] = paper_rule(int(k), Shares(filled, filled, filled, near), 0, training)
    return k_max(verdicts)


def _paper_sized(records: Sequence[Record], again: bool = True) -> dict[str, Any]:
    """K_max in evaluations of eight images for each K, as many as the paper's: the first eight, any eight; and any 64."""
    result = records[0]["result"]
    training = TrainingRange(result["max_train_objects"], result["label"])
    counts, first = _all_counts(records), []
    for record in records:
        tables = {int(k): _shown_table(int(k), rows) for k, rows in record["shown"].items()}
        first.append(k_max({k: paper_rule(k, shares_of(one, training), 0, training) for k, one in tables.items()}))
    sizes = {"any": _PAPER_IMAGES, "any_64": IMAGES} if again else {}
    drawn = {name: drawn_again(images, counts, training) for name, images in sizes.items()}
    return {"images": _PAPER_IMAGES, "first": first, **drawn}


def drawn_again(images: int, counts: Mapping[int, np.ndarray], training: TrainingRange) -> dict[str, Any]:
    """Where K_max lies in evaluations of so many of the counted images."""
    evaluations = evaluations_of(images, counts, training)
    low, middle, high = np.quantile(evaluations, [0.05, 0.5, 0.95], method="inverted_cdf").tolist()
    return {"median": middle, "low": low, "high": high, "share": 0.9}


def _shown_table(k: int, rows: Sequence[Sequence[int]]) -> np.ndarray:
    """Shown images by (filled, extra), as the evaluation counts them."""
    filled, extra = np.array([row[:2] for row in rows]).T
    table = np.zeros((k + 1, extra.max() + 2), dtype=int)
    np.add.at(table, (filled, extra), 1)
    return table


def _all_counts(records: Sequence[Record]) -> dict[int, np.ndarray]:
    """Images of all seeds by (filled, extra), for every K."""
    totals: dict[int, np.ndarray] = {}
    for row in (row for record in records for row in record["result"]["rows"]):
        counts = np.array(row["counts"])
        total = totals.get(row["k"], np.zeros_like(counts))
        width = max(counts.shape[1], total.shape[1])  # some images have more extra objects
        counts, total = (np.pad(one, ((0, 0), (0, width - one.shape[1]))) for one in (counts, total))
        totals[row["k"]] = counts + total
    return totals


def _pooled(shares: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
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
