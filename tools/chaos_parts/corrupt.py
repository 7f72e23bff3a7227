"""Corruptions of finished work: each must be refused or made good, and never change a result unseen.

JSON files without a checksum are damaged as disks and interrupted copies do it (cut, emptied, a block of other bytes,
missing), since a person may change a value in them on purpose; files with a checksum lose single bits as well.
"""

import json
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from chaos_parts.fuzz import outcome
from chaos_parts.readers import READERS, _load_model, _load_run, _read_shards, digest_of
from chaos_parts.world import QUICK, Ending, call, train_words
from tessera.errors import UserError
from tessera.records import as_record


class Target(NamedTuple):
    """A file, what reads it, whether a single changed bit must be noticed, and whether its absence must be."""

    file: str
    use: Callable[[Path], Any]
    sealed: bool = True
    listed: bool = True  # not so where whatever lies in a folder is taken


# --- uses that end in something to compare ----------------------------------------------------------------------


def _refusing(*words) -> None:
    ending = call(*words)
    if ending.code is None:
        raise RuntimeError(ending.said)
    if ending.code:
        raise UserError(ending.said)


def _trained(root: Path) -> str:
    """The same command carries on; what it ends with, without times."""
    from tessera.models.checkpoint_io import read_checkpoint

    _refusing(*train_words(root / "run", total=28))
    tensors, _ = read_checkpoint(root / "run/snapshots/state-000000000028.safetensors")
    log = [json.loads(line) for line in (root / "run/log.jsonl").read_text().splitlines()]
    return digest_of(tensors) + str([(row["images_seen"], row["loss"]) for row in log][-1:])


def _sampled(root: Path) -> str:
    given = ("--k", "1,2", "--each", "2", "--steps", "2", "--out", root / "samples", *QUICK)
    _refusing("sample", root / "run", *given)
    return _images(root / "samples")


def _rendered(root: Path) -> str:
    _refusing("render", "--count", "6", "--size", "16", "--shards", "2", "--out", root / "shards", *QUICK)
    return _read_shards(root)


def _pixels(root: Path) -> str:
    return _images(root / "samples")


def _images(folder: Path) -> str:
    from tessera.render.image_io import load_png

    return digest_of({path.name + path.parent.name: load_png(path) for path in folder.glob("k*/*.png")})


def _records(root: Path) -> str:
    from tessera.files import read_json

    return str(
        {path.name: dict(as_record(read_json(path)) or {}) for path in sorted((root / "results").rglob("*.json"))}
    )


_USES = {reader.use.__name__: reader.use for reader in READERS}

TARGETS = (
    *(Target(f"run/snapshots/state-{n:012d}.safetensors", _trained) for n in (16, 24)),
    *(
        Target(f"run/snapshots/ema-{n:012d}-{std}.safetensors", _load_run, listed=False)
        for n in (16, 24)
        for std in ("0.050", "0.100")
    ),
    Target("run/config.json", _trained, sealed=False),
    Target("run/log.jsonl", _trained, sealed=False),
    Target("model/model.safetensors", _load_model),
    Target("model/config.json", _load_model, sealed=False),
    *(Target(f"shards/shard-{n:05d}.safetensors", use) for n in range(3) for use in (_read_shards, _rendered)),
    Target("shards/manifest.json", _read_shards, sealed=False),
    Target("samples/samples.json", _sampled, sealed=False),
    *(Target(f"samples/k01/000{n}.png", _pixels, listed=False) for n in range(2)),
    *(
        Target(f"results/{name}.json", _records, sealed=False, listed=False)
        for name in ("scatter", "swingby", "theory-check")
    ),
    Target("detector/detector.safetensors", _USES["_detector"]),
    Target("detector/detector.json", _USES["_detector"], sealed=False),
)

# A file under the name of another of its kind: both are whole, and one is the wrong one.
EXCHANGES = (
    ("run/snapshots/ema-000000000016-0.050.safetensors", "run/snapshots/ema-000000000024-0.050.safetensors", _load_run),
    ("run/snapshots/ema-000000000024-0.100.safetensors", "run/snapshots/ema-000000000024-0.050.safetensors", _load_run),
    (
        "other/snapshots/ema-000000000024-0.050.safetensors",
        "run/snapshots/ema-000000000024-0.050.safetensors",
        _load_run,
    ),
    ("other/snapshots/state-000000000024.safetensors", "run/snapshots/state-000000000024.safetensors", _trained),
    ("run/snapshots/state-000000000016.safetensors", "run/snapshots/state-000000000024.safetensors", _trained),
    ("shards/shard-00001.safetensors", "shards/shard-00000.safetensors", _read_shards),
    ("shards/shard-00001.safetensors", "shards/shard-00000.safetensors", _rendered),
    ("run/snapshots/ema-000000000024-0.050.safetensors", "model/model.safetensors", _load_model),
)


