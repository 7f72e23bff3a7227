"""What a report is about: every run, model or record given becomes a subject, with what is known of it."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tessera import records
from tessera.analysis.locality import SceneLocality
from tessera.analysis.scatter import Point, read_points
from tessera.app.report.measure import ColumnEvaluator, Record, targets_of
from tessera.app.report.verdict import verdict
from tessera.config import EXPERIMENTS, settings_from
from tessera.errors import UserError
from tessera.evaluation.kmax import TrainingRange
from tessera.files import read_json, reads
from tessera.models.build import conditioner_for
from tessera.models.diffusers_unet import is_diffusers_folder
from tessera.models.loading import check_models, open_model
from tessera.models.model_folder import Model, is_model_folder
from tessera.models.run_snapshots import is_run
from tessera.rows import distinct, plural
from tessera.studies.clevr.entries import CELLS, HEADLINES, Paper
from tessera.studies.clevr.image_grids import IMAGE_GRID, ShownImages, load_image_grid
from tessera.training.run_folder import RunFolder

_SHOWN = ("theory", "closed-form", "dynamics-sweep", "dynamics", "swingby")  # records about no single model, by kind
_MOST_RECORDS = 4  # of a whole study, shown side by side


@dataclass
class ReportColumn:
    """One column of the report."""

    name: str
    settings: Record | None = None
    facts: dict[str, Any] = field(default_factory=dict)  # weights, images seen, running average, size of images
    paper: Paper = field(default_factory=Paper)
    scores: Record | None = None  # K_max and a row for every K
    scores_from: Record = field(default_factory=dict)  # provenance, and where the counts were found
    evaluation: Record | None = None
    shown: dict[int, list[ShownImages]] = field(default_factory=dict)
    by_color: bool = False
    locality: Record | None = None
    result: SceneLocality | None = None
    log: list[Record] = field(default_factory=list)

    @property
    def max_train_objects(self) -> int | None:
        known = TrainingRange.of(self.settings).max_train_objects
        return (self.scores or {}).get("max_train_objects") if known is None else known

    @property
    def about(self) -> str:
        """`all objects labeled on a grid; trained on 1 to 3 objects`."""
        settings = self.settings or {}
        row = EXPERIMENTS.get(settings.get("experiment", ""))
        objects = (settings.get("data") or {}).get("objects")
        scenes = "" if not objects else f"trained on {span(*objects)}"
        return "; ".join(part for part in (row.about if row else "", scenes) if part)

    @property
    def rows(self) -> list[Record]:
        """What was counted for each K."""
        return (self.scores or {"rows": []})["rows"]

    @property
    def size(self) -> int | None:
        return self.facts.get("size")


@dataclass
class ReportData:
    """Everything a report shows: its subjects, and records about no single model."""

    subjects: list[ReportColumn] = field(default_factory=list)
    points: list[Point] = field(default_factory=list)
    records: dict[str, list[Record]] = field(default_factory=lambda: {kind: [] for kind in _SHOWN})
    studies: list[Path] = field(default_factory=list)  # results folders with a study.json


def gather(sources: Sequence[str], measurer: ColumnEvaluator, keep: Path) -> ReportData:
    """Each source in turn: a folder of results or a record as it is, anything else as a model to be measured.

    A record of the study that is named like a run given with it describes that run.
    """
    check_models(source for source in sources if not _is_record(source) and not _is_results(Path(source)))
    found = ReportData()
    cells = {Path(source).stem: Path(source) for source in sources if _is_record(source)}
    for source in sources:
        if _is_record(source):
            if not any(is_run(Path(other)) and _name_of(other) == Path(source).stem for other in sources):
                _add_record(Path(source), found)
        elif _is_results(Path(source)):
            _add_results(found, Path(source))
        else:
            found.subjects.append(measured(source, measurer, keep, cells.get(_name_of(source))))
    if not any((found.subjects, found.points, found.studies, *found.records.values())):
        raise UserError(f"There is nothing to report in {', '.join(map(str, sources))}.")
    for subject, name in zip(found.subjects, distinct([subject.name for subject in found.subjects])):
        subject.name = name
    return found


def _is_record(source: str) -> bool:
    return source.endswith(".json") and not Path(source).is_dir()


# --- runs and models ----------------------------------------------------------------------------------------


def measured(source: str, measurer: ColumnEvaluator, keep: Path, record: Path | None = None) -> ReportColumn:
    """A run or a model with its evaluation and its locality, measured now unless they were before."""
    model = open_model(source, None, None, measurer.device)
    run = RunFolder(Path(source)) if is_run(Path(source)) else None
    name = _name_of(source)
    if record is None:
        known = best_scores(model, run)
    else:
        of_study = records.read_record(record, records.StudyRunRecord)
        known = (of_study.result, {"found": f"in {record.name}", **of_study})
    subject = measured_model(name, model, measurer, run.results if run else keep / name, known)
    subject.log = run.records() if run else []
    return subject


def measured_model(
    name: str, model: Model, measurer: ColumnEvaluator, folder: Path, known: tuple[Record, Record] | None = None
) -> ReportColumn:
    """A model with what is kept of it in `folder`; `known` counts are shown if they are of more images."""
    subject = described(name, model)
    evaluation = measurer.evaluation(model, folder, name, evaluated_elsewhere=known is not None)
    if evaluation is not None:
        subject.evaluation, subject.shown = evaluation
        take_scores(subject, subject.evaluation["result"], {"found": "measured for this report", **subject.evaluation})
    if known is not None and _images_in(known[0]["rows"]) > _images_in(subject.rows):
        take_scores(subject, *known)
    subject.locality, subject.result = measurer.locality(model, folder, name)
    return subject


def _name_of(source: str) -> str:
    path = Path(source)
    return path.resolve().name if path.exists() else re.sub(r"@.*", "", source).rsplit("/", 1)[-1]


def described(name: str, model: Model) -> ReportColumn:
    config = model.config
    return ReportColumn(
        name=name,
        settings=config.get("settings"),
        facts={
            "weights": sum(p.numel() for p in model.denoiser.parameters()),
            "network": config["denoiser"]["kind"],
            "size": model.size,
            **{fact: config.get(fact) for fact in ("images_seen", "ema", "sha256")},
        },
        paper=_paper_on(config.get("settings") or {}, config.get("cell")),
        by_color=model.conditioner.config.get("kind") == "color",
    )


def span(low: int, high: int) -> str:
    return f"{low} to {high} objects" if low < high else plural(high, "object")


def _paper_on(settings: Record, named: str | None = None) -> Paper:
    """What the paper says of the cell of the study that is named, or that these settings belong to."""
    fewest, most = (settings.get("data") or {}).get("objects") or (0, 0)
    name = named if named in CELLS or fewest != 1 else f"{settings.get('experiment')}-M{most}"
    return CELLS[name].paper if name in CELLS else Paper()


def take_scores(subject: ReportColumn, scores: Record, where: Record) -> None:
    label = TrainingRange.of(subject.settings).label
    subject.scores = {"max_train_objects": subject.max_train_objects, "label": label, **scores}
    subject.scores_from = where


def best_scores(model: Model, run: RunFolder | None = None) -> tuple[Record, Record] | None:
    """Counts that were made before: on the model's card, or by `tessera evaluate` in the run folder."""
    card = model.config.get("results")
    if card:
        return card, {"found": "on the model's card", "provenance": card["provenance"]}
    path = run.results / "detector.json" if run else None
    record = dict(records.read_record(path, records.EvaluationRecord)) if path and path.is_file() else None
    if record and (record.get("about") or {}).get("images_seen") == model.config.get("images_seen"):
        return record, {"found": "by `tessera evaluate`", "provenance": record["provenance"]}
    return None


