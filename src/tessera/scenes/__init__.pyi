"""What type checkers read of the lazy names in `__init__.py`."""

from tessera.scenes.batch import SceneBatch as SceneBatch
from tessera.scenes.clevr import read_scenes as read_scenes
from tessera.scenes.clevr import write_scenes as write_scenes
from tessera.scenes.placement import scenes_at as scenes_at
from tessera.scenes.sampling import Scenes as Scenes
from tessera.scenes.scene import Lights as Lights
from tessera.scenes.scene import Scene as Scene
from tessera.scenes.scene import SceneObject as SceneObject
from tessera.scenes.vocabulary import COLORS as COLORS
from tessera.scenes.vocabulary import LOCATIONS as LOCATIONS
from tessera.scenes.vocabulary import MATERIALS as MATERIALS
from tessera.scenes.vocabulary import SHAPES as SHAPES
from tessera.scenes.vocabulary import SIZES as SIZES
