"""The requests of a page, checked before they enter the queue."""

from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from tessera.sampling.compose import NEAR, ComposeMethod

MAX_OBJECTS, MAX_EACH, MAX_STEPS, MAX_RADIUS = 64, 8, 128, 15
MAX_SEED = 2**31 - 1
_OUT_OF_RANGE = {  # sentences for the kinds of error that pydantic reports
    "greater_than_equal": "must be at least {ge}, not {given}",
    "less_than_equal": "must be at most {le}, not {given}",
    "less_than": "must be less than {lt}, not {given}",
    "too_long": "may be at most {max_length}, not {actual_length}",
}

_Share = Annotated[float, Field(ge=0, le=1)]


class SampleRequest(BaseModel):
    """Which models sample which prompt, and how."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    models: Annotated[tuple[str, ...], Field(min_length=1, max_length=16)]
    locations: Annotated[tuple[tuple[_Share, _Share], ...], Field(max_length=MAX_OBJECTS)] = ()
    colors: Annotated[tuple[str, ...], Field(max_length=MAX_OBJECTS)] = ()
    seed: Annotated[int, Field(ge=0, le=MAX_SEED)] = 0
    each: Annotated[int, Field(ge=1, le=MAX_EACH)] = 1
    steps: Annotated[int, Field(ge=1, le=MAX_STEPS)] = 18
    compose: ComposeMethod = "plain"
    radius: Annotated[int, Field(ge=0, le=MAX_RADIUS)] = 2

    def key(self, name: str) -> tuple[Any, ...]:
        """Everything on which the images of the model `name` depend."""
        radius = self.radius if self.compose in NEAR else None
        return (name, self.locations, self.colors, self.seed, self.each, self.steps, self.compose, radius)


class TrajectoryRequest(SampleRequest):
    """One image of every model at all its noise levels."""

    image: Annotated[int, Field(ge=0, lt=MAX_EACH)] = 0


class PixelProbeRequest(TrajectoryRequest):
    """One pixel of that image at one noise level."""

    step: Annotated[int, Field(ge=0, lt=MAX_STEPS)]
    at: tuple[_Share, _Share]  # the location (x, y) whose pixel is probed


def first_complaint(errors: Sequence[Any]) -> str:
    """The first error of a request, in one sentence."""
    error = errors[0]
    where = ".".join(str(part) for part in error["loc"] if part != "body")
    if complaint := _OUT_OF_RANGE.get(error["type"]):
        return f"The request does not fit: {where} {complaint.format(given=error['input'], **error['ctx'])}."
    return f"The request does not fit: {where + ': ' if where else ''}{error['msg'].rstrip('.')}."
