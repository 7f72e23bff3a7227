"""CIFAR-10 from the binary version of the official archive (cifar-10-binary.tar.gz), packed or unpacked."""

import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from tessera.errors import UserError
from tessera.scenes.random import seeded_generator

_Split = Literal["train", "test"]
SIDE, CHANNELS, CLASSES = 32, 3, 10
_RECORD = 1 + CHANNELS * SIDE * SIDE  # bytes: a label, then the image channel by channel
_FOLDER = "cifar-10-batches-bin"
_PARTS: dict[_Split, tuple[str, ...]] = {
    "train": tuple(f"data_batch_{n}.bin" for n in range(1, 6)),
    "test": ("test_batch.bin",),
}


@dataclass(frozen=True)
class CifarImages:
    """8-bit images and the numbers of their classes."""

    images: Tensor  # (N, 3, 32, 32) uint8
    labels: Tensor  # (N,) long

    def __len__(self) -> int:
        return len(self.images)


def load_cifar(path: str | Path, split: _Split = "train") -> CifarImages:
    """The images in an archive (.tar.gz), in a folder made from one, or in the folder above that."""
    path = Path(path).expanduser()
    if path.is_file():
        parts = _archive_parts(path, _PARTS[split])
    elif path.is_dir():
        parts = _folder_parts(path, _PARTS[split])
    else:
        raise UserError(f"There is no CIFAR-10 at {path}.")
    if not parts:
        raise UserError(f"{path} holds none of the files of CIFAR-10's binary version, such as {_PARTS[split][0]}.")
    rows = np.concatenate([_records(content, f"{path}: {name}") for name, content in sorted(parts.items())])
    images = rows[:, 1:].reshape(-1, CHANNELS, SIDE, SIDE).copy()
    return CifarImages(torch.from_numpy(images), torch.from_numpy(rows[:, 0].astype(np.int64)))


def _archive_parts(path: Path, names: tuple[str, ...]) -> dict[str, bytes]:
    """The files of a split by name, read without unpacking anything to disk."""
    parts: dict[str, bytes] = {}
    try:
        with tarfile.open(path) as archive:
            for member in archive:
                name, file = Path(member.name).name, archive.extractfile(member)
                if name in names and file is not None:
                    parts[name] = file.read()
    except (tarfile.TarError, EOFError, OSError) as error:
        raise UserError(f"Could not read {path} as an archive of CIFAR-10: {error}.") from error
    return parts


def _folder_parts(path: Path, names: tuple[str, ...]) -> dict[str, bytes]:
    folder = path / _FOLDER if (path / _FOLDER).is_dir() else path
    return {name: (folder / name).read_bytes() for name in names if (folder / name).is_file()}


def _records(content: bytes, where: str) -> np.ndarray:
    """Rows (N, 3073) of a label and 3072 values."""
    if not content or len(content) % _RECORD:
        raise UserError(f"{where} is damaged: its length is no multiple of {_RECORD} bytes.")
    rows = np.frombuffer(content, np.uint8).reshape(-1, _RECORD)
    if rows[:, 0].max() >= CLASSES:
        raise UserError(f"{where} is damaged: labels lie outside 0 to {CLASSES - 1}.")
    return rows


# -- as training data --------------------------------------------------------------------------------------------


def shuffled_steps(count: int, batch: int, first: int, seed: int) -> Iterator[Tensor]:
    """Image numbers (batch,) of every training step from `first` on; each pass has its own order."""
    number, order, current = first * batch, torch.empty(0, dtype=torch.long), -1
    while True:
        numbers = torch.arange(number, number + batch)
        rows = torch.empty(batch, dtype=torch.long)
        for turn in (numbers // count).unique().tolist():
            if turn != current:
                chance = seeded_generator((seed << 32) + turn)
                order, current = torch.randperm(count, generator=chance), turn
            here = numbers // count == turn
            rows[here] = order[numbers[here] % count]
        yield rows
        number += batch
