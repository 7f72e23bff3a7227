"""Tessera measures, explains and repairs compositional (length) generalization in conditional diffusion models."""

import importlib
from typing import TYPE_CHECKING, Any

from tessera.version import __version__

if TYPE_CHECKING:
    from tessera.analysis.measure import features, locality
    from tessera.app.report.write import report
    from tessera.evaluation.pipeline import evaluate, length_generalization
    from tessera.models.diffusers_unet import from_diffusers
    from tessera.models.loading import load
    from tessera.models.model import Model
    from tessera.render.render import render
    from tessera.sampling.compose import compose
    from tessera.sampling.sample import sample
    from tessera.scenes import Scene, SceneObject, Scenes

# Public name -> where it is defined. Imported at first use: `import tessera` loads neither torch nor NumPy.
_PUBLIC = {
    "Model": "tessera.models.model:Model",
    "Scene": "tessera.scenes:Scene",
    "SceneObject": "tessera.scenes:SceneObject",
    "Scenes": "tessera.scenes:Scenes",
    "compose": "tessera.sampling.compose:compose",
    "evaluate": "tessera.evaluation.pipeline:evaluate",
    "features": "tessera.analysis.measure:features",
    "from_diffusers": "tessera.models.diffusers_unet:from_diffusers",
    "length_generalization": "tessera.evaluation.pipeline:length_generalization",
    "load": "tessera.models.loading:load",
    "locality": "tessera.analysis.measure:locality",
    "render": "tessera.render:",  # a package that can be called
    "report": "tessera.app.report.write:report",
    "sample": "tessera.sampling.sample:sample",
}

__all__ = [
    "Model",
    "Scene",
    "SceneObject",
    "Scenes",
    "__version__",
    "compose",
    "evaluate",
    "features",
    "from_diffusers",
    "length_generalization",
    "load",
    "locality",
    "render",
    "report",
    "sample",
]


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, _, attribute = _PUBLIC[name].partition(":")
    found = importlib.import_module(module)
    return getattr(found, attribute) if attribute else found


def __dir__() -> list[str]:
    return sorted(__all__)
