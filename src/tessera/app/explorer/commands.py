"""The command lines that make again what is on the screen."""

import shlex
from collections.abc import Sequence

import torch

from tessera.app.explorer.models import SessionModel
from tessera.app.explorer.requests import Drawing, Probing


def sample_command(entry: SessionModel, request: Drawing) -> str:
    """The same images, as files."""
    words = ["tessera", "sample", *entry.origin, *asking_words(entry, request)]
    return shlex.join([*words, "--out", f"explored/{entry.name}"])


def probe_command(entry: SessionModel, request: Probing) -> str:
    """The same heat-map and numbers."""
    words = ["tessera", "explore", "probe", *entry.origin, *asking_words(entry, request)]
    words += [
        "--image",
        str(request.image),
        "--step",
        str(request.step),
        "--at",
        location_words([request.at]),
    ]
    return shlex.join([*words, "--out", f"explored/{entry.name}-probe"])


def asking_words(entry: SessionModel, request: Drawing) -> list[str]:
    if entry.told == "colors":
        wanted = ["--colors", ",".join(request.colors)]
    else:
        wanted = ["--locations", location_words(request.locations if entry.told == "locations" else ())]
    words = [*wanted, "--each", str(request.each), "--seed", str(request.seed), "--steps", str(request.steps)]
    if request.how != "plain":
        words += ["--compose", request.how]
    if request.how in ("project", "localize"):
        words += ["--radius", str(request.radius)]
    words += ["--device", entry.device.type]
    if entry.device.type == "cpu":  # sums are rounded in another order by another number of threads
        words += ["--threads", str(torch.get_num_threads())]
    return words


def location_words(locations: Sequence[tuple[float, float]]) -> str:
    """`0.65,0.65 0.25,0.65`, every digit kept."""
    return " ".join(f"{x!r},{y!r}" for x, y in locations)
