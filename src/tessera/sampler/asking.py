"""What to ask of a model: the study's places and colours for K = 0, 1, 2, ..., or a wish of one's own."""

import re
from dataclasses import dataclass
from typing import Any

from tessera.conditioners import ColorCounts, Conditioner, LocationGrid
from tessera.conditioners.contract import Place
from tessera.conditioners.labels import check_place
from tessera.errors import UserError
from tessera.scenes.vocabulary import COLOR_NAMES, LOCATIONS


@dataclass(frozen=True)
class Ask:
    """One picture to make: what is wanted, and the seed that makes it this picture and no other."""

    name: str  # the folder it goes to, such as k03
    wanted: tuple[Any, ...]  # places (x, y), or colour names
    seed: int
    told: tuple[Any, ...] | None = None  # what the model hears of it, where that is coarser

    @property
    def aims(self) -> tuple[Any, ...]:
        """Where things must appear: a model told a cell of the grid cannot know where in the cell one points."""
        return self.wanted if self.told is None else self.told

    @property
    def record(self) -> dict[str, Any]:
        """As asked.json has it."""
        colors = [want for want in self.wanted if isinstance(want, str)]
        places = [list(want) for want in self.wanted if not isinstance(want, str)]
        told = {} if self.told is None else {"told": [list(place) for place in self.told]}
        return {"k": len(self.wanted), "places": places, **told, "colors": colors, "seed": self.seed}


def study(tell: Conditioner, ks: list[int], each: int, seed: int) -> list[Ask]:
    """`each` pictures for every K: its first K places, or colours, in the study's order."""
    known: tuple[Any, ...] = COLOR_NAMES if isinstance(tell, ColorCounts) else LOCATIONS
    for k in ks:
        check_number(tell, k, len(known))
    return [ask(tell, known[:k], seed, n) for k in ks for n in range(each)]


def wish(tell: Conditioner, wanted: tuple[Any, ...], each: int, seed: int) -> list[Ask]:
    """`each` pictures of one wish of the user's own."""
    check_number(tell, len(wanted), None)
    return [ask(tell, wanted, seed, n) for n in range(each)]


def ask(tell: Conditioner, wanted: tuple[Any, ...], seed: int, n: int) -> Ask:
    """Picture n of a wish."""
    told = tuple(heard(tell, place) for place in wanted) if isinstance(tell, LocationGrid) else None
    return Ask(f"k{len(wanted):02d}", wanted, picture_seed(seed, len(wanted), n), told)


def heard(tell: LocationGrid, place: Place) -> Place:
    """The place as a grid tells it: the centre of its cell."""
    return tell.conditions(tell.at([place]))[0][0]


def check_number(tell: Conditioner, k: int, known: int | None) -> None:
    if tell.capacity is not None and k > tell.capacity:
        raise UserError(f"K = {k} is beyond what this model can be told: {tell.capacity} conditions.")
    if known is not None and k > known:
        raise UserError(f"The study asks for at most {known} conditions, not {k}; name your own instead.")


def picture_seed(seed: int, k: int, n: int) -> int:
    """Picture n of K has one seed, whichever other pictures are made with it."""
    return (seed << 32) + (k << 20) + n


def parse_ks(text: str) -> list[int]:
    """`0-12`, `3` or `1,3,6-9` as numbers, each once: the same K again would be the same pictures again."""
    found: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d+)\s*(?:-\s*(\d+)\s*)?", part)
        if not match or int(match[2] or match[1]) < int(match[1]):
            raise UserError(f"`{text}` is no list of K; write for example 0-12 or 1,3,6.")
        found += range(int(match[1]), int(match[2] or match[1]) + 1)
    return list(dict.fromkeys(found))


def parse_places(text: str) -> tuple[tuple[float, float], ...]:
    """`0.65,0.65 0.25,0.65` as places."""
    return tuple(check_place(word.split(",")) for word in text.replace(";", " ").split())


def parse_colors(text: str) -> tuple[str, ...]:
    """`red,blue` as colour names; the conditioner knows which there are."""
    return tuple(word for word in text.replace(",", " ").split())
