"""How far a model length-generalizes: shares for every K with intervals, K50, and K_max by two rules.

Pure functions on counts. Images of one K are kept as a table of how many filled f locations and showed e extras,
which is all that the rules, the bootstrap and the correction for the detector's own error need.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, get_args

import numpy as np
from scipy.optimize import isotonic_regression

from tessera import stats
from tessera.config import Label, current_settings
from tessera.errors import UserError
from tessera.evaluation.detector_error import STEPS, DetectorError, confusion, unconfuse
from tessera.evaluation.matching import ImageScore
from tessera.rng import generator
from tessera.stats import RESAMPLES, Interval

_MOST_IMAGES = 7 / 8  # of the paper's eight images, all but one
_SOME_IMAGES = 1 / 4
ENOUGH = 64  # images for each K, below which intervals of K_max are too wide
_LEFT_OUT = 2  # locations that may stay empty beyond the training range
_STRICT = 0.5
ROUNDING = 1e-9
_OTHER_DETECTORS = 20  # calibrations resampled to propagate the detector's own error
_RESAMPLES_EACH = 20  # images resampled under each of them
_QUICK_STEPS = 100  # of expectation maximization, for resampled images


@dataclass(frozen=True)
class Counts:
    """What the detector counted in n images with K prompted objects."""

    k: int
    filled: np.ndarray  # (n,) prompted locations (or colors) that are filled
    extra: np.ndarray  # (n,) objects not in the prompt
    objects: np.ndarray  # (n,) all objects, in the prompt or not
    malformed: np.ndarray  # (n,) half-drawn objects and blobs among them

    def __post_init__(self):
        for name in ("filled", "extra", "objects", "malformed"):
            object.__setattr__(self, name, np.asarray(getattr(self, name), dtype=int))
        if not len(self.filled) == len(self.extra) == len(self.objects) == len(self.malformed) > 0:
            raise UserError(f"K = {self.k} needs at least one image, and every count of each.")
        if self.filled.min() < 0 or self.filled.max() > self.k or self.extra.min() < 0:
            raise UserError(f"Of {self.k} locations, 0 to {self.k} can be filled, and extras are not negative.")

    @staticmethod
    def of(k: int, scores: Iterable[ImageScore]) -> "Counts":
        rows = np.array([(s.num_found, s.extra, s.objects, s.malformed) for s in scores], dtype=int)
        return Counts(k, *rows.reshape(-1, 4).T)

    @property
    def n(self) -> int:
        return len(self.filled)

    def table(self) -> np.ndarray:
        """Images by (filled, extra), (K + 1, most extras + 2): one more than counted, as the truth may have."""
        table = np.zeros((self.k + 1, self.extra.max() + 2), dtype=int)
        np.add.at(table, (self.filled, self.extra), 1)
        return table


@dataclass(frozen=True)
class TrainingRange:
    """What the rules need of the model: the most objects in a training image, and which of them were labeled."""

    max_train_objects: int | None = None
    label: str = "all"

    def __post_init__(self):
        if self.label not in get_args(Label):
            raise UserError(f"Objects can be labeled {', '.join(get_args(Label))}, not `{self.label}`.")
        if self.max_train_objects is not None and self.max_train_objects < 1:
            raise UserError(f"Training images hold at least one object at most, not {self.max_train_objects}.")

    @staticmethod
    def of(settings: Mapping[str, Any] | None) -> "TrainingRange":
        """What the settings of a training say, as far as they are known."""
        known = current_settings(settings or {})
        try:
            most = int(known["data"]["objects"][1])
        except (KeyError, TypeError, ValueError, IndexError):
            most = None
        return TrainingRange(most, (known.get("conditioner") or {}).get("labels", "all"))

    @property
    def extras_allowed(self) -> int:
        """Extras that are no failure within the training range: objects that training left unlabeled."""
        others = (self.max_train_objects or 1) - 1
        one = min(1, others)
        return {"all": 0, "one": others, "random": others, "all-but-one": one, "drop": 1}[self.label]


class Shares(NamedTuple):
    """Shares of images, one number or one per resample."""

    all_found: Any
    exact: Any  # all filled, no extra
    allowed_extras: Any  # all filled, extras at most what training may add
    two_missing: Any  # at least K - 2 filled


def shares_of(table: np.ndarray, training: TrainingRange) -> Shares:
    """Shares in tables (..., K + 1, E) of images by (filled, extra)."""
    k, total = table.shape[-2] - 1, table.sum((-1, -2))
    full = table[..., k, :]
    return Shares(
        all_found=full.sum(-1) / total,
        exact=full[..., 0] / total,
        allowed_extras=full[..., : training.extras_allowed + 1].sum(-1) / total,
        two_missing=table[..., max(k - _LEFT_OUT, 0) :, :].sum((-1, -2)) / total,
    )


def paper_rule(k: int, shares: Shares, n: int, training: TrainingRange) -> Any:
    """Within the training range 7 of 8 images are right; beyond, 7 of 8 fill K - 2 and over a quarter all."""
    if training.max_train_objects is None:
        raise UserError("The paper's rule needs the most objects in a training image (--max-train-objects).")
    if k <= training.max_train_objects:
        return shares.allowed_extras >= _MOST_IMAGES - ROUNDING
    return (shares.two_missing >= _MOST_IMAGES - ROUNDING) & (shares.all_found > _SOME_IMAGES + ROUNDING)


def _strict_rule(k: int, shares: Shares, n: int, training: TrainingRange) -> Any:
    """The lower 95% bound of the share with all filled (and no extra, where all were labeled) is at least half."""
    share = shares.exact if training.label == "all" else shares.all_found
    return stats.wilson(np.asarray(share) * n, n)[0] >= _STRICT - ROUNDING


_Rule = Callable[[int, Shares, int, TrainingRange], Any]
RULES: dict[str, _Rule] = {"paper": paper_rule, "strict": _strict_rule}


def k_max(successes: Mapping[int, Any]) -> Any:
    """The largest K such that every 1 <= K' <= K was measured and succeeds; 0 if K = 1 does not."""
    reached, unbroken = 0, True
    for k in range(1, max(successes, default=0) + 1):
        unbroken = np.logical_and(unbroken, successes.get(k, False))
        reached = reached + unbroken.astype(int)
    return int(reached) if np.ndim(reached) == 0 else reached


