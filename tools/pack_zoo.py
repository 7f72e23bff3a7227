"""Pack the study's models for the package: averaged weights in half precision, a card, and their results.

python tools/pack_zoo.py
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from _common import program
from tessera.config import look_up
from tessera.console import say
from tessera.errors import UserError
from tessera.files import atomic, read_json
from tessera.models.model_folder import CARD, ZOO_FOLDERS, is_model_folder, save_model
from tessera.models.run_snapshots import is_run, load_run
from tessera.records import current_words
from tessera.studies.clevr.runs import StudyPaths, job_name
from tessera.studies.clevr.tables import k_max_words, span_words
from tessera.studies.clevr.zoo import ZOO, size_of

MOST_BYTES, ZOO_BYTES = 8 * 10**6, 40 * 10**6  # of one model, and of all of them


@dataclass(frozen=True)
class PackZoo:
    """Write the study's models as model folders: averaged weights in half precision, a card, and their results."""

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
    only: str | None = None
    """Only these models, such as exp1,color (default: all that were run)."""
    out: Path = ZOO_FOLDERS[0]
    """Folder of the models; the default is the package's own."""

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
            raise UserError(f"None of the models was run in {self.root}; `tessera reproduce fig1` trains four.")
        return self.weigh()

    def weigh(self) -> int | None:
        """Everything together must stay small enough to be installed by all; code 1 if it does not."""
        together = sum(size_of(self.out / name) for name in ZOO if is_model_folder(self.out / name))
        say(f"The models take {together / 1e6:.1f} MB of the {ZOO_BYTES / 1e6:.0f} MB that may be shipped.")
        return 1 if together > ZOO_BYTES else None

    def names(self) -> list[str]:
        if self.only is None:
            return list(ZOO)
        words = self.only.replace(",", " ").split()
        for word in words:
            look_up(word, ZOO, "model of the zoo")
        return words


def pack(name: str, paths: StudyPaths, job: str, models: Path, std: float | None = None) -> Path:
    """One run as a model folder, if it is small enough."""
    path = paths.records / f"{job}.json"
    record = current_words(read_json(path)) if path.is_file() else None
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
    """The part of the evaluation that a model card shows."""
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
    lines += ["| K | images | all found | and no more extras than in training | K - 2 found |", "|---|---|---|---|---|"]
    lines += [
        f"| {row['k']} | {row['n']} | {' | '.join(percent(row[name]) for name in ('all_found', 'allowed_extras', 'two_missing'))} |"
        for row in results["rows"]
    ]
    if still := results.get("still"):
        found = ", ".join(f"{k_max_words(one)} by the {rule} rule" for rule, one in still.items())
        lines += [
            "",
            f"Sampled with stochastic sampling (`--s-churn {results['s_churn']:g}`). With deterministic sampling K_max is {found}.",
        ]
    if results["at_zero"] is not None:
        lines += ["", f"With an empty prompt it draws {span_words(results['at_zero'])} objects."]
    where = results["provenance"]
    return [*lines, "", f"Evaluated on {where['device']}, {where['date']}, commit {where['commit']}."]


def percent(share: dict[str, Any]) -> str:
    return f"{100 * share['value']:.0f}% [{100 * share['low']:.0f}, {100 * share['high']:.0f}]"


main = program(PackZoo)

if __name__ == "__main__":
    main()
