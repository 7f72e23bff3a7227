"""The work behind the page. Each job is a generator of events: it can be watched, and dropped at any step."""

import base64
import math
import time
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from tessera.errors import UserError
from tessera.explorer.commands import probe_command, sample_command
from tessera.explorer.probe import Probed, probe
from tessera.explorer.requests import Drawing, Probing, Watching
from tessera.explorer.shelf import Exhibit, Shelf
from tessera.explorer.verdicts import judged
from tessera.explorer.ways import Going, Memory, Way
from tessera.images.pictures import png_bytes
from tessera.judge.finding import Finder
from tessera.sampler.solvers import Step

DATA_STD = 0.5  # of pictures, so that noisy ones can be shown at the contrast of clean ones

Event = dict[str, Any]  # {"event": what happened, ...}


@dataclass
class Studio:
    """Models, a judge, and the memory of what was drawn."""

    shelf: Shelf
    judge: Finder
    memory: Memory = field(default_factory=Memory)

    # -- the three jobs ------------------------------------------------------------------------------------

    def draw(self, request: Drawing) -> Iterator[Event]:
        """All models draw. Whoever has had the least time makes the next step: the quick need not wait for the slow."""
        works = [(exhibit, self.drawing(exhibit, request)) for exhibit in self.exhibits(request)]
        spent = [0.0] * len(works)
        while min(spent, default=math.inf) < math.inf:
            turn = spent.index(min(spent))
            begun = time.perf_counter()
            more = yield from told_once(*works[turn])
            spent[turn] = spent[turn] + time.perf_counter() - begun if more else math.inf

    def watch(self, request: Watching) -> Iterator[Event]:
        """One picture of every model at all its noise levels."""
        for exhibit in self.exhibits(request):
            yield from refusals(exhibit, self.watching(exhibit, request))

    def probe(self, request: Probing) -> Iterator[Event]:
        """What moves one pixel, in every model."""
        for exhibit in self.exhibits(request):
            yield from refusals(exhibit, self.probing(exhibit, request))

    def remembered(self, request: Watching) -> dict[str, Way] | None:
        """The ways that `watch` shows, by model, if all of them are in memory."""
        ways = {name: way for name in request.models if (way := self.memory.get(request.key(name)))}
        return ways if ways.keys() == set(request.models) else None

    def watched(self, request: Watching, ways: Mapping[str, Way]) -> list[Event]:
        """What `watch` tells, from ways at hand: no network is asked, whatever the memory forgets meanwhile."""
        told = (
            refusals(exhibit, way_events(exhibit, request, ways[exhibit.name]))
            for exhibit in self.exhibits(request)
        )
        return [event for events in told for event in events]

    # -- one model of a job --------------------------------------------------------------------------------

    def exhibits(self, request: Drawing) -> list[Exhibit]:
        return [self.shelf[name] for name in dict.fromkeys(request.models)]

    def drawing(self, exhibit: Exhibit, request: Drawing) -> Iterator[Event]:
        begun = time.perf_counter()
        way = yield from self.gone(exhibit, request)
        yield {
            "event": "done",
            "model": exhibit.name,
            "pictures": [png_url(picture) for picture in way.pictures],
            "seeds": [ask.seed for ask in way.asks],
            "sigmas": way.sigmas,
            "verdicts": judged(self.judge, exhibit, way.asks, way.pictures),
            "seconds": time.perf_counter() - begun,
            "cost": way.cost,
            "command": sample_command(exhibit, request),
        }

    def gone(self, exhibit: Exhibit, request: Drawing) -> Generator[Event, None, Way]:
        """The way of all pictures asked of a model: remembered, or gone now and told step by step."""
        key = request.key(exhibit.name)
        way = self.memory.get(key)
        if way is None:
            going = Going(exhibit, request)
            for step in going:
                yield step_event(exhibit, step, request.steps)
            way = going.way
            assert way is not None
            self.memory.put(key, way)
        return way

    def watching(self, exhibit: Exhibit, request: Watching) -> Iterator[Event]:
        way = yield from self.gone(exhibit, request)
        yield from way_events(exhibit, request, way)

    def probing(self, exhibit: Exhibit, request: Probing) -> Iterator[Event]:
        way = yield from self.gone(exhibit, request)
        denoise = exhibit.denoiser(request.how, request.radius)
        found = probe(exhibit, way, denoise, request.picture, request.step, request.at)
        yield probe_event(exhibit, request, found)


# -- failing in one model does not stop the others -----------------------------------------------------------


def told_once(exhibit: Exhibit, work: Iterator[Event]) -> Generator[Event, None, bool]:
    """The next event of a model's work; returns whether there may be more."""
    try:
        yield next(work)
    except StopIteration:
        return False
    except UserError as error:
        yield refusal(exhibit, error)
        return False
    return True


def refusals(exhibit: Exhibit, work: Iterator[Event]) -> Iterator[Event]:
    try:
        yield from work
    except UserError as error:
        yield refusal(exhibit, error)


def refusal(exhibit: Exhibit, error: UserError) -> Event:
    return {"event": "refused", "model": exhibit.name, "sentence": str(error)}


def check_picture(way: Way, picture: int) -> None:
    if picture >= len(way.asks):
        raise UserError(f"There is no picture {picture}: only {len(way.asks)} were made.")


# -- events ----------------------------------------------------------------------------------------------------


def step_event(exhibit: Exhibit, step: Step, steps: int) -> Event:
    return {
        "event": "step",
        "model": exhibit.name,
        "step": step.number,
        "steps": steps,
        "sigma": step.sigma,
        "clean": [png_url(picture) for picture in step.clean],
    }


def way_events(exhibit: Exhibit, request: Watching, way: Way) -> Iterator[Event]:
    """One event, or a refusal of a picture that was not made."""
    check_picture(way, request.picture)
    x, clean = way.x[:, request.picture], way.clean[:, request.picture]  # (S, C, H, W)
    yield {
        "event": "way",
        "model": exhibit.name,
        "picture": request.picture,
        "sigmas": way.sigmas,
        "noisy": png_url(column(contrasted(x, way.sigmas))),
        "clean": png_url(column(clean)),
    }


def probe_event(exhibit: Exhibit, request: Probing, found: Probed) -> Event:
    return {
        "event": "probed",
        "model": exhibit.name,
        "picture": request.picture,
        "step": request.step,
        "size": len(found.influence),
        "influence": base64.b64encode(found.influence.float().contiguous().numpy().tobytes()).decode(),
        **found.record(),
        "wishes": list(found.wanted),
        "command": probe_command(exhibit, request),
    }


def png_url(picture: Tensor) -> str:
    """A picture (3, H, W) in [-1, 1] as the page can show it, exact to the 8-bit value."""
    return "data:image/png;base64," + base64.b64encode(png_bytes(picture)).decode()


def column(pictures: Tensor) -> Tensor:
    """Pictures (S, C, H, W) one below the other, (C, S H, W)."""
    return pictures.transpose(0, 1).flatten(1, 2)


def contrasted(x: Tensor, sigmas: list[float]) -> Tensor:
    """Noisy pictures (S, C, H, W) scaled back to the spread of clean ones; they would else be black and white."""
    levels = torch.tensor(sigmas).view(-1, 1, 1, 1)
    return x * DATA_STD / (levels.square() + DATA_STD**2).sqrt()