def _images_in(rows: Sequence[Record]) -> int:
    return sum(row["n"] for row in rows)


# --- records ------------------------------------------------------------------------------------------------


def _is_results(path: Path) -> bool:
    """A folder of records that is neither a run nor a model."""
    if not path.is_dir() or is_run(path) or is_model_folder(path) or is_diffusers_folder(path):
        return False
    return any(path.glob("*.json")) or any(path.glob("study/*.json"))


def _add_results(found: ReportData, folder: Path) -> None:
    """All records of a folder that a report can show; of a whole study the four headlines, and its tables."""
    for path in sorted(folder.glob("*.json")):
        _add_record(path, found, strict=False)
    if (folder / "study.json").is_file():
        found.studies.append(folder)
    kept = sorted((folder / "study").glob("*.json"))
    headlines = [path for cell in HEADLINES for path in kept if path.name.startswith(f"{cell}-")]
    first_seeds: dict[str, Path] = {}  # by cell and size
    for path in headlines or kept:
        first_seeds.setdefault(path.stem.rsplit("-seed", 1)[0], path)
    for path in list(first_seeds.values())[:_MOST_RECORDS]:
        _add_record(path, found)


@reads
def _add_record(path: Path, found: ReportData, strict: bool = True) -> None:
    """A record goes where it belongs; one of no known kind is an error, or in a folder of many passed over."""
    record = records.as_record(read_json(path))
    match record:
        case records.ScatterRecord() | records.PointsRecord():
            found.points += read_points(path)
        case records.StudyRunRecord():
            found.subjects.append(_from_study(dict(record), path))
        case records.EvaluationRecord() | records.LocalityRecord():
            _pair_up(found, dict(record), path)
        case None:
            if strict:
                raise UserError(f"{path} is no record that a report can show.")
        case _ if record.kind in _SHOWN:
            found.records[record.kind].append(dict(record))
        case _ if strict:
            raise UserError(f"{path} is a record of kind `{record.kind}`, which a report does not show.")


