"""Scenes become what the network is told: where things are (grid, list), which colours, or nothing."""

from tessera.conditioners.colors import ColorCounts
from tessera.conditioners.contract import Conditioner, SpatialConditioner
from tessera.conditioners.grid import LocationGrid
from tessera.conditioners.labels import LABELS, Label, labelled, places_of
from tessera.conditioners.nothing import Nothing
from tessera.conditioners.registry import conditioner_from
from tessera.conditioners.slots import LocationList

__all__ = [
    "LABELS",
    "ColorCounts",
    "Conditioner",
    "Label",
    "LocationGrid",
    "LocationList",
    "Nothing",
    "SpatialConditioner",
    "conditioner_from",
    "labelled",
    "places_of",
]
