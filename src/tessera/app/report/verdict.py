"""A conclusion in words, derived from the numbers, and careful where they are not certain."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, Literal

from tessera.evaluation.kmax import ENOUGH
from tessera.rows import plural

Record = Mapping[str, Any]
_Tone = Literal["good", "bad", "unsure"]
_Degree = Literal["local", "partly", "not", "chance", "unknown"]

_LOCAL, _NOT_LOCAL = 0.7, 0.35  # of the way from no locality (1 / K) to perfect locality (1)
_CHANCE = 0.05  # p-value above which locality may be luck
FEWEST = 8  # images for each K, as many as the paper counted; below, nothing is claimed
_DOUBTFUL = 0.1  # share of images the detector does not know, above which its counts are to be doubted


@dataclass(frozen=True)
class Reach:
    """How far a model composes, by one rule."""

    value: int | None  # the largest K such that it and every smaller one evaluated succeed
    low: int | None
    high: int | None
    max_train_objects: int | None
    rule: str
    n: int  # fewest images of any K >= 1
    max_conditions: int
    gaps: bool  # a K was left out that would have decided

    @property
    def open_ended(self) -> bool:
        """Every K that was evaluated succeeded, so more might."""
        return self.value is not None and self.value == self.max_conditions


@dataclass(frozen=True)
class Conclusion:
    """One sentence, how to color it, and what to bear in mind."""

    headline: str
    tone: _Tone
    doubts: list[str] = field(default_factory=list)


def verdict(scores: Record | None, locality: Record | None) -> Conclusion:
    """The conclusion on a model from its scores and its locality record; either may be missing."""
    reach = reach_of(scores)
    said, tone = _extras_words(scores, reach) or _reach_words(reach)
    sentence = said + _HOW.get((tone, degree_of(locality)), "")
    return Conclusion(sentence[0].upper() + sentence[1:] + ".", tone, _doubts(reach, scores, locality))


# --- how far ------------------------------------------------------------------------------------------------


def reach_of(scores: Record | None, rule: str | None = None) -> Reach | None:
    """By a rule, else the paper's where training is known, else the strict one; None if no K >= 1 was evaluated."""
    prompted = [row for row in (scores or {"rows": ()})["rows"] if row["k"] >= 1]
    if scores is None or not prompted:
        return None
    rule = rule or ("paper" if "paper" in scores["k_max"] else "strict")
    found = scores["k_max"][rule]
    ks = sorted(row["k"] for row in prompted)
    gaps = _leaves_open(found, ks)
    value = _last_success(prompted, rule) if gaps else found["value"]
    fewest = min(row["n"] for row in prompted)
    # One image gives an interval of no width.
    low, high = (None, None) if gaps or fewest == 1 else (found["low"], found["high"])
    return Reach(value, low, high, scores.get("max_train_objects"), rule, fewest, max(ks), gaps)


def _leaves_open(found: Record, ks: Sequence[int]) -> bool:
    """Whether K_max depends on a K that was left out, while a larger one was evaluated."""
    tested_to = found.get("tested_to", ks[-1])
    return found["value"] is None or (found["value"] == tested_to and ks[-1] > tested_to)


def _last_success(rows: Sequence[Record], rule: str) -> int:
    """The largest K evaluated such that it and every smaller one evaluated succeed."""
    in_turn = itertools.takewhile(lambda row: row["succeeds"][rule], sorted(rows, key=itemgetter("k")))
    return max((row["k"] for row in in_turn), default=0)


def _reach_words(reach: Reach | None) -> tuple[str, _Tone]:
    if reach is None or reach.value is None:
        return "how far it composes was not measured", "unsure"
    if reach.n < FEWEST:
        return f"too few images to say how far it composes; those sampled are right up to {reach.value}", ("unsure")
    if reach.value == 0 and not reach.high:
        return "does not show even one object reliably", "bad"
    if reach.max_train_objects is None:
        return f"follows its prompts {_up_to(reach)}", "unsure"
    return _against_training(reach, reach.value, reach.max_train_objects)


def _extras_words(scores: Record | None, reach: Reach | None) -> tuple[str, _Tone] | None:
    """Where it fills more locations than in training, and only the objects it adds to them break the paper's rule.

    A model whose training left objects unlabeled may add others; the strict rule does not count those, the paper's allows a few.
    """
    if scores is None or reach is None or scores.get("label", "all") == "all" or reach.n < FEWEST:
        return None
    filled = reach_of(scores, "strict")
    if filled is None or None in (filled.low, reach.value, reach.high, reach.max_train_objects):
        return None
    if not reach.value <= reach.max_train_objects < filled.low:  # type: ignore[operator]
        return None
    sure = reach.high <= reach.max_train_objects  # type: ignore[operator]
    adds = "but adds more than training does" if sure else "and may add more than training does"
    return f"follows its prompts {_up_to(filled)}, {adds}", "unsure"


