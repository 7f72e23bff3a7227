"""`tessera dynamics run | sweep | figure`: one run, a phase diagram, the paper's figures."""

import itertools
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import tyro
from rich.table import Table

from tessera import console
from tessera.cli.options import Folder, Printed, WithDetails
from tessera.config import Integers
from tessera.errors import UserError
from tessera.files import atomic, make_folder, write_json
from tessera.provenance import provenance
from tessera.records import DynamicsRecord, SweepRecord, new_record
from tessera.studies.swingby import sweep as sweeps
from tessera.studies.swingby.runs import Run, RunSettings, run


@dataclass(frozen=True, kw_only=True)
class DynamicsRun(Printed, WithDetails, RunSettings):
    """One run of the identity-map model: when each concept is learned, and whether the error at their composition
    falls, rises and falls again (swing-by).
    """

    #: Folder for run.json, curves.csv and run.png.
    out: Folder = None

    def run(self) -> None:
        found, record = run(self)
        for caution in record["cautions"]:
            console.say(f"tessera: {caution}")
        if self.out:
            _save_run(make_folder(self.out), found, record)
        console.publish(new_record(DynamicsRecord, record), self.json, None, _run_table(record))


def _save_run(folder: Path, found: Run, record: dict[str, Any]) -> None:
    write_json(folder / "run.json", record)
    curves = found.columns()
    with atomic(folder / "curves.csv") as temporary:
        rows = np.column_stack([*curves.values()])
        np.savetxt(temporary, rows, "%.9g", ",", newline="\r\n", header=",".join(curves), comments="")
    if found.path is not None:
        from tessera.studies.swingby.figures import figure_run

        _save_figure(figure_run(found.path, found.task), folder / "run", "png")
    console.say(f"Wrote {folder}")


@dataclass(frozen=True, kw_only=True)
class DynamicsSweep(Printed, WithDetails, sweeps.PhaseSettings):
    """Many runs: a phase diagram of two concepts, or how often networks swing by depth, dimension and width."""

    #: phase: phase diagram of U U^T; depth: share of PyTorch's default starts of untied layers that swing, by depth
    #: and dimension; width: share of Gaussian starts of U U^T that swing, by width.
    study: tyro.conf.Positional[Literal["phase", "depth", "width"]] = "phase"
    #: Depths of the depth study.
    depths: tyro.conf.Fixed[Integers] = (1, 2, 3, 4)
    #: Ambient dimensions of the depth study.
    dims: tyro.conf.Fixed[Integers] = (2, 3, 8)
    #: Widths of the width study.
    widths: tyro.conf.Fixed[Integers] = (2, 4, 8, 16, 32, 64)
    #: Folder for the record and, for a phase diagram, its image.
    out: Folder = None

    def run(self) -> None:
        began = time.perf_counter()
        record = self.phase() if self.study == "phase" else sweeps.share_study(self.study, self.settings(), self.seeds)
        record |= {"seconds": round(time.perf_counter() - began, 2), "provenance": provenance()}
        file = self.out and self.out / f"{self.study}.json"
        console.publish(new_record(SweepRecord, record), self.json, file, _sweep_table(record))
        if self.out:
            console.say(f"Wrote {self.out}")

    def phase(self) -> dict[str, Any]:
        with console.progress("runs", self.cells**2 * self.seeds) as advance:
            phase = sweeps.phase_diagram(self, advance)
        if self.out:
            from tessera.studies.swingby.figures import figure_sweep

            _save_figure(figure_sweep(phase), make_folder(self.out) / "phase", "png", "svg")
        return phase.to_dict()

    def settings(self) -> list[dict[str, int]]:
        """Of the study of depths, or of widths."""
        if self.study == "width":
            return [{"width": width} for width in self.widths]
        return [{"depth": depth, "dim": dim} for dim, depth in itertools.product(self.dims, self.depths)]


