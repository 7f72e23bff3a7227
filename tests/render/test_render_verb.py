import json
from pathlib import Path

import numpy as np
import pytest
import torch

from programs import with_set
from tessera.cli.main import main
from tessera.cli.render import distinct_names, words
from tessera.render.image_io import load_depth, load_mask, load_png
from tessera.sampling.prompts import parse_locations
from tessera.scenes.camera import ASPECT, project
from tessera.scenes.clevr import read_scenes, write_scenes
from tessera.scenes.scene import Lights, Scene, SceneObject

QUICK = ["--size", "32", "--device", "cpu", "--visibility", "off"]
PAIR = Scene(
    (
        SceneObject("cube", "red", "metal", 0.7, (1.0, -1.0), 0.3),
        SceneObject("sphere", "cyan", "rubber", 0.35, (-1.5, 0.5), 1.0),
    ),
    camera=(7.3, -6.4, 5.5),
    lights=Lights(key=(6.0, -2.5, 4.5)),
)


def tessera(*given) -> int:
    with pytest.raises(SystemExit) as leaving:
        main(with_set(*given))
    return leaving.value.code


def files(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_render_writes_images_masks_depth_scenes_and_a_sheet(tmp_path, capsys):
    code = tessera("render", "--count", 3, "--objects", "2", *QUICK, "--out", tmp_path, "--depth", "--sheet")
    assert code == 0
    said = capsys.readouterr()
    assert said.out == "" and "Wrote 3 images of 32x32" in " ".join(said.err.split())
    names = [f"CLEVR_tessera_{i:06d}.png" for i in range(3)]
    expected = [f"{folder}/{name}" for folder in ("depth", "images", "masks") for name in names]
    assert list(files(tmp_path)) == [*expected, "scenes.json", "sheet.png"]
    assert load_png(tmp_path / "images" / names[0]).shape == (3, 32, 32)
    assert [len(scene) for scene in read_scenes(tmp_path / "scenes.json")] == [2, 2, 2]


def test_masks_and_depth_belong_to_the_scenes_written_beside_them(tmp_path):
    """The pixel at an object's projected center shows that object, nearer than its center."""
    code = tessera(
        "render", "--count", 8, "--objects", 1, "--size", 64, "--device", "cpu", "--depth", "--out", tmp_path
    )
    assert code == 0
    for record in json.loads((tmp_path / "scenes.json").read_text())["scenes"]:
        x, y, depth = record["objects"][0]["pixel_coords_exact"]
        location = int(y), int(x)
        assert load_mask(tmp_path / "masks" / record["image_filename"])[location] == 1
        gap = depth - load_depth(tmp_path / "depth" / record["image_filename"])[location].item()
        assert 0.2 < gap < 1.3


def test_pixel_coordinates_of_a_squeezed_image_are_those_of_the_whole_frame(tmp_path):
    write_scenes(tmp_path / "in.json", [PAIR])
    tessera("render", "--scenes", tmp_path / "in.json", "--size", "32", "--device", "cpu", "--out", tmp_path)
    content = json.loads((tmp_path / "scenes.json").read_text())
    centers = torch.tensor([[obj.center for obj in PAIR.objects]])
    locations, depth = project(centers, torch.tensor([PAIR.camera]), ASPECT)
    written = torch.tensor([obj["pixel_coords_exact"] for obj in content["scenes"][0]["objects"]])
    assert torch.allclose(written[:, :2] / 32, locations[0], atol=1e-5)
    assert torch.allclose(written[:, 2], depth[0], atol=1e-4)
    rounded = [obj["pixel_coords"][:2] for obj in content["scenes"][0]["objects"]]
    assert rounded == written[:, :2].round().int().tolist()
    assert content["info"]["width"] == content["info"]["height"] == 32


def test_given_scenes_are_drawn_as_given_under_their_own_names(tmp_path):
    write_scenes(tmp_path / "in.json", [PAIR, Scene()], image_names=["b.png", "a.png"])
    out = tmp_path / "out"
    code = tessera("render", "--scenes", tmp_path / "in.json", "--size", "40x30", "--device", "cpu", "--out", out)
    assert code == 0
    assert sorted(p.name for p in (out / "images").iterdir()) == ["a.png", "b.png"]
    back = read_scenes(out / "scenes.json")
    assert len(back[1]) == 0 and back[0].objects[0].color == "red"
    assert back[0].camera == pytest.approx(PAIR.camera) and back[0].lights.key == pytest.approx(PAIR.lights.key)
    assert back[0].objects[1].xy == pytest.approx(PAIR.objects[1].xy)
    assert load_mask(out / "masks" / "a.png").max() == 0 and load_mask(out / "masks" / "b.png").max() == 2
    assert load_png(out / "images" / "a.png").shape == (3, 30, 40)


def test_a_stretch_of_the_stream_is_the_same_whatever_the_start_and_batch(tmp_path):
    tessera("render", "--count", 5, *QUICK, "--seed", 3, "--out", tmp_path / "whole", "--batch", 5)
    tessera("render", "--count", 2, *QUICK, "--seed", 3, "--start", 3, "--out", tmp_path / "part", "--batch", 1)
    for folder in ("images", "masks"):
        part, whole = files(tmp_path / "part" / folder), files(tmp_path / "whole" / folder)
        assert set(part) <= set(whole)
        for name in part:
            a, b = (load_png(tmp_path / side / folder / name).int() for side in ("part", "whole"))
            assert (a - b).abs().max() <= 1  # sums of another batch may round one level otherwise
    tessera("render", "--count", 2, *QUICK, "--seed", 4, "--start", 3, "--out", tmp_path / "other")
    assert files(tmp_path / "other" / "images") != files(tmp_path / "part" / "images")


def test_objects_stand_at_the_requested_locations(tmp_path):
    quick = ["--size", 32, "--device", "cpu"]
    tessera("render", "--count", 3, *quick, "--locations", "0.65,0.55 0.35,0.45", "--out", tmp_path)
    for record in json.loads((tmp_path / "scenes.json").read_text())["scenes"]:
        coords = [obj["pixel_coords_exact"][:2] for obj in record["objects"]]
        assert np.allclose(np.array(coords) / 32, [[0.65, 0.55], [0.35, 0.45]], atol=1e-4)


def test_chosen_words_and_held_out_combinations_are_respected(tmp_path):
    tessera(
        *("render", "--count", 40, "--size", "16", "--device", "cpu", "--visibility", "off", "--out", tmp_path),
        *("--shapes", "cube,sphere", "--colors", "red", "blue", "--hold-out", "red cube", "small blue"),
    )
    objects = [obj for scene in read_scenes(tmp_path / "scenes.json") for obj in scene.objects]
    seen = {(t.color, t.shape, t.size_name) for t in objects}
    assert seen == {
        ("red", "sphere", "small"),
        ("red", "sphere", "large"),
        ("blue", "cube", "large"),
        ("blue", "sphere", "large"),
    }


def test_no_jitter_leaves_camera_and_lamps_alone(tmp_path):
    tessera("render", "--count", 2, *QUICK, "--no-jitter", "--out", tmp_path)
    resting = Scene()
    for scene in read_scenes(tmp_path / "scenes.json"):
        assert scene.camera == pytest.approx(resting.camera) and scene.lights.fill == pytest.approx(resting.lights.fill)


def test_locations_and_words_may_be_separated_in_several_ways():
    assert parse_locations("0.1,0.2 0.3,0.4") == parse_locations("0.1,0.2;0.3,0.4") == ((0.1, 0.2), (0.3, 0.4))
    assert words(["red,blue", "green"]) == ("red", "blue", "green")


def test_names_of_images_stay_inside_the_folder_and_apart():
    assert distinct_names(["../../etc/a.jpg", "b.png"], 0) == ["a.png", "b.png"]
    assert distinct_names(["a.png", "x/a.png"], 7) == ["CLEVR_tessera_000007.png", "CLEVR_tessera_000008.png"]
    assert distinct_names([None], 0) == ["CLEVR_tessera_000000.png"]


def complaint(capsys, *given) -> str:
    """What the command says when it leaves with code 2: one line, no traceback, nothing on stdout."""
    assert tessera(*given) == 2
    said = capsys.readouterr()
    assert said.out == "" and "Traceback" not in said.err
    lines = said.err.strip().splitlines()
    assert len(lines) == 1 and lines[0].startswith("tessera: ")
    return lines[0]


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (["--count", "-4"], "must be positive, not -4"),
        (["--count", "0"], "must be positive, not 0"),
        (["--count", "many"], "many"),
        (["--objects=-1"], "`-1` is no range of objects"),
        (["--objects", "3-1"], "`3-1` is no range of objects"),
        (["--objects", "40"], "40 objects do not fit"),
        (["--size", "0"], "at least one pixel"),
        (["--size", "320x0"], "at least one pixel"),
        (["--size", "big"], "`big` is no size"),
        (["--start", "-1"], "--start cannot be -1"),
        (["--batch", "0"], "At least one image"),
        (["--colors", "mauve"], "`mauve` is no color"),
        (["--shapes", "cone"], "`cone` is no shape"),
        (["--materials", "glass"], "`glass` is no material"),
        (["--sizes", "huge"], "`huge` is no size"),
        (["--hold-out", "red pyramid"], "`pyramid` is no attribute"),
        (["--locations", "0.5;0.5"], "A location is a pair"),
        (["--locations", "1.5,0.5"], "outside the image"),
        (["--locations", "0.5,0.5", "--objects", "3"], "--objects has no meaning together with --locations"),
        (["--locations", "0.5,0.5", "--spacing", "relaxed"], "--spacing has no meaning together with --locations"),
        (["--locations", "0.5,0.5", "--visibility", "off"], "--visibility has no meaning together with --locations"),
        (["--scenes", "nowhere.json"], "Could not read nowhere.json"),
        (["--scenes", "nowhere.json", "--objects", "3"], "--objects has no meaning together with --scenes"),
        (["--shards", "none"], "no shard size"),
        (["--shards", "0"], "at least one image"),
    ],
)
def test_bad_options_are_refused_in_one_sentence_and_nothing_is_written(tmp_path, capsys, given, sentence):
    out = tmp_path / "out"
    assert sentence in complaint(capsys, "render", "--device", "cpu", "--out", out, *given)
    assert not out.exists()


