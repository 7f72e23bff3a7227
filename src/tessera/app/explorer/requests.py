"""What a page may ask for, checked before anybody waits for it."""

from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from tessera.sampling.compose import ComposeMethod

MOST_OBJECTS, MOST_EACH, MOST_STEPS, MOST_RADIUS = 64, 8, 128, 15
MOST_SEED = 2**31 - 1
BEYOND = {  # what pydantic calls a value beyond its limit, in our words
    "greater_than_equal": "must be at least {ge}, not {given}",
    "less_than_equal": "must be at most {le}, not {given}",
    "less_than": "must be less than {lt}, not {given}",
    "too_long": "may be at most {max_length}, not {actual_length}",
}

Share = Annotated[float, Field(ge=0, le=1)]


class Drawing(BaseModel):
    """What is on the screen: which models draw what, and how."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    models: Annotated[tuple[str, ...], Field(min_length=1, max_length=16)]
    locations: Annotated[tuple[tuple[Share, Share], ...], Field(max_length=MOST_OBJECTS)] = ()
    colors: Annotated[tuple[str, ...], Field(max_length=MOST_OBJECTS)] = ()
    seed: Annotated[int, Field(ge=0, le=MOST_SEED)] = 0
    each: Annotated[int, Field(ge=1, le=MOST_EACH)] = 1
    steps: Annotated[int, Field(ge=1, le=MOST_STEPS)] = 18
    how: ComposeMethod = "plain"
    radius: Annotated[int, Field(ge=0, le=MOST_RADIUS)] = 2

    def key(self, name: str) -> tuple[Any, ...]:
        """Everything a model's images depend on."""
        radius = None if self.how in ("plain", "sum") else self.radius
        return (name, self.locations, self.colors, self.seed, self.each, self.steps, self.how, radius)


class Watching(Drawing):
    """One image of every model on its way out of the noise."""

    image: Annotated[int, Field(ge=0, lt=MOST_EACH)] = 0


class Probing(Watching):
    """One pixel of that image at one noise level."""

    step: Annotated[int, Field(ge=0, lt=MOST_STEPS)]
    at: tuple[Share, Share]  # the location (x, y) whose pixel is probed


def first_complaint(errors: Sequence[Any]) -> str:
    """What a request does wrong, in one sentence."""
    error = errors[0]
    where = ".".join(str(part) for part in error["loc"] if part != "body")
    if complaint := BEYOND.get(error["type"]):
        return f"The request does not fit: {where} {complaint.format(given=error['input'], **error['ctx'])}."
    return f"The request does not fit: {where + ': ' if where else ''}{error['msg'].rstrip('.')}."
