"""Training data of the detector: rendered scenes, corrupted in the ways that generated images are.

Batch i is a pure function of (seed, i): scenes, images, corruptions and targets.
"""

from dataclasses import dataclass, fields, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from grafts import Grafts, add_grafts, no_grafts
from tessera.evaluation.network import CELLS, SIDE, to_canvas
from tessera.render.render import render
from tessera.scenes.batch import SceneBatch
from tessera.scenes.camera import ASPECT, ground_point, project
from tessera.scenes.sampling import Scenes
from tessera.scenes.vocabulary import COLOR_NAMES, SHAPES

SIZES_SEEN = ((32, 0.2), (64, 0.5), (128, 0.3))  # images come in these sizes, so often
VISIBLE = 200 / (320 * 240)  # the official rule: what shows less than this share of the frame may be overlooked
MOST = 12
OFFICIAL = Scenes(objects=(0, 6), visibility="off")
RELAXED = Scenes(objects=(0, MOST), spacing="relaxed", visibility="off")
CORRUPTED, OOD = (0.35, 0.06)  # shares of images with a corrupted object, and of images that are no scene at all


@dataclass(frozen=True)
class SyntheticData:
    """B images on the detector's canvas and the truth about up to N objects in each."""

    images: Tensor  # (B, 3, 128, 128)
    location: Tensor  # (B, N, 2) in [0, 1]
    state: Tensor  # (B, N) long: ABSENT, UNCLEAR (neither right nor wrong to find) or THERE
    well_formed: Tensor  # (B, N) float: 1 well-formed, 0 corrupted
    mixed: Tensor  # (B, N) bool: looks like two objects at once, so its attributes have no truth
    color: Tensor  # (B, N) long
    shape: Tensor
    size: Tensor
    material: Tensor

    def columns(self) -> list[Tensor]:
        return [getattr(self, f.name) for f in fields(self)]

    def rows(self, chosen: Tensor | slice) -> "SyntheticData":
        return SyntheticData(*(column[chosen] for column in self.columns()))


ABSENT, UNCLEAR, THERE = 0, 1, 2


def synthetic_data(seed: int, number: int, count: int, device, grafted: float = 0.0) -> SyntheticData:
    """Batch `number` of stream `seed`, in thirds: official scenes, crowded ones, and objects anywhere in the frame.

    A share `grafted` of the images has a stretched, doubled or touching object, as generators draw them.
    """
    random = torch.Generator(device=device).manual_seed(hash((seed, number)) % 2**62)
    third = count // 3
    first = number * count
    official = OFFICIAL.draw(third, seed=seed, start=first, device=device)
    crowded = RELAXED.draw(third, seed=seed + 1, start=first, device=device)
    scattered = _anywhere(RELAXED.draw(count - 2 * third, seed=seed + 2, start=first, device=device), random)
    sides = _choose_sizes(seed, number)
    parts = [_image(s, side, random, grafted) for s, side in zip((_pad(official), crowded, scattered), sides)]
    batch = SyntheticData(*(torch.cat(columns) for columns in zip(*(p.columns() for p in parts))))
    return _with_ood_images(batch.rows(torch.randperm(count, generator=random, device=device)), random)


def _choose_sizes(seed: int, number: int) -> list[int]:
    random = torch.Generator().manual_seed(seed * 1_000_003 + number)
    shares = torch.tensor([share for _, share in SIZES_SEEN])
    picks = torch.multinomial(shares, 3, replacement=True, generator=random)
    return [SIZES_SEEN[pick][0] for pick in picks]


def _image(scenes: SceneBatch, side: int, random, grafted: float) -> SyntheticData:
    frame = render(scenes, side, layers=("rgb", "mask"), quality="fast")
    images, corruption = _corrupt_objects(frame["rgb"], scenes, random)
    grafts = no_grafts(images, frame["mask"], scenes, _locations(scenes))
    if grafted:
        grafts = add_grafts(grafts, corruption.obj, grafted, random)
    images = to_canvas(_develop(_add_blobs(grafts.images, random), random))
    return _truth(images, grafts, corruption)


