"""Scenes with objects at given locations of the image."""

import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from tessera.errors import UserError
from tessera.scenes.batch import SceneBatch
from tessera.scenes.camera import ASPECT, CAMERA, ground_point
from tessera.scenes.sampling import REACH, Scenes, blank, check_word, random_looks, stage, with_objects
from tessera.scenes.vocabulary import SIZES, WORDS

Words = str | Sequence[str] | None
TURNS = 64  # attempts before two objects are left touching


class LocationWarning(UserWarning):
    """The scene is not one that the official rules would make."""


def scenes_at(
    locations: Sequence | Tensor,
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
    """Scenes with one object at each of `locations`, (K, 2) for `count` scenes alike or (B, K, 2), in [0, 1].

    Attributes that are not given (one word for all, or one per location) are drawn by `rules`, by default freely
    and without jitter; attributes are drawn again while two objects would touch. Given words need not be among those of
    `rules`, but never make what `rules` hold out. Scene i depends on seed and start + i.
    """
    rules = Scenes(jitter=False) if rules is None else rules
    wanted = _checked_locations(locations, count).to(device)  # (B, K, 2)
    index = torch.arange(start, start + len(wanted), device=device)
    slots = wanted.shape[1]
    scenes = blank(slots, stage(rules, seed, index))
    attributes = {"shape": shape, "color": color, "material": material, "size": size, "rotation": rotation}
    words = {name: _per_location(name, value, slots) for name, value in attributes.items() if value is not None}
    given = {name: _as_numbers(name, values, wanted) for name, values in words.items()}
    allowed = _rules_of_locations(rules, words, slots)
    turns = 1 if "size" in given else TURNS  # sizes fix where objects stand: another attempt would not help
    turn = torch.zeros_like(index)
    for attempt in range(turns):
        look = {**_attributes_at_locations(rules, allowed, seed, index, turn), **given}
        xy = ground_point(wanted, scenes.camera, look["size"], aspect)
        crossed = _touching(xy, look["size"])  # (B,)
        if attempt == turns - 1 or not crossed.any():
            break
        turn = turn + crossed
    _warn_of_odd_scenes(wanted, xy, crossed)
    return with_objects(scenes, torch.ones_like(look["size"], dtype=torch.bool), xy, look)


def _checked_locations(locations: Sequence | Tensor, count: int | None) -> Tensor:
    """Locations as (B, K, 2) float32, all inside the image."""
    try:
        wanted = torch.as_tensor(locations, dtype=torch.float32)
    except (TypeError, ValueError) as error:
        raise UserError(f"Locations must be pairs of numbers in [0, 1], not {locations!r}.") from error
    wanted = wanted.reshape(0, 2) if wanted.numel() == 0 and wanted.ndim == 1 else wanted
    if wanted.ndim not in (2, 3) or wanted.shape[-1] != 2:
        raise UserError(f"Locations must be pairs (x, y), not of shape {tuple(wanted.shape)}.")
    if wanted.ndim == 3 and count not in (None, len(wanted)):
        raise UserError(f"Locations were given for {len(wanted)} scenes, but {count} scenes were requested.")
    outside = wanted[~((wanted >= 0) & (wanted <= 1)).all(-1)]
    if len(outside):
        raise UserError(f"The location {pair(outside[0])} lies outside the image; x and y run from 0 to 1.")
    return wanted if wanted.ndim == 3 else wanted.expand(1 if count is None else count, -1, -1)


def _per_location(name: str, value: Any, slots: int) -> list[Any]:
    """One value for all locations, or one for each, as a list of one per location."""
    values = [value] * slots if isinstance(value, str | float | int) else list(value)
    if len(values) != slots:
        raise UserError(f"{slots} locations need as many values of {name}, not {len(values)}.")
    return values


def _as_numbers(name: str, values: list[Any], wanted: Tensor) -> Tensor:
    """The values of one attribute at all locations as tensors hold them, (B, K): an index, a half extent, or an angle."""
    if name == "rotation":
        numbers = [float(value) for value in values]
    else:
        for word in values:
            check_word(word, name, WORDS[name])
        numbers = [SIZES[word] if name == "size" else WORDS[name].index(word) for word in values]
    return torch.tensor(numbers, device=wanted.device).expand(wanted.shape[:2])


def _rules_of_locations(rules: Scenes, words: dict[str, list[Any]], slots: int) -> list[Scenes]:
    """The rules for each location: where combinations are held out, only what goes with its given words is drawn."""
    if not rules.held_out:
        return [rules] * slots
    narrowed = []
    for k in range(slots):
        given: dict[str, Any] = {f"{name}s": (values[k],) for name, values in words.items() if name != "rotation"}
        try:
            narrowed.append(replace(rules, **given))
        except UserError as error:
            held_out = " and ".join(word for (word,) in given.values())
            raise UserError(f"The rules hold out every object that is {held_out}.") from error
    return narrowed


def _attributes_at_locations(
    rules: Scenes, allowed: list[Scenes], seed: int, index: Tensor, turn: Tensor
) -> dict[str, Tensor]:
    """`random_looks`, (B, K) each, but the object at location k is drawn by `allowed[k]`."""
    look = random_looks(rules, seed, index, turn, len(allowed))
    for k, own in enumerate(allowed):
        if own != rules:
            for name, values in random_looks(own, seed, index, turn, len(allowed)).items():
                look[name][:, k] = values[:, k]
    return look


def _touching(xy: Tensor, size: Tensor) -> Tensor:
    """Whether two objects of a scene stand closer than their half extents allow, (B,)."""
    offset = xy[:, :, None] - xy[:, None]  # (B, K, K, 2)
    gap = offset.square().sum(-1).sqrt() - size[:, :, None] - size[:, None]
    itself = torch.eye(xy.shape[1], dtype=torch.bool, device=xy.device)
    return ((gap < 0) & ~itself).flatten(1).any(1)


def reachable(locations: Sequence | Tensor, size: str = "large", aspect: float = ASPECT) -> Tensor:
    """Which locations (K, 2) the official rules can fill, seen by the camera without jitter, (K,) bool."""
    wanted = _checked_locations(locations, None)
    xy = ground_point(wanted, torch.tensor([CAMERA]), SIZES[size], aspect)
    return _on_stage(xy)[0]


def _on_stage(xy: Tensor) -> Tensor:
    return (xy.abs() <= REACH).all(-1)


def _warn_of_odd_scenes(wanted: Tensor, xy: Tensor, crossed: Tensor) -> None:
    """Refuse locations that are not on the floor; warn of scenes the official rules would not make."""
    above = wanted[xy.isnan().any(-1)]
    if len(above):
        raise UserError(f"The location {pair(above[0])} lies above the horizon: nothing on the floor is there.")
    beyond = sorted({pair(location) for location in wanted[~_on_stage(xy)]})
    if beyond:
        warnings.warn(f"Off the square where CLEVR objects stand: {', '.join(beyond)}.", LocationWarning, 3)
    if crossed.any():
        warnings.warn(f"Objects touch in {int(crossed.sum())} of {len(xy)} scenes.", LocationWarning, 3)


def pair(location: Tensor) -> str:
    return f"({location[0]:.3g}, {location[1]:.3g})"
