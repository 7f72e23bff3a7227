"""`render`: a batch of scenes becomes images, instance masks and depth, on any device.

The stage is shaded once per pixel (its shadows are analytic and as wide as the pixel); objects, whose edges
and reflections are sharp, are sampled several times per pixel, but only where they are.
"""

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from tessera.errors import UserError
from tessera.render.constants import RenderConstants, load_constants
from tessera.render.shading import Hits, lobe_table, object_light, stage_light
from tessera.render.stage import hit_stage
from tessera.render.vectors import Vec
from tessera.render.world import Lamp, Points, World
from tessera.scenes.batch import SceneBatch
from tessera.scenes.camera import ASPECT, FOCAL, camera_axes
from tessera.scenes.scene import Scene

Quality = Literal["true", "fast"]
SAMPLES = {"true": 4, "fast": 2}  # per pixel and axis, on objects
BOUNCES = {"true": 2, "fast": 1}
LAYERS = ("rgb", "mask", "depth")
RAYS_AT_ONCE = {"cpu": 2**18, "cuda": 2**24, "mps": 2**20}
VIEW_DISTANCE = 11.0  # from the camera to the middle of the stage: sets how wide a pixel is there


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


@torch.no_grad()
def render(
    scenes: Sequence[Scene] | SceneBatch,
    size: int | tuple[int, int] = 128,
    layers: Sequence[str] = ("rgb",),
    quality: Quality = "true",
    device=None,
    look: RenderConstants | None = None,
) -> dict[str, Tensor]:
    """Draw scenes: rgb (B, 3, H, W) in [-1, 1]; mask (B, H, W), 0 stage and k object k; depth (B, H, W).

    Mask and depth (distance along the view axis) are those of the ray through each pixel's center.
    """
    if unknown := set(layers) - set(LAYERS):
        raise UserError(f"There is no layer `{unknown.pop()}`; choose from {', '.join(LAYERS)}.")
    if quality not in SAMPLES:
        raise UserError(f"There is no quality `{quality}`; choose from {', '.join(SAMPLES)}.")
    batch, frame, look = SceneBatch.stack(scenes, device), ImageFrame.of(size), look or load_constants()
    at_once = max(1, RAYS_AT_ONCE.get(batch.device.type, 2**17) // frame.pixels)
    parts = [
        _draw(batch[i : i + at_once], frame, layers, quality, look)
        for i in range(0, max(len(batch), 1), at_once)
    ]
    return {layer: torch.cat([part[layer] for part in parts]) for layer in layers}


def _draw(
    scenes: SceneBatch, frame: ImageFrame, layers: Sequence[str], quality: Quality, look: RenderConstants
) -> dict[str, Tensor]:
    world, eye = World.of(scenes), Eye.of(scenes, frame)
    drawn = {}
    if "rgb" in layers:
        drawn["rgb"] = _colors(scenes, world, eye, look, quality)
    if "mask" in layers or "depth" in layers:
        mask, depth = _layers(world, eye)
        drawn["mask"] = mask.view(len(scenes), frame.height, frame.width)
        drawn["depth"] = depth.view(len(scenes), frame.height, frame.width)
    return {layer: drawn[layer] for layer in layers}


def _colors(scenes: SceneBatch, world: World, eye: "Eye", look: RenderConstants, quality: Quality) -> Tensor:
    """Images (B, 3, H, W) in [-1, 1]: by one kernel where Triton runs, else by plain PyTorch."""
    frame, samples, bounces = eye.frame, SAMPLES[quality], BOUNCES[quality]
    blur = 0.5 * VIEW_DISTANCE / (FOCAL * min(frame.width, frame.height * frame.aspect))
    if scenes.device.type == "cuda" and importlib.util.find_spec("triton"):
        from tessera.render.kernel import trace_pixels

        return trace_pixels(scenes, frame.width, frame.height, frame.aspect, blur, samples, bounces, look)
    linear = _image(world, eye, look, blur, samples, bounces)
    return to_display(linear).view(len(scenes), 3, frame.height, frame.width) * 2 - 1


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
        right, up, backward = (
            axis[scene].map(lambda c: _fit(c, x)) for axis in (self.right, self.up, self.backward)
        )
        return Vec(*(x * r + y * u - b for r, u, b in zip(*(v.parts() for v in (right, up, backward)))))

    def grid(self, dx: Tensor | float = 0.0, dy: Tensor | float = 0.0) -> Vec:
        """Directions through all pixels, (B, P), at their centers or moved off them by (dx, dy) pixels."""
        frame, device = self.frame, self.position.x.device
        pixel = torch.arange(frame.pixels, device=device)
        column, row = pixel % frame.width + 0.5, torch.div(pixel, frame.width, rounding_mode="floor") + 0.5
        return self.rays(slice(None), column[None] + dx, row[None] + dy)

    def window(self, world: World) -> tuple[Tensor, Tensor]:
        """Pairs (object, flat pixel) where the sphere around an object may be seen."""
        x, y, depth = self.location(world.center)
        reach = FOCAL * world.bound / (depth - world.bound).clamp_min(0.1)
        tall = reach * self.frame.aspect
        return self.inside(x - reach, x + reach, y - tall, y + tall, world.bound > 0)

    def shadow_window(self, world: World, lamp: Lamp, blur: float) -> tuple[Tensor, Tensor]:
        """Pairs (object, flat pixel) where an object's shadow may fall on the stage."""
        x, y, depth = self.location(world.shadow_corners(lamp, blur))  # (8, N, B)
        behind = (depth < 0.5).any(0)  # a shadow that runs under the camera: look everywhere
        low_x, high_x = (
            torch.where(behind, wide, edge) for wide, edge in ((0.0, x.amin(0)), (1.0, x.amax(0)))
        )
        low_y, high_y = (
            torch.where(behind, wide, edge) for wide, edge in ((0.0, y.amin(0)), (1.0, y.amax(0)))
        )
        return self.inside(low_x, high_x, low_y, high_y, world.bound > 0)

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
        slot, scene, pixel = torch.nonzero(
            (rows[..., None] & columns[..., None, :]).flatten(2), as_tuple=True
        )
        return slot * present.shape[1] + scene, scene * self.frame.pixels + pixel


def _fit(values: Tensor, like: Tensor) -> Tensor:
    return values.reshape(-1, *([1] * (like.dim() - 1)))


def _subpixels(samples: int, device) -> tuple[Tensor, Tensor]:
    """Offsets (columns, rows) of a regular grid of samples in a pixel, each (S,)."""
    steps = (torch.arange(samples, device=device) + 0.5) / samples - 0.5
    return steps.repeat(samples), steps.repeat_interleave(samples)


def _meet_objects(world: World, eye: Eye, samples: int):
    """All camera samples that meet an object first: (object, pixel, sample) indices, depth, normal and ray."""
    obj, pixel = eye.window(world)
    scene, inside = torch.div(pixel, eye.frame.pixels, rounding_mode="floor"), pixel % eye.frame.pixels
    dx, dy = _subpixels(samples, pixel.device)
    column = (inside % eye.frame.width + 0.5)[:, None] + dx  # (K, S)
    row = (torch.div(inside, eye.frame.width, rounding_mode="floor") + 0.5)[:, None] + dy
    ray = eye.rays(scene, column, row)
    origin = eye.position[scene].map(lambda c: c[:, None].expand_as(ray.x))
    depth, normal = world.meet(obj, origin, ray)
    touched, location = torch.unique(pixel, return_inverse=True)
    nearest = torch.full((len(touched), len(dx)), torch.inf, device=depth.device)
    nearest.scatter_reduce_(0, location[:, None].expand_as(depth), depth, "amin")
    pair, sample = torch.nonzero((depth == nearest[location]) & depth.isfinite(), as_tuple=True)
    seen = (pair, sample)
    return obj[pair], pixel[pair], sample, depth[seen], normal[seen], ray[seen]


def _image(world: World, eye: Eye, look: RenderConstants, blur: float, samples: int, bounces: int) -> Tensor:
    """Scene-linear images (B, 3, P)."""
    obj, pixel, sample, depth, normal, ray = _meet_objects(world, eye, samples)
    scene = torch.div(pixel, eye.frame.pixels, rounding_mode="floor")
    lobes = Vec.of(torch.tensor(lobe_table(samples**2), device=pixel.device))
    point = eye.position[scene].along(ray, depth)
    hits = Hits(obj, point, normal, scene, -ray.unit(), lobes.take(sample))
    light = object_light(world, look, hits, blur, bounces)
    covered, dx, dy = _coverage(eye, pixel, sample, samples)
    stage = _stage_image(world, eye, look, dx, dy, blur)
    channels = [
        (floor * (1 - covered)).flatten().index_add_(0, pixel, value, alpha=1 / samples**2)
        for floor, value in zip(stage.parts(), light.parts())
    ]
    return torch.stack(channels).view(3, *covered.shape).transpose(0, 1)


def _coverage(eye: Eye, pixel: Tensor, sample: Tensor, samples: int) -> tuple[Tensor, Tensor, Tensor]:
    """How much of each pixel objects cover, and where (off its center) the rest of it lies; each (B, P).

    The stage must be looked up in that rest: at an object's foot the pixel's center may lie under the object.
    """
    shape = (len(eye.position.x), eye.frame.pixels)
    offsets = _subpixels(samples, pixel.device)
    blank = torch.zeros(shape, device=pixel.device).flatten()
    count = blank.index_add(0, pixel, torch.ones_like(sample, dtype=blank.dtype))
    left = (samples**2 - count).clamp_min(1)
    dx, dy = (-blank.index_add(0, pixel, offset[sample]) / left for offset in offsets)
    return (count / samples**2).view(shape), dx.view(shape), dy.view(shape)


def _stage_image(world: World, eye: Eye, look: RenderConstants, dx: Tensor, dy: Tensor, blur: float) -> Vec:
    rays = eye.grid(dx, dy)
    origin = eye.position.map(lambda c: c[:, None])
    distance, s = hit_stage(origin, rays)
    points = Points(origin.along(rays, distance.nan_to_num(posinf=50.0)))
    windows = [eye.shadow_window(world, lamp, blur) for lamp in world.lamps]
    lit = stage_light(world, look, points, s, blur, windows)
    return lit.map(lambda c: torch.where(distance.isfinite(), c, 0.0))


def _layers(world: World, eye: Eye) -> tuple[Tensor, Tensor]:
    """Instance ids and depth of the rays through pixel centers, each (B, P)."""
    origin = eye.position.map(lambda c: c[:, None])
    depth, _ = hit_stage(origin, eye.grid())
    mask = torch.zeros(depth.shape, dtype=torch.long, device=depth.device)
    obj, pixel, _, near, _, _ = _meet_objects(world, eye, 1)
    slot = torch.div(obj, world.size.shape[1], rounding_mode="floor")
    mask.view(-1)[pixel] = slot + 1
    depth.view(-1)[pixel] = near
    return mask, depth


def to_display(linear: Tensor) -> Tensor:
    """Scene-linear light to sRGB in [0, 1], clipped as the official renders are."""
    linear = linear.clamp(0, 1)
    return torch.where(
        linear <= 0.0031308, 12.92 * linear, 1.055 * linear.clamp_min(1e-8) ** (1 / 2.4) - 0.055
    )
