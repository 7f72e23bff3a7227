"""CIFAR-10 from the official archives, python or binary version, packed or unpacked, or from folders of PNGs.

The python version is a pickle. It is read by a reader of our own that knows lists, dictionaries, strings, numbers
and arrays of bytes; names of anything else are refused, and nothing is ever called.
"""

import io
import pickle
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from tessera.errors import UserError
from tessera.files import read_json
from tessera.render.image_io import load_png, open_image
from tessera.scenes.random import seeded_generator

Split = Literal["train", "test"]
SIDE, CHANNELS = 32, 3
PIXELS = SIDE * SIDE
CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
TEST_EVERY = 6  # of images that nobody divided every sixth is held out, as many as of CIFAR-10
PARTS: dict[Split, tuple[str, ...]] = {
    "train": tuple(f"data_batch_{n}" for n in range(1, 6)),
    "test": ("test_batch",),
}


@dataclass(frozen=True)
class CifarImages:
    """8-bit images and the numbers of their classes."""

    images: Tensor  # (N, 3, 32, 32) uint8
    labels: Tensor  # (N,) long
    classes: tuple[str, ...] = CLASSES

    def __len__(self) -> int:
        return len(self.images)


def load_cifar(path: str | Path, split: Split = "train") -> CifarImages:
    """The images in an archive (.tar.gz), in a folder made from one, or in a folder per class."""
    path = Path(path).expanduser()
    if path.is_file():
        return from_parts(archive_parts(path, split), path)
    if not path.is_dir():
        raise UserError(f"There is no CIFAR-10 at {path}.")
    found = folder_parts(path, split)
    if found:
        return from_parts(found, path)
    return from_rows(path, split) or from_class_folders(path, split)


# -- archives ------------------------------------------------------------------------------------------------


def archive_parts(path: Path, split: Split) -> dict[str, bytes]:
    """The files of a split by name, read without unpacking anything to disk."""
    wanted = names_of(split)
    try:
        with tarfile.open(path) as archive:
            return {
                Path(member.name).name: contents(archive, member)
                for member in archive
                if member.isfile() and Path(member.name).name in wanted
            }
    except (tarfile.TarError, EOFError, OSError) as error:
        raise UserError(f"Could not read {path} as an archive of CIFAR-10: {error}.") from error


