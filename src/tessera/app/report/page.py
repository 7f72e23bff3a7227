"""One self-contained page: text, tables, charts, images, style and script in a single file, and no network."""

import re
from collections.abc import Sequence
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from markupsafe import Markup, escape

from tessera.analysis.locality_figures import figure_scatter
from tessera.analysis.scatter import FEWEST, scatter_record
from tessera.app.report import figures, tiles
from tessera.app.report import sections as contents
from tessera.app.report.columns import ReportColumn, ReportData, points_of
from tessera.app.report.figures import svg
from tessera.app.report.tables_html import interval
from tessera.evaluation.detection import ObjectDetector
from tessera.evaluation.explain import box_edges, describe, outline_of
from tessera.plots.figures import styled
from tessera.provenance import provenance
from tessera.render.image_io import png_url
from tessera.rows import plural
from tessera.scenes.vocabulary import COLORS
from tessera.studies.swingby.figures import swingby_figure

_IMAGES_IN_A_ROW = {1: 8, 2: 5, 3: 4}  # of each K, by how many models stand side by side
_IMAGES_AMONG_MANY = 3


def page(found: ReportData, detector: ObjectDetector, title: str, command: str) -> str:
    """The whole HTML text."""
    environment = Environment(
        loader=PackageLoader("tessera.app.report", "template"),
        autoescape=select_autoescape(["html"]),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"symbols": symbols, "png_url": png_url, "interval": interval}
    environment.globals |= {"box_edges": box_edges, "describe": describe, "outline_of": outline_of, "plural": plural}
    return environment.get_template("report.html").render(context(found, detector, title, command))


def symbols(text: Any) -> Markup:
    """Intervals quiet, ticks green and crosses red, K_max with its index."""
    safe = re.sub(r"(\[[^\]]*\])", r'<span class="ci">\1</span>', str(escape(text)))
    safe = safe.replace("✓", '<span class="yes-word">✓</span>').replace("✗", '<span class="no-word">✗</span>')
    return Markup(safe.replace("K_max", "<i>K</i><sub>max</sub>"))


def context(found: ReportData, detector: ObjectDetector, title: str, command: str) -> dict[str, Any]:
    """Everything the template names; what has no content is not defined, and left out there."""
    subjects = found.subjects
    cards = [contents.card(subject) for subject in subjects]
    evaluated = [subject for subject in subjects if subject.scores]
    localized = [subject for subject in subjects if subject.locality]
    return {
        "title": title,
        "command": command,
        "made": provenance(),
        "names": [subject.name for subject in subjects],
        "cards": cards,
        "shared_doubts": contents.shared_doubts(cards),
        "samples": _sample_rows(subjects, detector),
        "inks": {name: "#{:02x}{:02x}{:02x}".format(*color) for name, color in COLORS.items()},
        **(_how_far(evaluated) if evaluated else {}),
        **(_why(localized) if localized else {}),
        **_both_together(found),
        **_records(found),
        **_method(subjects),
    }


def _sample_rows(subjects: Sequence[ReportColumn], detector: ObjectDetector) -> list[dict[str, Any]]:
    """One row for each K: the images of every model."""
    most = _IMAGES_IN_A_ROW.get(len(subjects), _IMAGES_AMONG_MANY)
    made = [tiles.tiles_of(subject, detector, most) for subject in subjects]
    ks = sorted({k for rows in made for k in rows})
    few = len(ks) <= len(tiles.HEADLINE_KS)
    return [
        {"k": k, "columns": [rows.get(k, []) for rows in made], "headline": few or k in tiles.HEADLINE_KS} for k in ks
    ]


def _how_far(evaluated: Sequence[ReportColumn]) -> dict[str, Any]:
    rule = "paper" if all("paper" in (subject.scores or {})["k_max"] for subject in evaluated) else "strict"
    alt = "Share of images with all prompted locations filled, by K, with 95% intervals, and K_max of each model"
    kinds = sorted({(subject.size or 64, "official" if subject.by_color else "study") for subject in evaluated})
    errors = [contents.detector_table(*kind) for kind in kinds]
    return {
        "k_chart": svg(figures.k_curves(evaluated, rule), "reach", alt),
        "k_max": contents.k_max_sheet(evaluated),
        "counts": [contents.rows_sheet(subject) for subject in evaluated],
        "detector_errors": {sheet.note: sheet for sheet in errors if sheet}.values(),
    }


def _why(localized: Sequence[ReportColumn]) -> dict[str, Any]:
    alt = "Conditional locality and the side of the pixel neighborhood over noise levels"
    return {
        "viewers": [one for subject in localized if (one := tiles.viewer(subject))],
        "locality_chart": svg(figures.locality_curves(localized), "locality", alt),
        "locality": contents.locality_sheet(localized),
    }


def _both_together(found: ReportData) -> dict[str, Any]:
    """Locality against length generalization, where there are enough points."""
    points = points_of(found)
    if len(points) < FEWEST:
        return {}
    correlation = scatter_record(points)
    alt = "Length generalization against conditional locality, one point for each snapshot"
    return {
        "correlation": correlation,
        "scatter_chart": svg(figure_scatter(points, correlation), "scatter", alt),
        "points": contents.points_sheet(correlation["rows"]),
    }


def _records(found: ReportData) -> dict[str, Any]:
    """Sections about no single model."""
    shown = found.records
    ideal = [record for record in shown["closed-form"] if "evaluated" in record]  # others compare it with a network
    circles = "Paths through concept space, and the error at the composition over training"
    draw_circles = styled(swingby_figure)
    return {
        "studies": contents.study_sheets(found),
        "theory": [(record, contents.theory_sheet(record)) for record in shown["theory"]],
        "ideal": contents.ideal_sheet(ideal) if ideal else None,
        "dynamics": [
            _sweep_chart(record, f"dynamics{number}") for number, record in enumerate(shown["dynamics-sweep"])
        ],
        "dynamics_runs": contents.dynamics_sheet(shown["dynamics"]) if shown["dynamics"] else None,
        "circles": [
            (svg(draw_circles(record["gaps"]), f"circles{number}", circles), contents.circles_sheet(record))
            for number, record in enumerate(shown["swingby"])
        ],
    }


def _sweep_chart(record: dict[str, Any], name: str) -> tuple[str, str]:
    """A chart with its caption."""
    if record["study"] == "phase":
        share = record["swing_by"]["value"]
        caption = f"Swing-by over {record['runs']:,} runs: {100 * share:.0f}% rise before they fall."
        return svg(figures.phase(record), name, caption), caption
    caption = f"Starts that rise, by {record['study']}; counted: {record['counted']}."
    return svg(figures.shares_by(record), name, caption), caption


def _method(subjects: Sequence[ReportColumn]) -> dict[str, Any]:
    trained = any(subject.log for subject in subjects)
    return {
        "facts": contents.facts_sheet(subjects) if subjects else None,
        "settings": contents.settings_sheet(subjects) if any(one.settings for one in subjects) else None,
        "loss_chart": svg(figures.loss_curves(subjects), "loss", "Training loss over images seen") if trained else None,
    }
