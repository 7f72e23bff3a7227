"""How far a model length-generalises: shares for every K with intervals, and K_max by two rules.

Pure functions on counts. Pictures of one K are kept as a table of how many filled f places and showed e extras,
which is all that the rules, the bootstrap and the correction for the judge's own error need.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, get_args

import numpy as np

from tessera.chance import generator
from tessera.errors import UserError
from tessera.experiments import Label
from tessera.judge.error import JudgeError, confusion, unconfuse
from tessera.judge.intervals import (
    RESAMPLES,
    mean_record,
    quantile_range,
    share_record,
    whole_range,
    wilson,
)
from tessera.judge.matching import Verdict

MOST_PICTURES = 7 / 8  # of the paper's eight pictures, all but one
SOME_PICTURES = 1 / 4
LEFT_OUT = 2  # places that may stay empty beyond the training range
STRICT = 0.5
ROUNDING = 1e-9
OTHER_JUDGES = 20  # calibrations redrawn to see what the judge's own error may do
RESAMPLES_EACH = 20  # pictures redrawn under each of them
QUICK_STEPS = 100  # of expectation maximisation, for redrawn pictures


@dataclass(frozen=True)
class Counts:
    """What the judge counted in n pictures of which K things were asked."""

    k: int
    filled: np.ndarray  # (n,) asked places (or colours) that are filled
    extra: np.ndarray  # (n,) things nobody asked for
    things: np.ndarray  # (n,) all things, whether asked for or not
    improper: np.ndarray  # (n,) half-drawn things and blobs among them

    def __post_init__(self):
        for name in ("filled", "extra", "things", "improper"):
            object.__setattr__(self, name, np.asarray(getattr(self, name), dtype=int))
        if not len(self.filled) == len(self.extra) == len(self.things) == len(self.improper) > 0:
            raise UserError(f"K = {self.k} needs at least one picture, and every count of each.")
        if self.filled.min() < 0 or self.filled.max() > self.k or self.extra.min() < 0:
            raise UserError(f"Of {self.k} places, 0 to {self.k} can be filled, and extras are not negative.")

    @staticmethod
    def of(k: int, verdicts: Iterable[Verdict]) -> "Counts":
        rows = np.array([(v.found, v.extra, v.things, v.improper) for v in verdicts], dtype=int)
        return Counts(k, *rows.reshape(-1, 4).T)

    @property
    def n(self) -> int:
        return len(self.filled)

    def table(self) -> np.ndarray:
        """Pictures by (filled, extra), (K + 1, most extras + 2): one more than seen, as the truth may have."""
        table = np.zeros((self.k + 1, self.extra.max() + 2), dtype=int)
        np.add.at(table, (self.filled, self.extra), 1)
        return table


@dataclass(frozen=True)
class Training:
    """What the rules must know of the model: how many things training showed, and which were told."""

    seen_max: int | None = None
    label: str = "all"

    def __post_init__(self):
        if self.label not in get_args(Label):
            raise UserError(f"Things can be labelled {', '.join(get_args(Label))}, not `{self.label}`.")
        if self.seen_max is not None and self.seen_max < 1:
            raise UserError(f"Training must have shown at least one thing, not {self.seen_max}.")

    @property
    def extras_allowed(self) -> int:
        """Extras that are no failure within the training range: things training showed without telling."""
        unseen = (self.seen_max or 1) - 1
        one = min(1, unseen)
        return {"all": 0, "one": unseen, "random": unseen, "all-but-one": one, "drop": 1}[self.label]


class Shares(NamedTuple):
    """Shares of pictures, one number or one per resample."""

    all_filled: Any
    clean: Any  # all filled, no extra
    within: Any  # all filled, extras at most what training may add
    near: Any  # at least K - 2 filled


def shares_of(table: np.ndarray, training: Training) -> Shares:
    """Shares in tables (..., K + 1, E) of pictures by (filled, extra)."""
    k, total = table.shape[-2] - 1, table.sum((-1, -2))
    full = table[..., k, :]
    return Shares(
        all_filled=full.sum(-1) / total,
        clean=full[..., 0] / total,
        within=full[..., : training.extras_allowed + 1].sum(-1) / total,
        near=table[..., max(k - LEFT_OUT, 0) :, :].sum((-1, -2)) / total,
    )


def paper_rule(k: int, shares: Shares, n: int, training: Training) -> Any:
    """Within the training range 7 of 8 pictures are right; beyond, 7 of 8 fill K - 2 and over a quarter all."""
    if training.seen_max is None:
        raise UserError("The paper's rule must know how many things training showed (--seen-max).")
    if k <= training.seen_max:
        return shares.within >= MOST_PICTURES - ROUNDING
    return (shares.near >= MOST_PICTURES - ROUNDING) & (shares.all_filled > SOME_PICTURES + ROUNDING)


def strict_rule(k: int, shares: Shares, n: int, training: Training) -> Any:
    """The lower 95% bound of the share with all filled (and no extra, where all were told) is at least half."""
    share = shares.clean if training.label == "all" else shares.all_filled
    return wilson(np.asarray(share) * n, n)[0] >= STRICT - ROUNDING


Rule = Callable[[int, Shares, int, Training], Any]
RULES: dict[str, Rule] = {"paper": paper_rule, "strict": strict_rule}


def k_max(successes: Mapping[int, Any]) -> Any:
    """The largest K such that every 1 <= K' <= K was measured and succeeds; 0 if K = 1 does not."""
    reached, going = 0, True
    for k in range(1, max(successes, default=0) + 1):
        going = np.logical_and(going, successes.get(k, False))
        reached = reached + going.astype(int)
    return int(reached) if np.ndim(reached) == 0 else reached


