"""Drawing scenes by the rules of the official CLEVR generator, many at a time, reproducibly.

Scene i of stream `seed` is a pure function of (rules, seed, i): every restart of a scene reads its own turn
of a counter-based stream, so batch size, start index and device change nothing.
"""

import importlib.util
import itertools
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor

from tessera.errors import UserError
from tessera.scenes.batch import SceneBatch
from tessera.scenes.camera import BEHIND, CAMERA, RIGHT
from tessera.scenes.random import uniform
from tessera.scenes.scene import BACK, FILL, KEY
from tessera.scenes.visibility import Visibility, all_visible
from tessera.scenes.vocabulary import COLOR_NAMES, MATERIALS, SHAPES, SIZES, WORDS

REACH = 3.0  # centers lie in [-3, 3] x [-3, 3]
CAMERA_JITTER = 0.5
LAMP_JITTER = 1.0
TRIES = 50  # candidates for one object before all objects of the scene are dropped
_TRY_CHUNKS = ((0, 2), (2, 10), (10, TRIES))  # the first few usually do, so the rest is drawn only on demand
_ROWS = 4096  # attempts worked on together, at least
_PROBE_TURNS = 8192  # a request of which not one attempt in so many succeeds is refused
LAST_TURN = 1 << 20  # no scene restarts more often

Spacing = Literal["official", "relaxed"]


class _Distances(NamedTuple):
    apart: float  # free floor between two objects, center distance less both half extents
    margin: float  # offset of two centers along each of the camera's ground axes


# Relaxed keeps objects from touching but lets them stand closer, so that 11 and 12 of them fit.
SPACINGS = {"official": _Distances(0.25, 0.4), "relaxed": _Distances(0.1, 0.1)}


class Effort(NamedTuple):
    """What drawing took, per scene (B,): the numbers by which one generator can be held against another."""

    attempts: Tensor  # placements begun
    candidates: Tensor  # positions looked at
    crowded: Tensor  # attempts dropped because one object found no room
    unseen: Tensor  # attempts dropped because an object was hidden


@dataclass(frozen=True)
class Scenes:
    """An endless family of random scenes, by the rules of the CLEVR generator; scene i of a seed is always the same.

    Args:
        objects: fewest and most objects in a scene, or one number; every count is equally likely.
        shapes, colors, materials, sizes: the words objects may have.
        held_out: combinations that never occur, such as ("cube", "red") or {"shape": "cube", "size": "small"}.
        spacing: distances between objects, `official` (up to 10 or 11 fit) or `relaxed` (a dozen and more fit).
        jitter: whether camera and lamps move a little in every scene.
        visibility: how every object is made to show at least 200 pixels at 320x240, `fast` or `exact`.

    Example:
        >>> import tessera
        >>> batch = tessera.Scenes(objects=(1, 3)).draw(4, seed=0)
        >>> batch.present.sum(1).tolist()
        [3, 3, 3, 2]
    """

    objects: tuple[int, int] | int = (1, 3)
    """Fewest and most objects in a scene; the count is uniform."""
    shapes: tuple[str, ...] = SHAPES
    colors: tuple[str, ...] = COLOR_NAMES
    materials: tuple[str, ...] = MATERIALS
    sizes: tuple[str, ...] = tuple(SIZES)
    held_out: tuple = ()
    """Combinations that never occur, such as ("cube", "red") or {"shape": "cube", "size": "small"}."""
    spacing: Spacing = "official"
    """How far apart objects stand: as in the generator (up to 10 or 11 fit), or closer (a dozen and more fit)."""
    jitter: bool = True
    """Move camera and lamps a little in every scene."""
    visibility: Visibility = "fast"
    """How to ensure that every object shows at least 200 pixels at 320x240."""

    def __post_init__(self):
        freeze = object.__setattr__
        freeze(self, "objects", checked_range(self.objects))
        for name, known in WORDS.items():
            freeze(self, f"{name}s", checked_words(getattr(self, f"{name}s"), name, known))
        freeze(self, "held_out", tuple(itertools.chain.from_iterable(map(combinations, self.held_out))))
        for name, kinds in (("spacing", Spacing), ("visibility", Visibility)):
            if getattr(self, name) not in get_args(kinds):
                raise UserError(f"`{getattr(self, name)}` is no {name}; use {' or '.join(get_args(kinds))}.")
        if not looks(self):
            raise UserError("Every combination of shape, color, material and size is held out.")

    def draw(self, count: int, seed: int = 0, start: int = 0, device=None) -> SceneBatch:
        """Scenes start .. start + count - 1 of stream `seed`, padded to the largest count of objects."""
        if count < 0 or start < 0:
            raise UserError(f"Cannot draw {count} scenes from number {start}: neither may be negative.")
        return self.numbered(torch.arange(start, start + count, device=device), seed)[0]

    def numbered(self, index: Tensor, seed: int = 0) -> tuple[SceneBatch, Effort]:
        """The scenes with these numbers (B,), in any order, on the device of `index`; and what they took."""
        if not fits(self):
            raise UserError(_cannot_fit(self) + ".")
        if index.device.type == "cuda" and self.visibility == "fast" and importlib.util.find_spec("triton"):
            from tessera.scenes.kernel import draw_scenes

            return draw_scenes(self, seed, index)
        low, high = checked_range(self.objects)
        counts = low + (uniform(seed, index, "count", 1)[:, 0] * (high - low + 1)).long()  # (B,)
        return fill(self, seed, index, counts)


