"""Running averages of the weights with a power-function profile, and any other length of them after the fact.

EDM2 section 3 and appendix C (Karras et al. 2024). The length of an average is given as its relative standard
deviation `std` (sigma_rel): an average of 0.10 covers about the last tenth of the training so far.
"""

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from tessera.errors import UserError

_LONGEST = math.sqrt(1 / 12)  # std of a plain mean over all of training

State = Mapping[str, Tensor]


@lru_cache  # every step needs it, and computing roots is slow
def std_to_exponent(std: float) -> float:
    """gamma of the profile t^gamma whose relative std is `std` (Eq. 126: the root of a cubic)."""
    if not 0 < std < _LONGEST:
        raise UserError(f"An average's std lies between 0 and {_LONGEST:.4f}, not at {std}.")
    inverse = std**-2
    return float(np.roots([1, 7, 16 - inverse, 12 - inverse]).real.max())


def beta(std: float, images_seen: float, batch: float) -> float:
    """Share of the old average that remains after the step which ends at `images_seen` (Eq. 127)."""
    return (1 - batch / images_seen) ** (std_to_exponent(std) + 1)


class Averages:
    """Averages of a model's parameters, one per `std`; buffers are constants and are not averaged.

    Call `update` after every step. The first update copies the weights, whatever was there before.
    """

    def __init__(self, model: nn.Module, stds: Sequence[float] = (0.05, 0.10)):
        for std in stds:
            std_to_exponent(std)
        live = dict(model.named_parameters())
        self.names: list[str] = list(live)
        self.live: list[Tensor] = list(live.values())
        self.constants = {name: value for name, value in model.state_dict().items() if name not in live}
        self.stds = tuple(stds)
        self.means: dict[float, list[Tensor]] = {}
        for std in self.stds:
            self.means[std] = [value.detach().clone() for value in self.live]

    @torch.no_grad()
    def update(self, images_seen: float, batch: float) -> None:
        """`images_seen` counts the images of the step just made too."""
        for means, weight in zip(self.means.values(), self.lerp_weights(images_seen, batch), strict=True):
            torch._foreach_lerp_(means, self.live, weight)

    @torch.no_grad()
    def restart(self) -> None:
        """Begin anew: every average is a copy of the weights."""
        for means in self.means.values():
            torch._foreach_copy_(means, self.live)

    def lerp_weights(self, images_seen: float, batch: float) -> list[float]:
        """1 - beta of each average: how far the step that ends at `images_seen` moves it toward the weights."""
        return [1 - beta(std, images_seen, batch) for std in self.means]

    def state(self, std: float) -> dict[str, Tensor]:
        """The averaged model's state dict; tensors are shared, not copied."""
        return dict(zip(self.names, self.means[self._known(std)], strict=True)) | self.constants

    @torch.no_grad()
    def load(self, std: float, state: State) -> None:
        """Continue from a saved state."""
        for name, mean in zip(self.names, self.means[self._known(std)], strict=True):
            if name not in state or state[name].shape != mean.shape:
                raise UserError(f"The saved average does not fit: {name} is missing or of another shape.")
            mean.copy_(state[name])

    def _known(self, std: float) -> float:
        for known in self.stds:
            if math.isclose(known, std):
                return known
        raise UserError(f"No average of std {std} is tracked, only {', '.join(map(str, self.stds))}.")


# -- any other length, after the fact ----------------------------------------------------------------


class Snapshot(NamedTuple):
    """An average as it was after `images_seen` images. `load` gives its tensors when they are needed."""

    images_seen: float
    std: float
    load: Callable[[], State]


def correlation(images_a: float, std_a: float, images_b: float, std_b: float) -> float:
    """Inner product of two profiles (Eq. 151)."""
    a, b = std_to_exponent(std_a), std_to_exponent(std_b)
    earlier = (images_a / images_b) ** b if images_a < images_b else (images_b / images_a) ** a
    return (a + 1) * (b + 1) / ((a + b + 1) * max(images_a, images_b)) * earlier


def solve_coefficients(stored: Sequence[tuple[float, float]], wanted: Sequence[tuple[float, float]]) -> np.ndarray:
    """How much of each stored average makes the wanted ones: (stored, wanted), columns summing to 1.

    Both are (images_seen, std). Least-squares fit of profiles, float64 (Algorithm 3).
    """
    found = np.linalg.solve(_correlations(stored, stored), _correlations(stored, wanted))
    return found / found.sum(axis=0)


def _correlations(rows: Sequence[tuple[float, float]], columns: Sequence[tuple[float, float]]) -> np.ndarray:
    """`correlation` of each of `rows` with each of `columns`."""
    found = [correlation(*one, *other) for one, other in itertools.product(rows, columns)]
    return np.reshape(found, (len(rows), len(columns)))


def reconstruct(snapshots: Iterable[Snapshot], std: float, images_seen: float | None = None) -> dict[str, Tensor]:
    """The average of length `std` at `images_seen` (the last snapshot if not given), from stored ones.

    Summed in float64, returned in float32. Only one snapshot is in memory at a time.
    """
    stored = _usable(list(snapshots), images_seen)
    end = max(snapshot.images_seen for snapshot in stored)
    weights = solve_coefficients([snapshot[:2] for snapshot in stored], [(end, std)])[:, 0]
    total: dict[str, Tensor] = {}
    for weight, snapshot in zip(weights, stored, strict=True):
        for name, value in snapshot.load().items():
            part = value.double() * weight
            total[name] = part if name not in total else total[name].add_(part)
    return {name: value.float() for name, value in total.items()}


def _usable(snapshots: list[Snapshot], images_seen: float | None) -> list[Snapshot]:
    """Snapshots taken after the start of training and not after `images_seen`, at which one must have been taken."""
    stored = [s for s in snapshots if s.images_seen > 0]
    if not stored:
        raise UserError("There is no snapshot of a running average to build on.")
    if images_seen is None:
        return stored
    nearest = min((s.images_seen for s in stored), key=lambda taken: abs(taken - images_seen))
    if nearest != images_seen:
        raise UserError(f"No snapshot was taken at {images_seen:.0f} images; the nearest is at {nearest:.0f}.")
    return [s for s in stored if s.images_seen <= images_seen]
