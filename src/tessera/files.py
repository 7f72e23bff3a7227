"""Atomic files, JSON, folders and checksums: a file is written beside its target and renamed over it."""

import hashlib
import io
import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tessera.errors import UserError

LINE = 160  # characters
_TIGHT = (",", ":")  # between the values of a list, and after a name: a blank there is a tenth of a record


@contextmanager
def atomic(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`; on success it becomes `path`, on failure it is removed.

    Where `path` is a link, what it points at is written, and the link stays one.
    """
    path = Path(os.path.realpath(path))
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}.part")
    try:
        yield temporary
        with open(temporary, "rb+") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        raise UserError(f"Could not write {path}: {error.strerror or error}.") from error
    finally:
        temporary.unlink(missing_ok=True)


def save_plot(figure: Any, path: Path, dpi: int = 110) -> None:
    """A matplotlib figure as a PNG of 256 colors, a third as large as one of all colors."""
    from PIL import Image

    drawn = io.BytesIO()
    figure.savefig(drawn, format="png", dpi=dpi, bbox_inches="tight")
    few = Image.open(drawn).convert("RGB").quantize(256, Image.Quantize.FASTOCTREE)
    with atomic(path) as temporary:
        few.save(temporary, "PNG", optimize=True)


def write_json(path: Path, content: Any) -> None:
    with atomic(path) as temporary:
        temporary.write_text(laid_out(content) + "\n")


def rounded(content: Any, digits: int = 5) -> Any:
    """Content with every float rounded to so many significant digits."""
    if isinstance(content, float):
        return float(f"{content:.{digits}g}")
    if isinstance(content, dict):
        return {name: rounded(value, digits) for name, value in content.items()}
    if isinstance(content, list | tuple):
        return [rounded(value, digits) for value in content]
    return content


def laid_out(content: Any, depth: int = 0) -> str:
    """JSON with every value that fits into a line on one line: smaller and easier to read than one value per line."""
    line = json.dumps(content, allow_nan=False, separators=_TIGHT)
    if not isinstance(content, dict | list | tuple) or depth + len(line) <= LINE:
        return line
    if isinstance(content, dict):
        entries = [f"{key(name)}:{laid_out(value, depth + 1)}" for name, value in content.items()]
    else:
        entries = [laid_out(value, depth + 1) for value in content]
    opening, closing = "{}" if isinstance(content, dict) else "[]"
    margin = " " * (depth + 1)
    return opening + "\n" + ",\n".join(margin + entry for entry in entries) + f"\n{margin[1:]}{closing}"


def key(name: Any) -> str:
    """The name of an entry as JSON spells it: None is "null", 1 is "1"."""
    return json.dumps({name: 0}, separators=_TIGHT).removeprefix("{").removesuffix(":0}")


def read_json(path: Path) -> Any:
    """The parsed file; an unreadable one raises a UserError."""
    try:
        return json.loads(Path(path).read_text())
    except OSError as error:
        raise UserError(f"Could not read {path}: {error.strerror or error}.") from error
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is not valid JSON: {error}.") from error


def read_lines(path: Path) -> list[Any]:
    """The entries of a file with one JSON value per line; a truncated last line is skipped."""
    found = []
    for line in path.read_text().splitlines():
        try:
            found.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return found


def resolve_inside(folder: Path, name: Any) -> Path:
    """The path `folder / name`, for a name read from an untrusted file.

    Refuses whatever lies outside the folder once links are followed: absolute names, `..`, links that lead away.
    The folder itself may be a link.
    """
    try:
        path = Path(folder) / name
        inside = Path(os.path.realpath(folder)) in Path(os.path.realpath(path)).parents
    except (TypeError, ValueError):  # no string, or one with a null byte
        inside = False
    if not inside:
        raise UserError(f"{folder} names {name!r}, which is not a file inside that folder.")
    return path


def make_folder(path: Path) -> Path:
    """Create `path` and check that we may write there."""
    path = Path(path)
    try:
        path.mkdir(parents=True, exist_ok=True)
        probe = path / f".probe-{os.getpid()}"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise UserError(f"Could not write into {path}: {error.strerror or error}.") from error
    return path


def check_writable(path: Path) -> None:
    """Raise a UserError if a file cannot be written here; missing parent folders are not created yet."""
    if path.is_dir():
        raise UserError(f"{path} is a folder, and a file is to be written there.")
    folder = next(above for above in path.absolute().parents if above.exists())
    make_folder(folder)


def sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
