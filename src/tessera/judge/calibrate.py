"""How far the judge can be trusted: its error for every number of things, on scenes whose truth is known."""

import itertools
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import torch
from torch import Tensor

from tessera.chance import generator
from tessera.errors import UserError
from tessera.files import read_json
from tessera.images.pictures import load_png, resize, to_float
from tessera.images.render import render
from tessera.judge.clutter import KINDS, nothing_to_find
from tessera.judge.error import JudgeError
from tessera.judge.finding import Finder, Finding
from tessera.judge.intervals import mean_record, share_record
from tessera.judge.matching import CELL, Place, Verdict, match, match_colors
from tessera.judge.truth import ClevrTruth, truths
from tessera.scenes.batch import SceneBatch
from tessera.scenes.camera import ASPECT
from tessera.scenes.placement import PlaceWarning, place_at
from tessera.scenes.sampling import Scenes, Spacing, keep
from tessera.scenes.visibility import all_visible
from tessera.scenes.vocabulary import LOCATIONS

Arrangement = Literal["official", "relaxed", "study"]
HELD_OUT = 10**6  # a stream of scenes that no training uses
OFFICIAL_MOST = 10  # more things hardly fit the official rule, so they stand closer
ATTRIBUTES = ("color", "shape", "size", "material")
LOOKS, LOOKS_APART = 64, 10**7  # looks tried until nothing is hidden, and how far apart they lie in a stream
WIDE = 2  # cells within which a centre error is measured, so that the cell of the match does not cut it off
POOLS = {"1-3": range(1, 4), "1-6": range(1, 7), "1-10": range(1, 11), "all": range(10**6)}
SHIPPED = Path(__file__).with_name("calibration.json")

AT_ONCE = 64  # real renders read together

Size = int | tuple[int, int]


# --- one picture --------------------------------------------------------------------------------------------


class Tally(NamedTuple):
    """How the judge did on one picture whose truth is known."""

    things: int
    seen: int
    missed: int
    false: int  # findings that match no thing
    errors: tuple[float, ...]  # distance of each centre found from the true one, in cells
    right: tuple[int, ...]  # of the things found, how many have the right colour, shape, size, material
    color_missed: int  # things whose colour was not found often enough, wherever it was looked for
    color_false: int  # findings of a colour too many
    empty: int  # places of the study where nothing stands
    filled: int  # how many of those looked filled
    strange: bool


def tally(findings: Sequence[Finding], truth: Sequence[Finding], strange: bool, cell: float = CELL) -> Tally:
    places = [thing.place for thing in truth]
    verdict = match(findings, places, cell)
    by_color = match_colors(findings, [thing.color for thing in truth])
    decoys = empty_places(places, cell)
    return Tally(
        things=len(truth),
        seen=len(findings),
        missed=verdict.missing,
        false=verdict.extra,
        errors=center_errors(findings, truth, cell),
        right=tuple(number_right(findings, truth, verdict, name) for name in ATTRIBUTES),
        color_missed=by_color.missing,
        color_false=by_color.extra,
        empty=len(decoys),
        filled=sum(wish >= len(truth) for wish, _ in match(findings, [*places, *decoys], cell).pairs),
        strange=strange,
    )


def empty_places(taken: Sequence[tuple[float, float]], cell: float) -> list[tuple[float, float]]:
    """Places of the study further than a cell from everything that is there."""

    def is_free(place: tuple[float, float]) -> bool:
        return all(max(abs(place[0] - x), abs(place[1] - y)) > cell for x, y in taken)

    return [place for place in LOCATIONS if is_free(place)]


def center_errors(findings: Sequence[Finding], truth: Sequence[Finding], cell: float) -> tuple[float, ...]:
    pairs = match(findings, [thing.place for thing in truth], WIDE * cell).pairs
    gaps = [np.subtract(truth[t].place, findings[f].place) / cell for t, f in pairs]
    return tuple(float(np.hypot(*gap)) for gap in gaps)


def number_right(
    findings: Sequence[Finding], truth: Sequence[Finding], verdict: Verdict, attribute: str
) -> int:
    return sum(getattr(truth[t], attribute) == getattr(findings[f], attribute) for t, f in verdict.pairs)


def judge_pictures(
    judge: Finder, images: Tensor, truth: Sequence[Sequence[Finding]], cell: float = CELL
) -> list[Tally]:
    """A tally for each of the pictures (B, 3, H, W)."""
    found, strangeness = judge.look(images)
    return [tally(*each, cell) for each in zip(found, truth, (strangeness > 1).tolist())]


# --- many pictures ------------------------------------------------------------------------------------------


