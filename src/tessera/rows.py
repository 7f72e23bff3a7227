"""Rows of tables: of text, the head first, and of records that share their keys."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

Rows = list[Sequence[str]]
NOT_RUN = "not run"


def plural(count: int, noun: str) -> str:
    """`1 image`, `64 images`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def distinct(names: Sequence[str]) -> list[str]:
    """Equal names are numbered: run, run (2)."""
    numbered: list[str] = []
    for n, name in enumerate(names):
        before = names[:n].count(name)
        numbered.append(f"{name} ({before + 1})" if before else name)
    return numbered


def or_not_run(rows: Rows) -> Rows:
    """The table, or its head and one row `not run` if it is empty."""
    head = rows[0]
    return rows if len(rows) > 1 else [head, (NOT_RUN, *[""] * (len(head) - 1))]


def turned(rows: Rows) -> Rows:
    """Columns as rows, for tables too wide for a terminal."""
    return list(zip(*rows, strict=True))


def pick(rows: Iterable[Mapping[str, Any]], names: Iterable[str]) -> list[dict[str, Any]]:
    """The same rows with these keys only."""
    names = tuple(names)
    return [dict(zip(names, map(row.__getitem__, names))) for row in rows]


def columns(rows: Iterable[Mapping[str, Any]], *names: str) -> Iterator[list[Any]]:
    """One list for each of these keys, such as `low, high = columns(shares, "low", "high")`."""
    rows = list(rows)
    for name in names:
        yield [row[name] for row in rows]
