"""Large sets of images: safetensors shards and a manifest with their checksums, restartable at any moment.

A shard is written whole and then entered into the manifest, both by renaming. So whatever the manifest lists
is finished, and the same command run again draws only what is missing or damaged.
"""

import hashlib
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from tessera.errors import UserError
from tessera.files import (
    check_file,
    check_types,
    make_folder,
    read_json,
    reading,
    reads,
    resolve_inside,
    sha256,
    write_json,
)
from tessera.render.image_io import save_bytes
from tessera.scenes.batch import SceneBatch
from tessera.scenes.scene import Scene

_FORMAT, _VERSION = "tessera-shards", 1
_MANIFEST = "manifest.json"
_UNITS = {"": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9}

Draw = Callable[[int, int], dict[str, Tensor]]  # (first image, how many) -> tensors, one row per image


@dataclass(frozen=True)
class _Shard:
    """One finished file, as the manifest lists it."""

    file: str
    first: int
    count: int
    bytes: int
    sha256: str

    def is_intact(self, folder: Path) -> bool:
        path = resolve_inside(folder, self.file)
        try:
            return path.stat().st_size == self.bytes and sha256(path) == self.sha256
        except OSError:
            return False


class _ShardRow(NamedTuple):
    image: Tensor  # (3, H, W) 8-bit
    mask: Tensor  # (H, W) 8-bit, 0 floor, k = objects[k-1]
    scene: Scene


class _ShardRows(NamedTuple):
    images: Tensor  # (B, 3, H, W) 8-bit
    masks: Tensor  # (B, H, W) 8-bit
    scenes: SceneBatch


# --- what a shard holds -------------------------------------------------------------------------------------


def pack(images: Tensor, masks: Tensor, scenes: SceneBatch, depths: Tensor | None = None) -> dict[str, Tensor]:
    """The tensors of a shard: 8-bit images (B, 3, H, W), masks and perhaps depths (B, H, W), the scenes."""
    described = {f"scene.{f.name}": getattr(scenes, f.name) for f in fields(SceneBatch)}
    more = {} if depths is None else {"depths": depths}
    content = {"images": images, "masks": masks.to(torch.uint8), **more, **described}
    return {name: tensor.cpu().contiguous() for name, tensor in content.items()}


def _unpack_scenes(content: dict[str, Tensor]) -> SceneBatch:
    return SceneBatch(**{f.name: content[f"scene.{f.name}"] for f in fields(SceneBatch)})


def images_per_shard(words: str, image_bytes: int) -> int:
    """`4096` is a number of images; `256MB` is about that many bytes."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmg]b)?\s*", words.lower())
    if not match or (not match[2] and "." in match[1]):
        raise UserError(f"`{words}` is no shard size; write a number of images (4096) or of bytes (256MB).")
    amount = float(match[1]) * _UNITS[match[2] or ""]
    if amount <= 0:
        raise UserError("A shard needs at least one image.")
    return max(1, int(amount / image_bytes)) if match[2] else int(amount)


# --- writing ------------------------------------------------------------------------------------------------


def write_shards(
    folder: Path,
    draw: Draw,
    count: int,
    per_shard: int,
    settings: dict[str, Any],
    provenance: dict[str, Any] | None = None,
    on_images: Callable[[int], Any] = lambda images: None,
) -> list[_Shard]:
    """Fill `folder` with `count` images, skipping the shards that are already there and intact.

    `settings` say what the images are; a folder made with other settings is refused and left as it is.
    """
    folder = make_folder(folder)
    # As they come back from the manifest, where a tuple is a list.
    settings = json.loads(json.dumps({**settings, "count": count, "per_shard": per_shard}))
    done = {shard.first: shard for shard in _intact_shards(folder, settings)}
    starts = range(0, count, per_shard)

    def write_manifest() -> None:
        manifest = {
            "format": _FORMAT,
            "version": _VERSION,
            "complete": len(done) == len(starts),
            "settings": settings,
            "shards": [asdict(done[first]) for first in sorted(done)],
            "provenance": provenance or {},
        }
        write_json(folder / _MANIFEST, manifest)

    write_manifest()
    for number, first in enumerate(starts):
        images, finished = min(per_shard, count - first), len(done)
        if first not in done:
            try:
                path = folder / f"shard-{number:05d}.safetensors"
                done[first] = _write_shard(path, first, draw(first, images))
                write_manifest()
            except UserError as error:
                raise UserError(
                    f"{str(error).rstrip('.')}; {finished} of {len(starts)} shards are finished and intact,"
                    " and the same command carries on from there."
                ) from error
        on_images(images)
    return [done[first] for first in sorted(done)]


def _write_shard(path: Path, first: int, content: dict[str, Tensor]) -> _Shard:
    """Bytes are made first and written by us, because then a full disk is an ordinary error with a name."""
    about = json.dumps({"format": _FORMAT, "version": _VERSION, "first": first})
    # One entry of metadata: several are written in an order that changes from run to run.
    data = save(content, metadata={"tessera": about})
    save_bytes(path, data)
    return _Shard(path.name, first, len(content["images"]), len(data), hashlib.sha256(data).hexdigest())


@reads
def _intact_shards(folder: Path, settings: dict[str, Any]) -> list[_Shard]:
    """Shards of an earlier run with the same settings whose files are intact; other settings are refused."""
    if not (folder / _MANIFEST).exists():
        return []
    manifest = _read_manifest(folder)
    old, new = _dotted(manifest["settings"]), _dotted(settings)
    for name in {**old, **new}:
        if old.get(name) != new.get(name):
            raise UserError(
                f"{folder} already holds shards with other settings ({name}: {old.get(name)} there,"
                f" {new.get(name)} here); use another folder."
            )
    return [shard for shard in _listed_shards(manifest) if shard.is_intact(folder)]


def _dotted(settings: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings as one level of dotted names, so that a difference can be named."""
    result: dict[str, Any] = {}
    for name, value in settings.items():
        result |= _dotted(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: value}
    return result


