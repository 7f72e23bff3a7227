"""The ray tracer as one GPU kernel: the formulas of `geometry`, `stage`, `world` and `shading`, a thread per pixel.

Every thread follows its rays through all bounces, so nothing but the image is ever written to memory. The plain
PyTorch renderer says what is right; tests hold the two together.
"""

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from tessera.render import shading, stage
from tessera.render.constants import RenderConstants
from tessera.render.shading import around_objects, lobe_table
from tessera.render.world import World
from tessera.scenes import geometry
from tessera.scenes.batch import SceneBatch
from tessera.scenes.camera import FOCAL, camera_axes

TILE_W, TILE_H = 16, 8  # pixels of one program
OBJECT, LAMP, CAMERA = 16, 12, 12  # numbers per row of the tables

U0, U1, U2, U3, U4 = (tl.constexpr(c) for c in stage.CURVE_U)
CURVE_Z = tl.constexpr(stage.CURVE_Z)
AXIS_X, AXIS_Y = (tl.constexpr(c) for c in stage.AXIS)
FRONT, WALL = tl.constexpr(stage.FRONT), tl.constexpr(stage.WALL)
S0, S1, S2, S3, S4, S5 = (tl.constexpr(c) for c in stage.START)
_STAGE_SHARE = tl.constexpr(stage.ALBEDO / math.pi)
_PI = tl.constexpr(math.pi)
BALL = tl.constexpr(geometry.SPHERE_RADIUS)
FLAT, ROUND = tl.constexpr(geometry.CUBE_CORE), tl.constexpr(geometry.CUBE_ROUNDING)
RIM_R, RIM_Z = tl.constexpr(geometry.RIM_RADIUS), tl.constexpr(geometry.RIM_HEIGHT)
HALF, TALL = tl.constexpr(geometry.SHADOW_WIDE), tl.constexpr(geometry.SHADOW_TALL)
ROUGH, SHARP, SHARE = (tl.constexpr(c) for c in (shading.ROUGH, shading.SHARP, shading.ROUGH_SHARE))
STRETCH, GLOSS = tl.constexpr(shading.STRETCH), tl.constexpr(shading.RUBBER_GLOSS)
OBJECT_, LAMP_, CAMERA_ = tl.constexpr(OBJECT), tl.constexpr(LAMP), tl.constexpr(CAMERA)
_FOCAL_ = tl.constexpr(FOCAL)
INF = tl.constexpr(float("inf"))


# --- small vector arithmetic ----------------------------------------------------------------------------------


@triton.jit
def _dot(ax, ay, az, bx, by, bz):
    return ax * bx + ay * by + az * bz


@triton.jit
def _unit(x, y, z):
    scale = 1.0 / tl.sqrt(tl.maximum(_dot(x, y, z, x, y, z), 1e-20))
    return x * scale, y * scale, z * scale


@triton.jit
def _clamp(x, low, high):
    return tl.minimum(tl.maximum(x, low), high)


@triton.jit
def _signed(square, like):
    return tl.where(like < 0, -square, square)


@triton.jit
def _slab(o, d, half):
    safe = tl.where(tl.abs(d) > 1e-9, d, 1e-9)
    first = (-half - o) / safe
    second = (half - o) / safe
    return tl.minimum(first, second), tl.maximum(first, second)


# --- shapes ---------------------------------------------------------------------------------------------------


@triton.jit
def _beyond_cube(c):
    return tl.maximum((tl.abs(c) - FLAT) / ROUND, 0.0)


@triton.jit
def _meet_cube(ox, oy, oz, dx, dy, dz):
    x0, x1 = _slab(ox, dx, 1.0)
    y0, y1 = _slab(oy, dy, 1.0)
    z0, z1 = _slab(oz, dz, 1.0)
    enter = tl.maximum(tl.maximum(x0, y0), z0)
    leave = tl.minimum(tl.minimum(x1, y1), z1)
    t = tl.where(enter < leave, enter, 0.0)
    for _ in range(5):
        px, py, pz = ox + t * dx, oy + t * dy, oz + t * dz
        a, b, c = _beyond_cube(px), _beyond_cube(py), _beyond_cube(pz)
        outside = a * a * a + b * b * b + c * c * c - 1.0
        pull = _signed(a * a, px) * dx + _signed(b * b, py) * dy + _signed(c * c, pz) * dz
        closing = 3.0 / ROUND * pull
        t = tl.where(closing < -1e-9, t - outside / tl.minimum(closing, -1e-9), t)
    px, py, pz = ox + t * dx, oy + t * dy, oz + t * dz
    a, b, c = _beyond_cube(px), _beyond_cube(py), _beyond_cube(pz)
    met = (enter < leave) & (t > 0) & (t <= leave) & (a * a * a + b * b * b + c * c * c - 1.0 < 0.01)
    return tl.where(met, t, INF), _signed(a * a, px), _signed(b * b, py), _signed(c * c, pz)


