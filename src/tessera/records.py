"""Stored results: a typed class for each kind, one reader, and the one table of the previous format's words.

A stored result is a JSON object that starts with its kind, the format and the version that wrote it. A record reads
like the mapping it is stored as; its class names the entries that are always there.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar, TypeVar, dataclass_transform

from tessera.errors import UserError
from tessera.files import check_types, read_json, write_json
from tessera.version import __version__

FORMAT = 2
HEAD = ("kind", "format", "tessera")
KINDS: dict[str, type["Record"]] = {}


@dataclass_transform(frozen_default=True)
@dataclass(frozen=True)
class Record(Mapping[str, Any]):
    """Entries that every record of a kind has, and whatever else was stored with it.

    A kind of record is a subclass, `class MyRecord(Record, kind="mine")`, a frozen dataclass of its entries.
    """

    kind: ClassVar[str]
    more: dict[str, Any] = field(default_factory=dict, kw_only=True)

    def __init_subclass__(cls, kind: str):
        cls.kind = kind
        KINDS[kind] = dataclass(frozen=True)(cls)

    @classmethod
    def from_content(cls, content: Mapping[str, Any]) -> "Record":
        """The record of an object that was read, or of what was just measured."""
        names = cls.entries()
        if missing := [name for name in names if name not in content]:
            raise UserError(f"A record of kind `{cls.kind}` lacks {', '.join(missing)}.")
        check_types(cls, {name: content[name] for name in names}, f"A record of kind `{cls.kind}`")
        more = {name: value for name, value in content.items() if name not in {*names, *HEAD}}
        return cls(**{name: content[name] for name in names}, more=more)

    @classmethod
    def entries(cls) -> list[str]:
        return [f.name for f in fields(cls) if f.name != "more"]

    def to_dict(self) -> dict[str, Any]:
        """As it is stored."""
        return {"kind": self.kind, "format": FORMAT, "tessera": __version__, **self}

    def __getitem__(self, name: str) -> Any:
        return getattr(self, name) if name in self.entries() else self.more[name]

    def __iter__(self) -> Iterator[str]:
        yield from self.entries()
        yield from self.more

    def __len__(self) -> int:
        return len(self.entries()) + len(self.more)


# --- kinds --------------------------------------------------------------------------------------------------


class EvaluationRecord(Record, kind="evaluation"):
    """Of `tessera evaluate`: K_max, and shares for every K."""

    folder: str
    k_max: dict[str, Any]
    rows: list[dict[str, Any]]


class StudyRunRecord(Record, kind="study-run"):
    """One training of the study with its evaluations: a file of results/study."""

    cell: str
    preset: str
    seed: int
    settings: dict[str, Any]
    evaluation: dict[str, Any]
    training: dict[str, Any]
    result: dict[str, Any]
    quality: dict[str, Any]
    shown: dict[str, Any]
    snapshots: list[dict[str, Any]]
    provenance: dict[str, Any]


class StudyRecord(Record, kind="study"):
    """results/study.json: a row for every cell of the study."""

    presets: dict[str, Any]
    records: list[str]
    commits: list[str]


class ReportEvaluationRecord(Record, kind="report-evaluation"):
    """The evaluation that a report keeps of a model."""

    model: dict[str, Any]
    evaluation: dict[str, Any]
    result: dict[str, Any]
    quality: dict[str, Any]
    shown: dict[str, Any]
    provenance: dict[str, Any]


class ReportLocalityRecord(Record, kind="report-locality"):
    """The locality that a report keeps of a model."""

    model: dict[str, Any]
    plan: dict[str, Any]
    conditional_locality: dict[str, Any] | None
    levels: list[dict[str, Any]]
    probes: list[dict[str, Any]]
    provenance: dict[str, Any]


class LocalityRecord(Record, kind="locality"):
    """Of `tessera locality`."""

    conditional_locality: dict[str, Any] | None
    studies: list[dict[str, Any]]


class ScatterRecord(Record, kind="scatter"):
    """Correlation of conditional locality with length generalization, and its points."""

    spearman: dict[str, Any]
    pearson: dict[str, Any]
    rows: list[dict[str, Any]]


class PointsRecord(Record, kind="points"):
    """Points of locality and K_max, as `tessera locality` adds them to a file."""

    points: list[dict[str, Any]]


class TheoryRecord(Record, kind="theory"):
    """The paper's statements, checked."""

    checks: list[dict[str, Any]]
    as_expected: bool


