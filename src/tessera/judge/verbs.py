"""The verbs `judge`, `judge explain` and `judge calibrate`."""

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import tyro
from rich.table import Column, Table

from tessera import console
from tessera.devices import DeviceName, pick_device
from tessera.errors import UserError
from tessera.experiments import Label
from tessera.files import atomic, make_folder, rounded, write_json
from tessera.images.pictures import parse_size, save_png, to_float, width_height
from tessera.judge.calibrate import (
    HELD_OUT,
    Arrangement,
    Held,
    calibrate_clevr,
    calibrate_rendered,
    calibration_rows,
    judge_error,
    load_calibration,
)
from tessera.judge.clutter import KINDS
from tessera.judge.explain import draw_explanation
from tessera.judge.finding import Finder, Finding
from tessera.judge.intervals import RESAMPLES, share_record
from tessera.judge.kmax import Counts, length_generalization
from tessera.judge.matching import CELL, Verdict, filled_at, match, match_colors
from tessera.judge.pictures_in import (
    EXPLAINED,
    MOST_NAMED,
    Asked,
    Pictures,
    Reading,
    asked_of,
    pictures_in,
    read_picture,
)
from tessera.judge.truth import ClevrTruth
from tessera.provenance import provenance
from tessera.sampler.asking import parse_colors, parse_ks, parse_places

NARROWEST: dict[str, Any] = {**console.NARROW, "padding": 0}
ENOUGH = 64  # pictures for each K, below which intervals of K_max are too narrow


def open_judge(weights: Path | None, device) -> Finder:
    from tessera.judge.judge import load_judge

    return load_judge(weights, device)


# --- judge --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class JudgePictures:
    """Count what pictures show of what was asked, for every K, and say how far the model length-generalises."""

    path: tyro.conf.Positional[Path]
    """What `tessera sample` wrote, a run folder, renders with a scenes.json, or folders k00, k01, ..."""
    places: str | None = None
    """Places asked of every picture, such as "0.65,0.65 0.25,0.65", where the folder does not say."""
    colors: str | None = None
    """Colours asked of every picture, such as red,blue, where the folder does not say."""
    seen_max: int | None = None
    """The most things training showed (default: as the folder says); the paper's rule needs it."""
    label: Label | None = None
    """Which things training told of (default: as the folder says, else all)."""
    require_proper: bool = False
    """Half-drawn things and blobs fill no place."""
    strict: bool = False
    """Stop at the first file that cannot be judged, instead of naming it and going on."""
    calibration: Path | None = None
    """The judge's own error, as `judge calibrate --out` wrote it (default: the shipped one, if it is this judge's)."""
    weights: Path | None = None
    """Folder of another judge, as `judge train` wrote it."""
    seed: int = 0
    """Seed of the bootstrap."""
    resamples: int = RESAMPLES
    """Bootstrap resamples for the interval of K_max."""
    verdicts: Path | None = None
    """Write one line of JSON per picture here: what was found, and why it does or does not do."""
    device: DeviceName = "auto"
    """Where to compute."""
    json: bool = False
    """Print one JSON object."""
    out: Path | None = None
    """Write the JSON object to this file too (in a run folder also to results/judge.json)."""

    def run(self) -> None:
        if self.resamples < 1:
            raise UserError(f"The bootstrap needs at least one resample, not {self.resamples}.")
        if self.places is not None and self.colors is not None:
            raise UserError("Give either --places or --colors.")
        device = pick_device(self.device)
        pictures = pictures_in(
            self.path,
            None if self.places is None else parse_places(self.places),
            None if self.colors is None else parse_colors(self.colors),
        )
        calibration = self.own_calibration()
        judge = open_judge(self.weights, device)
        reading = Reading(pictures, self.strict)
        judged = look_at(judge, reading, self.require_proper)
        record = self.record(pictures, reading, judged, calibration, device)
        self.write(record, judged)
        console.publish(record, self.json, None, study_table(record), *conclusions(record))

    def own_calibration(self) -> dict[str, Any] | None:
        """The error of this judge, asked in this way: the shipped one says nothing of another."""
        as_shipped = self.weights is None and not self.require_proper
        return load_calibration(self.calibration) if self.calibration or as_shipped else None

    def record(
        self,
        pictures: Pictures,
        reading: Reading,
        judged: "list[Judged]",
        calibration: dict[str, Any] | None,
        device,
    ) -> dict[str, Any]:
        groups: dict[int, list[Judged]] = {}
        for each in judged:
            groups.setdefault(each.asked.k, []).append(each)
        seen_max = self.seen_max if self.seen_max is not None else pictures.seen_max
        arrangement = "study" if pictures.at_study_places else "official"
        trust = trusted(calibration, judged[0].width, arrangement)
        study = length_generalization(
            [Counts.of(k, [each.verdict for each in group]) for k, group in groups.items()],
            seen_max,
            self.label or pictures.label or "all",
            judge_error(trust["rows"], pictures.by_color) if trust else None,
            self.seed,
            self.resamples,
        )
        for row in study["rows"]:
            group = groups[row["k"]]
            row["strange"] = share_record(sum(each.strangeness > 1 for each in group), len(group))
            row["judge"] = judge_row(trust, row["k"])
            row.update(wish_by_wish(group))
        return {
            "folder": str(self.path),
            "about": pictures.about,
            "pictures": len(judged),
            "skipped": reading.skipped,
            "cell": CELL,
            "require_proper": self.require_proper,
            **study,
            "judge": {"size": trust["size"], "arrangement": trust["arrangement"]} if trust else None,
            "notes": notes(study, trust, judged[0].width, seen_max),
            "provenance": provenance(device),
        }

    def write(self, record: dict[str, Any], judged: "list[Judged]") -> None:
        if self.out:
            make_folder(self.out.parent)
            write_json(self.out, record)
        if (self.path / "config.json").is_file() and (self.path / "results").is_dir():
            write_json(self.path / "results" / "judge.json", record)
        if self.verdicts:
            make_folder(self.verdicts.parent)
            with atomic(self.verdicts) as temporary:
                temporary.write_text("".join(json.dumps(each.record()) + "\n" for each in judged))