@dataclass(frozen=True)
class DynamicsFigure:
    """Draw figures of the swing-by paper (2 to 5, 7 to 18) from new runs, or ours: terms, depth, bridge, certificate,
    phase. `all` draws every one."""

    #: Figure numbers or names.
    which: tyro.conf.Positional[tuple[str, ...]]
    #: Folder for the images.
    out: Path = Path("figures")
    #: File format.
    format: Literal["png", "svg", "both"] = "both"
    #: Also draw figure 5 as an animation, figure-5.gif.
    animate: bool = False

    def run(self) -> None:
        from tessera.studies.swingby.figures import FIGURES, draw

        names = list(FIGURES if "all" in self.which else self.which)
        self.check(names, FIGURES)
        folder = make_folder(self.out)
        kinds = ["png", "svg"] if self.format == "both" else [self.format]
        with console.progress("figures", len(names)) as advance:
            for name in names:
                advance(0, note=f"figure {name}")
                _save_figure(draw(name), folder / f"figure-{name}", *kinds)
                advance()
        if self.animate:
            self.save_animation(folder / "figure-5.gif")
        console.say(f"Wrote {len(names)} figure{'s' if len(names) > 1 else ''} into {folder}")

    def check(self, names: list[str], known) -> None:
        if not names:
            raise UserError(f"Name at least one figure: {', '.join(known)} or all.")
        if "6" in names:
            raise UserError("Figure 6 shows trained diffusion networks and cannot be made from the model alone.")
        for name in names:
            if name not in known:
                raise UserError(f"There is no figure `{name}`; known are {', '.join(known)} and all.")
        if self.animate and "5" not in names:
            raise UserError("Only figure 5 can be animated.")

    def save_animation(self, path: Path) -> None:
        from PIL import Image

        from tessera.studies.swingby.figures import animate_swing, canonical_path

        count = 120
        with console.progress("frames", count) as advance:
            frames = []
            for frame in animate_swing(canonical_path(), count):
                frames.append(Image.fromarray(frame).quantize(64))
                advance()
        with atomic(path) as temporary:
            frames[0].save(temporary, format="GIF", save_all=True, append_images=frames[1:], duration=60, loop=0)


def _save_figure(figure, stem: Path, *kinds: str) -> None:
    from tessera.plots.figures import save_figure

    for kind in kinds:
        save_figure(figure, stem.with_name(f"{stem.name}.{kind}"))


def _run_table(record: dict[str, Any]) -> Table:
    halves = ["never" if value is None else f"{value:.4g}" for value in record["half_times"]]
    rows = {
        "concepts learned in the order": " then ".join(str(k) for k in record["order"]) or "none",
        "half learned at": ", ".join(halves),
        "first and last error": "{e_first:.6g}, {e_last:.6g}".format(**record),
    }
    if record["t_max"] is not None:
        rows["lowest before the rise"] = "{e_min:.6g} at t = {t_min:.4f}".format(**record)
        rows["top of the rise"] = "{e_max:.6g} at t = {t_max:.4f}".format(**record)
    rows["rise"] = "{rise:.6g} ({rise_over_first:.2%} of the first error)".format(**record)
    rows["swing-by"] = "yes" if record["swing_by"] else "no"
    return _pairs("{model}, mu = {mu}, clock {clock}".format(**record), rows)


def _sweep_table(record: dict[str, Any]) -> Table:
    if record["study"] == "phase":
        rows = {
            "runs": str(record["runs"]),
            "swing by": "{value:.3f} [{low:.3f}, {high:.3f}]".format(**record["swing_by"]),
            "largest mean height": f"{np.max(record['height']['mean']):.3f}",
            "seconds": str(record["seconds"]),
        }
        return _pairs(f"{record['x']['name']} by {record['y']['name']}", rows)
    names = [name for name in record["rows"][0] if name not in ("value", "low", "high", "n")]
    table = Table(*names, "share", "95% interval", "seeds", title=record["counted"])
    for row in record["rows"]:
        share = ("{value:.3f}".format(**row), "[{low:.3f}, {high:.3f}]".format(**row), str(row["n"]))
        table.add_row(*(str(row[name]) for name in names), *share)
    return table


def _pairs(title: str, rows: dict[str, str]) -> Table:
    table = Table("what", "value", title=title)
    for row in rows.items():
        table.add_row(*row)
    return table
