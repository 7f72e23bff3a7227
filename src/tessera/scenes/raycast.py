"""Camera rays against the objects of scenes: which object each pixel shows, at which depth."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor

from tessera.errors import UserError
from tessera.scenes.batch import SceneBatch
from tessera.scenes.camera import ASPECT, FOCAL, camera_axes
from tessera.scenes.geometry import BOUND, HIT
from tessera.scenes.vectors import Vec, take
from tessera.scenes.vocabulary import SHAPES

_RAYS_AT_ONCE = {"cpu": 2**18, "cuda": 2**24, "mps": 2**20}


@dataclass(frozen=True)
class ImageFrame:
    """An image of width x height pixels that shows a frame of the given aspect."""

    width: int
    height: int
    aspect: float

    @staticmethod
    def of(size: int | tuple[int, int]) -> "ImageFrame":
        """An int squeezes the 4:3 frame into a square, as the study does; a pair keeps pixels square."""
        width, height = (size, size) if isinstance(size, int) else size
        if width < 1 or height < 1:
            raise UserError(f"An image needs at least one pixel, not {width}x{height}.")
        return ImageFrame(width, height, ASPECT if isinstance(size, int) else width / height)

    @property
    def pixels(self) -> int:
        return self.width * self.height


@dataclass(frozen=True)
class Solids:
    """The objects of B scenes of up to N objects, as rays meet them: columns (N, B)."""

    center: Vec  # (N, B)
    size: Tensor  # (N, B)
    cos: Tensor
    sin: Tensor
    shape: Tensor  # (N, B) index into SHAPES
    bound: Tensor  # (N, B) radius of the sphere around the object; negative for absent objects

    @classmethod
    def columns(cls, scenes: SceneBatch, **more: Any) -> Self:
        """The objects of these scenes; `more` are the other fields of a subclass."""
        bounds = torch.tensor([BOUND[name] for name in SHAPES], device=scenes.device)
        bound = bounds[scenes.shape] * scenes.size
        bound = torch.where(scenes.present, bound, -1.0)
        columns = scenes.size, scenes.rotation.cos(), scenes.rotation.sin(), scenes.shape, bound
        return cls(Vec.of(scenes.center).map(column), *map(column, columns), **more)

    def local(self, obj: Tensor, point: Vec) -> Vec:
        """`point` (K, ...) in the frame of objects (K,), given as flat indices into (N, B)."""
        center = self.center.map(lambda c: beside(take(c.flatten(), obj), point.x))
        return self.local_direction(obj, point - center)

    def local_direction(self, obj: Tensor, way: Vec) -> Vec:
        cos, sin, size = (beside(take(c.flatten(), obj), way.x) for c in (self.cos, self.sin, self.size))
        scale = 1 / size
        cos, sin = cos * scale, sin * scale
        return Vec(cos * way.x + sin * way.y, cos * way.y - sin * way.x, scale * way.z)

    def world_direction(self, obj: Tensor, way: Vec) -> Vec:
        cos, sin = (beside(take(c.flatten(), obj), way.x) for c in (self.cos, self.sin))
        return Vec(cos * way.x - sin * way.y, sin * way.x + cos * way.y, way.z)

    def by_shape(self, obj: Tensor):
        """For each shape: its name and which of the listed objects have it."""
        shapes = take(self.shape.flatten(), obj)
        for number, name in enumerate(SHAPES):
            rows = torch.nonzero(shapes == number).squeeze(-1)
            if len(rows):
                yield name, rows

    def meet(self, obj: Tensor, origin: Vec, direction: Vec) -> tuple[Tensor, Vec]:
        """Ray k against object k: distance (inf where missed) and unit normal. Rays are (K, ...)."""
        distance = torch.full_like(direction.x, torch.inf)
        normal = Vec.zeros_like(direction.x)
        for name, rows in self.by_shape(obj):
            some = take(obj, rows)
            o, d = self.local(some, origin.take(rows)), self.local_direction(some, direction.take(rows))
            t, n = HIT[name](o, d)
            distance[rows] = t
            normal.put_(rows, self.world_direction(some, n).unit())
        return distance, normal


@dataclass(frozen=True)
class Eye:
    """Camera rays. Their directions have length one along the view axis, so distance along a ray is depth."""

    frame: ImageFrame
    position: Vec  # (B,)
    right: Vec
    up: Vec
    backward: Vec

    @staticmethod
    def of(scenes: SceneBatch, frame: ImageFrame) -> "Eye":
        return Eye(frame, Vec.of(scenes.camera), *(Vec.of(axis) for axis in camera_axes(scenes.camera)))

    def rays(self, scene: Tensor | slice, column: Tensor, row: Tensor) -> Vec:
        """Directions through image positions (in pixels, fractions allowed) of the given scenes."""
        x = (column / self.frame.width - 0.5) / FOCAL
        y = (0.5 - row / self.frame.height) / (FOCAL * self.frame.aspect)
        right, up, backward = (axis[scene].map(lambda c: beside(c, x)) for axis in (self.right, self.up, self.backward))
        return right * x + up * y - backward

    def grid(self, dx: Tensor | float = 0.0, dy: Tensor | float = 0.0) -> Vec:
        """Directions through all pixels, (B, P), at their centers or moved off them by (dx, dy) pixels."""
        frame, device = self.frame, self.position.x.device
        pixel = torch.arange(frame.pixels, device=device)
        column, row = pixel % frame.width + 0.5, torch.div(pixel, frame.width, rounding_mode="floor") + 0.5
        return self.rays(slice(None), column[None] + dx, row[None] + dy)

    def window(self, solids: "Solids") -> tuple[Tensor, Tensor]:
        """Pairs (object, flat pixel) where the sphere around an object may be seen."""
        x, y, depth = self.location(solids.center)
        reach = FOCAL * solids.bound / (depth - solids.bound).clamp_min(0.1)
        tall = reach * self.frame.aspect
        return self.inside(x - reach, x + reach, y - tall, y + tall, solids.bound > 0)

    def location(self, point: Vec) -> tuple[Tensor, Tensor, Tensor]:
        """Image locations (x, y) in [0, 1] and depth of world points (..., B)."""
        offset = point - self.position
        depth = -offset.dot(self.backward)
        x = 0.5 + FOCAL * offset.dot(self.right) / depth
        return x, 0.5 - FOCAL * self.frame.aspect * offset.dot(self.up) / depth, depth

    def inside(self, low_x, high_x, low_y, high_y, present: Tensor) -> tuple[Tensor, Tensor]:
        """Pairs (object, flat pixel) of the pixels in each object's rectangle (N, B), one pixel to spare."""

        def span(low: Tensor, high: Tensor, count: int) -> Tensor:
            middle = torch.arange(count, device=low.device) + 0.5
            return (middle > low[..., None] * count - 1) & (middle < high[..., None] * count + 1)

        columns = span(low_x, high_x, self.frame.width) & present[..., None]  # (N, B, W)
        rows = span(low_y, high_y, self.frame.height)  # (N, B, H)
        slot, scene, pixel = torch.nonzero((rows[..., None] & columns[..., None, :]).flatten(2), as_tuple=True)
        return slot * present.shape[1] + scene, scene * self.frame.pixels + pixel


