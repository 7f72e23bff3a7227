"""The ray tracer: closed forms, brute force, invariances, and agreement with Blender."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tessera.errors import UserError
from tessera.render.render import render, to_display
from tessera.render.shading import ROUGH_SHARE, fresnel, lobe_table
from tessera.render.stage import CURVE_Z, across, hit_stage, stage_normal
from tessera.render.world import Points, World
from tessera.scenes import geometry
from tessera.scenes.batch import SceneBatch
from tessera.scenes.camera import project
from tessera.scenes.sampling import Scenes
from tessera.scenes.scene import Scene, SceneObject
from tessera.scenes.vectors import Vec


def vec(*points) -> Vec:
    return Vec.of(torch.tensor(points, dtype=torch.float32))


def one(shape="sphere", material="rubber", size=0.7, xy=(0.0, 0.0), color="red", rotation=0.3) -> Scene:
    return Scene((SceneObject(shape, color, material, size, xy, rotation),))


# --- shapes ---------------------------------------------------------------------------------------------------


def solid(name: str):
    """Is a point of the shape's own frame inside it? Written independently of the intersection code."""

    def inside(p: np.ndarray) -> np.ndarray:
        x, y, z = np.abs(p).T
        if name == "sphere":
            return x**2 + y**2 + z**2 <= 0.9991**2
        if name == "cube":
            return sum(np.clip((c - 0.75) / 0.25, 0, None) ** 3 for c in (x, y, z)) <= 1
        side, top = (np.hypot(x, y) - 0.911) / 0.089, (z - 0.901) / 0.099
        return np.clip(side, 0, None) ** 4 + np.clip(top, 0, None) ** 4 <= 1

    return inside


@pytest.mark.parametrize("name", geometry.HIT)
def test_rays_meet_a_shape_where_marching_finds_it(name):
    rng = np.random.default_rng(0)
    origin = rng.normal(size=(400, 3))
    origin *= 3 / np.linalg.norm(origin, axis=1, keepdims=True)
    direction = rng.uniform(-1.2, 1.2, size=(400, 3)) - origin
    steps = np.linspace(0, 1.6, 8001)
    inside = solid(name)((origin[:, None] + steps[None, :, None] * direction[:, None]).reshape(-1, 3)).reshape(400, -1)
    marched = np.where(inside.any(1), steps[inside.argmax(1)], np.inf)
    found, normal = geometry.HIT[name](Vec.of(torch.tensor(origin)), Vec.of(torch.tensor(direction)))
    grazing = inside.sum(1) < 40  # rays through a sliver may be decided either way
    agree = np.isclose(found.numpy(), marched, atol=1e-3) | (np.isinf(found.numpy()) & np.isinf(marched))
    assert (agree | grazing).all()
    assert agree.mean() > 0.98
    met = np.isfinite(found.numpy())
    assert ((normal.stacked().numpy() * direction).sum(1)[met] < 0).all()  # normals face the ray


@pytest.mark.parametrize("name", geometry.CLEAR)
def test_clearance_is_negative_exactly_for_rays_that_go_through(name):
    rng = np.random.default_rng(1)
    start = np.c_[rng.uniform(-3, 3, (600, 2)), np.full(600, -1.0)]
    way = np.c_[rng.uniform(-4, 4, (600, 2)), rng.uniform(3, 8, 600)]
    steps = np.linspace(0, 1, 2001)
    marched = solid(name)((start[:, None] + steps[None, :, None] * way[:, None]).reshape(-1, 3)).reshape(600, -1).any(1)
    gap, _ = geometry.CLEAR[name](Vec.of(torch.tensor(start)), Vec.of(torch.tensor(way)))
    close = np.abs(gap.numpy()) < 0.1  # in shadows a slightly smaller, sharp solid stands for the rounded one
    assert ((gap.numpy() < 0) == marched)[~close].all()
    assert close.mean() < 0.25


# --- stage and light ------------------------------------------------------------------------------------------