def summary(tallies: Sequence[Tally], seed: int = 0) -> dict[str, Any]:
    """The record of pictures that belong together, such as all those of one K."""
    things, seen, missed, false = (
        np.array([getattr(t, name) for t in tallies]) for name in ("things", "seen", "missed", "false")
    )
    found = int((things - missed).sum())
    right = np.sum([t.right for t in tallies], axis=0)
    rng = generator(seed)
    return {
        "pictures": len(tallies),
        "things": int(things.sum()),
        "exact_count": share_record(int((seen == things).sum()), len(tallies)),
        "count_bias": mean_record(seen - things, rng),
        "count_error": mean_record(np.abs(seen - things), rng),
        "all_found": share_record(int((missed == 0).sum()), len(tallies)),
        "clean": share_record(int(((missed == 0) & (false == 0)).sum()), len(tallies)),
        "place_recall": share_record(found, int(things.sum())),
        "place_precision": share_record(found, int(seen.sum())),
        "false_things": mean_record(false, rng),
        "center_error_cells": error_quantiles([error for t in tallies for error in t.errors]),
        **{name: share_record(int(right[i]), found) for i, name in enumerate(ATTRIBUTES)},
        "strange": share_record(sum(t.strange for t in tallies), len(tallies)),
        "outcomes": outcome_table(missed, false),
        "color_outcomes": outcome_table(*np.array([(t.color_missed, t.color_false) for t in tallies]).T),
        "false_fills": [sum(t.filled for t in tallies), sum(t.empty for t in tallies)],
    }


def error_quantiles(errors: Sequence[float]) -> dict[str, Any]:
    if not errors:
        return {"median": None, "q95": None, "q99": None, "within_half": share_record(0, 0)}
    median, q95, q99 = (float(q) for q in np.quantile(errors, [0.5, 0.95, 0.99]))
    close = share_record(sum(error <= 0.5 for error in errors), len(errors))
    return {"median": median, "q95": q95, "q99": q99, "within_half": close}


def outcome_table(missed: np.ndarray, false: np.ndarray) -> list[list[int]]:
    """Pictures by (missed, false)."""
    table = np.zeros((missed.max() + 1, false.max() + 1), dtype=int)
    np.add.at(table, (missed, false), 1)
    return table.tolist()


def by_number(tallies: Iterable[Tally]) -> dict[str, Any]:
    """Records for every number of things, and for numbers taken together."""
    groups: dict[int, list[Tally]] = {}
    for each in tallies:
        groups.setdefault(each.things, []).append(each)
    pooled = {name: [t for k in groups if k in ks for t in groups[k]] for name, ks in POOLS.items()}
    return {
        "rows": {str(k): summary(groups[k], seed=k) for k in sorted(groups)},
        "pooled": {name: summary(chosen) for name, chosen in pooled.items() if chosen},
    }


# --- where the pictures come from ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Held:
    """Held-out rendered scenes."""

    per_k: int = 2000
    size: Size = 64
    seed: int = HELD_OUT
    batch: int = 128
    device: Any = None

    def tallies(self, judge: Finder, arrangement: Arrangement, k: int, advance: Callable) -> list[Tally]:
        """The judge's performance on scenes of exactly k things."""
        found: list[Tally] = []
        for start in range(0, self.per_k, self.batch):
            count = min(self.batch, self.per_k - start)
            scenes = arranged(arrangement, k, count, self.seed, start, self.device)
            images = render(scenes, self.size)["rgb"]
            found += judge_pictures(judge, images, truths(scenes, frame_aspect(self.size)))
            advance(count)
        return found

    def nothing(self, judge: Finder, kind: str, advance: Callable) -> dict[str, Any]:
        """What the judge sees in pictures that hold no thing."""
        things: list[int] = []
        strange: list[bool] = []
        for start in range(0, self.per_k, self.batch):
            count = min(self.batch, self.per_k - start)
            images = nothing_to_find(kind, count, self.size, self.seed + start, self.device)
            found, strangeness = judge.look(images)
            things += [len(findings) for findings in found]
            strange += (strangeness > 1).tolist()
            advance(count)
        return nothing_record(np.array(things), np.array(strange))


def nothing_record(things: np.ndarray, strange: np.ndarray) -> dict[str, Any]:
    n = len(things)
    return {
        "pictures": n,
        "false_things": mean_record(things, generator(0)),
        "any_thing": share_record(int((things > 0).sum()), n),
        "strange": share_record(int(strange.sum()), n),
        "things_without_warning": share_record(int(((things > 0) & ~strange).sum()), n),
    }


def arranged(arrangement: Arrangement, k: int, count: int, seed: int, start: int, device=None) -> SceneBatch:
    """Scenes of k things: by the official rule (closer where they would not fit), or at the study's places."""
    if arrangement == "study":
        return at_study_places(k, count, seed, start, device)
    spacing: Spacing = "official" if arrangement == "official" and k <= OFFICIAL_MOST else "relaxed"
    return Scenes(objects=k, spacing=spacing).draw(count, seed, start, device)


