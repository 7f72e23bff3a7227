"""One tiny example of everything Tessera reads, made by its own verbs, and verbs called in this process."""

import contextlib
import io
import shutil
import tarfile
import traceback
from pathlib import Path
from typing import NamedTuple

from tessera.cli.main import main
from tessera.files import write_json

RESULTS = Path(__file__).parents[2] / "results"
TRAIN = [
    "--preset", "tiny", "--conditioner.cells", "4", "--data.size", "16", "--data.objects", "1-2", "--denoiser.width", "8",
    "--denoiser.blocks", "1", "--denoiser.mult", "1", "--denoiser.head-width", "8", "--denoiser.tile", "1",
    "--training.batch", "4", "--training.render-batch", "16", "--training.checkpoint", "8", "--training.snapshot", "8",
]  # fmt: skip
QUICK = ("--device", "cpu", "--threads", "1")
RECORDS = ("scatter", "theory-check", "dynamics-run", "dynamics-depth", "locality-exp1", "swingby", "theory-ideal-32")


class Ending(NamedTuple):
    """How a verb ended: its exit code (None: an exception no verb should end with) and its words on stderr."""

    code: int | None
    said: str


def call(*words) -> Ending:
    """A verb in this process, as the command line calls it."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
            main([str(word) for word in words])
    except SystemExit as left:
        return Ending(left.code if isinstance(left.code, int) else 0, said.getvalue())
    except TimeoutError:
        raise
    except BaseException:
        return Ending(None, said.getvalue() + traceback.format_exc())
    return Ending(0, said.getvalue())


def train_words(out: Path, total: int = 16, seed: int = 0) -> list[str]:
    more = ["--training.total", str(total), "--training.seed", str(seed), "--tensorboard", "off", "--out", str(out)]
    return ["train", "exp1", *TRAIN, *more, *QUICK]


def make_world(root: Path) -> Path:
    """A run, a model, samples, renders, shards, records, a detector, prompts and an archive, in a new folder."""
    done = [
        call(*train_words(root / "run", total=24)),
        call(*train_words(root / "other", total=24, seed=1)),
        call("models", "export", root / "run", "--out", root / "model"),
        call("sample", root / "run", "--k", "1,2", "--each", "2", "--steps", "2", "--out", root / "samples", *QUICK),
        call("render", "--count", "3", "--size", "16", "--depth", "--out", root / "renders", *QUICK),
        call("render", "--count", "6", "--size", "16", "--shards", "2", "--out", root / "shards", *QUICK),
    ]
    assert not any(ending.code for ending in done), done
    results = root / "results"
    (results / "study").mkdir(parents=True)
    for name in RECORDS:
        shutil.copy(RESULTS / f"{name}.json", results)
    for path in sorted((RESULTS / "study").glob("*.json"))[:2]:
        shutil.copy(path, results / "study")
    points = [{"model": f"m{n % 3}", "images_seen": n, "k_max": n, "max_train_objects": 3, "locality": n / 9,
               "low": 0.1, "high": 0.9, "at_least": False} for n in range(9)]  # fmt: skip
    write_json(root / "points.json", points)
    images = sorted(path.relative_to(root / "samples") for path in (root / "samples").glob("k*/*.png"))
    write_json(root / "prompts.json", [{"file": str(image), "locations": [[0.3, 0.6]]} for image in images])
    concepts = [{"name": name, "category": name[0], "prompt": f"a {name}"} for name in ("ape", "ant", "bee", "bug")]
    write_json(root / "concepts.json", concepts)
    shutil.copytree(Path(main.__code__.co_filename).parents[1] / "evaluation" / "weights", root / "detector")
    with tarfile.open(root / "cifar.tar.gz", "w:gz") as archive:
        for name in (*(f"data_batch_{n}.bin" for n in range(1, 6)), "test_batch.bin"):
            member = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
            content = bytes([3] * 3073 * 2)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return root
