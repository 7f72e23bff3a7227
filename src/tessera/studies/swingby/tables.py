"""The table of swing-by in a diffusion model."""

from collections.abc import Mapping, Sequence
from typing import Any

from tessera.rows import Rows


def swingby_rows(gaps: Sequence[Mapping[str, Any]]) -> Rows:
    """One row for each color gap."""
    rows: Rows = [("gap", "trainings", "first learned", "error at the end", "rise", "by chance, 95%", "p", "swing-by")]
    for gap in gaps:
        row = (
            f"{gap['gap']:.3f}",
            str(gap["seeds"]),
            gap["first"]["concept"] or "neither",
            f"{gap['error'][-1]:.3f}",
            "{value:.3f} [{low:.3f}, {high:.3f}]".format(**gap["rise"]),
            f"{gap['rise_by_chance']:.3f}",
            f"{gap['p']:.3f}",
            "yes" if gap["swing_by"] else "no",
        )
        rows.append(row)
    return rows