def last_in_a_row(ks: Iterable[int]) -> int:
    """The largest K that can be reached with the Ks that were measured."""
    return k_max(dict.fromkeys(ks, True))


def length_generalization(
    counts: Sequence[Counts],
    seen_max: int | None = None,
    label: str = "all",
    error: JudgeError | None = None,
    seed: int = 0,
    resamples: int = RESAMPLES,
) -> dict[str, Any]:
    """Everything there is to say about K, as one JSON-ready record.

    Intervals of shares are Wilson's, those of means and of K_max bootstrap the pictures; `corrected` numbers
    allow for the judge's own `error`, and their intervals for its uncertainty too.
    """
    if len({c.k for c in counts}) < len(counts):
        raise UserError("Counts were given twice for the same K.")
    training = Training(seen_max, label)
    counts = sorted(counts, key=lambda c: c.k)
    drawn = {c.k: resampled_tables(c, generator(seed, c.k), resamples) for c in counts}
    corrected = correct(counts, error, seed) if error else None
    rules = {name: rule for name, rule in RULES.items() if name == "strict" or seen_max is not None}
    return {
        "seen_max": seen_max,
        "label": label,
        "extras_allowed": training.extras_allowed,
        "seed": seed,
        "resamples": resamples,
        "k_max": {
            name: k_max_record(rule, counts, drawn, corrected, training) for name, rule in rules.items()
        },
        "rows": [row_record(c, training, rules, corrected, seed) for c in counts],
    }


def resampled_tables(counts: Counts, rng: np.random.Generator, resamples: int) -> np.ndarray:
    """Tables (R, K + 1, E) of pictures drawn again with replacement."""
    table = counts.table()
    return rng.multinomial(counts.n, table.ravel() / counts.n, size=resamples).reshape(-1, *table.shape)


