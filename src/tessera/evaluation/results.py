"""What `evaluate` and `length_generalization` return."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from rich.table import Table

from tessera.evaluation.matching import ImageScore
from tessera.evaluation.tables import generalization_table
from tessera.plots.figures import INTERVAL, LEARNED, QUIET, styled
from tessera.stats import Interval, share_interval

RULES = ("paper", "strict")


@dataclass(frozen=True)
class Evaluation:
    """Scores of images against their prompts."""

    images: list[ImageScore]

    @property
    def all_found(self) -> Interval:
        """The share of images that show everything in the prompt."""
        return share_interval(sum(score.missing == 0 for score in self.images), len(self.images))

    @property
    def exact(self) -> Interval:
        """The share of images that show everything in the prompt and nothing else."""
        return share_interval(sum(score.missing == 0 and not score.extra for score in self.images), len(self.images))

    def to_dict(self) -> dict[str, Any]:
        shares = {"all_found": self.all_found.to_dict(), "exact": self.exact.to_dict()}
        return {**shares, "images": [score.to_dict() for score in self.images]}

    def __repr__(self) -> str:
        return f"Evaluation({len(self.images)} images, all found in {self.all_found})"


@dataclass(frozen=True, repr=False)
class LengthGeneralization:
    """Up to which number of objects a model shows what it is prompted."""

    k_max: Interval  # by the paper's rule; empty where the training range is not known
    k_max_strict: Interval
    k50: Interval
    mean_recall: Interval  # of prompted locations, mean over every K beyond the training range
    by_k: dict[int, Interval]  # share of images with all prompted locations found
    max_train_objects: int | None
    record: dict[str, Any] = field(repr=False)

    @staticmethod
    def from_record(record: dict[str, Any]) -> "LengthGeneralization":
        paper, strict = (_interval(record["k_max"].get(rule), record) for rule in RULES)
        return LengthGeneralization(
            paper,
            strict,
            Interval(**record["k50"]),
            Interval(**record["mean_recall"]),
            {
                row["k"]: Interval(**{name: row["all_found"][name] for name in Interval._fields})
                for row in record["rows"]
            },
            record["max_train_objects"],
            record,
        )

    def to_dict(self) -> dict[str, Any]:
        return self.record

    def table(self) -> Table:
        """One row per K."""
        return generalization_table(self.record)

    def plot(self) -> Figure:
        """The share of images with all prompted locations found, by K, with intervals, K50 and the training range."""
        return _share_figure(self)

    def __repr__(self) -> str:
        known = {"k_max": self.k_max, "k_max_strict": self.k_max_strict, "k50": self.k50}
        # Where everything that was evaluated succeeds, K_max is a lower bound.
        more = {"k_max": "paper", "k_max_strict": "strict"}
        words = []
        for name, interval in known.items():
            if interval.value is not None:
                found = self.record["k_max"].get(more.get(name, ""), {})
                words.append(f"{name}={interval}" + (" or more" if found.get("at_least") else ""))
        return f"LengthGeneralization({', '.join(words)}, max_train_objects={self.max_train_objects})"


def _interval(found: Mapping[str, Any] | None, record: Mapping[str, Any]) -> Interval:
    n = sum(row["n"] for row in record["rows"])
    return Interval(found["value"], found["low"], found["high"], n) if found else Interval(None, None, None)


@styled
def _share_figure(found: LengthGeneralization) -> Figure:
    figure = Figure(figsize=(5.2, 3.2))
    ax = figure.subplots()
    ks = sorted(found.by_k)
    shares = [found.by_k[k] for k in ks]
    ax.fill_between(ks, [s.low or 0 for s in shares], [s.high or 0 for s in shares], color=INTERVAL, lw=0)
    ax.plot(ks, [s.value or 0 for s in shares], "o-", color=LEARNED, ms=4)
    if found.max_train_objects:
        ax.axvspan(0.5, found.max_train_objects + 0.5, color="0.93", lw=0, zorder=0, label="training range")
        ax.legend(loc="lower left")
    if found.k50.value is not None:
        ax.axvline(found.k50.value, color=QUIET, lw=1, ls=":")
        ax.set_title(f"K50 = {found.k50}")
    ax.set(xlabel="prompted objects, K", ylabel="images with all found", ylim=(0, 1.03))
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    return figure