def _last_in_a_row(ks: Iterable[int]) -> int:
    """The largest K that can be reached with the Ks that were measured."""
    return k_max(dict.fromkeys(ks, True))


def generalization_record(
    counts: Sequence[Counts],
    max_train_objects: int | None = None,
    label: str = "all",
    error: DetectorError | None = None,
    seed: int = 0,
    resamples: int = RESAMPLES,
) -> dict[str, Any]:
    """Everything there is to say about K, as one JSON-ready record.

    Intervals of shares are Wilson's, those of means and of K_max bootstrap the images; `corrected` numbers
    allow for the detector's own `error`, and their intervals for its uncertainty too.
    """
    if len({c.k for c in counts}) < len(counts):
        raise UserError("Counts were given twice for the same K.")
    training = TrainingRange(max_train_objects, label)
    counts = sorted(counts, key=lambda c: c.k)
    drawn = {c.k: stats.resample_table(c.table(), generator(seed, c.k), resamples=resamples) for c in counts}
    corrected: dict[int, _Corrected] = {}
    if error:
        others = [error.resampled(generator(seed, j, 1)) for j in range(_OTHER_DETECTORS)]
        corrected = {c.k: _correct(c, error, others, seed) for c in counts}
    all_found = [int((c.filled == c.k).sum()) for c in counts]
    rules = {name: rule for name, rule in RULES.items() if name == "strict" or max_train_objects is not None}
    return {
        "max_train_objects": max_train_objects,
        "label": label,
        "extras_allowed": training.extras_allowed,
        "seed": seed,
        "resamples": resamples,
        "k_max": {name: _k_max_record(rule, counts, drawn, corrected, training) for name, rule in rules.items()},
        "k50": k50([c.k for c in counts], all_found, [c.n for c in counts], seed).to_dict(),
        "mean_recall": mean_recall(counts, max_train_objects or 0, seed).to_dict(),
        "rows": [_row_record(c, training, rules, corrected.get(c.k), seed) for c in counts],
    }


