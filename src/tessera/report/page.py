"""One self-contained page: text, tables, charts, pictures, style and script in a single file, and no network."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from markupsafe import Markup, escape

from tessera.judge.finding import Finder
from tessera.locality.scatter import Point
from tessera.provenance import provenance
from tessera.report import contents, figures, tiles
from tessera.report.sheets import Sheet
from tessera.report.subjects import Findings, Subject, points_of
from tessera.scenes.vocabulary import COLORS

PICTURES_IN_A_ROW = {1: 8, 2: 5, 3: 4}  # of each K, by how many models stand side by side
PICTURES_AMONG_MANY = 3


@dataclass(frozen=True)
class SampleRow:
    """One K: the pictures of every model."""

    k: int
    columns: list[list[tiles.Tile]]
    headline: bool


def page(found: Findings, judge: Finder, title: str, command: str) -> str:
    """The whole HTML text."""
    environment = Environment(
        loader=PackageLoader("tessera.report", "template"),
        autoescape=select_autoescape(["html"]),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["symbols"] = symbols
    return environment.get_template("report.html").render(context(found, judge, title, command))


def symbols(text: Any) -> Markup:
    """Intervals quiet, ticks green and crosses red, K_max with its index."""
    safe = re.sub(r"(\[[^\]]*\])", r'<span class="ci">\1</span>', str(escape(text)))
    safe = safe.replace("✓", '<span class="yes-word">✓</span>').replace("✗", '<span class="no-word">✗</span>')
    return Markup(safe.replace("K_max", "<i>K</i><sub>max</sub>"))


def context(found: Findings, judge: Finder, title: str, command: str) -> dict[str, Any]:
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
        "samples": sample_rows(subjects, judge),
        "inks": {name: "#{:02x}{:02x}{:02x}".format(*color) for name, color in COLORS.items()},
        **how_far([subject for subject in subjects if subject.marks]),
        **why([subject for subject in subjects if subject.locality]),
        **both_together(points_of(found)),
        **records(found),
        **method(subjects),
    }


def how_far(judged: Sequence[Subject]) -> dict[str, Any]:
    return {
        "k_chart": k_chart(judged),
        "k_max": contents.k_max_sheet(judged) if judged else None,
        "counts": [contents.rows_sheet(subject) for subject in judged],
    }


def why(located: Sequence[Subject]) -> dict[str, Any]:
    return {
        "viewers": [one for subject in located if (one := tiles.viewer(subject))],
        "locality_chart": locality_chart(located),
        "locality": contents.locality_sheet(located) if located else None,
    }


def both_together(points: Sequence[Point]) -> dict[str, Any]:
    """Locality against length generalisation, where there are enough points."""
    correlation = contents.correlation(points)
    return {
        "correlation": correlation,
        "scatter_chart": scatter_chart(points, correlation),
        "points": contents.points_sheet(points) if correlation else None,
    }


def records(found: Findings) -> dict[str, Any]:
    """Sections about no single model."""
    return {
        "studies": contents.study_sheets(found),
        "theory": [(contents.theory_words(record), contents.theory_sheet(record)) for record in found.theory],
        "ideal": contents.ideal_sheet(found.ideal) if found.ideal else None,
        "dynamics": dynamics_charts(found.dynamics),
        "dynamics_runs": dynamics_runs(found.dynamics),
        "circles": [
            (circles_chart(record, n), contents.circles_sheet(record))
            for n, record in enumerate(found.circles)
        ],
    }


def method(subjects: Sequence[Subject]) -> dict[str, Any]:
    return {
        "facts": contents.facts_sheet(subjects) if subjects else None,
        "settings": contents.settings_sheet(subjects) if any(one.settings for one in subjects) else None,
        "judge_errors": judge_sheets([subject for subject in subjects if subject.marks]),
        "loss_chart": loss_chart(subjects),
    }


def sample_rows(subjects: Sequence[Subject], judge: Finder) -> list[SampleRow]:
    most = PICTURES_IN_A_ROW.get(len(subjects), PICTURES_AMONG_MANY)
    made = [tiles.tiles_of(subject, judge, most) for subject in subjects]
    ks = sorted({k for rows in made for k in rows})
    few = len(ks) <= len(tiles.HEADLINE_KS)
    return [SampleRow(k, [rows.get(k, []) for rows in made], few or k in tiles.HEADLINE_KS) for k in ks]


def k_chart(judged: Sequence[Subject]) -> str | None:
    if not judged:
        return None
    rule = "paper" if all("paper" in (subject.marks or {})["k_max"] for subject in judged) else "strict"
    alt = "Share of pictures with all asked places filled, by K, with 95% intervals, and K_max of each model"
    return figures.svg(figures.k_curves(judged, rule), "reach", alt)


def locality_chart(located: Sequence[Subject]) -> str | None:
    if not located:
        return None
    alt = "Conditional locality and the side of the pixel neighbourhood over noise levels"
    return figures.svg(figures.locality_curves(located), "locality", alt)


def scatter_chart(points: Sequence[Point], correlation: dict[str, Any] | None) -> str | None:
    if correlation is None:
        return None
    alt = "Length generalisation against conditional locality, one point for each snapshot"
    return figures.svg(figures.scatter(points, correlation), "scatter", alt)


def loss_chart(subjects: Sequence[Subject]) -> str | None:
    if not any(subject.log for subject in subjects):
        return None
    return figures.svg(figures.loss_curves(subjects), "loss", "Training loss over images seen")


def dynamics_charts(records: Sequence[dict[str, Any]]) -> list[tuple[str, str]]:
    """A chart with its caption for every sweep."""
    made = []
    for number, record in enumerate(record for record in records if "study" in record):
        draw = figures.phase if record["study"] == "phase" else figures.shares_by
        made.append((figures.svg(draw(record), f"dynamics{number}", caption(record)), caption(record)))
    return made


def circles_chart(record: dict[str, Any], number: int) -> str:
    alt = "Paths through concept space, and the error at the composition over training"
    return figures.svg(figures.circles(record["gaps"]), f"circles{number}", alt)


def caption(record: dict[str, Any]) -> str:
    if record["study"] == "phase":
        share = record["swing_by"]
        return f"Swing-by over {record['runs']:,} runs: {100 * share['share']:.0f}% rise before they fall."
    return f"Starts that rise, by {record['study']}; counted: {record['counted']}."


def dynamics_runs(records: Sequence[dict[str, Any]]) -> Sheet | None:
    runs = [record for record in records if "study" not in record]
    return contents.dynamics_sheet(runs) if runs else None


def judge_sheets(judged: Sequence[Subject]) -> list[Sheet]:
    """The judge's error at every size and arrangement that occurs."""
    kinds = {(subject.size or 64, "official" if subject.by_color else "study") for subject in judged}
    made = [contents.judge_sheet(*kind) for kind in sorted(kinds)]
    unique = {sheet.note: sheet for sheet in made if sheet}
    return list(unique.values())
