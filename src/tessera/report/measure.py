"""What a report needs of a model, measured once and kept beside it: an exam with pictures, locality with heat-maps."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tessera.conditioners import ColorCounts, Conditioner
from tessera.console import progress, say
from tessera.denoiser.folder import Model
from tessera.denoiser.sealed import digest, read_sealed, write_sealed
from tessera.errors import UserError
from tessera.files import make_folder, read_json, write_json
from tessera.judge.calibrate import load_calibration
from tessera.judge.finding import Finder
from tessera.judge.judge import load_judge
from tessera.judge.kmax import Training
from tessera.locality.pixels import Pixel
from tessera.locality.study import Located, Plan, Probe, Source, locate, study_record
from tessera.provenance import provenance
from tessera.sampler.asking import study
from tessera.sampler.verbs import set_precision
from tessera.scenes.vocabulary import COLOR_NAMES, LOCATIONS
from tessera.study.exam import Exam, Examiner, label_of, quality
from tessera.study.reproduce import spent_on
from tessera.study.strips import COLUMNS, STRIP, Shown, load_strip, save_strip, shown_record
from tessera.version import __version__

EXAM, PICTURES = "report-exam.json", f"report-exam{STRIP}"
LOCALITY, MAPS = "report-locality.json", "report-locality.safetensors"
QUICK_KS = (1, 3, 6, 9)
ASKED = 4  # places asked for where locality is measured, as in the paper's Figure 10

Record = dict[str, Any]


@dataclass(frozen=True)
class Dials:
    """How much is measured; None leaves the choice to `quick`."""

    n: int | None = None  # pictures for each K
    ks: tuple[int, ...] | None = None
    steps: int | None = None
    quick: bool = False
    seed: int = 0
    pictures: int | None = None  # whose locality is measured
    levels: int | None = None  # noise levels at which it is
    source: Source | None = None  # None: generated, or whatever was measured before

    def exam(self, tell: Conditioner, judged_elsewhere: bool = False) -> Exam:
        """The exam to set; where counts are known already, only the pictures to show are made."""
        few = self.quick or judged_elsewhere
        ks = self.ks or (QUICK_KS if self.quick else tuple(range(most_asked(tell) + 1)))
        known = tuple(k for k in ks if k <= most_asked(tell))
        if not known:
            raise UserError(f"This model can be asked for 0 to {most_asked(tell)} conditions.")
        return Exam(
            known, self.n or (COLUMNS if few else 64), self.steps or (16 if self.quick else 32), self.seed
        )

    def plan(self, tell: Conditioner) -> Plan:
        steps = self.steps or (16 if self.quick else 32)
        return Plan(
            k=min(ASKED, most_asked(tell)),
            pictures=self.pictures or (2 if self.quick else 8),
            levels=min(steps, self.levels or (8 if self.quick else 12)),
            steps=steps,
            source=self.source or "generated",
            seed=self.seed,
        )


def most_asked(tell: Conditioner) -> int:
    """The largest K that the study asks of such a model."""
    known = len(COLOR_NAMES) if isinstance(tell, ColorCounts) else len(LOCATIONS)
    return known if tell.capacity is None else min(known, tell.capacity)


def aims_of(tell: Conditioner, ks: Iterable[str | int]) -> dict[int, tuple[Any, ...]]:
    """Where, for each K of the study, things must appear (or in which colours), as the model was told it."""
    return {len(ask.wanted): ask.aims for ask in study(tell, [int(k) for k in ks], 1, 0)}


def identity(model: Model) -> Record:
    """What tells two sets of weights apart, however they came to be."""
    facts = {name: model.config.get(name) for name in ("images_seen", "ema")}
    return {**facts, "sha256": model.config.get("sha256") or weights_digest(model)}


def weights_digest(model: Model) -> str:
    return digest({name: value.detach().cpu() for name, value in model.denoiser.state_dict().items()}, "")


class Measurer:
    """Measures models on one device with one judge; what was measured before is read back."""

    def __init__(self, device: torch.device, dials: Dials, judge: Finder | None = None):
        self.device, self.dials = device, dials
        self.examiner = Examiner(judge or load_judge(device=device), load_calibration(), device)

    def knows(self, model: Model, keep: Path) -> bool:
        """Whether all that the dials ask for was measured before."""
        tell = model.tell
        exam = self.known_exam(model, keep, self.dials.exam(tell)) if tell.dim else True
        return bool(exam and self.known_locality(model, keep, self.dials.plan(tell)))

    # -- pictures and counts -------------------------------------------------------------------------------

    def exam(
        self, model: Model, keep: Path, name: str, judged_elsewhere: bool = False
    ) -> tuple[Record, dict[int, list[Shown]]] | None:
        """The exam's record and the pictures kept of it, by K; None where nothing can be asked for."""
        if not model.tell.dim:
            return None
        wanted = self.dials.exam(model.tell, judged_elsewhere)
        record = self.known_exam(model, keep, wanted)
        if record is None:
            say(f"{name}: drawing and judging {wanted.pictures} pictures")
            record = self.examined(model, wanted, keep)
        return record, load_strip(keep / PICTURES, record, aims_of(model.tell, record["shown"]))

    def known_exam(self, model: Model, keep: Path, wanted: Exam) -> Record | None:
        """The record of an exam at least as good that was set before, if its pictures are there too."""
        if not (keep / PICTURES).is_file():
            return None
        return self.kept(keep / EXAM, model, lambda known: at_least_as_good(known["exam"], wanted))

    def examined(self, model: Model, exam: Exam, keep: Path) -> Record:
        set_precision(model, "auto", self.device)
        answers = self.examiner.sit(model.to(self.device), exam)
        record = {
            "model": identity(model),
            "exam": exam.plain(),
            "result": self.examiner.mark(model, answers),
            "quality": quality(answers),
            "shown": shown_record(answers, Training(model.seen_max, label_of(model))),
            "examined": spent_on(answers),
            "provenance": provenance(self.device),
        }
        save_strip(make_folder(keep) / PICTURES, answers)  # first: the record vouches for it
        write_json(keep / EXAM, record)
        return record

    def kept(self, path: Path, model: Model, good_enough) -> Record | None:
        """A record of these very weights, measured by this version and at least as thoroughly."""
        known = read_json(path) if path.is_file() else {}
        same = known.get("model") == identity(model) and known["provenance"]["tessera"] == __version__
        return known if same and good_enough(known) else None

    # -- locality ------------------------------------------------------------------------------------------

    def locality(self, model: Model, keep: Path, name: str) -> tuple[Record, Located]:
        """The record of a locality study, and what was measured in its first scene."""
        plan = self.dials.plan(model.tell)
        record = self.known_locality(model, keep, plan)
        if record is None:
            say(f"{name}: measuring locality")
            return self.located(model, plan, keep)
        return record, load_located(keep / MAPS)

    def known_locality(self, model: Model, keep: Path, plan: Plan) -> Record | None:
        """The record of a study that covers this one, if its maps are there too."""
        if not (keep / MAPS).is_file():
            return None
        wanted = {name: value for name, value in brief(plan).items() if name != "source" or self.dials.source}
        return self.kept(keep / LOCALITY, model, lambda known: covers(known["plan"], wanted))

    def located(self, model: Model, plan: Plan, keep: Path) -> tuple[Record, Located]:
        set_precision(model, "float32", self.device)  # gradients deserve it
        model.to(self.device)
        with progress("locating", None):  # a single scene: there is no telling how far it is
            found = locate(model.denoiser, model.tell, model.size, plan, self.device)
        record = {
            "model": identity(model),
            "plan": brief(plan),
            "size": model.size,
            **located_record(found, plan.seed),
            "provenance": provenance(self.device),
        }
        save_located(make_folder(keep) / MAPS, found[0])
        write_json(keep / LOCALITY, record)
        return record, found[0]


