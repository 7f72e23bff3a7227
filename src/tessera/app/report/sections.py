"""ReportData become the tables and sentences of the page, section by section."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tessera.analysis.scatter import FEWEST as FEWEST_POINTS
from tessera.analysis.scatter import Point, scatter_record
from tessera.app.report.columns import ReportColumn, ReportData
from tessera.app.report.tables_html import HtmlTable, interval, mean, percent, without_empty_columns, yes_no
from tessera.app.report.verdict import Conclusion, Reach, look_of, reach_of, verdict
from tessera.errors import UserError
from tessera.evaluation.calibrate import calibration_rows, load_calibration
from tessera.records import StudyRecord, read_record
from tessera.scenes.vocabulary import LOCATIONS
from tessera.studies.clevr.tables import k_max_words, span_words, training_table

_NOT_MEASURED = "not measured"
LOOKS = {
    "local": "locally",
    "partly": "partly locally",
    "not": "not locally",
    "chance": "no more locally than chance",
    "unknown": "not measured",
}
_STUDY_TITLES = {
    "study-table1": "K_max of the study, beside the paper's Table 1",
    "study-table2": "K_max by which objects are labeled, beside the paper's Table 2",
    "study-lists": "K_max where locations are conditioned on as a list",
}

Record = dict[str, Any]


# --- the verdict --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Tessera:
    """One tile of the K row: a K, whether it succeeds, was shown in training, and is the paper's K_max."""

    k: int
    state: str  # yes, no or unasked
    seen: bool
    paper: bool
    words: str


@dataclass(frozen=True)
class _Card:
    """What the top of the page says of one subject."""

    name: str
    about: str
    verdict: Conclusion
    tiles: list[Tessera]
    figures: list[tuple[str, str, str]]  # a number, its interval, what it is
    reach: Reach | None


def card(subject: ReportColumn) -> _Card:
    reach = reach_of(subject.scores)
    said = verdict(subject.scores, subject.locality)
    return _Card(subject.name, subject.about, said, _k_tiles(subject, reach), _key_figures(subject, reach), reach)


def shared_doubts(cards: Sequence[_Card]) -> list[str]:
    """What is to be borne in mind of all of several subjects, said once."""
    if len(cards) < 2:
        return []
    return [doubt for doubt in cards[0].verdict.doubts if all(doubt in one.verdict.doubts for one in cards)]


def _k_tiles(subject: ReportColumn, reach: Reach | None) -> list[Tessera]:
    """A tile for each K the study knows."""
    if subject.scores is None or reach is None:
        return []
    rows = {row["k"]: row for row in subject.scores["rows"]}
    most = max(len(LOCATIONS) if not subject.by_color else 8, reach.max_conditions)
    return [tessera(subject, reach, k, rows.get(k)) for k in range(1, most + 1)]


def tessera(subject: ReportColumn, reach: Reach, k: int, row: Record | None) -> Tessera:
    state = "unprompted" if row is None else "yes" if row["succeeds"][reach.rule] else "no"
    share = f": {100 * row['all_found']['value']:.0f}% of {row['n']} images fill all locations" if row else ""
    outcome_words = {"yes": "succeeds", "no": "fails", "unprompted": "not evaluated"}[state]
    seen = subject.max_train_objects is not None and k <= subject.max_train_objects
    return Tessera(k, state, seen, subject.paper.k_max == k, f"K = {k} {outcome_words}{share}")


def _key_figures(subject: ReportColumn, reach: Reach | None) -> list[tuple[str, str, str]]:
    shown = []
    if reach is not None and reach.value is not None:
        span = f"[{reach.low}, {reach.high}]" if reach.low is not None else ""
        shown.append((str(reach.value), span, f"K_max, {reach.rule} rule"))
    if subject.paper.text:
        shown.append((subject.paper.text, "", "the paper's K_max"))
    found = (subject.locality or {}).get("conditional_locality")
    if found:
        span = f"[{found['low']:.2f}, {found['high']:.2f}]"
        shown.append((f"{found['value']:.2f}", span, "conditional locality"))
    side = _side_in_band(subject)
    if side is not None:
        shown.append((f"{side:.0f} px", f"of {subject.size}", "90% side of what moves a pixel"))
    return shown


def _side_in_band(subject: ReportColumn) -> float | None:
    """Mean 90% side over the levels of the band, or over all where there is none."""
    record = subject.locality
    if record is None or not record.get("levels"):
        return None
    found = record["conditional_locality"]
    low, high = (found["band"]["sigma_min"], found["band"]["sigma_max"]) if found else (0.0, float("inf"))
    inside = [level["side90"] for level in record["levels"] if low <= level["sigma"] <= high]
    return sum(inside) / len(inside) if inside else None


# --- how far ------------------------------------------------------------------------------------------------


