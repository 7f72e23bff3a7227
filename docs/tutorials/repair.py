"""Repair a failing model without training it: make it look locally, and measure what that changes.

A network that was told of one object at a time (exp2) knows how a single object looks, and is lost when asked for
several. Three ways to ask the very same weights, beside a network that composes by itself:

    sum        scores of the single conditions added up
    project    the region of every asked location from a pass told of that location alone (Lemma 1 as a sampler)
    localize   every cell from a pass told only of what is near it

    python docs/tutorials/repair.py                               # the shipped exp2: some minutes on a CPU
    python docs/tutorials/repair.py --model runs/mine --n 64      # a model of your own, with intervals worth the name

exp2L is the repair that begins with the architecture: exp2 trained with a network that sees patches alone. On a CPU its
256 patches take their time, so it is not among the defaults; `--beside exp1,exp2L` adds it.
"""

from dataclasses import replace
from pathlib import Path

import tyro

from tessera.app.report.measure import ReportConfig
from tessera.app.report.verdict import verdict
from tessera.app.report.write import report
from tessera.devices import pick_device
from tessera.models.loading import open_model
from tessera.sampling.compose import compose_by_name
from tessera.sampling.prompts import parse_ks

REPAIRS = ("sum", "project", "localize")


def main(
    out: Path = Path("repaired"),
    model: str = "exp2",
    beside: str = "exp1",
    n: int = 4,
    k: str = "1-4",
    steps: int = 12,
    device: str = "auto",
) -> None:
    where = pick_device(device)
    failing = open_model(model, device=where)

    # Every repair is a denoiser again, so it can be sampled, evaluated and located like any other.
    name = Path(model).name
    models = {name: failing}
    for how in REPAIRS:
        models[f"{name}, {how}"] = replace(
            failing, denoiser=compose_by_name(failing.denoiser, failing.conditioner, how)
        )
    for other in beside.replace(",", " ").split():
        models[Path(other).name] = open_model(other, device=where)

    found = report(
        models,
        out / "report.html",
        ReportConfig(n=n, ks=tuple(parse_ks(k)), steps=steps, quick=True),
        device=device,
        title="A failing model, repaired",
    )
    for subject in found.subjects:
        print(f"{subject.name}: {verdict(subject.scores, subject.locality).headline}")
    print(f"Read {out / 'report.html'}")


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
