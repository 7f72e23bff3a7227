"""Write the report of models and records as one HTML page."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tessera.app.report.columns import ReportData, best_scores, measured_model
from tessera.app.report.measure import ColumnEvaluator, ReportConfig
from tessera.app.report.page import page
from tessera.devices import pick_device
from tessera.files import atomic, make_folder, reading
from tessera.models.loading import load
from tessera.models.model import Model
from tessera.rows import distinct


def report(
    models: Model | str | Path | Sequence[Model | str | Path] | Mapping[str, Model | str | Path],
    out: Path | str = "report.html",
    config: ReportConfig | None = None,
    *,
    quick: bool = False,
    device: str = "auto",
    title: str | None = None,
) -> ReportData:
    """Evaluate models side by side, measure their locality, and write one self-contained page.

    Args:
        models: one model or several: `Model`s, names that `tessera.load` takes, or a dict of them by the names to show.
        out: the page to write; measurements are kept beside it, in a folder of its name with -measured.
        config: how much is measured; by default 64 samples for each K up to 12.
        quick: without a `config`: few samples and noise levels, a first look within minutes on a CPU.
        device: `auto`, `cpu`, `cuda` or `mps`.
        title: heading of the page; by default the names of the models.

    Returns:
        The `ReportData` behind the page: `.subjects`, each with `.scores` and `.locality`.

    Example:
        >>> import tessera
        >>> from tessera.app.report.measure import ReportConfig
        >>> little = ReportConfig(n=1, ks=(1,), steps=4, images=1, levels=2)
        >>> [subject.name for subject in tessera.report("exp1", "report.html", little).subjects]
        ['exp1']
    """
    out = Path(out)
    measurer = ColumnEvaluator(pick_device(device), config or ReportConfig(quick=quick))
    keep = kept_beside(out)
    subjects = []
    for name, what in _named(models).items():
        model = load(what, device=measurer.device)
        subjects.append(measured_model(name, model, measurer, keep / name, best_scores(model)))
    found = ReportData(subjects)
    write_page(found, measurer, out, title, "")
    return found


def _named(models: Any) -> dict[str, Any]:
    """Models by the names that the page shows."""
    if isinstance(models, Mapping):
        return dict(models)
    several = list(models) if isinstance(models, list | tuple) else [models]
    names = [Path(what).name if isinstance(what, str | Path) else "model" for what in several]
    return dict(zip(distinct(names), several))


def kept_beside(out: Path) -> Path:
    """Where measurements go that have no run folder of their own."""
    return out.with_name(f"{out.stem}-measured")


def write_page(found: ReportData, measurer: ColumnEvaluator, out: Path, title: str | None, command: str) -> None:
    names = [subject.name for subject in found.subjects]
    heading = title or (" · ".join(names) if names else "Records")
    with reading("A record of this page"):  # whatever its entries hold, which are not all checked before
        text = page(found, measurer.evaluator.detector, heading, command)
    make_folder(out.parent)
    with atomic(out) as temporary:
        temporary.write_text(text, encoding="utf-8")
