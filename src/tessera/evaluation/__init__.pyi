"""What type checkers read of the lazy names in `__init__.py`."""

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
