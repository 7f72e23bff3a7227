"""Models from run folders: the averaged weights that training stored, and averages of any other length.

A run folder holds config.json and snapshots/; `tessera.training` writes them. At every snapshot each tracked
average is stored in half precision as `ema-IMAGES-STD.safetensors`.
"""

import math
import re
from functools import partial
from pathlib import Path

from tessera.config import Settings, seal_of, settings_from
from tessera.errors import UserError
from tessera.files import read_json, reads
from tessera.models.build import build_denoiser, conditioner_for, denoiser_config
from tessera.models.checkpoint_io import read_float32
from tessera.models.ema import Snapshot, reconstruct
from tessera.models.model import Model
from tessera.models.model_folder import load_weights_into

CONFIG, SNAPSHOTS = "config.json", "snapshots"
_AVERAGE_FILE = re.compile(r"ema-(\d+)-([\d.]+(?:e-\d+)?)\.safetensors")


def is_run(path: Path | str) -> bool:
    return (Path(path) / CONFIG).is_file() and (Path(path) / SNAPSHOTS).is_dir()


@reads
def load_run(folder: Path, std: float | None = None, images_seen: int | None = None, device=None) -> Model:
    """A run's averaged network: at the last snapshot or at `images_seen`, of any length `std`.

    Without `std` it is the shortest average that was tracked, as it is stored.
    """
    settings = run_settings(folder)
    snapshots = stored_averages(folder)
    if not snapshots:
        raise UserError(f"{folder} has no snapshot yet.")
    end = int(max(s.images_seen for s in snapshots)) if images_seen is None else images_seen
    std = min(s.std for s in snapshots) if std is None else std
    stored = [s for s in snapshots if s.images_seen == end and math.isclose(s.std, std)]
    state = stored[0].load() if stored else reconstruct(snapshots, std, end)
    denoiser = build_denoiser(settings)
    load_weights_into(denoiser, dict(state), Path(folder))
    denoiser = denoiser.to(device).eval().requires_grad_(False)
    config = {"denoiser": denoiser_config(denoiser), "images_seen": end, "ema": std}
    return Model(denoiser, conditioner_for(settings), config={**config, "settings": settings.plain()})


def run_settings(folder: Path) -> Settings:
    return read_settings(Path(folder) / CONFIG)


@reads
def read_settings(path: Path) -> Settings:
    """The settings in the config.json of a run."""
    record = read_json(path)
    if not isinstance(record, dict) or "experiment" not in record:
        raise UserError(f"{path} is not the config of a run.")
    return settings_from({key: value for key, value in record.items() if key != "tessera"})


def stored_averages(folder: Path) -> list[Snapshot]:
    """All stored averages, oldest first; no file is read before `load` is called."""
    found, folder = [], Path(folder)
    sealed = {"seal": seal_of(run_settings(folder))} if (folder / CONFIG).exists() else {}
    for path in sorted((folder / SNAPSHOTS).glob("ema-*")):
        if match := _AVERAGE_FILE.fullmatch(path.name):
            images_seen, std = int(match[1]), float(match[2])
            load = partial(read_float32, path, {"images_seen": images_seen, "std": std, **sealed})
            found.append(Snapshot(images_seen, std, load))
    return found


def average_file(folder: Path, images_seen: int, std: float) -> Path:
    return Path(folder) / SNAPSHOTS / f"ema-{images_seen:012d}-{format_std(std)}.safetensors"


def format_std(std: float) -> str:
    """The length of an average in a file name: three digits, or as many as it has."""
    short = f"{std:.3f}"
    return short if float(short) == std else repr(std)