def test_the_stage_is_where_its_height_table_says():
    table = {0.0: 0.0055, 4.0: 0.032, 8.0: 0.143, 10.0: 0.299, 12.0: 0.654, 14.0: 1.596, 15.0: 2.732, 16.0: 5.248}
    axis = torch.tensor([-0.9032076597, 0.4292037785])
    for u, height in table.items():
        above = Vec.of(torch.cat([axis * u, torch.tensor([40.0])])[None])
        distance, s = hit_stage(above, vec((0.0, 0.0, -1.0)), steps=12)
        assert 40 - distance.item() == pytest.approx(height, abs=0.01 + 0.01 * height)
        assert CURVE_Z * s.item() ** 4 == pytest.approx(height, abs=0.01 + 0.01 * height)


def test_a_ray_that_leaves_the_stage_meets_nothing():
    away = vec((0.0, 0.0, 1.0), (0.9, -0.43, 0.2), (0.9032, -0.4292, -0.05))
    distance, _ = hit_stage(vec((0.0, 0.0, 1.0), (0.0, 0.0, 1.0), (0.0, 0.0, 1.0)), away)
    assert distance.isinf().all()


def test_stage_hits_lie_on_the_ray_and_on_the_curve():
    torch.manual_seed(0)
    origin = Vec.of(torch.randn(500, 3) * torch.tensor([2.0, 2.0, 0.3]) + torch.tensor([0.0, 0.0, 2.0]))
    direction = Vec.of(torch.randn(500, 3)).unit()
    distance, s = hit_stage(origin, direction, steps=12)
    met = distance.isfinite()
    point = origin.along(direction, distance)
    assert met.sum() > 200
    assert (point.z - CURVE_Z * s**4)[met].abs().max() < 0.02
    normal = stage_normal(s)
    assert (normal.squared()[met] - 1).abs().max() < 1e-4
    assert (direction.dot(normal)[met] < 1e-3).all()
    assert across(point)[met].max() < 18.2


@pytest.mark.parametrize("name", ["cube", "sphere", "cylinder"])
def test_soft_shadows_match_a_lamp_sampled_point_by_point(name):
    """The analytic penumbra against the share of 1,024 points on the square lamp that the floor can see."""
    world = World.of(SceneBatch.stack([one(name)]))
    lamp = world.lamps[2]  # the back lamp: the largest
    grid = torch.linspace(-2.0, 2.0, 41)
    x, y = torch.meshgrid(grid, grid, indexing="ij")
    floor = Vec(x.flatten()[None], y.flatten()[None], torch.full((1, 1681), 1e-3))
    seen = world.visibility(lamp, Points(floor))[0]
    position = lamp.position.stacked()[0]
    across_lamp = torch.linalg.cross(torch.tensor([0.0, 0.0, 1.0]), position)
    across_lamp = across_lamp / across_lamp.norm()
    up = torch.linalg.cross(position / position.norm(), across_lamp)
    steps = (torch.arange(32) + 0.5) / 32 - 0.5
    spots = (position + steps[:, None, None] * across_lamp + steps[None, :, None] * up).reshape(-1, 3)
    total = torch.zeros(1681)
    nothing = torch.zeros(1681, dtype=torch.long)
    start = floor.map(lambda c: c[0])
    for spot in spots[::4]:
        way = Vec.of(spot.expand(1681, 3)) - start
        distance, _ = world.meet(nothing, start, way)
        total += distance.isinf()
    outside = torch.hypot(start.x, start.y) > 1.0  # not under the object itself
    seen, share = seen[outside], (total / len(spots[::4]))[outside]
    assert (seen - share).abs().mean() < 0.02
    assert (seen - share).abs().quantile(0.99) < 0.35
    assert share.min() == 0 and share.max() == 1


def test_fresnel_has_its_textbook_values():
    cosine = torch.tensor([1.0, math.cos(math.radians(60))])
    assert fresnel(cosine, 1.4).tolist() == pytest.approx([0.0278, 0.0724], abs=2e-3)
    assert fresnel(cosine, 1.2).tolist() == pytest.approx([0.00826, 0.0333], abs=2e-3)


