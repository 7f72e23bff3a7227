"""Rays and shapes: where a ray meets a shape, whether it does, and how narrowly a light ray passes it.

Shapes stand in their own frame: unit half extent, centered, no yaw. Cube and cylinder are convex and rounded: flat up
to a core and rounded beyond it, where a point is inside if the p-norm of (beyond x / rounding of x, ...) is at most 1.
"""

from collections.abc import Callable
from functools import reduce

import torch
from torch import Tensor

from tessera.scenes.vectors import Vec

# The official meshes in units of the object's size.
SPHERE_RADIUS = 0.9991
CUBE_CORE, CUBE_ROUNDING = 0.75, 0.25  # p = 3
RIM_RADIUS, RIM_HEIGHT = 0.089, 0.099  # p = 4; fitted to pixel counts of the generator
HALVINGS = 5  # of a ray's stretch inside the box around an object, to find where it comes closest to the core

# Shadows are those of sharp solids a little smaller, so that light reaches under their rounded lower edges.
SHADOW_WIDE, SHADOW_TALL = 0.97, 0.91
BOUND = {"cube": 1.60, "sphere": 1.0, "cylinder": 1.38}  # radius of the sphere around each shape


def _slab(origin: Tensor, direction: Tensor, half: float = 1.0) -> tuple[Tensor, Tensor]:
    """Where a ray enters and leaves |coordinate| <= half."""
    safe = torch.where(direction.abs() > 1e-9, direction, 1e-9)
    first, second = (-half - origin) / safe, (half - origin) / safe
    return torch.minimum(first, second), torch.maximum(first, second)


def _box(slab: Callable[..., tuple[Tensor, Tensor]], origin: Vec, direction: Vec) -> tuple[Tensor, Tensor]:
    """Where a ray enters and leaves the cube around a shape, by its three slabs."""
    enters, leaves = zip(*(slab(o, d) for o, d in zip(origin.parts(), direction.parts())))
    return reduce(torch.maximum, enters), reduce(torch.minimum, leaves)


# Hits: a ray first meets the sharp solid around a rounded shape; Newton's method on the convex rounding function
# then walks from outside onto the surface, never past it.


def _hit_sphere(origin: Vec, direction: Vec) -> tuple[Tensor, Vec]:
    """Distance (inf where missed) and outward normal."""
    a, b = direction.squared(), origin.dot(direction)
    inside = b * b - a * (origin.squared() - SPHERE_RADIUS**2)
    distance = (-b - inside.clamp_min(0).sqrt()) / a
    normal = origin.along(direction, distance)
    return torch.where((inside > 0) & (distance > 0), distance, torch.inf), normal


def _walk(
    surface: Callable[[Vec], tuple[Tensor, Tensor, Vec]], origin: Vec, direction: Vec, t: Tensor, steps: int
) -> tuple[Tensor, Tensor, Vec]:
    """Newton's method along a ray: where it ends, whether that is on the surface, and the normal there.

    `surface` gives, at a point, how far outside it lies, how fast the ray closes in, and the outward normal.
    """
    for _ in range(steps):
        outside, closing, _ = surface(origin.along(direction, t))
        t = torch.where(closing < -1e-9, t - outside / closing.clamp_max(-1e-9), t)
    outside, _, normal = surface(origin.along(direction, t))
    return t, outside < 0.01, normal


def _hit_cube(origin: Vec, direction: Vec) -> tuple[Tensor, Vec]:
    """Distance (inf where missed) and outward normal of the rounded cube."""
    enter, leave = _box(_slab, origin, direction)

    def surface(point: Vec) -> tuple[Tensor, Tensor, Vec]:
        beyond = point.map(lambda c: ((c.abs() - CUBE_CORE) / CUBE_ROUNDING).clamp_min(0))
        squares = beyond.map(torch.square)
        normal = Vec(squares.x * point.x.sign(), squares.y * point.y.sign(), squares.z * point.z.sign())
        return beyond.dot(squares) - 1, 3 / CUBE_ROUNDING * normal.dot(direction), normal  # a^3 + b^3 + c^3 - 1

    t, on_surface, normal = _walk(surface, origin, direction, torch.where(enter < leave, enter, 0.0), steps=5)
    met = (enter < leave) & (t > 0) & (t <= leave) & on_surface
    return torch.where(met, t, torch.inf), normal


