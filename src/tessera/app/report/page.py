"""One self-contained page: text, tables, charts, images, style and script in a single file, and no network."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from markupsafe import Markup, escape

from tessera.analysis.scatter import Point
from tessera.app.report import figures, tiles
from tessera.app.report import sections as contents
from tessera.app.report.columns import ReportColumn, ReportData, points_of
from tessera.app.report.tables_html import HtmlTable
from tessera.evaluation.detection import ObjectDetector
from tessera.provenance import provenance
from tessera.scenes.vocabulary import COLORS

_IMAGES_IN_A_ROW = {1: 8, 2: 5, 3: 4}  # of each K, by how many models stand side by side
_IMAGES_AMONG_MANY = 3


@dataclass(frozen=True)
class _SampleRow:
    """One K: the images of every model."""

    k: int
    columns: list[list[tiles.Tile]]
    headline: bool


def page(found: ReportData, detector: ObjectDetector, title: str, command: str) -> str:
    """The whole HTML text."""
    environment = Environment(
        loader=PackageLoader("tessera.app.report", "template"),
        autoescape=select_autoescape(["html"]),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["symbols"] = symbols
    return environment.get_template("report.html").render(context(found, detector, title, command))


def symbols(text: Any) -> Markup:
    """Intervals quiet, ticks green and crosses red, K_max with its index."""
    safe = re.sub(r"(\[[^\]]*\])", r'<span class="ci">\1</span>', str(escape(text)))
    safe = safe.replace("✓", '<span class="yes-word">✓</span>').replace("✗", '<span class="no-word">✗</span>')
    return Markup(safe.replace("K_max", "<i>K</i><sub>max</sub>"))


def context(found: ReportData, detector: ObjectDetector, title: str, command: str) -> dict[str, Any]:
    """Everything the template names; sections without content are empty and left out."""
    subjects = found.subjects
    cards = [contents.card(subject) for subject in subjects]
    return {
        "title": title,
        "command": command,
        "made": provenance(),
        "names": [subject.name for subject in subjects],
        "cards": cards,
        "shared_doubts": contents.shared_doubts(cards),
        "samples": _sample_rows(subjects, detector),
        "inks": {name: "#{:02x}{:02x}{:02x}".format(*color) for name, color in COLORS.items()},
        **_how_far([subject for subject in subjects if subject.scores]),
        **why([subject for subject in subjects if subject.locality]),
        **_both_together(points_of(found)),
        **records(found),
        **method(subjects),
    }


def _how_far(evaluated: Sequence[ReportColumn]) -> dict[str, Any]:
    return {
        "k_chart": _k_chart(evaluated),
        "k_max": contents.k_max_sheet(evaluated) if evaluated else None,
        "counts": [contents.rows_sheet(subject) for subject in evaluated],
    }


def why(result: Sequence[ReportColumn]) -> dict[str, Any]:
    return {
        "viewers": [one for subject in result if (one := tiles.viewer(subject))],
        "locality_chart": _locality_chart(result),
        "locality": contents.locality_sheet(result) if result else None,
    }


def _both_together(points: Sequence[Point]) -> dict[str, Any]:
    """Locality against length generalization, where there are enough points."""
    correlation = contents.correlation(points)
    return {
        "correlation": correlation,
        "scatter_chart": _scatter_chart(points, correlation),
        "points": contents.points_sheet(points) if correlation else None,
    }


def records(found: ReportData) -> dict[str, Any]:
    """Sections about no single model."""
    return {
        "studies": contents.study_sheets(found),
        "theory": [(contents.theory_words(record), contents.theory_sheet(record)) for record in found.theory],
        "ideal": contents.ideal_sheet(found.ideal) if found.ideal else None,
        "dynamics": _dynamics_charts(found.dynamics),
        "dynamics_runs": _dynamics_runs(found.dynamics),
        "circles": [
            (_circles_chart(record, n), contents.circles_sheet(record)) for n, record in enumerate(found.circles)
        ],
    }


def method(subjects: Sequence[ReportColumn]) -> dict[str, Any]:
    return {
        "facts": contents.facts_sheet(subjects) if subjects else None,
        "settings": contents.settings_sheet(subjects) if any(one.settings for one in subjects) else None,
        "detector_errors": _detector_tables([subject for subject in subjects if subject.scores]),
        "loss_chart": _loss_chart(subjects),
    }


def _sample_rows(subjects: Sequence[ReportColumn], detector: ObjectDetector) -> list[_SampleRow]:
    most = _IMAGES_IN_A_ROW.get(len(subjects), _IMAGES_AMONG_MANY)
    made = [tiles.tiles_of(subject, detector, most) for subject in subjects]
    ks = sorted({k for rows in made for k in rows})
    few = len(ks) <= len(tiles.HEADLINE_KS)
    return [_SampleRow(k, [rows.get(k, []) for rows in made], few or k in tiles.HEADLINE_KS) for k in ks]


def _k_chart(evaluated: Sequence[ReportColumn]) -> str | None:
    if not evaluated:
        return None
    rule = "paper" if all("paper" in (subject.scores or {})["k_max"] for subject in evaluated) else "strict"
    alt = "Share of images with all prompted locations filled, by K, with 95% intervals, and K_max of each model"
    return figures.svg(figures.k_curves(evaluated, rule), "reach", alt)


def _locality_chart(result: Sequence[ReportColumn]) -> str | None:
    if not result:
        return None
    alt = "Conditional locality and the side of the pixel neighborhood over noise levels"
    return figures.svg(figures.locality_curves(result), "locality", alt)


def _scatter_chart(points: Sequence[Point], correlation: dict[str, Any] | None) -> str | None:
    if correlation is None:
        return None
    alt = "Length generalization against conditional locality, one point for each snapshot"
    return figures.svg(figures.scatter(points, correlation), "scatter", alt)


def _loss_chart(subjects: Sequence[ReportColumn]) -> str | None:
    if not any(subject.log for subject in subjects):
        return None
    return figures.svg(figures.loss_curves(subjects), "loss", "Training loss over images seen")


def _dynamics_charts(records: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """A chart with its caption for every sweep."""
    made = []
    for number, record in enumerate(record for record in records if "study" in record):
        draw = figures.phase if record["study"] == "phase" else figures.shares_by
        made.append((figures.svg(draw(record), f"dynamics{number}", caption(record)), caption(record)))
    return made


def _circles_chart(record: Mapping[str, Any], number: int) -> str:
    alt = "Paths through concept space, and the error at the composition over training"
    return figures.svg(figures.circles(record["gaps"]), f"circles{number}", alt)


def caption(record: Mapping[str, Any]) -> str:
    if record["study"] == "phase":
        share = record["swing_by"]
        return f"Swing-by over {record['runs']:,} runs: {100 * share['value']:.0f}% rise before they fall."
    return f"Starts that rise, by {record['study']}; counted: {record['counted']}."


def _dynamics_runs(records: Sequence[Mapping[str, Any]]) -> HtmlTable | None:
    runs = [dict(record) for record in records if "study" not in record]
    return contents.dynamics_sheet(runs) if runs else None


def _detector_tables(evaluated: Sequence[ReportColumn]) -> list[HtmlTable]:
    """The detector's error at every size and arrangement that occurs."""
    kinds = {(subject.size or 64, "official" if subject.by_color else "study") for subject in evaluated}
    made = [contents.detector_table(*kind) for kind in sorted(kinds)]
    unique = {sheet.note: sheet for sheet in made if sheet}
    return list(unique.values())