class ClosedFormRecord(Record, kind="closed-form"):
    """A closed-form denoiser, sampled and evaluated."""

    closed_form: str
    scenes: int
    reach: int


class SweepRecord(Record, kind="dynamics-sweep"):
    """Swing-by dynamics over a plane of settings, depths or widths."""

    study: str


class DynamicsRecord(Record, kind="dynamics"):
    """One run of the swing-by dynamics."""

    e_min: float
    t_max: float | None  # of a run that rises


class SwingbyRecord(Record, kind="swingby"):
    """Swing-by in a diffusion model."""

    plan: dict[str, Any]
    gaps: list[dict[str, Any]]


class CompositionRecord(Record, kind="composition"):
    """K_max of each way to compose conditions at inference time."""

    radius: int
    evaluation: dict[str, Any]
    rows: list[dict[str, Any]]


class CrowdingRecord(Record, kind="crowding"):
    """Many locations, or locations close to one another."""

    model: str
    study: dict[str, Any]
    apart: dict[str, Any]
    pairs: list[dict[str, Any]]


class LearningRecord(Record, kind="learning"):
    """K_max along training."""

    k: int
    preset: str
    cells: list[dict[str, Any]]


class FeaturesRecord(Record, kind="features"):
    """Concept directions inside a network."""

    concepts: list[str]
    untrained_networks: int
    levels: list[dict[str, Any]]


class TextToImageRecord(Record, kind="text-to-image"):
    """A study of a text-to-image model, or what it would cost."""

    study: str
    model: str
    precision: str


class ProbeRecord(Record, kind="probe"):
    """What moves one pixel of one sample."""

    model: str
    energy: float
    influence: Any


class PlanRecord(Record, kind="plan"):
    """Jobs of the study that are not done, and the time they are expected to take."""

    jobs: list[dict[str, Any]]
    forecasts: list[dict[str, Any]]


class _Fig12Record(Record, kind="fig12"):
    """Pixel influence by noise level in a model of CIFAR-10."""

    growth: dict[str, Any]
    levels: list[dict[str, Any]]
    probes: list[dict[str, Any]]


class CalibrationRecord(Record, kind="calibration"):
    """The detector's own error on images whose truth is known."""

    cell: float
    sizes: dict[str, Any]


# --- reading and writing ------------------------------------------------------------------------------------


R = TypeVar("R", bound=Record)


def new_record(kind: type[Record], content: Mapping[str, Any]) -> dict[str, Any]:
    """What was measured, as it is stored."""
    return kind.from_content(content).to_dict()


def write_record(path: Path, kind: type[Record], content: Mapping[str, Any]) -> dict[str, Any]:
    record = new_record(kind, content)
    write_json(path, record)
    return record


def read_record(path: Path, kind: type[R]) -> R:
    """The record of a kind in a file of this format or the previous one."""
    record = as_record(read_json(path))
    if not isinstance(record, kind):
        found = f"a record of kind `{record.kind}`" if record else "no record of a result"
        raise UserError(f"{path} is {found}, not one of kind `{kind.kind}`; move it away and measure again.")
    return record


def as_record(content: Any) -> Record | None:
    """The record that a JSON value holds, by its kind; None if it holds none."""
    if isinstance(content, list):
        content = {"points": content}
    if not isinstance(content, dict):
        return None
    if content.get("format") == FORMAT:
        kind = KINDS.get(str(content.get("kind")))
    else:
        content = current_words(content)
        kind = _kind_of_previous_format(content)
    return kind.from_content(content) if kind else None


def _kind_of_previous_format(content: Mapping[str, Any]) -> type[Record] | None:
    """The previous format did not name its kind: the one with most entries, all of which are there."""
    points = content.get("points")
    if isinstance(points, list) and not all(isinstance(one, dict) for one in points):
        return None
    if isinstance(points, list) and "k_max" not in (points or [{}])[0]:
        return None
    fitting = [kind for kind in KINDS.values() if all(name in content for name in kind.entries())]
    return max(fitting, key=lambda kind: len(kind.entries()), default=None)


# --- what a record covers -----------------------------------------------------------------------------------

_USUAL = {"s_churn": 0.0}  # of evaluations recorded before there was another choice


