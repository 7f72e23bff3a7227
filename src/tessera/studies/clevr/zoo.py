"""The model zoo: the study's own models, small enough to ship, with their results on the card."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, get_args

import tyro
from rich.box import SIMPLE
from rich.table import Column, Table

from tessera.config import EXPERIMENTS, look_up
from tessera.console import NARROW, publish, say
from tessera.devices import DeviceName, PrecisionName, pick_device, precision_on, synchronize
from tessera.errors import UserError
from tessera.files import atomic, read_json
from tessera.models.model import Model
from tessera.models.model_folder import (
    CARD,
    CONFIG,
    WEIGHTS,
    ZOO_FOLDERS,
    find_model,
    is_model_folder,
    load_model,
    save_model,
    shipped,
)
from tessera.models.run_snapshots import is_run, load_run
from tessera.provenance import provenance
from tessera.studies.clevr.entries import CELLS
from tessera.studies.clevr.runs import StudyPaths, job_name
from tessera.studies.clevr.tables import k_max_words, span_words, speed_rows

# Names on the shelf, and the cell of the study each is.
ZOO = {
    "exp1": "exp1-M3",
    "exp2": "exp2-M3",
    "exp3": "exp3-M3",
    "exp2L": "exp2L-M3",
    "exp1-M1": "exp1-M1",
    "exp2L-M1": "exp2L-M1",
    "color": "color-M5",
}
MOST_BYTES, ZOO_BYTES = 8 * 10**6, 40 * 10**6  # of one model, and of all of them


# --- pack ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Pack:
    """Put the study's models on the shelf: averaged weights in half precision, a card, and their results."""

    root: Path = Path("runs/study")
    """Where the runs of `tessera reproduce` lie."""
    results: Path = Path("results")
    """Where their records lie."""
    preset: str = "small"
    """Size they were trained at."""
    seed: int = 0
    """Which training of each."""
    std: float | None = None
    """Length of the running average (default: the one that was evaluated)."""
    only: Annotated[str | None, tyro.conf.arg(metavar="NAMES", help_behavior_hint="")] = None
    """Only these models, such as exp1,color (default: all that were run)."""
    out: Annotated[Path, tyro.conf.arg(metavar="DIR", help_behavior_hint="")] = ZOO_FOLDERS[0]
    """The shelf (default: the one that comes with the package)."""

    def run(self) -> int | None:
        paths, packed = StudyPaths(self.root, self.results), 0
        for name in self.names():
            job = job_name(ZOO[name], self.preset, self.seed)
            if not is_run(self.root / job):
                say(f"{name} is left out: there is no run {self.root / job}.")
                continue
            pack(name, paths, job, self.out, self.std)
            packed += 1
        if not packed:
            raise UserError(
                f"None of the models was run in {self.root}; `tessera reproduce fig1` trains four."
            )
        return self.weigh()

    def weigh(self) -> int | None:
        """Everything together must stay small enough to be installed by all; code 1 if it does not."""
        together = sum(size_of(self.out / name) for name in ZOO if is_model_folder(self.out / name))
        say(f"The shelf holds {together / 1e6:.1f} MB of the {ZOO_BYTES / 1e6:.0f} MB that may be shipped.")
        return 1 if together > ZOO_BYTES else None

    def names(self) -> list[str]:
        if self.only is None:
            return list(ZOO)
        words = self.only.replace(",", " ").split()
        for word in words:
            look_up(word, ZOO, "model of the zoo")
        return words


def pack(name: str, paths: StudyPaths, job: str, models: Path, std: float | None = None) -> Path:
    """One run as a model folder on the shelf, if it is small enough."""
    path = paths.records / f"{job}.json"
    record = read_json(path) if path.is_file() else None
    moment = record["training"]["images_seen"] if record else None
    model = load_run(paths.runs / job, std, moment)
    weights = sum(p.numel() for p in model.denoiser.parameters())
    if 2 * weights > MOST_BYTES:
        raise UserError(
            f"{name} has {weights:,} weights, {2 * weights / 1e6:.1f} MB in half precision; "
            f"a shipped model may have {MOST_BYTES / 1e6:.0f} MB. Train it narrower (--denoiser.width)."
        )
    kept = {key: model.config[key] for key in ("settings", "images_seen", "ema")}
    kept["cell"] = ZOO[name]
    kept["results"] = brief(record) if record and std is None else None  # another average was not evaluated
    folder = save_model(models / name, model.denoiser, model.conditioner, kept)
    append_results(folder / CARD, kept["results"])
    say(f"{name} is in {folder}: {weights:,} weights, {size_of(folder) / 1e6:.1f} MB.")
    return folder


