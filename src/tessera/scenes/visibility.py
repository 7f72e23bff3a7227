"""Does every object show enough of itself? The generator demands 200 visible pixels at 320x240.

`exact` counts them in the renderer's instance mask. `fast` gets by without an image: most objects are clear
from rectangles alone, the rest are probed with coarse nets of rays, and only where these leave a doubt is a
ray sent through every pixel of the object's rectangle. Only exactly rounded operations decide, so the answer
is the same on every device.
"""

from collections.abc import Callable
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from tessera.scenes.batch import SceneBatch
from tessera.scenes.camera import FOCAL
from tessera.scenes.vocabulary import SHAPES

Visibility = Literal["fast", "exact", "off"]

ENOUGH = 200  # visible pixels of every object; the floor always shows more with a dozen objects or fewer
WIDTH, HEIGHT = 320, 240
FOCAL_PIXELS = FOCAL * WIDTH
CLEAR = 1.1 * ENOUGH  # a lower bound on the area must pass this, since pixels are counted, not area
NETS = (8, 16)  # rays per side of the coarse nets, tried in turn
DOUBT = (5, 20)  # an estimate within so many rays plus so many pixels of the limit needs a finer look
RAYS = {"cpu": 1 << 17, "cuda": 1 << 23, "mps": 1 << 20}  # traced together, so that memory stays flat
MASKS = 32  # images rendered together

# The meshes in units of the object's size; the renderer draws the same. Cube and cylinder are flat up to a core
# and rounded beyond it: a point is inside if the p-norm of (beyond x / rounding of x, ...) is at most 1.
SPHERE_RADIUS = 0.9991
CUBE_CORE, CUBE_ROUNDING = 0.75, 0.25  # p = 3
RIM_RADIUS, RIM_HEIGHT = 0.089, 0.099  # p = 4; fitted to pixel counts of the generator
HALVINGS = 5  # of a ray's stretch inside the box around an object, to find where it comes closest to the core


def all_visible(scenes: SceneBatch, how: Visibility) -> Tensor:
    """Whether each scene hides none of its objects, (B,)."""
    if how == "off":
        return torch.ones(len(scenes), dtype=torch.bool, device=scenes.device)
    shown = enough_in_mask(scenes) if how == "exact" else enough_by_rays(scenes)
    return (shown | ~scenes.present).all(-1)


def enough_in_mask(scenes: SceneBatch) -> Tensor:
    """Which objects show enough pixels in a rendered mask, (B, N)."""
    return mask_pixels(scenes) >= ENOUGH


def mask_pixels(scenes: SceneBatch) -> Tensor:
    """Visible pixels of each object in the renderer's mask at 320x240, (B, N)."""
    from tessera.render.render import render  # images come after scenes; only this rule looks ahead

    numbers = torch.arange(1, scenes.present.shape[1] + 1, device=scenes.device)  # (N,)
    counts = [torch.zeros(0, len(numbers), dtype=torch.long, device=scenes.device)]
    for first in range(0, len(scenes), MASKS):
        mask = render(scenes[first : first + MASKS], size=(WIDTH, HEIGHT), layers=("mask",))["mask"]
        counts.append((mask.flatten(1)[:, None] == numbers[:, None]).sum(-1))
    return torch.cat(counts)


class Disagreement(NamedTuple):
    """How `fast` compares with `exact`, over all objects of some scenes."""

    objects: int
    verdicts: int  # objects that only one of the two finds visible
    scenes: int  # scenes that only one of the two accepts
    mean: float  # pixels, fast less exact
    rms: float
    largest: float


def disagreement(scenes: SceneBatch) -> Disagreement:
    """Measure `fast` against `exact`: what each decides, and what their rays count."""
    exact, here = mask_pixels(scenes), scenes.present
    error = (ray_pixels(scenes) - exact)[here].double()
    differs = (enough_by_rays(scenes) != (exact >= ENOUGH)) & here
    accepts = all_visible(scenes, "fast") != ((exact >= ENOUGH) | ~here).all(-1)
    rms, largest = error.square().mean().sqrt(), error.abs().max()
    counts = (int(here.sum()), int(differs.sum()), int(accepts.sum()))
    return Disagreement(*counts, float(error.mean()), float(rms), float(largest))