# --- scenes ---------------------------------------------------------------------------------------------------


def _pad(scenes: SceneBatch) -> SceneBatch:
    """The same scenes with room for as many objects as the crowded ones have."""
    more = MOST - scenes.present.shape[1]
    wide = {}
    for f in fields(SceneBatch):
        value = getattr(scenes, f.name)
        per_object = f.name not in ("camera", "key", "fill", "back")
        tail = (0, 0) if value.dim() == 3 else ()
        fill = 1.0 if f.name == "size" else 0
        wide[f.name] = F.pad(value, (*tail, 0, more), value=fill) if per_object else value
    return SceneBatch(**wide)


def _anywhere(scenes: SceneBatch, random) -> SceneBatch:
    """Move objects to random locations of the frame, beyond the floor the generator uses, and drop those too close."""
    shape = scenes.present.shape
    spot = torch.rand(*shape, 2, generator=random, device=scenes.device)
    spot = spot * spot.new_tensor([0.88, 0.68]) + spot.new_tensor([0.06, 0.19])
    gaps = (spot[:, :, None] - spot[:, None]).abs().amax(-1)  # (B, N, N)
    earlier = torch.ones(shape[1], shape[1], device=spot.device).tril(-1).bool()
    crowded = ((gaps < 0.06) & earlier & scenes.present[:, None]).any(-1)
    xy = ground_point(spot, scenes.camera, scenes.size)
    return replace(scenes, xy=xy, present=scenes.present & ~crowded & xy.isfinite().all(-1))


# --- corruption -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Corruption:
    obj: Tensor  # (B,) slot of the corrupted object, -1 for none
    left: Tensor  # (B,) share of it that is still drawn
    chimera: Tensor  # (B,) bool: the rest is not floor but another object


def _corrupt_objects(images: Tensor, scenes: SceneBatch, random) -> tuple[Tensor, Corruption]:
    """In some images one object is drawn only in part: a ghost, a half, a patchwork, or a mix of two objects."""
    count, slots = scenes.present.shape
    device = images.device

    def draw(*shape):
        return torch.rand(*shape, generator=random, device=device)

    score = torch.where(scenes.present, draw(count, slots), -1.0)
    victim = score.argmax(1)
    corrupted = (draw(count) < CORRUPTED) & scenes.present.any(1)
    chimera = (draw(count) < 0.35) & corrupted
    rows = torch.nonzero(corrupted).squeeze(-1)
    left = torch.ones(count, device=device)
    if len(rows):
        other = render(_altered(scenes[rows], victim[rows], chimera[rows], random), images.shape[-1], quality="fast")[
            "rgb"
        ]
        keep = _keep_map(len(rows), images.shape[-1], scenes[rows], victim[rows], random)
        images = images.clone()
        images[rows] = images[rows] * keep + other * (1 - keep)
        left[rows] = _share_left(keep, scenes[rows], victim[rows])
    return images, Corruption(torch.where(corrupted, victim, -1), left, chimera)


def _altered(scenes: SceneBatch, victim: Tensor, chimera: Tensor, random) -> SceneBatch:
    """The same scenes without the victim, or with a different object in its location."""
    rows = torch.arange(len(scenes), device=scenes.device)
    present, color, shape = scenes.present.clone(), scenes.color.clone(), scenes.shape.clone()
    present[rows, victim] = chimera
    turn = torch.randint(1, len(COLOR_NAMES), victim.shape, generator=random, device=scenes.device)
    color[rows, victim] = (color[rows, victim] + turn) % len(COLOR_NAMES)
    shape[rows, victim] = (shape[rows, victim] + turn) % len(SHAPES)
    return replace(scenes, present=present, color=color, shape=shape)


