"""The camera: real projections, and there and back again."""

import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tessera.scenes import SceneBatch, read_scenes
from tessera.scenes.camera import BEHIND, CAMERA, RIGHT, camera_axes, ground_point, project


def test_projected_centers_are_the_generators(clevr_reference):
    file = clevr_reference / "scenes.json"
    scenes = SceneBatch.stack(read_scenes(file))
    locations, depth = project(scenes.center.double(), scenes.camera.double())
    compared = 0
    for row, record in enumerate(json.loads(file.read_text())["scenes"]):
        for k, obj in enumerate(record["objects"]):
            if "pixel_coords_exact" in obj:
                x, y, far = obj["pixel_coords_exact"]
                assert float(locations[row, k, 0]) * 320 == pytest.approx(x, abs=0.01)
                assert float(locations[row, k, 1]) * 240 == pytest.approx(y, abs=0.01)
                assert float(depth[row, k]) == pytest.approx(far, abs=1e-4)
                compared += 1
    assert compared >= 285


def test_the_ground_directions_are_those_of_the_resting_camera():
    right, _, backward = camera_axes(torch.tensor([CAMERA], dtype=torch.float64))
    assert right[0].tolist() == pytest.approx([*RIGHT, 0], abs=1e-6)
    behind = -backward[0, :2] / backward[0, :2].norm()
    assert behind.tolist() == pytest.approx(list(BEHIND), abs=1e-6)


@given(st.floats(0.02, 0.98), st.floats(0.05, 0.98), st.floats(0, 1), st.floats(0.8, 1.6))
def test_a_ground_point_projects_back_to_its_location(x, y, height, aspect):
    location = torch.tensor([[[x, y]]], dtype=torch.float64)
    camera = torch.tensor([CAMERA], dtype=torch.float64)
    point = ground_point(location, camera, height, aspect)
    again, depth = project(torch.cat([point, torch.full((1, 1, 1), height)], -1), camera, aspect)
    assert depth > 0
    assert torch.allclose(again, location, atol=1e-9)


def test_nothing_on_the_floor_is_above_the_horizon():
    low = torch.tensor([[8.0, 0.0, 0.5]])  # looks almost level, so the horizon is inside the image
    points = ground_point(torch.tensor([[[0.5, 0.1], [0.5, 0.9]]]), low, 0.0)
    assert points[0, 0].isnan().all() and points[0, 1].isfinite().all()