# --- damages ----------------------------------------------------------------------------------------------------


def _cut(content: bytes, chance: random.Random) -> bytes:
    return content[: chance.randrange(1, len(content) - 2)]


def _emptied(content: bytes, chance: random.Random) -> bytes:
    return b""


def _zeros(content: bytes, chance: random.Random) -> bytes:
    return _block(content, chance, bytes(64))


def _noise(content: bytes, chance: random.Random) -> bytes:
    return _block(content, chance, bytes([255, *chance.randbytes(63)]))


def _block(content: bytes, chance: random.Random, block: bytes) -> bytes:
    at = chance.randrange(max(1, len(content) - len(block)))
    return content[:at] + block[: len(content) - at] + content[at + len(block) :]


def _bit(content: bytes, chance: random.Random) -> bytes:
    changed = bytearray(content)
    changed[chance.randrange(len(changed))] ^= 1 << chance.randrange(8)
    return bytes(changed)


def _appended(content: bytes, chance: random.Random) -> bytes:
    return content + chance.randbytes(100)


_DAMAGES = (_cut, _emptied, _zeros, _noise)
_OF_SEALED = (_bit, _bit, _appended)


def _cases(turns: int) -> Iterator[tuple[str, Target, Callable | None, int]]:
    for target in TARGETS:
        if target.listed:
            yield "missing", target, None, 0
        for way in _DAMAGES + (_OF_SEALED if target.sealed else ()):
            for turn in range(1 if way is _emptied else turns):
                yield way.__name__.strip("_"), target, way, turn


# --- running them -----------------------------------------------------------------------------------------------


def corruptions(world: Path, turns: int, share: tuple[int, int] = (0, 1), part: float = 1.0) -> list[dict[str, Any]]:
    """Every case of this worker's share, or a part of them, and how it ended."""
    truth: dict[Any, tuple[str, str]] = {}
    own = world.parent / f"corrupt-{share[0]}"

    def undamaged(use: Callable[[Path], Any]) -> tuple[str, str]:
        if use not in truth:
            _fresh(world, own)
            truth[use] = outcome(use, own)
            assert truth[use][0] == "read", truth[use]
        return truth[use]

    rows, chosen = [], random.Random(0)
    for name, target, way, turn in list(_cases(turns))[share[0] :: share[1]]:
        if chosen.random() > part:
            continue
        right = undamaged(target.use)
        _fresh(world, own)
        path = own / target.file
        chance = random.Random(f"{name} {target.file} {turn}")
        if way is None:
            path.unlink()
        else:
            path.write_bytes(way(path.read_bytes(), chance))
        rows.append(_ended(f"{name} {target.file}", outcome(target.use, own), right))
    for source, name, use in EXCHANGES[share[0] :: share[1]]:
        if chosen.random() > max(part, 0.25):
            continue
        right = undamaged(use)
        _fresh(world, own)
        shutil.copy(own / source, own / name)
        rows.append(_ended(f"{source} as {name}", outcome(use, own), right))
    if share[0] == 0:
        rows.append(_other_settings(world, own))
    shutil.rmtree(own, ignore_errors=True)
    return rows


def _other_settings(world: Path, own: Path) -> dict[str, Any]:
    """config.json is gone, and the run is called with another batch: to be refused."""
    _fresh(world, own)
    (own / "run/config.json").unlink()
    ending = call(*train_words(own / "run", total=28), "--training.lr", "0.001")
    how = {None: "traceback", 2: "refused"}.get(ending.code, "silently wrong")
    return {"case": "config.json gone, another learning rate", "ending": how, "words": ending.said[-2000:]}


def _fresh(world: Path, own: Path) -> None:
    shutil.rmtree(own, ignore_errors=True)
    shutil.copytree(world, own)


def _ended(case: str, found: tuple[str, str], right: tuple[str, str]) -> dict[str, Any]:
    ending = found[0]
    if ending == "read":
        ending = "recovered" if _comparable(found[1]) == _comparable(right[1]) else "silently wrong"
    return {"case": case, "ending": ending, "words": found[1][-2000:] if ending != "recovered" else ""}


def _comparable(words: str) -> str:
    return words.replace("corrupt-0", "").replace("corrupt-1", "")


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    count = {how: sum(row["ending"] == how for row in rows) for how in ("refused", "recovered", "silently wrong")}
    failures = [row for row in rows if row["ending"] not in ("refused", "recovered")]
    return {
        "cases": len(rows),
        "refused_or_recovered": count["refused"] + count["recovered"],
        "tracebacks": len(failures) - count["silently wrong"],
        "silently_wrong": count["silently wrong"],
        "failures": failures,
    }


__all__ = ["Ending", "corruptions", "summary"]
