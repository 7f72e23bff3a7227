"""Official CLEVR scene files: read, written, and told apart from what is not one."""

import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tessera.errors import UserError
from tessera.scenes import Lights, Scene, SceneObject, Scenes, read_scenes, write_scenes
from tessera.scenes.camera import CAMERA
from tessera.scenes.vocabulary import COLOR_NAMES, MATERIALS, SHAPES

# One scene as the official generator stores it: no camera, no lights, rotation beyond a full turn.
OFFICIAL = {
    "split": "train",
    "image_index": 3,
    "image_filename": "CLEVR_train_000003.png",
    "objects": [
        {
            "shape": "sphere",
            "size": "large",
            "material": "metal",
            "color": "cyan",
            "3d_coords": [0.5, -1.25, 0.699999988079071],
            "rotation": 269.8491,
            "pixel_coords": [170, 120, 9.5],
        },
        {
            "shape": "cube",
            "size": "small",
            "material": "rubber",
            "color": "gray",
            "3d_coords": [-1, 2, 0.3499999940395355],
            "rotation": 12,
            "pixel_coords": [150, 90, 12.25],
        },
    ],
    "directions": {},
    "relationships": {},
}

number = st.floats(-9, 9, allow_nan=False)
objects = st.builds(
    SceneObject,
    shape=st.sampled_from(SHAPES),
    color=st.sampled_from(COLOR_NAMES),
    material=st.sampled_from(MATERIALS),
    size=st.floats(0.05, 1.5),
    xy=st.tuples(st.floats(-3, 3), st.floats(-3, 3)),
    rotation=st.floats(0, 360),
)
points = st.tuples(number, number, number)
scenes = st.builds(
    Scene,
    objects=st.lists(objects, max_size=4).map(tuple),
    camera=st.tuples(st.floats(7, 8), st.floats(-7, -6), st.floats(5, 6)),
    lights=st.builds(Lights, key=points, fill=points, back=points),
)


def stored(path, content):
    path.write_text(json.dumps(content))
    return path


def changed(**changes) -> dict:
    """The official file with other values in object 1 of scene 0."""
    scene = json.loads(json.dumps(OFFICIAL))
    scene["objects"][1].update(changes)
    return {"scenes": [scene]}


@settings(deadline=None, max_examples=40)
@given(st.lists(scenes, max_size=3))
def test_what_is_written_is_read_back_exactly(tmp_path_factory, written):
    path = tmp_path_factory.mktemp("files") / "scenes.json"
    write_scenes(path, written)
    assert read_scenes(path) == written


def test_a_drawn_batch_is_read_back_exactly(tmp_path):
    drawn = Scenes(objects=(0, 5)).draw(40, seed=3)
    write_scenes(tmp_path / "scenes.json", drawn)
    assert read_scenes(tmp_path / "scenes.json") == drawn.unstack()


@pytest.mark.parametrize("content", [OFFICIAL, {"info": {}, "scenes": [OFFICIAL]}])
def test_official_files_show_the_stage_without_jitter(tmp_path, content):
    (scene,) = read_scenes(stored(tmp_path / "scene.json", content))
    assert scene.camera == CAMERA and scene.lights == Lights()
    assert scene.objects[0].rotation == 269.8491  # radians, whatever the generator calls it
    assert scene.objects[1] == SceneObject("cube", "gray", "rubber", 0.3499999940395355, (-1.0, 2.0), 12.0)
    assert [obj.size_name for obj in scene.objects] == ["large", "small"]


def test_real_files_are_read_with_their_camera_and_lamps(clevr_reference):
    read = read_scenes(clevr_reference / "scenes.json")
    assert len(read) == 62
    assert read[1].camera == (7.05471182, -6.62829351, 5.54271841)
    assert read[1].lights.back == (-0.551089883, 3.5193522, 6.2066164)
    assert read[48] == Scene((), read[48].camera, read[48].lights)
    assert math.dist(read[48].camera, CAMERA) < 1e-5