@dataclass(frozen=True)
class Judged:
    """One picture, what was asked of it, what was found, and the verdict."""

    asked: Asked
    findings: list[Finding]
    verdict: Verdict
    strangeness: float
    width: int

    def record(self) -> dict[str, Any]:
        asked = {"file": str(self.asked.file), "places": self.asked.places, "colors": self.asked.colors}
        found = {"findings": [finding._asdict() for finding in self.findings]}
        return {**asked, **asdict(self.verdict), "strangeness": self.strangeness, **found}


def wish_by_wish(group: Sequence[Judged]) -> dict[str, Any]:
    """How often each place (or colour) is filled, where all these pictures were asked for the same."""
    wishes = {each.asked.places or each.asked.colors for each in group}
    if len(wishes) > 1:
        return {}
    return {"wishes": list(wishes.pop()), "filled_at": filled_at([each.verdict for each in group])}


def look_at(judge: Finder, reading: Reading, require_proper: bool) -> list[Judged]:
    """Every picture that can be read, judged; none at all is an error."""
    judged: list[Judged] = []
    total = len(reading.pictures.asked)
    with console.progress("judging", total) as advance:
        for asked, images in reading.batches():
            found, strange = judge.look(images)
            for one, findings, odd in zip(asked, found, strange.tolist()):
                verdict = verdict_on(findings, one, require_proper)
                judged.append(Judged(one, findings, verdict, odd, images.shape[-1]))
            advance(len(asked))
    name_skipped(reading)
    if not judged:
        first = next(iter(reading.skipped.values()), "there are none.")
        raise UserError(f"None of the {total} pictures in {reading.pictures.folder} could be judged: {first}")
    return judged


def verdict_on(findings: Sequence[Finding], asked: Asked, require_proper: bool = False) -> Verdict:
    if asked.colors:
        return match_colors(findings, asked.colors, require_proper=require_proper)
    return match(findings, asked.aims, require_proper=require_proper)


def name_skipped(reading: Reading) -> None:
    for number, why in enumerate(reading.skipped.values()):
        if number == MOST_NAMED:
            console.say(f"... and {len(reading.skipped) - number} more files were left out.")
            return
        console.say(f"Left out: {why}")


