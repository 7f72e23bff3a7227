"""The verbs `detector`, `detector explain` and `detector calibrate`."""

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import tyro
from rich.table import Column, Table

from tessera import console
from tessera.config import Label
from tessera.devices import DeviceName, pick_device
from tessera.errors import UserError
from tessera.evaluation.calibrate import (
    HELD_OUT,
    Arrangement,
    HeldOut,
    calibrate_clevr,
    calibrate_rendered,
    detector_error,
    evaluation_row,
    load_calibration,
    trusted,
)
from tessera.evaluation.detection import Detection, ObjectDetector
from tessera.evaluation.detector import load_detector
from tessera.evaluation.empty_images import KINDS
from tessera.evaluation.explain import draw_explanation
from tessera.evaluation.image_sets import (
    EXPLAINED,
    MOST_NAMED,
    ImageReader,
    ImageSet,
    PromptedImage,
    images_in,
    prompt_of,
    read_image,
)
from tessera.evaluation.kmax import ENOUGH, Counts, length_generalization
from tessera.evaluation.matching import CELL, Verdict, filled_at, match, match_colors
from tessera.evaluation.truth import ClevrTruth
from tessera.files import atomic, make_folder, rounded, write_json
from tessera.provenance import provenance
from tessera.render.image_io import parse_size, save_png, to_float, width_height
from tessera.sampling.prompts import parse_colors, parse_ks, parse_locations
from tessera.stats import RESAMPLES, share_record

NARROWEST: dict[str, Any] = {**console.NARROW, "padding": 0}


# --- detector --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Evaluate:
    """Count what images show of what was asked, for every K, and say how far the model length-generalizes."""

    path: tyro.conf.Positional[Path]
    """What `tessera sample` wrote, a run folder, renders with a scenes.json, or folders k00, k01, ..."""
    locations: str | None = None
    """Locations asked of every image, such as "0.65,0.65 0.25,0.65", where the folder does not say."""
    colors: str | None = None
    """Colors asked of every image, such as red,blue, where the folder does not say."""
    max_train_objects: int | None = None
    """The most objects training showed (default: as the folder says); the paper's rule needs it."""
    label: Label | None = None
    """Which objects training told of (default: as the folder says, else all)."""
    require_well_formed: bool = False
    """Half-drawn objects and blobs fill no location."""
    strict: bool = False
    """Stop at the first file that cannot be evaluated, instead of naming it and going on."""
    calibration: Path | None = None
    """The detector's own error, as `detector calibrate --out` wrote it (default: the shipped one, if it is this detector's)."""
    weights: Path | None = None
    """Folder of another detector, as `detector train` wrote it."""
    seed: int = 0
    """Seed of the bootstrap."""
    resamples: int = RESAMPLES
    """Bootstrap resamples for the interval of K_max."""
    verdicts: Path | None = None
    """Write one line of JSON per image here: what was found, and why it does or does not do."""
    device: DeviceName = "auto"
    """Where to compute."""
    json: bool = False
    """Print one JSON object."""
    out: Path | None = None
    """Write the JSON object to this file too (in a run folder also to results/detector.json)."""

    def run(self) -> None:
        if self.resamples < 1:
            raise UserError(f"The bootstrap needs at least one resample, not {self.resamples}.")
        if self.locations is not None and self.colors is not None:
            raise UserError("Give either --locations or --colors.")
        device = pick_device(self.device)
        images = images_in(
            self.path,
            None if self.locations is None else parse_locations(self.locations),
            None if self.colors is None else parse_colors(self.colors),
        )
        calibration = self.own_calibration()
        detector = load_detector(self.weights, device)
        reading = ImageReader(images, self.strict)
        evaluated = look_at(detector, reading, self.require_well_formed)
        record = self.record(images, reading, evaluated, calibration, device)
        self.write(record, evaluated)
        console.publish(record, self.json, None, study_table(record), *conclusions(record))

    def own_calibration(self) -> dict[str, Any] | None:
        """The error of this detector, asked in this way: the shipped one says nothing of another."""
        as_shipped = self.weights is None and not self.require_well_formed
        return load_calibration(self.calibration) if self.calibration or as_shipped else None

    def record(
        self,
        images: ImageSet,
        reading: ImageReader,
        evaluated: "list[EvaluatedImages]",
        calibration: dict[str, Any] | None,
        device,
    ) -> dict[str, Any]:
        groups: dict[int, list[EvaluatedImages]] = {}
        for each in evaluated:
            groups.setdefault(each.items.k, []).append(each)
        max_train_objects = (
            self.max_train_objects if self.max_train_objects is not None else images.max_train_objects
        )
        arrangement = "study" if images.at_study_locations else "official"
        trust = trusted(calibration, evaluated[0].width, arrangement)
        study = length_generalization(
            [Counts.of(k, [each.verdict for each in group]) for k, group in groups.items()],
            max_train_objects,
            self.label or images.label or "all",
            detector_error(trust["rows"], images.by_color) if trust else None,
            self.seed,
            self.resamples,
        )
        for row in study["rows"]:
            group = groups[row["k"]]
            row["ood"] = share_record(sum(each.ood_score > 1 for each in group), len(group))
            row["detector"] = evaluation_row(trust, row["k"])
            row.update(prompt_by_prompt(group))
        return {
            "folder": str(self.path),
            "about": images.about,
            "images": len(evaluated),
            "skipped": reading.skipped,
            "cell": CELL,
            "require_well_formed": self.require_well_formed,
            **study,
            "detector": {"size": trust["size"], "arrangement": trust["arrangement"]} if trust else None,
            "notes": notes(study, trust, evaluated[0].width, max_train_objects),
            "provenance": provenance(device),
        }

    def write(self, record: dict[str, Any], evaluated: "list[EvaluatedImages]") -> None:
        if self.out:
            make_folder(self.out.parent)
            write_json(self.out, record)
        if (self.path / "config.json").is_file() and (self.path / "results").is_dir():
            write_json(self.path / "results" / "detector.json", record)
        if self.verdicts:
            make_folder(self.verdicts.parent)
            with atomic(self.verdicts) as temporary:
                temporary.write_text("".join(json.dumps(each.record()) + "\n" for each in evaluated))


