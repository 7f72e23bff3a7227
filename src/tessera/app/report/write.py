"""ReportData become a file, from the command line or from a program of one's own."""

from collections.abc import Mapping
from pathlib import Path

from tessera.app.report.columns import ReportData, best_scores, measured_model
from tessera.app.report.measure import ColumnEvaluator, ReportConfig
from tessera.app.report.page import page
from tessera.devices import pick_device
from tessera.files import atomic, make_folder
from tessera.models.model import Model


def report_on(
    models: Mapping[str, Model],
    out: Path | str,
    config: ReportConfig | None = None,
    *,
    device: str = "auto",
    title: str | None = None,
) -> ReportData:
    """Examine models side by side, measure their locality, and write the page `out`.

    What was measured is kept beside the page, in a folder of its name with -measured.
    """
    out = Path(out)
    measurer = ColumnEvaluator(pick_device(device), config or ReportConfig())
    keep = kept_beside(out)
    subjects = [
        measured_model(name, model, measurer, keep / name, best_scores(model))
        for name, model in models.items()
    ]
    found = ReportData(subjects)
    write_page(found, measurer, out, title, "")
    return found


def kept_beside(out: Path) -> Path:
    """Where measurements go that have no run folder of their own."""
    return out.with_name(f"{out.stem}-measured")


def write_page(
    found: ReportData, measurer: ColumnEvaluator, out: Path, title: str | None, command: str
) -> None:
    names = [subject.name for subject in found.subjects]
    heading = title or (" · ".join(names) if names else "Records")
    text = page(found, measurer.evaluator.detector, heading, command)
    make_folder(out.parent)
    with atomic(out) as temporary:
        temporary.write_text(text, encoding="utf-8")
