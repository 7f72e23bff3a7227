"""Hostile contents: JSON changed at random, bytes flipped, cut or repeated, bombs, and what is no file."""

import io
import json
import os
import random
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

_VALUES: tuple[Any, ...] = (
    None, True, -1, 0, 1, 10**9, 10**30, -(10**400), 0.5, 1e308, float("nan"), float("inf"), "", "a" * 300, "a" * 5000,
    "../../victim", "/etc/passwd", "\0", "\ud800", "<script>alert(1)</script>", [], {}, [[]], [None], {"": None},
    [1e300, -1e300], [0] * 10_000, "9" * 5000,
)  # fmt: skip


def damage(path: Path, kind: str, chance: random.Random) -> str:
    """Change the file in spot; returns what was done."""
    ways: dict[str, tuple[Callable[[bytes, random.Random], bytes], ...]] = {
        "json": (_changed_json,) * 7 + (_bytes, _deep, _odd_text),
        "lines": (_changed_lines,) * 6 + (_bytes, _deep, _odd_text),
        "image": (_bytes, _bytes, _chunk, _chunk, _bomb),
        "tensors": (_bytes, _bytes, _header, _header),
        "bytes": (_bytes, _tar_bomb),
    }
    if chance.random() < 0.03:
        return _no_file(path, chance)
    way = chance.choice(ways[kind])
    path.write_bytes(way(path.read_bytes(), chance))
    return way.__name__


# --- JSON -------------------------------------------------------------------------------------------------------


def _changed_json(content: bytes, chance: random.Random) -> bytes:
    value = json.loads(content)
    for _ in range(chance.choice((1, 1, 1, 2, 4))):
        value = _changed(value, chance)
    return json.dumps(value).encode()


def _changed_lines(content: bytes, chance: random.Random) -> bytes:
    lines = content.splitlines()
    number = chance.randrange(len(lines))
    lines[number] = _changed_json(lines[number], chance)
    return b"\n".join(lines)


def _changed(value: Any, chance: random.Random) -> Any:
    """A copy with one change somewhere inside, at any depth."""
    if isinstance(value, dict | list) and value and chance.random() < 0.85:
        keys = list(value) if isinstance(value, dict) else list(range(len(value)))
        key = chance.choice(keys)
        copy: Any = value.copy()
        copy[key] = _changed(value[key], chance)
        return copy
    if isinstance(value, dict) and value and chance.random() < 0.6:
        gone = chance.choice(list(value))
        return {name: part for name, part in value.items() if name != gone}
    if isinstance(value, list) and value and chance.random() < 0.6:
        return value + value if chance.random() < 0.5 else value[1:]
    if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 2**53 and chance.random() < 0.3:
        return chance.choice((-value, value * 1000, value + 1, str(value), float(value)))
    return chance.choice(_VALUES)


def _deep(content: bytes, chance: random.Random) -> bytes:
    opening, closing = chance.choice(((b"[", b"]"), (b'{"a":', b"}")))
    depth = chance.choice((200, 900, 3000, 200_000))
    core = content.strip() if chance.random() < 0.5 else b"1"
    return opening * depth + core + closing * depth


def _odd_text(content: bytes, chance: random.Random) -> bytes:
    odd = (b"", b" ", b"null", b"[]", b"{}", b'"a"', b"1", b"\xff\xfe", b"\xef\xbb\xbf" + content, content.replace(b'"', b"'"),
           b'{"a": 1e999}', b"9" * 5000, content.decode("latin1").encode("utf-16"), content + content)  # fmt: skip
    return chance.choice(odd)


# --- bytes ------------------------------------------------------------------------------------------------------


def _bytes(content: bytes, chance: random.Random) -> bytes:
    changed, at = bytearray(content), chance.randrange(max(1, len(content)))
    match chance.randrange(5):
        case 0:
            return content[:at]
        case 1:
            for _ in range(chance.choice((1, 1, 8, 64))):
                changed[chance.randrange(len(changed))] ^= 1 << chance.randrange(8)
        case 2:
            changed[at : at + 64] = chance.randbytes(64)
        case 3:
            changed[at : at + 512] = bytes(len(changed[at : at + 512]))
        case _:
            changed[at:at] = changed[max(0, at - 100) : at]
    return bytes(changed)


def _header(content: bytes, chance: random.Random) -> bytes:
    """A safetensors file whose header lies."""
    length = struct.unpack("<Q", content[:8])[0]
    header, body = json.loads(content[8 : 8 + length]), content[8 + length :]
    if chance.random() < 0.2:
        return struct.pack("<Q", chance.choice((0, 2**63, 2**31, length * 2))) + content[8:]
    text = json.dumps(_changed(_changed(header, chance), chance)).encode()
    return struct.pack("<Q", len(text)) + text + body


def _chunk(content: bytes, chance: random.Random) -> bytes:
    """A PNG with one chunk changed and its checksum right again."""
    chunks, at = [], 8
    while at + 12 <= len(content):
        length = struct.unpack(">I", content[at : at + 4])[0]
        chunks.append((content[at + 4 : at + 8], content[at + 8 : at + 8 + length]))
        at += 12 + length
    number = chance.randrange(len(chunks)) if chunks else 0
    if chunks:
        name, data = chunks[number]
        chunks[number] = (name, _bytes(data or b"\0", chance))
    return content[:8] + b"".join(png_chunk(name, data) for name, data in chunks)


def png_chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def _bomb(content: bytes, chance: random.Random) -> bytes:
    """Few bytes that stand for many pixels."""
    side, depth = chance.choice(((13_000, 8), (60_000, 8), (2**31 - 1, 8), (9_000, 16)))
    head = struct.pack(">IIBBBBB", side, side, depth, chance.choice((0, 2)), 0, 0, 0)
    data = zlib.compress(bytes(1 << 20), 9) if side > 20_000 else _zeros(side * 3)
    return content[:8] + png_chunk(b"IHDR", head) + png_chunk(b"IDAT", data) + png_chunk(b"IEND", b"")


def _zeros(count: int) -> bytes:
    packer = zlib.compressobj(9)
    return b"".join(packer.compress(bytes(count)) for _ in range(200)) + packer.flush()


def _tar_bomb(content: bytes, chance: random.Random) -> bytes:
    import tarfile

    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:gz", compresslevel=1) as archive:
        member = tarfile.TarInfo("cifar-10-batches-bin/test_batch.bin")
        member.size = chance.choice((200 << 20, 3073))
        archive.addfile(member, io.BytesIO(bytes(member.size)))
    packed = made.getvalue()
    return packed if chance.random() < 0.5 else packed[: len(packed) // 2]


# --- what is no file --------------------------------------------------------------------------------------------


def _no_file(path: Path, chance: random.Random) -> str:
    path.unlink()
    way = chance.choice(("missing", "fifo", "folder", "loop", "device"))
    if way == "fifo":
        os.mkfifo(path)
    elif way == "folder":
        path.mkdir()
    elif way == "loop":
        path.symlink_to(path.name)
    elif way == "device":
        path.symlink_to("/dev/zero")
    return way
