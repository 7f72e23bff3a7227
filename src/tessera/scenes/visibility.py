"""Whether every object of a scene shows enough pixels: the generator demands 200 at 320x240.

`exact` counts them in the renderer's instance mask. `fast` draws no mask: most objects are clear from rectangles
alone, the others are probed with coarse nets of rays, and only where these leave a doubt is a ray sent through
every pixel of the object's rectangle. Only exactly rounded operations decide, so the answer is the same on every
device.
"""

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from tessera.scenes.batch import SceneBatch
from tessera.scenes.camera import FOCAL, exact_camera_axes
from tessera.scenes.geometry import MEETS, SPHERE_RADIUS
from tessera.scenes.raycast import instance_mask
from tessera.scenes.vectors import Vec
from tessera.scenes.vocabulary import SHAPES

Visibility = Literal["fast", "exact", "off"]

ENOUGH = 200  # visible pixels of every object; the floor always shows more with a dozen objects or fewer
WIDTH, HEIGHT = 320, 240
FOCAL_PIXELS = FOCAL * WIDTH
CLEAR = 1.1 * ENOUGH  # a lower bound on the area must pass this, since pixels are counted, not area
NETS = (8, 16)  # rays per side of the coarse nets, tried in turn
DOUBT = (5, 20)  # an estimate within so many rays plus so many pixels of the limit needs a finer look
RAYS = {"cpu": 1 << 17, "cuda": 1 << 23, "mps": 1 << 20}  # traced together, so that memory stays flat
_MASKS = 32  # drawn before their pixels are counted


def all_visible(scenes: SceneBatch, how: Visibility) -> Tensor:
    """Whether each scene hides none of its objects, (B,)."""
    if how == "off":
        return torch.ones(len(scenes), dtype=torch.bool, device=scenes.device)
    shown = mask_pixels(scenes) >= ENOUGH if how == "exact" else enough_by_rays(scenes)
    return (shown | ~scenes.present).all(-1)


def mask_pixels(scenes: SceneBatch) -> Tensor:
    """Visible pixels of each object in the renderer's mask at 320x240, (B, N)."""
    numbers = torch.arange(1, scenes.present.shape[1] + 1, device=scenes.device)  # (N,)
    counts = [torch.zeros(0, len(numbers), dtype=torch.long, device=scenes.device)]
    for first in range(0, len(scenes), _MASKS):
        mask = instance_mask(scenes[first : first + _MASKS], (WIDTH, HEIGHT))
        counts.append((mask.flatten(1)[:, None] == numbers[:, None]).sum(-1))
    return torch.cat(counts)


class _View(NamedTuple):
    """Objects in the frame of their scene's camera; all vectors (B, N)."""

    shape: Tensor
    axes: tuple[Vec, Vec, Vec]  # the camera's right, up and backward in the object's own frame
    eye: Vec  # the camera's position there, the object being a unit shape at the origin
    box: tuple[Tensor, Tensor, Tensor, Tensor]  # left, right, top, bottom of a rectangle around it, in pixels
    before: Tensor  # (B, N, N): object m stands before object n and may hide some of it


def view(scenes: SceneBatch) -> _View:
    camera = Vec.of(scenes.camera[:, None])  # (B, 1)
    offset = camera - Vec.of(scenes.center)  # object to camera, (B, N)
    right, up, backward = exact_camera_axes(camera)
    turn = yaw(scenes, right)
    own_axes = turned(right, turn), turned(up, turn), turned(backward, turn)
    eye = turned(offset, turn).map(lambda part: part / scenes.size)
    box = rectangle(own_axes, eye)
    # Of two disjoint discs on one ray, the nearer has the smaller power with respect to the ray's start.
    power = offset.x * offset.x + offset.y * offset.y - scenes.size * scenes.size
    nearer = power[:, None] < power[:, :, None]
    both = scenes.present[:, None] & scenes.present[:, :, None]
    return _View(scenes.shape, own_axes, eye, box, both & nearer & (_shared_area(box) > 0))


def yaw(scenes: SceneBatch, right: Vec) -> tuple[Tensor, Tensor]:
    """Cosine and sine of each object's turn, (B, N). Round objects face the camera, for tight rectangles."""
    wide = torch.float32 if scenes.device.type == "mps" else torch.float64
    angle = scenes.rotation.to(wide)  # rounding from float64 hides that cosines differ between devices
    cube = scenes.shape == SHAPES.index("cube")
    return (torch.where(cube, angle.cos().float(), right.x), torch.where(cube, angle.sin().float(), right.y))


def turned(vector: Vec, turn: tuple[Tensor, Tensor]) -> Vec:
    """A world vector in the frame of an object with that yaw."""
    cos, sin = turn
    return Vec(vector.x * cos + vector.y * sin, vector.y * cos - vector.x * sin, vector.z + torch.zeros_like(cos))


