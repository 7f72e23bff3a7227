"""Which objects of a training scene are labeled: all, one, a random number, or all but one."""

from typing import Literal, get_args

import torch
from torch import Tensor

from tessera.errors import UserError
from tessera.scenes.batch import SceneBatch
from tessera.scenes.camera import project
from tessera.scenes.random import uniform

Label = Literal["all", "one", "random", "all-but-one", "drop"]
LABELS: tuple[str, ...] = get_args(Label)

# Random streams, separate from those of scenes and noise.
ORDER_STREAM, NUMBER_STREAM, SLOT_STREAM = "label order", "label number", "label slot"


def check_label(label: str) -> None:
    if label not in LABELS:
        raise UserError(f"Objects can be labeled {', '.join(LABELS)}, not `{label}`.")


def labeled(present: Tensor, label: str, index: Tensor, seed: int) -> Tensor:
    """The objects (B, N) that are labeled, given which are present.

    `random` labels 1 to n objects, each number equally likely; `all-but-one` labels max(1, n - 1), so a single
    object keeps its label; `drop` labels n - 1, so a single object is unlabeled.
    """
    check_label(label)
    if label == "all":
        return present
    count = present.sum(-1)  # (B,)
    if label == "random":
        draw = uniform(seed, index, NUMBER_STREAM, 1)[:, 0].to(present.device)
        number = torch.minimum((draw * count).long() + 1, count)
    else:
        at_least_one = count.clamp(max=1)  # 0 only where the scene is empty
        number = {
            "one": at_least_one,
            "all-but-one": torch.maximum(count - 1, at_least_one),
            "drop": (count - 1).clamp(min=0),
        }[label]
    return shuffled_rank(present, index, seed) < number[:, None]


def shuffled_rank(present: Tensor, index: Tensor, seed: int) -> Tensor:
    """Each present object's rank, 0 to n - 1, in a random order; absent objects come last. (B, N) long."""
    draws = uniform(seed, index, ORDER_STREAM, present.shape[1]).to(present.device)
    return torch.where(present, draws, 2.0).argsort(dim=-1, stable=True).argsort(-1)


def sample_index(scenes: SceneBatch, index: Tensor | None) -> Tensor:
    return torch.arange(len(scenes), device=scenes.device) if index is None else index


def locations_of(scenes: SceneBatch) -> tuple[Tensor, Tensor]:
    """Projected centers (B, N, 2), and which of them are present and inside the frame (B, N)."""
    locations, _ = project(scenes.center, scenes.camera)
    inside = ((locations >= 0) & (locations <= 1)).all(-1)
    return locations, scenes.present & inside


def check_location(location) -> tuple[float, float]:
    """(x, y) as floats, or one sentence."""
    try:
        x, y = (float(number) for number in location)
    except (TypeError, ValueError):
        raise UserError(f"A location is a pair (x, y), not {location!r}.") from None
    if not (0 <= x <= 1 and 0 <= y <= 1):
        raise UserError(f"The location ({x:g}, {y:g}) lies outside the image: both numbers must be within 0 and 1.")
    return x, y
