"""A table that reads as HTML and copies as LaTeX and CSV."""

import csv
import io
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_SPECIAL = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "σ": r"$\sigma$", "≥": r"$\ge$", "×": r"$\times$",
    "–": "--", "±": r"$\pm$", "−": "$-$", "λ": r"$\lambda$", "✓": "yes", "✗": "no",
}  # fmt: skip


@dataclass(frozen=True)
class HtmlTable:
    """Rows of words under a head; the first column names the row."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""
    words: frozenset[int] = frozenset()  # columns set as text, not as numbers

    def __post_init__(self):
        widths = {len(row) for row in (self.head, *self.rows)}
        if len(widths) > 1:
            raise ValueError(f"The table `{self.title}` has rows of {sorted(widths)} cells.")

    @staticmethod
    def of(
        title: str,
        records: Iterable[Mapping[str, Any]],
        columns: Mapping[str, str],
        note: str = "",
        words: Collection[str] = (),
    ) -> "HtmlTable":
        """A row for each record; `columns`: head -> what `cell` shows. Columns in which no row says anything are left out."""
        every = [[cell(record, what) for what in columns.values()] for record in records]
        kept = [n for n in range(len(columns)) if n == 0 or any(row[n] for row in every)]
        head = [list(columns)[n] for n in kept]
        as_text = frozenset(n for n, name in enumerate(head) if name in words)
        return HtmlTable(title, head, [[row[n] for n in kept] for row in every], note, as_text)

    @property
    def csv(self) -> str:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([self.head, *self.rows])
        return text.getvalue()

    @property
    def latex(self) -> str:
        """A booktabs table with its caption."""
        columns = "".join("l" if number == 0 or number in self.words else "r" for number in range(len(self.head)))
        lines = [" & ".join(_escaped(cell) for cell in row) + r" \\" for row in (self.head, *self.rows)]
        return "\n".join(
            [
                r"\begin{table}", r"\centering", rf"\caption{{{_escaped(self.title)}}}",
                rf"\begin{{tabular}}{{{columns}}}", r"\toprule", lines[0], r"\midrule", *lines[1:], r"\bottomrule",
                r"\end{tabular}", r"\end{table}", "",
            ]
        )  # fmt: skip


def _escaped(text: str) -> str:
    """Text that LaTeX prints as it is; K_max becomes a symbol."""
    parts = str(text).split("K_max")
    return "$K_{\\max}$".join("".join(_SPECIAL.get(letter, letter) for letter in part) for part in parts)


# --- numbers in words ---------------------------------------------------------------------------------------


def cell(record: Mapping[str, Any], what: str) -> str:
    """The entry at a path, in the format behind its colon: `detector.exact_count:%`, `error:.2g`."""
    path, _, form = what.partition(":")
    value: Any = record
    for name in path.split("."):
        value = value.get(name) if value else None
    return in_words(value, form)


def in_words(value: Any, form: str = "") -> str:
    """A truth as a tick, an interval, a list, or a single value; nothing where it is not known."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "✓" if value else "✗"
    if isinstance(value, Mapping):
        return interval(value, ".0f", 100) if form == "%" else interval(value, form)
    if isinstance(value, list | tuple):
        return ", ".join(f"{part:{form}}" for part in value)
    return f"{value:{form}}"


def interval(found: Mapping[str, Any], form: str = ".2f", scale: float = 1) -> str:
    """`0.83 [0.80, 0.86]` of a record with value, low and high."""
    if found["value"] is None:
        return ""
    value = f"{scale * found['value']:{form}}"
    # A bootstrap of one sample gives an interval of no width, which would look like certainty.
    of_one = found.get("n", found.get("images")) == 1 and found["low"] == found["high"]
    if found["low"] is None or of_one:
        return value
    return f"{value} [{scale * found['low']:{form}}, {scale * found['high']:{form}}]"