@triton.jit
def _meet_sphere(ox, oy, oz, dx, dy, dz):
    a = _dot(dx, dy, dz, dx, dy, dz)
    b = _dot(ox, oy, oz, dx, dy, dz)
    inside = b * b - a * (_dot(ox, oy, oz, ox, oy, oz) - BALL * BALL)
    t = (-b - tl.sqrt(tl.maximum(inside, 0.0))) / a
    return tl.where((inside > 0) & (t > 0), t, INF), ox + t * dx, oy + t * dy, oz + t * dz


@triton.jit
def _meet_cylinder(ox, oy, oz, dx, dy, dz):
    a = tl.maximum(dx * dx + dy * dy, 1e-12)
    b = ox * dx + oy * dy
    inside = b * b - a * (ox * ox + oy * oy - 1.0)
    root = tl.sqrt(tl.maximum(inside, 0.0))
    z0, z1 = _slab(oz, dz, 1.0)
    enter = tl.maximum((-b - root) / a, z0)
    leave = tl.minimum((-b + root) / a, z1)
    crosses = (inside > 0) & (enter < leave)
    t = tl.where(crosses, enter, 0.0)
    for _ in range(4):
        px, py, pz = ox + t * dx, oy + t * dy, oz + t * dz
        radius = tl.maximum(tl.sqrt(px * px + py * py), 1e-6)
        side = tl.maximum((radius - (1.0 - RIM_R)) / RIM_R, 0.0)
        top = tl.maximum((tl.abs(pz) - (1.0 - RIM_Z)) / RIM_Z, 0.0)
        outside = side * side * side * side + top * top * top * top - 1.0
        outward = (px * dx + py * dy) / radius
        closing = 4.0 * (side * side * side / RIM_R * outward + _signed(top * top * top, pz) / RIM_Z * dz)
        t = tl.where(closing < -1e-9, t - outside / tl.minimum(closing, -1e-9), t)
    px, py, pz = ox + t * dx, oy + t * dy, oz + t * dz
    radius = tl.maximum(tl.sqrt(px * px + py * py), 1e-6)
    side = tl.maximum((radius - (1.0 - RIM_R)) / RIM_R, 0.0)
    top = tl.maximum((tl.abs(pz) - (1.0 - RIM_Z)) / RIM_Z, 0.0)
    met = crosses & (t > 0) & (t <= leave) & (side * side * side * side + top * top * top * top - 1.0 < 0.01)
    slope = side * side * side / (RIM_R * radius)
    return tl.where(met, t, INF), slope * px, slope * py, _signed(top * top * top, pz) / RIM_Z


@triton.jit
def _meet(row, ox, oy, oz, dx, dy, dz):
    """Rays against one object: distance and unit normal."""
    size, cos, sin, shape = tl.load(row + 3), tl.load(row + 4), tl.load(row + 5), tl.load(row + 6)
    qx, qy, qz = ox - tl.load(row), oy - tl.load(row + 1), oz - tl.load(row + 2)
    lx, ly, lz = (cos * qx + sin * qy) / size, (cos * qy - sin * qx) / size, qz / size
    ex, ey, ez = (cos * dx + sin * dy) / size, (cos * dy - sin * dx) / size, dz / size
    t, nx, ny, nz = lx * 0.0, lx, ly, lz
    if shape < 0.5:
        t, nx, ny, nz = _meet_cube(lx, ly, lz, ex, ey, ez)
    else:
        if shape < 1.5:
            t, nx, ny, nz = _meet_sphere(lx, ly, lz, ex, ey, ez)
        else:
            t, nx, ny, nz = _meet_cylinder(lx, ly, lz, ex, ey, ez)
    nx, ny, nz = _unit(cos * nx - sin * ny, sin * nx + cos * ny, nz)
    return t, nx, ny, nz


