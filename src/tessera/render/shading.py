"""How much light leaves a point toward the eye: the gray stage, rubber and metal under four lamps.

All values are scene-linear radiance. Directions point away from the surface.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from tessera.render.constants import RenderConstants
from tessera.render.stage import ALBEDO, hit_stage, stage_normal
from tessera.render.world import Points, World
from tessera.scenes.vectors import Vec, reflect, take

ROUGH, SHARP = 0.2, 0.01  # the two GGX lobes of metal
ROUGH_SHARE = 0.4
STRETCH = 0.75  # the grain of metal: lobes are narrower around the z axis, wider across
RUBBER_GLOSS = 0.35  # Beckmann


@dataclass(frozen=True)
class Hits:
    """Points on objects: M of them."""

    obj: Tensor  # (M,) flat index into (N, B)
    point: Vec
    normal: Vec
    scene: Tensor  # (M,)
    eye: Vec  # unit, toward where the light goes
    facet: Vec  # for metal: slope of the facet that mirrors along and across the grain, and the sample's weight

    def take(self, rows: Tensor) -> "Hits":
        return Hits(
            *(take(self.obj, rows), self.point.take(rows), self.normal.take(rows)),
            *(take(self.scene, rows), self.eye.take(rows), self.facet.take(rows)),
        )

    def __len__(self) -> int:
        return len(self.obj)


def stage_light(world: World, look: RenderConstants, points: Points, s: Tensor, blur: float, windows=None) -> Vec:
    """Radiance of the stage at `points` with curve parameter `s`: lamps, soft shadows and indirect light.

    `windows`, one per lamp, names the pairs (object, point) that may shadow, where the caller knows them.
    """
    normal = stage_normal(s)
    total = Vec.zeros_like(points.position.x)
    for lamp, pairs in zip(world.lamps, windows or [None] * len(world.lamps)):
        way = lamp.way(points)
        toward, strength = lamp.light(way, points)
        seen = world.visibility(lamp, points, blur=blur, pairs=pairs)
        irradiance = strength * normal.dot(toward).clamp_min(0) * seen
        total.add_(irradiance, [power * ALBEDO / math.pi for power in lamp.power])
    ambient = _stage_ambient(look, s)
    dimmed, tint = _near_objects(world, look, points)
    ambient = ambient * dimmed
    return total.map(lambda direct: direct + ambient) + tint


def _stage_ambient(look: RenderConstants, s: Tensor) -> Tensor:
    """Indirect light of the stage: it grows toward the wall (half of the curve) and fades on its way up."""
    a, b, c = look.stage_ambient
    low, high = s.clamp_max(0.5), (2 * s - 1).clamp_min(0)
    return ((c * low + b) * low + a) * (1 - look.wall_fade * high)


def _near_objects(world: World, look: RenderConstants, points: Points) -> tuple[Tensor, Vec]:
    """What objects take from the ambient light around them, and the colored light they give back."""
    here, around = points.position, around_objects(world)
    taken, glow = torch.zeros_like(here.x), Vec.zeros_like(here.x)
    for n in range(world.size.shape[0]):
        x, y, size = (points.spread(c[n]) for c in (world.center.x, world.center.y, world.size))
        present = points.spread((world.bound[n] > 0).float())
        squared = ((here.x - x).square() + (here.y - y).square()) / (look.contact * size).square()
        closeness = present / (1 + squared).square()
        taken.add_(closeness)
        for channel, color, light in zip(glow.parts(), world.color[n].parts(), around[n].parts()):
            channel.addcmul_(closeness, points.spread(color * light * look.bleed))
    return (1 - look.shade * taken).clamp_min(0), glow


def around_objects(world: World) -> Vec:
    """Radiance of the bare floor where each object stands, (N, B): what lights it from below."""
    foot = Points(Vec(world.center.x, world.center.y, torch.zeros_like(world.size)).map(lambda c: c.transpose(0, 1)))
    total = Vec.zeros_like(world.size)
    for lamp in world.lamps:
        toward, strength = lamp.light(lamp.way(foot), foot)
        total.add_((strength * toward.z).transpose(0, 1), [power * ALBEDO / math.pi for power in lamp.power])
    return total


def object_light(world: World, look: RenderConstants, hits: Hits, blur: float, bounces: int) -> Vec:
    """Radiance leaving points on objects toward the eye."""
    points = Points(hits.point, hits.scene)
    slot = torch.div(hits.obj, world.size.shape[1], rounding_mode="floor")
    color = world.color.map(lambda c: take(c.flatten(), hits.obj))
    metal = take(world.metal.flatten(), hits.obj)
    around = around_objects(world).map(lambda c: take(c.flatten(), hits.obj))
    cosine = hits.normal.dot(hits.eye).clamp(1e-3, 1.0)
    grain = _grain(world, hits)
    gloss = 0.8 * fresnel(cosine, 1.2)
    matt, shine = Vec.zeros_like(cosine), Vec.zeros_like(cosine)
    for lamp in world.lamps:
        way = lamp.way(points)
        toward, strength = lamp.light(way, points)
        facing = hits.normal.dot(toward).clamp_min(0)
        light = strength * world.visibility(lamp, points, own=slot, blur=blur) * (facing > 0)
        half = (toward + hits.eye).unit()
        spread = lamp.radius * way.squared().rsqrt() / 2
        glare = torch.where(
            metal,
            _metal_lobes(hits.normal, grain, half, cosine, facing, spread),
            gloss * _beckmann(hits.normal.dot(half), cosine, facing, hits.eye.dot(half)),
        )
        matt.add_(light * facing, lamp.power)
        shine.add_(light * glare, lamp.power)
    below, above = (1 - hits.normal.z) / 2, (1 + hits.normal.z) / 2
    rubber = []
    for direct, mirror, tint, floor in zip(matt.parts(), shine.parts(), color.parts(), around.parts()):
        indirect = look.floor_bounce * floor * below + look.sky * above
        seen = look.sheen * fresnel(cosine, 1.4) * (floor * below + look.sky)
        rubber.append((1 - gloss) * tint * (direct / math.pi + indirect) + mirror + seen)
    mirrored = _mirrored(world, look, hits, metal, grain, around, blur, bounces)
    shiny = [tint * part for tint, part in zip(color.parts(), (shine + mirrored).parts())]
    return Vec(*(torch.where(metal, *either) for either in zip(shiny, rubber)))


def _grain(world: World, hits: Hits) -> Vec:
    """The tangent along which metal was brushed: around the object's vertical axis."""
    x, y = (take(c.flatten(), hits.obj) for c in (world.center.x, world.center.y))
    around = Vec(y - hits.point.y, hits.point.x - x, torch.zeros_like(x))
    return (around - hits.normal * around.dot(hits.normal)).unit()


