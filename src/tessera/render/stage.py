"""The CLEVR stage: a floor that sweeps up into a wall, the same along one axis.

Its profile is a quartic curve (u(s), z(s)), s in [0, 1]; a ray meets it where a quartic in s vanishes.
"""

import torch
from torch import Tensor

from tessera.scenes.vectors import Vec

AXIS = (-0.9032076597, 0.4292037785)  # u = AXIS . (x, y): from the camera side toward the wall
CURVE_U = (-9.564176511, 92.547519541, -126.973652146, 79.463936024, -17.381948693)  # powers 0..4 of s
CURVE_Z = 23.2151347  # times s^4
FRONT, WALL = -9.4865, 18.0858  # where the stage ends; beyond its front edge all is black
ALBEDO = 0.8
# s as a polynomial of u (powers 5..0), good to 0.02: where to start Newton's method
START = (5.914282e-07, -5.140402e-06, -4.865407e-05, 8.718971e-04, 1.691472e-02, 1.173297e-01)


def across(point: Vec) -> Tensor:
    """The coordinate u of a point: how far it lies toward the wall."""
    return AXIS[0] * point.x + AXIS[1] * point.y


def _start(u: Tensor) -> Tensor:
    s = torch.full_like(u, START[0])
    for coefficient in START[1:]:
        s = s * u + coefficient
    return s


def hit_stage(origin: Vec, direction: Vec, steps: int = 5) -> tuple[Tensor, Tensor]:
    """Distance along each ray to the stage (inf where it is missed) and the curve parameter s there."""
    u, du = across(origin), across(direction)
    z, dz = origin.z, direction.z
    falls = dz < -1e-6
    landing = u - du * z / torch.where(falls, dz, -1.0)  # where the ray would meet a flat floor
    s = torch.where(falls, _start(landing.clamp(-10.0, WALL)), 1.0).clamp(0.0, 1.0)
    c0, c1, c2, c3, c4 = (k * dz for k in CURVE_U)  # the ray meets the curve where dz (u(s)-u) = du (z(s)-z)
    c0 = c0 - dz * u + du * z
    c4 = c4 - du * CURVE_Z
    for _ in range(steps):
        value = (((c4 * s + c3) * s + c2) * s + c1) * s + c0
        slope = ((4 * c4 * s + 3 * c3) * s + 2 * c2) * s + c1
        s = (s - value / torch.where(slope.abs() > 1e-12, slope, 1e-12)).clamp(0.0, 1.05)
    u_hit = (((CURVE_U[4] * s + CURVE_U[3]) * s + CURVE_U[2]) * s + CURVE_U[1]) * s + CURVE_U[0]
    z_hit = CURVE_Z * s**4
    distance = ((u_hit - u) * du + (z_hit - z) * dz) / (du * du + dz * dz).clamp_min(1e-12)
    off = torch.hypot(u + du * distance - u_hit, z + dz * distance - z_hit)  # not converged: no crossing
    met = (distance > 1e-4) & (u_hit > FRONT) & (s <= 1.0) & (off < 0.02)
    return torch.where(met, distance, torch.inf), s


def stage_normal(s: Tensor) -> Vec:
    """Unit normal of the stage, pointing to the camera side, at curve parameter s."""
    du = ((4 * CURVE_U[4] * s + 3 * CURVE_U[3]) * s + 2 * CURVE_U[2]) * s + CURVE_U[1]
    dz = 4 * CURVE_Z * s**3
    length = torch.rsqrt(du * du + dz * dz)
    return Vec(-dz * AXIS[0] * length, -dz * AXIS[1] * length, du * length)