def k_max_sheet(subjects: Sequence[ReportColumn]) -> HtmlTable:
    head = (
        "model", "training showed", "K_max, paper rule", "strict rule", "corrected for the detector", "the paper",
        "objects at K = 0", "the paper at 0",
    )  # fmt: skip
    rows = [_k_max_row(subject) for subject in subjects if subject.scores]
    note = (
        "Brackets are 95% intervals. Paper rule: beyond training, 7 of 8 images fill K − 2 locations and more than a "
        "quarter fill all. Strict rule: the lower bound of the share with all K filled is at least a half. The third "
        "number allows for what the detector itself overlooks or imagines."
    )
    return without_empty_columns(HtmlTable("How far each model composes", head, rows, note))


def _k_max_row(subject: ReportColumn) -> Sequence[str]:
    found = (subject.scores or {})["k_max"]
    rules = [reach_words(subject, rule) if rule in found else "training unknown" for rule in ("paper", "strict")]
    fair = None if _has_gaps(subject) else found.get("paper", found["strict"]).get("corrected")
    corrected = f"{fair['value']} [{fair['low']}, {fair['high']}]" if fair else ""
    seen = (
        ""
        if subject.max_train_objects is None
        else f"1–{subject.max_train_objects}"
        if subject.max_train_objects > 1
        else "1"
    )
    zero = (words(unprompted(subject)), words(subject.paper.at_zero))
    return (subject.name, seen, *rules, corrected, subject.paper.text, *zero)


def _has_gaps(subject: ReportColumn) -> bool:
    reach = reach_of(subject.scores)
    return reach is not None and reach.gaps


def reach_words(subject: ReportColumn, rule: str) -> str:
    """K_max with its interval; where some K were left out, the largest of those evaluated that was reached."""
    reach = reach_of(subject.scores, rule)
    if reach is None or not reach.gaps:
        return k_max_words((subject.scores or {})["k_max"][rule])
    return f"{reach.value} of those evaluated"


def unprompted(subject: ReportColumn) -> str | None:
    """Objects that nine in ten images show when the prompt is empty."""
    scores = subject.scores or {"rows": []}
    spans = [row["objects"]["typical"] for row in scores["rows"] if row["k"] == 0 and "objects" in row]
    span = spans[0] if spans else scores.get("at_zero")
    return span_words(span) if span else None


def rows_sheet(subject: ReportColumn) -> HtmlTable:
    """Every K: shares in percent with intervals, and what the detector alone gets right."""
    scores = subject.scores or {"rows": []}
    head = (
        "K", "n", "all filled, %", "no extra, %", "K − 2 filled, %", "found", "extra", "well-formed, %", "paper rule",
        "strict", "detector exact, %",
    )  # fmt: skip
    rows = [counted(row) for row in scores["rows"]]
    return without_empty_columns(HtmlTable(f"What was counted: {subject.name}", head, rows))


def counted(row: Record) -> Sequence[str]:
    prompted = row["k"] > 0
    detector = (row.get("detector") or {}).get("exact_count")
    return (
        str(row["k"]),
        str(row["n"]),
        percent(row["all_found"]) if prompted else "",
        percent(row.get("exact")) if prompted else "",
        percent(row["two_missing"]) if prompted else "",
        mean(row.get("found")),
        mean(row.get("extra")),
        percent(row.get("well_formed")),
        *(yes_no(row["succeeds"].get(rule)) for rule in ("paper", "strict")),
        percent(detector),
    )


# --- why ----------------------------------------------------------------------------------------------------


def locality_sheet(subjects: Sequence[ReportColumn]) -> HtmlTable:
    head = (
        "model", "looks", "K", "conditional locality", "shuffled locations", "p", "band of σ", "90% side, px",
        "measured on",
    )  # fmt: skip
    rows = [_locality_row(subject) for subject in subjects if subject.locality]
    note = (
        "Conditional locality is the share of a prompted location's response that its own condition causes: 1 is perfectly "
        "local, 1/K not at all. Shuffled locations is what chance gives. “Locally” means at least 70% of the way from 1/K "
        "to 1 over the whole interval, “not locally” less than 35%."
    )
    return HtmlTable("Locality of each model", head, rows, note, frozenset({1, 8}))


def _locality_row(subject: ReportColumn) -> Sequence[str]:
    record = subject.locality or {}
    found, plan = record["conditional_locality"], record["plan"]
    side = _side_in_band(subject)
    ways = {"generated": "its own samples", "truth": "noised scenes"}
    on = ways.get(plan.get("source"), "")
    if found is None:
        return (subject.name, "conditions lie nowhere", str(plan["k"]), "", "", "", "", f"{side or 0:.1f}", on)
    null, band = found["null"], found["band"]
    return (
        subject.name,
        LOOKS[look_of(record)],
        str(found["k"]),
        interval(found),
        f"{null['value']:.2f} [{null['low']:.2f}, {null['high']:.2f}]",
        f"{null['p_value']:.2g}",
        f"{band['sigma_min']:.2g}–{band['sigma_max']:.2g}",
        "" if side is None else f"{side:.1f}",
        f"{on}, {found['images']}",
    )