def _from_study(record: Record, path: Path) -> ReportColumn:
    """A cell of the study from its record and its grid of images."""
    settings = record["settings"]
    subject = ReportColumn(
        name=record["cell"],
        settings=settings,
        facts={
            "size": settings["data"]["size"],
            "network": settings["denoiser"]["kind"],
            "weights": record["training"]["weights"],
            "images_seen": record["training"]["images_seen"],
            "ema": record.get("ema"),
        },
        paper=_paper_on({}, record["cell"]),
        evaluation=record,
        by_color=settings["conditioner"]["kind"] == "color",
    )
    take_scores(subject, record["result"], {"found": f"in {path.name}", **record})
    grid_file = path.parent / "image_grids" / f"{path.stem}{IMAGE_GRID}"
    if grid_file.is_file():
        conditioner = conditioner_for(settings_from(settings))
        subject.shown = load_image_grid(grid_file, record, targets_of(conditioner, record["shown"]))
    return subject


def _pair_up(found: ReportData, record: Record, path: Path) -> None:
    """Records of `detector` and `locality` about one model make one subject."""
    known_as = record.get("model") or (record.get("about") or {}).get("model")
    name = Path(str(known_as)).name if known_as else path.stem
    subject = next((one for one in found.subjects if one.name == name), None)
    if subject is None:
        subject = ReportColumn(name)
        found.subjects.append(subject)
    if "k_max" in record:
        take_scores(subject, record, {"found": f"in {path.name}", **record})
    else:
        study = record["studies"][0]
        subject.locality = {**record, "plan": {"k": study["k"], "source": study["source"], "seed": study["seed"]}}
        subject.facts.setdefault("size", record.get("size"))


# --- points -------------------------------------------------------------------------------------------------


def points_of(found: ReportData) -> list[Point]:
    """Those given, and one for each subject with both numbers."""
    own = []
    for subject in found.subjects:
        reached = (subject.scores or {"k_max": {}})["k_max"].get("paper")
        local, most = (subject.locality or {}).get("conditional_locality"), subject.max_train_objects
        if local and reached and reached["value"] is not None and most is not None:
            seen, ends = int(subject.facts.get("images_seen") or 0), (local["low"], local["high"])
            more = bool(reached.get("at_least"))
            own.append(Point(subject.name, seen, reached["value"], most, local["value"], *ends, more))
    return [*found.points, *own]


def subject_record(subject: ReportColumn) -> dict[str, Any]:
    said = verdict(subject.scores, subject.locality)
    return {
        "name": subject.name,
        "verdict": said.headline,
        "doubts": said.doubts,
        "max_train_objects": subject.max_train_objects,
        "k_max": (subject.scores or {}).get("k_max"),
        "rows": (subject.scores or {}).get("rows"),
        "paper": subject.paper.plain(),
        "conditional_locality": (subject.locality or {}).get("conditional_locality"),
        "seeds": {
            "evaluation": (subject.evaluation or {}).get("evaluation", {}).get("seed"),
            "locality": (subject.locality or {}).get("plan", {}).get("seed"),
        },
    }
