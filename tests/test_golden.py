"""Every measuring command still gives the numbers it gave when `tests/golden/` was written.

CASES says which commands make each file and what of their output is kept; `golden/names.py` maps the old words in
the files to today's. After a renaming, edit these two tables and nothing else. To make files again (only when a
number is meant to change):

    python tests/test_golden.py --write NAME ...     # `all` for every one, `--list` to see them
"""

import argparse
import contextlib
import hashlib
import io
import json
import math
import re
import shlex
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image

from golden import names
from programs import call_program
from tessera.cli.main import main

GOLDEN = Path(__file__).parent / "golden"
LONG = 16  # numbers; a longer array is kept as its summary
SAME_MACHINE = (1e-5, 1e-6)  # relative and absolute tolerance where arithmetic rounds as it did for the file
OTHER_MACHINE = (0.05, 0.02)  # where it does not: sampling and training enlarge the last bit
Json = Any


# --- what is run, and what is kept of it ----------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """Commands run in order, `{out}` being an empty folder, and the files of that folder whose content is kept.

    Whatever a command prints on stdout is kept if it is JSON. The labels of `keep` never change; the patterns do.
    """

    commands: tuple[str, ...] = ()
    keep: dict[str, str] = field(default_factory=dict)  # label -> pattern of files below {out}
    prepare: Callable[[Path], None] | None = None  # writes files that the commands read
    # Label -> numbers from library calls, for what no command shows.
    measure: Callable[[Path], dict[str, Json]] | None = None
    slow: bool = False
    # It divides by next to nothing: on machines that round differently, only structure and words are compared.
    chaotic: bool = False
    needs: tuple[str, ...] = ()  # optional packages


TINY = (
    "--preset tiny --data.size 16 --training.batch 8 --training.render-batch 32 --training.checkpoint 64 "
    "--training.snapshot 32 --device cpu --total 64 --tensorboard off --out {out}/run"
)
UNET = "--denoiser.width 8 --denoiser.blocks 1 --denoiser.mult 1 --denoiser.head-width 8 --denoiser.tile 1"
CELLS = "--conditioner.cells 8"
TRAIN = f"{UNET} {CELLS} {TINY}"
TRAINED = {"config": "run/config.json", "log": "run/log.jsonl", "weights": "run/snapshots/ema-*64-0.050.safetensors"}
SAMPLED = {"prompts": "s/samples.json", "images": "s/k*/*.png"}
SAMPLE = "--steps 6 --device cpu --threads 1 --json --out {out}/s"
LOCALITY = "--images 1 --levels 3 --steps 4 --device cpu --json"
SDXL = "--steps 2 --seeds 2 --device cpu --json"
STUDY = (
    "--preset tiny --set conditioner.cells=8 --set data.size=16 --set denoiser.width=8 --set denoiser.blocks=1 "
    "--set denoiser.mult=1 --set denoiser.head-width=8 --set denoiser.tile=1 --set training.batch=4 "
    "--set training.render-batch=32 --set training.checkpoint=8 --set training.snapshot=32 --device cpu --total 16 "
    "--k 0-3 --each 2 --steps 2 --seeds 1 --root {out}/runs --results {out}/results --json"
)

IDEAL = "reproduce closed-form --set size=16 --device cpu --json"


def float_images(folder: Path) -> dict[str, Json]:
    """What commands round to bytes, in full: layers of the renderer, samples, a forward pass."""
    from tessera import load
    from tessera.render.render import render
    from tessera.sampling import noise_levels, sample
    from tessera.scenes import Scenes

    scenes = Scenes(objects=(1, 6)).draw(3, seed=5)
    kept = {f"render-{q}": plain(render(scenes, size=32, quality=q)["rgb"]) for q in ("true", "fast")}
    for name in ("exp1", "exp2", "exp3"):
        model = load(name)
        cond = model.conditioner.at([(0.65, 0.65), (0.25, 0.65)])
        kept[f"sample-{name}"] = plain(sample(model.denoiser, cond, model.size, range(2), sigmas=noise_levels(4)))
        x = torch.linspace(-1, 1, 3 * model.size**2).view(1, 3, model.size, model.size)
        with torch.no_grad():
            kept[f"denoise-{name}"] = plain(model.denoiser(x, torch.tensor(0.7), cond))
    return kept


def conditions_of_scenes(folder: Path) -> dict[str, Json]:
    """What each conditioner tells of the same scenes, by every rule of which objects are labeled."""
    from tessera.conditioning import ColorCounts, LocationGrid, LocationList
    from tessera.scenes import Scenes

    scenes = Scenes(objects=(0, 5)).draw(6, seed=2)
    kept = {}
    for label in ("all", "one", "random", "drop"):
        for name, conditioner in (
            ("grid", LocationGrid(8, label)),
            ("list", LocationList(6, label)),
            ("color", ColorCounts(label)),
        ):
            cond = conditioner.encode(scenes, seed=1)
            kept[f"{name}-{label}"], kept[f"{name}-{label}-listed"] = (plain(cond), conditioner.conditions(cond))
    grid = LocationGrid(8, "all")
    requested = grid.at([(0.65, 0.65), (0.25, 0.65), (0.3, 0.1)])
    kept["without"], kept["near"] = plain(grid.without(requested, 1)), plain(grid.near(requested, (5, 4), 2))
    kept["in-patch"] = plain(grid.in_patch(requested, torch.tensor([[5, 4]]), 2))
    return kept


def solvers_and_guidance(folder: Path) -> dict[str, Json]:
    from tessera import load
    from tessera.sampling import euler, guided, heun, noise_levels, sample
    from tessera.sampling.guidance import unconditional

    model = load("exp1")
    cond = model.conditioner.at([(0.65, 0.65), (0.25, 0.65)])
    strong = guided(model.denoiser, unconditional(model.denoiser), 2.0)
    kept = {}
    for name, denoiser, solver, s_churn in (
        ("euler", model.denoiser, euler, 0.0),
        ("guided", strong, heun, 0.0),
        ("stochastic", model.denoiser, heun, 15.0),
    ):
        kept[name] = plain(
            sample(denoiser, cond, model.size, range(2), sigmas=noise_levels(4), solver=solver, s_churn=s_churn)
        )
    kept["levels"] = plain(noise_levels(18))
    return kept


def settings_of_all(folder: Path) -> dict[str, Json]:
    from tessera.config import EXPERIMENTS, settings_for

    names_ = [name for name in EXPERIMENTS if name != "text"]
    sizes = ("tiny", "paper")
    return {"all": {f"{name}-{size}": settings_for(name, size).plain() for name in names_ for size in sizes}}


def data_of_figures(folder: Path) -> dict[str, Json]:
    """The numbers that the figures of the swing-by paper draw, whatever their words and colors are."""
    drawn = {}

    def keep(figure: Figure, path: Path, **_) -> None:
        path.touch()
        parts = [part for axes in figure.axes for part in drawn_arrays(axes)]
        summaries = [tensor_summary(part) for part in parts if part.size]
        drawn[f"figure-{len(drawn):02d}"] = {f"{n:03d}": summary for n, summary in enumerate(summaries)}

    with mock.patch.object(Figure, "savefig", keep):
        call("dynamics figure all --format png --out {out}", folder)
    return drawn


def drawn_arrays(axes: Axes) -> Iterator[np.ndarray]:
    for line in axes.lines:
        yield np.ma.filled(np.ma.asarray(line.get_xydata(), dtype=np.float64), 0)
    for artist in [*axes.images, *axes.collections]:
        values = artist.get_array() if artist.get_array() is not None else artist.get_offsets()
        yield np.ma.filled(np.ma.asarray(values, dtype=np.float64), 0)
    for patch in axes.patches:
        yield np.array(patch.get_path().vertices, dtype=np.float64)


def demo_of_two_models(folder: Path) -> dict[str, Json]:
    """What `tessera demo --minutes 0` shows, without the model whose plan depends on how fast the machine is."""
    from tessera.app.report.showcase import showcase
    from tessera.evaluation.detector import load_detector

    cpu = torch.device("cpu")
    return {"summary": showcase(("exp1", "exp2"), folder, load_detector(device=cpu), cpu, minutes=0)}


def write_scatter_points(folder: Path) -> None:
    rows = [
        {"model": f"model {m}", "images_seen": 100 * (n + 1), "k_max": 3 + m + n, "max_train_objects": 3}
        | {"locality": 0.3 + 0.1 * m + 0.05 * n, "low": 0.25 + 0.1 * m, "high": 0.5 + 0.1 * m}
        for m in range(4)
        for n in range(3)
    ]
    (folder / "points.json").write_text(json.dumps({"points": rows}))


def write_cifar(folder: Path) -> None:
    """The binary archive's files, four random images each."""
    rng = np.random.default_rng(0)
    (folder / "cifar-10-batches-bin").mkdir()
    for name in (*(f"data_batch_{n}" for n in range(1, 6)), "test_batch"):
        rows = np.concatenate([rng.integers(10, size=(4, 1)), rng.integers(256, size=(4, 3072))], axis=1)
        (folder / "cifar-10-batches-bin" / f"{name}.bin").write_bytes(rows.astype(np.uint8).tobytes())