def checked_range(objects: tuple[int, int] | int) -> tuple[int, int]:
    low, high = (objects, objects) if isinstance(objects, int) else tuple(objects)
    if not 0 <= low <= high:
        raise UserError(f"A scene cannot hold from {low} to {high} objects.")
    return low, high


def check_word(word: str, what: str, known: Iterable[str]) -> None:
    if word not in known:
        raise UserError(f"`{word}` is no {what}; use {', '.join(known)}.")


def checked_words(words: Iterable[str], attribute: str, known: tuple[str, ...]) -> tuple[str, ...]:
    words = (words,) if isinstance(words, str) else tuple(words)
    for word in words:
        check_word(word, attribute, known)
    if not words or len(set(words)) < len(words):
        raise UserError(f"Name at least one {attribute}, and each only once.")
    return words


def combinations(held_out: Mapping | Iterable[str]) -> list[tuple[str, ...]]:
    """A held-out entry as tuples of words; a mapping may give several words for one attribute."""
    if isinstance(held_out, Mapping):
        for attribute in held_out:
            check_word(attribute, "attribute", WORDS)
        choices = [checked_words(words, name, WORDS[name]) for name, words in held_out.items()]
    elif isinstance(held_out, str):
        raise UserError(f'A held-out combination is a group of words such as ("cube", "red"), not `{held_out}`.')
    else:
        known = tuple(itertools.chain.from_iterable(WORDS.values()))
        words = checked_words(held_out, "attribute of an object", known)
        for attribute, names in WORDS.items():
            if len(both := [word for word in words if word in names]) > 1:
                raise UserError(f"No object is both {both[0]} and {both[1]}: a combination has one {attribute}.")
        choices = [(word,) for word in words]
    return list(itertools.product(*choices))


@lru_cache
def looks(rules: Scenes) -> list[tuple[int, ...]]:
    """Allowed (size, shape, color, material), as indices into the vocabulary.

    Drawing one of these uniformly is the same as drawing all attributes freely until the look is allowed.
    """
    allowed = []
    for look in itertools.product(rules.sizes, rules.shapes, rules.colors, rules.materials):
        if not any(set(taboo) <= set(look) for taboo in rules.held_out):
            indices = (names.index(word) for names, word in zip(WORDS.values(), look))
            allowed.append(tuple(indices))
    return allowed


def stage(rules: Scenes, seed: int, index: Tensor) -> dict[str, Tensor]:
    """Camera and lamps of each scene, (B, 3) each; they stay when the objects are placed again."""
    resting = torch.tensor([CAMERA, KEY, FILL, BACK], device=index.device).expand(len(index), 4, 3)
    if rules.jitter:
        reach = torch.tensor([CAMERA_JITTER] + 3 * [LAMP_JITTER], device=index.device)[:, None]
        offset = 2 * uniform(seed, index, "jitter", 12).reshape(-1, 4, 3) - 1
        resting = resting + offset * reach
    return dict(zip(("camera", "key", "fill", "back"), resting.unbind(1)))


