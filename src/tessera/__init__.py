"""Tessera tells whether a conditional diffusion model composes, shows why, and makes it compose."""

from tessera.version import __version__

__all__ = ["__version__"]
