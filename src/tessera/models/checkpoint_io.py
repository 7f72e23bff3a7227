"""Tensor files with a checksum: safetensors whose header carries a digest of all they hold."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from tessera.errors import UserError
from tessera.files import atomic, check_file, parse_json, reading, reads


def write_checkpoint(path: Path, tensors: Mapping[str, Tensor], facts: Mapping[str, Any] | None = None) -> str:
    """Write tensors and plain facts whole or not at all. Returns the digest."""
    held = {name: tensor.detach().contiguous().cpu() for name, tensor in tensors.items()}
    text = json.dumps(dict(facts or {}), sort_keys=True, allow_nan=False)
    digest_hex = digest(held, text)
    with atomic(path) as temporary:
        # The library's own writer leaves files that only their owner may read, and half of one after a kill.
        temporary.write_bytes(save(held, metadata={"facts": text, "sha256": digest_hex}))
    return digest_hex


def read_checkpoint(path: Path, device=None) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and facts of an undamaged file, or one sentence that says what is wrong with it."""
    check_file(path)
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            # Copied, not mapped: what was checked must stay what is used, even if the file changes.
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
    except FileNotFoundError:
        raise UserError(f"There is no file {path}.") from None
    except (SafetensorError, OSError, ValueError) as error:
        raise UserError(f"{path} is damaged or no tensor file: {error}.") from error
    text = metadata.get("facts", "{}")
    if metadata.get("sha256") != digest(tensors, text):
        raise UserError(f"{path} is not what was written: its checksum does not match its content.")
    with reading(path):
        return {name: tensor.to(device) for name, tensor in tensors.items()}, dict(parse_json(text))


@reads
def read_facts(path: Path) -> dict[str, Any]:
    """The facts of a file, not yet compared with its checksum; none of a damaged one, which is no reason to stop."""
    check_file(path)
    try:
        with safe_open(path, framework="pt") as file:
            return dict(parse_json((file.metadata() or {}).get("facts", "{}")))
    except (SafetensorError, TypeError, ValueError):
        return {}


def read_float32(path: Path, expected: Mapping[str, Any] | None = None) -> dict[str, Tensor]:
    """The tensors of a file in single precision, as networks hold them, if its facts are those that its name says."""
    tensors, facts = read_checkpoint(path)
    for name, value in (expected or {}).items():
        if facts.get(name, value) != value:
            raise UserError(f"{path} is not what its name says: its {name} is {facts[name]}, not {value}.")
    return {name: tensor.float() for name, tensor in tensors.items()}


def digest(tensors: Mapping[str, Tensor], text: str) -> str:
    """SHA-256 over the facts and every tensor's name, type, shape and bytes."""
    digest_hex = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest_hex.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest_hex.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest_hex.hexdigest()


def to_half(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Matrices in half precision; vectors and numbers, of which there are few, stay as they are."""
    return {
        name: value.half() if value.ndim >= 2 and value.is_floating_point() else value for name, value in state.items()
    }
