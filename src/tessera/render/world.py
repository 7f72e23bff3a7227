"""A batch of scenes laid out for ray tracing: objects as columns (N, B), lamps with their positions (B,)."""

import itertools
import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tessera.scenes.batch import SceneBatch
from tessera.scenes.geometry import CLEAR
from tessera.scenes.raycast import Solids, column
from tessera.scenes.vectors import Vec, take
from tessera.scenes.vocabulary import COLORS, MATERIALS

_METAL = MATERIALS.index("metal")
# Strength, color and side of the square lamps: key, fill and back.
_AREA_LAMPS = (
    (25.0, (1.0, 0.932309, 0.816664), 0.5),
    (7.5, (0.761666, 0.817720, 1.0), 0.5),
    (12.5, (1.0, 1.0, 1.0), 1.0),
)
_SUN = (0.414496, -0.194583, 0.889005)  # unit vector toward the sun
_SUN_DISTANCE = 30.0  # beyond every object and its shadow; the sun itself has no position


@dataclass(frozen=True)
class Lamp:
    """One lamp of every scene in the batch: a disc that looks at the origin, or the sun."""

    position: Vec  # (B,); for the sun: the way to it from anywhere
    power: tuple[float, float, float]  # radiance times area; for the sun: irradiance
    radius: float  # of a disc as large as the lamp
    sun: bool = False

    def way(self, points: "Points") -> Vec:
        """From each point to the lamp."""
        here = self.position.map(points.spread)
        return here if self.sun else here - points.position

    def light(self, way: Vec, points: "Points") -> tuple[Vec, Tensor]:
        """Direction to the lamp and irradiance of a surface that faces it, for unit power."""
        squared = way.squared()
        nearness = squared.rsqrt()
        if self.sun:
            return way * nearness, torch.ones_like(squared)
        axis = self.position.unit().map(points.spread)  # area lamps look at the origin
        facing = (way.dot(axis) * nearness).clamp_min(0)  # cosine at the lamp, which shines to one side only
        return way * nearness, facing * nearness * nearness


@dataclass(frozen=True)
class Points:
    """Locations in the world and the scene each belongs to: a grid (B, P), or a list (M,) with `scene` (M,)."""

    position: Vec
    scene: Tensor | None = None

    def spread(self, column: Tensor) -> Tensor:
        """Per-scene values (..., B) laid out beside the points."""
        return column[..., None] if self.scene is None else column.index_select(-1, self.scene)

    def scene_of(self, flat: Tensor) -> Tensor:
        if self.scene is not None:
            return take(self.scene, flat)
        return torch.div(flat, self.position.x.shape[-1], rounding_mode="floor")


@dataclass(frozen=True)
class World(Solids):
    """What rays can meet in B scenes of up to N objects, its materials, and the lamps that light it."""

    metal: Tensor  # (N, B) bool
    color: Vec  # (N, B) scene-linear
    lamps: tuple[Lamp, ...]

    @staticmethod
    def of(scenes: SceneBatch) -> "World":
        palette = torch.tensor(list(COLORS.values()), device=scenes.device) / 255.0
        return World.columns(
            scenes,
            metal=column(scenes.material == _METAL),
            color=Vec.of(palette[scenes.color]).map(column),
            lamps=_lamps(scenes),
        )

    def visibility(
        self,
        lamp: Lamp,
        points: Points,
        own: Tensor | None = None,
        blur: float = 0.0,
        pairs: tuple[Tensor, Tensor] | None = None,
    ) -> Tensor:
        """Share of the lamp each point can see past the objects; `own` (M,) is the slot a point lies on.

        Penumbrae are analytic: the lamp's disc as seen at the location where the ray passes an object, against
        how far from its surface the ray passes. `blur` widens them to the footprint of a pixel.
        """
        way = lamp.way(points)
        obj, flat = pairs or self._candidates(lamp, way, points, own, blur)
        seen = torch.ones_like(points.position.x).flatten()
        start = points.position.map(torch.flatten)
        way = way.map(lambda c: c.expand(points.position.x.shape).flatten())
        for name, rows in self.by_shape(obj):
            some, at = take(obj, rows), take(flat, rows)
            gap, fraction = CLEAR[name](self.local(some, start.take(at)), self.local_direction(some, way.take(at)))
            size = take(self.size.flatten(), some)
            width = torch.hypot(lamp.radius * fraction, torch.full_like(fraction, blur)) / size
            open_ = ((gap / width.clamp_min(1e-4) + 1) / 2).clamp(0, 1)
            seen.scatter_reduce_(0, at, open_ * open_ * (3 - 2 * open_), "prod")
        return seen.view(points.position.x.shape)

    def shadow_corners(self, lamp: Lamp, blur: float) -> Vec:
        """Eight points on the floor (8, N, B) whose hull holds each object's shadow, penumbra included."""
        top = 2 * self.size
        above = (lamp.position.z - top).clamp_min(0.05)  # a lamp as low as the object: shadows without end
        stretch = top / above
        away_x, away_y = -lamp.position.x * stretch, -lamp.position.y * stretch
        if not lamp.sun:
            away_x, away_y = self.center.x * stretch + away_x, self.center.y * stretch + away_y
        soft = lamp.radius * (stretch if not lamp.sun else top / lamp.position.z) + blur
        near = 0.95 * self.bound.clamp_min(0) + blur
        far = near * (1 if lamp.sun else 1 + stretch) + soft
        ends: tuple[tuple[Any, Any, Tensor], ...] = ((0.0, 0.0, near), (away_x, away_y, far))
        xs, ys = [], []
        for (x, y, reach), i, j in itertools.product(ends, (-1, 1), (-1, 1)):
            xs.append(self.center.x + x + i * reach)
            ys.append(self.center.y + y + j * reach)
        flat = torch.zeros_like(self.size)
        return Vec(torch.stack(xs), torch.stack(ys), torch.stack([flat] * 8))

    def _candidates(self, lamp, way: Vec, points: Points, own, blur: float) -> tuple[Tensor, Tensor]:
        """Pairs (object, point) whose light ray passes through the sphere around the object or close by."""
        offset = self.center.map(points.spread) - points.position  # (N, ...)
        fraction = (offset.dot(way) / way.squared()).clamp(0, 1)
        miss = (offset - way * fraction).squared()
        bound = points.spread(self.bound)
        near = (miss < (bound + lamp.radius * fraction + blur).square()) & (bound > 0)
        slot, flat = torch.nonzero(near.flatten(1), as_tuple=True)
        if own is not None:
            keep = slot != own[flat]
            slot, flat = slot[keep], flat[keep]
        return slot * self.size.shape[1] + points.scene_of(flat), flat


def _lamps(scenes: SceneBatch) -> tuple[Lamp, ...]:
    lamps = []
    for position, (strength, color, side) in zip((scenes.key, scenes.fill, scenes.back), _AREA_LAMPS):
        red, green, blue = (strength * part for part in color)
        lamps.append(Lamp(Vec.of(position), (red, green, blue), side / math.sqrt(math.pi)))
    sun = scenes.camera.new_tensor(_SUN).mul(_SUN_DISTANCE).expand(len(scenes), 3)
    return (*lamps, Lamp(Vec.of(sun), (0.45, 0.45, 0.45), 0.1 * _SUN_DISTANCE, sun=True))