class View(NamedTuple):
    """Objects as the camera of their scene sees them. Vectors are tuples of components, each (B, N)."""

    shape: Tensor
    axes: tuple[tuple[Tensor, ...], ...]  # the camera's right, up and backward in the object's own frame
    eye: tuple[Tensor, ...]  # the camera's position there, the object being a unit shape at the origin
    box: tuple[Tensor, Tensor, Tensor, Tensor]  # left, right, top, bottom of a rectangle around it, in pixels
    before: Tensor  # (B, N, N): object m stands before object n and may hide some of it


def view(scenes: SceneBatch) -> View:
    camera = scenes.camera[:, :, None].unbind(1)  # three of (B, 1)
    offset = tuple(c - p for c, p in zip(camera, scenes.center.unbind(-1)))  # object to camera, (B, N)
    axes = camera_axes(camera)
    turn = yaw(scenes, axes[0])
    own_axes = tuple(turned(axis, turn) for axis in axes)
    eye = tuple(part / scenes.size for part in turned(offset, turn))
    box = rectangle(own_axes, eye)
    # Of two disjoint discs on one ray, the nearer has the smaller power with respect to the ray's start.
    power = offset[0] * offset[0] + offset[1] * offset[1] - scenes.size * scenes.size
    nearer = power[:, None] < power[:, :, None]
    both = scenes.present[:, None] & scenes.present[:, :, None]
    return View(scenes.shape, own_axes, eye, box, both & nearer & (shared_area(box) > 0))


def camera_axes(camera: tuple[Tensor, ...]) -> tuple[tuple[Tensor, ...], ...]:
    """Right, up, backward, component by component: sums over a dimension may round differently by batch."""
    x, y, z = camera
    ground = (x * x + y * y).sqrt()
    length = (x * x + y * y + z * z).sqrt()
    right = (-y / ground, x / ground, torch.zeros_like(x))
    backward = (x / length, y / length, z / length)
    up = (-backward[2] * right[1], backward[2] * right[0], ground / length)
    return right, up, backward


