"""ReportData become the tables and sentences of the page, section by section."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tessera.app.report.columns import ReportColumn, ReportData
from tessera.app.report.tables_html import HtmlTable, in_words
from tessera.app.report.verdict import Reach, degree_of, reach_of, verdict
from tessera.errors import UserError
from tessera.evaluation.calibrate import calibration_rows, load_calibration
from tessera.records import StudyRecord, read_record
from tessera.rows import plural
from tessera.scenes.vocabulary import COLOR_NAMES, LOCATIONS
from tessera.studies.clevr.tables import k_max_words, span_words, training_table
from tessera.studies.swingby.diffusion import swingby_rows

_DEGREES = {
    "local": "local",
    "partly": "partly local",
    "not": "not local",
    "chance": "no more local than chance",
    "unknown": "not measured",
}
_STUDY_TITLES = {
    "study-table1": "K_max of the study, beside the paper's Table 1",
    "study-table2": "K_max by which objects are labeled, beside the paper's Table 2",
    "study-lists": "K_max where locations are conditioned on as a list",
}

Record = dict[str, Any]


# --- the verdict --------------------------------------------------------------------------------------------


def card(subject: ReportColumn) -> Record:
    """What the top of the page says of one subject."""
    reach = reach_of(subject.scores)
    most = max(len(COLOR_NAMES if subject.by_color else LOCATIONS), reach.max_conditions) if reach else 0
    return {
        "subject": subject,
        "verdict": verdict(subject.scores, subject.locality),
        "reach": reach,
        "ks": range(1, most + 1),  # all that the study knows
        "rows": {row["k"]: row for row in subject.rows},
        "local": (subject.locality or {}).get("conditional_locality"),
        "side": _side_in_band(subject),
    }


def shared_doubts(cards: Sequence[Record]) -> list[str]:
    """What is to be borne in mind of all of several subjects, said once."""
    if len(cards) < 2:
        return []
    return [doubt for doubt in cards[0]["verdict"].doubts if all(doubt in one["verdict"].doubts for one in cards)]


def _side_in_band(subject: ReportColumn) -> float | None:
    """Mean 90% side over the levels of the band, or over all where there is none."""
    record = subject.locality or {}
    found = record.get("conditional_locality")
    band = found["band"] if found else {"sigma_min": 0.0, "sigma_max": float("inf")}
    levels = record.get("levels") or []
    inside = [level["side90"] for level in levels if band["sigma_min"] <= level["sigma"] <= band["sigma_max"]]
    return sum(inside) / len(inside) if inside else None


# --- how far ------------------------------------------------------------------------------------------------


def k_max_sheet(subjects: Sequence[ReportColumn]) -> HtmlTable:
    note = (
        "Brackets are 95% intervals. Paper rule: beyond training, 7 of 8 images fill K − 2 locations and more than a "
        "quarter fill all. Strict rule: the lower bound of the share with all K filled is at least a half. The third "
        "number corrects for objects that the detector misses or falsely detects."
    )
    rows = [_k_max_row(subject) for subject in subjects]
    return HtmlTable.of("How far each model composes", rows, {name: name for name in rows[0]}, note)


def _k_max_row(subject: ReportColumn) -> Record:
    found, reach = (subject.scores or {})["k_max"], reach_of(subject.scores)
    fair = None if reach and reach.gaps else found.get("paper", found["strict"]).get("corrected")
    most = subject.max_train_objects
    return {
        "model": subject.name,
        "training range": "" if most is None else span_words((1, most)),
        "K_max, paper rule": reach_words(subject, "paper") if "paper" in found else "training unknown",
        "strict rule": reach_words(subject, "strict"),
        "corrected for the detector": _k_max_of(fair, reach) if fair else "",
        "the paper": subject.paper.text,
        "objects at K = 0": unprompted(subject),
        "the paper at 0": subject.paper.at_zero,
    }


def reach_words(subject: ReportColumn, rule: str) -> str:
    """K_max with its interval; where some K were left out, the largest of those evaluated that was reached."""
    reach = reach_of(subject.scores, rule)
    if reach is None or not reach.gaps:
        return _k_max_of((subject.scores or {})["k_max"][rule], reach)
    return f"{reach.value} of those evaluated"


def _k_max_of(found: Mapping[str, Any], reach: Reach | None) -> str:
    return str(found["value"]) if reach and reach.n == 1 else k_max_words(found)


def unprompted(subject: ReportColumn) -> str | None:
    """Objects that nine in ten images show when the prompt is empty."""
    spans = [row["objects"]["typical"] for row in subject.rows if row["k"] == 0 and "objects" in row]
    found = spans[0] if spans else (subject.scores or {}).get("at_zero")
    return span_words(found) if found else None


_COUNTED = {
    "K": "k", "n": "n", "all filled, %": "all_found:%", "no extra, %": "exact:%", "K − 2 filled, %": "two_missing:%",
    "found": "found:.2f", "extra": "extra:.2f", "well-formed, %": "well_formed:%", "paper rule": "succeeds.paper",
    "strict": "succeeds.strict", "detector exact, %": "detector.exact_count:%",
}  # fmt: skip


def rows_sheet(subject: ReportColumn) -> HtmlTable:
    """Every K: shares in percent with intervals, and what the detector alone gets right."""
    of_locations = dict.fromkeys(("all_found", "exact", "two_missing"))
    rows = (row if row["k"] else row | of_locations for row in subject.rows)  # an empty prompt has no locations
    return HtmlTable.of(f"What was counted: {subject.name}", rows, _COUNTED)


# --- why ----------------------------------------------------------------------------------------------------


_LOCALITY = {
    "model": "name", "influence of conditions": "degree", "K": "plan.k", "conditional locality": "found:.2f",
    "shuffled locations": "found.null:.2f", "p": "found.null.p_value:.2g", "band of σ": "band",
    "90% side, px": "side:.1f", "measured on": "on",
}  # fmt: skip


def locality_sheet(subjects: Sequence[ReportColumn]) -> HtmlTable:
    note = (
        "Conditional locality is the share of a prompted location's response that its own condition causes: 1 is perfectly "
        "local, 1/K not at all. Shuffled locations is what chance gives. “Local” means at least 70% of the way from 1/K "
        "to 1 over the whole interval, “not local” less than 35%."
    )
    rows = [_locality_row(subject) for subject in subjects]
    return HtmlTable.of("Locality of each model", rows, _LOCALITY, note, ("influence of conditions", "measured on"))


def _locality_row(subject: ReportColumn) -> Record:
    record = subject.locality or {}
    found, plan = record["conditional_locality"], record["plan"]
    on = {"generated": "its own samples", "truth": "noised scenes"}.get(plan.get("source"), "")
    row = {"name": subject.name, "plan": plan, "found": found, "side": _side_in_band(subject)}
    if found is None:
        return {**row, "degree": "conditions have no location", "on": on}
    band = "{sigma_min:.2g}–{sigma_max:.2g}".format(**found["band"])
    return {**row, "degree": _DEGREES[degree_of(record)], "band": band, "on": f"{on}, {found['images']}"}


def points_sheet(rows: Sequence[Mapping[str, Any]]) -> HtmlTable:
    shown = ({**row, "found": {"value": row["locality"], **row}} for row in rows)
    columns = {
        "model": "model", "images seen": "images_seen:,", "K_max − most in training": "gained:+g",
        "conditional locality": "found:.3f",
    }  # fmt: skip
    return HtmlTable.of("Length generalization against locality", shown, columns)


# --- theory and dynamics ------------------------------------------------------------------------------------


def theory_sheet(record: Record) -> HtmlTable:
    columns = {
        "statement": "name", "holds": "holds", "expected": "expected", "error": "error:.2g",
        "meaning of the error": "measure", "instances": "instances",
    }  # fmt: skip
    title = "Statements of the theory, tried out"
    return HtmlTable.of(title, record["checks"], columns, words=("meaning of the error",))


def ideal_sheet(records: Sequence[Record]) -> HtmlTable:
    """What closed-form denoisers draw: locality without any training."""
    columns = {
        "closed form": "closed_form", "pixels": "size", "scenes": "scenes:,",
        "K_max, paper rule": "evaluated.k_max.paper:d", "strict rule": "evaluated.k_max.strict:d",
        "images for each K": "each",
    }  # fmt: skip
    return HtmlTable.of("Denoisers that no one trained", records, columns)


def dynamics_sheet(records: Sequence[Record]) -> HtmlTable:
    columns = {
        "model": "model", "μ": "mu:g", "lowest error at": "t_min:.2f", "of": "e_min:.3f", "then up to": "e_max:.3f",
        "at": "t_max:.2f", "swing-by": "swing_by", "learned in order": "order",
    }  # fmt: skip
    return HtmlTable.of("Learning the identity map", records, columns)


def circles_sheet(record: Record) -> HtmlTable:
    """Swing-by in a diffusion model that never saw one of four corners, by the strength of a concept."""
    head, *rows = swingby_rows(record["gaps"])
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
    columns = {
        "objects": "k", "images": "images", "exact count, %": "exact_count:%", "all right, %": "clean:%",
        "objects found, %": "location_recall:%", "false objects": "false_objects.value:.3f",
    }  # fmt: skip
    rows = ({**row, "k": k} for k, row in found["rows"].items())
    width, _, height = found["size"].partition("x")
    where = f"{width} × {height or width} pixels, objects at {found['arrangement']} locations"
    note = f"On rendered scenes outside the detector's training set, {where}."
    return HtmlTable.of("The detector's own error", rows, columns, note)


def settings_sheet(subjects: Sequence[ReportColumn]) -> HtmlTable:
    """All settings; where several models differ, those come first."""
    known = [subject for subject in subjects if subject.settings]
    flat = [dict(_flattened(subject.settings or {})) for subject in known]
    names = list(dict.fromkeys(name for one in flat for name in one))
    same = [len({one.get(name, "") for one in flat}) == 1 for name in names]
    order = sorted(range(len(names)), key=same.__getitem__)
    note = f"The first {same.count(False)} differ between the models." if not all(same) else ""
    return _side_by_side("Settings", "setting", known, flat, [names[n] for n in order], note)


def _side_by_side(
    title: str, head: str, subjects: Sequence[ReportColumn], facts: list[dict[str, str]], names: list[str], note=""
) -> HtmlTable:
    """A row for each fact, a column for each model."""
    rows = [(name, *(one.get(name, "") for one in facts)) for name in names]
    columns = frozenset(range(1, len(subjects) + 1))
    return HtmlTable(title, (head, *(subject.name for subject in subjects)), rows, note, columns)


def _flattened(settings: Record, group: str = "") -> Iterator[tuple[str, str]]:
    for name, value in settings.items():
        if isinstance(value, dict):
            yield from _flattened(value, f"{group}{name}.")
        else:
            yield f"{group}{name}", ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def facts_sheet(subjects: Sequence[ReportColumn]) -> HtmlTable:
    """Where each number comes from: weights, images, seeds, machine, versions."""
    facts = [_facts(subject) for subject in subjects]
    names = [name for name in facts[0] if any(one[name] for one in facts)]
    return _side_by_side("Where the numbers come from", "", subjects, facts, names)


def _facts(subject: ReportColumn) -> dict[str, str]:
    facts, where = subject.facts, subject.scores_from
    return {
        "network": _network(subject),
        "images seen in training": in_words(facts.get("images_seen"), ","),
        "running average": in_words(facts.get("ema")),
        "counts": in_words(where.get("found")),
        "evaluation": _evaluation_words(subject),
        "counted on": _machine(where.get("provenance")),
        "locality": _plan_words(subject),
        "measured on": _machine((subject.locality or {}).get("provenance")),
        "weights' sha256": (facts.get("sha256") or "")[:16],
    }


def _network(subject: ReportColumn) -> str:
    if not subject.facts.get("network"):
        return ""
    size = f", {subject.size} × {subject.size} pixels" if subject.size else ""
    return f"{subject.facts['network']}, {subject.facts['weights']:,} weights{size}"


def _evaluation_words(subject: ReportColumn) -> str:
    evaluation, rows = subject.scores_from.get("evaluation"), subject.rows
    if evaluation:
        images = f"{plural(evaluation['each'], 'image')} each, {plural(evaluation['steps'], 'step')}"
        return f"K = {', '.join(map(str, evaluation['ks']))}; {images}, seed {evaluation['seed']}"
    return f"K = {rows[0]['k']} to {rows[-1]['k']}, {plural(rows[-1]['n'], 'image')} each" if rows else ""


def _plan_words(subject: ReportColumn) -> str:
    plan = (subject.locality or {}).get("plan")
    if not plan:
        return ""
    images = f"{plural(plan['images'], 'image')}, " if "images" in plan else ""
    how = f"{plan['levels']} of {plural(plan['steps'], 'noise level')}, " if "levels" in plan else ""
    return f"K = {plan['k']}, {images}{how}seed {plan['seed']}"


def _machine(where: Mapping[str, Any] | None) -> str:
    where = where or {}
    versions = [f"{name} {where[name]}" for name in ("torch", "commit") if where.get(name)]
    return ", ".join(part for part in (where.get("device"), where.get("date"), *versions) if part)


# --- the study ----------------------------------------------------------------------------------------------


def study_sheets(found: ReportData) -> list[HtmlTable]:
    sheets = []
    for folder in found.studies:
        for name, title in _STUDY_TITLES.items():
            head, *rows = training_table(name, dict(read_record(folder / "study.json", StudyRecord)))
            sheets.append(HtmlTable(title, head, rows))
    return sheets
