"""How far the detector can be trusted: its error for every number of objects, on scenes whose truth is known."""

import itertools
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import torch
from torch import Tensor

from tessera.errors import UserError
from tessera.evaluation.detection import Detection, ObjectDetector
from tessera.evaluation.detector_error import DetectorError
from tessera.evaluation.empty_images import KINDS, nothing_to_find
from tessera.evaluation.matching import CELL, ImageScore, Location, match, match_colors
from tessera.evaluation.truth import ClevrTruth, truths
from tessera.files import read_json
from tessera.records import current_words
from tessera.render.image_io import load_png, resize, to_float
from tessera.render.render import render
from tessera.rng import generator
from tessera.scenes.batch import SceneBatch
from tessera.scenes.camera import ASPECT
from tessera.scenes.placement import LocationWarning, scenes_at
from tessera.scenes.sampling import Scenes, Spacing, keep
from tessera.scenes.visibility import all_visible
from tessera.scenes.vocabulary import LOCATIONS
from tessera.stats import mean_interval, share_interval

Arrangement = Literal["official", "relaxed", "study"]
HELD_OUT = 10**6  # a stream of scenes that no training uses
OFFICIAL_MOST = 10  # more objects hardly fit the official rule, so they stand closer
_ATTRIBUTES = ("color", "shape", "size", "material")
_ATTEMPTS, _APART = 64, 10**7  # tried until nothing is hidden, and how far apart they lie in a stream
_WIDE = 2  # cells within which a center error is measured, so that the cell of the match does not cut it off
_POOLS = {"1-3": range(1, 4), "1-6": range(1, 7), "1-10": range(1, 11), "all": range(10**6)}
_SHIPPED = Path(__file__).with_name("calibration.json")

_AT_ONCE = 64  # real renders read together

Size = int | tuple[int, int]


# --- one image --------------------------------------------------------------------------------------------


class _Tally(NamedTuple):
    """How the detector did on one image whose truth is known."""

    truth: Sequence[Detection]
    score: ImageScore  # by location: what is missing was missed, what is extra is false
    by_color: ImageScore  # colors not found, or found too often, wherever they were
    errors: list[float]  # distance of each center found from the true one, in cells
    vacant: list[bool]  # for each location of the study where nothing stands, whether it looked filled

    @property
    def pairs(self) -> list[tuple[Detection, Detection]]:
        """Objects, and the detections that fill their locations."""
        return [(self.truth[t], self.score.detections[d]) for t, d in self.score.pairs]


def tally(detections: Sequence[Detection], truth: Sequence[Detection], ood_score: float = 0.0) -> _Tally:
    locations = [obj.location for obj in truth]
    wide = match(detections, locations, _WIDE * CELL)
    gaps = [np.subtract(truth[t].location, detections[d].location) / CELL for t, d in wide.pairs]
    return _Tally(
        truth,
        score=match(detections, locations, ood_score=ood_score),
        by_color=match_colors(detections, [obj.color for obj in truth]),
        errors=[float(np.hypot(*gap)) for gap in gaps],
        vacant=match(detections, [*locations, *empty_locations(locations)]).found[len(truth) :],
    )


def empty_locations(taken: Sequence[Location]) -> list[Location]:
    """Locations of the study further than a cell from everything that is there."""

    def is_free(location: Location) -> bool:
        return all(max(abs(location[0] - x), abs(location[1] - y)) > CELL for x, y in taken)

    return [location for location in LOCATIONS if is_free(location)]


def evaluate_images(detector: ObjectDetector, images: Tensor, truth: Sequence[Sequence[Detection]]) -> list[_Tally]:
    """A tally for each of the images (B, 3, H, W)."""
    found, ood_score = detector.detect(images)
    return [tally(*each) for each in zip(found, truth, ood_score.tolist())]


# --- many images ------------------------------------------------------------------------------------------


