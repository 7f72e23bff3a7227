"""Tessera measures, explains and repairs compositional (length) generalization in conditional diffusion models."""

from tessera.lazy import lazy_names
from tessera.version import __version__ as __version__

# Public name -> where it is defined. Imported at first use: `import tessera` loads neither torch nor NumPy.
# `__init__.pyi` says the same to type checkers; a test compares the two.
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

__all__ = sorted([*_PUBLIC, "__version__"])

__getattr__ = lazy_names(__name__, _PUBLIC)[0]


def __dir__() -> list[str]:
    return __all__
