"""Really renders where bpy is at hand: in this Python, or in the one that TESSERA_BPY_PYTHON names."""

import importlib.util
import json
import os
import subprocess
from pathlib import Path

import pytest
import torch

import blender
from blender import INTERPRETER, blender_python, describe_job, render_with_blender, stage_profile
from compare_renders import mask_ious, psnr, ssim
from programs import call_program
from tessera.errors import UserError
from tessera.render.image_io import load_mask, load_png, resize, to_uint8
from tessera.render.render import render
from tessera.render.stage import AXIS, CURVE_U, CURVE_Z
from tessera.scenes.clevr import read_entries, write_scenes
from tessera.scenes.scene import Scene, SceneObject

needs_blender = pytest.mark.skipif(
    not os.environ.get(INTERPRETER) and importlib.util.find_spec("bpy") is None,
    reason=f"Blender's bpy module is not installed and {INTERPRETER} names no Python that has it",
)
THREE = Scene(
    (
        SceneObject("cube", "red", "metal", 0.7, (0.5, -1.5), 0.5),
        SceneObject("cylinder", "cyan", "rubber", 0.35, (2.0, 1.5), 0.2),
        SceneObject("sphere", "yellow", "rubber", 0.7, (-2.0, 0.5), 0.0),
    )
)


def test_without_blender_one_sentence_says_how_to_get_it(monkeypatch, tmp_path, capsys):
    monkeypatch.delenv(INTERPRETER, raising=False)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    code = call_program("blender", tmp_path / "scenes.json", "--out", tmp_path / "out")
    said = capsys.readouterr().err
    assert code == 2 and said.count("\n") == 1
    assert "pip install 'tessera-diffusion[blender]'" in said and not (tmp_path / "out").exists()


def test_a_python_without_bpy_is_named(monkeypatch, tmp_path):
    fake = tmp_path / "python"
    fake.write_text("#!/bin/sh\necho \"ModuleNotFoundError: No module named 'bpy'\"\nexit 1\n")
    fake.chmod(0o755)
    monkeypatch.setenv(INTERPRETER, str(fake))
    with pytest.raises(UserError, match="cannot import bpy"):
        render_with_blender([Scene()], 16, samples=1)
    monkeypatch.setenv(INTERPRETER, str(tmp_path / "nowhere"))
    with pytest.raises(UserError, match="does not exist"):
        blender_python()


def test_a_crash_inside_blender_becomes_one_sentence(monkeypatch, tmp_path):
    fake = tmp_path / "python"
    fake.write_text("#!/bin/sh\necho Fra:1 Mem:80M\necho out of memory\nkill -SEGV $$\n")
    fake.chmod(0o755)
    monkeypatch.setenv(INTERPRETER, str(fake))
    with pytest.raises(UserError, match=r"Blender stopped with code -11: out of memory\."):
        render_with_blender([Scene()], 16, samples=1)


def test_the_job_says_everything_in_plain_numbers():
    job = json.loads(json.dumps(describe_job([THREE], 64, 8, ("rgb",), None, 1, "here")))
    assert job["size"] == [64, 64] and job["squeeze"] == pytest.approx(4 / 3)
    obj = job["scenes"][0]["objects"][0]
    assert obj["color"] == pytest.approx([173 / 255, 35 / 255, 35 / 255]) and obj["xy"] == [0.5, -1.5]
    assert set(job["scenes"][0]["lights"]) == {"key", "fill", "back"}
    assert describe_job([], (320, 240), 8, ("rgb",), None, 1, "here")["squeeze"] == 1
    with pytest.raises(UserError, match="at least one sample"):
        describe_job([], 64, 0, ("rgb",), None, 1, "here")


def test_the_stage_of_blender_is_the_stage_of_our_renderer():
    """The polyline against the smooth curve our ray tracer meets: its corners lie within 2 cm of it."""
    profile = stage_profile()
    s = torch.linspace(0, 1, 20001, dtype=torch.float64)
    u = sum(c * s**k for k, c in enumerate(CURVE_U))
    curve = torch.stack([u, CURVE_Z * s**4], -1)
    corners = torch.tensor([profile["u"], profile["z"]], dtype=torch.float64).T
    assert torch.cdist(corners, curve).min(1).values.max() < 0.02
    assert torch.tensor(AXIS).norm() == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("missing", ["base_scene.blend", "shapes/Sphere.blend", "materials/MyMetal.blend"])
def test_an_incomplete_asset_folder_is_refused(tmp_path, missing):
    for name in blender.ASSET_FILES:
        (tmp_path / "data" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "data" / name).touch()
    assert blender.checked_assets(tmp_path) == blender.checked_assets(tmp_path / "data") == tmp_path / "data"
    (tmp_path / "data" / missing).unlink()
    with pytest.raises(UserError, match=missing.rpartition("/")[2]):
        blender.checked_assets(tmp_path)


