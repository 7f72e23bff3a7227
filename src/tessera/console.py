"""Results go to stdout, progress to stderr, so that results can be piped."""

import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.box import SIMPLE
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from tessera.files import laid_out, make_folder, write_json

# Of tables with many columns, so that they fit into 80 characters.
NARROW: dict[str, Any] = {"box": SIMPLE, "padding": (0, 1, 0, 0), "show_edge": False}


_WIDTH_OF_FILES = 120  # characters of tables that are printed into files and notebooks


class _Piped(Console):
    """A console whose reader may leave early, as `| head` does; `cli.main` knows what to do then."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


stdout, stderr = _Piped(), Console(stderr=True)


def say(message: str) -> None:
    """Print a line on stderr."""
    _print_line(stderr, message)


def answer(*parts: Table | str) -> None:
    """Print results on stdout: tables, and lines about them."""
    for part in parts:
        if isinstance(part, str):
            _print_line(stdout, part)
        else:
            stdout.print(part)


def _print_line(where: Console, message: str) -> None:
    """The message as it is."""
    # A path may hold [brackets], and in a file or a pipe it stays whole.
    where.print(message, highlight=False, markup=False, soft_wrap=not where.is_terminal)


class ResultTable(Table):
    """A table that `print` shows as it shows text."""

    def __str__(self) -> str:
        plain = Console(width=stdout.width if stdout.is_terminal else _WIDTH_OF_FILES, color_system=None)
        with plain.capture() as shown:
            plain.print(self)
        return shown.get().rstrip("\n")


def print_json(record: dict[str, Any]) -> None:
    """Exactly one JSON object on stdout."""
    sys.stdout.write(laid_out(record) + "\n")


def table_of(rows: Iterable[Sequence[Any]], **style: Any) -> Table:
    """Rows of text, the head (of text or rich Columns) first, for the terminal; `style` as rich's `Table` takes it."""
    head, *body = rows
    table = Table(*head, **{**NARROW, **style})
    for row in body:
        table.add_row(*row)
    return table


def publish(record: dict[str, Any], as_json: bool, out: Path | None, *parts: Table | str) -> None:
    """Print a measurement as JSON, or as tables and lines, and write it to the file `out` if one is given."""
    if out:
        make_folder(out.parent)
        write_json(out, record)
    if as_json:
        print_json(record)
    else:
        answer(*parts)


@contextmanager
def progress(what: str, total: float | None) -> Iterator[Any]:
    """A bar on stderr; yields `advance(steps=1, note="", to=None)`, which moves it by some steps or to so many."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    )
    with Progress(*columns, console=stderr, transient=True, disable=not stderr.is_terminal) as bar:
        task = bar.add_task(what, total=total, note="")

        def advance(steps: float = 1, note: str | None = None, to: float | None = None) -> None:
            fields: dict[str, Any] = {} if note is None else {"note": note}
            bar.update(task, advance=steps if to is None else None, completed=to, **fields)

        yield advance
