"""Images become verdicts: what was drawn, whether it is what was asked for, and how far to trust that.

The public names are imported when first asked for, so that verdicts on counts cost no torch.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tessera.evaluation.detection import Detection as Detection
    from tessera.evaluation.detector import Detector as Detector
    from tessera.evaluation.detector import load_detector as load_detector
    from tessera.evaluation.kmax import length_generalization as length_generalization
    from tessera.evaluation.matching import Verdict as Verdict
    from tessera.evaluation.matching import match as match
    from tessera.evaluation.matching import match_colors as match_colors

WHERE = {
    "detection": ("Detection",),
    "detector": ("Detector", "load_detector"),
    "kmax": ("length_generalization",),
    "matching": ("Verdict", "match", "match_colors"),
}


def __getattr__(name: str) -> Any:
    for module, names in WHERE.items():
        if name in names:
            return getattr(importlib.import_module(f"tessera.evaluation.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [name for names in WHERE.values() for name in names]
