"""Projection: world points to locations in the image, and back.

World lengths are Blender units, z up. Locations are (x, y) in [0, 1] from the top left of the frame.
"""

import torch
from torch import Tensor

from tessera.scenes.vectors import Vec

CAMERA = (7.481132, -6.507640, 5.343665)  # always looks at the world origin
FOCAL = 35 / 32  # focal length over frame width
ASPECT = 4 / 3  # frame width over height
RIGHT = (0.656311274, 0.754490256)  # ground directions of the camera without jitter, for the margin rule
BEHIND = (-0.754490316, 0.656311274)


def camera_axes(camera: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Right, up and backward unit vectors (..., 3) of a camera at (..., 3) that looks at the origin."""
    backward = camera / camera.norm(dim=-1, keepdim=True)
    right = torch.stack([-backward[..., 1], backward[..., 0], torch.zeros_like(backward[..., 0])], dim=-1)
    right = right / right.norm(dim=-1, keepdim=True)
    return right, torch.linalg.cross(backward, right), backward


def exact_camera_axes(camera: Vec) -> tuple[Vec, Vec, Vec]:
    """`camera_axes` of exactly rounded operations only: the same to the last bit on every device and in every batch.

    What decides whether a scene is dropped needs that; images keep the rounding they have always had.
    """
    ground = (camera.x * camera.x + camera.y * camera.y).sqrt()
    length = (camera.x * camera.x + camera.y * camera.y + camera.z * camera.z).sqrt()
    right = Vec(-camera.y / ground, camera.x / ground, torch.zeros_like(camera.x))
    backward = camera.map(lambda part: part / length)
    return right, Vec(-backward.z * right.y, backward.z * right.x, ground / length), backward


def project(points: Tensor, camera: Tensor, aspect: float = ASPECT) -> tuple[Tensor, Tensor]:
    """World points (B, N, 3) seen by cameras (B, 3): locations (B, N, 2) and view-axis depth (B, N)."""
    right, up, backward = camera_axes(camera)
    offset = points - camera[:, None]  # (B, N, 3)
    depth = -(offset * backward[:, None]).sum(-1)
    x = 0.5 + FOCAL * (offset * right[:, None]).sum(-1) / depth
    y = 0.5 - FOCAL * aspect * (offset * up[:, None]).sum(-1) / depth
    return torch.stack([x, y], dim=-1), depth


def ground_point(locations: Tensor, camera: Tensor, height: Tensor | float, aspect: float = ASPECT) -> Tensor:
    """Inverse of `project` for objects whose center is `height` above the floor: world (x, y), (B, N, 2).

    A location at or above the horizon has no such point and comes back as NaN.
    """
    right, up, backward = camera_axes(camera)
    x = (locations[..., 0:1] - 0.5) / FOCAL
    y = (0.5 - locations[..., 1:2]) / (FOCAL * aspect)
    direction = x * right[:, None] + y * up[:, None] - backward[:, None]  # (B, N, 3)
    direction = direction / direction.norm(dim=-1, keepdim=True)
    drop = torch.as_tensor(height, dtype=direction.dtype, device=direction.device) - camera[:, None, 2]
    distance = drop / direction[..., 2]  # (B, N)
    point = camera[:, None, :2] + distance[..., None] * direction[..., :2]
    return torch.where(distance[..., None] > 0, point, torch.nan)
