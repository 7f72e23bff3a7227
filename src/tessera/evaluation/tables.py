"""The record of an evaluation as a table and in words."""

from collections.abc import Sequence
from typing import Any

from rich.table import Table

from tessera.console import NARROW, ResultTable
from tessera.evaluation.kmax import ENOUGH
from tessera.rows import plural
from tessera.stats import Interval, counted


def notes(record: dict[str, Any], width: int) -> list[str]:
    """What a reader of the numbers should know."""
    few = [row["k"] for row in record["rows"] if row["n"] < ENOUGH]
    ood = sum(counted(row["ood"]) for row in record["rows"])
    trust = record["detector"]
    sentences = {
        f"Fewer than {ENOUGH} images for K = {', '.join(map(str, few))}: too few for K_max to be sure.": few,
        f"{plural(ood, 'image')} {'is' if ood == 1 else 'are'} unlike those the detector was trained on (`ood` in the JSON).": ood,
        "The most objects in a training image are not known, so the paper's rule is left out (--max-train-objects).": (
            record["max_train_objects"] is None
        ),
        "The detector has no calibration here, so its own error is not corrected for.": trust is None,
    }
    if trust and int(trust["size"].split("x")[0]) != width:
        sentences[f"The detector was calibrated at {trust['size']} pixels, these images are {width} wide."] = True
    return [sentence for sentence, applies in sentences.items() if applies]


def generalization_table(record: dict[str, Any]) -> Table:
    """One row per K."""
    rules = list(record["k_max"])
    # Rich cuts a long word that finds no room in 80 columns, so that such heads are broken here.
    heads = ("K", "n", "all found", "no extra", "K-2 found", "found", "extra", "well-\nformed", *rules, "detec-\ntor")
    images = plural(sum(row["n"] for row in record["rows"]), "image")
    title = f"{images}; shares in % with 95% intervals; detector: its exact counts"
    table = ResultTable(*heads, title=title, **{**NARROW, "padding": 0})
    for row in record["rows"]:
        shares = [shown_share(row[name]) if row["k"] else "" for name in ("all_found", "exact", "two_missing")]
        table.add_row(
            str(row["k"]),
            str(row["n"]),
            *shares,
            f"{row['found']['value']:.2f}",
            f"{row['extra']['value']:.2f} ({range_words(row['extra']['typical'])})",
            percent(row["well_formed"]["value"]),
            *({True: "yes", False: "no", None: ""}[row["succeeds"][rule]] for rule in rules),
            percent(row["detector"]["exact_count"]["value"]) if row["detector"] else "",
        )
    return table


def shown_share(record: dict[str, Any]) -> str:
    """`88 (77-95)`, in percent."""
    if record["value"] is None:
        return ""
    return f"{100 * record['value']:.0f} ({100 * record['low']:.0f}-{100 * record['high']:.0f})"


def percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.1f}"


def range_words(ends: Sequence[int]) -> str:
    return str(ends[0]) if ends[0] == ends[1] else f"{ends[0]}-{ends[1]}"


def _k_max_in_words(rule: str, found: dict[str, Any]) -> str:
    if found["value"] is None:
        return f"K_max by the {rule} rule is not known: K = 1 was not measured."
    more = " or more" if found["at_least"] else ""
    said = f"K_max by the {rule} rule: {found['value']}{more}, 95% interval {found['low']}-{found['high']}"
    if "corrected" in found:
        fair = found["corrected"]
        said += (
            f"; corrected for the detector's own error {fair['value']} ({fair['low']}-{fair['high']}), "
            f"and its error alone allows {range_words(found['detector_range'])}"
        )
    return said + "."


def conclusions(record: dict[str, Any]) -> list[str]:
    """K_max in words, and what to bear in mind."""
    lines = [_k_max_in_words(rule, found) for rule, found in record["k_max"].items()]
    k50 = Interval(**record["k50"])
    if k50.value is not None:
        lines.append(f"K50, where half of the images show everything in the prompt: {k50}.")
    for row in record["rows"]:
        if row["k"] == 0:
            low, high = row["objects"]["typical"]
            objects = plural(low, "object") if low == high else f"{low}-{high} objects"
            lines.append(f"With an empty prompt, {objects} appear{'s' if low == high == 1 else ''}.")
    return lines + _most_missed(record["rows"])


def _most_missed(rows: Sequence[dict[str, Any]]) -> list[str]:
    """What is missing most often, at the first K that fails for want of something."""
    for row in rows:
        fewest = min(row.get("filled_at", []), default=row["n"])
        if row["succeeds"]["strict"] is False and fewest < row["n"]:
            prompt = row["prompts"][row["filled_at"].index(fewest)]
            what = f"{prompt} is" if isinstance(prompt, str) else f"an object at ({prompt[0]:.2f}, {prompt[1]:.2f}) is"
            return [f"At K = {row['k']}, {what} missed most often: {fewest} of {plural(row['n'], 'image')} show it."]
    return []