def trusted(calibration: dict[str, Any] | None, width: int, arrangement: str) -> dict[str, Any] | None:
    """The part of the calibration that fits these pictures best."""
    if calibration is None:
        return None
    size, known, rows = calibration_rows(calibration, width, arrangement)
    return {"size": size, "arrangement": known, "rows": rows}


def judge_row(trust: dict[str, Any] | None, k: int) -> dict[str, Any] | None:
    """The judge's own error for one number of things, where it is known, beside the number it qualifies."""
    row = trust["rows"].get(str(k)) if trust else None
    names = ("exact_count", "clean", "place_recall", "false_things")
    return {name: row[name] for name in names} if row else None


def notes(study: dict[str, Any], trust: dict[str, Any] | None, width: int, seen_max: int | None) -> list[str]:
    """What a reader of the numbers should know."""
    few = [row["k"] for row in study["rows"] if row["n"] < ENOUGH]
    strange = sum(row["strange"]["count"] for row in study["rows"])
    said = {
        f"Fewer than {ENOUGH} pictures for K = {', '.join(map(str, few))}: too few for K_max to be sure.": few,
        f"{strange} pictures are not scenes the judge knows; see `strange`.": strange,
        "It is not known how many things training showed, so the paper's rule is left out (--seen-max).": (
            seen_max is None
        ),
        "The judge has no calibration here, so its own error is not corrected for.": trust is None,
    }
    if trust and int(trust["size"].split("x")[0]) != width:
        said[f"The judge was calibrated at {trust['size']} pixels, these pictures are {width} wide."] = True
    return [sentence for sentence, applies in said.items() if applies]


def study_table(record: dict[str, Any]) -> Table:
    """One row per K."""
    rules = list(record["k_max"])
    heads = ("K", "n", "all filled", "no extra", "K-2 filled", "found", "extra", "proper", *rules, "judge")
    title = f"{record['pictures']} pictures; shares in % with 95% intervals; judge: its exact counts"
    table = Table(*heads, title=title, **NARROWEST)
    for row in record["rows"]:
        shares = [shown_share(row[name]) if row["k"] else "" for name in ("all_filled", "clean", "near")]
        table.add_row(
            str(row["k"]),
            str(row["n"]),
            *shares,
            f"{row['found']['mean']:.2f}",
            f"{row['extra']['mean']:.2f} ({spoken_range(row['extra']['typical'])})",
            percent(row["proper"]["share"]),
            *({True: "yes", False: "no", None: ""}[row["succeeds"][rule]] for rule in rules),
            percent(row["judge"]["exact_count"]["share"]) if row["judge"] else "",
        )
    return table


def shown_share(record: dict[str, Any]) -> str:
    """`88 (77-95)`, in percent."""
    if record["share"] is None:
        return ""
    return f"{100 * record['share']:.0f} ({100 * record['low']:.0f}-{100 * record['high']:.0f})"


def percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.1f}"


def spoken_range(ends: Sequence[int]) -> str:
    return str(ends[0]) if ends[0] == ends[1] else f"{ends[0]}-{ends[1]}"


def k_max_in_words(rule: str, found: dict[str, Any]) -> str:
    if found["value"] is None:
        return f"K_max by the {rule} rule cannot be told: K = 1 was not asked for."
    more = " or more" if found["at_least"] else ""
    said = f"K_max by the {rule} rule: {found['value']}{more}, 95% interval {found['low']}-{found['high']}"
    if "corrected" in found:
        fair = found["corrected"]
        said += (
            f"; corrected for the judge's own error {fair['value']} ({fair['low']}-{fair['high']}), "
            f"and its error alone allows {spoken_range(found['judge_range'])}"
        )
    return said + "."


def conclusions(record: dict[str, Any]) -> list[str]:
    """K_max in words, and what to bear in mind."""
    lines = [k_max_in_words(rule, found) for rule, found in record["k_max"].items()]
    for row in record["rows"]:
        if row["k"] == 0:
            lines.append(f"With nothing asked, {spoken_range(row['things']['typical'])} things appear.")
    return lines + what_is_missed(record["rows"]) + record["notes"]