def _against_training(reach: Reach, value: int, max_train_objects: int) -> tuple[str, _Tone]:
    """Beyond the training range, not beyond, or an interval that allows both."""
    low = value if reach.low is None else reach.low
    high = value if reach.high is None else reach.high
    careful = reach.n < ENOUGH or reach.gaps
    if low > max_train_objects:
        return f"{'seems to compose' if careful else 'composes'} {_up_to(reach)}", "good"
    if high <= max_train_objects:
        return _falls_short(value, max_train_objects, careful), "bad"
    if value > max_train_objects:
        return f"may compose {_up_to(reach)}, but {low} cannot be ruled out", "unsure"
    return f"may not compose beyond {value}; anything from {low} to {high} is possible", "unsure"


def _up_to(reach: Reach) -> str:
    about = "about " if reach.low != reach.high else ""
    more = ", perhaps further" if reach.open_ended else ""
    return f"up to {about}{reach.value}{more}"


def _falls_short(value: int, max_train_objects: int, careful: bool) -> str:
    verb = "seems not to compose" if careful else "does not compose"
    if value == max_train_objects:
        return f"{verb} beyond the {max_train_objects} objects of its training images"
    if value == 0:
        return "hardly ever shows even one object"
    return f"{verb}: right only up to {value}, though trained on up to {max_train_objects}"


# --- how locally --------------------------------------------------------------------------------------------


def degree_of(locality: Record | None) -> _Degree:
    """Which of the words fits, by the whole interval; between two, the careful one."""
    found = locality["conditional_locality"] if locality else None
    if found is None or found["k"] < 2:
        return "unknown"
    if found["null"]["p_value"] > _CHANCE:
        return "chance"
    floor = found["no_locality"]
    low, high = ((found[name] - floor) / (1 - floor) for name in ("low", "high"))
    if low >= _LOCAL:
        return "local"
    return "not" if high < _NOT_LOCAL else "partly"


_HOW: dict[tuple[str, _Degree], str] = {
    ("good", "local"): ", with local influence of its conditions",
    ("good", "partly"): ", with only partly local influence of its conditions",
    ("good", "not"): ", though the influence of its conditions is not local",
    ("good", "chance"): ", though the influence of its conditions is no more local than by chance",
    ("bad", "local"): ", and yet the influence of its conditions is local",
    ("bad", "partly"): ", and the influence of its conditions is only partly local",
    ("bad", "not"): ", and the influence of its conditions is not local",
    ("bad", "chance"): ", and the influence of its conditions is no more local than by chance",
    ("unsure", "local"): "; the influence of its conditions is local",
    ("unsure", "partly"): "; the influence of its conditions is partly local",
    ("unsure", "not"): "; the influence of its conditions is not local",
    ("unsure", "chance"): "; the influence of its conditions is no more local than by chance",
}


# --- what to bear in mind -----------------------------------------------------------------------------------


def _doubts(reach: Reach | None, scores: Record | None, locality: Record | None) -> list[str]:
    """Sentences about everything that weakens the numbers."""
    said = []
    if reach is not None and reach.n < ENOUGH:
        said.append(
            f"Only {plural(reach.n, 'image')} for some K: {ENOUGH} are needed before intervals of K_max can be trusted."
        )
    if reach is not None and reach.gaps:
        said.append("Not every K was evaluated, so this is the largest of those evaluated that succeeded in turn.")
    ood = _ood_share(scores)
    if ood > _DOUBTFUL:
        said.append(f"{100 * ood:.0f}% of its images are unlike those the detector was trained on: doubt its counts.")
    found = locality["conditional_locality"] if locality else None
    if locality and locality.get("note"):
        said.append(locality["note"])
    if found is not None and found["images"] < FEWEST:
        said.append(f"Locality was measured on {found['images']} of its images only.")
    return said


def _ood_share(scores: Record | None) -> float:
    """Share of all images that the detector does not recognize, where that was counted."""
    counted = [row["ood"] for row in (scores or {"rows": ()})["rows"] if "ood" in row]
    total = sum(each["n"] for each in counted)
    return sum(each["value"] * each["n"] for each in counted if each["n"]) / total if total else 0.0
