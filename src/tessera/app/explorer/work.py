"""The work behind the page. Each job is a generator of events: it can be watched, and dropped at any step."""

import base64
import math
import time
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from tessera.app.explorer.commands import probe_command, sample_command
from tessera.app.explorer.models import ModelList, SessionModel
from tessera.app.explorer.probe import Probed, probe
from tessera.app.explorer.requests import Drawing, Probing, Watching
from tessera.app.explorer.scores import evaluated
from tessera.app.explorer.trajectories import Memory, SampledTrajectory, TrajectoryStepper
from tessera.errors import UserError
from tessera.evaluation.detection import ObjectDetector
from tessera.render.image_io import png_bytes
from tessera.sampling.solvers import SamplingStep

DATA_STD = 0.5  # of images, so that noisy ones can be shown at the contrast of clean ones

Event = dict[str, Any]  # {"event": what happened, ...}


@dataclass
class Session:
    """Models, a detector, and the memory of what was drawn."""

    models: ModelList
    detector: ObjectDetector
    memory: Memory = field(default_factory=Memory)

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

    def remembered(self, request: Watching) -> dict[str, SampledTrajectory] | None:
        """The ways that `watch` shows, by model, if all of them are in memory."""
        ways = {name: way for name in request.models if (way := self.memory.get(request.key(name)))}
        return ways if ways.keys() == set(request.models) else None

    def watched(self, request: Watching, ways: Mapping[str, SampledTrajectory]) -> list[Event]:
        """What `watch` tells, from ways at hand: no network is asked, whatever the memory forgets meanwhile."""
        told = (
            refusals(entry, way_events(entry, request, ways[entry.name])) for entry in self.entries(request)
        )
        return [event for events in told for event in events]

    # -- one model of a job --------------------------------------------------------------------------------

    def entries(self, request: Drawing) -> list[SessionModel]:
        return [self.models[name] for name in dict.fromkeys(request.models)]

    def drawing(self, entry: SessionModel, request: Drawing) -> Iterator[Event]:
        begun = time.perf_counter()
        way = yield from self.gone(entry, request)
        yield {
            "event": "done",
            "model": entry.name,
            "images": [png_url(image) for image in way.images],
            "seeds": [prompt.seed for prompt in way.prompts],
            "sigmas": way.sigmas,
            "verdicts": evaluated(self.detector, entry, way.prompts, way.images),
            "seconds": time.perf_counter() - begun,
            "cost": way.cost,
            "command": sample_command(entry, request),
        }

    def gone(self, entry: SessionModel, request: Drawing) -> Generator[Event, None, SampledTrajectory]:
        """The way of all images asked of a model: remembered, or gone now and told step by step."""
        key = request.key(entry.name)
        way = self.memory.get(key)
        if way is None:
            stepper = TrajectoryStepper(entry, request)
            for step in stepper:
                yield step_event(entry, step, request.steps)
            way = stepper.way
            assert way is not None
            self.memory.put(key, way)
        return way

    def watching(self, entry: SessionModel, request: Watching) -> Iterator[Event]:
        way = yield from self.gone(entry, request)
        yield from way_events(entry, request, way)

    def probing(self, entry: SessionModel, request: Probing) -> Iterator[Event]:
        way = yield from self.gone(entry, request)
        denoise = entry.denoiser(request.how, request.radius)
        found = probe(entry, way, denoise, request.image, request.step, request.at)
        yield probe_event(entry, request, found)


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


def check_image(way: SampledTrajectory, image: int) -> None:
    if image >= len(way.prompts):
        raise UserError(f"There is no image {image}: only {len(way.prompts)} were made.")


# -- events ----------------------------------------------------------------------------------------------------


def step_event(entry: SessionModel, step: SamplingStep, steps: int) -> Event:
    return {
        "event": "step",
        "model": entry.name,
        "step": step.number,
        "steps": steps,
        "sigma": step.sigma,
        "clean": [png_url(image) for image in step.clean],
    }


def way_events(entry: SessionModel, request: Watching, way: SampledTrajectory) -> Iterator[Event]:
    """One event, or a refusal of an image that was not made."""
    check_image(way, request.image)
    x, clean = way.x[:, request.image], way.clean[:, request.image]  # (S, C, H, W)
    yield {
        "event": "way",
        "model": entry.name,
        "image": request.image,
        "sigmas": way.sigmas,
        "noisy": png_url(column(contrasted(x, way.sigmas))),
        "clean": png_url(column(clean)),
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
