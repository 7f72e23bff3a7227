"""Prompts: the study's locations and colors for K = 0, 1, 2, ..., or the user's own."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tessera.conditioning import ColorCounts, Conditioner, LocationGrid
from tessera.conditioning.contract import Location
from tessera.conditioning.labels import check_location
from tessera.errors import UserError
from tessera.scenes.vocabulary import COLOR_NAMES, LOCATIONS


@dataclass(frozen=True)
class Prompt:
    """The objects wanted in one image, and the seed or the file of that image."""

    wanted: tuple[Any, ...] = ()  # locations (x, y), or color names
    seed: int = 0
    conditioned_on: tuple[Any, ...] | None = None  # cell centers, where a grid is coarser than `wanted`
    file: Path | None = None  # of an image that exists

    @property
    def k(self) -> int:
        return len(self.wanted)

    @property
    def name(self) -> str:
        """The folder of its image, such as k03."""
        return f"k{self.k:02d}"

    @property
    def targets(self) -> tuple[Any, ...]:
        """Where objects must appear: a condition that names a cell of the grid does not say where in the cell."""
        return self.wanted if self.conditioned_on is None else self.conditioned_on

    @property
    def colors(self) -> tuple[str, ...]:
        return tuple(want for want in self.wanted if isinstance(want, str))

    @property
    def locations(self) -> tuple[Location, ...]:
        return tuple(want for want in self.wanted if not isinstance(want, str))

    @property
    def record(self) -> dict[str, Any]:
        """As samples.json has it."""
        record: dict[str, Any] = {"k": self.k, "locations": [list(location) for location in self.locations]}
        if self.conditioned_on is not None:
            record["conditioned_on"] = [list(location) for location in self.conditioned_on]
        return {**record, "colors": list(self.colors), "seed": self.seed}


def study_prompts(conditioner: Conditioner, ks: list[int], each: int, seed: int) -> list[Prompt]:
    """`each` images for every K: its first K locations, or colors, in the study's order."""
    known: tuple[Any, ...] = COLOR_NAMES if isinstance(conditioner, ColorCounts) else LOCATIONS
    for k in ks:
        check_number(conditioner, k, len(known))
    prompts: list[Prompt] = []
    for k in ks:
        prompts += own_prompts(conditioner, known[:k], each, seed)
    return prompts


def own_prompts(conditioner: Conditioner, wanted: tuple[Any, ...], each: int, seed: int) -> list[Prompt]:
    """`each` images of one prompt of the user's own."""
    check_number(conditioner, len(wanted), None)
    conditioned_on = None
    if isinstance(conditioner, LocationGrid):
        conditioned_on = tuple(cell_center(conditioner, location) for location in wanted)
    return [Prompt(wanted, image_seed(seed, len(wanted), n), conditioned_on) for n in range(each)]


def cell_center(conditioner: LocationGrid, location: Location) -> Location:
    """The center of the location's cell."""
    return conditioner.conditions(conditioner.at([location]))[0][0]


def check_number(conditioner: Conditioner, k: int, known: int | None) -> None:
    capacity = getattr(conditioner, "capacity", None)
    if capacity is not None and k > capacity:
        raise UserError(f"K = {k} is more than this model can be conditioned on: {capacity} conditions.")
    if known is not None and k > known:
        raise UserError(f"The study has at most {known} conditions, not {k}; name your own instead.")


def image_seed(seed: int, k: int, n: int) -> int:
    """The seed of image n of K, whichever other images are sampled with it."""
    return (seed << 32) + (k << 20) + n


def parse_ks(text: str) -> list[int]:
    """`0-12`, `3` or `1,3,6-9` as numbers, each once: the same K again would be the same images again."""
    found: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d+)\s*(?:-\s*(\d+)\s*)?", part)
        if not match or int(match[2] or match[1]) < int(match[1]):
            raise UserError(f"`{text}` is no list of K; write for example 0-12 or 1,3,6.")
        found += range(int(match[1]), int(match[2] or match[1]) + 1)
    return list(dict.fromkeys(found))


def parse_locations(text: str) -> tuple[tuple[float, float], ...]:
    """`0.65,0.65 0.25,0.65` as locations."""
    return tuple(check_location(word.split(",")) for word in text.replace(";", " ").split())


def parse_colors(text: str) -> tuple[str, ...]:
    """`red,blue` as color names, which the conditioner checks."""
    return tuple(text.replace(",", " ").split())
