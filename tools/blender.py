"""Draw the scenes of a CLEVR scene file with Blender's Cycles, in a separate process that has the `bpy` module.

tessera render --count 4 --size 320x240 --out ours
python tools/blender.py ours/scenes.json --size 320x240 --samples 512 --out blender
"""

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from tyro.conf import Positional

from _common import program
from tessera.console import progress, say
from tessera.errors import UserError
from tessera.render.image_io import load_png, parse_size, to_float, width_height
from tessera.render.scene_folder import SceneFolderWriter, distinct_names
from tessera.scenes.batch import SceneBatch
from tessera.scenes.camera import ASPECT
from tessera.scenes.clevr import read_entries
from tessera.scenes.scene import Scene, SceneObject
from tessera.scenes.vocabulary import COLORS

INTERPRETER = "TESSERA_BPY_PYTHON"  # names a Python that has bpy, when ours has not
INSTALL = "pip install 'tessera-diffusion[blender]'"
SAMPLES = 512  # per pixel, the official generator's number
DONE = "tessera: "  # how the job reports a finished scene
ASSET_FILES = (
    "base_scene.blend",
    *(f"shapes/{name}.blend" for name in ("Sphere", "SmoothCube_v2", "SmoothCylinder")),
    *(f"materials/{name}.blend" for name in ("Rubber", "MyMetal")),
)

Layers = dict[str, Tensor]


def render_with_blender(
    scenes: Sequence[Scene] | SceneBatch,
    size: int | tuple[int, int] = (320, 240),
    samples: int = SAMPLES,
    layers: Sequence[str] = ("rgb",),
    assets: Path | None = None,
    threads: int = 0,
    on_scene: Callable[[], Any] | None = None,
) -> Layers:
    """`render`, by Cycles on the CPU: the same layers, shapes and meaning of `size`.

    `assets` is a folder of the official generator's .blend files; without it all is built from numbers.
    """
    listed = scenes.unstack() if isinstance(scenes, SceneBatch) else list(scenes)
    python = blender_python()
    with tempfile.TemporaryDirectory(prefix="tessera-blender-") as folder:
        job = describe_job(listed, size, samples, layers, checked_assets(assets), threads, folder)
        path = Path(folder) / "job.json"
        path.write_text(json.dumps(job))
        run_job(python, path, on_scene or (lambda: None))
        return gather(Path(folder), len(listed), layers, width_height(size))


def blender_python() -> str:
    """A Python that can import bpy, or one sentence on how to get one."""
    named = os.environ.get(INTERPRETER)
    if named:
        if not Path(named).is_file():
            raise UserError(f"{INTERPRETER} names {named}, which does not exist.")
        return named
    if importlib.util.find_spec("bpy") is None:
        raise UserError(
            f"Blender's renders need the bpy module: {INSTALL} (bpy 4.2 wants Python 3.11),"
            f" or let {INTERPRETER} name a Python that has it."
        )
    return sys.executable


def describe_job(
    scenes: Sequence[Scene],
    size: int | tuple[int, int],
    samples: int,
    layers: Sequence[str],
    assets: Path | None,
    threads: int,
    out: str,
) -> dict[str, Any]:
    if samples < 1:
        raise UserError(f"Blender needs at least one sample per pixel, not {samples}.")
    return {
        "size": width_height(size),
        "squeeze": ASPECT if isinstance(size, int) else 1.0,
        "samples": samples,
        "layers": list(layers),
        "assets": str(assets) if assets else None,
        "threads": threads,
        "profile": stage_profile(),
        "scenes": [{**asdict(s), "objects": [plain_object(t) for t in s.objects]} for s in scenes],
        "out": out,
    }


def plain_object(obj: SceneObject) -> dict[str, Any]:
    """An object with its color as scene-linear numbers."""
    return {**asdict(obj), "color": [level / 255 for level in COLORS[obj.color]]}


def stage_profile() -> dict[str, list[float]]:
    """The height of the stage: {"u": [...], "z": [...]}."""
    profile = json.loads(Path(__file__).with_name("stage.json").read_text())
    return {name: profile[name] for name in ("u", "z")}