def exams_of(
    pictures: int,
    tables: Mapping[int, np.ndarray],
    training: Training,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> np.ndarray:
    """K_max by the paper rule of many exams with so few pictures of each K, drawn from those counted: (R,)."""
    passed = {}
    for k, table in tables.items():
        rng = generator(seed, k, 3)
        drawn = rng.multinomial(pictures, table.ravel() / table.sum(), size=resamples)
        shares = shares_of(drawn.reshape(-1, *table.shape), training)
        passed[k] = paper_rule(k, shares, pictures, training)
    return np.broadcast_to(k_max(passed), (resamples,))


# --- the judge's own error ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Corrected:
    """Tables by K, freed of the judge's own error."""

    best: dict[int, np.ndarray]  # (K + 1, E), for the pictures and the calibration as they are
    judges: dict[int, np.ndarray]  # (J, K + 1, E), the calibration drawn again, the pictures as they are
    both: dict[int, np.ndarray]  # (R, K + 1, E), both drawn again


def correct(counts: Sequence[Counts], error: JudgeError, seed: int) -> Corrected:
    others = [error.resampled(generator(seed, j, 1)) for j in range(OTHER_JUDGES)]
    corrected = Corrected({}, {}, {})
    for c in counts:
        table = c.table()
        rng = generator(seed, c.k, 2)
        corrected.best[c.k] = freed(table[None], error)[0]
        again = [freed(stacked(table, c, rng), other, QUICK_STEPS) for other in others]
        corrected.judges[c.k] = np.stack([tables[0] for tables in again])
        corrected.both[c.k] = np.concatenate([tables[1:] for tables in again])
    return corrected


def stacked(table: np.ndarray, counts: Counts, rng: np.random.Generator) -> np.ndarray:
    """The table itself, and tables of pictures drawn again."""
    return np.concatenate([table[None], resampled_tables(counts, rng, RESAMPLES_EACH)])


def freed(tables: np.ndarray, error: JudgeError, steps: int | None = None) -> np.ndarray:
    """Tables (R, K + 1, E) as they would be, as shares, if the judge made no mistakes."""
    k, extras = tables.shape[-2] - 1, tables.shape[-1] - 1
    flat = tables.reshape(len(tables), -1)
    shares = flat / flat.sum(-1, keepdims=True)
    limit = {} if steps is None else {"steps": steps}
    return unconfuse(shares, confusion(error, k, extras), **limit).reshape(tables.shape)


# --- records ------------------------------------------------------------------------------------------------


def k_max_record(
    rule: Rule,
    counts: Sequence[Counts],
    drawn: Mapping[int, np.ndarray],
    corrected: Corrected | None,
    training: Training,
) -> dict[str, Any]:
    """K_max with its interval; and corrected, with the range that the judge's error alone leaves open."""
    numbers = {c.k: c.n for c in counts}

    def over(tables: Mapping[int, np.ndarray]) -> Any:
        asked = {k: table for k, table in tables.items() if k > 0}
        return k_max({k: rule(k, shares_of(t, training), numbers[k], training) for k, t in asked.items()})

    tested_to = last_in_a_row(numbers)
    if not tested_to:  # K = 1 was not asked for, so there is nothing to say
        return {"value": None, "low": None, "high": None, "tested_to": 0, "at_least": False}
    value = over({c.k: c.table() for c in counts})
    low, high = whole_range(over(drawn))
    record: dict[str, Any] = {"value": value, "low": low, "high": high, "tested_to": tested_to}
    record["at_least"] = value == tested_to
    if corrected:
        best, judges = over(corrected.best), over(corrected.judges)
        low, high = whole_range(over(corrected.both))
        every = [value, best, *judges.tolist()]
        record["corrected"] = {"value": best, "low": low, "high": high}
        record["judge_range"] = [min(every), max(every)]
    return record


def row_record(
    counts: Counts, training: Training, rules: Mapping[str, Rule], corrected: Corrected | None, seed: int
) -> dict[str, Any]:
    """One K: shares, means, quality, and whether it succeeds."""
    shares = shares_of(counts.table(), training)
    rng = generator(seed, counts.k, 3)
    succeeds = {
        name: bool(rule(counts.k, shares, counts.n, training)) if counts.k else None
        for name, rule in rules.items()
    }
    return {
        "k": counts.k,
        "n": counts.n,
        **{
            name: share_with_correction(name, share, counts, training, corrected)
            for name, share in named(shares)
        },
        "found": mean_record(counts.filled, rng),
        "extra": {**mean_record(counts.extra, rng), **spread(counts.extra)},
        "things": {**mean_record(counts.things, rng), **spread(counts.things)},
        "proper": proper_record(counts, rng),
        "succeeds": succeeds,
    }


def named(shares: Shares) -> Iterable[tuple[str, Any]]:
    return shares._asdict().items()


def share_with_correction(
    name: str, share: float, counts: Counts, training: Training, corrected: Corrected | None
) -> dict[str, Any]:
    record = share_record(round(share * counts.n), counts.n)
    if corrected:
        best, both = (
            getattr(shares_of(tables[counts.k], training), name)
            for tables in (corrected.best, corrected.both)
        )
        low, high = quantile_range(both)
        record["corrected"] = {
            "share": float(best),
            "low": min(low, float(best)),
            "high": max(high, float(best)),
        }
    return record


def spread(values: np.ndarray) -> dict[str, Any]:
    """Fewest and most, and the range that nine in ten pictures lie in."""
    low, high = np.quantile(values, [0.05, 0.95], method="inverted_cdf")
    return {"min": int(values.min()), "max": int(values.max()), "typical": [int(low), int(high)]}


def proper_record(counts: Counts, rng: np.random.Generator) -> dict[str, Any]:
    """Image quality: the share of things that are proper ones; the bootstrap draws whole pictures."""
    things, improper = counts.things, counts.improper
    if not things.sum():
        return {"share": None, "low": None, "high": None, "things": 0}
    rows = rng.integers(counts.n, size=(RESAMPLES, counts.n))
    total = np.maximum(things[rows].sum(1), 1)
    low, high = quantile_range(1 - improper[rows].sum(1) / total)
    return {
        "share": float(1 - improper.sum() / things.sum()),
        "low": low,
        "high": high,
        "things": int(things.sum()),
    }