def what_is_missed(rows: Sequence[dict[str, Any]]) -> list[str]:
    """What is missing most often, at the first K that fails for want of something."""
    for row in rows:
        fewest = min(row.get("filled_at", []), default=row["n"])
        if row["succeeds"]["strict"] is False and fewest < row["n"]:
            wish = row["wishes"][row["filled_at"].index(fewest)]
            what = f"{wish} is" if isinstance(wish, str) else f"a thing at ({wish[0]:.2f}, {wish[1]:.2f}) is"
            return [f"At K = {row['k']}, {what} missed most often: {fewest} of {row['n']} pictures show it."]
    return []


# --- judge explain ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Explain:
    """Show what the judge sees in one picture: boxes, words, and the verdict on what was asked."""

    image: tyro.conf.Positional[Path]
    """The picture; what was asked is taken from an asked.json beside it, if there is one."""
    places: str | None = None
    """Places asked for, such as "0.65,0.65 0.25,0.65"."""
    colors: str | None = None
    """Colours asked for, such as red,blue."""
    require_proper: bool = False
    """Half-drawn things and blobs fill no place."""
    weights: Path | None = None
    """Folder of another judge, as `judge train` wrote it."""
    device: DeviceName = "cpu"
    """Where to compute."""
    json: bool = False
    """Print one JSON object."""
    out: Path | None = None
    """The PNG to write (default: NAME-explained.png beside the picture)."""

    def run(self) -> None:
        device = pick_device(self.device)
        picture = read_picture(self.image)
        asked = self.asked()
        found, strange = open_judge(self.weights, device).look(to_float(picture)[None])
        verdict = verdict_on(found[0], asked, self.require_proper) if asked else None
        strangeness = strange.tolist()[0]
        out = self.out or self.image.with_name(f"{self.image.stem}{EXPLAINED}")
        if out.resolve() == self.image.resolve():
            raise UserError("The explanation would replace the picture it explains; choose another --out.")
        make_folder(out.parent)
        save_png(out, draw_explanation(picture, found[0], verdict, asked.aims if asked else (), strangeness))
        record = {
            "image": str(self.image),
            "findings": [finding._asdict() for finding in found[0]],
            "verdict": asdict(verdict) if verdict else None,
            "strangeness": strangeness,
            "drawn": str(out),
            "provenance": provenance(device),
        }
        reason = verdict.reason if verdict else seen_in_words(found[0])
        console.publish(record, self.json, None, f"{reason}; see {out}.")

    def asked(self) -> Asked | None:
        if self.places is not None and self.colors is not None:
            raise UserError("Give either --places or --colors.")
        if self.places is not None:
            return Asked(self.image, parse_places(self.places))
        if self.colors is not None:
            return Asked(self.image, colors=parse_colors(self.colors))
        return asked_of(self.image)


def seen_in_words(findings: Sequence[Finding]) -> str:
    things = {0: "nothing found", 1: "1 thing found"}
    return things.get(len(findings), f"{len(findings)} things found")


