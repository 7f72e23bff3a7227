"""Tables of features for the docs, from results/features-*.json."""

from collections.abc import Callable, Mapping
from typing import Any

from tessera.rows import NOT_RUN, Rows, or_not_run

SHOWN = {
    "off_diagonal": "cosine between conditions",
    "centered_off_rms": "rms cosine, their mean taken out",
    "leakage": "leakage when one is removed",
    "locality": "feature-space locality",
}


def beside_untrained(results: Any) -> Rows:
    """Means over all modulation layers at each noise level, learned and of untrained networks."""
    rows: Rows = [("model", "sigma", *SHOWN.values())]
    for record in results.several("features-*"):
        for level in record["levels"]:
            found = level["beside_untrained"]
            rows.append((record["model"], f"{level['sigma']:.3g}", *(words(found[name]) for name in SHOWN)))
    return or_not_run(rows)


def words(found: Mapping[str, Any]) -> str:
    mean, null = found["mean"], found["null"]
    beside = f"untrained {null['low']:.2f} to {null['high']:.2f}" if null else f"untrained {NOT_RUN}"
    return "" if mean is None else f"{mean:.2f} ({beside})"


FEATURE_TABLES: dict[str, Callable[[Any], Rows]] = {"features": beside_untrained}
