"""The exam a model sits: pictures for every K with fixed seeds, made in few large batches, then judged."""

import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tessera.conditioners import ColorCounts, Conditioner
from tessera.console import progress
from tessera.denoiser.folder import Model
from tessera.denoiser.views import SeesPatches, trained_network
from tessera.devices import synchronize
from tessera.errors import UserError
from tessera.images.pictures import to_float, to_uint8
from tessera.judge.calibrate import judge_error
from tessera.judge.finding import Finder
from tessera.judge.intervals import share_record
from tessera.judge.kmax import Counts, Training, length_generalization
from tessera.judge.matching import CELL, Verdict, filled_at, match, match_colors
from tessera.judge.verbs import judge_row, trusted
from tessera.sampler.asking import Ask, study
from tessera.sampler.noise import noise_levels
from tessera.sampler.sample import sample
from tessera.sampler.verbs import set_precision
from tessera.study.cells import PICTURES

PIXELS_AT_ONCE = {
    "cuda": 1 << 22,
    "mps": 1 << 19,
    "cpu": 1 << 18,
}  # in one batch: 1024 pictures of 64 x 64 on CUDA


@dataclass(frozen=True)
class Exam:
    """What is asked: `each` pictures for every K; picture n of K has one seed, whichever model makes it."""

    ks: tuple[int, ...]
    each: int = PICTURES
    steps: int = 32
    seed: int = 0
    churn: float = 0.0  # fresh noise while sampling

    def __post_init__(self):
        if self.each < 1 or self.steps < 1:
            raise UserError("An exam needs at least one picture for each K, and at least one step.")

    @property
    def pictures(self) -> int:
        return len(self.ks) * self.each

    def asks(self, tell: Conditioner) -> list[Ask]:
        return study(tell, list(self.ks), self.each, self.seed)

    def plain(self) -> dict[str, Any]:
        return {**asdict(self), "ks": list(self.ks)}


class Answers(NamedTuple):
    """A model's pictures and what the judge says of them, in the order they were asked for."""

    asks: list[Ask]
    pictures: Tensor  # (N, 3, H, W), 8-bit
    verdicts: list[Verdict]
    strange: list[bool]
    seconds: dict[str, float]


class Examiner:
    """Sets the exam to one model after another, with one judge."""

    def __init__(self, judge: Finder, calibration: dict[str, Any] | None, device: torch.device):
        self.judge, self.calibration, self.device = judge, calibration, device

    def ready(self, model: Model) -> Model:
        """The model as it samples soonest: on CUDA in bfloat16, patches, of which there are many, compiled."""
        set_precision(model, "auto", self.device)
        if self.device.type == "cuda" and isinstance(model.denoiser, SeesPatches):
            trained_network(model.denoiser).compile(dynamic=False)
        return model.to(self.device)

    def sit(self, model: Model, exam: Exam) -> Answers:
        """All pictures of an exam, judged."""
        return self.answer(model, exam.asks(model.tell), exam.steps, exam.churn)

    def answer(self, model: Model, asks: list[Ask], steps: int, churn: float = 0.0) -> Answers:
        """A picture for each ask, judged. The judge sees 8-bit pictures, as it would in files."""
        begun = time.perf_counter()
        pictures = to_uint8(made(model, asks, steps, self.device, churn))
        synchronize(self.device)
        sampled = time.perf_counter()
        found, strangeness = self.judge.look(to_float(pictures))
        verdicts = [verdict_on(findings, ask, model.tell) for findings, ask in zip(found, asks)]
        seconds = {"sampling": sampled - begun, "judging": time.perf_counter() - sampled}
        return Answers(asks, pictures.cpu(), verdicts, (strangeness > 1).tolist(), seconds)

    def mark(
        self, model: Model, answers: Answers, corrected: bool = True, resamples: int = 1000
    ) -> dict[str, Any]:
        """K_max by both rules and the shares of every K, with intervals; `corrected` for the judge's error too."""
        groups: dict[int, list[int]] = {}
        for number, ask in enumerate(answers.asks):
            groups.setdefault(len(ask.wanted), []).append(number)
        by_color = isinstance(model.tell, ColorCounts)
        trust = trusted(self.calibration, model.size, "official" if by_color else "study")
        counts = {k: Counts.of(k, [answers.verdicts[n] for n in numbers]) for k, numbers in groups.items()}
        error = judge_error(trust["rows"], by_color) if trust and corrected else None
        marks = length_generalization(
            list(counts.values()), model.seen_max, label_of(model), error, 0, resamples
        )
        for row in marks["rows"]:
            numbers = groups[row["k"]]
            row["strange"] = share_record(sum(answers.strange[n] for n in numbers), len(numbers))
            row["counts"] = counts[row["k"]].table().tolist()  # pictures by (filled, extra)
            row["filled_at"] = filled_at([answers.verdicts[n] for n in numbers])
            row["judge"] = judge_row(trust, row["k"])
        judge = {"size": trust["size"], "arrangement": trust["arrangement"]} if trust else None
        return {**marks, "cell": CELL, "judge": judge}


def made(model: Model, asks: Sequence[Ask], steps: int, device: torch.device, churn: float = 0.0) -> Tensor:
    """Pictures (N, 3, H, W) for all asks. Batches are all of one size, so that one compiled network does."""
    pixels = PIXELS_AT_ONCE.get(device.type, PIXELS_AT_ONCE["cpu"])
    batch = even_batch(len(asks), max(1, pixels // model.size**2))
    missing = -len(asks) % batch
    padded = [*asks, *[asks[-1]] * missing]
    cond = torch.cat([model.tell.at(ask.wanted) for ask in padded])
    seeds = [ask.seed for ask in padded]
    with progress("sampling", steps * (len(padded) // batch)) as advance:
        pictures = sample(
            model.denoiser,
            cond,
            model.size,
            seeds,
            batch=batch,
            sigmas=noise_levels(steps),
            on_step=lambda step: advance(),
            churn=churn,
            device=device,
        )
    return pictures[: len(asks)]


def even_batch(count: int, most: int) -> int:
    """The size of batches that share `count` pictures evenly, none larger than `most`."""
    return math.ceil(count / math.ceil(count / most))


def verdict_on(findings, ask: Ask, tell: Conditioner) -> Verdict:
    return match_colors(findings, ask.wanted) if isinstance(tell, ColorCounts) else match(findings, ask.aims)


def label_of(model: Model) -> str:
    return (model.config.get("settings") or {}).get("tell", {}).get("label", "all")


def quality(answers: Answers) -> dict[str, Any]:
    """Image quality over all Ks: things that are proper ones, and pictures the judge does not recognise."""
    things = sum(verdict.things for verdict in answers.verdicts)
    improper = sum(verdict.improper for verdict in answers.verdicts)
    return {
        "proper": share_record(things - improper, things),
        "strange": share_record(sum(answers.strange), len(answers.strange)),
    }


def succeeded(verdict: Verdict, training: Training) -> bool:
    """Whether one picture shows all that was asked, and no more besides than training may add."""
    return verdict.missing == 0 and verdict.extra <= training.extras_allowed