def _mirrored(
    world, look: RenderConstants, hits: Hits, metal: Tensor, grain: Vec, around: Vec, blur: float, bounces: int
) -> Vec:
    """What metal points show of their surroundings; where nothing is traced, a glow of the floor around."""
    image = around * look.metal_glow
    rows = torch.nonzero(metal).squeeze(-1)
    if bounces == 0 or not len(rows):
        return image
    shiny = hits.take(rows)
    direction, weight = bounce(shiny, grain.take(rows))
    image.put_(rows, trace(world, look, shiny, direction, blur, bounces - 1) * weight)
    return image


def trace(world: World, look: RenderConstants, start: Hits, direction: Vec, blur: float, bounces: int) -> Vec:
    """Light arriving at `start` from `direction`: another object, the stage, or the dark beyond it."""
    obj, ray = _in_the_way(world, start, direction)
    distance, normal = world.meet(obj, start.point.take(ray), direction.take(ray))
    nearest = torch.full_like(start.point.x, torch.inf).scatter_reduce_(0, ray, distance, "amin")
    first = torch.nonzero((distance == take(nearest, ray)) & distance.isfinite()).squeeze(-1)
    hit = ray[first]
    floor, s = hit_stage(start.point, direction)
    open_ = torch.nonzero(nearest.isinf() & floor.isfinite()).squeeze(-1)
    ground = Points(start.point.take(open_).along(direction.take(open_), floor[open_]), start.scene[open_])
    light = Vec.zeros_like(nearest)
    light.put_(open_, stage_light(world, look, ground, s[open_], blur))
    if len(hit):
        way = direction.take(hit)
        point = start.point.take(hit).along(way, distance[first])
        met = Hits(obj[first], point, normal.take(first), start.scene[hit], -way, start.facet.take(hit))
        light.put_(hit, object_light(world, look, met, blur, bounces))
    return light