def yaw(scenes: SceneBatch, right: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
    """Cosine and sine of each object's turn, (B, N). Round objects face the camera, for tight rectangles."""
    wide = torch.float32 if scenes.device.type == "mps" else torch.float64
    angle = scenes.rotation.to(wide)  # rounding from float64 hides that cosines differ between devices
    cube = scenes.shape == SHAPES.index("cube")
    return (
        torch.where(cube, angle.cos().float(), right[0]),
        torch.where(cube, angle.sin().float(), right[1]),
    )


def turned(vector: tuple[Tensor, ...], turn: tuple[Tensor, Tensor]) -> tuple[Tensor, ...]:
    """A world vector in the frame of an object with that yaw."""
    (x, y, z), (cos, sin) = vector, turn
    return x * cos + y * sin, y * cos - x * sin, z + torch.zeros_like(cos)


def dot(a: tuple[Tensor, ...], b: tuple[Tensor, ...]) -> Tensor:
    return a[0] * b[0] + a[1] * b[1] + a[2] * b[2]


def rectangle(
    axes: tuple[tuple[Tensor, ...], ...], eye: tuple[Tensor, ...]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Left, right, top, bottom of the projected box around each object, within the frame."""
    signs = torch.tensor([-1.0, 1.0], device=eye[0].device)
    corners = tuple(c.flatten() for c in torch.meshgrid(signs, signs, signs, indexing="ij"))  # three of (8,)
    away = tuple(c - e[..., None] for c, e in zip(corners, eye))  # (B, N, 8)
    right, up, backward = (dot(tuple(part[..., None] for part in axis), away) for axis in axes)
    x = WIDTH / 2 - FOCAL_PIXELS * right / backward
    y = HEIGHT / 2 + FOCAL_PIXELS * up / backward
    x, y = x.clamp(0, WIDTH), y.clamp(0, HEIGHT)
    return x.amin(-1), x.amax(-1), y.amin(-1), y.amax(-1)


def shared_area(box: tuple[Tensor, ...]) -> Tensor:
    """Pixels that every two rectangles of a scene share, (B, N, N)."""

    def shared(low: Tensor, high: Tensor) -> Tensor:
        both = torch.minimum(high[:, :, None], high[:, None]) - torch.maximum(low[:, :, None], low[:, None])
        return both.clamp(min=0)

    return shared(box[0], box[1]) * shared(box[2], box[3])


def ball_area(seen: View) -> Tensor:
    """Pixels of the ball inside each shape, from the area of its perspective ellipse, (B, N)."""
    depth, distance = dot(seen.axes[2], seen.eye), dot(seen.eye, seen.eye)  # in sizes
    flat = depth * depth - SPHERE_RADIUS**2
    stretch = ((distance - SPHERE_RADIUS**2) / flat).sqrt()
    return torch.pi * (FOCAL_PIXELS * SPHERE_RADIUS) ** 2 / flat * stretch


def enough_by_rays(scenes: SceneBatch) -> Tensor:
    """Which objects show enough pixels, (B, N), looking closely only where it is in doubt."""
    seen = view(scenes)
    enough = scenes.present & (clear_area(seen) >= CLEAR)
    scene, obj = (scenes.present & ~enough).nonzero().unbind(1)
    for net in NETS:
        pixels, doubt = net_estimate(seen, scene, obj, net)
        enough[scene, obj] = pixels >= ENOUGH
        unsure = ((pixels - ENOUGH).abs() <= doubt).nonzero()[:, 0]
        scene, obj = scene[unsure], obj[unsure]
    enough[scene, obj] = count_pixels(seen, scene, obj) >= ENOUGH
    return enough


def ray_pixels(scenes: SceneBatch) -> Tensor:
    """Visible pixels of each object, counted ray by ray, (B, N)."""
    scene, obj = scenes.present.nonzero().unbind(1)
    counts = torch.zeros_like(scenes.shape)
    counts[scene, obj] = count_pixels(view(scenes), scene, obj)
    return counts


def clear_area(seen: View) -> Tensor:
    """At least so many pixels of each object are visible, (B, N); 0 if it may reach beyond the frame."""
    left, right, top, bottom = seen.box
    inside = (left > 0) & (right < WIDTH) & (top > 0) & (bottom < HEIGHT)
    area = ball_area(seen)
    hidden = torch.where(seen.before, shared_area(seen.box), 0.0)
    for blocker in hidden.unbind(-1):  # one after the other: the order of a sum is part of its value
        area = area - blocker
    return torch.where(inside, area, 0.0)


def net_estimate(seen: View, scene: Tensor, obj: Tensor, net: int) -> tuple[Tensor, Tensor]:
    """Visible pixels of the chosen objects, from net x net rays over each rectangle, and the doubt, (Q,)."""
    step = (torch.arange(net, device=scene.device) + 0.5) / net
    left, right, top, bottom = (edge[scene, obj][:, None] for edge in seen.box)  # (Q, 1)
    x = (left + (right - left) * step).repeat(1, net)  # (Q, net * net)
    y = (top + (bottom - top) * step).repeat_interleave(net, dim=1)
    hits = torch.zeros_like(scene)
    for rows in torch.arange(len(scene), device=scene.device).split(rays_at_once(scene) // net**2):
        hits[rows] = visible(seen, scene[rows], obj[rows], x[rows], y[rows]).sum(1)
    cell = ((right - left) * (bottom - top))[:, 0] / net**2  # pixels per ray
    return hits * cell, DOUBT[0] * cell + DOUBT[1]


def count_pixels(seen: View, scene: Tensor, obj: Tensor) -> Tensor:
    """Visible pixels of the chosen objects: one ray through each pixel center of their rectangles, (Q,)."""
    counts = torch.zeros_like(scene)
    left, right, top, bottom = (edge[scene, obj][:, None] for edge in seen.box)  # (Q, 1)
    left, top = left.floor(), top.floor()
    side = torch.maximum(right - left, bottom - top).ceil()[:, 0].long()
    rows = side.argsort()  # rectangles of like size go together, as many as memory allows
    while len(rows):
        largest = max(1, int(side[rows[-1]]))
        at_once = max(1, rays_at_once(scene) // largest**2)
        now, rows = rows[-at_once:], rows[:-at_once]
        step = torch.arange(largest, device=scene.device) + 0.5
        x = (left[now] + step).repeat(1, largest)  # (q, largest * largest)
        y = (top[now] + step).repeat_interleave(largest, dim=1)
        inside = (x < right[now]) & (y < bottom[now])
        counts[now] = (visible(seen, scene[now], obj[now], x, y) & inside).sum(1)
    return counts


def rays_at_once(where: Tensor) -> int:
    return RAYS.get(where.device.type, 1 << 17)


def visible(seen: View, scene: Tensor, obj: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Which rays through pixels (x, y), each (Q, P), meet their object first, (Q, P)."""
    query, other = seen.before[scene, obj].nonzero().unbind(1)
    hits = covers(seen, scene[query], other, x[query], y[query])  # (pairs, P)
    hidden = torch.zeros_like(x).index_add_(0, query, hits.to(x.dtype))
    return covers(seen, scene, obj, x, y) & (hidden == 0)


def covers(seen: View, scene: Tensor, obj: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Which rays through pixels (x, y) meet the object at all, (Q, P)."""
    kind = seen.shape[scene, obj]
    met = torch.zeros_like(x, dtype=torch.bool)
    for number, name in enumerate(SHAPES):
        rows = (kind == number).nonzero()[:, 0]
        at = (scene[rows], obj[rows])
        axes = [[part[at][:, None] for part in axis] for axis in seen.axes]
        right, up = (x[rows] - WIDTH / 2) / FOCAL_PIXELS, (HEIGHT / 2 - y[rows]) / FOCAL_PIXELS
        ray = tuple(right * r + up * u - b for r, u, b in zip(*axes))  # three of (rows, P)
        met[rows] = MEETS[name](tuple(part[at][:, None] for part in seen.eye), ray)
    return met


def meets_sphere(eye: tuple[Tensor, ...], ray: tuple[Tensor, ...]) -> Tensor:
    along, rest = dot(eye, ray), dot(eye, eye) - SPHERE_RADIUS**2
    return along * along >= dot(ray, ray) * rest


def meets_cube(eye: tuple[Tensor, ...], ray: tuple[Tensor, ...]) -> Tensor:
    enter, leave = slab(eye[0], ray[0])
    for side in (1, 2):
        near, far = slab(eye[side], ray[side])
        enter, leave = torch.maximum(enter, near), torch.minimum(leave, far)

    def excess(t: Tensor) -> tuple[Tensor, Tensor]:
        height, slope = torch.zeros_like(t), torch.zeros_like(t)
        for e, d in zip(eye, ray):
            x = e + t * d
            beyond = (x.abs() - CUBE_CORE).clamp(min=0) / CUBE_ROUNDING
            height = height + beyond * beyond * beyond
            slope = slope + beyond * beyond * x.sign() * d
        return height, slope

    return (enter <= leave) & (lowest(excess, enter, leave) <= 1)


def meets_cylinder(eye: tuple[Tensor, ...], ray: tuple[Tensor, ...]) -> Tensor:
    across = ray[0] * ray[0] + ray[1] * ray[1]
    along = eye[0] * ray[0] + eye[1] * ray[1]
    inside = along * along - across * (eye[0] * eye[0] + eye[1] * eye[1] - 1)
    reach = inside.clamp(min=0).sqrt()
    near, far = slab(eye[2], ray[2])
    enter = torch.maximum(near, (-along - reach) / across)
    leave = torch.minimum(far, (-along + reach) / across)

    def excess(t: Tensor) -> tuple[Tensor, Tensor]:
        x, y, z = (e + t * d for e, d in zip(eye, ray))
        radius = (x * x + y * y).sqrt().clamp(min=1e-6)
        out = (radius - (1 - RIM_RADIUS)).clamp(min=0) / RIM_RADIUS
        up = (z.abs() - (1 - RIM_HEIGHT)).clamp(min=0) / RIM_HEIGHT
        out3, up3 = out * out * out, up * up * up
        slope = out3 * (x * ray[0] + y * ray[1]) / radius / RIM_RADIUS + up3 * z.sign() * ray[2] / RIM_HEIGHT
        return out3 * out + up3 * up, slope

    return (inside >= 0) & (enter <= leave) & (lowest(excess, enter, leave) <= 1)


def slab(eye: Tensor, ray: Tensor) -> tuple[Tensor, Tensor]:
    """Where a ray enters and leaves the space between the planes at -1 and 1."""
    speed = torch.where(ray.abs() < 1e-9, 1e-9, ray)
    middle, half = -eye / speed, 1 / speed.abs()
    return middle - half, middle + half


def lowest(excess: Callable[[Tensor], tuple[Tensor, Tensor]], enter: Tensor, leave: Tensor) -> Tensor:
    """The least value on [enter, leave] of a convex function that comes with its slope, by halving."""
    for _ in range(HALVINGS):
        middle = (enter + leave) / 2
        falling = excess(middle)[1] < 0
        enter, leave = torch.where(falling, middle, enter), torch.where(falling, leave, middle)
    return excess((enter + leave) / 2)[0]


MEETS = {"sphere": meets_sphere, "cylinder": meets_cylinder, "cube": meets_cube}
