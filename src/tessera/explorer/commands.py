"""The command lines that make again what is on the screen."""

import shlex
from collections.abc import Sequence

import torch

from tessera.explorer.requests import Drawing, Probing
from tessera.explorer.shelf import Exhibit


def sample_command(exhibit: Exhibit, request: Drawing) -> str:
    """The same pictures, as files."""
    words = ["tessera", "sample", *exhibit.origin, *asking_words(exhibit, request)]
    return shlex.join([*words, "--out", f"explored/{exhibit.name}"])


def probe_command(exhibit: Exhibit, request: Probing) -> str:
    """The same heat-map and numbers."""
    words = ["tessera", "explore", "probe", *exhibit.origin, *asking_words(exhibit, request)]
    words += [
        "--picture",
        str(request.picture),
        "--step",
        str(request.step),
        "--at",
        place_words([request.at]),
    ]
    return shlex.join([*words, "--out", f"explored/{exhibit.name}-probe"])


def asking_words(exhibit: Exhibit, request: Drawing) -> list[str]:
    if exhibit.told == "colors":
        wanted = ["--colors", ",".join(request.colors)]
    else:
        wanted = ["--places", place_words(request.places if exhibit.told == "places" else ())]
    words = [*wanted, "--each", str(request.each), "--seed", str(request.seed), "--steps", str(request.steps)]
    if request.how != "plain":
        words += ["--repair", request.how]
    if request.how in ("project", "localize"):
        words += ["--radius", str(request.radius)]
    words += ["--device", exhibit.device.type]
    if exhibit.device.type == "cpu":  # sums are rounded in another order by another number of threads
        words += ["--threads", str(torch.get_num_threads())]
    return words


def place_words(places: Sequence[tuple[float, float]]) -> str:
    """`0.65,0.65 0.25,0.65`, every digit kept."""
    return " ".join(f"{x!r},{y!r}" for x, y in places)