@triton.jit
def _first(table, count, own, active, ox, oy, oz, dx, dy, dz):
    """The nearest object (not its own) each active ray meets: distance, slot (-1 for none) and normal."""
    best = ox * 0.0 + INF
    slot = tl.zeros_like(own) - 1
    nx, ny, nz = ox * 0.0, ox * 0.0, ox * 0.0 + 1.0
    speed = _dot(dx, dy, dz, dx, dy, dz)
    for n in range(count):
        row = table + n * OBJECT_
        bound = tl.load(row + 14)
        qx, qy, qz = tl.load(row) - ox, tl.load(row + 1) - oy, tl.load(row + 2) - oz
        ahead = tl.maximum(_dot(qx, qy, qz, dx, dy, dz) / speed, 0.0)
        mx, my, mz = qx - ahead * dx, qy - ahead * dy, qz - ahead * dz
        near = active & (own != n) & (_dot(mx, my, mz, mx, my, mz) < bound * tl.abs(bound))  # absent: negative
        if tl.max(near.to(tl.int32)) > 0:
            t, hx, hy, hz = _meet(row, ox, oy, oz, dx, dy, dz)
            closer = near & (t < best)
            best = tl.where(closer, t, best)
            slot = tl.where(closer, n, slot)
            nx, ny, nz = tl.where(closer, hx, nx), tl.where(closer, hy, ny), tl.where(closer, hz, nz)
    return best, slot, nx, ny, nz


# --- shadows --------------------------------------------------------------------------------------------------


@triton.jit
def _within_height(oz, dx, dy, dz):
    enter, leave = _slab(oz, dz, TALL)
    sine = tl.abs(dz) / tl.sqrt(_dot(dx, dy, dz, dx, dy, dz))
    return _clamp(enter, 0.0, 1.0), _clamp(leave, 0.0, 1.0), sine


@triton.jit
def _clear_sphere(ox, oy, oz, dx, dy, dz):
    way = _clamp(-_dot(ox, oy, oz, dx, dy, dz) / _dot(dx, dy, dz, dx, dy, dz), 0.0, 1.0)
    px, py, pz = ox + way * dx, oy + way * dy, oz + way * dz
    return tl.sqrt(_dot(px, py, pz, px, py, pz)) - BALL, way


@triton.jit
def _clear_cylinder(ox, oy, oz, dx, dy, dz):
    enter, leave, sine = _within_height(oz, dx, dy, dz)
    flat = tl.maximum(dx * dx + dy * dy, 1e-12)
    nearest = -(ox * dx + oy * dy) / flat
    way = tl.maximum(tl.minimum(nearest, leave), enter)
    px, py = ox + way * dx, oy + way * dy
    gap = tl.sqrt(px * px + py * py) - 1.0
    gap = tl.where(way == nearest, gap, gap * sine)
    return tl.where(enter < leave, gap, INF), way


@triton.jit
def _clear_cube(ox, oy, oz, dx, dy, dz):
    enter, leave, sine = _within_height(oz, dx, dy, dz)
    ax, ay, bx, by = ox + enter * dx, oy + enter * dy, ox + leave * dx, oy + leave * dy
    before = tl.maximum(tl.minimum(ax, bx), -tl.maximum(ax, bx))
    beside = tl.maximum(tl.minimum(ay, by), -tl.maximum(ay, by))
    short = (tl.maximum(before, beside) - HALF) * sine
    flat = tl.maximum(dx * dx + dy * dy, 1e-12)
    past = (tl.abs(ox * dy - oy * dx) - HALF * (tl.abs(dx) + tl.abs(dy))) / tl.sqrt(flat)
    way = tl.maximum(tl.minimum(-(ox * dx + oy * dy) / flat, leave), enter)
    return tl.where(enter < leave, tl.maximum(short, past), INF), way


