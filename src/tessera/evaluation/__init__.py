"""Detection of objects in images, scores of images and models, and how far to trust them.

The public names are imported when first used, so that scores of counts cost no torch.
"""

from tessera.lazy import lazy_names

_PUBLIC = {
    "Detection": "tessera.evaluation.detection:Detection",
    "Detector": "tessera.evaluation.detector:Detector",
    "load_detector": "tessera.evaluation.detector:load_detector",
    "ImageScore": "tessera.evaluation.matching:ImageScore",
    "EvaluationConfig": "tessera.evaluation.pipeline:EvaluationConfig",
    "Evaluator": "tessera.evaluation.pipeline:Evaluator",
    "evaluate": "tessera.evaluation.pipeline:evaluate",
    "length_generalization": "tessera.evaluation.pipeline:length_generalization",
    "Evaluation": "tessera.evaluation.results:Evaluation",
    "LengthGeneralization": "tessera.evaluation.results:LengthGeneralization",
}

__getattr__, __dir__ = lazy_names(__name__, _PUBLIC)