def located_record(found: Sequence[Located], seed: int) -> Record:
    """The record of a study; a network that ignores its conditions has no conditional locality, and is told so."""
    try:
        return study_record(found, seed)
    except UserError as error:
        pixels_alone = [replace(located, told_own=located.told_own[:, :, :0]) for located in found]
        return {**study_record(pixels_alone, seed), "note": str(error)}


def at_least_as_good(known: Mapping[str, Any], wanted: Exam) -> bool:
    """Whether an exam already set asked for all that is wanted, as often and as carefully."""
    return (
        set(wanted.ks) <= set(known["ks"])
        and known["each"] >= wanted.each
        and known["steps"] >= wanted.steps
        and known["seed"] == wanted.seed
    )


def covers(known: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Whether a study already made looked at the same, and at as much of it."""
    same = all(known[name] == wanted[name] for name in ("k", "seed", "source") if name in wanted)
    return same and all(known[name] >= wanted[name] for name in ("pictures", "scenes", "levels", "steps"))


def brief(plan: Plan) -> Record:
    return {
        name: getattr(plan, name) for name in ("k", "pictures", "scenes", "levels", "steps", "source", "seed")
    }


# --- keeping what was located -------------------------------------------------------------------------------


def save_located(path: Path, located: Located) -> None:
    tensors = {
        f.name: value for f in fields(Located) if isinstance(value := getattr(located, f.name), Tensor)
    }
    facts = {
        "wanted": list(located.wanted),
        "probes": [[probe.name, *probe.at] for probe in located.probes],
        "sigmas": located.sigmas,
    }
    write_sealed(path, tensors, facts)


def load_located(path: Path) -> Located:
    tensors, facts = read_sealed(path)
    wanted = tuple(want if isinstance(want, str) else tuple(want) for want in facts["wanted"])
    probes = [Probe(name, Pixel(row, col)) for name, row, col in facts["probes"]]
    return Located(wanted=wanted, probes=probes, sigmas=facts["sigmas"], **tensors)


def dials_record(dials: Dials) -> Record:
    return {name: value for name, value in asdict(dials).items() if value is not None}
