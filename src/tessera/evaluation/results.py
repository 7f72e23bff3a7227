"""What `evaluate` and `length_generalization` return."""

from dataclasses import dataclass
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from rich.table import Table

from tessera.evaluation.matching import ImageScore
from tessera.evaluation.tables import generalization_table
from tessera.plots.figures import INTERVAL, LEARNED, QUIET, styled
from tessera.rows import pick, plural
from tessera.stats import Interval, share_interval


@dataclass(frozen=True)
class Evaluation:
    """Scores of images against their prompts."""

    images: list[ImageScore]

    @property
    def all_found(self) -> Interval:
        """The share of images that show everything in the prompt."""
        return share_interval(sum(all(score.found) for score in self.images), len(self.images))

    @property
    def exact(self) -> Interval:
        """The share of images that show everything in the prompt and nothing else."""
        return share_interval(sum(score.succeeds() for score in self.images), len(self.images))

    def to_dict(self) -> dict[str, Any]:
        shares = {"all_found": self.all_found.to_dict(), "exact": self.exact.to_dict()}
        return {**shares, "images": [score.to_dict() for score in self.images]}

    def __repr__(self) -> str:
        return f"Evaluation({plural(len(self.images), 'image')}, all found in {self.all_found})"


@dataclass(frozen=True, repr=False)
class LengthGeneralization:
    """Up to which number of objects a model shows what it is prompted."""

    record: dict[str, Any]

    @property
    def k_max(self) -> Interval:
        """By the paper's rule; empty where the training range is not known."""
        return self._k_max_by("paper")

    @property
    def k_max_strict(self) -> Interval:
        """By the strict rule."""
        return self._k_max_by("strict")

    @property
    def k50(self) -> Interval:
        """The K at which half of the images show all prompted locations."""
        return Interval(**self.record["k50"])

    @property
    def mean_recall(self) -> Interval:
        """Of prompted locations, the mean over every K beyond the training range."""
        return Interval(**self.record["mean_recall"])

    @property
    def by_k(self) -> dict[int, Interval]:
        """The share of images with all prompted locations found, by K."""
        shares = pick((row["all_found"] for row in self.record["rows"]), Interval._fields)
        return {row["k"]: Interval(**share) for row, share in zip(self.record["rows"], shares)}

    @property
    def max_train_objects(self) -> int | None:
        """The most objects in a training image."""
        return self.record["max_train_objects"]

    def to_dict(self) -> dict[str, Any]:
        return self.record

    def table(self) -> Table:
        """One row per K."""
        return generalization_table(self.record)

    def plot(self) -> Figure:
        """The share of images with all prompted locations found, by K, with intervals, K50 and the training range."""
        return _share_figure(self)

    def _k_max_by(self, rule: str) -> Interval:
        n = sum(row["n"] for row in self.record["rows"])
        found = self.record["k_max"].get(rule)
        return Interval(found["value"], found["low"], found["high"], n) if found else Interval(None, None, None)

    def __repr__(self) -> str:
        words = []
        for name, rule in {"k_max": "paper", "k_max_strict": "strict", "k50": ""}.items():
            interval = getattr(self, name)
            if interval.value is not None:
                # Where everything that was evaluated succeeds, K_max is a lower bound.
                more = self.record["k_max"].get(rule, {}).get("at_least")
                words.append(f"{name}={interval}" + (" or more" if more else ""))
        return f"LengthGeneralization({', '.join(words)}, max_train_objects={self.max_train_objects})"


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