def _hit_cylinder(origin: Vec, direction: Vec) -> tuple[Tensor, Vec]:
    """Distance (inf where missed) and outward normal of the upright cylinder with a rounded rim."""
    a = (direction.x * direction.x + direction.y * direction.y).clamp_min(1e-12)
    b = origin.x * direction.x + origin.y * direction.y
    inside = b * b - a * (origin.x * origin.x + origin.y * origin.y - 1)
    root = inside.clamp_min(0).sqrt()
    low, high = _slab(origin.z, direction.z)
    enter, leave = torch.maximum((-b - root) / a, low), torch.minimum((-b + root) / a, high)
    crosses = (inside > 0) & (enter < leave)

    def surface(point: Vec) -> tuple[Tensor, Tensor, Vec]:
        radius = torch.sqrt(point.x * point.x + point.y * point.y).clamp_min(1e-6)
        side = ((radius - (1 - RIM_RADIUS)) / RIM_RADIUS).clamp_min(0)
        top = ((point.z.abs() - (1 - RIM_HEIGHT)) / RIM_HEIGHT).clamp_min(0)
        outward = (point.x * direction.x + point.y * direction.y) / radius
        upward = top**3 / RIM_HEIGHT * point.z.sign()
        slope = side**3 / (RIM_RADIUS * radius)
        closing = 4 * (side**3 / RIM_RADIUS * outward + upward * direction.z)
        return side**4 + top**4 - 1, closing, Vec(slope * point.x, slope * point.y, upward)

    t, on_surface, normal = _walk(surface, origin, direction, torch.where(crosses, enter, 0.0), steps=4)
    return torch.where(crosses & (t > 0) & (t <= leave) & on_surface, t, torch.inf), normal


# Clearance: a light ray leaves `origin` and arrives at its lamp at `origin + direction`. How far from the
# surface does it pass, in the shape's own unit, and at which fraction of the way? Negative: it goes through.


def _clear_sphere(origin: Vec, direction: Vec) -> tuple[Tensor, Tensor]:
    fraction = (-origin.dot(direction) / direction.squared()).clamp(0.0, 1.0)
    return origin.along(direction, fraction).squared().sqrt() - SPHERE_RADIUS, fraction


def _within_height(origin: Vec, direction: Vec) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The part of the way at the height of an upright solid, how steep the ray is (sine), its squared length on the
    ground, and where in that part it comes closest to the solid's axis.
    """
    enter, leave = (end.clamp(0.0, 1.0) for end in _slab(origin.z, direction.z, SHADOW_TALL))
    sine = direction.z.abs() * direction.squared().rsqrt()
    flat = (direction.x * direction.x + direction.y * direction.y).clamp_min(1e-12)
    return enter, leave, sine, flat, -(origin.x * direction.x + origin.y * direction.y) / flat


def _clear_cylinder(origin: Vec, direction: Vec) -> tuple[Tensor, Tensor]:
    enter, leave, sine, _, nearest = _within_height(origin, direction)
    fraction = torch.maximum(torch.minimum(nearest, leave), enter)
    gap = torch.hypot(origin.x + fraction * direction.x, origin.y + fraction * direction.y) - 1
    gap = torch.where(fraction == nearest, gap, gap * sine)  # past the top or bottom edge: seen aslant
    return torch.where(enter < leave, gap, torch.inf), fraction


def _clear_cube(origin: Vec, direction: Vec, half: float = SHADOW_WIDE) -> tuple[Tensor, Tensor]:
    """Separating axes: the two face normals, and the normal of the ray's path on the ground."""
    enter, leave, sine, flat, nearest = _within_height(origin, direction)
    ax, ay = origin.x + enter * direction.x, origin.y + enter * direction.y
    bx, by = origin.x + leave * direction.x, origin.y + leave * direction.y
    before = torch.maximum(torch.minimum(ax, bx), -torch.maximum(ax, bx))
    beside = torch.maximum(torch.minimum(ay, by), -torch.maximum(ay, by))
    short = (torch.maximum(before, beside) - half) * sine
    reach = half * (direction.x.abs() + direction.y.abs())
    past = ((origin.x * direction.y - origin.y * direction.x).abs() - reach) * flat.rsqrt()
    fraction = torch.maximum(torch.minimum(nearest, leave), enter)
    return torch.where(enter < leave, torch.maximum(short, past), torch.inf), fraction


