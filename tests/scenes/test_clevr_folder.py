"""A folder of images and scenes as a dataset, in each of the layouts people have."""

import json

import pytest
from PIL import Image

from tessera.errors import UserError
from tessera.evaluation.truth import ClevrTruth
from tessera.render.clevr_folder import ClevrFolder
from tessera.scenes import Scenes, write_scenes

SCENES = Scenes(objects=(1, 3)).draw(3, seed=1).unstack()


def image(path, color, size=(48, 36)):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, color).save(path)


@pytest.fixture
def released(tmp_path):
    """images/<split>/, scenes/CLEVR_<split>_scenes.json, 3:2 images, as CLEVR_v1.0."""
    for split, green in (("train", 0), ("val", 255)):
        for i in range(3):
            image(tmp_path / "images" / split / f"CLEVR_{split}_{i:06d}.png", (i, green, 255), (48, 32))
        (tmp_path / "scenes").mkdir(exist_ok=True)
        write_scenes(tmp_path / "scenes" / f"CLEVR_{split}_scenes.json", SCENES, (48, 32), split)
    return tmp_path


def test_a_released_folder_gives_images_with_their_scenes(released):
    folder = ClevrFolder(released, split="val")
    assert len(folder) == 3
    image, scene = folder[2]
    assert image.shape == (3, 32, 48) and scene == SCENES[2]
    assert image[:, 5, 5].tolist() == pytest.approx([2 / 127.5 - 1, 1, 1])
    assert [scene for _, scene in folder] == SCENES


def test_several_splits_ask_for_a_choice(released):
    with pytest.raises(UserError, match=r"choose one of CLEVR_train_scenes[.]json, CLEVR_val_scenes[.]json"):
        ClevrFolder(released)
    with pytest.raises(UserError, match="no scene file of split `test`"):
        ClevrFolder(released, split="test")


def test_a_folder_of_single_scene_files_works(tmp_path):
    """What the generator leaves when it is stopped before it has joined its files."""
    (tmp_path / "scenes").mkdir()
    write_scenes(tmp_path / "all.json", SCENES, split="new")
    for i, record in enumerate(json.loads((tmp_path / "all.json").read_text())["scenes"]):
        (tmp_path / "scenes" / f"CLEVR_new_{i:06d}.json").write_text(json.dumps(record))
        image(tmp_path / "images" / f"CLEVR_new_{i:06d}.png", (10 * i, 0, 0))
    folder = ClevrFolder(tmp_path)
    assert [scene for _, scene in folder] == SCENES
    assert float(folder.image(2)[0].mean()) == pytest.approx(20 / 127.5 - 1)


def test_real_renders_come_with_scenes_and_masks(clevr_reference):
    folder = ClevrFolder(clevr_reference)
    image, scene = folder[9]
    assert image.shape == (3, 240, 320) and image.min() >= -1 and image.max() <= 1
    assert set(folder.mask(9).unique().tolist()) == set(range(len(scene) + 1))


def test_missing_and_broken_parts_are_one_sentence(released, tmp_path):
    folder = ClevrFolder(released, split="train")
    with pytest.raises(UserError, match="no folder"):
        ClevrFolder(tmp_path / "nowhere")
    with pytest.raises(UserError, match="has no scene file"):
        ClevrFolder(released / "images")
    with pytest.raises(UserError, match=r"masks has no file CLEVR_train_000000[.]png"):
        folder.mask(0)
    file = released / "images" / "train" / "CLEVR_train_000001.png"
    file.write_bytes(file.read_bytes()[:60])
    with pytest.raises(UserError, match=r"CLEVR_train_000001[.]png"):
        folder.image(1)
    file.unlink()
    with pytest.raises(UserError, match=r"has no file CLEVR_train_000001[.]png"):
        folder.image(1)


@pytest.mark.parametrize("field", ["image_filename", "split"])
def test_scene_files_name_no_image_outside_their_folder(tmp_path, field):
    inside, outside = tmp_path / "set", tmp_path / "CLEVR_val_000000.png"
    image(outside, "red")
    image(inside / "images" / "other.png", "blue")
    write_scenes(inside / "scenes.json", SCENES[:1], (48, 36), "val")
    content = json.loads((inside / "scenes.json").read_text())
    changed = {"image_filename": f"../../{outside.name}", "split": "../.."}
    content["scenes"][0][field] = changed[field]
    (inside / "scenes.json").write_text(json.dumps(content))
    with pytest.raises(UserError, match="not a file inside that folder"):
        ClevrFolder(inside).image(0)
    if field == "image_filename":
        with pytest.raises(UserError, match="not a file inside that folder"):
            ClevrTruth(inside).file(0)
