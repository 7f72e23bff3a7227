"""`render`: a batch of scenes becomes images, instance masks and depth, on any device.

The stage is shaded once per pixel (its shadows are analytic and as wide as the pixel); objects, whose edges
and reflections are sharp, are sampled several times per pixel, but only where they are.
"""

import importlib.util
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from tessera.errors import UserError
from tessera.render.constants import RenderConstants, load_constants
from tessera.render.shading import Hits, lobe_table, object_light, stage_light
from tessera.render.stage import hit_stage
from tessera.render.world import Lamp, Points, World
from tessera.scenes.batch import SceneBatch
from tessera.scenes.camera import FOCAL
from tessera.scenes.raycast import Eye, ImageFrame, in_batches, meet_objects, nearest_objects, subpixels
from tessera.scenes.scene import Scene
from tessera.scenes.vectors import Vec

Quality = Literal["true", "fast"]
SAMPLES = {"true": 4, "fast": 2}  # per pixel and axis, on objects
_BOUNCES = {"true": 2, "fast": 1}
_LAYERS = ("rgb", "mask", "depth")
_VIEW_DISTANCE = 11.0  # from the camera to the middle of the stage: sets how wide a pixel is there


@torch.no_grad()
def render(
    scenes: Sequence[Scene] | SceneBatch,
    size: int | tuple[int, int] = 128,
    layers: Sequence[str] = ("rgb",),
    quality: Quality = "true",
    device=None,
    look: RenderConstants | None = None,
) -> dict[str, Tensor]:
    """Draw scenes: images, instance masks and depth.

    Args:
        scenes: scenes, or a batch of them as `Scenes.draw` returns.
        size: side of a square in pixels, into which the 4:3 frame is squeezed as in the paper, or (width, height).
        layers: of `rgb`, `mask` and `depth`.
        quality: `true`, or `fast` with fewer samples per pixel and fewer reflections.
        device: where to render; by default where the scenes are.
        look: constants of the renderer; by default those fitted to Blender.

    Returns:
        A dict of tensors: rgb (B, 3, H, W) in [-1, 1]; mask (B, H, W), 0 for the stage and k for object k; depth
        (B, H, W) along the view axis. Mask and depth are those of the ray through each pixel's center.

    Example:
        >>> import tessera
        >>> scenes = tessera.Scenes(objects=3).draw(2, seed=0)
        >>> tessera.render(scenes, size=32)["rgb"].shape
        torch.Size([2, 3, 32, 32])
    """
    if unknown := set(layers) - set(_LAYERS):
        raise UserError(f"There is no layer `{unknown.pop()}`; choose from {', '.join(_LAYERS)}.")
    if quality not in SAMPLES:
        raise UserError(f"There is no quality `{quality}`; choose from {', '.join(SAMPLES)}.")
    batch, frame, look = SceneBatch.stack(scenes, device), ImageFrame.of(size), look or load_constants()
    parts = [_draw(some, frame, layers, quality, look) for some in in_batches(batch, frame)]
    drawn = {}
    for layer in layers:
        drawn[layer] = torch.cat([part[layer] for part in parts])
    return drawn


def _draw(
    scenes: SceneBatch, frame: ImageFrame, layers: Sequence[str], quality: Quality, look: RenderConstants
) -> dict[str, Tensor]:
    world, eye = World.of(scenes), Eye.of(scenes, frame)
    drawn = {}
    if "rgb" in layers:
        drawn["rgb"] = _colors(scenes, world, eye, look, quality)
    if "mask" in layers or "depth" in layers:
        shape = len(scenes), frame.height, frame.width
        drawn["mask"], drawn["depth"] = (layer.view(shape) for layer in _layers(world, eye))
    return {layer: drawn[layer] for layer in layers}


def _colors(scenes: SceneBatch, world: World, eye: Eye, look: RenderConstants, quality: Quality) -> Tensor:
    """Images (B, 3, H, W) in [-1, 1]: by one kernel where Triton runs, else by plain PyTorch."""
    frame, samples, bounces = eye.frame, SAMPLES[quality], _BOUNCES[quality]
    blur = 0.5 * _VIEW_DISTANCE / (FOCAL * min(frame.width, frame.height * frame.aspect))
    if scenes.device.type == "cuda" and importlib.util.find_spec("triton"):
        from tessera.render.kernel import trace_pixels

        return trace_pixels(scenes, frame.width, frame.height, frame.aspect, blur, samples, bounces, look)
    linear = _image(world, eye, look, blur, samples, bounces)
    return to_display(linear).view(len(scenes), 3, frame.height, frame.width) * 2 - 1


def _image(world: World, eye: Eye, look: RenderConstants, blur: float, samples: int, bounces: int) -> Tensor:
    """Scene-linear images (B, 3, P)."""
    obj, pixel, sample, depth, normal, ray = meet_objects(world, eye, samples)
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
    offsets = subpixels(samples, pixel.device)
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
    windows = [_shadow_window(world, eye, lamp, blur) for lamp in world.lamps]
    lit = stage_light(world, look, points, s, blur, windows)
    return lit.map(lambda c: torch.where(distance.isfinite(), c, 0.0))


def _layers(world: World, eye: Eye) -> tuple[Tensor, Tensor]:
    """Instance ids and depth of the rays through pixel centers, each (B, P)."""
    origin = eye.position.map(lambda c: c[:, None])
    depth, _ = hit_stage(origin, eye.grid())
    mask = torch.zeros(depth.shape, dtype=torch.long, device=depth.device)
    number, pixel, near = nearest_objects(world, eye)
    mask.view(-1)[pixel] = number
    depth.view(-1)[pixel] = near
    return mask, depth


def _shadow_window(world: World, eye: Eye, lamp: Lamp, blur: float) -> tuple[Tensor, Tensor]:
    """Pairs (object, flat pixel) where an object's shadow may fall on the stage."""
    x, y, depth = eye.location(world.shadow_corners(lamp, blur))  # (8, N, B)
    behind = (depth < 0.5).any(0)  # a shadow that runs under the camera: look everywhere
    low_x, high_x = (torch.where(behind, wide, edge) for wide, edge in ((0.0, x.amin(0)), (1.0, x.amax(0))))
    low_y, high_y = (torch.where(behind, wide, edge) for wide, edge in ((0.0, y.amin(0)), (1.0, y.amax(0))))
    return eye.inside(low_x, high_x, low_y, high_y, world.bound > 0)


def to_display(linear: Tensor) -> Tensor:
    """Scene-linear light to sRGB in [0, 1], clipped as the official renders are."""
    linear = linear.clamp(0, 1)
    return torch.where(linear <= 0.0031308, 12.92 * linear, 1.055 * linear.clamp_min(1e-8) ** (1 / 2.4) - 0.055)