def summary(tallies: Sequence[_Tally], seed: int = 0) -> dict[str, Any]:
    """The record of images that belong together, such as all those of one K."""
    images, rng = len(tallies), generator(seed)
    objects, seen, missed, false = np.array(
        [(len(t.truth), t.score.objects, t.score.missing, t.score.extra) for t in tallies]
    ).T
    pairs = list(itertools.chain.from_iterable(t.pairs for t in tallies))
    vacant = list(itertools.chain.from_iterable(t.vacant for t in tallies))
    shares = {
        "exact_count": (seen == objects, images),
        "all_found": (missed == 0, images),
        "clean": ((missed == 0) & (false == 0), images),
        "location_recall": (objects - missed, objects.sum()),
        "location_precision": (objects - missed, seen.sum()),
        "ood": ([t.score.ood for t in tallies], images),
    }
    for name in _ATTRIBUTES:
        shares[name] = ([getattr(true, name) == getattr(found, name) for true, found in pairs], len(pairs))
    return {
        "images": images,
        "objects": int(objects.sum()),
        **{name: share_interval(int(np.sum(these)), int(of)).to_dict() for name, (these, of) in shares.items()},
        "count_bias": mean_interval(seen - objects, rng).to_dict(),
        "count_error": mean_interval(np.abs(seen - objects), rng).to_dict(),
        "false_objects": mean_interval(false, rng).to_dict(),
        "center_error_cells": _error_quantiles(list(itertools.chain.from_iterable(t.errors for t in tallies))),
        "outcomes": _outcome_table(missed, false),
        "color_outcomes": _outcome_table(*np.array([(t.by_color.missing, t.by_color.extra) for t in tallies]).T),
        "false_fills": [sum(vacant), len(vacant)],
    }


def _error_quantiles(errors: Sequence[float]) -> dict[str, Any]:
    if not errors:
        return {"median": None, "q95": None, "q99": None, "within_half": share_interval(0, 0).to_dict()}
    median, q95, q99 = (float(q) for q in np.quantile(errors, [0.5, 0.95, 0.99]))
    close = share_interval(sum(error <= 0.5 for error in errors), len(errors)).to_dict()
    return {"median": median, "q95": q95, "q99": q99, "within_half": close}


def _outcome_table(missed: np.ndarray, false: np.ndarray) -> list[list[int]]:
    """Images by (missed, false)."""
    table = np.zeros((missed.max() + 1, false.max() + 1), dtype=int)
    np.add.at(table, (missed, false), 1)
    return table.tolist()


def by_number(tallies: Iterable[_Tally]) -> dict[str, Any]:
    """Records for every number of objects, and for numbers taken together."""
    groups: dict[int, list[_Tally]] = {}
    for each in tallies:
        groups.setdefault(len(each.truth), []).append(each)
    pooled = {name: [t for k in groups if k in ks for t in groups[k]] for name, ks in _POOLS.items()}
    return {
        "rows": {str(k): summary(groups[k], seed=k) for k in sorted(groups)},
        "pooled": {name: summary(chosen) for name, chosen in pooled.items() if chosen},
    }


# --- where the images come from ---------------------------------------------------------------------------


@dataclass(frozen=True)
class HeldOut:
    """Held-out rendered scenes."""

    per_k: int = 2000
    size: Size = 64
    seed: int = HELD_OUT
    batch: int = 128
    device: Any = None

    def tallies(self, detector: ObjectDetector, arrangement: Arrangement, k: int, advance: Callable) -> list[_Tally]:
        """The detector's performance on scenes of exactly k objects."""

        def draw(start: int, count: int) -> tuple[Tensor, list[list[Detection]]]:
            scenes = arranged(arrangement, k, count, self.seed, start, self.device)
            return render(scenes, self.size)["rgb"], truths(scenes, _frame_aspect(self.size))

        return self._evaluated(detector, draw, advance)

    def nothing(self, detector: ObjectDetector, kind: str, advance: Callable) -> dict[str, Any]:
        """What the detector finds in images that hold no object."""

        def draw(start: int, count: int) -> tuple[Tensor, list[list[Detection]]]:
            return nothing_to_find(kind, count, self.size, self.seed + start, self.device), [[]] * count

        scores = [t.score for t in self._evaluated(detector, draw, advance)]
        return nothing_record(np.array([score.objects for score in scores]), np.array([score.ood for score in scores]))

    def _evaluated(self, detector: ObjectDetector, draw: Callable, advance: Callable) -> list[_Tally]:
        found: list[_Tally] = []
        for start in range(0, self.per_k, self.batch):
            count = min(self.batch, self.per_k - start)
            found += evaluate_images(detector, *draw(start, count))
            advance(count)
        return found


def nothing_record(objects: np.ndarray, ood: np.ndarray) -> dict[str, Any]:
    n = len(objects)
    return {
        "images": n,
        "false_objects": mean_interval(objects, generator(0)).to_dict(),
        "any_object": share_interval(int((objects > 0).sum()), n).to_dict(),
        "ood": share_interval(int(ood.sum()), n).to_dict(),
        "objects_without_warning": share_interval(int(((objects > 0) & ~ood).sum()), n).to_dict(),
    }


def arranged(arrangement: Arrangement, k: int, count: int, seed: int, start: int, device=None) -> SceneBatch:
    """Scenes of k objects: by the official rule (closer where they would not fit), or at the study's locations."""
    if arrangement == "study":
        return at_study_locations(k, count, seed, start, device)
    spacing: Spacing = "official" if arrangement == "official" and k <= OFFICIAL_MOST else "relaxed"
    return Scenes(objects=k, spacing=spacing).draw(count, seed, start, device)


