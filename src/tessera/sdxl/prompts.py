"""What SDXL is asked: the paper's prompts word for word, and 24 concepts of ours under controlled wording.

The paper's prompts share their wording inside a category. A network that has learned nothing then already finds
categories (see docs/sdxl.md), so ours come in three wordings: one for all, one per category, and crossed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tessera.errors import UserError
from tessera.files import read_json

# Figures 4 and 6.
PICTURE = "a beautiful photograph with a horse in the middle, a dog on the left, and a cat on the right"


@dataclass(frozen=True)
class Concept:
    """Something to ask for, the category it belongs to, and the token whose attention map stands for it."""

    name: str
    category: str
    prompt: str
    token: str  # the last token of the word that names it
    template: int = 0  # which wording it came in


@dataclass(frozen=True)
class Composite:
    """Several concepts in one prompt: the name and the token of each."""

    name: str
    prompt: str
    tokens: dict[str, str]


# Figure 7, its appendix G.
PAPER = (
    Concept("dog", "animals", "A dog, full body, highly detailed photograph.", "dog"),
    Concept("horse", "animals", "A horse, full body, highly detailed photograph.", "horse"),
    Concept("cat", "animals", "A cat, full body, highly detailed photograph.", "cat"),
    Concept("van gogh", "art styles", "An oil-painting in the style of Van Gogh.", "gogh", 1),
    Concept("monet", "art styles", "A watercolor-painting in the style of Monet.", "monet", 1),
    Concept("hokusai", "art styles", "A woodblock print in the style of Hokusai.", "sai", 1),
    Concept("sushi", "foods", "Eating sushi with chopsticks, highly detailed photograph.", "sushi", 2),
    Concept("croissant", "foods", "Eating a croissant, highly detailed photograph.", "croissant", 2),
)
COMPOSITES = (
    Composite(
        "van gogh + cat + sushi",
        "A cat eating sushi with chopsticks, oil-painting in the style of Van Gogh.",
        {"van gogh": "gogh", "cat": "cat", "sushi": "sushi"},
    ),
    Composite(
        "van gogh + cat",
        "A cat, full body, oil-painting in the style of Van Gogh.",
        {"van gogh": "gogh", "cat": "cat"},
    ),
    Composite("sushi + cat", "A cat eating sushi with chopsticks.", {"sushi": "sushi", "cat": "cat"}),
)

CATEGORIES = {
    "animals": ("dogs", "horses", "cats", "owls", "rabbits", "bears"),
    "art styles": ("cubism", "watercolor", "graffiti", "woodcut", "mosaic", "pointillism"),
    "foods": ("sushi", "croissants", "pizza", "ramen", "pancakes", "tacos"),
    "vehicles": ("trains", "bicycles", "sailboats", "trucks", "airplanes", "tractors"),
}
ONE = "A picture of {}."
OWN = {
    "animals": "A photograph of {}, full body, highly detailed.",
    "art styles": "A painting by a master in the style of {}.",
    "foods": "Eating {} at a table with friends.",
    "vehicles": "Large {} on their way through the city.",
}
CROSSED = (
    "A picture of {}.",
    "A highly detailed photograph showing {}.",
    "An image with {} in it.",
    "A view of {} from the front, in daylight.",
    "Many people like {} very much.",
    "Something with {}, on a plain background.",
)


def one_wording() -> tuple[Concept, ...]:
    """All 24 concepts in the same words."""
    return tuple(
        Concept(name, category, ONE.format(name), name)
        for category, names in CATEGORIES.items()
        for name in names
    )


def own_wording() -> tuple[Concept, ...]:
    """One wording per category, as in the paper: the confound itself, shipped to show how large it is."""
    return tuple(
        Concept(name, category, OWN[category].format(name), name, number)
        for number, (category, names) in enumerate(CATEGORIES.items())
        for name in names
    )


def crossed_wordings() -> tuple[Concept, ...]:
    """Every category meets each of the six wordings exactly once, so wording tells nothing of the category."""
    found = []
    for shift, (category, names) in enumerate(CATEGORIES.items()):
        for place, name in enumerate(names):
            template = (place + shift) % len(CROSSED)
            found.append(Concept(name, category, CROSSED[template].format(name), name, template))
    return tuple(found)


SETS = {"paper": lambda: PAPER, "one": one_wording, "own": own_wording, "crossed": crossed_wordings}


def concepts_of(name: str) -> tuple[Concept, ...]:
    """A set by name, or from a JSON file: a list of {"name", "category", "prompt", "token"}."""
    if name in SETS:
        return SETS[name]()
    if not Path(name).is_file():
        raise UserError(f"There is no set of prompts `{name}`; give a file, or one of {', '.join(SETS)}.")
    return checked(read_concepts(Path(name)), name)


def read_concepts(path: Path) -> list[Concept]:
    rows = read_json(path)
    if not isinstance(rows, list):
        raise UserError(f"{path} should hold a list of concepts.")
    return [concept_from(row, path) for row in rows]


def concept_from(row: Any, path: Path) -> Concept:
    """`token` may be left out where only hidden states are looked at."""
    texts = (
        {key: row.get(key, "") for key in ("name", "category", "prompt", "token")}
        if isinstance(row, dict)
        else {}
    )
    if not all(isinstance(text, str) for text in texts.values()) or not all(
        texts.get(key) for key in ("name", "category", "prompt")
    ):
        raise UserError(f'Each concept in {path} needs the texts "name", "category" and "prompt".')
    return Concept(
        texts["name"], texts["category"], texts["prompt"], texts["token"] or texts["name"].split()[-1]
    )


def checked(concepts: Sequence[Concept], where: str) -> tuple[Concept, ...]:
    """Within and between must both exist."""
    names, categories = [c.name for c in concepts], [c.category for c in concepts]
    if len(set(names)) < len(names):
        raise UserError(f"Two concepts of {where} have the same name.")
    if not 1 < len(set(categories)) < len(categories):
        raise UserError(f"{where} needs two or more categories, one of them with two concepts.")
    return tuple(concepts)


def texts() -> list[str]:
    """Every prompt that comes with Tessera."""
    concepts = [concept for name in SETS for concept in concepts_of(name)]
    return [
        PICTURE,
        *(concept.prompt for concept in concepts),
        *(composite.prompt for composite in COMPOSITES),
    ]