@dataclass(frozen=True)
class EvaluatedImages:
    """One image, what was asked of it, what was found, and the verdict."""

    items: PromptedImage
    detections: list[Detection]
    verdict: Verdict
    ood_score: float
    width: int

    def record(self) -> dict[str, Any]:
        items = {"file": str(self.items.file), "locations": self.items.locations, "colors": self.items.colors}
        found = {"detections": [detection._asdict() for detection in self.detections]}
        return {**items, **asdict(self.verdict), "ood_score": self.ood_score, **found}


def prompt_by_prompt(group: Sequence[EvaluatedImages]) -> dict[str, Any]:
    """How often each location (or color) is filled, where all these images were asked for the same."""
    prompts = {each.items.locations or each.items.colors for each in group}
    if len(prompts) > 1:
        return {}
    return {"prompts": list(prompts.pop()), "filled_at": filled_at([each.verdict for each in group])}


def look_at(
    detector: ObjectDetector, reading: ImageReader, require_well_formed: bool
) -> list[EvaluatedImages]:
    """Every image that can be read, evaluated; none at all is an error."""
    evaluated: list[EvaluatedImages] = []
    total = len(reading.images.items)
    with console.progress("judging", total) as advance:
        for items, images in reading.batches():
            found, ood = detector.look(images)
            for one, detections, odd in zip(items, found, ood.tolist()):
                verdict = verdict_on(detections, one, require_well_formed)
                evaluated.append(EvaluatedImages(one, detections, verdict, odd, images.shape[-1]))
            advance(len(items))
    name_skipped(reading)
    if not evaluated:
        first = next(iter(reading.skipped.values()), "there are none.")
        raise UserError(f"None of the {total} images in {reading.images.folder} could be evaluated: {first}")
    return evaluated


def verdict_on(
    detections: Sequence[Detection], items: PromptedImage, require_well_formed: bool = False
) -> Verdict:
    if items.colors:
        return match_colors(detections, items.colors, require_well_formed=require_well_formed)
    return match(detections, items.targets, require_well_formed=require_well_formed)