def test_written_fields_are_the_generators(clevr_reference, tmp_path):
    """Rounded pixels, depth, relations and directions of real scenes, computed anew."""
    file = clevr_reference / "scenes.json"
    write_scenes(tmp_path / "ours.json", read_scenes(file))
    ours = json.loads((tmp_path / "ours.json").read_text())["scenes"]
    for mine, real in zip(ours, json.loads(file.read_text())["scenes"]):
        for a, b in zip(mine["objects"], real["objects"]):
            for field in ("shape", "size", "material", "color", "rotation", "3d_coords"):
                assert a[field] == b[field]
            if "pixel_coords" in b:
                assert a["pixel_coords"][:2] == b["pixel_coords"][:2]
                assert a["pixel_coords"][2] == pytest.approx(b["pixel_coords"][2], abs=1e-4)
        if "relationships" in real:
            assert mine["relationships"] == real["relationships"]
            for name, vector in real["directions"].items():
                assert mine["directions"][name] == pytest.approx(vector, abs=1e-6)


def test_a_wider_image_has_the_same_horizontal_view(tmp_path):
    scene = Scene((SceneObject("cube", "red", "metal", 0.7, (1.0, 2.0)),))
    for name, size in (("four_three", (480, 360)), ("three_two", (480, 320))):
        write_scenes(tmp_path / name, [scene], size=size)
    tall, flat = (
        json.loads((tmp_path / name).read_text())["scenes"][0]["objects"][0]["pixel_coords"]
        for name in ("four_three", "three_two")
    )
    assert tall[0] == flat[0] and tall[1] - 180 == flat[1] - 160


def test_image_names_can_be_given(tmp_path):
    write_scenes(tmp_path / "a.json", [Scene(), Scene()], split="val", image_names=["x.png", "y.png"])
    records = json.loads((tmp_path / "a.json").read_text())["scenes"]
    assert [(r["image_filename"], r["image_index"], r["split"]) for r in records] == [
        ("x.png", 0, "val"),
        ("y.png", 1, "val"),
    ]
    with pytest.raises(UserError, match="as many image names"):
        write_scenes(tmp_path / "a.json", [Scene()], image_names=[])


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ([], "no list called `scenes`"),
        ({"scenes": 4}, "no list called `scenes`"),
        ({"scenes": ["x"]}, "scene 0 must be a JSON object, not str"),
        ({"scenes": [OFFICIAL, {}]}, "scene 1: field `objects` is missing"),
        (changed(color="pink"), "scene 0, object 1: field `color` must be one of .*, not 'pink'"),
        (changed(shape="pyramid"), "object 1: field `shape` must be one of"),
        (changed(size=["small"]), "object 1: field `size` must be one of"),
        (changed(rotation="north"), "object 1: field `rotation` must be a number"),
        (changed(rotation=float("nan")), "nan is no number"),
        ({"scenes": [{"objects": [{"shape": "cube"}]}]}, "object 0: field `color` is missing"),
        (changed(**{"3d_coords": [1, 2]}), "field `3d_coords` must be three numbers"),
        (changed(**{"3d_coords": [1, 2, 0]}), "half extent"),
        ({"scenes": [{**OFFICIAL, "camera": {}}]}, "scene 0, camera: field `location` is missing"),
        ({"scenes": [{**OFFICIAL, "lights": {}}]}, "scene 0, lights: field `Lamp_Key` is missing"),
        ({"scenes": [{**OFFICIAL, "lights": 3}]}, "scene 0, lights must be a JSON object, not int"),
        ({"scenes": [{**OFFICIAL, "image_filename": 3}]}, "field `image_filename` must be a text"),
    ],
)
def test_a_wrong_field_is_named_with_file_and_scene(tmp_path, content, sentence):
    path = stored(tmp_path / "wrong.json", content)
    with pytest.raises(UserError, match=sentence) as passed_on:
        read_scenes(path)
    assert "wrong.json" in str(passed_on.value) and "\n" not in str(passed_on.value)


def test_truncated_and_absent_files_are_one_sentence(tmp_path):
    path = tmp_path / "half.json"
    path.write_text(json.dumps({"scenes": [OFFICIAL]})[:200])
    with pytest.raises(UserError, match=r"half\.json is not valid JSON"):
        read_scenes(path)
    with pytest.raises(UserError, match="Could not read"):
        read_scenes(tmp_path / "none.json")


def test_a_failed_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "scenes.json"
    write_scenes(path, [Scene()])
    before = path.read_text()
    broken = Scene((SceneObject("cube", "red", "metal", 0.7, (math.nan, 0.0)),))
    with pytest.raises(ValueError, match="NaN"):
        write_scenes(path, [broken])
    assert path.read_text() == before
    assert list(tmp_path.iterdir()) == [path]
