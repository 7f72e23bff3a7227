"""How many objects of each of the eight colors."""

from dataclasses import dataclass
from difflib import get_close_matches

from torch import Tensor

from tessera.conditioning.counts import CountConditioner
from tessera.conditioning.labels import Label
from tessera.errors import UserError
from tessera.scenes.batch import SceneBatch
from tessera.scenes.vocabulary import COLOR_NAMES


@dataclass(frozen=True)
class ColorCounts(CountConditioner):
    """Counts per color, in the order of COLOR_NAMES; its conditions are color names in that order."""

    label: Label = "all"
    kind = "color"
    dim = len(COLOR_NAMES)

    def entry(self, wanted: str) -> int:
        return color_number(wanted)

    def names(self) -> tuple[str, ...]:
        return COLOR_NAMES

    def entries(self, scenes: SceneBatch) -> tuple[Tensor, Tensor]:
        return scenes.color, scenes.present


def color_number(name: str) -> int:
    if name not in COLOR_NAMES:
        near = get_close_matches(str(name), COLOR_NAMES, n=1)
        hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(COLOR_NAMES)}."
        raise UserError(f"There is no color `{name}`; {hint}")
    return COLOR_NAMES.index(name)