@triton.jit
def _seen(table, count, own, active, px, py, pz, wx, wy, wz, radius, blur):
    """Share of a lamp at the end of the way (wx, wy, wz) that each point sees past all objects but its own."""
    seen = px * 0.0 + 1.0
    length = _dot(wx, wy, wz, wx, wy, wz)
    for n in range(count):
        row = table + n * OBJECT_
        size, cos, sin, shape = tl.load(row + 3), tl.load(row + 4), tl.load(row + 5), tl.load(row + 6)
        bound = tl.load(row + 14)
        qx, qy, qz = px - tl.load(row), py - tl.load(row + 1), pz - tl.load(row + 2)
        part = _clamp(-_dot(qx, qy, qz, wx, wy, wz) / length, 0.0, 1.0)
        mx, my, mz = qx + part * wx, qy + part * wy, qz + part * wz
        reach = bound + radius * part + blur
        reach = tl.where(bound > 0, reach * reach, -1.0)
        near = active & (own != n) & (_dot(mx, my, mz, mx, my, mz) < reach)
        if tl.max(near.to(tl.int32)) > 0:
            lx, ly, lz = (cos * qx + sin * qy) / size, (cos * qy - sin * qx) / size, qz / size
            ex, ey, ez = (cos * wx + sin * wy) / size, (cos * wy - sin * wx) / size, wz / size + lx * 0.0
            gap, way = lx * 0.0, lx * 0.0
            if shape < 0.5:
                gap, way = _clear_cube(lx, ly, lz, ex, ey, ez)
            else:
                if shape < 1.5:
                    gap, way = _clear_sphere(lx, ly, lz, ex, ey, ez)
                else:
                    gap, way = _clear_cylinder(lx, ly, lz, ex, ey, ez)
            width = tl.sqrt(radius * way * radius * way + blur * blur) / size
            share = _clamp((gap / tl.maximum(width, 1e-4) + 1.0) / 2.0, 0.0, 1.0)
            seen = tl.where(near, seen * share * share * (3.0 - 2.0 * share), seen)
    return seen


@triton.jit
def _lamp(row, px, py, pz):
    """Way to the lamp, unit direction, distance and irradiance of a surface that faces it, for unit power."""
    lx, ly, lz, sun = tl.load(row), tl.load(row + 1), tl.load(row + 2), tl.load(row + 7)
    wx, wy, wz = lx - (1.0 - sun) * px, ly - (1.0 - sun) * py, lz - (1.0 - sun) * pz
    nearness = 1.0 / tl.sqrt(_dot(wx, wy, wz, wx, wy, wz))
    tx, ty, tz = wx * nearness, wy * nearness, wz * nearness
    facing = tl.maximum(_dot(tx, ty, tz, tl.load(row + 8), tl.load(row + 9), tl.load(row + 10)), 0.0)
    return wx, wy, wz, tx, ty, tz, nearness, tl.where(sun > 0.5, 1.0, facing * nearness * nearness)


# --- stage ----------------------------------------------------------------------------------------------------


@triton.jit
def _hit_stage(ox, oy, oz, dx, dy, dz):
    u, du = AXIS_X * ox + AXIS_Y * oy, AXIS_X * dx + AXIS_Y * dy
    falls = dz < -1e-6
    landing = _clamp(u - du * oz / tl.where(falls, dz, -1.0), -10.0, WALL)
    start = ((((S0 * landing + S1) * landing + S2) * landing + S3) * landing + S4) * landing + S5
    s = _clamp(tl.where(falls, start, 1.0), 0.0, 1.0)
    c0, c1, c2, c3 = U0 * dz - dz * u + du * oz, U1 * dz, U2 * dz, U3 * dz
    c4 = U4 * dz - du * CURVE_Z
    for _ in range(5):
        value = (((c4 * s + c3) * s + c2) * s + c1) * s + c0
        slope = ((4.0 * c4 * s + 3.0 * c3) * s + 2.0 * c2) * s + c1
        s = _clamp(s - value / tl.where(tl.abs(slope) > 1e-12, slope, 1e-12), 0.0, 1.05)
    u_hit = (((U4 * s + U3) * s + U2) * s + U1) * s + U0
    z_hit = CURVE_Z * s * s * s * s
    t = ((u_hit - u) * du + (z_hit - oz) * dz) / tl.maximum(du * du + dz * dz, 1e-12)
    off_u, off_z = u + du * t - u_hit, oz + dz * t - z_hit
    met = (t > 1e-4) & (u_hit > FRONT) & (s <= 1.0) & (off_u * off_u + off_z * off_z < 0.0004)
    return tl.where(met, t, INF), s


