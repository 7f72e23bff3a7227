"""The work behind the page. Each job is a generator of events: it can be watched, and dropped at any step."""

import base64
import math
import time
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from tessera.app.explorer.commands import probe_command, sample_command
from tessera.app.explorer.models import ModelList, SessionModel
from tessera.app.explorer.probe import Probed, probe
from tessera.app.explorer.requests import Drawing, Probing, Watching
from tessera.app.explorer.scores import evaluated
from tessera.app.explorer.trajectories import SampleCache, Sampled, sampling
from tessera.errors import UserError
from tessera.evaluation.detection import ObjectDetector
from tessera.render.image_io import png_bytes
from tessera.sampling.solvers import SamplingStep

DATA_STD = 0.5  # of images, so that noisy ones can be shown at the contrast of clean ones

Event = dict[str, Any]  # {"event": what happened, ...}


@dataclass
class Session:
    """Models, a detector, and a cache of what was sampled."""

    models: ModelList
    detector: ObjectDetector
    cache: SampleCache = field(default_factory=SampleCache)

    # -- the three jobs ------------------------------------------------------------------------------------

    def draw(self, request: Drawing) -> Iterator[Event]:
        """All models draw. Whoever has had the least time makes the next step: the quick need not wait for the slow."""
        works = [(entry, self.drawing(entry, request)) for entry in self.entries(request)]
        spent = [0.0] * len(works)
        while min(spent, default=math.inf) < math.inf:
            turn = spent.index(min(spent))
            begun = time.perf_counter()
            more = yield from first_refusal(*works[turn])
            spent[turn] = spent[turn] + time.perf_counter() - begun if more else math.inf

    def watch(self, request: Watching) -> Iterator[Event]:
        """One image of every model at all its noise levels."""
        for entry in self.entries(request):
            yield from refusals(entry, self.watching(entry, request))

    def probe(self, request: Probing) -> Iterator[Event]:
        """What moves one pixel, in every model."""
        for entry in self.entries(request):
            yield from refusals(entry, self.probing(entry, request))

    def cached(self, request: Watching) -> dict[str, Sampled] | None:
        """What `watch` shows, by model, if the cache has all of it."""
        found = {name: sampled for name in request.models if (sampled := self.cache.get(request.key(name)))}
        return found if found.keys() == set(request.models) else None

    def watch_cached(self, request: Watching, found: Mapping[str, Sampled]) -> list[Event]:
        """The events of `watch` from what `cached` returned: no network runs, whatever the cache drops meanwhile."""
        events: list[Event] = []
        for entry in self.entries(request):
            events += refusals(entry, trajectory_events(entry, request, found[entry.name]))
        return events

    # -- one model of a job --------------------------------------------------------------------------------

    def entries(self, request: Drawing) -> list[SessionModel]:
        return [self.models[name] for name in dict.fromkeys(request.models)]

    def drawing(self, entry: SessionModel, request: Drawing) -> Iterator[Event]:
        begun = time.perf_counter()
        sampled = yield from self.sampled(entry, request)
        images = sampled.trajectory.last
        yield {
            "event": "done",
            "model": entry.name,
            "images": [png_url(image) for image in images],
            "seeds": [prompt.seed for prompt in sampled.prompts],
            "sigmas": sampled.sigmas,
            "verdicts": evaluated(self.detector, entry, sampled.prompts, images),
            "seconds": time.perf_counter() - begun,
            "cost": sampled.cost,
            "command": sample_command(entry, request),
        }

    def sampled(self, entry: SessionModel, request: Drawing) -> Generator[Event, None, Sampled]:
        """All images of a model, from the cache or sampled now with an event per step."""
        key = request.key(entry.name)
        sampled = self.cache.get(key)
        if sampled is None:
            sampled = yield from sampling(entry, request, partial(step_event, entry, request.steps))
            self.cache.put(key, sampled)
        return sampled

    def watching(self, entry: SessionModel, request: Watching) -> Iterator[Event]:
        sampled = yield from self.sampled(entry, request)
        yield from trajectory_events(entry, request, sampled)

    def probing(self, entry: SessionModel, request: Probing) -> Iterator[Event]:
        sampled = yield from self.sampled(entry, request)
        yield probe_event(entry, request, probe(entry, sampled, request))


# -- failing in one model does not stop the others -----------------------------------------------------------


def first_refusal(entry: SessionModel, work: Iterator[Event]) -> Generator[Event, None, bool]:
    """The next event of a model's work; returns whether there may be more."""
    try:
        yield next(work)
    except StopIteration:
        return False
    except UserError as error:
        yield refusal(entry, error)
        return False
    return True


def refusals(entry: SessionModel, work: Iterator[Event]) -> Iterator[Event]:
    try:
        yield from work
    except UserError as error:
        yield refusal(entry, error)


def refusal(entry: SessionModel, error: UserError) -> Event:
    return {"event": "refused", "model": entry.name, "sentence": str(error)}


# -- events ----------------------------------------------------------------------------------------------------


def step_event(entry: SessionModel, steps: int, step: SamplingStep) -> Event:
    return {
        "event": "step",
        "model": entry.name,
        "step": step.index,
        "steps": steps,
        "sigma": step.sigma,
        "clean": [png_url(image) for image in step.denoised],
    }


def trajectory_events(entry: SessionModel, request: Watching, sampled: Sampled) -> Iterator[Event]:
    """One event, or a refusal of an image that was not made."""
    if request.image >= len(sampled.prompts):
        raise UserError(f"There is no image {request.image}: only {len(sampled.prompts)} were made.")
    x = sampled.trajectory.x[:-1, request.image]  # (S, C, H, W); the last step has no noise
    yield {
        "event": "way",
        "model": entry.name,
        "image": request.image,
        "sigmas": sampled.sigmas,
        "noisy": png_url(column(contrasted(x, sampled.sigmas))),
        "clean": png_url(column(sampled.denoised(request.image))),
    }


def probe_event(entry: SessionModel, request: Probing, found: Probed) -> Event:
    return {
        "event": "probed",
        "model": entry.name,
        "image": request.image,
        "step": request.step,
        "size": len(found.influence),
        "influence": base64.b64encode(found.influence.float().contiguous().numpy().tobytes()).decode(),
        **found.record(),
        "prompts": list(found.wanted),
        "command": probe_command(entry, request),
    }


def png_url(image: Tensor) -> str:
    """An image (3, H, W) in [-1, 1] as the page can show it, exact to the 8-bit value."""
    return "data:image/png;base64," + base64.b64encode(png_bytes(image)).decode()


def column(images: Tensor) -> Tensor:
    """Images (S, C, H, W) one below the other, (C, S H, W)."""
    return images.transpose(0, 1).flatten(1, 2)


def contrasted(x: Tensor, sigmas: list[float]) -> Tensor:
    """Noisy images (S, C, H, W) scaled back to the spread of clean ones; they would else be black and white."""
    levels = torch.tensor(sigmas).view(-1, 1, 1, 1)
    return x * DATA_STD / (levels.square() + DATA_STD**2).sqrt()
