"""Tables of locality for the docs, from results/locality-*.json, scatter.json, fig12.json and bench-locality-*.json."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tessera.rows import Rows, or_not_run


def conditional(results: Any) -> Rows:
    """Conditional locality of models, on their own samples and on noised truth."""
    rows: Rows = [("model", "K", "noisy images", "conditional locality", "null", "band of sigma")]
    for record in results.several("locality-*"):
        for study in record["studies"]:
            rows.append((record["model"], str(study["k"]), study["source"], *words(study["conditional_locality"])))
    return or_not_run(rows)


def words(found: Mapping[str, Any] | None) -> Sequence[str]:
    """Nothing where conditions lie nowhere, such as colors."""
    if found is None:
        return "", "", ""
    null, band = found["null"], found["band"]
    return (
        f"{found['value']:.2f} [{found['low']:.2f}, {found['high']:.2f}]",
        f"{null['value']:.2f} [{null['low']:.2f}, {null['high']:.2f}]",
        f"{band['sigma_min']:.2g} to {band['sigma_max']:.2g}",
    )


def by_noise(results: Any) -> Rows:
    """90% sides at rising noise: of CIFAR-10, and of models of the study."""
    rows: Rows = [("images", "90% side, lowest third of noise levels", "highest third", "ratio")]
    cifar = results.one("fig12")
    if cifar:
        growth = cifar["growth"]
        ratio = growth["ratio"]
        growth_ratio = f"{ratio['value']:.1f} [{ratio['low']:.1f}, {ratio['high']:.1f}]"
        rows.append(("CIFAR-10, 32x32", *sides(growth["side_low_noise"], growth["side_high_noise"]), growth_ratio))
    for record in results.several("locality-*"):
        for study in record["studies"]:
            low, high = thirds([level["side90_each"]["value"] for level in study["levels"]])
            name = f"{record['model']}, {record['size']}x{record['size']}, {study['source']}"
            rows.append((name, *sides(low, high), f"{high / low:.1f}"))
    return or_not_run(rows)


def thirds(values: Sequence[float]) -> tuple[float, float]:
    """Means of the last and of the first third: levels are listed from high noise to low."""
    count = max(1, len(values) // 3)
    return sum(values[-count:]) / count, sum(values[:count]) / count


def sides(low: float, high: float) -> tuple[str, str]:
    return f"{low:.1f} pixels", f"{high:.1f} pixels"


RULES = ("paper", "strict")
READING_WORDS = {
    "strict": "K_max by the strict rule, less M",
    "paper": "K_max by the paper rule, less M",
    "filled": "share of prompted locations found, M < K <= 10",
}


def scatter(results: Any) -> Rows:
    """Length generalization, read in three ways, against conditional locality."""
    rows: Rows = [("length generalization", "trainings", "snapshots", "models", "Spearman", "models drawn again")]
    record = results.one("scatter")
    for one in record["readings"] if record else []:
        rank, seen = one["spearman"], one["max_train_objects"]
        trainings = "all" if seen is None else f"on 1 to {seen} objects"
        numbers = (str(one["points"]), str(one["models"]))
        ranks = rank_words(rank), range_words(rank["interval_by_model"])
        rows.append((READING_WORDS[one["reading"]], trainings, *numbers, *ranks))
    return or_not_run(rows)


def scatter_headline(results: Any) -> Rows:
    """For the README: does what looks locally compose?"""
    record = results.one("scatter")
    if not record or record["spearman"]["value"] is None:
        return []
    rank, seen = record["spearman"], record["max_train_objects"]
    trained = "" if seen is None else f", trainings on 1 to {seen} objects"
    correlation = f"Spearman {value_words(rank['value'])} {range_words(rank['interval_by_model'])}".rstrip()
    for other in record["readings"]:
        if other["reading"] != record["rule"] and other["reading"] in RULES and other["max_train_objects"] == seen:
            correlation += f"; by the {other['reading']} rule {value_words(other['spearman']['value'])}"
    what = f"conditional locality with K_max by the {record['rule']} rule{trained}"
    return [(what, correlation, f"{record['points']} snapshots of {record['models']} models")]


def rank_words(rank: Mapping[str, Any]) -> str:
    return f"{value_words(rank['value'])} {range_words(rank['interval'])}".rstrip()


def value_words(value: float | None) -> str:
    """Where one of the two never varies there is no correlation."""
    return "not defined" if value is None else f"{value:.2f}"


def range_words(interval: Sequence[float] | None) -> str:
    return "" if interval is None else "[{:.2f}, {:.2f}]".format(*interval)


def speed(results: Any) -> Rows:
    """Many probes at once against one autograd call per probe and channel."""
    heads = ("machine", "probes x levels x images", "one by one", "together", "ratio")
    rows: Rows = [(*heads, "sharing forward passes", "largest difference", "memory taken of budget")]
    for record in results.several("bench-locality*"):
        seconds, taken = record["seconds"], record["peak_memory_bytes"]
        budget = f"{record['memory_budget_bytes'] / 2**30:.1f} GiB"
        rows.append(
            (
                record["provenance"]["device"],
                " x ".join(str(record[name]) for name in ("probes", "levels", "images")),
                f"{seconds['one_call_per_probe_and_channel']:.1f} s",
                f"{seconds['batched']:.1f} s",
                f"{record['ratio']:.1f}x",
                f"{record['ratio_with_one_forward_for_all_probes']:.1f}x",
                f"{record['largest_difference']:.0e}",
                f"{taken / 2**30:.1f} of {budget}" if taken else f"not measured, of {budget}",
            )
        )
    return or_not_run(rows)


LOCALITY_TABLES: dict[str, Callable[[Any], Rows]] = {
    "locality-zoo": conditional,
    "locality-noise": by_noise,
    "locality-scatter": scatter,
    "locality-speed": speed,
}