def covers(known: Mapping[str, Any], wanted: Mapping[str, Any], at_least: tuple[str, ...] = ()) -> bool:
    """Whether settings that were measured answer for wanted ones: equal, but for `ks`, which may be more, and those
    named in `at_least`, which may be larger."""
    for name, value in wanted.items():
        found = known.get(name, _USUAL.get(name))
        if name == "ks":
            fits = found is not None and set(value) <= set(found)
        elif name in at_least:
            fits = found is not None and found >= value
        else:
            fits = found == value
        if not fits:
            return False
    return True


# --- the previous format ------------------------------------------------------------------------------------

# Key of the previous format -> key of this one.
_KEYS = {
    "all_filled": "all_found",
    "any_thing": "any_object",
    "centred": "centered",
    "churn": "s_churn",
    "dials": "config",
    "exam": "evaluation",
    "examined": "cost",
    "false_things": "false_objects",
    "findings": "detections",
    "hears": "cond_radius",
    "improper": "malformed",
    "judge": "detector",
    "judge_range": "detector_range",
    "judged": "evaluated",
    "judging_seconds": "detecting_seconds",
    "marks": "scores",
    "micro": "micro_batch",
    "per_picture": "per_image",
    "picture": "image",
    "pictures": "images",
    "place": "location",
    "place_precision": "location_precision",
    "place_recall": "location_recall",
    "places": "locations",
    "proper": "well_formed",
    "rampup": "lr_warmup",
    "repair": "compose",
    "require_proper": "require_well_formed",
    "seen_max": "max_train_objects",
    "snapshots_asked": "snapshots_requested",
    "stockpile": "render_batch",
    "strange": "ood",
    "strangeness": "ood_score",
    "tell": "conditioner",
    "things": "objects",
    "things_without_warning": "objects_without_warning",
    "wishes": "prompts",
}

# Key beside -> key of the previous format -> key of this one, where it differs there; these go before KEYS.
_KEYS_BESIDE = {
    "all_filled": {"clean": "exact", "within": "allowed_extras", "near": "two_missing"},
    "place_recall": {"clean": "clean"},
    "places": {"told": "conditioned_on"},
    "reach": {"kind": "closed_form"},
}

SETTING_KEYS = {  # names of groups and settings in files of earlier versions, and what they are called today
    **{name: _KEYS[name] for name in ("tell", "hears", "micro", "rampup", "stockpile")},
    "decay": "lr_decay_start",
    "taps": "resample_filter",
    "compile": "strategy",
}
SETTING_VALUES = {"strategy": {"off": "eager", "on": "compiled", "tuned": "compiled"}}

# Name of a file -> its name in the previous format.
FILES = {"samples.json": "asked.json"}


def current_words(content: Any) -> Any:
    """JSON of the previous format in the words and intervals of this one; what is current stays as it is."""
    if isinstance(content, list):
        return [current_words(part) for part in content]
    if not isinstance(content, dict):
        return content
    beside: dict[str, str] = {}
    for sign, names in _KEYS_BESIDE.items():
        if sign in content:
            beside |= names
    renamed: dict[str, Any] = {}
    for name, value in content.items():
        new = str(beside.get(name) or _KEYS.get(name, name))
        if new not in renamed:
            renamed[new] = current_words(value)
    return _with_value(renamed)


def _with_value(content: dict[str, Any]) -> dict[str, Any]:
    """An interval of the previous format called its value `share` or `mean`, and a few kept its ends as a list."""
    for name in ("share", "mean"):
        if name in content and "value" not in content and not {"median", "networks"} & content.keys():
            ends = content.get("ci95", content.get("interval"))
            if "low" in content or isinstance(ends, list):
                said = {name, "low", "high", "count", "ci95", "interval"}
                rest = {key: value for key, value in content.items() if key not in said}
                low, high = ends or (content["low"], content["high"])
                if name == "share" and "objects" in rest:
                    rest = {"n": rest.pop("objects"), **rest}
                return {"value": content[name], "low": low, "high": high, **rest}
    return content


def file_names(name: str) -> list[str]:
    """The name of a file in this format and the previous one."""
    return [name, FILES[name]] if name in FILES else [name]


def old_file(folder: Path, name: str) -> Path:
    """A file of a folder, under its name in the previous format if it has that."""
    path = folder / name
    former = folder / FILES.get(name, name)
    return former if former.is_file() and not path.is_file() else path
