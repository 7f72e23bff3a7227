"""The jobs behind the page. Each is a generator of events, which can be closed at any step."""

import base64
import math
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor

from tessera.app.explorer.commands import probe_command, sample_command
from tessera.app.explorer.models import ModelList, SessionModel
from tessera.app.explorer.probe import probe
from tessera.app.explorer.requests import PixelProbeRequest, SampleRequest, TrajectoryRequest
from tessera.app.explorer.sampling import SampleCache, Sampled, sampling
from tessera.errors import UserError
from tessera.evaluation.detection import ObjectDetector
from tessera.evaluation.explain import box_edges, describe
from tessera.evaluation.matching import ImageScore, is_well_formed, wanted_colors
from tessera.evaluation.pipeline import score_images
from tessera.render.image_io import png_url, to_float, to_uint8
from tessera.sampling.prompts import Prompt
from tessera.sampling.solvers import SamplingStep

_DATA_STD = 0.5  # of images (sigma_data)

Event = dict[str, Any]  # {"event": what happened, ...}
_Request = TypeVar("_Request", bound=SampleRequest)
_Show = Callable[[SessionModel, _Request, Sampled], Event]  # what is shown of a model's images


@dataclass
class Session:
    """Models, the detector, and a cache of what was sampled."""

    models: ModelList
    detector: ObjectDetector
    cache: SampleCache = field(default_factory=SampleCache)

    def sample(self, request: SampleRequest) -> Iterator[Event]:
        """All images of every model."""
        return self._together(request, self._done_event)

    def trajectory(self, request: TrajectoryRequest) -> Iterator[Event]:
        """One image of every model at all its noise levels."""
        return self._together(request, _trajectory_event)

    def probe(self, request: PixelProbeRequest) -> Iterator[Event]:
        """The influence on one pixel, in every model."""
        return self._together(request, _probe_event)

    def cached(self, request: TrajectoryRequest) -> dict[str, Sampled] | None:
        """What `trajectory` shows, by model, if the cache has all of it."""
        found = {name: sampled for name in request.models if (sampled := self.cache.get(request.key(name)))}
        return found if found.keys() == set(request.models) else None

    def cached_trajectory(self, request: TrajectoryRequest, found: Mapping[str, Sampled]) -> list[Event]:
        """The events of `trajectory` from what `cached` returned: no network runs, whatever the cache drops meanwhile."""
        return list(self._together(request, _trajectory_event, found))

    def _together(
        self, request: _Request, show: _Show[_Request], found: Mapping[str, Sampled] | None = None
    ) -> Iterator[Event]:
        """The model that has had the least time makes the next step, so a fast one is done early."""
        jobs = [self._one(self.models[name], request, show, found) for name in dict.fromkeys(request.models)]
        spent = [0.0] * len(jobs)
        while min(spent, default=math.inf) < math.inf:
            number = spent.index(min(spent))
            start = time.perf_counter()
            event = next(jobs[number], None)
            spent[number] = math.inf if event is None else spent[number] + time.perf_counter() - start
            if event is not None:
                yield event

    def _one(
        self, entry: SessionModel, request: _Request, show: _Show[_Request], found: Mapping[str, Sampled] | None
    ) -> Iterator[Event]:
        """The steps of one model, and what `show` makes of its images; a refusal of one does not stop the others."""
        start = time.perf_counter()
        try:
            sampled = found[entry.name] if found else (yield from self.sampled(entry, request))
            event = show(entry, request, sampled)
            yield {"model": entry.name, "seconds": time.perf_counter() - start, **event}
        except UserError as error:
            yield {"event": "refused", "model": entry.name, "sentence": str(error)}

    def sampled(self, entry: SessionModel, request: SampleRequest) -> Generator[Event, None, Sampled]:
        """All images of a model, from the cache or sampled now with an event per step."""
        key = request.key(entry.name)
        sampled = self.cache.get(key)
        if sampled is None:
            sampled = yield from sampling(entry, request, partial(_step_event, entry, request.steps))
            self.cache.put(key, sampled)
        return sampled

    def _done_event(self, entry: SessionModel, request: SampleRequest, sampled: Sampled) -> Event:
        images = sampled.trajectory.last
        return {
            "event": "done",
            "images": [png_url(image) for image in images],
            "seeds": [prompt.seed for prompt in sampled.prompts],
            "sigmas": sampled.sigmas,
            "scores": self._scores(entry, sampled.prompts, images),
            "cost": sampled.cost,
            "command": sample_command(entry, request),
        }

    def _scores(self, entry: SessionModel, prompts: Sequence[Prompt], images: Tensor) -> list[dict[str, Any]]:
        """One record per image (N, 3, H, W), rounded to 8 bits as in files."""
        scores = score_images(self.detector, to_float(to_uint8(images)), prompts)
        return [_score_record(entry, prompt, score) for prompt, score in zip(prompts, scores)]


# -- events ----------------------------------------------------------------------------------------------------


def _step_event(entry: SessionModel, steps: int, step: SamplingStep) -> Event:
    return {
        "event": "step",
        "model": entry.name,
        "step": step.index,
        "steps": steps,
        "sigma": step.sigma,
        "denoised": [png_url(image) for image in step.denoised],
    }


def _trajectory_event(entry: SessionModel, request: TrajectoryRequest, sampled: Sampled) -> Event:
    if request.image >= len(sampled.prompts):
        raise UserError(f"There is no image {request.image}: only {len(sampled.prompts)} were made.")
    x = sampled.trajectory.x[:-1, request.image]  # (S, C, H, W); the last step has no noise
    return {
        "event": "trajectory",
        "image": request.image,
        "sigmas": sampled.sigmas,
        "noisy": png_url(_column(_rescaled(x, sampled.sigmas))),
        "denoised": png_url(_column(sampled.denoised(request.image))),
    }


def _probe_event(entry: SessionModel, request: PixelProbeRequest, sampled: Sampled) -> Event:
    record, influence = probe(entry, sampled, request)
    sent = base64.b64encode(influence.float().contiguous().numpy().tobytes()).decode()
    command = probe_command(entry, request)
    return {"event": "probe", "size": len(influence), "influence": sent, **record, "command": command}


def _column(images: Tensor) -> Tensor:
    """Images (S, C, H, W) one below the other, (C, S H, W)."""
    return images.transpose(0, 1).flatten(1, 2)


def _rescaled(x: Tensor, sigmas: list[float]) -> Tensor:
    """Noisy images (S, C, H, W) scaled to the standard deviation of clean ones, or most pixels would be clipped."""
    levels = torch.tensor(sigmas).view(-1, 1, 1, 1)
    return x * _DATA_STD / (levels.square() + _DATA_STD**2).sqrt()


def _score_record(entry: SessionModel, prompt: Prompt, score: ImageScore) -> dict[str, Any]:
    """The detector's score of an image, with boxes to draw."""
    target_of = {detection: target for target, detection in score.pairs}
    counts = {name: getattr(score, name) for name in ("wanted", "missing", "extra", "malformed", "reason")}
    return {
        "ok": score.succeeds(entry.training.extras_allowed),
        "num_found": score.num_found,
        **counts,
        "ood": score.ood_score,
        "found": score.found,
        "targets": wanted_colors(prompt.colors) if prompt.colors else prompt.targets,
        "detections": [
            {
                "description": describe(detection),
                "location": detection.location,
                "box": box_edges(detection),
                "target": target_of.get(number),
                "well_formed": is_well_formed(detection),
            }
            for number, detection in enumerate(score.detections)
        ],
    }
