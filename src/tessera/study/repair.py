"""Can a model that fails be made to compose without training it again? K_max of each way to ask it, with its cost."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import tyro

from tessera import console
from tessera.denoiser.folder import Model
from tessera.devices import DeviceName, PrecisionName, pick_device, precision_on
from tessera.errors import UserError
from tessera.files import check_writable, make_folder
from tessera.images.pictures import check_format, save_picture
from tessera.judge.calibrate import load_calibration
from tessera.judge.kmax import Training
from tessera.provenance import provenance
from tessera.rows import turned
from tessera.sampler.asking import parse_ks
from tessera.sampler.compose import HOWS, repair
from tessera.sampler.verbs import check_models, open_model, set_precision
from tessera.study.exam import Answers, Exam, Examiner
from tessera.study.figures import Panel, drawn
from tessera.study.strips import Shown, shown_of
from tessera.study.tables import repair_rows
from tessera.study.verbs import open_judge


@dataclass(frozen=True)
class ReproduceRepair:
    """Ask a failing model about few conditions at a time, and count: K_max of each way, beside models that compose."""

    model: tyro.conf.Positional[str] = "exp2"
    """The model to repair: a run folder, a model folder or the name of a shipped model."""
    beside: str = "exp1,exp2L"
    """Models asked as they are, for comparison; `none` for none."""
    ways: str = ",".join(HOWS)
    """Ways to ask the first model."""
    radius: int = 2
    """Cells to each side that belong to a thing, for project and localize."""
    k: str = "1-12"
    """Numbers of things to ask for."""
    each: int = 64
    """Pictures for each K."""
    steps: int = 32
    """Noise levels on the way from noise to picture."""
    churn: float = 0.0
    """Fresh noise on the way, for all of them."""
    batch: int = 256
    """Pictures the network sees at once."""
    seed: int = 0
    """Another seed gives other pictures."""
    precision: PrecisionName = "auto"
    """Of the networks; auto is bfloat16 on CUDA and float32 elsewhere."""
    out: Path | None = None
    """Write the JSON object to this file, such as results/repair.json."""
    figure: Path | None = None
    """Draw the first pictures of every K here, side by side for all of them (.webp or .png)."""
    device: DeviceName = "auto"
    """Where to compute."""
    json: bool = False
    """Print one JSON object."""

    def run(self) -> None:
        self.check_figure()
        device, jobs = pick_device(self.device), self.jobs()
        exam = Exam(tuple(parse_ks(self.k)), self.each, self.steps, self.seed, self.churn)
        check_models(name for name, _ in jobs)
        examiner = Examiner(open_judge(device), load_calibration(), device)
        rows, panels = [], []
        for name, way in jobs:
            console.say(f"{name}, {way}")
            model = open_model(name, None, None, device)
            set_precision(model, self.precision, device)
            marks, shown = self.examined(examiner, model, way, exam)
            rows.append({"model": name, "way": way, **marks})
            panels.append(Panel(f"{Path(name).name}, {way}", ABOUT[way], shown))
        settings = {
            "radius": self.radius,
            "exam": exam.plain(),
            "precision": precision_on(device, self.precision),
        }
        record = {**settings, "rows": rows, "provenance": provenance(device)}
        console.publish(record, self.json, self.out, console.table_of(turned(repair_rows(rows))))
        if self.figure:
            make_folder(self.figure.parent)
            save_picture(self.figure, drawn(panels, exam.ks, min(SHOWN, self.each)))
            console.say(f"{self.figure} is drawn.")

    def check_figure(self) -> None:
        if self.figure:
            check_format(self.figure)
            check_writable(self.figure)

    def jobs(self) -> list[tuple[str, str]]:
        """Model and way of every line of the table."""
        ways = self.ways.replace(",", " ").split()
        for way in ways:
            if way not in HOWS:
                raise UserError(f"There is no way `{way}` to ask a model; there are {', '.join(HOWS)}.")
        others = [] if self.beside == "none" else self.beside.replace(",", " ").split()
        return [*((self.model, way) for way in ways), *((name, "plain") for name in others)]

    def examined(
        self, examiner: Examiner, model: Model, way: str, exam: Exam
    ) -> tuple[dict[str, Any], dict[int, list[Shown]]]:
        """K_max and shares, and passes of the network per picture and look; and some of the pictures."""
        composed = repair(model.denoiser, model.tell, way, self.radius, self.batch)
        asked = replace(model, denoiser=composed)
        answers = examiner.sit(asked, exam)
        marks = examiner.mark(asked, answers)
        kept = [{name: row[name] for name in KEPT} for row in marks["rows"]]
        found = {"k_max": marks["k_max"], "rows": kept, "passes": passes(composed, answers, exam)}
        return found, shown_of(answers, Training(marks["seen_max"], marks["label"]))


ABOUT = {
    "plain": "told everything at once",
    "sum": "told one condition at a time, and what each changes is added up",
    "project": "every thing from a pass told of it alone",
    "localize": "every cell from a pass told only what is near",
}
SHOWN = 4  # pictures of each K in a figure
KEPT = ("k", "n", "all_filled", "clean", "within", "near", "found", "extra")


def passes(composed: Any, answers: Answers, exam: Exam) -> float:
    """Pictures the network denoised for each picture it would denoise if asked plainly."""
    looks = 2 * exam.steps - 1  # Heun looks twice in every step but the last
    return composed.passes / (len(answers.asks) * looks)
