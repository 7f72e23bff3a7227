"""Write the tables of README and docs from results/*.json, so that no number is typed.

    python tools/write_tables.py [--check]

A document holds pairs of markers, `<!-- results:NAME -->` and `<!-- /results -->`; what stands between them is
rewritten. What has no record is shown as not measured.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from _common import program
from doc_tables.features import FEATURE_TABLES
from doc_tables.locality import LOCALITY_TABLES, scatter_headline
from doc_tables.study import STUDY_TABLES, headline
from doc_tables.text_to_image import SDXL_TABLES
from doc_tables.theory import THEORY_TABLES
from tessera.config import current_settings, settings_for
from tessera.console import say
from tessera.errors import UserError
from tessera.files import atomic, read_json
from tessera.records import current_words
from tessera.rows import Rows, or_not_run
from tessera.studies.swingby.diffusion import swingby_rows

NOT_MEASURED = "not measured"
MARKED = re.compile(r"(<!-- results:([\w-]+) -->\n)(.*?)(<!-- /results -->)", re.DOTALL)
GIB = 2**30
MACHINES = {"cpu": "a CPU", "h200": "one H200"}  # always listed, whether measured or not

Record = dict[str, Any]


class Results:
    """The records of a folder by name; one that is not there is None."""

    def __init__(self, folder: Path):
        self.folder = Path(folder)

    def one(self, name: str) -> Record | None:
        path = self.folder / f"{name}.json"
        return current_words(read_json(path)) if path.is_file() else None

    def several(self, pattern: str) -> list[Record]:
        """All records whose file matches; a file may hold a list of them."""
        found = [current_words(read_json(path)) for path in sorted(self.folder.glob(f"{pattern}.json"))]
        return [record for each in found for record in (each if isinstance(each, list) else [each])]


# --- the renderer -------------------------------------------------------------------------------------------


def render_accuracy(results: Results) -> Rows:
    """Both qualities, over all reference images and over the half that no constant was fitted to."""
    rows: Rows = [("quality", "images", "PSNR, dB", "SSIM", "mask IoU", "center error, px")]
    for quality in ("true", "fast"):
        for suffix, which in (("", "all"), ("-held-out", "held out")):
            record = results.one(f"render-accuracy-{quality}{suffix}")
            rows.append((quality, *accuracy_cells(record, which)))
    return rows


def render_accuracy_by_kind(results: Results) -> Rows:
    """Quality `true`, by the kind of scene."""
    record = results.one("render-accuracy-true")
    rows: Rows = [("scenes", "PSNR, dB", "worst PSNR", "SSIM", "worst SSIM")]
    for kind, measured in (record or {"kinds": {}})["kinds"].items():
        psnr, ssim = measured["psnr"], measured["ssim"]
        rows.append(
            (
                f"{kind} ({psnr['n']})",
                with_interval(psnr, ".1f"),
                f"{psnr['min']:.1f}",
                with_interval(ssim, ".3f"),
                f"{ssim['min']:.3f}",
            )
        )
    return rows if record else [*rows, unknown("all", rows)]


def accuracy_cells(record: Record | None, which: str) -> Sequence[str]:
    if record is None:
        return (which, *[NOT_MEASURED] * 4)
    measured = record["all"]
    return (
        f"{which} ({record['images']})",
        with_interval(measured["psnr"], ".1f"),
        with_interval(measured["ssim"], ".3f"),
        with_interval(measured["mask_iou"], ".4f"),
        f"{measured['center_error']['max']:.1g} at most",
    )


def render_speed(results: Results) -> Rows:
    """One row per machine, size and quality; the machines we always ask about are shown even if not measured."""
    rows: Rows = [("machine", "images", "quality", "images/s", "scenes drawn/s", "peak memory")]
    for location, sizes in (("cpu", (64,)), ("h200", (64, 128))):
        records = results.several(f"bench-render-{location}*")
        known = {record["size"][0] for record in records}
        for record in sorted(records, key=lambda record: record["size"]):
            rows += [speed_row(record, quality) for quality in record["quality"]]
        rows += [unknown(location, rows, f"{size}x{size}") for size in sizes if size not in known]
    return rows


def speed_row(record: Record, quality: str) -> Sequence[str]:
    measured = record["quality"][quality]
    return (
        record["provenance"]["device"],
        f"{record['size'][0]}x{record['size'][1]}, {record['objects']} objects",
        quality,
        f"{measured['images_per_second']['median']:,.0f}",
        f"{record['scene_drawing']['scenes_per_second']['median']:,.0f}",
        f"{measured['peak_memory_bytes'] / GIB:.2f} GiB",
    )


# --- training and denoising ---------------------------------------------------------------------------------


def training_speed(results: Results) -> Rows:
    heads = ("what", "machine", "precision", "weights", "batch", "images/s", "without rendering")
    rows: Rows = [(*heads, "hours for all of it", "peak memory")]
    records = results.several("bench-train-*")
    for record in records:
        rows.append(
            (
                training_name(record),
                record["provenance"]["device"],
                ", ".join([record["precision"], *execution(record)]),
                f"{record['weights']:,}",
                str(record["settings"]["training"]["batch"]),
                f"{record['images_per_second']['value']:,.0f}",
                f"{record['images_per_second_without_rendering']['value']:,.0f}",
                f"{record['gpu_hours_for_total']:.2g}",
                in_gib(record["peak_memory_bytes"]),
            )
        )
    known = {record["settings"]["preset"] for record in records if not changes(record)}
    return [*rows, *(unknown(f"exp1 {preset}", rows) for preset in ("small", "paper") if preset not in known)]


def execution(record: Record) -> list[str]:
    """How steps were executed, unless by plain PyTorch; records before there were strategies say `compiled`."""
    strategy = record.get("strategy", "compiled" if record.get("compiled") else "eager")
    return [] if strategy == "eager" else [strategy]


def training_strategies(results: Results) -> Rows:
    """What each fast path of training gains, on and off in one run."""
    rows: Rows = [("fast path", "training", "machine", "images/s with", "without", "times as fast")]
    for record in results.several("bench-strategies-*"):
        for path, entry in record["paths"].items():
            if "gain" in entry:
                speeds = [f"{entry['images_per_second'][side]['value']:,.0f}" for side in ("with", "without")]
                gain = with_interval({"mean": entry["gain"]["value"], **entry["gain"]}, ".2f")
                rows.append((path, training_name(record), record["provenance"]["device"], *speeds, gain))
    return or_not_run(rows)


NETWORKS = {"edm2": "EDM2, global", "localconv": "LocalConv", "patchwise": "Patchwise, all cells"}


def denoise_speed(results: Results) -> Rows:
    """One call of each network on the same images."""
    rows: Rows = [("network", "machine", "weights", "ms per call", "against global")]
    for record in results.several("bench-denoise*"):
        for kind, found in record["networks"].items():
            took = f"{1e3 * found['seconds']['value']:.0f} ({record['batch']} images)"
            rows.append((NETWORKS[kind], where(record), f"{found['weights']:,}", took, f"{found['ratio']:.2f} x"))
    return or_not_run(rows)


def training_name(record: Record) -> str:
    """`exp1 small`, and what of the network is not as that preset has it."""
    name = f"{record['settings']['experiment']} {record['settings']['preset']}"
    changed = ", ".join(f"{key} {in_words(value)}" for key, value in changes(record).items())
    return f"{name} but {changed}" if changed else name


def changes(record: Record) -> dict[str, Any]:
    """Settings of the network in which a record differs from its preset."""
    settings = current_settings(record["settings"])
    usual = settings_for(settings["experiment"], settings["preset"]).plain()["denoiser"]
    return {key: value for key, value in settings["denoiser"].items() if usual.get(key) != value}


def in_words(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return "-".join(map(str, value)) if isinstance(value, list) else str(value)


def in_gib(size: int | None) -> str:
    return "" if size is None else f"{size / GIB:.2f} GiB"


# --- the detector ----------------------------------------------------------------------------------------------


def detector_error_table(results: Results) -> Rows:
    """Exact counts at 64 x 64, for each number of objects, in each arrangement measured."""
    sets = (results.one("detector-calibration") or {"sizes": {}})["sizes"].get("64", {})
    names = [name for name in ("official", "relaxed", "study") if name in sets]
    rows: Rows = [("objects", *[f"exact count, {name}" for name in names or ["official", "study"]])]
    if not names:
        return [*rows, unknown("0 to 12", rows)]
    numbers = sorted({int(k) for name in names for k in sets[name]["rows"]})
    for k in numbers:
        cells = [exact_count(sets[name]["rows"].get(str(k))) for name in names]
        rows.append((str(k), *cells))
    return rows


def exact_count(row: Record | None) -> str:
    if row is None:
        return ""
    share = row["exact_count"]
    return f"{100 * share['value']:.1f}% [{100 * share['low']:.1f}, {100 * share['high']:.1f}]"


def detector_speed(results: Results) -> Rows:
    rows: Rows = [("machine", "images", "images/s", "peak memory")]
    for location in ("cpu", "h200"):
        records = results.several(f"bench-detector-{location}*")
        for record in records:
            speed = f"{record['images_per_second']['median']:,.0f}"
            size = f"{record['size'][0]}x{record['size'][1]}, {record['objects']} objects"
            rows.append((record["provenance"]["device"], size, speed, in_gib(record["peak_memory_bytes"])))
        if not records:
            rows.append(unknown(location, rows, "64x64"))
    return rows


# --- swing-by -----------------------------------------------------------------------------------------------


def swingby(results: Results) -> Rows:
    record = results.one("swingby")
    return or_not_run(swingby_rows(record["gaps"] if record else []))


# --- everything in one table --------------------------------------------------------------------------------


def overview(results: Results) -> Rows:
    """The few numbers of the README, each with where it was measured; docs/measurements.md has all speeds."""
    rows: Rows = [("what", "measured", "where")]
    for quality in ("true", "fast"):
        what = f"renderer against Blender, 128x128, quality `{quality}`, held-out images"
        rows.append((what, *accuracy_in_words(results.one(f"render-accuracy-{quality}-held-out"))))
    for location, label in MACHINES.items():
        what, records = f"rendering on {label}, 64x64", small(results.several(f"bench-render-{location}*"))
        rows += [(what, render_rates(record), where(record)) for record in records] or [unknown(what, rows)]
    return [*rows, *headline(results), *scatter_headline(results)]


def accuracy_in_words(record: Record | None) -> tuple[str, str]:
    if record is None:
        return NOT_MEASURED, ""
    measured = record["all"]
    return (
        f"PSNR {with_interval(measured['psnr'], '.1f')} dB, SSIM {with_interval(measured['ssim'], '.3f')}, "
        f"mask IoU {measured['mask_iou']['value']:.3f}",
        f"{record['images']} images",
    )


def small(records: Iterable[Record]) -> list[Record]:
    return [record for record in records if record["size"] == [64, 64]]


def render_rates(record: Record) -> str:
    """Every quality measured, none singled out."""
    rates = {name: found["images_per_second"]["median"] for name, found in record["quality"].items()}
    return ", ".join(f"{rate:,.0f} images/s `{name}`" for name, rate in rates.items())


def where(record: Record | None) -> str:
    """The machine a record comes from."""
    if record is None:
        return ""
    return record["provenance"]["device"] or f"{record['threads_used']} of {record['cores']} CPU cores"


# --- Markdown -----------------------------------------------------------------------------------------------


def with_interval(measured: Record, form: str) -> str:
    """`43.3 [42.5, 44.1]`."""
    mean, low, high = (format(measured[name], form) for name in ("value", "low", "high"))
    return f"{mean} [{low}, {high}]"


def unknown(what: str, rows: Rows, *known: str) -> Sequence[str]:
    """A row as wide as the head, with what is known of it, for a number that was not measured."""
    return (what, *known, *[NOT_MEASURED] * (len(rows[0]) - 1 - len(known)))


def markdown(rows: Rows) -> str:
    head, *body = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([head, "|" + "---|" * len(rows[0]), *body]) + "\n"


TABLES: dict[str, Callable[[Results], Rows]] = {
    "overview": overview,
    "render-accuracy": render_accuracy,
    "render-accuracy-by-kind": render_accuracy_by_kind,
    "render-speed": render_speed,
    "training-speed": training_speed,
    "training-strategies": training_strategies,
    "denoise-speed": denoise_speed,
    "detector-error": detector_error_table,
    "detector-speed": detector_speed,
    **STUDY_TABLES,
    **LOCALITY_TABLES,
    "swingby": swingby,
    **FEATURE_TABLES,
    **SDXL_TABLES,
    **THEORY_TABLES,
}


def filled_in(text: str, results: Results, name: str = "the document") -> str:
    """The document with every marked part made anew."""

    def table(match: re.Match[str]) -> str:
        if match[2] not in TABLES:
            raise UserError(f"{name} asks for the table `{match[2]}`; there are {', '.join(TABLES)}.")
        return f"{match[1]}{markdown(TABLES[match[2]](results))}{match[4]}"

    made = MARKED.sub(table, text)
    if made.count("<!-- results:") != len(MARKED.findall(made)):
        raise UserError(f"{name} has a results marker that is never closed with <!-- /results -->.")
    return made


# --- the program -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class WriteTables:
    """Write the tables between results markers of README.md and docs/*.md anew, from results/*.json."""

    root: Path = Path()
    """Folder with README.md, docs/ and results/."""
    check: bool = False
    """Change nothing; leave with code 1 if a document is out of date."""

    def run(self) -> int:
        results = Results(self.root / "results")
        late = [path for path in documents(self.root) if self.refresh(path, results)]
        for path in late:
            say(f"{path} {'is out of date: run tools/write_tables.py' if self.check else 'was rewritten'}.")
        if not late:
            say("All tables are up to date.")
        return 1 if self.check and late else 0

    def refresh(self, path: Path, results: Results) -> bool:
        """Whether the document was out of date; unless only checking, it no longer is."""
        text = path.read_text()
        made = filled_in(text, results, str(path))
        if made != text and not self.check:
            with atomic(path) as temporary:
                temporary.write_text(made)
        return made != text


def documents(root: Path) -> list[Path]:
    """README.md and every page of docs/."""
    found = [path for path in (root / "README.md", *sorted((root / "docs").glob("*.md"))) if path.is_file()]
    if not found:
        raise UserError(f"{root.resolve()} has neither README.md nor docs/*.md.")
    return found


main = program(WriteTables)

if __name__ == "__main__":
    main()
