"""Findings become a file, from the command line or from a program of one's own."""

from collections.abc import Mapping
from pathlib import Path

from tessera.denoiser.folder import Model
from tessera.devices import pick_device
from tessera.files import atomic, make_folder
from tessera.report.measure import Dials, Measurer
from tessera.report.page import page
from tessera.report.subjects import Findings, best_marks, measured_model


def report_on(
    models: Mapping[str, Model],
    out: Path | str,
    dials: Dials | None = None,
    *,
    device: str = "auto",
    title: str | None = None,
) -> Findings:
    """Examine models side by side, measure their locality, and write the page `out`.

    What was measured is kept beside the page, in a folder of its name with -measured.
    """
    out = Path(out)
    measurer = Measurer(pick_device(device), dials or Dials())
    keep = kept_beside(out)
    subjects = [
        measured_model(name, model, measurer, keep / name, best_marks(model))
        for name, model in models.items()
    ]
    found = Findings(subjects)
    write_page(found, measurer, out, title, "")
    return found


def kept_beside(out: Path) -> Path:
    """Where measurements go that have no run folder of their own."""
    return out.with_name(f"{out.stem}-measured")


def write_page(found: Findings, measurer: Measurer, out: Path, title: str | None, command: str) -> None:
    names = [subject.name for subject in found.subjects]
    heading = title or (" · ".join(names) if names else "Records")
    text = page(found, measurer.examiner.judge, heading, command)
    make_folder(out.parent)
    with atomic(out) as temporary:
        temporary.write_text(text, encoding="utf-8")
