"""Every kind of file Tessera reads, and what to do with one so that all of it is read and used."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch

from chaos_parts.world import QUICK, Ending, call, train_words
from tessera.errors import UserError


class Reader(NamedTuple):
    """A file of the world, and what reads it; `folder` is the part of the world that is put back after each use."""

    file: str
    use: Callable[[Path], Any]
    kind: str = "json"  # or lines, image, tensors, bytes
    weight: int = 1  # share of the fuzzed inputs
    sealed: bool = True  # whether a checksum covers the file: then a changed bit may not pass unnoticed

    @property
    def name(self) -> str:
        return f"{self.use.__name__.removeprefix('_')}:{self.file}"


def _sample(root: Path) -> Ending:
    given = ("--k", "1", "--each", "1", "--steps", "2", "--out", root / "new", *QUICK)
    return call("sample", root / "run", *given)


def _sample_model(root: Path) -> Ending:
    return call("sample", root / "model", "--k", "1", "--each", "1", "--steps", "2", "--out", root / "new", *QUICK)


def _carry_on(root: Path) -> Ending:
    return call(*train_words(root / "run", total=28))


def _train_config(root: Path) -> Ending:
    return call("train", "--config", root / "run/config.json", "--out", root / "new", "--minutes", "0", *QUICK)


def _evaluate(root: Path) -> Ending:
    return call("evaluate", root / "samples", "--set", "resamples=10", "--device", "cpu")


def _sample_again(root: Path) -> Ending:
    return call("sample", root / "run", "--k", "1", "--each", "1", "--steps", "2", "--out", root / "samples", *QUICK)


def _evaluate_prompts(root: Path) -> Ending:
    given = ("--prompts", root / "prompts.json", "--set", "resamples=10", "--device", "cpu")
    return call("evaluate", root / "samples", *given)


def _evaluate_renders(root: Path) -> Ending:
    return call("evaluate", root / "renders", "--set", "resamples=10", "--device", "cpu")


def _render_scenes(root: Path) -> Ending:
    return call("render", "--scenes", root / "renders/scenes.json", "--size", "16", "--out", root / "new", *QUICK)


def _render_again(root: Path) -> Ending:
    return call("render", "--count", "6", "--size", "16", "--shards", "2", "--out", root / "shards", *QUICK)


def _read_shards(root: Path) -> str:
    from tessera.render.shards import ShardFolder

    folder = ShardFolder(root / "shards")
    content = folder.tensors(range(len(folder)))
    return digest_of(content)


def _report(root: Path) -> Ending:
    return call("report", _shown(root), "--out", root / "new.html")


def _shown(root: Path) -> Path:
    """The one record that lies in the world's folder `shown`."""
    return next((root / "shown").iterdir(), root / "shown/record.json")


def _status(root: Path) -> Ending:
    return call("reproduce", "status", "--results", root / "results")


def _points(root: Path) -> Ending:
    return call("report", root / "points.json", "--out", root / "new.html")


def _images(root: Path) -> str:
    from tessera.evaluation.image_sets import read_image
    from tessera.render.image_io import load_depth, load_mask, load_png

    image = root / "renders/images/CLEVR_tessera_000000.png"
    found = []
    for load in (load_png, read_image, load_mask, load_depth):
        try:
            found.append(digest_of({"image": load(image)}))
        except UserError as error:
            found.append(str(error))
    return " ".join(found)


def _mask(root: Path) -> str:
    from tessera.render.image_io import load_mask

    return digest_of({"mask": load_mask(root / "renders/masks/CLEVR_tessera_000000.png")})


def _log(root: Path) -> Any:
    from tessera.app.report.columns import described
    from tessera.models.loading import load
    from tessera.training.run_folder import RunFolder

    run = RunFolder(root / "run")
    described("run", load(root / "run"))
    run.trim_log(16)
    return run.records()


def _detector(root: Path) -> str:
    from tessera.evaluation.detector import load_detector

    detector = load_detector(root / "detector")
    return str(detector.detect(torch.zeros(1, 3, 32, 32)))


def _concepts(root: Path) -> Any:
    from tessera.studies.text_to_image.prompts import concepts_of

    return concepts_of(str(root / "concepts.json"))


def _cifar(root: Path) -> str:
    from tessera.analysis.cifar import load_cifar

    return digest_of({"images": load_cifar(root / "cifar.tar.gz", "test")})


def _load_run(root: Path) -> str:
    from tessera.models.loading import load

    return digest_of(load(root / "run").denoiser.state_dict())


def _load_model(root: Path) -> str:
    from tessera.models.loading import load

    return digest_of(load(root / "model").denoiser.state_dict())


def digest_of(tensors: Any) -> str:
    found = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name]
        found.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        found.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


READERS = (
    Reader("run/config.json", _sample, weight=5),
    Reader("run/config.json", _carry_on, weight=2),
    Reader("run/config.json", _train_config, weight=2),
    Reader("model/config.json", _sample_model, weight=5),
    Reader("samples/samples.json", _evaluate, weight=3),
    Reader("samples/samples.json", _sample_again, weight=3),
    Reader("prompts.json", _evaluate_prompts, weight=3),
    Reader("renders/scenes.json", _evaluate_renders, weight=3),
    Reader("renders/scenes.json", _render_scenes, weight=4),
    Reader("shards/manifest.json", _read_shards, weight=4),
    Reader("shards/manifest.json", _render_again, weight=2),
    Reader("points.json", _points, weight=3),
    Reader("shown/record.json", _report, weight=8),
    Reader("results/study", _status, weight=3),
    Reader("run/log.jsonl", _log, "lines", weight=3),
    Reader("detector/detector.json", _detector, weight=2),
    Reader("concepts.json", _concepts, weight=2),
    Reader("renders/images/CLEVR_tessera_000000.png", _images, "image", weight=5),
    Reader("renders/masks/CLEVR_tessera_000000.png", _mask, "image", weight=2),
    Reader("samples/k01/0000.png", _evaluate, "image"),
    Reader("shards/shard-00000.safetensors", _read_shards, "tensors", weight=3),
    Reader("model/model.safetensors", _load_model, "tensors", weight=3),
    Reader("run/snapshots/ema-000000000024-0.050.safetensors", _load_run, "tensors", weight=3),
    Reader("run/snapshots/state-000000000024.safetensors", _carry_on, "tensors", weight=2),
    Reader("detector/detector.safetensors", _detector, "tensors"),
    Reader("cifar.tar.gz", _cifar, "bytes", weight=2),
)
