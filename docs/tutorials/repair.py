"""Repair a failing model: make it look locally, without training and with it, and measure what that changes.

A network that was told of one thing at a time (exp2) knows how a single thing looks, and is lost when
asked for several. Three repairs of the very same weights, then one that begins with the architecture:

    sum        scores of the single conditions added up
    project    the region of every asked place from a pass told of that place alone (Lemma 1 as a sampler)
    localize   every cell from a pass told only of what is near it
    exp2C      the same training with a network that cannot look further than three cells

At `tiny` the global network has hardly learned to place anything, so counts stay low whatever is done; what can be seen
there is where each of them looks. Conclusions need `small`.

    python docs/tutorials/repair.py                                 # a quarter of an hour on a CPU
    python docs/tutorials/repair.py --preset small --n 64 --k 0-12  # on a GPU
"""

from dataclasses import replace
from pathlib import Path

import tyro

from tessera.denoiser.folder import Model
from tessera.devices import pick_device
from tessera.experiments import parse_count, settings_for
from tessera.report.measure import Dials
from tessera.report.verdict import verdict
from tessera.report.write import report_on
from tessera.sampler.asking import parse_ks
from tessera.sampler.compose import repair
from tessera.training.run import load_run, train_run

REPAIRS = ("sum", "project", "localize")


def trained(experiment: str, out: Path, preset: str, total: str | None, device) -> Model:
    """The averaged network at the end of a training; called again, what is there is used."""
    changes = {"training": {"total": parse_count(total)}} if total else None
    settings = settings_for(experiment, preset, changes)
    train_run(settings, out / experiment, device=device, tell_person=print)
    return load_run(out / experiment, device=device)


def main(
    out: Path = Path("repaired"),
    preset: str = "tiny",
    total: str | None = None,
    n: int = 8,
    k: str = "1-4",
    steps: int = 18,
    device: str = "auto",
) -> None:
    where = pick_device(device)
    failing = trained("exp2", out, preset, total, where)

    # Every repair is a denoiser again, so it can be sampled, judged and located like any other.
    models = {"exp2": failing}
    for how in REPAIRS:
        models[f"exp2, {how}"] = replace(failing, denoiser=repair(failing.denoiser, failing.tell, how))
    models["exp2C"] = trained("exp2C", out, preset, total, where)

    found = report_on(
        models,
        out / "report.html",
        Dials(n=n, ks=tuple(parse_ks(k)), steps=steps, quick=True),
        device=device,
        title="A failing model, repaired",
    )
    for subject in found.subjects:
        print(f"{subject.name}: {verdict(subject.marks, subject.locality).headline}")
    print(f"Read {out / 'report.html'}")


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
