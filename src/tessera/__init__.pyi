"""What type checkers read of the lazy names in `__init__.py`."""

from tessera.analysis.measure import features as features
from tessera.analysis.measure import locality as locality
from tessera.app.report.write import report as report
from tessera.evaluation.pipeline import evaluate as evaluate
from tessera.evaluation.pipeline import length_generalization as length_generalization
from tessera.models.diffusers_unet import from_diffusers as from_diffusers
from tessera.models.loading import load as load
from tessera.models.model import Model as Model
from tessera.render.render import render as render
from tessera.sampling.compose import compose as compose
from tessera.sampling.sample import sample as sample
from tessera.scenes import Scene as Scene
from tessera.scenes import SceneObject as SceneObject
from tessera.scenes import Scenes as Scenes
from tessera.version import __version__ as __version__

__all__: list[str]