def brief(record: dict[str, Any]) -> dict[str, Any]:
    """What a card tells of the evaluation."""
    rows = [
        {name: row[name] for name in ("k", "n", "all_found", "allowed_extras", "two_missing", "succeeds")}
        for row in record["result"]["rows"]
    ]
    at_zero = next((row["objects"]["typical"] for row in record["result"]["rows"] if row["k"] == 0), None)
    return {
        "k_max": record["result"]["k_max"],
        "paper": record["paper"],
        "at_zero": at_zero,
        "rows": rows,
        "s_churn": record["evaluation"].get("s_churn", 0.0),
        "still": record["still"]["k_max"] if "still" in record else None,
        "training_seconds": record["training"]["seconds"],
        "seed": record["seed"],
        "provenance": record["provenance"],
    }


def append_results(card: Path, results: dict[str, Any] | None) -> None:
    with atomic(card) as temporary:
        temporary.write_text(card.read_text() + "\n" + "\n".join(card_lines(results)) + "\n")


def card_lines(results: dict[str, Any] | None) -> list[str]:
    if results is None:
        return ["## Results", "", "This average of the training was not evaluated."]
    lines = ["## How far it length-generalizes", "", "| rule | K_max, 95% interval |", "|---|---|"]
    lines += [f"| {rule} | {k_max_words(found)} |" for rule, found in results["k_max"].items()]
    lines += [f"| the paper's own model | {results['paper']['text'] or 'not tested'} |", ""]
    lines += [
        "| K | images | all filled | and no more extras than in training | K - 2 filled |",
        "|---|---|---|---|---|",
    ]
    lines += [
        f"| {row['k']} | {row['n']} | {' | '.join(percent(row[name]) for name in ('all_found', 'allowed_extras', 'two_missing'))} |"
        for row in results["rows"]
    ]
    if still := results.get("still"):
        found = ", ".join(f"{k_max_words(one)} by the {rule} rule" for rule, one in still.items())
        lines += [
            "",
            f"Sampled with fresh noise (`--s-churn {results['s_churn']:g}`). Without it K_max is {found}.",
        ]
    if results["at_zero"] is not None:
        lines += ["", f"Asked for nothing, it draws {span_words(results['at_zero'])} objects."]
    where = results["provenance"]
    return [*lines, "", f"Evaluated on {where['device']}, {where['date']}, commit {where['commit']}."]


def percent(share: dict[str, Any]) -> str:
    return f"{100 * share['share']:.0f}% [{100 * share['low']:.0f}, {100 * share['high']:.0f}]"


def size_of(folder: Path) -> int:
    return sum((folder / name).stat().st_size for name in (CONFIG, WEIGHTS, CARD))


# --- list ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ZooList:
    """The models that come with Tessera, what they were trained on, and how far they length-generalize."""

    json: bool = False
    """Print one JSON object."""

    def run(self) -> None:
        models = [described(name) for name in shipped()]
        absent = [name for name in ZOO if name not in {model["name"] for model in models}]
        tables = [zoo_table(models)] if models else []
        state = f"Not shipped with this version: {', '.join(absent)}." if absent else "The shelf is complete."
        publish({"models": models, "not_shipped": absent}, self.json, None, *tables, state)


def described(name: str) -> dict[str, Any]:
    folder = find_model(name)
    config = read_json(folder / CONFIG)
    settings = config.get("settings") or {}
    experiment = settings.get("experiment")
    return {
        "name": name,
        "experiment": experiment,
        "about": EXPERIMENTS[experiment].about if experiment in EXPERIMENTS else "",
        "objects": settings.get("data", {}).get("objects"),
        "size": config["denoiser"]["size"],
        "bytes": size_of(folder),
        "images_seen": config.get("images_seen"),
        "k_max": (config.get("results") or {}).get("k_max"),
        "paper": CELLS[config["cell"]].paper.plain() if config.get("cell") in CELLS else None,
    }