def rectangle(axes: tuple[Vec, Vec, Vec], eye: Vec) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Left, right, top, bottom of the projected box around each object, within the frame."""
    signs = torch.tensor([-1.0, 1.0], device=eye.x.device)
    corners = Vec(*torch.meshgrid(signs, signs, signs, indexing="ij")).map(torch.flatten)  # (8,)
    away = corners - eye[..., None]  # (B, N, 8)
    right, up, backward = (axis[..., None].dot(away) for axis in axes)
    x = WIDTH / 2 - FOCAL_PIXELS * right / backward
    y = HEIGHT / 2 + FOCAL_PIXELS * up / backward
    x, y = x.clamp(0, WIDTH), y.clamp(0, HEIGHT)
    return x.amin(-1), x.amax(-1), y.amin(-1), y.amax(-1)


def _shared_area(box: tuple[Tensor, ...]) -> Tensor:
    """Pixels that every two rectangles of a scene share, (B, N, N)."""

    def shared(low: Tensor, high: Tensor) -> Tensor:
        both = torch.minimum(high[:, :, None], high[:, None]) - torch.maximum(low[:, :, None], low[:, None])
        return both.clamp(min=0)

    return shared(box[0], box[1]) * shared(box[2], box[3])


def _ball_area(seen: _View) -> Tensor:
    """Pixels of the ball inside each shape, from the area of its perspective ellipse, (B, N)."""
    depth, distance = seen.axes[2].dot(seen.eye), seen.eye.squared()  # in sizes
    flat = depth * depth - SPHERE_RADIUS**2
    stretch = ((distance - SPHERE_RADIUS**2) / flat).sqrt()
    return torch.pi * (FOCAL_PIXELS * SPHERE_RADIUS) ** 2 / flat * stretch


def enough_by_rays(scenes: SceneBatch) -> Tensor:
    """Which objects show enough pixels, (B, N), looking closely only where it is in doubt."""
    seen = view(scenes)
    enough = scenes.present & (_clear_area(seen) >= CLEAR)
    scene, obj = (scenes.present & ~enough).nonzero().unbind(1)
    for net in NETS:
        pixels, doubt = _net_estimate(seen, scene, obj, net)
        enough[scene, obj] = pixels >= ENOUGH
        unsure = ((pixels - ENOUGH).abs() <= doubt).nonzero()[:, 0]
        scene, obj = scene[unsure], obj[unsure]
    enough[scene, obj] = _count_pixels(seen, scene, obj) >= ENOUGH
    return enough


def _clear_area(seen: _View) -> Tensor:
    """At least so many pixels of each object are visible, (B, N); 0 if it may reach beyond the frame."""
    left, right, top, bottom = seen.box
    inside = (left > 0) & (right < WIDTH) & (top > 0) & (bottom < HEIGHT)
    area = _ball_area(seen)
    hidden = torch.where(seen.before, _shared_area(seen.box), 0.0)
    for blocker in hidden.unbind(-1):  # one after the other: the order of a sum is part of its value
        area = area - blocker
    return torch.where(inside, area, 0.0)


def _net_estimate(seen: _View, scene: Tensor, obj: Tensor, net: int) -> tuple[Tensor, Tensor]:
    """Visible pixels of the chosen objects, from net x net rays over each rectangle, and the doubt, (Q,)."""
    step = (torch.arange(net, device=scene.device) + 0.5) / net
    left, right, top, bottom = (edge[scene, obj][:, None] for edge in seen.box)  # (Q, 1)
    x = (left + (right - left) * step).repeat(1, net)  # (Q, net * net)
    y = (top + (bottom - top) * step).repeat_interleave(net, dim=1)
    hits = torch.zeros_like(scene)
    for rows in torch.arange(len(scene), device=scene.device).split(RAYS.get(scene.device.type, 1 << 17) // net**2):
        hits[rows] = visible(seen, scene[rows], obj[rows], x[rows], y[rows]).sum(1)
    cell = ((right - left) * (bottom - top))[:, 0] / net**2  # pixels per ray
    return hits * cell, DOUBT[0] * cell + DOUBT[1]


def _count_pixels(seen: _View, scene: Tensor, obj: Tensor) -> Tensor:
    """Visible pixels of the chosen objects: one ray through each pixel center of their rectangles, (Q,)."""
    counts = torch.zeros_like(scene)
    left, right, top, bottom = (edge[scene, obj][:, None] for edge in seen.box)  # (Q, 1)
    left, top = left.floor(), top.floor()
    side = torch.maximum(right - left, bottom - top).ceil()[:, 0].long()
    rows = side.argsort()  # rectangles of like size go together, as many as memory allows
    while len(rows):
        largest = max(1, int(side[rows[-1]]))
        at_once = max(1, RAYS.get(scene.device.type, 1 << 17) // largest**2)
        now, rows = rows[-at_once:], rows[:-at_once]
        step = torch.arange(largest, device=scene.device) + 0.5
        x = (left[now] + step).repeat(1, largest)  # (q, largest * largest)
        y = (top[now] + step).repeat_interleave(largest, dim=1)
        inside = (x < right[now]) & (y < bottom[now])
        counts[now] = (visible(seen, scene[now], obj[now], x, y) & inside).sum(1)
    return counts


def visible(seen: _View, scene: Tensor, obj: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Which rays through pixels (x, y), each (Q, P), meet their object first, (Q, P)."""
    query, other = seen.before[scene, obj].nonzero().unbind(1)
    hits = covers(seen, scene[query], other, x[query], y[query])  # (pairs, P)
    hidden = torch.zeros_like(x).index_add_(0, query, hits.to(x.dtype))
    return covers(seen, scene, obj, x, y) & (hidden == 0)


def covers(seen: _View, scene: Tensor, obj: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Which rays through pixels (x, y) meet the object at all, (Q, P)."""
    kind = seen.shape[scene, obj]
    met = torch.zeros_like(x, dtype=torch.bool)
    for number, name in enumerate(SHAPES):
        rows = (kind == number).nonzero()[:, 0]
        at = (scene[rows], obj[rows])
        right, up, backward = (axis[at][:, None] for axis in seen.axes)
        aside, above = (x[rows] - WIDTH / 2) / FOCAL_PIXELS, (HEIGHT / 2 - y[rows]) / FOCAL_PIXELS
        ray = right * aside + up * above - backward  # (rows, P)
        met[rows] = MEETS[name](seen.eye[at][:, None], ray)
    return met
