"""Scenes: objects, placement by the CLEVR rules, visibility, scene files and random streams.

Public names are imported on first use, so that `tessera.scenes.vocabulary` costs no torch.
"""

import importlib
import itertools
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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

WHERE = {
    "batch": ("SceneBatch",),
    "clevr": ("read_scenes", "write_scenes"),
    "placement": ("scenes_at",),
    "sampling": ("Scenes",),
    "scene": ("Lights", "Scene", "SceneObject"),
    "vocabulary": ("COLORS", "LOCATIONS", "MATERIALS", "SHAPES", "SIZES"),
}


def __getattr__(name: str) -> Any:
    for module, names in WHERE.items():
        if name in names:
            return getattr(importlib.import_module(f"tessera.scenes.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return list(itertools.chain.from_iterable(WHERE.values()))