@triton.jit
def _stage_light(table, count, lamps, active, px, py, pz, s, blur, amb0, amb1, amb2, fade, shade, bleed, contact):
    """Radiance of the stage."""
    du = ((4.0 * U4 * s + 3.0 * U3) * s + 2.0 * U2) * s + U1
    dz = 4.0 * CURVE_Z * s * s * s
    scale = 1.0 / tl.sqrt(du * du + dz * dz)
    nx, ny, nz = -dz * AXIS_X * scale, -dz * AXIS_Y * scale, du * scale
    no_object = tl.zeros_like(active.to(tl.int32)) - 1
    r, g, b = px * 0.0, px * 0.0, px * 0.0
    for i in range(4):
        lamp = lamps + i * LAMP_
        wx, wy, wz, tx, ty, tz, _, strength = _lamp(lamp, px, py, pz)
        seen = _seen(table, count, no_object, active, px, py, pz, wx, wy, wz, tl.load(lamp + 3), blur)
        light = strength * tl.maximum(_dot(nx, ny, nz, tx, ty, tz), 0.0) * seen * _STAGE_SHARE
        r += light * tl.load(lamp + 4)
        g += light * tl.load(lamp + 5)
        b += light * tl.load(lamp + 6)
    low, high = tl.minimum(s, 0.5), tl.maximum(2.0 * s - 1.0, 0.0)
    ambient = ((amb2 * low + amb1) * low + amb0) * (1.0 - fade * high)
    taken = px * 0.0
    for n in range(count):
        row = table + n * OBJECT_
        qx, qy, size = px - tl.load(row), py - tl.load(row + 1), tl.load(row + 3)
        far = 1.0 + (qx * qx + qy * qy) / (contact * size * contact * size)
        close = tl.where(tl.load(row + 14) > 0, 1.0, 0.0) / (far * far)
        taken += close
        r += close * tl.load(row + 8) * tl.load(row + 11) * bleed
        g += close * tl.load(row + 9) * tl.load(row + 12) * bleed
        b += close * tl.load(row + 10) * tl.load(row + 13) * bleed
    ambient = ambient * tl.maximum(1.0 - shade * taken, 0.0)
    return r + ambient, g + ambient, b + ambient


# --- materials ------------------------------------------------------------------------------------------------


@triton.jit
def _fresnel(cosine, index):
    g = tl.sqrt(index * index - 1.0 + cosine * cosine)
    a = (g - cosine) / (g + cosine)
    b = (cosine * (g + cosine) - 1.0) / (cosine * (g - cosine) + 1.0)
    return 0.5 * a * a * (1.0 + b * b)


@triton.jit
def _smith(cosine, alpha):
    tangent = tl.maximum(1.0 - cosine * cosine, 0.0) / tl.maximum(cosine * cosine, 1e-6)
    return 2.0 / (1.0 + tl.sqrt(1.0 + alpha * alpha * tangent))


@triton.jit
def _lobe(height, along, aside, to_eye, to_light, spread, alpha):
    ax = alpha * STRETCH * alpha * STRETCH + spread * spread
    ay = alpha / STRETCH * alpha / STRETCH + spread * spread
    stretch = along * along / ax + aside / ay + height * height
    d = 1.0 / (_PI * tl.sqrt(ax * ay) * stretch * stretch)
    return d * _smith(to_eye, alpha) * _smith(to_light, alpha) / (4.0 * to_eye)


@triton.jit
def _beckmann(height, to_eye, to_light, across_half):
    h = tl.maximum(height, 1e-3)
    h2 = h * h
    d = tl.exp((h2 - 1.0) / (h2 * GLOSS * GLOSS)) / (_PI * GLOSS * GLOSS * h2 * h2)
    shadow = _clamp(2.0 * height * tl.minimum(to_eye, to_light) / tl.maximum(across_half, 1e-3), 0.0, 1.0)
    return d * shadow / (4.0 * to_eye)