@pytest.mark.parametrize("samples", [1, 4, 9, 16])
def test_the_two_lobes_of_metal_share_the_samples_as_they_should(samples):
    table = lobe_table(samples)
    rough = sum(weight for along, across, weight in table if along or across)
    assert sum(weight for _, _, weight in table) == pytest.approx(samples)
    assert rough / samples == pytest.approx(0 if samples == 1 else ROUGH_SHARE)


def test_display_values_are_srgb():
    assert to_display(torch.tensor([0.0, 0.0021, 0.2140, 1.0, 7.0])).tolist() == pytest.approx(
        [0.0, 0.0271, 0.5, 1.0, 1.0], abs=1e-3
    )


# --- images -------------------------------------------------------------------------------------------------


def test_a_scene_looks_the_same_alone_and_in_a_batch():
    batch = Scenes(objects=(0, 4)).draw(6, seed=3)
    together = render(batch, 32, layers=("rgb", "mask", "depth"))
    for i in range(6):
        alone = render(batch[i : i + 1], 32, layers=("rgb", "mask", "depth"))
        for layer in together:
            torch.testing.assert_close(together[layer][i : i + 1], alone[layer], atol=1e-5, rtol=1e-5)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="the kernel needs a CUDA device")
@pytest.mark.parametrize("quality", ["true", "fast"])
def test_the_gpu_kernel_draws_what_pytorch_draws(quality):
    batch = Scenes(objects=(0, 6)).draw(24, seed=11)
    layers = ("rgb", "mask", "depth")
    plain = render(batch, 64, layers=layers, quality=quality)
    kernel = {name: layer.cpu() for name, layer in render(batch.to("cuda"), 64, layers, quality).items()}
    off = (plain["rgb"] - kernel["rgb"]).abs()
    assert off.mean() < 1e-3 and (off > 0.02).float().mean() < 0.005  # rays that graze an edge may go either way
    assert (plain["mask"] != kernel["mask"]).float().mean() < 1e-3
    assert (plain["depth"] - kernel["depth"]).abs().median() < 1e-4


def test_plain_scenes_and_batches_draw_the_same():
    batch = Scenes(objects=(1, 3)).draw(3, seed=5)
    torch.testing.assert_close(render(batch.unstack(), 32)["rgb"], render(batch, 32)["rgb"], atol=1e-4, rtol=1e-4)


def test_an_empty_scene_is_the_bare_stage():
    drawn = render([Scene()], 64, layers=("rgb", "mask", "depth"))
    assert (drawn["mask"] == 0).all()
    assert drawn["rgb"].isfinite().all() and drawn["depth"].isfinite().all()
    gray = (drawn["rgb"][0] + 1) * 127.5
    # patches of the bare stage in the real renders (8-bit sRGB, rows and columns as shares of the frame)
    for row, column, value in ((0.5, 0.5, 135), (0.83, 0.5, 144), (0.17, 0.25, 106), (0.96, 0.97, 149)):
        assert gray[1, int(row * 64), int(column * 64)].item() == pytest.approx(value, abs=3)


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10**6), quality=st.sampled_from(["true", "fast"]))
def test_masks_depth_and_colors_conditioner_one_story(seed, quality):
    batch = Scenes(objects=(1, 5)).draw(1, seed=seed)
    frame = render(batch, 48, layers=("rgb", "mask", "depth"), quality=quality)
    empty = render([Scene(camera=tuple(batch.camera[0].tolist()))], 48, layers=("depth",))
    mask, depth, rgb = frame["mask"][0], frame["depth"][0], frame["rgb"][0]
    count = int(batch.count[0])
    assert set(mask.unique().tolist()) <= set(range(count + 1))
    assert rgb.min() >= -1 and rgb.max() <= 1 and rgb.isfinite().all()
    on_floor = mask == 0
    torch.testing.assert_close(depth[on_floor], empty["depth"][0][on_floor], atol=1e-3, rtol=1e-3)
    assert (depth[~on_floor] < empty["depth"][0][~on_floor] + 0.05).all()
    center_depth = project(batch.center, batch.camera)[1]
    for k in range(count):
        here = mask == k + 1
        reach = float(batch.size[0, k]) * 1.75
        assert (depth[here] - center_depth[0, k]).abs().max() < reach if here.any() else True
    for k in range(1, count + 1):  # what a mask covers is the object: taking it away changes those pixels
        inner = mask == k
        if inner.sum() < 6:
            continue
        keep = [i for i in range(count) if i != k - 1]
        scene = batch.unstack()[0]
        rest = Scene(tuple(scene.objects[i] for i in keep), scene.camera, scene.lights)
        without = render([rest], 48, quality=quality)["rgb"][0]
        assert ((rgb - without).abs().sum(0)[inner] > 1e-3).float().mean() > 0.9