def at_study_locations(k: int, count: int, seed: int, start: int, device=None) -> SceneBatch:
    """Objects at the study's first k locations, all of them visible as the official rule demands."""
    if k > len(LOCATIONS):
        raise UserError(f"The study has {len(LOCATIONS)} locations, not {k}.")
    return visible_at(LOCATIONS[:k], count, seed, start, device)


def visible_at(locations: Sequence[Location], count: int, seed: int, start: int = 0, device: Any = None) -> SceneBatch:
    """Objects at these locations, all of them visible as the official rule demands.

    Scene i takes the first of its own attempts that hides nothing, whatever is drawn with it.
    """

    def attempt(turn: int) -> SceneBatch:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", LocationWarning)  # the study's locations are crowded, as it should be
            first, rules = start + turn * _APART, Scenes(objects=len(locations))
            return scenes_at(locations, rules=rules, count=count, seed=seed, start=first, device=device)

    scenes = attempt(0)
    for turn in range(1, _ATTEMPTS):
        hidden = (~all_visible(scenes, "fast")).nonzero()[:, 0]
        if not len(hidden):
            break
        keep(scenes, hidden, attempt(turn)[hidden])
    return scenes


def _frame_aspect(size: Size) -> float:
    """A square image shows the 4:3 frame squeezed; any other keeps pixels square."""
    return ASPECT if isinstance(size, int) else size[0] / size[1]


def calibrate_rendered(
    detector: ObjectDetector, held: HeldOut, ks: Sequence[int], arrangements: Sequence[Arrangement], advance: Callable
) -> dict[str, Any]:
    """Records by arrangement and number of objects, and for images without any."""
    record: dict[str, Any] = {}
    for arrangement in arrangements:
        within = [k for k in ks if arrangement != "study" or k <= len(LOCATIONS)]
        record[arrangement] = by_number(t for k in within for t in held.tallies(detector, arrangement, k, advance))
    record["nothing"] = {kind: held.nothing(detector, kind, advance) for kind in KINDS}
    return record


def calibrate_clevr(
    detector: ObjectDetector,
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
    tallies: list[_Tally] = []
    for first in range(0, len(numbers), _AT_ONCE):
        chunk = numbers[first : first + _AT_ONCE]
        loaded = [load_png(truth.file(i)) for i in chunk]
        objects = [truth.objects(i, (p.shape[-1], p.shape[-2])) for i, p in zip(chunk, loaded)]
        shown = [to_float(p if size is None else resize(p, size)) for p in loaded]
        for _, alike in itertools.groupby(zip(shown, objects), key=_shape_of_image):  # neighbors of one size
            images, truths_of_images = zip(*alike)
            tallies += evaluate_images(detector, torch.stack(images).to(device), truths_of_images)
        advance(len(chunk))
    return by_number(tallies)


def _shape_of_image(pair: tuple[Tensor, Any]) -> torch.Size:
    return pair[0].shape


# --- using it -----------------------------------------------------------------------------------------------


def load_calibration(path: Path | None = None) -> dict[str, Any] | None:
    """The calibration shipped with the detector, or another; None where there is none yet."""
    if path is None and not _SHIPPED.is_file():
        return None
    record = current_words(read_json(path or _SHIPPED))
    if not isinstance(record, dict) or not isinstance(record.get("sizes"), dict) or not record["sizes"]:
        raise UserError(f"{path or _SHIPPED} is not what `tessera detector calibrate --out` writes.")
    return record


def calibration_rows(record: Mapping[str, Any], width: int, arrangement: str = "study") -> dict[str, Any]:
    """The size nearest to `width`, the arrangement (or the one there is), and its rows by number of objects."""
    size = min(record["sizes"], key=lambda name: abs(np.log(int(name.split("x")[0]) / width)))
    sets = record["sizes"][size]
    known = [name for name in (arrangement, *get_args(Arrangement)) if name in sets]
    if not known:
        raise UserError("The calibration holds no rendered scenes.")
    return {"size": size, "arrangement": known[0], "rows": sets[known[0]]["rows"]}


def detector_error(rows: Mapping[str, Any], by_color: bool = False) -> DetectorError:
    """Calibration rows as the chances that K_max is corrected with, for prompted locations or colors."""
    table = "color_outcomes" if by_color else "outcomes"
    fills = {} if by_color else {int(k): tuple(row["false_fills"]) for k, row in rows.items()}
    return DetectorError({int(k): np.array(row[table]) for k, row in rows.items()}, fills)