def contents(archive: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    file = archive.extractfile(member)
    return b"" if file is None else file.read()


def folder_parts(path: Path, split: Split) -> dict[str, bytes]:
    """The same from an unpacked archive, whose folder may be named itself or by the one above."""
    for folder in (path, path / "cifar-10-batches-py", path / "cifar-10-batches-bin"):
        files = [folder / name for name in sorted(names_of(split)) if (folder / name).is_file()]
        if files:
            return {file.name: file.read_bytes() for file in files}
    return {}


def names_of(split: Split) -> set[str]:
    return {name + ending for name in PARTS[split] for ending in ("", ".bin")}


def from_parts(parts: dict[str, bytes], path: Path) -> CifarImages:
    """The official files as one set, in their order."""
    if not parts:
        raise UserError(f"{path} holds none of the files of CIFAR-10.")
    read = [
        read_binary(content, f"{path}: {name}")
        if name.endswith(".bin")
        else read_python(content, f"{path}: {name}")
        for name, content in sorted(parts.items())
    ]
    images, labels = (np.concatenate(both) for both in zip(*read))
    return CifarImages(torch.from_numpy(images), torch.from_numpy(labels).long())


def read_binary(content: bytes, where: str) -> tuple[np.ndarray, np.ndarray]:
    """Records of one label and 3072 values, channel by channel."""
    record = 1 + CHANNELS * PIXELS
    if not content or len(content) % record:
        raise UserError(f"{where} is damaged: its length is no multiple of {record} bytes.")
    rows = np.frombuffer(content, np.uint8).reshape(-1, record)
    return as_images(rows[:, 1:]), checked_labels(rows[:, 0], where)


def read_python(content: bytes, where: str) -> tuple[np.ndarray, np.ndarray]:
    record = read_plain_pickle(content, where)
    try:
        table = {as_text(key): value for key, value in record.items()}
        data, labels = table["data"], table["labels"]
    except (AttributeError, KeyError) as error:
        raise UserError(f"{where} is no part of CIFAR-10: it lacks `data` or `labels`.") from error
    values = data.array(where) if isinstance(data, StoredArray) else None
    if values is None or values.shape != (len(labels), CHANNELS * PIXELS):
        raise UserError(f"{where} is damaged: its images and labels do not fit together.")
    return as_images(values), checked_labels(np.asarray(labels), where)


def as_images(rows: np.ndarray) -> np.ndarray:
    return rows.reshape(-1, CHANNELS, SIDE, SIDE).copy()


def checked_labels(labels: np.ndarray, where: str) -> np.ndarray:
    if labels.dtype.kind not in "iu" or labels.min() < 0 or labels.max() >= len(CLASSES):
        raise UserError(f"{where} is damaged: labels lie outside 0 to {len(CLASSES) - 1}.")
    return labels.astype(np.int64)


def as_text(key: Any) -> str:
    return key.decode("latin-1") if isinstance(key, bytes) else str(key)


# -- a pickle that can only hold data ----------------------------------------------------------------------------


class StoredType:
    """Stands where a pickle speaks of an array's element type; remembers its name and nothing else."""

    def __init__(self, name: Any = None, *_: Any):
        self.name = as_text(name)

    def __setstate__(self, state: Any) -> None:
        """Byte order and the like do not matter for single bytes."""


class StoredArray:
    """Stands where a pickle speaks of an array: keeps its shape, type and bytes as they are written."""

    def __init__(self, *_: Any):
        self.state: Any = None

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def array(self, where: str) -> np.ndarray:
        """The array, if it is one of single bytes."""
        try:
            _, shape, kind, by_columns, raw = self.state
            plain = isinstance(kind, StoredType) and kind.name in ("u1", "|u1") and isinstance(raw, bytes)
            if not plain:
                raise ValueError("its values are not bytes")
            return np.frombuffer(raw, np.uint8).reshape(shape, order="F" if by_columns else "C")
        except (TypeError, ValueError) as error:
            raise UserError(f"{where} is damaged: {error}.") from error


class NoType:
    """Stands for the class that array pickles name as an argument."""


STAND_INS: dict[tuple[str, str], type] = {
    **{(f"numpy.{core}.multiarray", "_reconstruct"): StoredArray for core in ("core", "_core")},
    ("numpy", "ndarray"): NoType,
    ("numpy", "dtype"): StoredType,
}


class PlainReader(pickle.Unpickler):
    """Reads data alone: every name in the file becomes one of our stand-ins, or ends the reading."""

    def find_class(self, module: str, name: str) -> type:
        if (module, name) in STAND_INS:
            return STAND_INS[module, name]
        raise pickle.UnpicklingError(f"it asks for {module}.{name}")

    def persistent_load(self, pid: Any) -> Any:
        raise pickle.UnpicklingError("it refers to something outside")


def read_plain_pickle(content: bytes, where: str) -> Any:
    try:
        return PlainReader(io.BytesIO(content), encoding="bytes").load()
    except Exception as error:  # a damaged pickle fails in any way at all
        raise UserError(f"{where} was refused: {error or type(error).__name__}.") from error


# -- images as PNG ---------------------------------------------------------------------------------------------


def from_rows(path: Path, split: Split) -> CifarImages | None:
    """Files such as data_batch_1.png with an image per row of 1024 pixels, and labels in a JSON list."""
    files = [path / f"{name}.png" for name in PARTS[split] if (path / f"{name}.png").is_file()]
    if not files:
        return None
    image_grids = [np.array(open_image(file).convert("RGB")) for file in files]  # (n, 1024, 3) each
    if any(strip.shape[1] != PIXELS for strip in image_grids):
        raise UserError(f"The strips in {path} are not {PIXELS} pixels wide.")
    rows = np.concatenate(image_grids).reshape(-1, SIDE, SIDE, CHANNELS).transpose(0, 3, 1, 2).copy()
    return CifarImages(torch.from_numpy(rows), torch.from_numpy(row_labels(path, split, len(rows))))


def row_labels(path: Path, split: Split, count: int) -> np.ndarray:
    for name in (f"{split}_labels.json", f"{split}_lables.json"):  # published with the second spelling
        if (path / name).is_file():
            labels = np.asarray(read_json(path / name))
            if len(labels) != count:
                raise UserError(f"{path / name} has {len(labels)} labels for {count} images.")
            return checked_labels(labels, str(path / name))
    raise UserError(f"{path} has strips of images, but no {split}_labels.json.")


def from_class_folders(path: Path, split: Split) -> CifarImages:
    """PNG files in a folder per class, below a folder named after the split, or else the split's share of them."""
    divided = (path / split).is_dir()
    root = path / split if divided else path
    folders = sorted(folder for folder in root.iterdir() if folder.is_dir() and any(folder.glob("*.png")))
    if not folders:
        raise UserError(f"{path} holds neither the files of CIFAR-10 nor folders of PNG images.")
    files = [
        (number, file)
        for number, folder in enumerate(folders)
        for location, file in enumerate(sorted(folder.glob("*.png")))
        if divided or (location % TEST_EVERY == TEST_EVERY - 1) == (split == "test")
    ]
    if not files:
        raise UserError(
            f"{path} has no folders train and test, and too few images to hold every sixth out for the test."
        )
    images = [checked_image(load_png(file), file) for _, file in files]
    labels = torch.tensor([number for number, _ in files])
    return CifarImages(torch.stack(images), labels, tuple(folder.name for folder in folders))


def checked_image(image: Tensor, file: Path) -> Tensor:
    if tuple(image.shape) != (CHANNELS, SIDE, SIDE):
        raise UserError(f"{file} is {image.shape[2]} x {image.shape[1]} pixels, not {SIDE} x {SIDE}.")
    return image


# -- as training data --------------------------------------------------------------------------------------------


def shuffled_steps(count: int, batch: int, first: int, seed: int) -> Iterator[Tensor]:
    """Image numbers (batch,) of every training step from `first` on; each pass has its own order."""
    number, order, current = first * batch, torch.empty(0, dtype=torch.long), -1
    while True:
        wanted = torch.arange(number, number + batch)
        rows = torch.empty(batch, dtype=torch.long)
        for turn in (wanted // count).unique().tolist():
            if turn != current:
                chance = seeded_generator((seed << 32) + turn)
                order, current = torch.randperm(count, generator=chance), turn
            here = wanted // count == turn
            rows[here] = order[wanted[here] % count]
        yield rows
        number += batch
