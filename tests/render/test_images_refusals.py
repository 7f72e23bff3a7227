"""What the verbs about images do not take, and that nobody's images are lost or left over."""

from pathlib import Path

import pytest

from programs import with_set
from tessera.cli.main import main
from tessera.scenes.clevr import read_scenes, write_scenes
from tessera.scenes.scene import Scene

QUICK = ("--size", 16, "--device", "cpu", "--visibility", "off")


def run(capsys, *words):
    with pytest.raises(SystemExit) as leaving:
        main(with_set(*words))
    said = capsys.readouterr()
    return leaving.value.code or 0, said.out, said.err


def refused(capsys, *words) -> str:
    code, printed, said = run(capsys, *words)
    assert code == 2 and printed == "" and len(said.strip().splitlines()) == 1
    return said


def listing(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_an_image_that_fits_into_no_memory_is_refused(capsys, tmp_path):
    given = refused(capsys, "render", "--size", 100000, "--out", tmp_path / "out")
    assert "at most 16384 pixels" in given and not (tmp_path / "out").exists()


def test_the_advice_is_an_option_of_the_verb(capsys, tmp_path):
    given = refused(capsys, "render", "--objects", 60, "--device", "cpu", "--out", tmp_path / "out")
    assert "--set spacing=relaxed" in given and '"relaxed"' not in given


# --- a folder that holds something --------------------------------------------------------------------------


def test_a_new_render_leaves_nothing_of_an_earlier_one(capsys, tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    assert run(capsys, "render", "--count", 4, "--depth", *QUICK, "--out", tmp_path)[0] == 0
    assert run(capsys, "render", "--count", 1, *QUICK, "--seed", 5, "--out", tmp_path)[0] == 0
    name = "CLEVR_tessera_000000.png"
    assert listing(tmp_path) == [f"images/{name}", f"masks/{name}", "notes.txt", "scenes.json"]
    assert len(read_scenes(tmp_path / "scenes.json")) == 1


def test_a_render_that_was_broken_off_is_begun_again(capsys, tmp_path):
    assert run(capsys, "render", "--count", 2, *QUICK, "--out", tmp_path)[0] == 0
    (tmp_path / "scenes.json").unlink()
    assert run(capsys, "render", "--count", 2, *QUICK, "--out", tmp_path)[0] == 0
    (tmp_path / "scenes.json").unlink()
    assert "choose another folder" in refused(capsys, "render", "--count", 1, *QUICK, "--out", tmp_path)


def test_images_and_scenes_of_another_origin_are_never_touched(capsys, tmp_path):
    images, scenes = tmp_path / "images", tmp_path / "scenes"
    (images / "images").mkdir(parents=True)
    (images / "images" / "holiday.png").write_bytes(b"mine")
    scenes.mkdir()
    write_scenes(scenes / "scenes.json", [Scene()], split="val")
    before = {folder: listing(folder) for folder in (images, scenes)}
    for folder in before:
        given = refused(capsys, "render", "--count", 1, *QUICK, "--out", folder)
        assert "not of an earlier render" in given
    assert before == {folder: listing(folder) for folder in before}
    assert (images / "images" / "holiday.png").read_bytes() == b"mine"


def test_drawing_a_render_again_in_location_keeps_its_scenes(capsys, tmp_path):
    run(capsys, "render", "--count", 2, *QUICK, "--out", tmp_path)
    before = read_scenes(tmp_path / "scenes.json")
    again = ("--scenes", tmp_path / "scenes.json", "--size", 20, "--device", "cpu", "--out", tmp_path)
    assert run(capsys, "render", *again)[0] == 0
    assert [len(scene) for scene in read_scenes(tmp_path / "scenes.json")] == list(map(len, before))