def _keep_map(count: int, side: int, scenes: SceneBatch, victim: Tensor, random) -> Tensor:
    """How much of the first drawing stays at each pixel, (B, 1, side, side): even, cut in two, or patchy."""
    device = scenes.device

    def draw(*shape):
        return torch.rand(*shape, generator=random, device=device)

    steps = (torch.arange(side, device=device) + 0.5) / side
    middle = _locations(scenes)[torch.arange(count, device=device), victim]
    angle, shift = draw(count) * 6.2832, (draw(count) - 0.5) * 0.04
    dx, dy = steps - middle[:, 0:1], steps - middle[:, 1:2]
    across = angle.cos()[:, None, None] * dx[:, None, :] + angle.sin()[:, None, None] * dy[:, :, None]
    cut = torch.sigmoid((across - shift[:, None, None]) * 60)
    patchy = F.interpolate(draw(count, 1, 12, 12), (side, side), mode="bilinear")[:, 0]
    patchy = torch.sigmoid((patchy - 0.5) * 25)
    even = (0.2 + 0.6 * draw(count))[:, None, None].expand_as(cut)
    kind = draw(count)[:, None, None]
    keep = torch.where(kind < 0.3, even, torch.where(kind < 0.7, cut, patchy))
    return keep[:, None]


def _share_left(keep: Tensor, scenes: SceneBatch, victim: Tensor) -> Tensor:
    """Mean of the keep map in a window around the victim's center."""
    side = keep.shape[-1]
    location = _locations(scenes)[torch.arange(len(victim), device=keep.device), victim]
    wide = F.avg_pool2d(F.pad(keep, [side // 16] * 4, mode="replicate"), 2 * (side // 16) + 1, 1)
    return F.grid_sample(wide, (location * 2 - 1)[:, None, None], align_corners=False, padding_mode="border").flatten()


def _add_blobs(images: Tensor, random) -> Tensor:
    """Colored clouds without shading or edges in some images: nothing that should be counted."""
    count, _, side, _ = images.shape

    def draw(*shape):
        return torch.rand(*shape, generator=random, device=images.device)

    steps = (torch.arange(side, device=images.device) + 0.5) / side
    x, y, radius = draw(count, 1, 1), draw(count, 1, 1), 0.03 + 0.09 * draw(count, 1, 1)
    squared = ((steps[None, None, :] - x) ** 2 + (1.3 * (steps[None, :, None] - y)) ** 2) / radius**2
    alpha = torch.exp(-squared) * 0.45 * draw(count, 1, 1) * (draw(count, 1, 1) < 0.2)
    tint = draw(count, 3, 1, 1) * 2 - 1
    return images + alpha[:, None] * (tint - images)


def _develop(images: Tensor, random) -> Tensor:
    """Whole-image flaws: blur, noise fine and coarse, brightness, contrast and tint slightly off."""
    count, _, side, _ = images.shape

    def draw(*shape):
        return torch.rand(*shape, generator=random, device=images.device)

    def some(share: float):
        return (draw(count, 1, 1, 1) < share).to(images.dtype)

    soft = F.avg_pool2d(F.pad(images, (1, 1, 1, 1), mode="replicate"), 3, 1)
    softer = F.avg_pool2d(F.pad(soft, (1, 1, 1, 1), mode="replicate"), 3, 1)
    images = torch.lerp(images, torch.lerp(soft, softer, draw(count, 1, 1, 1)), some(0.4) * draw(count, 1, 1, 1))
    contrast, tint = 1 + 0.2 * (draw(count, 1, 1, 1) - 0.5), 0.12 * (draw(count, 3, 1, 1) - 0.5)
    images = torch.lerp(images, images * contrast + tint, some(0.7))
    noise = torch.randn(images.shape, generator=random, device=images.device)
    images = images + noise * some(0.6) * 0.08 * draw(count, 1, 1, 1).square()
    coarse = torch.randn(count, 3, 8, 8, generator=random, device=images.device)
    images = images + F.interpolate(coarse, (side, side), mode="bilinear") * some(0.4) * 0.06 * draw(count, 1, 1, 1)
    return images.clamp(-1, 1)


# --- truth ----------------------------------------------------------------------------------------------------


def _locations(scenes: SceneBatch) -> Tensor:
    return project(scenes.center, scenes.camera, ASPECT)[0]


def _truth(images: Tensor, grafts: Grafts, corruption: Corruption) -> SyntheticData:
    mask, scenes, location = grafts.mask, grafts.scenes, grafts.location
    slots = scenes.present.shape[1]
    pixels = mask.flatten(1)
    seen = torch.stack([(pixels == k + 1).float().mean(1) for k in range(slots)], dim=1)  # share of the frame
    inside = ((location > 0.01) & (location < 0.99)).all(-1)
    state = torch.where(seen >= 0.75 * VISIBLE, THERE, torch.where(seen > 0.1 * VISIBLE, UNCLEAR, ABSENT))
    state = torch.where(scenes.present & inside, state, torch.where(scenes.present & (seen > 0), UNCLEAR, ABSENT))
    hurt = torch.arange(slots, device=mask.device) == corruption.obj[:, None]  # (B, N)
    mixed = hurt & corruption.chimera[:, None]
    faint = hurt & ~mixed & (corruption.left < 0.6)[:, None]
    state = torch.where((faint | grafts.covered) & (state == THERE), UNCLEAR, state)
    nearly_whole = ~corruption.chimera & (corruption.left > 0.9)
    return SyntheticData(
        images=images,
        location=location,
        state=state,
        well_formed=(~(hurt & ~nearly_whole[:, None]) & ~grafts.stretched).float(),
        mixed=mixed,
        color=scenes.color,
        shape=scenes.shape,
        size=(scenes.size > 0.5).long(),
        material=scenes.material,
    )


# --- images that are no scene -------------------------------------------------------------------------------


def ood_images(count: int, random, device) -> Tensor:
    """Noise of all grains, flat colors and overlapping patches, (B, 3, 128, 128)."""
    total = torch.zeros(count, 3, SIDE, SIDE, device=device)
    weight = torch.rand(count, 6, generator=random, device=device)
    weight = weight * (torch.rand(count, 6, generator=random, device=device) < 0.5)
    for octave in range(6):
        grain = torch.randn(count, 3, 4 * 2**octave, 4 * 2**octave, generator=random, device=device)
        total += weight[:, octave, None, None, None] * F.interpolate(grain, (SIDE, SIDE), mode="bilinear")
    base = torch.rand(count, 3, 1, 1, generator=random, device=device) * 2 - 1
    total = total + base
    steps = (torch.arange(SIDE, device=device) + 0.5) / SIDE
    for _ in range(6):
        box = torch.rand(count, 4, 1, 1, generator=random, device=device)
        inside = ((steps - box[:, 0]).abs() < 0.3 * box[:, 2])[:, None] & ((steps - box[:, 1]).abs() < 0.3 * box[:, 3])[
            ..., None
        ]
        color = torch.rand(count, 3, 1, 1, generator=random, device=device) * 2 - 1
        drawn = torch.rand(count, 1, 1, 1, generator=random, device=device) < 0.4
        total = torch.where(inside.view(count, 1, SIDE, SIDE) & drawn, color, total)
    return total.clamp(-1, 1)


def _with_ood_images(batch: SyntheticData, random) -> SyntheticData:
    count = len(batch.images)
    rows = torch.nonzero(torch.rand(count, generator=random, device=batch.images.device) < OOD).squeeze(-1)
    if not len(rows):
        return batch
    images, state = batch.images.clone(), batch.state.clone()
    images[rows] = ood_images(len(rows), random, images.device)
    state[rows] = ABSENT
    return replace(batch, images=images, state=state)


def target_cells(location: Tensor) -> tuple[Tensor, Tensor]:
    """The cell (flat index) each location lies in and the location within it, in [0, 1]^2."""
    scaled = (location * CELLS).clamp(0, CELLS - 1e-3)
    cell = scaled.floor()
    return (cell[..., 1] * CELLS + cell[..., 0]).long(), scaled - cell
