"""CIFAR-10 from the binary version of the official archive (cifar-10-binary.tar.gz), packed or unpacked."""

import tarfile
from functools import lru_cache
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from tessera.errors import UserError
from tessera.files import reading
from tessera.render.image_io import to_float
from tessera.scenes.random import seeded_generator
from tessera.training.stream import Batch, NumberedSamples

_Split = Literal["train", "test"]
SIDE, _CHANNELS, _CLASSES = 32, 3, 10
_RECORD = 1 + _CHANNELS * SIDE * SIDE  # bytes: a label, then the image channel by channel
_MOST_BYTES = 64 << 20  # of a file in the archive; the largest of CIFAR-10 have half as many
_PARTS: dict[_Split, tuple[str, ...]] = {
    "train": tuple(f"data_batch_{n}.bin" for n in range(1, 6)),
    "test": ("test_batch.bin",),
}


def load_cifar(path: str | Path, split: _Split = "train") -> Tensor:
    """The images (N, 3, 32, 32), 8-bit, of an archive (.tar.gz), a folder made from one, or the folder above that."""
    path, names = Path(path).expanduser(), _PARTS[split]
    if path.is_file():
        parts = _archive_parts(path, names)
    elif path.is_dir():
        files = [*path.glob("*.bin"), *path.glob("cifar-10-batches-bin/*.bin")]
        parts = {file.name: file.read_bytes() for file in files if file.name in names}
    else:
        raise UserError(f"There is no CIFAR-10 at {path}.")
    if not parts:
        raise UserError(f"{path} holds none of the files of CIFAR-10's binary version, such as {names[0]}.")
    return torch.cat([_images_in(content, f"{path}: {name}") for name, content in sorted(parts.items())])


def _archive_parts(path: Path, names: tuple[str, ...]) -> dict[str, bytes]:
    """The files of a split by name, read without unpacking anything to disk."""
    parts: dict[str, bytes] = {}
    try:
        with reading(path), tarfile.open(path) as archive:
            for member in archive:
                if member.size > _MOST_BYTES:  # before any of it is unpacked
                    raise UserError(f"{path} is no archive of CIFAR-10: {member.name[:80]} has {member.size} bytes.")
                name, file = Path(member.name).name, archive.extractfile(member)
                if name in names and file is not None:
                    parts[name] = file.read()
    except tarfile.TarError as error:
        raise UserError(f"Could not read {path} as an archive of CIFAR-10: {error}.") from error
    return parts


def _images_in(content: bytes, where: str) -> Tensor:
    """Of records of a label and 3072 values each."""
    if not content or len(content) % _RECORD:
        raise UserError(f"{where} is damaged: its length is no multiple of {_RECORD} bytes.")
    rows = np.frombuffer(content, np.uint8).reshape(-1, _RECORD)
    if rows[:, 0].max() >= _CLASSES:
        raise UserError(f"{where} is damaged: labels lie outside 0 to {_CLASSES - 1}.")
    return torch.from_numpy(rows[:, 1:].copy()).unflatten(1, (_CHANNELS, SIDE, SIDE))


# -- as training data --------------------------------------------------------------------------------------------


class ShuffledImages(NumberedSamples):
    """Unconditional training samples from 8-bit images (N, C, H, W), in an order of its own in each pass over them."""

    def __init__(self, images: Tensor, seed: int):
        self.images, self.seed = images, seed

    def samples(self, index: Tensor) -> Batch:
        count, turns = len(self.images), index // len(self.images)
        rows = torch.empty_like(index)
        for turn in turns.unique().tolist():
            here = turns == turn
            rows[here] = _shuffled(count, (self.seed << 32) + turn).to(index.device)[index[here] % count]
        images = to_float(self.images[rows])
        return Batch(images, images.new_zeros(len(rows), 0), index)


@lru_cache(2)  # the training steps of one pass need the same order again and again
def _shuffled(count: int, seed: int) -> Tensor:
    return torch.randperm(count, generator=seeded_generator(seed))