def zoo_table(models: Sequence[dict[str, Any]]) -> Table:
    heads = ("told", "scenes", "pixels", "MB")
    numbers = [Column(head, max_width=8) for head in ("paper", "ours, paper rule", "strict rule")]
    table = Table(Column("model", no_wrap=True), *heads, *numbers, **NARROW)
    for model in models:
        low, high = model["objects"] or (None, None)
        found = model["k_max"]
        ours = [k_max_words(found[rule]) if found else "not evaluated" for rule in ("paper", "strict")]
        paper = model["paper"]["text"] if model["paper"] else ""
        size, megabytes = str(model["size"]), f"{model['bytes'] / 1e6:.1f}"
        table.add_row(model["name"], model["about"], f"{low}-{high}", size, megabytes, paper, *ours)
    return table


# --- bench --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class BenchZoo:
    """Seconds per image of each shipped model on this machine."""

    each: int = 4
    """Images made together in one round."""
    rounds: int = 3
    """Timed rounds, after one that does not count."""
    steps: int = 32
    """Noise levels on the way (each but the last takes two calls of the network)."""
    only: Annotated[str | None, tyro.conf.arg(metavar="NAMES", help_behavior_hint="")] = None
    """Only these models, by name or folder (default: all on the shelf)."""
    precision: Annotated[str, tyro.conf.arg(metavar="LIST")] = "auto"
    """Precisions to compare, such as float32,bfloat16, taken in turns; auto is bfloat16 on CUDA, else float32."""
    device: DeviceName = "auto"
    """Where to compute."""
    json: bool = False
    """Print one JSON object."""

    def run(self) -> None:
        if min(self.each, self.rounds, self.steps) < 1:
            raise UserError("A measurement needs at least one image, one round and one step.")
        for precision in self.precisions():
            look_up(precision, dict.fromkeys(get_args(PrecisionName)), "precision")
        names = shipped() if self.only is None else self.only.replace(",", " ").split()
        if not names:
            raise UserError(
                "No models are shipped with this version; `tessera zoo pack` puts them on the shelf."
            )
        device = pick_device(self.device)
        models = {Path(name).name: self.measure(load_model(name, device), device) for name in names}
        record = {
            "models": models,
            "steps": self.steps,
            "each": self.each,
            "rounds": self.rounds,
            "seeds": [0],
        }
        record["provenance"] = provenance(device)
        publish(record, self.json, None, bench_table(record))

    def precisions(self) -> list[str]:
        return self.precision.replace(",", " ").split() or ["auto"]

    def measure(self, model: Model, device) -> dict[str, Any]:
        """Precisions take turns, so that what else the machine does falls on all of them."""
        from tessera.training.bench import interval

        seconds: dict[str, list[float]] = {}
        for _ in range(self.rounds + 1):
            for precision in dict.fromkeys(precision_on(device, name) for name in self.precisions()):
                seconds.setdefault(precision, []).append(self.timed(model, precision, device))
        weights = sum(p.numel() for p in model.denoiser.parameters())
        spans = {precision: interval(found[1:]) for precision, found in seconds.items()}
        return {"weights": weights, "size": model.size, "seconds_per_image": spans}

    def timed(self, model: Model, precision: str, device) -> float:
        """Seconds per image of one round."""
        from tessera.evaluation.pipeline import sample_evenly
        from tessera.models.loading import set_precision
        from tessera.sampling.prompts import study_prompts

        set_precision(model, precision, device)
        prompts = study_prompts(model.conditioner, [3], self.each, seed=0)
        begun = time.perf_counter()
        sample_evenly(model, prompts, self.steps, device)
        synchronize(device)
        return (time.perf_counter() - begun) / self.each


def bench_table(record: dict[str, Any]) -> Table:
    table = Table("model", "weights", "precision", "seconds per image", "against the first", box=SIMPLE)
    for row in speed_rows(record):
        table.add_row(*row)
    return table