def correlation(points: Sequence[Point]) -> Record | None:
    """Of locality with length generalization; None where there are too few points, or all alike."""
    return scatter_record(points) if len(points) >= FEWEST_POINTS else None


def points_sheet(points: Sequence[Point]) -> HtmlTable:
    head = ("model", "images seen", "K_max − most in training", "conditional locality")
    rows = [(p.model, f"{p.images_seen:,}", f"{p.gained:+g}", f"{p.locality:.3f}" + _span_of(p)) for p in points]
    return HtmlTable("Length generalization against locality", head, rows)


def _span_of(point: Point) -> str:
    return "" if point.low is None else f" [{point.low:.3f}, {point.high:.3f}]"


# --- theory and dynamics ------------------------------------------------------------------------------------


def theory_sheet(record: Record) -> HtmlTable:
    rows = [
        (
            check["name"], yes_no(check["holds"]), yes_no(check["expected"]), f"{check['error']:.2g}",
            check["measure"], str(check["instances"]),
        )
        for check in record["checks"]
    ]  # fmt: skip
    return HtmlTable(
        "Statements of the theory, tried out",
        ("statement", "holds", "expected", "error", "meaning of the error", "instances"),
        rows,
        words=frozenset({4}),
    )


def theory_words(record: Record) -> str:
    checks = record["checks"]
    holding = sum(check["holds"] for check in checks)
    refuted = [check for check in checks if not check["holds"] and check["published"]]
    outcome = "all turn out as expected" if record["as_expected"] else "not all turn out as expected"
    more = f" {len(refuted)} of those that fail are in the paper as written." if refuted else ""
    return f"{len(checks)} statements were tried on random instances; {holding} hold, and {outcome}.{more}"


def ideal_sheet(records: Sequence[Record]) -> HtmlTable:
    """What closed-form denoisers draw: locality without any training."""
    head = ("closed form", "pixels", "scenes", "K_max, paper rule", "strict rule", "images for each K")
    rows = []
    for record in records:
        k_max = record["evaluated"]["k_max"]
        words = [k_max_words(k_max[rule]) if rule in k_max else "" for rule in ("paper", "strict")]
        rows.append((record["closed_form"], str(record["size"]), f"{record['scenes']:,}", *words, str(record["each"])))
    return HtmlTable("Denoisers that no one trained", head, rows)


def dynamics_sheet(records: Sequence[Record]) -> HtmlTable:
    head = ("model", "μ", "lowest error at", "of", "then up to", "at", "swing-by", "learned in order")
    rows = [
        (
            record["model"],
            ", ".join(f"{mu:g}" for mu in record["mu"]),
            f"{record['t_min']:.2f}",
            f"{record['e_min']:.3f}",
            known(record["e_max"], 3),
            known(record["t_max"], 2),
            yes_no(record["swing_by"]),
            " then ".join(map(str, record["order"])),
        )
        for record in records
    ]
    return HtmlTable("Learning the identity map", head, rows)


def known(value: float | None, digits: int) -> str:
    """A number, or nothing: a run whose error only falls has no peak."""
    return "" if value is None else f"{value:.{digits}f}"


def circles_sheet(record: Record) -> HtmlTable:
    """Swing-by in a diffusion model that never saw one of four corners, by the strength of a concept."""
    head = ("color gap", "trainings", "learned first", "error at the end", "rise", "by chance", "p", "swing-by")
    rows = [
        (
            f"{row['gap']:.3f}", str(row["seeds"]), str(row["first"]["concept"] or "neither"),
            f"{row['error'][-1]:.3f}", interval(row["rise"], ".3f"), f"{row['rise_by_chance']:.3f}",
            f"{row['p']:.3f}", yes_no(row["swing_by"]),
        )
        for row in record["gaps"]
    ]  # fmt: skip
    return HtmlTable("Swing-by in a diffusion model of circles", head, rows)


# --- how it was measured ------------------------------------------------------------------------------------


def detector_table(size: int, arrangement: str) -> HtmlTable | None:
    """The detector's own error at this size, by number of objects."""
    calibration = load_calibration()
    if calibration is None:
        return None
    try:
        found = calibration_rows(calibration, size, arrangement)
    except UserError:
        return None
    head = ("objects", "images", "exact count, %", "all right, %", "objects found, %", "false objects")
    cells = [
        (
            k, str(row["images"]), percent(row["exact_count"]), percent(row["clean"]),
            percent(row["location_recall"]), f"{row['false_objects']['value']:.3f}",
        )
        for k, row in found["rows"].items()
    ]  # fmt: skip
    where = f"{_pixels_words(found['size'])} pixels, objects at {found['arrangement']} locations"
    note = f"On rendered scenes outside the detector's training set, {where}."
    return HtmlTable("The detector's own error", head, cells, note)


