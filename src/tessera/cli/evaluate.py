"""The verbs `evaluate` and `detector calibrate`."""

import json
import time
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.table import Column, Table

from tessera import console
from tessera.app.report.measure import max_conditions
from tessera.cli.options import File, Folder, List, OnDevice, OpensModels, Printed, Text, Whole, WithDetails
from tessera.config import Label
from tessera.devices import pick_device
from tessera.errors import UserError
from tessera.evaluation import calibrate, image_sets
from tessera.evaluation.calibrate import load_calibration
from tessera.evaluation.detection import ObjectDetector
from tessera.evaluation.detector import load_detector
from tessera.evaluation.empty_images import KINDS
from tessera.evaluation.explain import draw_explanation
from tessera.evaluation.kmax import TrainingRange
from tessera.evaluation.matching import CELL
from tessera.evaluation.pipeline import EACH, Evaluator, ScoredFolder, score_folder, score_images, summarize
from tessera.evaluation.tables import conclusions, generalization_table, notes, percent, shown_share
from tessera.evaluation.truth import ClevrTruth
from tessera.files import atomic, make_folder, rounded, write_json
from tessera.models.diffusers_unet import is_diffusers_folder
from tessera.models.loading import open_model
from tessera.models.model_folder import HUB_ID, is_model_folder
from tessera.provenance import provenance
from tessera.records import CalibrationRecord, EvaluationRecord, new_record
from tessera.registry import names_object
from tessera.render.image_io import parse_size, save_png, to_float, width_height
from tessera.sampling.compose import ComposeMethod, compose
from tessera.sampling.prompts import Prompt, own_prompts, parse_colors, parse_ks, parse_locations, study_prompts
from tessera.stats import RESAMPLES