def subpixels(samples: int, device) -> tuple[Tensor, Tensor]:
    """Offsets (columns, rows) of a regular grid of samples in a pixel, each (S,)."""
    steps = (torch.arange(samples, device=device) + 0.5) / samples - 0.5
    return steps.repeat(samples), steps.repeat_interleave(samples)


def meet_objects(solids: Solids, eye: Eye, samples: int):
    """All camera samples that meet an object first: (object, pixel, sample) indices, depth, normal and ray."""
    obj, pixel = eye.window(solids)
    scene, inside = torch.div(pixel, eye.frame.pixels, rounding_mode="floor"), pixel % eye.frame.pixels
    dx, dy = subpixels(samples, pixel.device)
    column = (inside % eye.frame.width + 0.5)[:, None] + dx  # (K, S)
    row = (torch.div(inside, eye.frame.width, rounding_mode="floor") + 0.5)[:, None] + dy
    ray = eye.rays(scene, column, row)
    origin = eye.position[scene].map(lambda c: c[:, None].expand_as(ray.x))
    depth, normal = solids.meet(obj, origin, ray)
    touched, location = torch.unique(pixel, return_inverse=True)
    nearest = torch.full((len(touched), len(dx)), torch.inf, device=depth.device)
    nearest.scatter_reduce_(0, location[:, None].expand_as(depth), depth, "amin")
    pair, sample = torch.nonzero((depth == nearest[location]) & depth.isfinite(), as_tuple=True)
    seen = (pair, sample)
    return obj[pair], pixel[pair], sample, depth[seen], normal[seen], ray[seen]


def nearest_objects(solids: Solids, eye: Eye) -> tuple[Tensor, Tensor, Tensor]:
    """Pixels whose center shows an object: number of the object (from 1), flat pixel and depth, each (M,)."""
    obj, pixel, _, depth, _, _ = meet_objects(solids, eye, 1)
    return torch.div(obj, solids.size.shape[1], rounding_mode="floor") + 1, pixel, depth


def instance_mask(scenes: SceneBatch, size: tuple[int, int]) -> Tensor:
    """Masks (B, H, W) of images of `size` (width, height): 0 where no object is, k for object k."""
    frame = ImageFrame.of(size)
    mask = torch.zeros(len(scenes), frame.pixels, dtype=torch.long, device=scenes.device)
    first = 0
    for some in in_batches(scenes, frame):
        number, pixel, _ = nearest_objects(Solids.columns(some), Eye.of(some, frame))
        mask[first : first + len(some)].view(-1)[pixel] = number
        first += len(some)
    return mask.view(len(scenes), frame.height, frame.width)


def in_batches(scenes: SceneBatch, frame: ImageFrame) -> Iterator[SceneBatch]:
    """The scenes in order, as many at once as memory allows; one empty batch where there are none."""
    at_once = max(1, _RAYS_AT_ONCE.get(scenes.device.type, 2**17) // frame.pixels)
    for first in range(0, max(len(scenes), 1), at_once):
        yield scenes[first : first + at_once]


def column(values: Tensor) -> Tensor:
    """Values (B, N) as (N, B)."""
    return values.transpose(0, 1).contiguous()


def beside(column: Tensor, values: Tensor) -> Tensor:
    """A column (K,) shaped to broadcast against (K, ...)."""
    return column.reshape(-1, *([1] * (values.dim() - 1)))
