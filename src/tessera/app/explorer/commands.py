"""The command lines that make what is on the screen."""

import shlex
from collections.abc import Sequence

import torch

from tessera.app.explorer.models import SessionModel
from tessera.app.explorer.requests import PixelProbeRequest, SampleRequest
from tessera.sampling.compose import NEAR


def sample_command(entry: SessionModel, request: SampleRequest) -> str:
    """The same images, as files."""
    words = ["tessera", "sample", *entry.origin("sample"), *_options(entry, request)]
    return shlex.join([*words, "--out", f"explored/{entry.name}"])


def probe_command(entry: SessionModel, request: PixelProbeRequest) -> str:
    """The same influence map and numbers."""
    pixel = ["--set", f"image={request.image}", "--step", str(request.step), "--probe", _location_text([request.at])]
    words = ["tessera", "explore", *entry.origin("explore"), *_options(entry, request), *pixel]
    return shlex.join([*words, "--out", f"explored/{entry.name}-probe"])


def _options(entry: SessionModel, request: SampleRequest) -> list[str]:
    if entry.condition_kind == "colors":
        prompt = ["--colors", ",".join(request.colors)]
    else:
        locations = request.locations if entry.condition_kind == "locations" else ()
        prompt = ["--locations", _location_text(locations)]
    words = [*prompt, "--each", str(request.each), "--seed", str(request.seed), "--steps", str(request.steps)]
    if request.compose != "plain":
        words += ["--compose", request.compose]
    if request.compose in NEAR:
        words += ["--set", f"radius={request.radius}"]
    words += ["--device", entry.device.type]
    # another number of threads adds in another order, and the last bits differ
    if entry.device.type == "cpu":
        words += ["--threads", str(torch.get_num_threads())]
    return words


def _location_text(locations: Sequence[tuple[float, float]]) -> str:
    """`0.65,0.65 0.25,0.65`, every digit kept."""
    return " ".join(f"{x!r},{y!r}" for x, y in locations)