@triton.jit
def _object_light(table, count, lamps, active, slot, metal, px, py, pz, nx, ny, nz, ex, ey, ez, gx, gy, gz, blur):
    """Irradiance (r, g, b) and the lamps' highlights (r, g, b) of points on objects."""
    cosine = _clamp(_dot(nx, ny, nz, ex, ey, ez), 1e-3, 1.0)
    gloss = 0.8 * _fresnel(cosine, 1.2)
    r, g, b = px * 0.0, px * 0.0, px * 0.0
    hr, hg, hb = px * 0.0, px * 0.0, px * 0.0
    for i in range(4):
        lamp = lamps + i * LAMP_
        wx, wy, wz, tx, ty, tz, nearness, strength = _lamp(lamp, px, py, pz)
        radius = tl.load(lamp + 3)
        facing = tl.maximum(_dot(nx, ny, nz, tx, ty, tz), 0.0)
        lit = active & (facing > 0)
        light = strength * _seen(table, count, slot, lit, px, py, pz, wx, wy, wz, radius, blur)
        light = tl.where(facing > 0, light, 0.0)
        hx, hy, hz = _unit(tx + ex, ty + ey, tz + ez)
        height, along = _dot(nx, ny, nz, hx, hy, hz), _dot(gx, gy, gz, hx, hy, hz)
        aside = tl.maximum(1.0 - height * height - along * along, 0.0)
        spread = radius * nearness / 2.0
        shiny = SHARE * _lobe(height, along, aside, cosine, facing, spread, ROUGH)
        shiny += (1.0 - SHARE) * _lobe(height, along, aside, cosine, facing, spread, SHARP)
        dull = gloss * _beckmann(height, cosine, facing, _dot(ex, ey, ez, hx, hy, hz))
        glare = light * tl.where(metal > 0.5, shiny, dull)
        light = light * facing
        r += light * tl.load(lamp + 4)
        g += light * tl.load(lamp + 5)
        b += light * tl.load(lamp + 6)
        hr += glare * tl.load(lamp + 4)
        hg += glare * tl.load(lamp + 5)
        hb += glare * tl.load(lamp + 6)
    return r, g, b, hr, hg, hb


@triton.jit
def _display(linear):
    linear = _clamp(linear, 0.0, 1.0)
    curved = 1.055 * tl.exp(tl.log(tl.maximum(linear, 1e-8)) / 2.4) - 0.055
    return tl.where(linear <= 0.0031308, 12.92 * linear, curved) * 2.0 - 1.0


# --- the image ----------------------------------------------------------------------------------------------


