"""Objects that no renderer draws but generators do: stretched into columns, and grown into a neighbor.

People count a stack of one color as one object and two bodies of different colors as two, however fused they are; the
detector learns both here. A graft is one object rendered alone, moved or stretched, and pasted before or behind.
"""

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from tessera.render.render import render
from tessera.scenes.batch import SceneBatch
from tessera.scenes.vocabulary import COLOR_NAMES, MATERIALS, SHAPES

STRETCHED = 0.5  # of the images with a graft; the others get a twin, a second body of another color
DOUBLED = 0.4  # of the stretched: drawn twice, half a body apart, which people count as one
LONGEST = 2.2  # times as long as the object was
CLEAR = 0.35  # of a body must be visible, or it is neither right nor wrong to find it


@dataclass(frozen=True)
class Grafts:
    """Images with some grafts, and what is true of them."""

    images: Tensor  # (B, 3, side, side)
    mask: Tensor  # (B, side, side) long, 0 or 1 + slot
    scenes: SceneBatch  # with the twins
    location: Tensor  # (B, N, 2) in [0, 1]
    stretched: Tensor  # (B, N) bool
    covered: Tensor  # (B, N) bool: too little of it is visible since


def no_grafts(images: Tensor, mask: Tensor, scenes: SceneBatch, location: Tensor) -> Grafts:
    """Images as they were rendered."""
    none = torch.zeros_like(scenes.present)
    return Grafts(images, mask, scenes, location, none, none)


def add_grafts(given: Grafts, spared: Tensor, share: float, random) -> Grafts:
    """Stretch an object or give it a twin in a share of the images; slot `spared` (B,) of each stays as it is."""
    images, mask, scenes, location = given.images, given.mask, given.scenes, given.location
    count, slots = scenes.present.shape

    def draw(*shape):
        return torch.rand(*shape, generator=random, device=images.device)

    area = _areas(mask, slots)
    open_to = scenes.present & (area > 0) & (torch.arange(slots, device=images.device) != spared[:, None])
    score = torch.where(open_to, draw(count, slots), -1.0)
    victim, has_victim = score.argmax(1), score.amax(1) > 0
    stretch = draw(count) < STRETCHED
    free = (~scenes.present).int().argmax(1)  # the slot of a twin
    possible = has_victim & (stretch | ~scenes.present.all(1))
    rows = torch.nonzero((draw(count) < share) & possible).squeeze(-1)
    stretched = torch.zeros_like(scenes.present)
    if not len(rows):
        return given
    stretch, victim = stretch[rows], victim[rows]
    slot = torch.where(stretch, victim, free[rows])
    body = _alone(scenes[rows], victim, ~stretch, random)
    frame = render(body, images.shape[-1], layers=("rgb", "mask"), quality="fast")
    alpha = (frame["mask"] > 0).to(images.dtype)[:, None]  # (R, 1, side, side)
    move = _moves(_extent(alpha), stretch, draw)
    paste = _warped(torch.cat([frame["rgb"], alpha], 1), location[rows, victim], move)
    # A twin may stand behind; a stretched object covers what it was.
    behind = ~stretch & (draw(len(rows)) < 0.5)
    alpha = paste[:, 3:] * torch.where(behind[:, None, None, None], (mask[rows] == 0).to(images.dtype)[:, None], 1.0)
    images, mask = images.clone(), mask.clone()
    images[rows] = torch.lerp(images[rows], paste[:, :3], alpha)
    mask[rows] = torch.where(alpha[:, 0] > 0.5, (slot + 1)[:, None, None].to(mask.dtype), mask[rows])
    scenes = _with_twins(scenes, rows, victim, slot, body)
    location = location.clone()
    location[rows, slot] = location[rows, victim] + move.middle
    stretched[rows, slot] = stretch
    whole = area.clone()
    whole[rows, slot] = (paste[:, 3] > 0.5).float().mean((1, 2))
    covered = torch.zeros_like(stretched)
    covered[rows] = _areas(mask[rows], slots) < CLEAR * whole[rows]
    covered[rows, slot] |= (location[rows, slot] - location[rows, slot].clamp(0.02, 0.98)).abs().amax(-1) > 0
    return Grafts(images, mask, scenes, location, stretched, covered)