@pytest.mark.parametrize("size", [1, 7, (31, 17), (48, 32)])
def test_any_size_and_aspect(size):
    width, height = (size, size) if isinstance(size, int) else size
    drawn = render([one()], size, layers=("rgb", "mask", "depth"))
    assert drawn["rgb"].shape == (1, 3, height, width)
    assert drawn["mask"].shape == drawn["depth"].shape == (1, height, width)


def test_a_wider_frame_shows_the_same_middle():
    """The released 3:2 images show the same horizontal view with less floor above and below."""
    tall = render([one("cube")], (96, 72))["rgb"]
    wide = render([one("cube")], (96, 64))["rgb"]
    torch.testing.assert_close(tall[:, :, 4:68], wide, atol=0.02, rtol=0.0)


def test_no_scenes_give_no_images():
    assert render([], 16)["rgb"].shape == (0, 3, 16, 16)


@pytest.mark.parametrize("wrong", [{"size": 0}, {"layers": ("rgb", "normals")}, {"quality": "best"}])
def test_bad_requests_are_one_sentence(wrong):
    with pytest.raises(UserError):
        render([one()], **wrong)


# --- against Blender ------------------------------------------------------------------------------------------


def reference(folder, indices):
    from tessera.render.clevr_folder import ClevrFolder

    data = ClevrFolder(folder)
    pairs = [data[i] for i in indices]
    return [scene for _, scene in pairs], torch.stack([image for image, _ in pairs])


def squeeze(images):
    """320x240 to 128x128 by area, both sides the same."""
    return torch.nn.functional.interpolate(images, (128, 128), mode="area")


def psnr(a, b):
    return -10 * torch.log10(((a - b) / 2).square().mean((1, 2, 3)))


@pytest.mark.parametrize("quality", ["true", "fast"])
def test_images_match_blenders(clevr_reference, quality):
    scenes, truth = reference(clevr_reference, [48, 50, 52, 54, 55, 60])
    ours = render(scenes, (320, 240), quality=quality)["rgb"]
    score = psnr(squeeze(ours), squeeze(truth))
    assert score.mean() > 36 and score.min() > 33


def test_masks_match_blenders(clevr_reference):
    from PIL import Image

    from tessera.render.clevr_folder import ClevrFolder

    data = ClevrFolder(clevr_reference)
    overlaps = []
    for i in (9, 19, 28, 37, 54, 55):
        scene = data[i][1]
        name = sorted((clevr_reference / "images").glob(f"*_{i:06d}.png"))[0].name
        truth = torch.from_numpy(np.array(Image.open(clevr_reference / "masks" / name))).long()
        ours = render([scene], (320, 240), layers=("mask",))["mask"][0]
        for k in range(1, len(scene) + 1):
            overlaps.append(((ours == k) & (truth == k)).sum() / ((ours == k) | (truth == k)).sum())
    assert torch.stack(overlaps).mean() > 0.97
