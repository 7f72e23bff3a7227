"""Compose conditions at inference time: repair a model that fails to compose, without training, and measure the effect.

exp2 was trained with one labeled object per image. It samples single objects correctly and fails with several conditions.
Three ways to denoise with the same weights, beside a network that composes by itself:

    sum        scores of the single conditions added up
    project    the region of every prompted location from a pass with that condition only (Lemma 1 as a sampler)
    localize   every cell from a pass with its near conditions only

    python docs/tutorials/repair.py                               # the shipped exp2: some minutes on a CPU
    python docs/tutorials/repair.py --model runs/mine --n 64      # a model of your own, with useful intervals

exp2L changes the architecture instead: exp2 trained with a patch network. Its 256 patches are slow on a CPU, so it is
not among the defaults; `--beside exp1,exp2L` adds it.
"""

from pathlib import Path

import tyro

from tessera import compose, load
from tessera.app.report.measure import ReportConfig
from tessera.app.report.verdict import verdict
from tessera.app.report.write import report
from tessera.devices import pick_device
from tessera.sampling.prompts import parse_ks

METHODS = ("sum", "project", "localize")


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
    failing = load(model, device=where)

    # A composed model is a model again: it can be sampled, evaluated and measured like any other.
    name = Path(model).name
    models = {name: failing}
    for how in METHODS:
        models[f"{name}, {how}"] = compose(failing, how)
    for other in beside.replace(",", " ").split():
        models[Path(other).name] = load(other, device=where)

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