def scene_file(tmp_path, change) -> Path:
    path = tmp_path / "in.json"
    write_scenes(path, [PAIR])
    content = json.loads(path.read_text())
    change(content["scenes"][0]["objects"][1])
    path.write_text(json.dumps(content))
    return path


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda obj: obj.update(color="mauve"), "mauve"),
        (lambda obj: obj.update(shape="cone"), "cone"),
        (lambda obj: obj.pop("3d_coords"), "3d_coords"),
        (lambda obj: obj.update(rotation="north"), "rotation"),
    ],
)
def test_a_scene_file_with_a_wrong_word_is_refused_with_its_location(tmp_path, capsys, change, sentence):
    path = scene_file(tmp_path, change)
    said = complaint(capsys, "render", "--scenes", path, "--device", "cpu", "--out", tmp_path / "out")
    assert sentence in said and "in.json" in said and "object 1" in said


def test_truncated_or_foreign_json_is_refused(tmp_path, capsys):
    path = scene_file(tmp_path, lambda obj: None)
    whole = path.read_text()
    for text, sentence in (
        (whole[: len(whole) // 2], "not valid JSON"),
        ("[1, 2]", "no CLEVR scene file"),
        ("\0", "JSON"),
    ):
        path.write_text(text)
        assert sentence in complaint(capsys, "render", "--scenes", path, "--device", "cpu", "--out", tmp_path / "out")


def test_asking_for_more_scenes_than_the_file_has_is_refused(tmp_path, capsys):
    path = scene_file(tmp_path, lambda obj: None)
    given = ["render", "--scenes", path, "--device", "cpu", "--out", tmp_path / "out", "--count", 2]
    assert "has 1 scenes, too few" in complaint(capsys, *given)


def test_an_unwritable_folder_is_refused(tmp_path, capsys):
    (tmp_path / "file").write_text("in the way")
    said = complaint(capsys, "render", "--count", 1, *QUICK, "--out", tmp_path / "file" / "out")
    assert "Could not write into" in said


def test_a_full_disk_while_writing_images_keeps_the_finished_ones(tmp_path, capsys, monkeypatch):
    real = Path.write_bytes

    def full(path, data):
        if "000002.png" in path.name:
            raise OSError(28, "No space left on device")
        return real(path, data)

    monkeypatch.setattr(Path, "write_bytes", full)
    said = complaint(capsys, "render", "--count", 4, *QUICK, "--batch", 1, "--out", tmp_path)
    assert "CLEVR_tessera_000002.png: No space left on device" in said
    assert sorted(p.name for p in (tmp_path / "images").iterdir()) == [f"CLEVR_tessera_00000{i}.png" for i in (0, 1)]
    assert load_png(tmp_path / "images" / "CLEVR_tessera_000001.png").shape == (3, 32, 32)


def test_an_earlier_render_whose_images_lie_elsewhere_is_not_deleted(tmp_path, capfd):
    assert tessera("render", "--count", 2, "--objects", "1", *QUICK, "--out", tmp_path / "out") == 0
    (tmp_path / "out" / "images").rename(tmp_path / "elsewhere")
    (tmp_path / "out" / "images").symlink_to(tmp_path / "elsewhere")
    before = files(tmp_path / "elsewhere")
    assert tessera("render", "--count", 1, "--objects", "1", *QUICK, "--out", tmp_path / "out") == 2
    assert "not a file inside that folder" in capfd.readouterr().err
    assert files(tmp_path / "elsewhere") == before and len(before) == 2