def name_skipped(reading: ImageReader) -> None:
    for number, why in enumerate(reading.skipped.values()):
        if number == MOST_NAMED:
            console.say(f"... and {len(reading.skipped) - number} more files were left out.")
            return
        console.say(f"Left out: {why}")


def notes(
    study: dict[str, Any], trust: dict[str, Any] | None, width: int, max_train_objects: int | None
) -> list[str]:
    """What a reader of the numbers should know."""
    few = [row["k"] for row in study["rows"] if row["n"] < ENOUGH]
    ood = sum(row["ood"]["count"] for row in study["rows"])
    said = {
        f"Fewer than {ENOUGH} images for K = {', '.join(map(str, few))}: too few for K_max to be sure.": few,
        f"{ood} images are not scenes the detector knows; see `strange`.": ood,
        "It is not known how many objects training showed, so the paper's rule is left out (--max-train-objects).": (
            max_train_objects is None
        ),
        "The detector has no calibration here, so its own error is not corrected for.": trust is None,
    }
    if trust and int(trust["size"].split("x")[0]) != width:
        said[f"The detector was calibrated at {trust['size']} pixels, these images are {width} wide."] = True
    return [sentence for sentence, applies in said.items() if applies]


def study_table(record: dict[str, Any]) -> Table:
    """One row per K."""
    rules = list(record["k_max"])
    heads = (
        "K",
        "n",
        "all filled",
        "no extra",
        "K-2 filled",
        "found",
        "extra",
        "well_formed",
        *rules,
        "detector",
    )
    title = f"{record['images']} images; shares in % with 95% intervals; detector: its exact counts"
    table = Table(*heads, title=title, **NARROWEST)
    for row in record["rows"]:
        shares = [
            shown_share(row[name]) if row["k"] else "" for name in ("all_found", "exact", "two_missing")
        ]
        table.add_row(
            str(row["k"]),
            str(row["n"]),
            *shares,
            f"{row['found']['mean']:.2f}",
            f"{row['extra']['mean']:.2f} ({spoken_range(row['extra']['typical'])})",
            percent(row["well_formed"]["share"]),
            *({True: "yes", False: "no", None: ""}[row["succeeds"][rule]] for rule in rules),
            percent(row["detector"]["exact_count"]["share"]) if row["detector"] else "",
        )
    return table


def shown_share(record: dict[str, Any]) -> str:
    """`88 (77-95)`, in percent."""
    if record["share"] is None:
        return ""
    return f"{100 * record['share']:.0f} ({100 * record['low']:.0f}-{100 * record['high']:.0f})"


def percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.1f}"


def spoken_range(ends: Sequence[int]) -> str:
    return str(ends[0]) if ends[0] == ends[1] else f"{ends[0]}-{ends[1]}"


def k_max_in_words(rule: str, found: dict[str, Any]) -> str:
    if found["value"] is None:
        return f"K_max by the {rule} rule cannot be told: K = 1 was not asked for."
    more = " or more" if found["at_least"] else ""
    said = f"K_max by the {rule} rule: {found['value']}{more}, 95% interval {found['low']}-{found['high']}"
    if "corrected" in found:
        fair = found["corrected"]
        said += (
            f"; corrected for the detector's own error {fair['value']} ({fair['low']}-{fair['high']}), "
            f"and its error alone allows {spoken_range(found['detector_range'])}"
        )
    return said + "."


def conclusions(record: dict[str, Any]) -> list[str]:
    """K_max in words, and what to bear in mind."""
    lines = [k_max_in_words(rule, found) for rule, found in record["k_max"].items()]
    for row in record["rows"]:
        if row["k"] == 0:
            lines.append(f"With nothing asked, {spoken_range(row['objects']['typical'])} objects appear.")
    return lines + what_is_missed(record["rows"]) + record["notes"]