CASES: dict[str, Case] = {
    # scenes and images
    "render": Case(
        (
            "render --count 4 --objects 1-5 --size 48 --depth --sheet --seed 3 --out {out}/a --device cpu",
            "render --count 4 --objects 1-5 --size 48 --quality fast --seed 3 --out {out}/b --device cpu",
            "render --count 2 --size 32x24 --locations '0.65,0.65 0.25,0.65' --set no_jitter=on "
            "--out {out}/c --device cpu",
            "tools/compare_renders.py {out}/b {out}/a --json",
        ),
        {
            "scenes": "*/scenes.json",
            "images": "*/images/*.png",
            "masks": "*/masks/*.png",
            "depth": "a/depth/*.png",
            "sheet": "a/sheet.png",
        },
    ),
    "render-shards": Case(
        ("render --count 5 --size 32 --shards 3 --hold-out 'red cube' --device cpu --out {out}/a",),
        {"manifest": "a/manifest.json", "shards": "a/*.safetensors"},
    ),
    "float-images": Case(measure=float_images),
    "conditions": Case(measure=conditions_of_scenes),
    "solvers": Case(measure=solvers_and_guidance),
    "settings": Case(measure=settings_of_all),
    # training
    "train-exp1": Case(
        (f"train exp1 {TRAIN}", "models export {out}/run --std 0.07"),
        TRAINED | {"ema": "run/models/*/*.safetensors", "state": "run/snapshots/state-*64.safetensors"},
    ),
    "train-exp2": Case((f"train exp2 {TRAIN}",), TRAINED),
    "train-exp2-random": Case((f"train exp2-random --training.seed 3 {TRAIN}",), TRAINED),
    "train-exp2-drop": Case((f"train exp2-drop --training.cooldown 32 {TRAIN}",), TRAINED),
    "train-exp3": Case((f"train exp3 --denoiser.attention 16 {TRAIN}",), TRAINED),
    "train-exp2L": Case((f"train exp2L --objects 1 --denoiser.radius 1 {TRAIN}",), TRAINED),
    "train-exp1C": Case((f"train exp1C --denoiser.local-width 16 {CELLS} {TINY}",), TRAINED),
    "train-color": Case((f"train color --set training.weight-norm=in-forward {UNET} {TINY}",), TRAINED),
    "run-chain": Case(
        (
            f"train exp1 {TRAIN}",
            f"sample {{out}}/run --k 1,2 --each 2 {SAMPLE}",
            "evaluate {out}/s --set resamples=50 --json --device cpu",
            f"locality {{out}}/run --k 2 {LOCALITY}",
            "features {out}/run --at output --seeds 2 --nulls 2 --k 2 --set steps=4 --device cpu --json",
            "report {out}/run --quick --n 2 --k 0-3 --steps 3 --out {out}/report.html --device cpu --json",
        ),
        chaotic=True,
    ),
    # sampling
    "sample-exp1": Case((f"sample exp1 --k 0,1,4,9 --each 2 {SAMPLE}",), SAMPLED),
    "sample-exp2": Case((f"sample exp2 --k 1,3 --each 2 --seed 4 {SAMPLE}",), SAMPLED),
    "sample-exp3": Case((f"sample exp3 --k 0,3 --each 2 {SAMPLE}",), SAMPLED),
    "sample-exp2L": Case((f"sample exp2L --k 2 --each 1 --steps 3 --s-churn 10 {SAMPLE}",), SAMPLED),
    "sample-color": Case((f"sample color --colors red,blue --each 2 {SAMPLE}",), SAMPLED),
    "sample-stochastic": Case((f"sample exp1 --locations '0.3,0.4 0.7,0.6' --each 2 --s-churn 20 {SAMPLE}",), SAMPLED),
    **{
        f"sample-{way}": Case((f"sample exp2 --k 0,3 --each 2 --compose {way} {SAMPLE}",), SAMPLED)
        for way in ("sum", "project", "localize")
    },
    # evaluation
    "detector-samples": Case(
        (
            "sample exp1 --k 0-9 --each 4 --steps 10 --device cpu --threads 1 --out {out}/s",
            "evaluate {out}/s --set resamples=200 --json --scores {out}/v.jsonl --device cpu",
            "evaluate {out}/s --set resamples=200 --json --require-well-formed --labels one --max-train-objects 4 --device cpu",
            "evaluate {out}/s/k06/0001.png --explain --device cpu --json",
        ),
        {"verdicts": "v.jsonl"},
        slow=True,
    ),
    "detector-renders": Case(
        (
            "render --count 6 --objects 0-6 --size 64 --seed 8 --out {out}/a --device cpu",
            "evaluate {out}/a --max-train-objects 3 --set resamples=100 --json --scores {out}/v.jsonl --device cpu",
            "evaluate {out}/a/images/CLEVR_tessera_000002.png --explain --device cpu --locations 0.4,0.5 --json --out {out}/e.png",
        ),
        {"verdicts": "v.jsonl"},
    ),
    "detector-colors": Case(
        (
            "sample color --k 0-5 --each 2 --steps 8 --device cpu --threads 1 --out {out}/s",
            "evaluate {out}/s --set resamples=50 --json --scores {out}/v.jsonl --device cpu",
        ),
        {"verdicts": "v.jsonl"},
    ),
    "detector-calibrate": Case(
        ("detector calibrate --per-k 6 --k 0-4 --size 32 64 --spacing official study --device cpu --json",)
    ),
    "detector-train": Case(
        ("tools/train_detector.py --out {out}/d --total 32 --batch 16 --device cpu --json",),
        {"weights": "d/*.safetensors"},
        slow=True,
    ),
    # locality
    "locality-exp1": Case((f"locality exp1 --k 3 {LOCALITY} --out {{out}}/l",), {"record": "l/locality.json"}),
    "locality-exp2": Case((f"locality exp2 --locations '0.2,0.3 0.7,0.6' --source truth {LOCALITY}",)),
    "locality-exp3": Case((f"locality exp3 --k 2 --source truth {LOCALITY}",)),
    "locality-residual": Case(
        (
            f"train exp1 {TRAIN}",
            f"locality {{out}}/run --k 2 --residual --set radius=1 {LOCALITY}",
            f"locality {{out}}/run --k 2 --residual --set fill=other {LOCALITY} --images 2 --source truth",
        )
    ),
    "locality-exp2L": Case((f"locality exp2L --k 2 --source truth {LOCALITY}",), slow=True),
    "locality-color": Case((f"locality color --k 2 --source generated {LOCALITY}",)),
    "locality-scatter": Case(
        ("reproduce scatter --set points={out}/points.json --set resamples=200 --json",), prepare=write_scatter_points
    ),
    "explore-probe": Case(
        ("explore exp1 --probe 0.65,0.65 --step 2 --locations 0.65,0.65 --steps 6 --device cpu --json",)
    ),
    # features
    "features-color": Case(
        ("features color --at 'encoder.*,output' --seeds 2 --nulls 2 --k 3 --set steps=6 --device cpu --json",),
        slow=True,
    ),
    "features-exp1": Case(
        ("features exp1 --at output --seeds 2 --nulls 2 --k 2 --set steps=6 --source truth --device cpu --json",)
    ),
    # text to image
    "sdxl-tiny": Case(
        ("tools/tiny_pipeline.py {out}/p --json", "tools/tiny_pipeline.py {out}/q --plant --deep --seed 1 --json"),
        needs=("diffusers", "transformers", "accelerate"),
        slow=True,
    ),
    "sdxl-locality": Case(
        ("tools/tiny_pipeline.py {out}/p", f"t2i locality {{out}}/p {SDXL} --levels 2 --probe '8,8' --at 1,2"),
        needs=("diffusers", "transformers", "accelerate"),
    ),
    "sdxl-words": Case(
        ("tools/tiny_pipeline.py {out}/p", f"t2i words {{out}}/p {SDXL} --levels 2 --probe '8,8' --words horse,dog"),
        needs=("diffusers", "transformers", "accelerate"),
    ),
    "sdxl-features": Case(
        (
            "tools/tiny_pipeline.py {out}/p --plant",
            f"t2i features {{out}}/p {SDXL} --prompts one,own --set null=2 --layers 'mid*'",
        ),
        needs=("diffusers", "transformers", "accelerate"),
        slow=True,
    ),
    # theory
    "theory-check": Case(("reproduce theory --set instances=20 --set conditions=4 --json",)),
    "theory-ideal": Case(
        (
            f"{IDEAL} --set scenes=200 --set cells=8 --k 1-3 --each 2 --steps 4",
            f"{IDEAL} --set kind=local --set scenes=100 --set cells=8 --k 1 --each 1 --steps 3",
            f"{IDEAL} --set kind=empirical --set scenes=60 --set objects=1 --set cells=2 --k 1 --each 1 --steps 3",
        )
    ),
    "theory-likeness": Case(
        ("reproduce closed-form exp1 --set scenes=60 --each 0 --set compared=2 --steps 4 --device cpu --json",)
    ),
    # learning dynamics
    "dynamics-run": Case(
        (
            "dynamics run --mu 1,2 --sigma 0.05 --model uut --w0 0.0025,0.00225;0.00225,0.0025 --time 20 --json "
            "--out {out}/a",
            "dynamics run --set clock=flow --start positive --json",
            "dynamics run --model one-layer --json",
            "dynamics run --model deep --depth 3 --time 40 --json",
            "dynamics run --model deep --start default --seed 5 --solver descent --set step=0.1 --json",
            "dynamics run --model relu --set samples=200 --time 2 --json",
            "dynamics run --model mlp --depth 1 --set samples=200 --time 5 --set rotation=1 --json",
        ),
        {"curves": "a/curves.csv"},
    ),
    "dynamics-sweep": Case(
        (
            "dynamics sweep --cells 6 --seeds 2 --json",
            "dynamics sweep --x omega --y rho --set y_range=0.5,0.9 --start aligned --seeds 1 --cells 3 --json",
            "dynamics sweep depth --set depths=1,3 --set dims=2 --seeds 10 --json",
            "dynamics sweep width --set widths=2,8 --seeds 10 --json",
        )
    ),
    "dynamics-figures": Case(measure=data_of_figures, slow=True),
    # the study
    "study": Case(
        (
            f"reproduce fig4 --only exp1-M1 --snapshots 4 {STUDY}",
            "reproduce status --preset tiny --root {out}/runs --results {out}/results --json",
            "reproduce learning --k 2 --preset tiny --results {out}/results --json",
        ),
        {"records": "results/study/*.json"},
        chaotic=True,
        slow=True,
    ),
    "study-scatter": Case(
        (
            f"reproduce table1 --only exp1-M1,exp2-M2,color-M1 --snapshots 4 --set training.lr-warmup=0 {STUDY}",
            "reproduce scatter --preset tiny --results {out}/results --set max_train_objects=none --set rule=paper --json",
        ),
        chaotic=True,
        slow=True,
    ),
    "compose": Case(
        (
            "reproduce composition exp2 --set beside=exp1 --k 0,1,3 --each 2 --steps 5 --set batch=16 --device cpu --json "
            "--out {out}/r.json",
        ),
        slow=True,
    ),
    "crowding": Case(
        ("reproduce crowding exp1 --k 1-3 --each 2 --set pairs=1 --steps 4 --device cpu --results {out}/r --json",),
        slow=True,
    ),
    "fig12": Case(
        (
            "reproduce fig12 --set cifar={out} --out {out}/f --preset tiny --total 16 --set images=1 --set levels=2 "
            "--device cpu --json",
        ),
        prepare=write_cifar,
        slow=True,
    ),
    "swingby": Case(
        (
            "reproduce swingby --set gaps=0.4 --seeds 2 --steps 3 --set batch=4 --set moments=3 --set images=2 --set levels=2 "
            "--set width=8 --root {out}/runs --out {out}/s.json --device cpu --json",
        )
    ),
    "study-plan": Case(("reproduce all --seeds 1 --dry-run --root {out}/a --results {out}/b --json",)),
    # front ends
    "demo": Case(measure=demo_of_two_models, slow=True),
    "report": Case(
        (
            "report exp1 exp2 color --quick --n 2 --k 1,3 --steps 4 --set keep={out}/kept --out {out}/report.html "
            "--device cpu --json",
        ),
        {"measurements": "kept/**/*.json"},
        slow=True,
    ),
    "report-shipped-records": Case(
        ("report {repo}/results/study/exp1-M3-small-seed0.json --out {out}/report.html --device cpu --json",), slow=True
    ),
    "demo-trained": Case(
        ("demo --train --set train_minutes=0 --set count=2 --set each=2 --device cpu --json --out {out}/d",), slow=True
    ),
    "zoo": Case(("models --json",)),
}