def _read_manifest(folder: Path) -> dict[str, Any]:
    path = Path(folder) / _MANIFEST
    manifest = read_json(path)
    if not isinstance(manifest, dict) or manifest.get("format") != _FORMAT:
        raise UserError(f"{path} is not the manifest of a shard folder.")
    if manifest.get("version") != _VERSION:
        raise UserError(f"{path} has version {manifest.get('version')}; this Tessera reads {_VERSION}.")
    return manifest


def _listed_shards(manifest: dict[str, Any]) -> list[_Shard]:
    try:
        for row in manifest["shards"]:
            check_types(_Shard, row, "The manifest's list of shards")
        return [_Shard(**row) for row in manifest["shards"]]
    except (AttributeError, KeyError, TypeError) as error:
        raise UserError(f"The manifest does not list its shards as expected: {error}.") from error


# --- reading ------------------------------------------------------------------------------------------------


class ShardFolder:
    """A finished folder of shards as one long list of images, read on demand."""

    def __init__(self, path: Path | str):
        self.path = Path(path)
        self.manifest = _read_manifest(self.path)
        self.shards = _listed_shards(self.manifest)
        self._verified: set[str] = set()
        with reading(self.path / _MANIFEST):
            if not self.manifest["complete"]:
                raise UserError(
                    f"{self.path} is unfinished ({len(self.shards)} shards so far);"
                    " run the command that made it again to carry on."
                )
            count, per_shard = self.settings["count"], self.settings["per_shard"]
            firsts = range(0, count, per_shard)  # compared lazily: a false count may be immense
            pairs = zip(self.shards, firsts)
            if len(firsts) != len(self.shards) or any(
                s.first != f or s.count != min(per_shard, count - f) for s, f in pairs
            ):
                raise UserError(f"{self.path / _MANIFEST} does not list the shards of {count} images.")

    @property
    def settings(self) -> dict[str, Any]:
        """What the images are: size, seed, rules of the scenes."""
        return self.manifest["settings"]

    def __len__(self) -> int:
        return sum(shard.count for shard in self.shards)

    def __getitem__(self, index: int) -> _ShardRow:
        one = self.batch([index])
        return _ShardRow(one.images[0], one.masks[0], one.scenes.unstack()[0])

    def batch(self, rows: Sequence[int]) -> _ShardRows:
        """The images with these numbers, in this order."""
        content = self.tensors(rows)
        return _ShardRows(content["images"], content["masks"], _unpack_scenes(content))

    def tensors(self, rows: Sequence[int]) -> dict[str, Tensor]:
        """Everything stored about the images with these numbers, one row each."""
        wanted, parts = [self._checked(row) for row in rows], []
        opened: dict[int, Any] = {}
        for row in wanted or [0]:  # of no rows: the names and shapes of the first
            number = row // self.settings["per_shard"]
            shard = self.shards[number]
            try:
                file = opened[number] = opened.get(number) or self._open(shard)
                with reading(self.path):
                    parts.append({name: file.get_slice(name)[row - shard.first] for name in file.keys()})  # noqa: SIM118
            except (SafetensorError, OSError) as error:
                raise self._damaged(shard, getattr(error, "strerror", None) or str(error)) from error
        columns = {}
        for name in parts[0]:
            columns[name] = torch.stack([part[name] for part in parts])[: len(wanted)]
        return columns

    def verify(self, on_shard: Callable[[], Any] = lambda: None) -> None:
        """Compare every checksum; a damaged shard is named in one sentence."""
        for shard in self.shards:
            if not shard.is_intact(self.path):
                raise self._damaged(shard, "its checksum does not match the manifest")
            on_shard()

    def _checked(self, row: int) -> int:
        if not -len(self) <= row < len(self):
            raise IndexError(f"image {row} of {len(self)}")
        return row % len(self)

    def _open(self, shard: _Shard) -> Any:
        path = resolve_inside(self.path, shard.file)
        check_file(path)
        if (size := path.stat().st_size) != shard.bytes:
            raise self._damaged(shard, f"{size} bytes instead of {shard.bytes}")
        if shard.file not in self._verified and not shard.is_intact(self.path):
            raise self._damaged(shard, "its checksum does not match the manifest")
        self._verified.add(shard.file)  # once a process: opening again must stay cheap
        return safe_open(path, framework="pt")

    def _damaged(self, shard: _Shard, why: str) -> UserError:
        return UserError(
            f"Shard {shard.file} of {self.path} is damaged ({why});"
            " run the command that made the folder again to redraw it."
        )