def fill(rules: Scenes, seed: int, index: Tensor, counts: Tensor) -> tuple[SceneBatch, Effort]:
    """Scenes filled with objects: each is attempted until an attempt obeys all rules."""
    result = blank(checked_range(rules.objects)[1], stage(rules, seed, index))
    effort = Effort(*(torch.zeros_like(index) for _ in Effort._fields))
    pending = torch.arange(len(index), device=index.device)
    turn, width = 0, 1
    while len(pending):
        if turn >= LAST_TURN:
            raise gave_up(rules, turn)
        # Few scenes are left in the end: look at several next attempts of each, keep the earliest good one.
        width = min(2 * width, max(1, _ROWS // len(pending))) if turn else 1
        rows = pending.repeat_interleave(width)  # (U * width,)
        turns = torch.arange(turn, turn + width, device=index.device).repeat(len(pending))
        drawn, tries, crowded, unseen = attempt(rules, seed, index[rows], turns, counts[rows], result[rows])
        good = ~(crowded | unseen).reshape(-1, width)
        first = good.int().argmax(1)  # of the good attempts the earliest, whatever the width
        needed = torch.arange(width, device=index.device) <= torch.where(good.any(1), first, width)[:, None]
        for total, spent in zip(effort, (torch.ones_like(tries), tries, crowded, unseen)):
            total[pending] += (spent.reshape(-1, width) * needed).sum(1)
        done = good.any(1).nonzero()[:, 0]
        keep(result, pending[done], drawn[done * width + first[done]])
        pending = pending[(~good.any(1)).nonzero()[:, 0]]
        turn += width
    return result, effort


def attempt(
    rules: Scenes, seed: int, index: Tensor, turn: Tensor, counts: Tensor, scenes: SceneBatch
) -> tuple[SceneBatch, Tensor, Tensor, Tensor]:
    """One placement of each scene: objects, candidates tried, and whether it was crowded or hid an object."""
    slots = scenes.present.shape[1]
    present = torch.arange(slots, device=index.device) < counts[:, None]  # (R, N)
    look = random_looks(rules, seed, index, turn, slots)
    xy, tries, crowded = position(SPACINGS[rules.spacing], seed, index, turn, look["size"], counts)
    drawn = with_objects(scenes, present, xy, look)
    unseen = torch.zeros_like(crowded)
    placed = (~crowded).nonzero()[:, 0]
    unseen[placed] = ~all_visible(drawn[placed], rules.visibility)
    return drawn, tries, crowded, unseen


def random_looks(rules: Scenes, seed: int, index: Tensor, turn: Tensor, slots: int) -> dict[str, Tensor]:
    """Attributes and yaw of each object, (R, N) each."""
    table = torch.tensor(looks(rules), device=index.device)  # (A, 4)
    extent = torch.tensor(list(SIZES.values()), device=index.device)
    number = uniform(seed, index, "look", 2 * slots, turn).reshape(len(index), slots, 2)
    size, shape, color, material = table[(number[..., 0] * len(table)).long()].unbind(-1)
    rotation = number[..., 1] * (2 * math.pi)
    look = {"shape": shape, "color": color, "material": material}
    return {**look, "size": extent[size], "rotation": rotation}


def position(
    distances: _Distances, seed: int, index: Tensor, turn: Tensor, size: Tensor, counts: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Positions (R, N, 2) one object after the other, candidates tried (R,), and who found no room (R,)."""
    xy = torch.zeros(*size.shape, 2, device=size.device)
    tries = torch.zeros_like(index)
    crowded = torch.zeros_like(index, dtype=torch.bool)
    for k in range(size.shape[1]):
        rows = (~crowded & (counts > k)).nonzero()[:, 0]
        for first, last in _TRY_CHUNKS:
            numbers = uniform(seed, index[rows], f"place {k}", 2 * (last - first), turn[rows], 2 * first)
            candidates = REACH * (2 * numbers.reshape(len(rows), last - first, 2) - 1)  # (L, T, 2)
            free = is_free(distances, candidates, size[rows, k], xy[rows, :k], size[rows, :k])
            found, choice = free.any(1), free.int().argmax(1)
            tries[rows] += torch.where(found, choice + 1, last - first)
            lucky = found.nonzero()[:, 0]
            xy[rows[lucky], k] = candidates[lucky, choice[lucky]]
            rows = rows[(~found).nonzero()[:, 0]]
            if not len(rows):
                break
        crowded[rows] = True
    return xy, tries, crowded


def is_free(distances: _Distances, candidates: Tensor, size: Tensor, placed: Tensor, placed_size: Tensor) -> Tensor:
    """Which candidates (L, T, 2) for objects of `size` (L,) keep away from all `placed` (L, k, 2): (L, T)."""
    dx = candidates[:, :, None, 0] - placed[:, None, :, 0]  # (L, T, k)
    dy = candidates[:, :, None, 1] - placed[:, None, :, 1]
    reach = (placed_size + size[:, None] + distances.apart)[:, None]  # (L, 1, k)
    bad = dx * dx + dy * dy < reach * reach
    for axis in (RIGHT, BEHIND):  # those of the camera without jitter, as in the official generator
        offset = (dx * axis[0] + dy * axis[1]).abs()
        bad |= (offset > 0) & (offset < distances.margin)
    return ~bad.any(-1)


def blank(slots: int, staged: dict[str, Tensor]) -> SceneBatch:
    """Scenes with room for `slots` objects and none of them present."""
    camera = staged["camera"]

    def empty(value, dtype, *more):
        return torch.full((len(camera), slots, *more), value, dtype=dtype, device=camera.device)

    return SceneBatch(
        present=empty(False, torch.bool),
        shape=empty(0, torch.long),
        color=empty(0, torch.long),
        material=empty(0, torch.long),
        size=empty(1.0, torch.float32),
        xy=empty(0.0, torch.float32, 2),
        rotation=empty(0.0, torch.float32),
        **{name: value.clone() for name, value in staged.items()},
    )


def with_objects(scenes: SceneBatch, present: Tensor, xy: Tensor, look: dict[str, Tensor]) -> SceneBatch:
    """The same stages with these objects; empty slots keep their blank values."""
    chosen = {name: torch.where(present, value, getattr(scenes, name)) for name, value in look.items()}
    return replace(scenes, present=present, xy=torch.where(present[..., None], xy, scenes.xy), **chosen)


def keep(result: SceneBatch, rows: Tensor, found: SceneBatch) -> None:
    """Write finished scenes into their rows."""
    for field in fields(SceneBatch):
        getattr(result, field.name)[rows] = getattr(found, field.name)


def _cannot_fit(rules: Scenes) -> str:
    count, distances = checked_range(rules.objects)[1], SPACINGS[rules.spacing]
    hint = ' or spacing="relaxed"' if rules.spacing == "official" else ""
    return (
        f"{count} objects do not fit on the stage with {distances.apart} between them, a margin of"
        f" {distances.margin} and every object visible; use fewer{hint}"
    )


def gave_up(rules: Scenes, turns: int) -> UserError:
    return UserError(f"{_cannot_fit(rules)} (gave up after {turns} attempts at one scene).")


@lru_cache
def fits(rules: Scenes) -> bool:
    """Whether some attempt at a fullest scene of these rules succeeds: a bounded effort, and a refusal is remembered too."""
    most, distances = checked_range(rules.objects)[1], SPACINGS[rules.spacing]
    span = 2 * REACH * (abs(RIGHT[0]) + abs(RIGHT[1]))  # how far the stage reaches along the camera's axes
    if most > 1 + span / distances.margin:
        return False
    quick = rules if rules.visibility == "off" else replace(rules, visibility="fast")
    for first, last in itertools.pairwise((0, 16, 512, _PROBE_TURNS)):
        turn = torch.arange(first, last)
        index = torch.zeros_like(turn)
        scenes = blank(most, stage(quick, 0, index))
        _, _, crowded, unseen = attempt(quick, 0, index, turn, torch.full_like(turn, most), scenes)
        if not (crowded | unseen).all():
            return True
    return False