# --- running a case -------------------------------------------------------------------------------------------


def run(case: Case, out: Path) -> Json:
    """{"printed": one for each command that printed JSON, "kept": label -> files' content}, in plain numbers."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    if case.prepare:
        case.prepare(out)
    printed = [call(command, out) for command in case.commands]
    found: dict[str, Json] = {}
    for label, pattern in case.keep.items():
        files = sorted(out.glob(pattern))
        assert files, f"no file matches {pattern}"
        found[label] = [content(file) for file in files]
    if case.measure:
        found["measured"] = case.measure(out)
    return compact({"printed": [part for part in printed if part is not None], "kept": found}, out)


def call(command: str, out: Path) -> Json:
    """What the command printed, if it is JSON."""
    words = [word.format(out=out, repo=GOLDEN.parents[1]) for word in shlex.split(command)]
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        if words[0].startswith("tools/"):
            code = call_program(Path(words[0]).stem, *words[1:])
        else:
            code = call_verb(words)
    assert code == 0, f"`{command}` left with {code}"
    return json.loads(said.getvalue()) if said.getvalue().startswith(("{", "[")) else None


def call_verb(words: list[str]) -> int:
    with pytest.raises(SystemExit) as left:
        main(words)
    return left.value.code or 0


def content(file: Path) -> Json:
    if file.suffix == ".json":
        return json.loads(file.read_text())
    if file.suffix == ".jsonl":
        return [json.loads(line) for line in file.read_text().splitlines()]
    if file.suffix == ".png":
        return {"image": plain(torch.from_numpy(np.asarray(Image.open(file)).astype(np.float64)))}
    if file.suffix == ".csv":
        table = np.genfromtxt(file, delimiter=",", names=True)
        return {name: table[name].tolist() for name in table.dtype.names or ()}
    if file.suffix == ".npz":
        arrays = np.load(file)
        return {name: arrays[name].tolist() for name in arrays.files}
    from safetensors.torch import load_file

    tensors = load_file(file).items()
    return {name: tensor_summary(tensor.double().numpy()) for name, tensor in tensors if tensor.numel()}


def tensor_summary(array: np.ndarray) -> list[float]:
    """Number of entries, root mean square, and a projection that order changes."""
    summary = array_summary(array)
    return [len(array.ravel()), summary["rms"], summary["projection"]]


def plain(tensor: torch.Tensor) -> Json:
    return tensor.detach().double().cpu().tolist()


# --- what is kept of numbers ----------------------------------------------------------------------------------


def compact(value: Json, out: Path) -> Json:
    """Without what differs from machine to machine, and with summaries in place of long arrays."""
    if isinstance(value, dict):
        return {key: compact(part, out) for key, part in value.items() if not ignored(key)}
    if isinstance(value, list):
        shape = shape_of(value)
        if shape is not None and math.prod(shape) > LONG:
            return array_summary(np.array(value, dtype=np.float64))
        return [compact(part, out) for part in value]
    if isinstance(value, str):
        return value.replace(str(out), "OUT")
    return value


def ignored(key: str) -> bool:
    """Whether a value differs from run to run or from machine to machine."""
    return key in names.IGNORED or key.endswith(("seconds", "per_second"))


def shape_of(value: Json) -> tuple[int, ...] | None:
    """Of a rectangular array of numbers; None for anything else."""
    if not isinstance(value, list):
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return () if is_number else None
    shapes = {shape_of(part) for part in value}
    if len(shapes) != 1 or (inner := shapes.pop()) is None:
        return None
    return (len(value), *inner)


def array_summary(array: np.ndarray) -> dict[str, Json]:
    """Size, mean, root mean square, a projection that order changes, and single values."""
    flat = array.ravel()
    direction = np.cos(1 + np.sqrt(2) * np.arange(flat.size))
    return {
        "array": list(array.shape),
        "mean": digits(flat.mean()),
        "rms": digits(np.sqrt(np.mean(flat**2))),
        "projection": digits(flat @ direction / np.sqrt(flat.size)),
        "values": [digits(number) for number in flat[:: -(-flat.size // 5)]],
    }


def digits(number: float) -> float:
    return float(f"{number:.9g}")


@cache
def rounding() -> str:
    """Tells machines apart by the last bits of what their instructions and libraries compute."""
    torch.set_num_threads(1)
    x = torch.linspace(-2, 2, 2 * 24 * 17 * 17).view(2, 24, 17, 17).sin()
    w = torch.linspace(-1, 1, 40 * 24 * 3 * 3).view(40, 24, 3, 3).cos()
    y = torch.nn.functional.silu(torch.nn.functional.conv2d(x, w, padding=1)).flatten(2)  # (2, 40, 289)
    attended = torch.nn.functional.scaled_dot_product_attention(y, y.flip(1), y)
    reduced = torch.cat([y.mean(2), y.std(2), y.softmax(2).log().sum(2), y.square().sum(2).sqrt()])
    parts = (y, attended, reduced, torch.linalg.svdvals((y @ y.mT).double()), torch.special.expit(attended))
    return hashlib.sha256(b"".join(part.numpy().tobytes() for part in parts)).hexdigest()[:12]


# --- comparing ------------------------------------------------------------------------------------------------


def todays(golden: Json, case: str) -> Json:
    """A golden file in today's words, but for the labels of this test's own."""
    kept = {
        label: {part: renamed(value, case) for part, value in content_.items()}
        if label == "measured"
        else renamed(content_, case)
        for label, content_ in golden["kept"].items()
    }
    return {"printed": renamed(golden["printed"], case), "kept": kept}


def renamed(value: Json, case: str, key: str = "") -> Json:
    """A golden value in today's words."""
    if isinstance(value, dict):
        siblings = {old: new for sign, keys in names.KEYS_BESIDE.items() if sign in value for old, new in keys.items()}
        table = {**names.KEYS, **names.KEYS_OF.get(case, {}), **siblings}
        kept = {table.get(old, old): part for old, part in value.items() if old not in names.GONE}
        kept.pop("", None)  # gone beside a sign
        return {new: renamed(part, case, new) for new, part in kept.items() if not ignored(new)}
    if isinstance(value, list):
        return [renamed(part, case, key) for part in value]
    if isinstance(value, str):
        return names.VALUES_OF.get(key, {}).get(value, names.VALUES.get(value, value))
    return value


NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e-?\d+)?")


def same_text(golden: str, made: str) -> bool:
    """Single words are equal; sentences may be rephrased, as long as they hold the same numbers."""
    if " " in golden and " " in made:
        return NUMBER.findall(golden) == NUMBER.findall(made)
    return golden == made


Tolerance = tuple[float, float]  # relative, absolute


def differences(golden: Json, made: Json, tolerance: Tolerance, at: str = "") -> Iterator[str]:
    """One line for each difference."""
    if isinstance(golden, dict) and isinstance(made, dict):
        if "array" in golden and "array" in made:
            yield from array_differences(golden, made, tolerance, at)
            return
        for key in golden.keys() - made.keys():
            yield f"{at}.{key} is missing"
        for key in made.keys() - golden.keys() - names.ADDED:
            yield f"{at}.{key} is new"
        for key in golden.keys() & made.keys():
            yield from differences(golden[key], made[key], tolerance, f"{at}.{key}")
    elif isinstance(golden, list) and isinstance(made, list):
        if len(golden) != len(made):
            yield f"{at} has {len(made)} entries instead of {len(golden)}"
        for n, (one, other) in enumerate(zip(golden, made)):
            yield from differences(one, other, tolerance, f"{at}[{n}]")
    elif shape_of(golden) == () and shape_of(made) == ():
        if not math.isclose(golden, made, rel_tol=tolerance[0], abs_tol=tolerance[1]):
            yield f"{at} is {made} instead of {golden}"
    elif isinstance(golden, str) and isinstance(made, str) and same_text(golden, made):
        return
    elif type(golden) is not type(made) or golden != made:
        yield f"{at} is {made!r} instead of {golden!r}"