# --- without thresholds for single K ------------------------------------------------------------------------


def k50(ks: Sequence[int], all_found: Any, n: Any, seed: int = 0, resamples: int = RESAMPLES) -> Interval:
    """The K at which the share of samples with all locations found crosses one half.

    `all_found` counts the samples of each K (K,) of one training, or (T, K) of several; `n` is how many samples there
    are. The interval bootstraps samples, and trainings where there are several. Not known if K = 1 was not measured.
    """
    counts = np.atleast_2d(np.asarray(all_found, dtype=float))  # (T, K)
    n = np.broadcast_to(np.asarray(n), counts.shape)
    if not _last_in_a_row(ks):
        return Interval(None, None, None, 0)
    shares = counts / n
    drawn = stats.binomial_curves(seed, shares, n, resamples)  # (R, T, K)
    if len(counts) > 1:
        rows = stats.resample_rows(generator(seed, 1), len(counts), resamples)  # (R, T)
        drawn = np.take_along_axis(drawn, rows[:, :, None], axis=1)
    low, high = stats.quantile_range(np.array([crossing(ks, curve) for curve in drawn.mean(1)]))
    return Interval(crossing(ks, shares.mean(0)), low, high, int(n.sum()))


def crossing(ks: Sequence[int], shares: Any, level: float = 0.5) -> float:
    """Where the nearest non-increasing curve through the shares of these K crosses the level, between two K linearly.

    With an empty prompt, nothing is missing: the curve starts at 1 for K = 0. It ends at the last K where it stays
    above the level.
    """
    measured = [n for n, k in enumerate(ks) if k > 0]
    at = np.array([0, *(ks[n] for n in measured)], dtype=float)
    curve = isotonic_regression(np.array([1.0, *np.asarray(shares)[measured]]), increasing=False).x
    if curve[-1] >= level:
        return float(at[-1])
    after = int(np.argmax(curve < level))
    before, below = curve[after - 1], curve[after]
    return float(at[after - 1] + (at[after] - at[after - 1]) * (before - level) / (before - below))


def mean_recall(counts: Sequence[Counts], beyond: int = 0, seed: int = 0, resamples: int = RESAMPLES) -> Interval:
    """Share of prompted locations that are filled, mean over every K > `beyond`; the interval bootstraps samples."""
    chosen = [c for c in counts if c.k > beyond]
    if not chosen:
        return Interval(None, None, None, 0)
    drawn = [stats.resampled_means(c.filled / c.k, generator(seed, c.k, 4), resamples) for c in chosen]
    value = float(np.mean([c.filled.mean() / c.k for c in chosen]))
    return Interval(value, *stats.quantile_range(np.mean(drawn, axis=0)), sum(c.n for c in chosen))


def evaluations_of(
    images: int, tables: Mapping[int, np.ndarray], training: TrainingRange, resamples: int = RESAMPLES, seed: int = 0
) -> np.ndarray:
    """K_max by the paper rule of many evaluations with so few images of each K, drawn from those counted: (R,)."""
    passed = {}
    for k, table in tables.items():
        drawn = stats.resample_table(table, generator(seed, k, 3), images, resamples)
        passed[k] = paper_rule(k, shares_of(drawn, training), images, training)
    return np.broadcast_to(k_max(passed), (resamples,))


# --- the detector's own error ----------------------------------------------------------------------------------


class _Corrected(NamedTuple):
    """Tables of one K, corrected for the detector's own error."""

    best: np.ndarray  # (K + 1, E), for the images and the calibration as they are
    detectors: np.ndarray  # (J, K + 1, E), the calibration drawn again, the images as they are
    both: np.ndarray  # (R, K + 1, E), both drawn again