@dataclass(frozen=True)
class _Moves:
    """From where an object stands to where its graft does."""

    shift: Tensor  # (R, 2) in shares of the image
    middle: Tensor  # (R, 2) from the object to the middle of what is counted as one, or of its twin
    angle: Tensor  # (R,) of the axis along which it is stretched
    factor: Tensor  # (R,)


def _moves(extent: Tensor, stretch: Tensor, draw) -> _Moves:
    """Columns rather than beams, as generators draw them; twins about one body away, in any direction."""
    count = len(extent)
    upright = draw(count) < 0.6
    angle = torch.where(upright, 1.5708, 0.0) + 0.5 * (draw(count) - 0.5)
    factor = torch.where(stretch, 1.3 + (LONGEST - 1.3) * draw(count), 1.0)
    axis = torch.stack([angle.cos(), angle.sin()], 1)
    double = stretch & (draw(count) < DOUBLED)
    factor = torch.where(double, 1.0, factor)
    along = ((factor - 1) * (draw(count) - 0.5))[:, None] * axis
    turn = 6.2832 * draw(count)
    nearest = torch.where(double, 0.25, 0.55)
    away = (nearest + nearest * draw(count))[:, None] * torch.stack([turn.cos(), turn.sin()], 1)
    shift = torch.where((stretch & ~double)[:, None], along, away) * extent
    return _Moves(shift, torch.where(double[:, None], shift / 2, shift), angle, factor)


def _alone(scenes: SceneBatch, victim: Tensor, twin: Tensor, random) -> SceneBatch:
    """Scenes of the victim alone; as a twin it has another color and any shape and material."""
    rows = torch.arange(len(scenes), device=scenes.device)
    present = torch.zeros_like(scenes.present)
    present[rows, victim] = True

    def changed(values: Tensor, kinds: int, least: int) -> Tensor:
        turn = torch.randint(least, kinds, victim.shape, generator=random, device=scenes.device)
        values = values.clone()
        values[rows, victim] = torch.where(twin, (values[rows, victim] + turn) % kinds, values[rows, victim])
        return values

    return replace(
        scenes,
        present=present,
        color=changed(scenes.color, len(COLOR_NAMES), 1),
        shape=changed(scenes.shape, len(SHAPES), 0),
        material=changed(scenes.material, len(MATERIALS), 0),
    )


def _with_twins(scenes: SceneBatch, rows: Tensor, victim: Tensor, slot: Tensor, body: SceneBatch) -> SceneBatch:
    """The attributes of every graft in its slot; a stretched object keeps its own."""
    one = torch.arange(len(rows), device=rows.device)
    columns = {"present": scenes.present.clone()}
    columns["present"][rows, slot] = True
    for name in ("color", "shape", "material", "size"):
        columns[name] = getattr(scenes, name).clone()
        columns[name][rows, slot] = getattr(body, name)[one, victim]
    return replace(scenes, **columns)


def _areas(mask: Tensor, slots: int) -> Tensor:
    """Share of the image that shows each object, (B, N)."""
    return torch.stack([(mask == k + 1).float().mean((1, 2)) for k in range(slots)], 1)


def _extent(alpha: Tensor) -> Tensor:
    """Width and height of an object from its silhouette, (R, 2) in shares of the image."""
    side = alpha.shape[-1]
    sizes = [alpha.amax(2)[:, 0].sum(1), alpha.amax(3)[:, 0].sum(1)]
    return torch.stack(sizes, 1) / side


def _warped(images: Tensor, center: Tensor, move: _Moves) -> Tensor:
    """Images (R, C, side, side) moved by `shift` and stretched about the moved center."""
    side = images.shape[-1]
    steps = (torch.arange(side, device=images.device) + 0.5) / side
    axis = torch.stack([move.angle.cos(), move.angle.sin()], 1)[:, None, None]  # (R, 1, 1, 2)
    pixel = torch.stack(torch.meshgrid(steps, steps, indexing="xy"), -1)  # (side, side, 2) as (x, y)
    offset = pixel - (center + move.shift)[:, None, None]
    along = (offset * axis).sum(-1, keepdim=True)
    source = center[:, None, None] + offset + axis * along * (1 / move.factor - 1)[:, None, None, None]
    return F.grid_sample(images, source * 2 - 1, align_corners=False, padding_mode="zeros")