def array_differences(golden: Json, made: Json, tolerance: Tolerance, at: str) -> Iterator[str]:
    """Summaries of arrays agree up to the size of the numbers in them."""
    if golden["array"] != made["array"]:
        yield f"{at} has shape {made['array']} instead of {golden['array']}"
        return
    relative, absolute = tolerance
    within = relative * golden["rms"] * math.prod(golden["array"]) ** 0.25 + absolute
    for name in ("mean", "rms", "projection"):
        if abs(golden[name] - made[name]) > within:
            yield f"{at}: {name} is {made[name]} instead of {golden[name]}"
    if at.endswith(".image"):
        within += 1  # rounded to bytes: a last bit may become a whole step
    for n, (one, other) in enumerate(zip(golden["values"], made["values"])):
        if abs(one - other) > within:
            yield f"{at}: value {n} is {other} instead of {one}"


def golden_file(name: str) -> Path:
    return GOLDEN / f"{name}.json"


def parameters() -> list[Any]:
    return [pytest.param(n, id=n, marks=[pytest.mark.slow] if case.slow else []) for n, case in CASES.items()]


@pytest.mark.parametrize("name", parameters())
def test_numbers_are_those_of_the_golden_file(name, tmp_path):
    case = CASES[name]
    for package in case.needs:
        pytest.importorskip(package)
    golden = json.loads(golden_file(name).read_text())
    other = (math.inf, math.inf) if case.chaotic else OTHER_MACHINE
    tolerance = SAME_MACHINE if golden.pop("rounding") == rounding() else other
    if name in names.RESHAPE:
        golden = names.RESHAPE[name](golden)
    made = json.loads(json.dumps(run(case, tmp_path)))
    found = list(differences(todays(golden, name), made, tolerance))
    assert not found, "\n".join(found[:40])


