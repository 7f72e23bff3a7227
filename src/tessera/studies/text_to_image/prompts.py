"""Prompts for SDXL: those of the paper word for word, and 24 concepts of ours under controlled wording.

The paper's prompts share their wording inside a category, and an untrained network then already
finds categories (see docs/text-to-image.md). So ours come in one wording for all, in one per category, and crossed: every
concept in every wording.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tessera.errors import UserError
from tessera.files import read_json

# Figures 4 and 6.
IMAGE = "a beautiful photograph with a horse in the middle, a dog on the left, and a cat on the right"


@dataclass(frozen=True)
class Concept:
    """A concept to prompt, the category it belongs to, and the token whose attention map stands for it.

    Where there are several prompts, seeds take turns with them.
    """

    name: str
    category: str
    prompts: tuple[str, ...]
    token: str  # the last token of the word that names it

    def for_seeds(self, count: int) -> list[str]:
        """The prompt of each seed: the n-th of any concept has the n-th wording."""
        return [self.prompts[number % len(self.prompts)] for number in range(count)]


@dataclass(frozen=True)
class Composite:
    """Several concepts in one prompt: the name and the token of each."""

    name: str
    prompt: str
    tokens: dict[str, str]


# Figure 7, its appendix G.
PAPER = (
    Concept("dog", "animals", ("A dog, full body, highly detailed photograph.",), "dog"),
    Concept("horse", "animals", ("A horse, full body, highly detailed photograph.",), "horse"),
    Concept("cat", "animals", ("A cat, full body, highly detailed photograph.",), "cat"),
    Concept("van gogh", "art styles", ("An oil-painting in the style of Van Gogh.",), "gogh"),
    Concept("monet", "art styles", ("A watercolor-painting in the style of Monet.",), "monet"),
    Concept("hokusai", "art styles", ("A woodblock print in the style of Hokusai.",), "sai"),
    Concept("sushi", "foods", ("Eating sushi with chopsticks, highly detailed photograph.",), "sushi"),
    Concept("croissant", "foods", ("Eating a croissant, highly detailed photograph.",), "croissant"),
)
COMPOSITES = (
    Composite(
        "van gogh + cat + sushi",
        "A cat eating sushi with chopsticks, oil-painting in the style of Van Gogh.",
        {"van gogh": "gogh", "cat": "cat", "sushi": "sushi"},
    ),
    Composite(
        "van gogh + cat", "A cat, full body, oil-painting in the style of Van Gogh.", {"van gogh": "gogh", "cat": "cat"}
    ),
    Composite("sushi + cat", "A cat eating sushi with chopsticks.", {"sushi": "sushi", "cat": "cat"}),
)

_CATEGORIES = {
    "animals": ("dogs", "horses", "cats", "owls", "rabbits", "bears"),
    "art styles": ("cubism", "watercolor", "graffiti", "woodcut", "mosaic", "pointillism"),
    "foods": ("sushi", "croissants", "pizza", "ramen", "pancakes", "tacos"),
    "vehicles": ("trains", "bicycles", "sailboats", "trucks", "airplanes", "tractors"),
}
_ONE = ("A picture of {}.",)
_OWN = {
    "animals": "A photograph of {}, full body, highly detailed.",
    "art styles": "A painting by a master in the style of {}.",
    "foods": "Eating {} at a table with friends.",
    "vehicles": "Large {} on their way through the city.",
}
_CROSSED = (
    "A picture of {}.",
    "A highly detailed photograph showing {}.",
    "An image with {} in it.",
    "A view of {} from the front, in daylight.",
    "Many people like {} very much.",
    "Something with {}, on a plain background.",
)


def _ours(wordings: Mapping[str, Sequence[str]]) -> tuple[Concept, ...]:
    """The 24 concepts in the wordings of their category."""
    concepts = []
    for category, names in _CATEGORIES.items():
        for name in names:
            prompts = tuple(wording.format(name) for wording in wordings[category])
            concepts.append(Concept(name, category, prompts, name))
    return tuple(concepts)


_SETS: dict[str, tuple[Concept, ...]] = {
    "paper": PAPER,
    "one": _ours(dict.fromkeys(_CATEGORIES, _ONE)),
    "own": _ours({category: [wording] for category, wording in _OWN.items()}),  # the confound, to show its size
    "crossed": _ours(dict.fromkeys(_CATEGORIES, _CROSSED)),
}


def concepts_of(name: str) -> tuple[Concept, ...]:
    """A set by name, or from a JSON file: a list of {"name", "category", "prompt", "token"}."""
    if name in _SETS:
        return _SETS[name]
    if not Path(name).is_file():
        raise UserError(f"There is no set of prompts `{name}`; give a file, or one of {', '.join(_SETS)}.")
    rows = read_json(Path(name))
    if not isinstance(rows, list):
        raise UserError(f"{name} should hold a list of concepts.")
    concepts = tuple(_concept_from(row, name) for row in rows)
    names, categories = {concept.name for concept in concepts}, {concept.category for concept in concepts}
    if len(names) < len(concepts):
        raise UserError(f"Two concepts of {name} have the same name.")
    if not 1 < len(categories) < len(concepts):  # `within` and `between` must both exist
        raise UserError(f"{name} needs two or more categories, one of them with two concepts.")
    return concepts


def _concept_from(row: Any, file: str) -> Concept:
    """`prompt` is a text or a list of them; `token` may be left out where only hidden states are compared."""
    row = row if isinstance(row, dict) else {}
    name, prompts = row.get("name"), row.get("prompt")
    texts = [name, row.get("category"), *(prompts if isinstance(prompts, list) else [prompts])]
    if len(texts) < 3 or not all(isinstance(text, str) and text for text in texts):
        raise UserError(f'Each concept in {file} needs the texts "name", "category" and "prompt".')
    return Concept(texts[0], texts[1], tuple(texts[2:]), str(row.get("token") or name.split()[-1]))