HIT = {"cube": _hit_cube, "sphere": _hit_sphere, "cylinder": _hit_cylinder}
CLEAR = {"cube": _clear_cube, "sphere": _clear_sphere, "cylinder": _clear_cylinder}


# Tests: whether a ray meets a shape at all. Only exactly rounded operations decide, so that the answer is the same on
# every device.


def _meets_sphere(eye: Vec, ray: Vec) -> Tensor:
    along, rest = eye.dot(ray), eye.squared() - SPHERE_RADIUS**2
    return along * along >= ray.squared() * rest


def _meets_cube(eye: Vec, ray: Vec) -> Tensor:
    enter, leave = _box(_exact_slab, eye, ray)

    def excess(t: Tensor) -> tuple[Tensor, Tensor]:
        height, slope = torch.zeros_like(t), torch.zeros_like(t)
        for e, d in zip(eye.parts(), ray.parts()):
            x = e + t * d
            beyond = (x.abs() - CUBE_CORE).clamp(min=0) / CUBE_ROUNDING
            height = height + beyond * beyond * beyond
            slope = slope + beyond * beyond * x.sign() * d
        return height, slope

    return (enter <= leave) & (_lowest(excess, enter, leave) <= 1)


def _meets_cylinder(eye: Vec, ray: Vec) -> Tensor:
    across = ray.x * ray.x + ray.y * ray.y
    along = eye.x * ray.x + eye.y * ray.y
    inside = along * along - across * (eye.x * eye.x + eye.y * eye.y - 1)
    reach = inside.clamp(min=0).sqrt()
    near, far = _exact_slab(eye.z, ray.z)
    enter = torch.maximum(near, (-along - reach) / across)
    leave = torch.minimum(far, (-along + reach) / across)

    def excess(t: Tensor) -> tuple[Tensor, Tensor]:
        x, y, z = (e + t * d for e, d in zip(eye.parts(), ray.parts()))
        radius = (x * x + y * y).sqrt().clamp(min=1e-6)
        out = (radius - (1 - RIM_RADIUS)).clamp(min=0) / RIM_RADIUS
        up = (z.abs() - (1 - RIM_HEIGHT)).clamp(min=0) / RIM_HEIGHT
        out3, up3 = out * out * out, up * up * up
        slope = out3 * (x * ray.x + y * ray.y) / radius / RIM_RADIUS + up3 * z.sign() * ray.z / RIM_HEIGHT
        return out3 * out + up3 * up, slope

    return (inside >= 0) & (enter <= leave) & (_lowest(excess, enter, leave) <= 1)


def _exact_slab(eye: Tensor, ray: Tensor) -> tuple[Tensor, Tensor]:
    """Where a ray enters and leaves the space between the planes at -1 and 1."""
    speed = torch.where(ray.abs() < 1e-9, 1e-9, ray)
    middle, half = -eye / speed, 1 / speed.abs()
    return middle - half, middle + half


def _lowest(excess: Callable[[Tensor], tuple[Tensor, Tensor]], enter: Tensor, leave: Tensor) -> Tensor:
    """The least value on [enter, leave] of a convex function that comes with its slope, by halving."""
    for _ in range(HALVINGS):
        middle = (enter + leave) / 2
        falling = excess(middle)[1] < 0
        enter, leave = torch.where(falling, middle, enter), torch.where(falling, leave, middle)
    return excess((enter + leave) / 2)[0]


MEETS = {"sphere": _meets_sphere, "cylinder": _meets_cylinder, "cube": _meets_cube}
