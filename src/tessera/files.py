"""Atomic files, JSON, folders and checksums: a file is written beside its target and renamed over it."""

import functools
import hashlib
import io
import json
import math
import os
import socket
import struct
import tempfile
import threading
import types
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal, ParamSpec, TypeVar, Union, get_args, get_origin, get_type_hints

from tessera.errors import UserError

_P = ParamSpec("_P")
_R = TypeVar("_R")
LINE = 160  # characters
_HOST = socket.gethostname().partition(".")[0]  # folders may be shared by machines, whose process numbers say nothing
_MOST_WORDS = 200  # characters of somebody else's words in a sentence of ours
_TIGHT = (",", ":")  # between the values of a list, and after a name: a blank there is a tenth of a record


@contextmanager
def atomic(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`; on success it becomes `path`, on failure it is removed.

    Where `path` is a link, what it points at is written, and the link stays one.
    """
    path = Path(os.path.realpath(path))
    # The name is cut, since one of 255 bytes is allowed for a file and what follows it here must fit, too.
    temporary = path.with_name(f".{path.name[: _MOST_WORDS // 4]}.{_HOST}.{os.getpid()}-{threading.get_ident()}.part")
    try:
        _remove_leftovers(path.parent)
        yield temporary
        with open(temporary, "rb+") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        raise UserError(f"Could not write {path}: {error.strerror or error}.") from error
    finally:
        temporary.unlink(missing_ok=True)


@functools.cache
def _remove_leftovers(folder: Path) -> None:
    """Remove, once a process, what processes of this machine that were killed had begun to write into a folder."""
    for leftover in folder.glob(f".*.{_HOST}.*-*.part"):
        writer = leftover.name.rsplit(".", 2)[1].partition("-")[0]
        try:
            os.kill(int(writer), 0)
        except ProcessLookupError:
            leftover.unlink(missing_ok=True)
        except (ValueError, PermissionError):  # not ours, or another user's, who is still writing
            continue


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


# --- reading what may be damaged, or made to do harm ---------------------------------------------------------------

_LARGEST = 1 << 30  # bytes of a JSON file; the scenes of CLEVR's training split are 0.4 GB
_DEEPEST = 100  # levels of lists and objects
_WORST_INTEGER = 2**63
_UNFIT = (  # what content of the wrong kind makes Python and its libraries raise
    ArithmeticError, AttributeError, EOFError, LookupError, RecursionError, SyntaxError, TypeError, ValueError,
    struct.error, zlib.error,
)  # fmt: skip


@contextmanager
def reading(path: Path | str) -> Iterator[None]:
    """While the content of a file is taken apart: whatever does not fit becomes one sentence."""
    try:
        yield
    except OSError as error:
        raise UserError(f"Could not read {path}: {error.strerror or error}.") from error
    except _UNFIT as error:
        why = str(error)[:_MOST_WORDS].rstrip(".")
        raise UserError(f"{path} is damaged, or not what it should be: {type(error).__name__}: {why}.") from error


def reads(read: Callable[_P, _R]) -> Callable[_P, _R]:
    """A function whose first argument is the file or folder it reads, with `reading` around it."""

    @functools.wraps(read)
    def checked(*args: _P.args, **options: _P.kwargs) -> _R:
        with reading(str(args[0])):
            return read(*args, **options)

    return checked


def check_file(path: Path, most: int | None = None) -> None:
    """Refuse what is no regular file, since a pipe or a device may never end, and one of more than `most` bytes."""
    if os.path.lexists(path) and not path.is_file():
        raise UserError(f"Could not read {path}: it is no regular file.")
    if most is not None and path.is_file() and path.stat().st_size > most:
        raise UserError(f"{path} is larger than {most >> 20} MiB.")


def read_json(path: Path) -> Any:
    """The parsed file; an unreadable one, or one of immoderate depth or numbers, raises a UserError."""
    path = Path(path)
    check_file(path, _LARGEST)
    try:
        return parse_json(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"Could not read {path}: {error.strerror or error}.") from error
    except ValueError as error:
        raise UserError(f"{path} is not valid JSON: {error}.") from error


def parse_json(text: str) -> Any:
    """The value, or a ValueError if it is of immoderate depth or numbers."""
    try:
        content = json.loads(text)
    except RecursionError as error:
        raise ValueError(str(error)) from error
    _check_moderate(content)
    return content


def _check_moderate(content: Any) -> None:
    """Level by level, since a function that calls itself would not survive what it is to refuse."""
    level, depth = [content], 0
    while level:
        depth, inner = depth + 1, []
        for value in level:
            if isinstance(value, dict):
                inner += [*value, *value.values()]
            elif isinstance(value, list):
                inner += value
            elif isinstance(value, str):
                value.encode()  # half of a surrogate pair could never be written again
            elif isinstance(value, float) and not math.isfinite(value):
                raise ValueError(f"{value} is no number")
            elif isinstance(value, int) and abs(value) >= _WORST_INTEGER:
                raise ValueError("a number has more than 18 digits")
        level = inner
        if depth > _DEEPEST:
            raise ValueError(f"it is nested more than {_DEEPEST} levels deep")


def read_lines(path: Path) -> list[Any]:
    """The entries of a file with one JSON value per line; damaged lines, such as a truncated last one, are skipped."""
    check_file(path, _LARGEST)
    found = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            found.append(parse_json(line))
        except ValueError:
            continue
    return found


def fits_type(value: Any, hint: Any) -> bool:
    """Whether a JSON value is of an annotated type; a whole number will do as a float, a list as a tuple."""
    origin, parts = get_origin(hint), get_args(hint)
    if hint is Any:
        return True
    if origin is Annotated:
        return fits_type(value, parts[0])
    if origin in (Union, types.UnionType):
        return any(fits_type(value, part) for part in parts)
    if origin is Literal:
        return any(value == part and type(value) is type(part) for part in parts)
    if origin is tuple:
        ends = len(parts) if parts[-1] is not Ellipsis else None
        return isinstance(value, list | tuple) and ends in (None, len(value)) and _all_fit(value, parts[0])
    if origin is list:
        return isinstance(value, list) and _all_fit(value, parts[0])
    if origin is dict:
        return isinstance(value, dict)
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if isinstance(value, bool):
        return hint is bool
    kind = origin or hint
    return not isinstance(kind, type) or isinstance(value, kind)


def _all_fit(values: Iterable[Any], hint: Any) -> bool:
    return all(fits_type(value, hint) for value in values)


def check_types(kind: Any, content: Mapping[str, Any], what: str) -> None:
    """Refuse an object one of whose entries is not of the type that a dataclass, or a function, gives it."""
    hints = get_type_hints(kind, include_extras=True)
    for name, value in content.items():
        if name in hints and not fits_type(value, hints[name]):
            raise UserError(f"{what}: `{name}` cannot be {repr(value)[:_MOST_WORDS]}.")


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
        tempfile.TemporaryFile(dir=path).close()  # without a name, so that a kill leaves nothing
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
    check_file(path)
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
