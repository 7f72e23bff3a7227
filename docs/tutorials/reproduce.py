"""Reproduce the paper's headline: two trainings that differ in one setting, evaluated and compared.

exp1 is conditioned on the locations of all objects, exp2 on one of them. The paper finds that the first composes up to
nine objects and the second does not compose.

    python docs/tutorials/reproduce.py                                    # minutes on a CPU, as a trial
    python docs/tutorials/reproduce.py --preset small --each 64 --k 0-12  # minutes on a GPU: the study's own numbers

The same from the command line: `tessera reproduce fig1 --only exp1-M3,exp2-M3`, then `tessera report`.
"""

from pathlib import Path

import tyro

from tessera.cli.report import Report
from tessera.cli.reproduce import Reproduce
from tessera.files import read_json
from tessera.studies.clevr.entries import CELLS
from tessera.studies.clevr.tables import k_max_words

NAMES = ("exp1-M3", "exp2-M3")


def main(
    out: Path = Path("reproduced"),
    preset: str = "tiny",
    total: str | None = None,
    each: int = 16,
    k: str = "0-6",
    steps: int = 18,
) -> None:
    runs, results = out / "runs", out / "results"

    # 1. Train what is missing, sample K objects, count them with the detector. The same call resumes.
    Reproduce(
        what="fig1", only=",".join(NAMES), preset=preset, seeds=1, total=total, each=each, k=k, steps=steps,
        root=runs, results=results,
    ).run()  # fmt: skip

    # 2. A record holds all counts with intervals; print K_max beside the paper's.
    jobs = [f"{name}-{preset}-seed0" for name in NAMES]
    for name, job in zip(NAMES, jobs):
        record = read_json(results / "study" / f"{job}.json")
        ours = k_max_words(record["result"]["k_max"]["paper"])
        seen = record["training"]["images_seen"]
        print(f"{name}: K_max {ours} after {seen:,} images; the paper has {CELLS[name].paper.text}")

    # 3. One page: the counts of the records, and the locality of each network, measured now.
    sources = [str(runs / job) for job in jobs] + [str(results / "study" / f"{job}.json") for job in jobs]
    Report(sources=tuple(sources), out=out / "report.html", n=min(each, 8), k=k, steps=steps, quick=True).run()


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