def _correct(counts: Counts, error: DetectorError, others: Sequence[DetectorError], seed: int) -> _Corrected:
    table, rng = counts.table()[None], generator(seed, counts.k, 2)
    again = []
    for other in others:
        drawn = stats.resample_table(table[0], rng, resamples=_RESAMPLES_EACH)
        again.append(_bias_corrected(np.concatenate([table, drawn]), other, _QUICK_STEPS))
    tables = np.stack(again)  # (J, 1 + R, K + 1, E)
    both = tables[:, 1:].reshape(-1, *table.shape[1:])
    return _Corrected(_bias_corrected(table, error)[0], tables[:, 0], both)


def _bias_corrected(tables: np.ndarray, error: DetectorError, steps: int = STEPS) -> np.ndarray:
    """Tables (R, K + 1, E) as they would be, as shares, if the detector made no mistakes."""
    k, extras = tables.shape[-2] - 1, tables.shape[-1] - 1
    flat = tables.reshape(len(tables), -1)
    shares = flat / flat.sum(-1, keepdims=True)
    return unconfuse(shares, confusion(error, k, extras), steps).reshape(tables.shape)


# --- records ------------------------------------------------------------------------------------------------


def _k_max_record(
    rule: _Rule,
    counts: Sequence[Counts],
    drawn: Mapping[int, np.ndarray],
    corrected: Mapping[int, _Corrected],
    training: TrainingRange,
) -> dict[str, Any]:
    """K_max with its interval; and corrected, with the range that the detector's error alone leaves open."""
    numbers = {c.k: c.n for c in counts}

    def over(tables: Mapping[int, np.ndarray]) -> Any:
        measured = {k: table for k, table in tables.items() if k > 0}
        return k_max({k: rule(k, shares_of(t, training), numbers[k], training) for k, t in measured.items()})

    tested_to = _last_in_a_row(numbers)
    if not tested_to:  # K = 1 was not evaluated, so there is nothing to say
        return {"value": None, "low": None, "high": None, "tested_to": 0, "at_least": False}
    value = over({c.k: c.table() for c in counts})
    low, high = stats.whole_range(over(drawn))
    record: dict[str, Any] = {"value": value, "low": low, "high": high, "tested_to": tested_to}
    record["at_least"] = value == tested_to
    if corrected:
        best, detectors, both = (over(dict(zip(corrected, tables))) for tables in zip(*corrected.values()))
        low, high = stats.whole_range(both)
        every = [value, best, *detectors.tolist()]
        record["corrected"] = {"value": best, "low": low, "high": high}
        record["detector_range"] = [min(every), max(every)]
    return record


def _row_record(
    counts: Counts, training: TrainingRange, rules: Mapping[str, _Rule], corrected: _Corrected | None, seed: int
) -> dict[str, Any]:
    """One K: shares, means, quality, and whether it succeeds."""
    shares, n = shares_of(counts.table(), training), counts.n
    records = {name: stats.share_interval(round(share * n), n).to_dict() for name, share in shares._asdict().items()}
    if corrected:
        fair = zip(records.values(), shares_of(corrected.best, training), shares_of(corrected.both, training))
        for record, best, both in fair:
            low, high = stats.quantile_range(both)
            record["corrected"] = {"value": float(best), "low": min(low, float(best)), "high": max(high, float(best))}
    rng = generator(seed, counts.k, 3)
    succeeds = {name: bool(rule(counts.k, shares, n, training)) if counts.k else None for name, rule in rules.items()}
    return {
        "k": counts.k,
        "n": counts.n,
        **records,
        "found": stats.mean_interval(counts.filled, rng).to_dict(),
        "extra": {**stats.mean_interval(counts.extra, rng).to_dict(), **_spread(counts.extra)},
        "objects": {**stats.mean_interval(counts.objects, rng).to_dict(), **_spread(counts.objects)},
        # The bootstrap draws whole images.
        "well_formed": stats.ratio_of_sums(counts.malformed, counts.objects, rng).complement().to_dict(),
        "succeeds": succeeds,
    }


def _spread(values: np.ndarray) -> dict[str, Any]:
    """Fewest and most, and the range that nine in ten images lie in."""
    low, high = np.quantile(values, [0.05, 0.95], method="inverted_cdf")
    return {"min": int(values.min()), "max": int(values.max()), "typical": [int(low), int(high)]}
