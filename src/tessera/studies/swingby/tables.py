"""The table of swing-by in a diffusion model."""

from collections.abc import Mapping, Sequence
from typing import Any

from tessera.rows import Rows

HEADS = ("gap", "trainings", "first learned", "error at the end", "rise", "by chance, 95%", "p", "swing-by")


def swingby_rows(gaps: Sequence[Mapping[str, Any]]) -> Rows:
    """One row for each color gap."""
    return [HEADS, *(_swingby_row(gap) for gap in gaps)]


def _swingby_row(gap: Mapping[str, Any]) -> Sequence[str]:
    rise = gap["rise"]
    return (
        f"{gap['gap']:.3f}",
        str(gap["seeds"]),
        str(gap["first"]["concept"] or "neither"),
        f"{gap['error'][-1]:.3f}",
        f"{rise['value']:.3f} [{rise['low']:.3f}, {rise['high']:.3f}]",
        f"{gap['rise_by_chance']:.3f}",
        f"{gap['p']:.3f}",
        "yes" if gap["swing_by"] else "no",
    )