def _in_the_way(world: World, start: Hits, direction: Vec) -> tuple[Tensor, Tensor]:
    """Pairs (object, ray) where the ray passes through the sphere around another object."""
    offset = world.center.map(lambda c: c.index_select(1, start.scene)) - start.point  # (N, M)
    ahead = offset.dot(direction).clamp_min(0)
    bound = world.bound.index_select(1, start.scene)
    near = ((offset - direction * ahead).squared() < bound.square()) & (bound > 0)
    slot, ray = torch.nonzero(near, as_tuple=True)
    obj = slot * world.size.shape[1] + start.scene[ray]
    other = obj != start.obj[ray]
    return obj[other], ray[other]


def fresnel(cosine: Tensor, index: float) -> Tensor:
    """Share of light reflected by a smooth dielectric, exact, unpolarized."""
    g = torch.sqrt(index * index - 1 + cosine * cosine)
    a = (g - cosine) / (g + cosine)
    b = (cosine * (g + cosine) - 1) / (cosine * (g - cosine) + 1)
    return 0.5 * a * a * (1 + b * b)


def _beckmann(height: Tensor, to_eye: Tensor, to_light: Tensor, across_half: Tensor) -> Tensor:
    """Beckmann lobe times the cosine at the light, over pi-free radiance units (D G / 4 n.o)."""
    h2 = height.clamp_min(1e-3).square()
    d = torch.exp((h2 - 1) / (h2 * RUBBER_GLOSS**2)) / (math.pi * RUBBER_GLOSS**2 * h2 * h2)
    shadow = (2 * height * torch.minimum(to_eye, to_light) / across_half.clamp_min(1e-3)).clamp(0, 1)
    return d * shadow / (4 * to_eye)


def _metal_lobes(normal: Vec, grain: Vec, half: Vec, to_eye: Tensor, to_light: Tensor, spread: Tensor) -> Tensor:
    """Both GGX lobes of metal for a lamp that fills `spread` radians around `half`."""
    height, along = normal.dot(half), grain.dot(half)
    square_across = (1 - height.square() - along.square()).clamp_min(0)
    total = torch.zeros_like(height)
    for alpha, share in ((ROUGH, ROUGH_SHARE), (SHARP, 1 - ROUGH_SHARE)):
        ax = torch.sqrt((alpha * STRETCH) ** 2 + spread.square())
        ay = torch.sqrt((alpha / STRETCH) ** 2 + spread.square())
        stretch = along.square() / ax.square() + square_across / ay.square() + height.square()
        d = 1 / (math.pi * ax * ay * stretch.square())
        total = total + share * d * _smith(to_eye, alpha) * _smith(to_light, alpha) / (4 * to_eye)
    return total


def _smith(cosine: Tensor, alpha: float) -> Tensor:
    """Share of GGX facets visible from an angle."""
    tangent = (1 - cosine.square()).clamp_min(0) / cosine.square().clamp_min(1e-6)
    return 2 / (1 + torch.sqrt(1 + alpha * alpha * tangent))


def lobe_table(samples: int) -> list[tuple[float, float, float]]:
    """For each sample of a pixel: slopes (along the grain, across it) of the facet that mirrors there, and a weight.

    Some samples are plain mirrors, for the sharp lobe; the others are spread evenly over the rough lobe. Weights
    give each lobe its exact share of the light.
    """
    rough = round(samples * ROUGH_SHARE)
    sharp_weight = (1 - ROUGH_SHARE) * samples / (samples - rough) if rough else 1.0
    table = [(0.0, 0.0, sharp_weight)] * samples
    for i in range(rough):
        share = (i + 0.5) / rough
        radius, angle = math.sqrt(share / (1 - share)), 2 * math.pi * 0.618034 * i
        along, across = STRETCH * radius * math.cos(angle), radius * math.sin(angle) / STRETCH
        table[math.floor((i + 0.5) * samples / rough)] = (ROUGH * along, ROUGH * across, ROUGH_SHARE * samples / rough)
    return table


def bounce(hits: Hits, grain: Vec) -> tuple[Vec, Tensor]:
    """The mirrored direction of each metal point, and the weight of what is seen there."""
    slope, aslant = hits.facet, hits.normal.cross(grain)
    facet = (hits.normal + grain * slope.x + aslant * slope.y).unit()
    direction = -reflect(hits.eye, facet)
    out = direction.dot(hits.normal)
    direction = direction + hits.normal * (2 * (-out).clamp_min(0))  # never into the object itself
    rough = slope.x.abs() + slope.y.abs() > 0
    shadowed = _smith(out.abs().clamp_min(1e-3), ROUGH)
    return direction, slope.z * torch.where(rough, shadowed, 1.0)
