"""Tables of README and docs before they are Markdown: rows of text, the head first."""

from collections.abc import Sequence

Rows = list[Sequence[str]]
NOT_RUN = "not run"


def or_not_run(rows: Rows) -> Rows:
    """The table, or its head and one row `not run` if it is empty."""
    head = rows[0]
    return rows if len(rows) > 1 else [head, (NOT_RUN, *[""] * (len(head) - 1))]


def turned(rows: Rows) -> Rows:
    """Columns as rows, for tables too wide for a terminal."""
    return list(zip(*rows, strict=True))