def _pixels_words(size: str) -> str:
    """`64` as 64 × 64, `320x240` as 320 × 240."""
    width, _, height = size.partition("x")
    return f"{width} × {height or width}"


def settings_sheet(subjects: Sequence[ReportColumn]) -> HtmlTable:
    """All settings; where several models differ, those come first."""
    known = [subject for subject in subjects if subject.settings]
    flat = [dict(_flattened(subject.settings or {})) for subject in known]
    names = list(dict.fromkeys(name for one in flat for name in one))
    differ = [name for name in names if len({one.get(name, "") for one in flat}) > 1]
    order = [*differ, *(name for name in names if name not in differ)]
    rows = [(name, *(one.get(name, "") for one in flat)) for name in order]
    note = f"The first {len(differ)} differ between the models." if differ else ""
    columns = frozenset(range(1, len(known) + 1))
    return HtmlTable("Settings", ("setting", *(subject.name for subject in known)), rows, note, columns)


def _flattened(settings: Record, group: str = "") -> Iterator[tuple[str, str]]:
    for name, value in settings.items():
        if isinstance(value, dict):
            yield from _flattened(value, f"{group}{name}.")
        else:
            words = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
            yield f"{group}{name}", words


def facts_sheet(subjects: Sequence[ReportColumn]) -> HtmlTable:
    """Where each number comes from: weights, images, seeds, machine, versions."""
    rows = [("network", *(network(subject) for subject in subjects))]
    rows.append(("images seen in training", *(number(subject.facts.get("images_seen")) for subject in subjects)))
    rows.append(("running average", *(words(subject.facts.get("ema")) for subject in subjects)))
    rows.append(("counts", *(words(subject.scores_from.get("found")) for subject in subjects)))
    rows.append(("evaluation", *(_evaluation_words(subject) for subject in subjects)))
    rows.append(("counted on", *(machine(subject.scores_from.get("provenance")) for subject in subjects)))
    rows.append(("locality", *(plan_words(subject) for subject in subjects)))
    rows.append(("measured on", *(machine((subject.locality or {}).get("provenance")) for subject in subjects)))
    rows.append(("weights' sha256", *((subject.facts.get("sha256") or "")[:16] for subject in subjects)))
    kept = [row for row in rows if any(row[1:])]
    columns = frozenset(range(1, len(subjects) + 1))
    return HtmlTable("Where the numbers come from", ("", *(subject.name for subject in subjects)), kept, "", columns)


def network(subject: ReportColumn) -> str:
    if not subject.facts.get("network"):
        return ""
    size = f", {subject.size} × {subject.size} pixels" if subject.size else ""
    return f"{subject.facts['network']}, {subject.facts['weights']:,} weights{size}"


def number(value: int | None) -> str:
    return "" if value is None else f"{value:,}"


def words(value: Any) -> str:
    return "" if value is None else str(value)


def _evaluation_words(subject: ReportColumn) -> str:
    evaluation = subject.scores_from.get("evaluation")
    if not evaluation:
        rows = (subject.scores or {"rows": []})["rows"]
        return f"K = {rows[0]['k']} to {rows[-1]['k']}, {rows[-1]['n']} images each" if rows else ""
    ks = ", ".join(map(str, evaluation["ks"]))
    return f"K = {ks}; {evaluation['each']} images each, {evaluation['steps']} steps, seed {evaluation['seed']}"


def plan_words(subject: ReportColumn) -> str:
    plan = (subject.locality or {}).get("plan")
    if not plan:
        return ""
    how = f"{plan['levels']} of {plan['steps']} noise levels, " if "levels" in plan else ""
    images = f"{plan['images']} images, " if "images" in plan else ""
    return f"K = {plan['k']}, {images}{how}seed {plan['seed']}"


def machine(where: Record | None) -> str:
    if not where:
        return ""
    parts = [where.get("device"), where.get("date"), f"torch {where['torch']}" if where.get("torch") else None]
    commit = f"commit {where['commit']}" if where.get("commit") else None
    return ", ".join(part for part in (*parts, commit) if part)


# --- the study ----------------------------------------------------------------------------------------------


def study_sheets(found: ReportData) -> list[HtmlTable]:
    sheets = []
    for folder in found.studies:
        for name, title in _STUDY_TITLES.items():
            head, *rows = training_table(name, dict(read_record(folder / "study.json", StudyRecord)))
            sheets.append(HtmlTable(title, head, rows))
    return sheets
