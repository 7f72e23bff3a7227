"""A job is one cell with one training seed: where its files lie, what is finished of it, what is left to do."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tessera.config import Settings, first_difference, settings_from
from tessera.evaluation.pipeline import EvaluationConfig
from tessera.files import read_json
from tessera.records import StudyRunRecord, covers, current_words, read_record
from tessera.studies.clevr.entries import StudyEntry
from tessera.training.run_folder import RunFolder

_BENCHES = "bench-train*.json"
# Settings that leave what is computed as it is, so that a record made with others of them still counts.
_HARMLESS = {f"training.{name}" for name in ("snapshot", "checkpoint", "strategy", "render_batch", "micro_batch")}


@dataclass(frozen=True)
class StudyPaths:
    """Folders of the study: runs (large, thrown away) and results (small, kept)."""

    runs: Path = Path("runs/study")
    results: Path = Path("results")

    @property
    def records(self) -> Path:
        return self.results / "study"

    @property
    def image_grids(self) -> Path:
        return self.records / "image_grids"

    @property
    def figures(self) -> Path:
        return self.results / "figures"


@dataclass(frozen=True)
class StudyRun:
    """One cell at one size with one training seed, and its evaluation."""

    cell: StudyEntry
    seed: int
    settings: Settings
    evaluation: EvaluationConfig
    snapshots: int = 0  # snapshots of training that are evaluated besides the end

    @property
    def name(self) -> str:
        return job_name(self.cell.name, self.settings.preset, self.seed)

    def folder(self, paths: StudyPaths) -> Path:
        return paths.runs / self.name

    def record_path(self, paths: StudyPaths) -> Path:
        return paths.records / f"{self.name}.json"

    def record(self, paths: StudyPaths) -> StudyRunRecord | None:
        """The record of this very job, if it is finished."""
        path = self.record_path(paths)
        if not path.is_file():
            return None
        found = read_record(path, StudyRunRecord)
        same = first_difference(settings_from(found["settings"]), self.settings, _HARMLESS) is None
        covered = covers(found["evaluation"], self.evaluation.plain(), at_least=("each",))
        return found if same and covered and found["snapshots_requested"] >= self.snapshots else None


def job_name(cell: str, preset: str, seed: int) -> str:
    return f"{cell}-{preset}-seed{seed}"


def evenly(moments: Sequence[int], count: int) -> list[int]:
    """`count` of the moments, the last among them, as evenly spread as they can be."""
    if count >= len(moments):
        return list(moments)
    return [moments[round((turn + 1) * len(moments) / count) - 1] for turn in range(count)]


# --- what it will take --------------------------------------------------------------------------------------


class Speeds:
    """Images trained on, and samples evaluated, in a second: of the latest record of each network that has one."""

    def __init__(self, paths: StudyPaths):
        self.training: dict[str, float] = {}
        self.evaluations: dict[str, float] = {}
        for path in sorted(paths.results.glob(_BENCHES)):
            content = current_words(read_json(path))
            for bench in content if isinstance(content, list) else [content]:
                _note(self.training, bench, bench["images_per_second"]["value"])
        for path in sorted(paths.records.glob("*.json")):
            record = read_record(path, StudyRunRecord)
            cost = record["cost"]
            _note(self.training, record, record["training"]["images_per_second"])
            seconds = cost["sampling_seconds"] + cost["detecting_seconds"]
            _note(self.evaluations, record, cost["images"] / max(1e-9, seconds))


def _note(speeds: dict[str, float], record: Mapping[str, Any], per_second: float | None) -> None:
    if per_second:
        # Read as settings, a record from before one of them existed counts as having had its default.
        speeds[_network_of(settings_from(record["settings"]))] = per_second


def _network_of(settings: Settings) -> str:
    """The settings that decide how fast a network is."""
    sizes = settings.data.size, settings.training.batch, settings.conditioner.kind
    return f"{asdict(settings.denoiser)}, {sizes}"


_DONE = "done"
ANOTHER_RUN = "another run"  # lies in the job's folder: the job will fail, and say why


@dataclass(frozen=True)
class Estimate:
    """What is left to do for a job; minutes are None where no speed is known."""

    job: str  # its name
    state: str  # DONE, trained, half trained, not begun, or ANOTHER_RUN
    images: int
    samples: int
    training_minutes: float | None
    evaluation_minutes: float | None

    @property
    def minutes(self) -> float | None:
        return None if self.training_minutes is None else self.training_minutes + (self.evaluation_minutes or 0)

    def plain(self) -> dict[str, Any]:
        return {**asdict(self), "minutes": self.minutes}


def estimate(job: StudyRun, paths: StudyPaths, speeds: Speeds) -> Estimate:
    """What is left of a job, and how long that took before."""
    state = _state_of(job, paths)
    to_do = state not in (_DONE, ANOTHER_RUN)
    left = max(0, job.settings.training.total - images_seen(job.folder(paths))) if to_do else 0
    samples = job.evaluation.images * max(1, job.snapshots) if to_do else 0
    network = _network_of(job.settings)
    return Estimate(
        job.name,
        state,
        left,
        samples,
        _minutes_for(left, speeds.training.get(network)),
        _minutes_for(samples, speeds.evaluations.get(network)),
    )


def _state_of(job: StudyRun, paths: StudyPaths) -> str:
    if job.record(paths) is not None:
        return _DONE
    folder = job.folder(paths)
    if RunFolder(folder).difference(job.settings):
        return ANOTHER_RUN
    seen = images_seen(folder)
    if seen >= job.settings.training.total:
        return "trained"
    return "half trained" if seen else "not begun"


def images_seen(folder: Path) -> int:
    """How far a run has come, by the names of what it saved."""
    names = [path.stem.split("-")[1] for path in (folder / "snapshots").glob("*-*.safetensors")]
    return max((int(name) for name in names if name.isdigit()), default=0)


def _minutes_for(count: int, per_second: float | None) -> float | None:
    if not count:
        return 0.0
    return None if per_second is None else count / per_second / 60