def what_is_missed(rows: Sequence[dict[str, Any]]) -> list[str]:
    """What is missing most often, at the first K that fails for want of something."""
    for row in rows:
        fewest = min(row.get("filled_at", []), default=row["n"])
        if row["succeeds"]["strict"] is False and fewest < row["n"]:
            prompt = row["prompts"][row["filled_at"].index(fewest)]
            what = (
                f"{prompt} is"
                if isinstance(prompt, str)
                else f"an object at ({prompt[0]:.2f}, {prompt[1]:.2f}) is"
            )
            return [f"At K = {row['k']}, {what} missed most often: {fewest} of {row['n']} images show it."]
    return []


# --- detector explain ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Explain:
    """Show what the detector sees in one image: boxes, words, and the verdict on what was asked."""

    image: tyro.conf.Positional[Path]
    """The image; what was asked is taken from an samples.json beside it, if there is one."""
    locations: str | None = None
    """Locations asked for, such as "0.65,0.65 0.25,0.65"."""
    colors: str | None = None
    """Colors asked for, such as red,blue."""
    require_well_formed: bool = False
    """Half-drawn objects and blobs fill no location."""
    weights: Path | None = None
    """Folder of another detector, as `detector train` wrote it."""
    device: DeviceName = "cpu"
    """Where to compute."""
    json: bool = False
    """Print one JSON object."""
    out: Path | None = None
    """The PNG to write (default: NAME-explained.png beside the image)."""

    def run(self) -> None:
        device = pick_device(self.device)
        image = read_image(self.image)
        items = self.items()
        found, ood = load_detector(self.weights, device).look(to_float(image)[None])
        verdict = verdict_on(found[0], items, self.require_well_formed) if items else None
        ood_score = ood.tolist()[0]
        out = self.out or self.image.with_name(f"{self.image.stem}{EXPLAINED}")
        if out.resolve() == self.image.resolve():
            raise UserError("The explanation would replace the image it explains; choose another --out.")
        make_folder(out.parent)
        save_png(out, draw_explanation(image, found[0], verdict, items.targets if items else (), ood_score))
        record = {
            "image": str(self.image),
            "detections": [detection._asdict() for detection in found[0]],
            "verdict": asdict(verdict) if verdict else None,
            "ood_score": ood_score,
            "drawn": str(out),
            "provenance": provenance(device),
        }
        reason = verdict.reason if verdict else seen_in_words(found[0])
        console.publish(record, self.json, None, f"{reason}; see {out}.")

    def items(self) -> PromptedImage | None:
        if self.locations is not None and self.colors is not None:
            raise UserError("Give either --locations or --colors.")
        if self.locations is not None:
            return PromptedImage(self.image, parse_locations(self.locations))
        if self.colors is not None:
            return PromptedImage(self.image, colors=parse_colors(self.colors))
        return prompt_of(self.image)


def seen_in_words(detections: Sequence[Detection]) -> str:
    objects = {0: "nothing found", 1: "1 object found"}
    return objects.get(len(detections), f"{len(detections)} objects found")


