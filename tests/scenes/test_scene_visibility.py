"""The visible-pixel rule: real counts, the renderer's masks, and cases with a known answer."""

import json
import math
from typing import NamedTuple

import pytest
import torch

from tessera.scenes import Scene, SceneBatch, SceneObject, Scenes, read_scenes
from tessera.scenes.camera import BEHIND
from tessera.scenes.visibility import ENOUGH, _count_pixels, all_visible, enough_by_rays, mask_pixels, view


class Disagreement(NamedTuple):
    """How `fast` compares with `exact`, over all objects of some scenes."""

    objects: int
    verdicts: int  # objects that only one of the two finds visible
    scenes: int  # scenes that only one of the two accepts
    mean: float  # pixels, fast less exact
    rms: float
    largest: float


def ray_pixels(scenes):
    """Visible pixels of each object, counted ray by ray, (B, N)."""
    scene, obj = scenes.present.nonzero().unbind(1)
    counts = torch.zeros_like(scenes.shape)
    counts[scene, obj] = _count_pixels(view(scenes), scene, obj)
    return counts


def disagreement(scenes: SceneBatch) -> Disagreement:
    """Measure `fast` against `exact`: what each decides, and what their rays count."""
    exact, here = mask_pixels(scenes), scenes.present
    error = (ray_pixels(scenes) - exact)[here].double()
    differs = (enough_by_rays(scenes) != (exact >= ENOUGH)) & here
    accepts = all_visible(scenes, "fast") != ((exact >= ENOUGH) | ~here).all(-1)
    rms, largest = error.square().mean().sqrt(), error.abs().max()
    counts = (int(here.sum()), int(differs.sum()), int(accepts.sum()))
    return Disagreement(*counts, float(error.mean()), float(rms), float(largest))


def batch(*objects: SceneObject) -> SceneBatch:
    return SceneBatch.stack([Scene(objects)])


def ball(distance: float, size: float = 0.7) -> SceneObject:
    """A sphere so far behind the middle of the stage."""
    return SceneObject("sphere", "red", "rubber", size, (BEHIND[0] * distance, BEHIND[1] * distance))


def test_ray_counts_agree_with_the_generators_own(clevr_reference):
    file = clevr_reference / "scenes.json"
    records = json.loads(file.read_text())["scenes"]
    scenes = SceneBatch.stack(read_scenes(file))
    counted = ray_pixels(scenes)
    pairs = [
        (int(counted[row, k]), pixels)
        for row, record in enumerate(records)
        for k, pixels in enumerate(record.get("visible_pixels", []))
    ]
    error = torch.tensor(pairs, dtype=torch.float64).diff(dim=1)
    assert len(pairs) >= 285
    assert error.abs().max() <= 10 and error.square().mean().sqrt() < 1.5 and error.mean().abs() < 0.5
    assert all((ours >= ENOUGH) == (theirs >= ENOUGH) for ours, theirs in pairs)


def test_a_lone_ball_covers_its_perspective_ellipse():
    obj = ball(0.0)
    camera = torch.tensor(Scene().camera, dtype=torch.float64)
    away = camera - torch.tensor(obj.center, dtype=torch.float64)
    depth, distance, radius = float(away @ camera / camera.norm()), float(away.norm()), 0.9991 * 0.7
    flat = depth**2 - radius**2
    area = math.pi * (350 * radius) ** 2 / flat * math.sqrt((distance**2 - radius**2) / flat)
    assert int(ray_pixels(batch(obj))) == pytest.approx(area, rel=0.01)


@pytest.mark.parametrize("shape", ["cube", "cylinder"])
def test_rounded_shapes_lie_between_the_ball_inside_and_the_box_around(shape):
    inner = int(ray_pixels(batch(ball(0.0))))
    full = int(ray_pixels(batch(SceneObject(shape, "red", "rubber", 0.7, (0.0, 0.0), 0.3))))
    assert inner * 1.1 < full < inner * 2.1


def test_a_ball_behind_a_bigger_one_is_hidden():
    hidden = batch(ball(-1.0), ball(1.2, size=0.35))
    assert ray_pixels(hidden)[0, 1] < ENOUGH
    assert not all_visible(hidden, "fast")
    assert all_visible(hidden, "off")
    assert all_visible(batch(ball(-1.0), ball(2.9, size=0.7)), "fast")


def test_hiding_is_of_the_far_object_and_costs_only_that_one():
    alone = ray_pixels(batch(ball(-1.0)))[0, 0]
    both = ray_pixels(batch(ball(1.2, size=0.35), ball(-1.0)))[0]
    assert both[1] == alone and both[0] < alone


def test_the_quick_decision_is_that_of_the_count():
    scenes = Scenes(objects=(2, 9), visibility="off").draw(400, seed=3)
    assert torch.equal(enough_by_rays(scenes), (ray_pixels(scenes) >= ENOUGH) & scenes.present)


def test_drawn_scenes_hide_nothing():
    scenes = Scenes(objects=(1, 8)).draw(200, seed=9)
    assert (ray_pixels(scenes)[scenes.present] >= ENOUGH).all()


def test_fast_and_exact_agree_on_a_few_scenes():
    found = disagreement(Scenes(objects=(1, 8), visibility="off").draw(24, seed=5))
    assert found.objects > 80
    assert found.verdicts <= 1 and found.rms < 40


def test_exact_scenes_show_every_object_in_the_rendered_mask():
    from tessera.render.render import render

    scenes = Scenes(objects=(2, 5), visibility="exact").draw(4, seed=1)
    mask = render(scenes, size=(320, 240), layers=("mask",))["mask"]
    for row in range(4):
        shown = torch.bincount(mask[row].flatten(), minlength=6)
        assert (shown[1 : 1 + int(scenes.count[row])] >= ENOUGH).all()


@pytest.mark.slow
def test_fast_and_exact_agree_on_two_thousand_scenes():
    found = disagreement(Scenes(objects=(1, 10), visibility="off").draw(2000, seed=6))
    assert found.objects > 10_000
    assert found.verdicts / found.objects < 0.002
    assert found.scenes / 2000 < 0.01