def checked_assets(folder: Path | None) -> Path | None:
    """The asset folder, or the folder `data` inside it as the official repository has it."""
    if folder is None:
        return None
    for location in (Path(folder), Path(folder) / "data"):
        if (location / "base_scene.blend").is_file():
            missing = [name for name in ASSET_FILES if not (location / name).is_file()]
            if missing:
                raise UserError(f"The asset folder {location} lacks {missing[0]}.")
            return location.resolve()
    raise UserError(f"{folder} is no folder of official assets: it has no base_scene.blend.")


def run_job(python: str, job: Path, on_scene: Callable[[], Any]) -> None:
    """Run Blender on the job file, calling `on_scene` for every finished scene."""
    script = Path(__file__).with_name("blender_job.py")
    last_words: deque[str] = deque(maxlen=20)
    with subprocess.Popen(
        [python, "-P", str(script), str(job)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                last_words.append(line.strip())
                if line.startswith(DONE):
                    on_scene()
        except BaseException:
            process.kill()
            raise
    if process.returncode:
        raise UserError(complaint(python, process.returncode, list(last_words)))


def complaint(python: str, code: int, last_words: list[str]) -> str:
    if any("No module named 'bpy'" in line for line in last_words):
        return f"{python} cannot import bpy; install it with `{python} -m pip install bpy`."
    reason = next((line for line in reversed(last_words) if line), "it said nothing")
    return f"Blender stopped with code {code}: {reason.rstrip('.')}."


def gather(folder: Path, count: int, layers: Sequence[str], size: tuple[int, int]) -> Layers:
    """The job's files as tensors, the shapes of `render`."""
    width, height = size

    def numbers(name: str, dtype: torch.dtype) -> Tensor:
        rows = [torch.from_numpy(np.load(folder / f"{i:06d}_{name}.npy")) for i in range(count)]
        return torch.stack(rows).to(dtype) if rows else torch.zeros(0, height, width, dtype=dtype)

    frame: Layers = {}
    if "rgb" in layers:
        images = [load_png(folder / f"{i:06d}_rgb.png") for i in range(count)]
        frame["rgb"] = to_float(torch.stack(images)) if images else torch.zeros(0, 3, height, width)
    if "mask" in layers:
        frame["mask"] = numbers("mask", torch.float32).round().long()
    if "depth" in layers:
        depth = numbers("depth", torch.float32)
        frame["depth"] = torch.where(depth > 0, depth, torch.inf)  # where Blender saw nothing it wrote 0
    return frame


AT_ONCE = 4  # scenes of one Blender process: starting one costs little beside rendering


@dataclass(frozen=True)
class RenderWithBlender:
    """Draw the scenes of a CLEVR scene file with Blender's Cycles: images, masks and a scene file."""

    scenes: Positional[Path]
    """CLEVR scene file, such as the scenes.json of `tessera render`."""
    out: Path
    """Folder for images/, masks/ and scenes.json; replaces an earlier render, refuses other images."""
    size: str = "128"
    """128 squeezes the 4:3 frame to a square; 320x240 has square pixels."""
    start: int = 0
    """First scene of the file."""
    count: int | None = None
    """How many scenes (default: all from --start on)."""
    samples: int = SAMPLES
    """Samples per pixel."""
    assets: Path | None = None
    """Folder of the official .blend files; without it all is built from numbers."""
    depth: bool = False
    """Write depth too."""
    threads: int = 0
    """Threads of Blender (0: all)."""

    def run(self) -> None:
        blender_python()  # complain before anything is written
        assets, size = checked_assets(self.assets), parse_size(self.size)
        last = None if self.count is None else self.start + self.count
        entries = read_entries(self.scenes)[self.start : last]
        if not entries or (self.count is not None and len(entries) < self.count):
            raise UserError(f"{self.scenes} has too few scenes for --start and --count.")
        names = distinct_names([entry.image for entry in entries], self.start)
        layers = ("rgb", "mask", "depth") if self.depth else ("rgb", "mask")
        writer = SceneFolderWriter(self.out, size, layers, names)
        with progress("rendering", len(entries)) as advance:
            for first in range(0, len(entries), AT_ONCE):
                scenes = [entry.scene for entry in entries[first : first + AT_ONCE]]
                frame = render_with_blender(scenes, size, self.samples, layers, assets, self.threads, advance)
                writer.add(frame, scenes, names[first : first + AT_ONCE])
        writer.close()
        say(f"Wrote {len(entries)} images to {self.out}.")


main = program(RenderWithBlender)

if __name__ == "__main__":
    main()
