"""Conditioners: scenes or prompts become conditions (locations on a grid or in a list, color counts, or none)."""

from tessera.conditioning.colors import ColorCounts
from tessera.conditioning.contract import Conditioner, SpatialConditioner
from tessera.conditioning.grid import LocationGrid
from tessera.conditioning.labels import LABELS, Label, labeled, locations_of
from tessera.conditioning.location_list import LocationList
from tessera.conditioning.registry import conditioner_from
from tessera.conditioning.unconditional import Unconditional

__all__ = [
    "LABELS",
    "ColorCounts",
    "Conditioner",
    "Label",
    "LocationGrid",
    "LocationList",
    "SpatialConditioner",
    "Unconditional",
    "conditioner_from",
    "labeled",
    "locations_of",
]
