"""Tessera tells whether a conditional diffusion model composes, shows why, and makes it compose."""

from typing import TYPE_CHECKING, Any

from tessera.version import __version__

if TYPE_CHECKING:
    from tessera.models.model_folder import load_model as load

__all__ = ["__version__", "load"]


def __getattr__(name: str) -> Any:
    """`tessera.load("exp1")`: a shipped model, a model folder or a hub id; torch is imported only then."""
    if name == "load":
        from tessera.models.model_folder import load_model

        return load_model
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
