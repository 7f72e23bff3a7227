"""From plain data to a conditioner, for configurations and model folders."""

from collections.abc import Mapping
from typing import Any

from tessera.conditioning.colors import ColorCounts
from tessera.conditioning.contract import Conditioner
from tessera.conditioning.grid import LocationGrid
from tessera.conditioning.location_list import LocationList
from tessera.conditioning.unconditional import Nothing
from tessera.errors import UserError

KINDS: dict[str, Any] = {"grid": LocationGrid, "list": LocationList, "color": ColorCounts, "nothing": Nothing}


def conditioner_from(config: Mapping[str, Any]) -> Conditioner:
    """The conditioner whose `config` this is."""
    options = dict(config)
    kind = options.pop("kind", None)
    if kind not in KINDS:
        raise UserError(f"There is no conditioner `{kind}`; known are {', '.join(KINDS)}.")
    try:
        return KINDS[kind](**options)
    except TypeError as error:
        raise UserError(f"The {kind} conditioner does not take these settings: {error}.") from error