@triton.jit
def _trace_pixels(
    objects, lamp_table, cameras, lobes, out, count, width, height, aspect, blur, samples, bounces,
    amb0, amb1, amb2, fade, floor_bounce, sky, shade, bleed, contact, metal_glow, sheen,
    tile_w: tl.constexpr, tile_h: tl.constexpr,
):  # fmt: skip
    scene = tl.program_id(0).to(tl.int64)
    tiles = (width + tile_w - 1) // tile_w
    thread = tl.arange(0, tile_w * tile_h)
    column = (tl.program_id(1) % tiles) * tile_w + thread % tile_w
    row = (tl.program_id(1) // tiles) * tile_h + thread // tile_w
    inside = (column < width) & (row < height)
    table, lamps, cam = (objects + scene * count * OBJECT_, lamp_table + scene * 4 * LAMP_, cameras + scene * CAMERA_)
    cx, cy, cz = tl.load(cam), tl.load(cam + 1), tl.load(cam + 2)
    rx, ry, rz = tl.load(cam + 3), tl.load(cam + 4), tl.load(cam + 5)
    ux, uy, uz = tl.load(cam + 6), tl.load(cam + 7), tl.load(cam + 8)
    bx, by, bz = tl.load(cam + 9), tl.load(cam + 10), tl.load(cam + 11)
    zero = thread * 0.0
    red, green, blue = zero, zero, zero
    covered, off_x, off_y = zero, zero, zero

    for j in range(samples * samples):
        jx = (j % samples + 0.5) / samples - 0.5
        jy = (j // samples + 0.5) / samples - 0.5
        vx = ((column + 0.5 + jx) / width - 0.5) / _FOCAL_
        vy = (0.5 - (row + 0.5 + jy) / height) / (_FOCAL_ * aspect)
        dx, dy, dz = vx * rx + vy * ux - bx, vx * ry + vy * uy - by, vx * rz + vy * uz - bz
        ox, oy, oz = zero + cx, zero + cy, zero + cz
        slot = tl.zeros_like(thread) - 1
        t, slot, nx, ny, nz = _first(table, count, slot, inside, ox, oy, oz, dx, dy, dz)
        hit = inside & (slot >= 0)
        covered += tl.where(hit, 1.0, 0.0)
        off_x -= tl.where(hit, jx, 0.0)
        off_y -= tl.where(hit, jy, 0.0)
        dx, dy, dz, t = dx + zero, dy + zero, dz + zero, tl.where(hit, t, 0.0)
        px, py, pz = ox + t * dx, oy + t * dy, oz + t * dz
        dx, dy, dz = _unit(dx, dy, dz)
        kr, kg, kb = tl.where(hit, 1.0, 0.0), tl.where(hit, 1.0, 0.0), tl.where(hit, 1.0, 0.0)
        tilt_x, tilt_y, part = tl.load(lobes + 3 * j), tl.load(lobes + 3 * j + 1), tl.load(lobes + 3 * j + 2)
        alive = hit
        for bounce in range(bounces + 1):
            if tl.max(alive.to(tl.int32)) > 0:
                own = table + tl.maximum(slot, 0) * OBJECT_
                metal = tl.load(own + 7)
                cr, cg, cb = tl.load(own + 8), tl.load(own + 9), tl.load(own + 10)
                ar, ag, ab = tl.load(own + 11), tl.load(own + 12), tl.load(own + 13)
                gx, gy = tl.load(own + 1) - py, px - tl.load(own)  # the grain runs around the vertical axis
                along = gx * nx + gy * ny
                gx, gy, gz = _unit(gx - nx * along, gy - ny * along, -nz * along)
                mr, mg, mb, hr, hg, hb = _object_light(
                    table, count, lamps, alive, slot, metal, px, py, pz, nx, ny, nz, -dx, -dy, -dz, gx, gy, gz, blur
                )  # fmt: skip
                cosine = _clamp(-_dot(nx, ny, nz, dx, dy, dz), 1e-3, 1.0)
                gloss = 0.8 * _fresnel(cosine, 1.2)
                film = sheen * _fresnel(cosine, 1.4)
                below, above = (1.0 - nz) / 2.0, (1.0 + nz) / 2.0
                lr = (1.0 - gloss) * cr * (mr / _PI + floor_bounce * ar * below + sky * above)
                lg = (1.0 - gloss) * cg * (mg / _PI + floor_bounce * ag * below + sky * above)
                lb = (1.0 - gloss) * cb * (mb / _PI + floor_bounce * ab * below + sky * above)
                lr += hr + film * (ar * below + sky)
                lg += hg + film * (ag * below + sky)
                lb += hb + film * (ab * below + sky)
                last = tl.where(bounce == bounces, metal_glow, 0.0)
                lr = tl.where(metal > 0.5, cr * (hr + last * ar), lr)
                lg = tl.where(metal > 0.5, cg * (hg + last * ag), lg)
                lb = tl.where(metal > 0.5, cb * (hb + last * ab), lb)
                red += tl.where(alive, kr * lr, 0.0)
                green += tl.where(alive, kg * lg, 0.0)
                blue += tl.where(alive, kb * lb, 0.0)
                alive = alive & (tl.where(bounce < bounces, metal, 0.0) > 0.5)
                if tl.max(alive.to(tl.int32)) > 0:
                    ax, ay, az = ny * gz - nz * gy, nz * gx - nx * gz, nx * gy - ny * gx
                    fx, fy, fz = _unit(
                        nx + gx * tilt_x + ax * tilt_y, ny + gy * tilt_x + ay * tilt_y, nz + gz * tilt_x + az * tilt_y
                    )
                    turn = 2.0 * _dot(dx, dy, dz, fx, fy, fz)
                    dx, dy, dz = dx - turn * fx, dy - turn * fy, dz - turn * fz
                    up = _dot(dx, dy, dz, nx, ny, nz)
                    into = 2.0 * tl.maximum(-up, 0.0)
                    dx, dy, dz = dx + into * nx, dy + into * ny, dz + into * nz
                    rough = tl.abs(tilt_x) + tl.abs(tilt_y) > 0
                    weight = part * tl.where(rough, _smith(tl.maximum(tl.abs(up), 1e-3), ROUGH), 1.0)
                    kr, kg, kb = kr * cr * weight, kg * cg * weight, kb * cb * weight
                    t, next_slot, nx, ny, nz = _first(table, count, slot, alive, px, py, pz, dx, dy, dz)
                    ground, s = _hit_stage(px, py, pz, dx, dy, dz)
                    floor = alive & (next_slot < 0) & (ground < INF)
                    if tl.max(floor.to(tl.int32)) > 0:
                        far = tl.where(floor, ground, 0.0)
                        sr, sg, sb = _stage_light(
                            table, count, lamps, floor, px + far * dx, py + far * dy, pz + far * dz, s, blur,
                            amb0, amb1, amb2, fade, shade, bleed, contact,
                        )  # fmt: skip
                        red += tl.where(floor, kr * sr, 0.0)
                        green += tl.where(floor, kg * sg, 0.0)
                        blue += tl.where(floor, kb * sb, 0.0)
                    alive = alive & (next_slot >= 0)
                    t = tl.where(alive, t, 0.0)
                    px, py, pz = px + t * dx, py + t * dy, pz + t * dz
                    slot = tl.where(alive, next_slot, slot)

    total = samples * samples * 1.0
    left = tl.maximum(total - covered, 1.0)
    vx = ((column + 0.5 + off_x / left) / width - 0.5) / _FOCAL_
    vy = (0.5 - (row + 0.5 + off_y / left) / height) / (_FOCAL_ * aspect)
    dx, dy, dz = vx * rx + vy * ux - bx, vx * ry + vy * uy - by, vx * rz + vy * uz - bz
    ox, oy, oz = zero + cx, zero + cy, zero + cz
    far, s = _hit_stage(ox, oy, oz, dx, dy, dz)
    open_ = inside & (covered < total) & (far < INF)
    far = tl.where(open_, far, 0.0)
    sr, sg, sb = _stage_light(
        table, count, lamps, open_, ox + far * dx, oy + far * dy, oz + far * dz, s, blur,
        amb0, amb1, amb2, fade, shade, bleed, contact,
    )  # fmt: skip
    share = tl.where(open_, 1.0 - covered / total, 0.0)
    spot = out + scene * 3 * width * height + row * width + column
    tl.store(spot, _display(red / total + share * sr), mask=inside)
    tl.store(spot + width * height, _display(green / total + share * sg), mask=inside)
    tl.store(spot + 2 * width * height, _display(blue / total + share * sb), mask=inside)


def trace_pixels(scenes: SceneBatch, width: int, height: int, aspect: float, blur: float, samples: int, bounces: int,
                 look: RenderConstants) -> Tensor:  # fmt: skip
    """Images (B, 3, H, W) in [-1, 1], drawn by the kernel."""
    objects, lamps, cameras = _tables(scenes)
    lobes = torch.tensor(lobe_table(samples**2), dtype=torch.float32, device=scenes.device)
    out = torch.empty(len(scenes), 3, height, width, device=scenes.device)
    grid = (len(scenes), triton.cdiv(width, TILE_W) * triton.cdiv(height, TILE_H))
    _trace_pixels[grid](
        objects, lamps, cameras, lobes, out, objects.shape[1], width, height, aspect, blur, samples, bounces,
        *look.stage_ambient, look.wall_fade, look.floor_bounce, look.sky, look.shade, look.bleed, look.contact,
        look.metal_glow, look.sheen, tile_w=TILE_W, tile_h=TILE_H,
    )  # fmt: skip
    return out


def _tables(scenes: SceneBatch) -> tuple[Tensor, Tensor, Tensor]:
    """Objects (B, N, 16), lamps (B, 4, 12) and cameras (B, 12) as rows of numbers."""
    world = World.of(scenes)
    around = around_objects(world)
    columns = [
        *(world.center.x, world.center.y, world.center.z, world.size, world.cos, world.sin),
        *(world.shape, world.metal, world.color.x, world.color.y, world.color.z),
        *(around.x, around.y, around.z, world.bound, torch.zeros_like(world.size)),
    ]
    objects = torch.stack([column.float() for column in columns], dim=-1).transpose(0, 1).contiguous()
    rows = []
    for lamp in world.lamps:
        plain = scenes.camera.new_tensor([lamp.radius, *lamp.power, float(lamp.sun)]).expand(len(scenes), 5)
        rows.append(torch.cat([lamp.position.stacked(), plain, lamp.position.unit().stacked(), plain[:, :1]], dim=1))
    lamps = torch.stack(rows, dim=1).contiguous()
    cameras = torch.cat([scenes.camera, *camera_axes(scenes.camera)], dim=1).contiguous()
    return objects, lamps, cameras