# --- evaluate --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Evaluate(OpensModels, Printed, WithDetails):
    """Detect objects in images, count which prompts they fill for every K, and say how far the model length-generalizes."""

    #: What `tessera sample` wrote, a run folder, renders with a scenes.json, or folders k00, k01, ...; or one image; or
    #: a model, which is sampled first: a shipped name, model folder, hub id, folder of diffusers, or my.py:make_model.
    path: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="IMAGES|MODEL")]
    #: For a model: how many objects to prompt for, such as 0-12 (default: as many as its conditioner can express).
    k: List = None
    #: For a model: images for every K.
    each: int = EACH
    #: For a model: noise levels of the sampler.
    steps: tyro.conf.Fixed[int] = 32
    #: For a model: compose conditions at inference time.
    compose: ComposeMethod = "plain"
    #: Draw the detections in one image: boxes, words, and which parts of its prompt they fill.
    explain: bool = False
    #: JSON file with the prompt of each image: a list of {file, locations}, or {file: locations}.
    prompts: File = None
    #: Prompted locations of every image, such as "0.65,0.65 0.25,0.65", where the folder does not say.
    locations: Text = None
    #: Prompted colors of every image, such as red,blue, where the folder does not say.
    colors: Text = None
    #: The most objects in a training image (default: as the folder says); the paper's rule needs it.
    max_train_objects: Whole = None
    #: Which objects were labeled in training (default: as the folder says, else all).
    labels: Annotated[Label | None, tyro.conf.arg(metavar="RULE", help_behavior_hint="")] = None
    #: Half-drawn objects and blobs fill no location.
    require_well_formed: bool = False
    #: Stop at the first file that cannot be evaluated, instead of naming and skipping it.
    strict: tyro.conf.Fixed[bool] = False
    #: The detector's own error, as `detector calibrate --out` wrote it (default: the shipped one, if it is this
    #: detector's).
    calibration: tyro.conf.Fixed[File] = None
    #: Folder of another detector, as `tools/train_detector.py` wrote it (default: the shipped one).
    weights: tyro.conf.Fixed[Folder] = None
    #: Random seed of the bootstrap, and of a model's samples.
    seed: int = 0
    #: Bootstrap resamples for the interval of K_max.
    resamples: tyro.conf.Fixed[int] = RESAMPLES
    #: Write one line of JSON per image here: detections, which locations they fill, and the reason.
    scores: File = None
    #: Write the JSON object to this file too (in a run folder also to results/detector.json).
    out: File = None

    def run(self) -> None:
        if self.explain:
            return self.explain_image()
        if self.resamples < 1:
            raise UserError(f"The bootstrap needs at least one resample, not {self.resamples}.")
        if sum(given is not None for given in (self.locations, self.colors, self.prompts)) > 1:
            raise UserError("Give one of --prompts, --locations and --colors.")
        device = pick_device(self.device)
        calibration = self.own_calibration()
        detector = load_detector(self.weights, device)
        if _names_model(self.path):
            images, scored = self.score_model(detector, device)
        else:
            images = image_sets.images_in(self.path, self.given_prompt(), self.prompts)
            scored = score_folder(images, detector, self.require_well_formed, self.strict)
        _name_skipped(scored.skipped)
        record = self.record(images, scored, calibration, device)
        if (self.path / "config.json").is_file() and (self.path / "results").is_dir():
            write_json(self.path / "results" / "detector.json", record)
        if self.scores:
            _write_scores(self.scores, scored)
        words = [*conclusions(record), *record["notes"]]
        console.publish(record, self.json, self.out, generalization_table(record), *words)

    def given_prompt(self) -> tuple[Any, ...] | None:
        """The one prompt on the command line, if there is one."""
        if self.locations is not None:
            return parse_locations(self.locations)
        return None if self.colors is None else parse_colors(self.colors)

    def own_calibration(self) -> dict[str, Any] | None:
        """The calibration of this detector with these settings; the shipped one holds for the shipped detector only."""
        as_shipped = self.weights is None and not self.require_well_formed
        return load_calibration(self.calibration) if self.calibration or as_shipped else None

    def score_model(self, detector: ObjectDetector, device: Any) -> tuple[image_sets.ImageSet, ScoredFolder]:
        if self.prompts is not None:
            raise UserError("--prompts says what is in the images of a folder; for a model give --locations or --k.")
        if self.each < 1:
            raise UserError(f"At least one image is needed for each K, not {self.each}.")
        evaluator = Evaluator(detector, None, device)
        model = compose(evaluator.prepare(open_model(str(self.path), device=device)), self.compose)
        given = self.given_prompt()
        if given is None:
            ks = parse_ks(self.k) if self.k else range(max_conditions(model.conditioner) + 1)
            prompts = study_prompts(model.conditioner, list(ks), self.each, self.seed)
        else:
            prompts = own_prompts(model.conditioner, given, self.each, self.seed)
        samples = evaluator.score(model, prompts, self.steps)
        scores = samples.scores
        if self.require_well_formed:
            scores = score_images(detector, to_float(samples.images), samples.prompts, True)
        images = image_sets.ImageSet(self.path, samples.prompts, settings=model.config.get("settings"))
        return images, ScoredFolder(samples.prompts, scores, {}, model.size)

    def record(
        self, images: image_sets.ImageSet, scored: ScoredFolder, calibration: dict[str, Any] | None, device
    ) -> dict[str, Any]:
        known = TrainingRange.of(images.settings)
        most = known.max_train_objects if self.max_train_objects is None else self.max_train_objects
        training = TrainingRange(most, self.labels or known.label)
        summary = summarize(
            scored.prompts, scored.scores, training, scored.width, calibration, seed=self.seed, resamples=self.resamples
        )
        content = {
            "folder": str(self.path),
            "about": images.about,
            "images": len(scored.scores),
            "skipped": scored.skipped,
            "require_well_formed": self.require_well_formed,
            **summary,
            "notes": notes(summary, scored.width),
            "provenance": provenance(device),
        }
        return new_record(EvaluationRecord, content)

    def explain_image(self) -> None:
        """Show the detections in one image: boxes, words, and which parts of its prompt they fill."""
        device = pick_device(self.device)
        image = image_sets.read_image(self.path)
        if self.locations is not None and self.colors is not None:
            raise UserError("Give either --locations or --colors.")
        given = self.given_prompt()
        prompt = (
            image_sets.prompt_of(self.path)
            if given is None
            else Prompt(image_sets.checked_prompt(given), file=self.path)
        )
        detector = load_detector(self.weights, device)
        (score,) = score_images(detector, to_float(image)[None], [prompt or Prompt()], self.require_well_formed)
        out = self.out or self.path.with_name(f"{self.path.stem}{image_sets.EXPLAINED}")
        if out.resolve() == self.path.resolve():
            raise UserError("The explanation would replace the image it explains; choose another --out.")
        make_folder(out.parent)
        save_png(out, draw_explanation(image, score, prompt))
        record = {
            "image": str(self.path),
            "detections": [detection._asdict() for detection in score.detections],
            "score": score.to_dict() if prompt else None,
            "ood_score": score.ood_score,
            "drawn": str(out),
            "provenance": provenance(device),
        }
        count = len(score.detections)
        found = {0: "nothing found", 1: "1 object found"}.get(count, f"{count} objects found")
        console.publish(record, self.json, None, f"{score.reason if prompt else found}; see {out}.")