def test_a_changed_number_a_lost_key_and_a_new_word_are_noticed():
    golden = compact({"a": [1.0, 2.0], "b": {"c": "plain"}, "d": list(range(100))}, Path("/nowhere"))
    assert list(differences(golden, golden, SAME_MACHINE)) == []
    for changed in (
        {"a": [1.0, 2.0001], "b": {"c": "plain"}, "d": list(range(100))},
        {"a": [1.0, 2.0], "b": {}, "d": list(range(100))},
        {"a": [1.0, 2.0], "b": {"c": "sum"}, "d": list(range(100))},
        {"a": [1.0, 2.0], "b": {"c": "plain"}, "d": [1, 0, *range(2, 100)]},
        {"a": [1.0, True], "b": {"c": "plain"}, "d": list(range(100))},
    ):
        assert list(differences(golden, compact(changed, Path("/nowhere")), SAME_MACHINE))


def test_golden_files_are_read_in_the_words_of_today(monkeypatch):
    monkeypatch.setattr(names, "KEYS", {"old": "new", "close": "near"})
    monkeypatch.setattr(names, "KEYS_OF", {"detector": {"old": "newest"}})
    monkeypatch.setattr(names, "KEYS_BESIDE", {"sign": {"old": "special"}})
    monkeypatch.setattr(names, "VALUES_OF", {"compose": {"plain": "joint"}})
    monkeypatch.setattr(names, "VALUES", {"plain": "simple"})
    monkeypatch.setattr(names, "GONE", {"prompts"})
    old = {"old": 2, "close": "plain", "compose": "plain", "prompts": []}
    golden = {"printed": [old], "kept": {"close": [old], "measured": {"close": old}}}
    new = {"new": 2, "near": "simple", "compose": "joint"}
    assert todays(golden, "sample") == {"printed": [new], "kept": {"close": [new], "measured": {"close": new}}}
    assert "newest" in todays(golden, "detector")["printed"][0]
    assert "special" in todays({"printed": [{**old, "sign": 1}], "kept": {}}, "detector")["printed"][0]