@needs_blender
def test_blender_and_our_renderer_draw_the_same_scene():
    scenes, seen = [THREE, Scene()], []
    layers = ("rgb", "mask", "depth")
    theirs = render_with_blender(scenes, 128, 16, layers, threads=1, on_scene=lambda: seen.append(1))
    ours = render(scenes, 128, layers)
    assert len(seen) == 2
    for layer in layers:
        assert theirs[layer].shape == ours[layer].shape and theirs[layer].dtype == ours[layer].dtype
    assert min(mask_ious(theirs["mask"][0], ours["mask"][0], 3)) > 0.97
    assert theirs["mask"][1].max() == 0
    gap = (theirs["depth"] - ours["depth"]).abs()
    assert gap.median() < 0.01 and (gap > 0.1).float().mean() < 0.01
    mine, real = to_uint8(ours["rgb"]), to_uint8(theirs["rgb"])
    assert psnr(mine, real) > 33
    for k in (1, 2, 3):  # each object by itself, so that the wide floor hides no wrong shape
        seen_there = theirs["mask"][0] == k
        assert psnr(mine[0][:, seen_there], real[0][:, seen_there]) > 27


@needs_blender
@pytest.mark.slow
@pytest.mark.parametrize("index", [49, 57, 60])
def test_blender_repeats_the_reference_renders(clevr_reference, index):
    entry = read_entries(clevr_reference / "scenes.json")[index]
    frame = render_with_blender([entry.scene], (320, 240), 64, ("rgb", "mask"))
    mine, real = to_uint8(frame["rgb"][0]), load_png(clevr_reference / "images" / entry.image)
    assert psnr(mine, real) > 40
    small = [resize(image, (128, 128)) for image in (mine, real)]
    assert psnr(*small) > 45 and ssim(*small) > 0.99
    mask = clevr_reference / "masks" / entry.image
    if mask.is_file():
        assert min(mask_ious(frame["mask"][0], load_mask(mask), len(entry.scene))) > 0.995


MAKE_ASSETS = """
import sys
from pathlib import Path
import bpy
sys.path.insert(0, sys.argv[1])
import blender_job as job
out, profile = Path(sys.argv[2]), {"u": [-9.4, 5.0, 18.0], "z": [0.0, 0.0, 23.0]}

def save(name):
    (out / name).parent.mkdir(parents=True, exist_ok=True)
    bpy.ops.wm.save_as_mainfile(filepath=str(out / name), compress=False)

def track(object, target):
    constraint = object.constraints.new("TRACK_TO")
    constraint.target, constraint.track_axis, constraint.up_axis = target, "TRACK_NEGATIVE_Z", "UP_Y"

stage = job.OwnStage(profile)
target = job.add("Empty", None)
for lamp, title in job.ASSET_LAMPS.items():
    stage.lamps[lamp].name = title
for object in (stage.camera, *stage.lamps.values()):
    track(object, target)
save("base_scene.blend")
for shape, title in job.ASSET_SHAPES.items():
    bpy.ops.wm.read_factory_settings(use_empty=True)
    job.add(title, job.MESHES[shape]())
    save(f"shapes/{title}.blend")
for material, title in job.ASSET_MATERIALS.items():
    bpy.ops.wm.read_factory_settings(use_empty=True)
    group = bpy.data.node_groups.new(title, "ShaderNodeTree")
    group.use_fake_user = True
    group.interface.new_socket("Color", in_out="INPUT", socket_type="NodeSocketColor")
    group.interface.new_socket("Shader", in_out="OUTPUT", socket_type="NodeSocketShader")
    entry, leave = group.nodes.new("NodeGroupInput"), group.nodes.new("NodeGroupOutput")
    surface = job.MATERIALS[material](job.Shader(group), entry.outputs["Color"])
    group.links.new(surface, leave.inputs["Shader"])
    save(f"materials/{title}.blend")
"""


@needs_blender
def test_assets_from_a_folder_give_the_image_that_numbers_give(tmp_path, monkeypatch):
    """The generator's files are not ours to ship, so files of the same layout are made and rendered from."""
    here = Path(blender.__file__).parent
    command = [blender_python(), "-c", MAKE_ASSETS, str(here), str(tmp_path)]
    subprocess.run(command, check=True, capture_output=True)
    monkeypatch.setattr(blender, "stage_profile", lambda: {"u": [-9.4, 5.0, 18.0], "z": [0.0, 0.0, 23.0]})
    moved = Scene(THREE.objects, camera=(7.1, -6.9, 5.0))
    layers = ("rgb", "mask", "depth")
    built = render_with_blender([moved, THREE], 48, 8, layers, threads=1)
    loaded = render_with_blender([moved, THREE], 48, 8, layers, assets=tmp_path, threads=1)
    assert torch.equal(built["mask"], loaded["mask"])
    assert (built["depth"] - loaded["depth"]).abs().max() < 1e-3
    assert psnr(to_uint8(built["rgb"]), to_uint8(loaded["rgb"])) > 40
    assert not torch.equal(built["mask"][0], built["mask"][1])


@needs_blender
def test_the_program_draws_a_scene_file(tmp_path):
    write_scenes(tmp_path / "scenes.json", [THREE, Scene()])
    words = ["--samples", 4, "--count", 1, "--size", 32, "--out", tmp_path / "drawn"]
    assert call_program("blender", tmp_path / "scenes.json", *words) == 0
    (name,) = (path.name for path in (tmp_path / "drawn" / "images").iterdir())
    assert load_png(tmp_path / "drawn" / "images" / name).shape == (3, 32, 32)
    assert load_mask(tmp_path / "drawn" / "masks" / name).max() >= 1