def _names_model(path: Path) -> bool:
    """Whether a path is no folder of images but the name of a model, or a folder of weights."""
    if path.exists():
        return is_model_folder(path) or is_diffusers_folder(path)
    return len(path.parts) == 1 or names_object(str(path)) or HUB_ID.fullmatch(str(path)) is not None


def _name_skipped(skipped: dict[str, str]) -> None:
    for why in islice(skipped.values(), image_sets.MOST_NAMED):
        console.say(f"Left out: {why}")
    if len(skipped) > image_sets.MOST_NAMED:
        console.say(f"... and {len(skipped) - image_sets.MOST_NAMED} more files were left out.")


def _write_scores(path: Path, scored: ScoredFolder) -> None:
    lines = []
    for prompt, score in zip(scored.prompts, scored.scores):
        entry = {"file": str(prompt.file), "locations": prompt.locations, "colors": prompt.colors, **score.to_dict()}
        lines.append(json.dumps(entry) + "\n")
    make_folder(path.parent)
    with atomic(path) as temporary:
        temporary.write_text("".join(lines))


# --- detector calibrate ----------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Calibrate(OnDevice, Printed, WithDetails):
    """Measure the detector's own error, for every number of objects, on held-out scenes whose truth is known."""

    #: Rendered scenes for each number of objects.
    per_k: int = 2000
    #: Numbers of objects, such as 0-12 or 1,3,6.
    k: str = "0-12"
    #: Sizes of the images, such as 32 64 128 or 320x240.
    size: tuple[str, ...] = ("64",)
    #: official (relaxed beyond 10 objects), relaxed, or at the study's locations.
    spacing: tuple[calibrate.Arrangement, ...] = ("official", "study")
    #: Folder of real renders with a scene file, such as CLEVR_v1.0, to calibrate on as well.
    clevr: tyro.conf.Fixed[Folder] = None
    #: Split of that folder, such as val.
    split: tyro.conf.Fixed[Text] = None
    #: Reduce real renders to this size first, such as 64 (default: as they are).
    clevr_size: tyro.conf.Fixed[Text] = None
    #: At most this many real renders.
    most: tyro.conf.Fixed[Whole] = None
    #: Stream of scenes; training never uses the default one.
    seed: tyro.conf.Fixed[int] = calibrate.HELD_OUT
    #: Images rendered and evaluated at once.
    batch: tyro.conf.Fixed[int] = 128
    #: Folder of another detector, as `tools/train_detector.py` wrote it (default: the shipped one).
    weights: tyro.conf.Fixed[Folder] = None
    #: Write the JSON object to this file too.
    out: File = None

    def run(self) -> None:
        began = time.perf_counter()
        if self.per_k < 0 or self.batch < 1:
            raise UserError("--per-k cannot be negative, and --set batch must be at least 1.")
        device = pick_device(self.device)
        truth = ClevrTruth(self.clevr, self.split) if self.clevr else None
        detector = load_detector(self.weights, device)
        record: dict[str, Any] = {"cell": CELL, "per_k": self.per_k, "seed": self.seed}
        record["sizes"] = self.rendered(detector, device) if self.per_k else {}
        record["clevr"] = self.real(detector, truth, device) if truth else None
        if not record["sizes"] and not record["clevr"]:
            raise UserError("There is nothing to calibrate on: give --per-k or --set clevr=FOLDER.")
        record |= {"seconds": time.perf_counter() - began, "provenance": provenance(device)}
        stored = new_record(CalibrationRecord, rounded(record))
        console.publish(stored, self.json, self.out, *_calibration_tables(record))

    def rendered(self, detector: ObjectDetector, device) -> dict[str, Any]:
        ks, sizes = parse_ks(self.k), [parse_size(words) for words in self.size]
        sets = len(self.spacing) * len(ks) + len(KINDS)
        with console.progress("calibrating", len(sizes) * sets * self.per_k) as advance:
            found = {}
            for name, size in zip(self.size, sizes):
                scenes = calibrate.HeldOut(self.per_k, size, self.seed, self.batch, device)
                found[name] = calibrate.calibrate_rendered(detector, scenes, ks, self.spacing, advance)
        return found

    def real(self, detector: ObjectDetector, truth: ClevrTruth, device) -> dict[str, Any]:
        size = width_height(parse_size(self.clevr_size)) if self.clevr_size else None
        with console.progress("calibrating on real renders", min(len(truth), self.most or len(truth))) as advance:
            found = calibrate.calibrate_clevr(detector, truth, size, self.most, advance, device)
        return {"folder": self.clevr.name if self.clevr else None, "size": self.clevr_size or "as rendered", **found}