def test_sentences_may_be_rephrased_but_not_their_numbers():
    assert not list(differences("2 things in 5", "2 objects of 5", (0, 0)))
    assert list(differences("2 things in 5", "2 objects of 6", (0, 0)))
    assert list(differences("exact", "clean", (0, 0)))


def test_every_golden_file_has_its_commands():
    assert {file.stem for file in GOLDEN.glob("*.json")} == set(CASES)


# --- making the files -----------------------------------------------------------------------------------------


def write(name: str) -> None:
    begun = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        record = run(CASES[name], Path(folder))
    golden_file(name).write_text(
        json.dumps({"rounding": rounding(), **record}, separators=(",", ":"), sort_keys=True) + "\n"
    )
    print(f"{name}: {golden_file(name).stat().st_size} bytes, {time.perf_counter() - begun:.1f} s", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Make golden files again.")
    parser.add_argument("--list", action="store_true", help="list the cases")
    parser.add_argument("--write", nargs="+", metavar="NAME", default=[], help="which, or `all`")
    given = parser.parse_args()
    if given.list:
        print("\n".join(CASES))
    for wanted in CASES if given.write == ["all"] else given.write:
        if wanted not in CASES:
            sys.exit(f"there is no case `{wanted}`; --list shows all")
        write(wanted)