# --- judge calibrate ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Calibrate:
    """Measure the judge's own error, for every number of things, on held-out scenes whose truth is known."""

    per_k: int = 2000
    """Rendered scenes for each number of things."""
    k: str = "0-12"
    """Numbers of things, such as 0-12 or 1,3,6."""
    size: tuple[str, ...] = ("64",)
    """Sizes of the pictures, such as 32 64 128 or 320x240."""
    spacing: tuple[Arrangement, ...] = ("official", "study")
    """official (relaxed beyond 10 things), relaxed, or at the study's places."""
    clevr: Path | None = None
    """Folder of real renders with a scene file, such as CLEVR_v1.0, to calibrate on as well."""
    split: str | None = None
    """Split of that folder, such as val."""
    clevr_size: str | None = None
    """Reduce real renders to this size first, such as 64 (default: as they are)."""
    most: int | None = None
    """Look at no more than so many real renders."""
    seed: int = HELD_OUT
    """Stream of scenes; training never uses the default one."""
    batch: int = 128
    """Pictures rendered and judged at once."""
    weights: Path | None = None
    """Folder of another judge, as `judge train` wrote it."""
    device: DeviceName = "auto"
    """Where to compute."""
    json: bool = False
    """Print one JSON object."""
    out: Path | None = None
    """Write the JSON object to this file too."""

    def run(self) -> None:
        began = time.perf_counter()
        if self.per_k < 0 or self.batch < 1:
            raise UserError("--per-k cannot be negative, and --batch must be at least 1.")
        device = pick_device(self.device)
        truth = ClevrTruth(self.clevr, self.split) if self.clevr else None
        judge = open_judge(self.weights, device)
        record: dict[str, Any] = {"cell": CELL, "per_k": self.per_k, "seed": self.seed}
        record["sizes"] = self.rendered(judge, device) if self.per_k else {}
        record["clevr"] = self.real(judge, truth, device) if truth else None
        if not record["sizes"] and not record["clevr"]:
            raise UserError("There is nothing to calibrate on: give --per-k or --clevr.")
        record |= {"seconds": time.perf_counter() - began, "provenance": provenance(device)}
        console.publish(rounded(record), self.json, self.out, *calibration_tables(record))

    def rendered(self, judge: Finder, device) -> dict[str, Any]:
        ks, sizes = parse_ks(self.k), [parse_size(words) for words in self.size]
        sets = len(self.spacing) * len(ks) + len(KINDS)
        with console.progress("calibrating", len(sizes) * sets * self.per_k) as advance:
            return {
                name: calibrate_rendered(
                    judge, Held(self.per_k, size, self.seed, self.batch, device), ks, self.spacing, advance
                )
                for name, size in zip(self.size, sizes)
            }

    def real(self, judge: Finder, truth: ClevrTruth, device) -> dict[str, Any]:
        size = width_height(parse_size(self.clevr_size)) if self.clevr_size else None
        with console.progress(
            "calibrating on real renders", min(len(truth), self.most or len(truth))
        ) as advance:
            found = calibrate_clevr(judge, truth, size, self.most, advance, device)
        return {
            "folder": self.clevr.name if self.clevr else None,
            "size": self.clevr_size or "as rendered",
            **found,
        }


def calibration_tables(record: dict[str, Any]) -> list[Table]:
    tables = []
    for size, sets in record["sizes"].items():
        for name in [name for name in sets if name != "nothing"]:
            tables.append(error_table(f"{name} places, {size} pixels", sets[name]))
        tables.append(nothing_table(size, sets["nothing"]))
    if record["clevr"]:
        tables.append(error_table(f"real renders in {record['clevr']['folder']}", record["clevr"]))
    return tables


def error_table(title: str, found: dict[str, Any]) -> Table:
    looks = ("color", "shape", "size", "material")
    exact = Column("exact count", no_wrap=True)
    heads = ("K", "n", exact, "bias", "recall", "prec.", "centre", "color", "shape", "size", "mat.")
    table = Table(
        *heads, title=f"{title}: shares in %, 99% of centre errors within so many cells", **NARROWEST
    )
    for name, row in [*found["rows"].items(), *found["pooled"].items()]:
        shares = [row[key]["share"] for key in ("place_recall", "place_precision")]
        counted, q99 = row["exact_count"], row["center_error_cells"]["q99"]
        table.add_row(
            name,
            str(row["pictures"]),
            f"{percent(counted['share'])} ({percent(counted['low'])}-{percent(counted['high'])})",
            f"{row['count_bias']['mean']:+.3f}",
            *map(percent, shares),
            "" if q99 is None else f"{q99:.2f}",
            *(percent(row[name]["share"]) for name in looks),
        )
    return table


def nothing_table(size: str, kinds: dict[str, Any]) -> Table:
    heads = ("nothing to find", "n", "false things", "any", "warned", "any, not warned")
    table = Table(*heads, title=f"pictures without things, {size} pixels: per picture, and in %", **NARROWEST)
    for name, row in kinds.items():
        shares = [shown_share(row[key]) for key in ("any_thing", "strange", "things_without_warning")]
        table.add_row(name, str(row["pictures"]), f"{row['false_things']['mean']:.4f}", *shares)
    return table
