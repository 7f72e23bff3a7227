"""Detection of objects in images, scores of images and models, and how far to trust them.

The public names are imported when first used, so that scores of counts cost no torch.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tessera.evaluation.detection import Detection as Detection
    from tessera.evaluation.detector import Detector as Detector
    from tessera.evaluation.detector import load_detector as load_detector
    from tessera.evaluation.matching import ImageScore as ImageScore
    from tessera.evaluation.pipeline import EvaluationConfig as EvaluationConfig
    from tessera.evaluation.pipeline import Evaluator as Evaluator
    from tessera.evaluation.pipeline import evaluate as evaluate
    from tessera.evaluation.pipeline import length_generalization as length_generalization
    from tessera.evaluation.results import Evaluation as Evaluation
    from tessera.evaluation.results import LengthGeneralization as LengthGeneralization

WHERE = {
    "detection": ("Detection",),
    "detector": ("Detector", "load_detector"),
    "matching": ("ImageScore",),
    "pipeline": ("EvaluationConfig", "Evaluator", "evaluate", "length_generalization"),
    "results": ("Evaluation", "LengthGeneralization"),
}


def __getattr__(name: str) -> Any:
    for module, names in WHERE.items():
        if name in names:
            return getattr(importlib.import_module(f"tessera.evaluation.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [name for names in WHERE.values() for name in names]
