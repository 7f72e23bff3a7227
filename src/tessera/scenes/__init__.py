"""Scenes: objects, placement by the CLEVR rules, visibility, scene files and random streams.

Public names are imported on first use, so that `tessera.scenes.vocabulary` costs no torch.
"""

from tessera.lazy import lazy_names

_PUBLIC = {
    "SceneBatch": "tessera.scenes.batch:SceneBatch",
    "read_scenes": "tessera.scenes.clevr:read_scenes",
    "write_scenes": "tessera.scenes.clevr:write_scenes",
    "scenes_at": "tessera.scenes.placement:scenes_at",
    "Scenes": "tessera.scenes.sampling:Scenes",
    "Lights": "tessera.scenes.scene:Lights",
    "Scene": "tessera.scenes.scene:Scene",
    "SceneObject": "tessera.scenes.scene:SceneObject",
    "COLORS": "tessera.scenes.vocabulary:COLORS",
    "LOCATIONS": "tessera.scenes.vocabulary:LOCATIONS",
    "MATERIALS": "tessera.scenes.vocabulary:MATERIALS",
    "SHAPES": "tessera.scenes.vocabulary:SHAPES",
    "SIZES": "tessera.scenes.vocabulary:SIZES",
}

__getattr__, __dir__ = lazy_names(__name__, _PUBLIC)
