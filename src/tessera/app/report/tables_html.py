"""A table that reads as HTML and copies as LaTeX and CSV."""

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass, field

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
    words: frozenset[int] = field(default_factory=frozenset)  # columns set as text, not as numbers

    def __post_init__(self):
        widths = {len(row) for row in (self.head, *self.rows)}
        if len(widths) > 1:
            raise ValueError(f"The table `{self.title}` has rows of {sorted(widths)} cells.")

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


def without_empty_columns(sheet: HtmlTable) -> HtmlTable:
    """The same table less the columns in which no row says anything."""
    kept = [n for n in range(len(sheet.head)) if n == 0 or any(row[n] for row in sheet.rows)]
    words = frozenset(new for new, old in enumerate(kept) if old in sheet.words)
    rows = [[row[n] for n in kept] for row in sheet.rows]
    return HtmlTable(sheet.title, [sheet.head[n] for n in kept], rows, sheet.note, words)


def _escaped(text: str) -> str:
    """Text that LaTeX prints as it is; K_max becomes a symbol."""
    parts = str(text).split("K_max")
    return "$K_{\\max}$".join("".join(_SPECIAL.get(letter, letter) for letter in part) for part in parts)


# --- numbers in words ---------------------------------------------------------------------------------------


def percent(share: dict | None) -> str:
    """`88 [77, 95]`, in percent, with the interval where there is one."""
    if share is None or share["value"] is None:
        return ""
    return f"{100 * share['value']:.0f} [{100 * share['low']:.0f}, {100 * share['high']:.0f}]"


def mean(found: dict | None, form: str = ".2f") -> str:
    """`2.94 [2.88, 2.98]`."""
    if found is None or found["value"] is None:
        return ""
    return f"{found['value']:{form}} [{found['low']:{form}}, {found['high']:{form}}]"


def interval(found: dict | None, form: str = ".2f") -> str:
    """`0.83 [0.80, 0.86]` of a record with value, low and high."""
    if found is None or found["value"] is None:
        return "not measured"
    return f"{found['value']:{form}} [{found['low']:{form}}, {found['high']:{form}}]"


def yes_no(value: bool | None) -> str:
    return {True: "✓", False: "✗", None: ""}[value]