# --- detector calibrate ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Calibrate:
    """Measure the detector's own error, for every number of objects, on held-out scenes whose truth is known."""

    per_k: int = 2000
    """Rendered scenes for each number of objects."""
    k: str = "0-12"
    """Numbers of objects, such as 0-12 or 1,3,6."""
    size: tuple[str, ...] = ("64",)
    """Sizes of the images, such as 32 64 128 or 320x240."""
    spacing: tuple[Arrangement, ...] = ("official", "study")
    """official (relaxed beyond 10 objects), relaxed, or at the study's locations."""
    clevr: Path | None = None
    """Folder of real renders with a scene file, such as CLEVR_v1.0, to calibrate on as well."""
    split: str | None = None
    """Split of that folder, such as val."""
    clevr_size: str | None = None
    """Reduce real renders to this size first, such as 64 (default: as they are)."""
    most: int | None = None
    """Look at no more than so many real renders."""
    seed: int = HELD_OUT
    """Stream of scenes; training never uses the default one."""
    batch: int = 128
    """ImageSet rendered and evaluated at once."""
    weights: Path | None = None
    """Folder of another detector, as `detector train` wrote it."""
    device: DeviceName = "auto"
    """Where to compute."""
    json: bool = False
    """Print one JSON object."""
    out: Path | None = None
    """Write the JSON object to this file too."""

    def run(self) -> None:
        began = time.perf_counter()
        if self.per_k < 0 or self.batch < 1:
            raise UserError("--per-k cannot be negative, and --batch must be at least 1.")
        device = pick_device(self.device)
        truth = ClevrTruth(self.clevr, self.split) if self.clevr else None
        detector = load_detector(self.weights, device)
        record: dict[str, Any] = {"cell": CELL, "per_k": self.per_k, "seed": self.seed}
        record["sizes"] = self.rendered(detector, device) if self.per_k else {}
        record["clevr"] = self.real(detector, truth, device) if truth else None
        if not record["sizes"] and not record["clevr"]:
            raise UserError("There is nothing to calibrate on: give --per-k or --clevr.")
        record |= {"seconds": time.perf_counter() - began, "provenance": provenance(device)}
        console.publish(rounded(record), self.json, self.out, *calibration_tables(record))

    def rendered(self, detector: ObjectDetector, device) -> dict[str, Any]:
        ks, sizes = parse_ks(self.k), [parse_size(words) for words in self.size]
        sets = len(self.spacing) * len(ks) + len(KINDS)
        with console.progress("calibrating", len(sizes) * sets * self.per_k) as advance:
            return {
                name: calibrate_rendered(
                    detector,
                    HeldOut(self.per_k, size, self.seed, self.batch, device),
                    ks,
                    self.spacing,
                    advance,
                )
                for name, size in zip(self.size, sizes)
            }

    def real(self, detector: ObjectDetector, truth: ClevrTruth, device) -> dict[str, Any]:
        size = width_height(parse_size(self.clevr_size)) if self.clevr_size else None
        with console.progress(
            "calibrating on real renders", min(len(truth), self.most or len(truth))
        ) as advance:
            found = calibrate_clevr(detector, truth, size, self.most, advance, device)
        return {
            "folder": self.clevr.name if self.clevr else None,
            "size": self.clevr_size or "as rendered",
            **found,
        }


def calibration_tables(record: dict[str, Any]) -> list[Table]:
    tables = []
    for size, sets in record["sizes"].items():
        for name in [name for name in sets if name != "nothing"]:
            tables.append(error_table(f"{name} locations, {size} pixels", sets[name]))
        tables.append(nothing_table(size, sets["nothing"]))
    if record["clevr"]:
        tables.append(error_table(f"real renders in {record['clevr']['folder']}", record["clevr"]))
    return tables


def error_table(title: str, found: dict[str, Any]) -> Table:
    looks = ("color", "shape", "size", "material")
    exact = Column("exact count", no_wrap=True)
    heads = ("K", "n", exact, "bias", "recall", "prec.", "center", "color", "shape", "size", "mat.")
    table = Table(
        *heads, title=f"{title}: shares in %, 99% of center errors within so many cells", **NARROWEST
    )
    for name, row in [*found["rows"].items(), *found["pooled"].items()]:
        shares = [row[key]["share"] for key in ("location_recall", "location_precision")]
        counted, q99 = row["exact_count"], row["center_error_cells"]["q99"]
        table.add_row(
            name,
            str(row["images"]),
            f"{percent(counted['share'])} ({percent(counted['low'])}-{percent(counted['high'])})",
            f"{row['count_bias']['mean']:+.3f}",
            *map(percent, shares),
            "" if q99 is None else f"{q99:.2f}",
            *(percent(row[name]["share"]) for name in looks),
        )
    return table


def nothing_table(size: str, kinds: dict[str, Any]) -> Table:
    heads = ("nothing to find", "n", "false objects", "any", "warned", "any, not warned")
    table = Table(*heads, title=f"images without objects, {size} pixels: per image, and in %", **NARROWEST)
    for name, row in kinds.items():
        shares = [shown_share(row[key]) for key in ("any_object", "ood", "objects_without_warning")]
        table.add_row(name, str(row["images"]), f"{row['false_objects']['mean']:.4f}", *shares)
    return table
