"""Pictures become verdicts: what was drawn, whether it is what was asked for, and how far to trust that.

The public names are imported when first asked for, so that verdicts on counts cost no torch.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tessera.judge.finding import Finding as Finding
    from tessera.judge.judge import Judge as Judge
    from tessera.judge.judge import load_judge as load_judge
    from tessera.judge.kmax import length_generalization as length_generalization
    from tessera.judge.matching import Verdict as Verdict
    from tessera.judge.matching import match as match
    from tessera.judge.matching import match_colors as match_colors

WHERE = {
    "finding": ("Finding",),
    "judge": ("Judge", "load_judge"),
    "kmax": ("length_generalization",),
    "matching": ("Verdict", "match", "match_colors"),
}


def __getattr__(name: str) -> Any:
    for module, names in WHERE.items():
        if name in names:
            return getattr(importlib.import_module(f"tessera.judge.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [name for names in WHERE.values() for name in names]