def _calibration_tables(record: dict[str, Any]) -> list[Table]:
    tables = []
    for size, sets in record["sizes"].items():
        for name in [name for name in sets if name != "nothing"]:
            tables.append(_error_table(f"{name} locations, {size} pixels", sets[name]))
        tables.append(_nothing_table(size, sets["nothing"]))
    if record["clevr"]:
        tables.append(_error_table(f"real renders in {record['clevr']['folder']}", record["clevr"]))
    return tables


def _error_table(title: str, found: dict[str, Any]) -> Table:
    exact = Column("exact count", no_wrap=True)
    rows: list[Any] = [("K", "n", exact, "bias", "recall", "prec.", "center", "color", "shape", "size", "mat.")]
    for name, row in [*found["rows"].items(), *found["pooled"].items()]:
        shares = [percent(row[key]["value"]) for key in ("location_recall", "location_precision")]
        looks = [percent(row[key]["value"]) for key in ("color", "shape", "size", "material")]
        ends = [percent(row["exact_count"][end]) for end in ("value", "low", "high")]
        q99 = row["center_error_cells"]["q99"]
        center = "" if q99 is None else f"{q99:.2f}"
        bias = f"{row['count_bias']['value']:+.3f}"
        rows.append((name, str(row["images"]), "{} ({}-{})".format(*ends), bias, *shares, center, *looks))
    title = f"{title}: shares in %, 99% of center errors within so many cells"
    return console.table_of(rows, title=title, padding=0)


def _nothing_table(size: str, kinds: dict[str, Any]) -> Table:
    rows: list[Any] = [("nothing to find", "n", "false objects", "any", "warned", "any, not warned")]
    for name, row in kinds.items():
        shares = [shown_share(row[key]) for key in ("any_object", "ood", "objects_without_warning")]
        rows.append((name, str(row["images"]), f"{row['false_objects']['value']:.4f}", *shares))
    title = f"images without objects, {size} pixels: per image, and in %"
    return console.table_of(rows, title=title, padding=0)