def at_study_places(k: int, count: int, seed: int, start: int, device=None) -> SceneBatch:
    """Things at the study's first k places, all of them visible as the official rule demands."""
    if k > len(LOCATIONS):
        raise UserError(f"The study has {len(LOCATIONS)} places, not {k}.")
    return visible_at(LOCATIONS[:k], count, seed, start, device)


def visible_at(
    places: Sequence[Place], count: int, seed: int, start: int = 0, device: Any = None
) -> SceneBatch:
    """Things at these places, all of them visible as the official rule demands.

    Scene i takes the first of its own looks that hides nothing, whatever is drawn with it.
    """

    def look(turn: int) -> SceneBatch:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", PlaceWarning)  # the study's places are crowded, as it should be
            first, rules = start + turn * LOOKS_APART, Scenes(objects=len(places))
            return place_at(places, rules=rules, count=count, seed=seed, start=first, device=device)

    scenes = look(0)
    for turn in range(1, LOOKS):
        hidden = (~all_visible(scenes, "fast")).nonzero()[:, 0]
        if not len(hidden):
            break
        keep(scenes, hidden, look(turn)[hidden])
    return scenes


def frame_aspect(size: Size) -> float:
    """A square picture shows the 4:3 frame squeezed; any other keeps pixels square."""
    return ASPECT if isinstance(size, int) else size[0] / size[1]


def calibrate_rendered(
    judge: Finder, held: Held, ks: Sequence[int], arrangements: Sequence[Arrangement], advance: Callable
) -> dict[str, Any]:
    """Records by arrangement and number of things, and for pictures without any."""
    record: dict[str, Any] = {}
    for arrangement in arrangements:
        within = [k for k in ks if arrangement != "study" or k <= len(LOCATIONS)]
        record[arrangement] = by_number(
            t for k in within for t in held.tallies(judge, arrangement, k, advance)
        )
    record["nothing"] = {kind: held.nothing(judge, kind, advance) for kind in KINDS}
    return record


def calibrate_clevr(
    judge: Finder,
    truth: ClevrTruth,
    size: tuple[int, int] | None = None,
    most: int | None = None,
    advance: Callable = lambda *_: None,
    device=None,
) -> dict[str, Any]:
    """Records on real renders, at their own size or reduced to `size` (width, height)."""
    numbers = range(min(len(truth), most or len(truth)))
    if not numbers:
        raise UserError(f"{truth.folder.path} has no scene to calibrate on.")
    tallies: list[Tally] = []
    for first in range(0, len(numbers), AT_ONCE):
        chunk = numbers[first : first + AT_ONCE]
        pictures = [load_png(truth.file(i)) for i in chunk]
        things = [truth.things(i, (p.shape[-1], p.shape[-2])) for i, p in zip(chunk, pictures)]
        shown = [to_float(p if size is None else resize(p, size)) for p in pictures]
        for same in alike(shown):
            images = torch.stack([shown[n] for n in same]).to(device)
            tallies += judge_pictures(judge, images, [things[n] for n in same])
        advance(len(chunk))
    return by_number(tallies)


def alike(pictures: Sequence[Tensor]) -> list[list[int]]:
    """Runs of neighbouring pictures that have one size."""
    runs = itertools.groupby(range(len(pictures)), key=lambda n: pictures[n].shape)
    return [list(run) for _, run in runs]


# --- using it -----------------------------------------------------------------------------------------------


def load_calibration(path: Path | None = None) -> dict[str, Any] | None:
    """The calibration shipped with the judge, or another; None where there is none yet."""
    if path is None and not SHIPPED.is_file():
        return None
    record = read_json(path or SHIPPED)
    if not isinstance(record, dict) or not isinstance(record.get("sizes"), dict) or not record["sizes"]:
        raise UserError(f"{path or SHIPPED} is not what `tessera judge calibrate --out` writes.")
    return record


def calibration_rows(
    record: Mapping[str, Any], width: int, arrangement: str = "study"
) -> tuple[str, str, dict[str, Any]]:
    """The size nearest to `width`, the arrangement (or the one there is), and its rows by number of things."""
    size = min(record["sizes"], key=lambda name: abs(np.log(int(name.split("x")[0]) / width)))
    sets = record["sizes"][size]
    known = [name for name in (arrangement, *get_args(Arrangement)) if name in sets]
    if not known:
        raise UserError("The calibration holds no rendered scenes.")
    return size, known[0], sets[known[0]]["rows"]


def judge_error(rows: Mapping[str, Any], by_color: bool = False) -> JudgeError:
    """Calibration rows as the chances that K_max is corrected with, for asked places or for asked colours."""
    table = "color_outcomes" if by_color else "outcomes"
    fills = {} if by_color else {int(k): tuple(row["false_fills"]) for k, row in rows.items()}
    return JudgeError({int(k): np.array(row[table]) for k, row in rows.items()}, fills)
