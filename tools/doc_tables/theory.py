"""The tables of docs/theory.md, from the records in results/."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tessera.rows import NOT_RUN, Rows
from tessera.stats import counted

Record = dict[str, Any]


def checks(results: Any) -> Rows:
    """Every statement that holds as expected."""
    rows = [named(check) for check in found(results) if check["expected"]]
    return [("statement", "instances", "measure", "found"), *(rows or [(NOT_RUN, "", "", "")])]


def refuted(results: Any) -> Rows:
    """Published statements, and obvious hopes, that fail."""
    rows = [named(check) for check in found(results) if not check["expected"]]
    return [("statement that fails", "instances", "measure", "found"), *(rows or [(NOT_RUN, "", "", "")])]


def found(results: Any) -> list[Record]:
    record = results.one("theory-check")
    return [check for check in record["checks"] if check["holds"] == check["expected"]] if record else []


def named(check: Mapping[str, Any]) -> Sequence[str]:
    name = check["name"].replace("|", "\\|")  # a bar ends a cell of the table
    return name, f"{check['instances']:,}", check["measure"], f"{check['error']:.2g}"


def claim_2(results: Any) -> Rows:
    """The witness against Claim 2: KL by noise level."""
    known = [check["witness"]["KL by sigma"] for check in found(results) if check["name"] == "claim 2"]
    if not known:
        return [("t", "any"), ("KL", NOT_RUN)]
    return [("t", *known[0]), ("KL", *(f"{value:.2g}" for value in known[0].values()))]


def ideal(results: Any) -> Rows:
    """The closed-form local denoiser, sampled and evaluated."""
    records = [record for record in results.several("theory-ideal-*") if record.get("evaluated")]
    if not records:
        return [("size", "K_max, paper rule"), (NOT_RUN, NOT_RUN)]
    ks = sorted({row["k"] for record in records for row in record["evaluated"]["rows"]})
    head = ("size", "steps", "most", *(f"K = {k}" for k in ks), "K_max, paper rule", "strict")
    return [head, *(ideal_row(record, ks) for record in sorted(records, key=lambda record: record["size"]))]


def ideal_row(record: Mapping[str, Any], ks: Sequence[int]) -> Sequence[str]:
    rows = {row["k"]: row["all_found"] for row in record["evaluated"]["rows"]}
    shares = [f"{counted(rows[k])}/{rows[k]['n']}" if k in rows else NOT_RUN for k in ks]
    k_max = record["evaluated"]["k_max"]
    bounds = [f"{one['value']} ({one['low']} to {one['high']})" for one in (k_max["paper"], k_max["strict"])]
    return str(record["size"]), str(record["steps"]), str(record["most"]), *shares, *bounds


def likeness(results: Any) -> Rows:
    """How like a trained network the closed form denoises: of whole images, and of what departs from their mean."""
    records = results.several("theory-likeness-*")
    measures = [(record, part) for record in records for part in LIKENESS]
    head = ("sigma", *(f"{record['model']}, {LIKENESS[part]}" for record, part in measures))
    rows: Rows = [head]
    for level in range(len(records[0]["likeness"]) if records else 0):
        cells = (likeness_words(record["likeness"][level], part) for record, part in measures)
        rows.append((f"{records[0]['likeness'][level]['sigma']:g}", *cells))
    return rows if records else [("sigma", "likeness"), (NOT_RUN, NOT_RUN)]


LIKENESS = {"whole": "r, R^2", "beyond_mean": "beyond the mean"}


def likeness_words(found: Mapping[str, Any], part: str) -> str:
    measured = found if part == "whole" else found[part]
    return ", ".join(
        f"{measured[name]['value']:.2f} [{measured[name]['low']:.2f}, {measured[name]['high']:.2f}]"
        for name in ("pearson_r", "r_squared")
    )


THEORY_TABLES: dict[str, Callable[[Any], Rows]] = {
    "theory-checks": checks,
    "theory-refuted": refuted,
    "theory-claim-2": claim_2,
    "theory-ideal": ideal,
    "theory-likeness": likeness,
}
