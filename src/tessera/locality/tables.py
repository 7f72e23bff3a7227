"""Tables of locality for the docs, from results/locate-*.json, scatter.json and fig12.json."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tessera.rows import Rows, or_not_run


def conditional(results: Any) -> Rows:
    """Conditional locality of models, on their own samples and on noised truth."""
    rows: Rows = [("model", "K", "noisy pictures", "conditional locality", "null", "band of sigma")]
    for record in results.several("locate-*"):
        for study in record["studies"]:
            rows.append(
                (record["model"], str(study["k"]), study["source"], *words(study["conditional_locality"]))
            )
    return or_not_run(rows)


def words(found: Mapping[str, Any]) -> Sequence[str]:
    null, band = found["null"], found["band"]
    return (
        f"{found['value']:.2f} [{found['low']:.2f}, {found['high']:.2f}]",
        f"{null['mean']:.2f} [{null['low']:.2f}, {null['high']:.2f}]",
        f"{band['sigma_min']:.2g} to {band['sigma_max']:.2g}",
    )


def by_noise(results: Any) -> Rows:
    """90% sides at rising noise: of CIFAR-10, and of models of the study."""
    rows: Rows = [("pictures", "90% side, lowest third of noise levels", "highest third", "ratio")]
    cifar = results.one("fig12")
    if cifar:
        growth = cifar["growth"]
        ratio = growth["ratio"]
        told = f"{ratio['value']:.1f} [{ratio['low']:.1f}, {ratio['high']:.1f}]"
        rows.append(("CIFAR-10, 32x32", *sides(growth["side_low_noise"], growth["side_high_noise"]), told))
    for record in results.several("locate-*"):
        for study in record["studies"]:
            low, high = thirds([level["side90_each"]["mean"] for level in study["levels"]])
            name = f"{record['model']}, {record['size']}x{record['size']}, {study['source']}"
            rows.append((name, *sides(low, high), f"{high / low:.1f}"))
    return or_not_run(rows)


def thirds(values: Sequence[float]) -> tuple[float, float]:
    """Means of the last and of the first third: levels are listed from high noise to low."""
    count = max(1, len(values) // 3)
    return sum(values[-count:]) / count, sum(values[:count]) / count


def sides(low: float, high: float) -> tuple[str, str]:
    return f"{low:.1f} pixels", f"{high:.1f} pixels"


LOCALITY_TABLES: dict[str, Callable[[Any], Rows]] = {"locality-zoo": conditional, "locality-noise": by_noise}
