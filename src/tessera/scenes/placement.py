"""Scenes made to order: things whose centres project to asked places of the picture."""

import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tessera.errors import UserError
from tessera.scenes.batch import SceneBatch
from tessera.scenes.camera import ASPECT, CAMERA, ground_point
from tessera.scenes.sampling import REACH, Scenes, blank, random_looks, stage, with_things
from tessera.scenes.vocabulary import COLOR_NAMES, MATERIALS, SHAPES, SIZES

Words = str | Sequence[str] | None
TURNS = 64  # looks tried before two things are left touching


class PlaceWarning(UserWarning):
    """The scene was made as asked, but it is one the official rules would never make."""


def place_at(
    places: Sequence | Tensor,
    *,
    shape: Words = None,
    color: Words = None,
    material: Words = None,
    size: Words = None,
    rotation: float | Sequence[float] | None = None,
    rules: Scenes | None = None,
    count: int | None = None,
    seed: int = 0,
    start: int = 0,
    aspect: float = ASPECT,
    device=None,
) -> SceneBatch:
    """Scenes with one thing at each of `places`, (K, 2) for `count` scenes alike or (B, K, 2), in [0, 1].

    Attributes that are not given (one word for all, or one per place) are drawn by `rules`, by default freely
    and without jitter; looks are redrawn while two things would touch. Scene i depends on seed and start + i.
    """
    rules = Scenes(jitter=False) if rules is None else rules
    wanted = checked_places(places, count).to(device)  # (B, K, 2)
    index = torch.arange(start, start + len(wanted), device=device)
    scenes = blank(wanted.shape[1], stage(rules, seed, index))
    given = given_looks(wanted, shape=shape, color=color, material=material, size=size, rotation=rotation)
    turn = torch.zeros_like(index)
    for attempt in range(TURNS):
        look = {**random_looks(rules, seed, index, turn, wanted.shape[1]), **given}
        xy = ground_point(wanted, scenes.camera, look["size"], aspect)
        crossed = touching(xy, look["size"])  # (B,)
        if attempt == TURNS - 1 or not crossed.any():
            break
        turn = turn + crossed
    warn_of_odd_scenes(wanted, xy, crossed)
    return with_things(scenes, torch.ones_like(look["size"], dtype=torch.bool), xy, look)


def checked_places(places: Sequence | Tensor, count: int | None) -> Tensor:
    """Places as (B, K, 2) float32, all inside the picture."""
    try:
        wanted = torch.as_tensor(places, dtype=torch.float32)
    except (TypeError, ValueError) as error:
        raise UserError(f"Places must be pairs of numbers in [0, 1], not {places!r}.") from error
    wanted = wanted.reshape(0, 2) if wanted.numel() == 0 and wanted.ndim == 1 else wanted
    if wanted.ndim not in (2, 3) or wanted.shape[-1] != 2:
        raise UserError(f"Places must be pairs (x, y), not of shape {tuple(wanted.shape)}.")
    if wanted.ndim == 3 and count not in (None, len(wanted)):
        raise UserError(f"Places were given for {len(wanted)} scenes, but {count} scenes were asked for.")
    outside = wanted[~((wanted >= 0) & (wanted <= 1)).all(-1)]
    if len(outside):
        raise UserError(f"The place {pair(outside[0])} lies outside the picture; x and y run from 0 to 1.")
    return wanted if wanted.ndim == 3 else wanted.expand(1 if count is None else count, -1, -1)


def given_looks(wanted: Tensor, **attributes) -> dict[str, Tensor]:
    """The attributes that were asked for, each (B, K)."""
    return {name: per_place(name, value, wanted) for name, value in attributes.items() if value is not None}


def per_place(name: str, value: Any, wanted: Tensor) -> Tensor:
    scenes, slots = wanted.shape[:2]
    values = [value] * slots if isinstance(value, str | float | int) else list(value)
    if len(values) != slots:
        raise UserError(f"{slots} places need as many values of {name}, not {len(values)}.")
    numbers = torch.tensor([as_number(name, word) for word in values], device=wanted.device)
    return numbers.expand(scenes, slots)


def as_number(name: str, word: str | float) -> int | float:
    """An attribute as tensors hold it: an index, a half extent, or an angle."""
    if name == "rotation":
        return float(word)
    names = {"shape": SHAPES, "color": COLOR_NAMES, "material": MATERIALS, "size": tuple(SIZES)}[name]
    if word not in names:
        raise UserError(f"`{word}` is no {name}; use {', '.join(names)}.")
    return SIZES[str(word)] if name == "size" else names.index(str(word))


def touching(xy: Tensor, size: Tensor) -> Tensor:
    """Whether two things of a scene stand closer than their half extents allow, (B,)."""
    offset = xy[:, :, None] - xy[:, None]  # (B, K, K, 2)
    gap = offset.square().sum(-1).sqrt() - size[:, :, None] - size[:, None]
    itself = torch.eye(xy.shape[1], dtype=torch.bool, device=xy.device)
    return ((gap < 0) & ~itself).flatten(1).any(1)


def reachable(places: Sequence | Tensor, size: str = "large", aspect: float = ASPECT) -> Tensor:
    """Which places (K, 2) the official rules can fill, seen by the camera without jitter, (K,) bool."""
    wanted = checked_places(places, None)
    xy = ground_point(wanted, torch.tensor([CAMERA]), SIZES[size], aspect)
    return on_stage(xy)[0]


def on_stage(xy: Tensor) -> Tensor:
    return (xy.abs() <= REACH).all(-1)


def warn_of_odd_scenes(wanted: Tensor, xy: Tensor, crossed: Tensor) -> None:
    """Refuse what has no place on the floor; tell of what the official rules would not make."""
    above = wanted[xy.isnan().any(-1)]
    if len(above):
        raise UserError(f"The place {pair(above[0])} lies above the horizon: nothing on the floor is there.")
    beyond = sorted({pair(place) for place in wanted[~on_stage(xy)]})
    if beyond:
        warnings.warn(f"Off the square where CLEVR things stand: {', '.join(beyond)}.", PlaceWarning, 3)
    if crossed.any():
        warnings.warn(f"Things touch in {int(crossed.sum())} of {len(xy)} scenes.", PlaceWarning, 3)


def pair(place: Tensor) -> str:
    return f"({place[0]:.3g}, {place[1]:.3g})"
