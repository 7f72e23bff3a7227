import errno
import json
import os
import pickle
import resource
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from programs import with_set
from tessera.errors import UserError
from tessera.files import sha256
from tessera.render import shards
from tessera.render.shards import _MANIFEST, ShardFolder, images_per_shard, pack, write_shards
from tessera.scenes.batch import SceneBatch
from tessera.scenes.scene import Scene, SceneObject

SETTINGS = {"size": (8, 6), "seed": 0}


def numbered_scene(number: int) -> Scene:
    return Scene((SceneObject("cube", "red", "metal", 0.7, (number / 100, 0.0)),))


def numbered_images(first: int, many: int) -> dict[str, torch.Tensor]:
    """Image i is filled with level i, its mask too."""
    levels = torch.arange(first, first + many, dtype=torch.uint8).view(-1, 1, 1, 1)
    scenes = SceneBatch.stack([numbered_scene(i) for i in range(first, first + many)])
    return pack(levels.expand(-1, 3, 6, 8), levels[:, 0].expand(-1, 6, 8), scenes)


def fill(folder, draw=numbered_images, count=10, per_shard=4, settings=SETTINGS):
    return write_shards(folder, draw, count, per_shard, settings)


class Counting:
    """Draws, and remembers which shards it drew."""

    def __init__(self, fail_at: int | None = None):
        self.drawn: list[int] = []
        self.fail_at = fail_at

    def __call__(self, first, many):
        self.drawn.append(first)
        if first == self.fail_at:
            raise KeyboardInterrupt
        return numbered_images(first, many)


def fingerprints(folder: Path) -> dict[str, tuple[str, int]]:
    return {p.name: (sha256(p), p.stat().st_mtime_ns) for p in sorted(folder.glob("shard-*"))}


def test_every_image_comes_back_from_any_shard(tmp_path):
    shards = fill(tmp_path)
    assert [shard.count for shard in shards] == [4, 4, 2]
    folder = ShardFolder(tmp_path)
    assert len(folder) == 10
    for i in (0, 3, 4, 9, -1):
        sample = folder[i]
        assert (sample.image == i % 10).all() and sample.image.shape == (3, 6, 8)
        assert (sample.mask == i % 10).all()
        assert sample.scene.objects[0].xy[0] == pytest.approx((i % 10) / 100)
    assert [sample.image[0, 0, 0].item() for sample in folder] == list(range(10))


def test_a_batch_keeps_the_requested_order_across_shards(tmp_path):
    fill(tmp_path)
    batch = ShardFolder(tmp_path).batch([9, 0, 5, 5])
    assert batch.images[:, 0, 0, 0].tolist() == [9, 0, 5, 5]
    assert batch.scenes.xy[:, 0, 0].tolist() == pytest.approx([0.09, 0.0, 0.05, 0.05])
    with pytest.raises(IndexError):
        ShardFolder(tmp_path)[10]


def test_no_images_are_a_batch_too(tmp_path):
    fill(tmp_path)
    none, one = (ShardFolder(tmp_path).batch(rows) for rows in ([], [0]))
    assert none.images.shape == (0, 3, 6, 8) and none.masks.shape == (0, 6, 8) and len(none.scenes) == 0
    assert none.images.dtype == one.images.dtype and none.scenes.xy.shape[1:] == one.scenes.xy.shape[1:]


def test_a_folder_that_was_read_goes_to_another_process(tmp_path):
    fill(tmp_path)
    folder = ShardFolder(tmp_path)
    assert (folder[7].image == 7).all()
    assert (pickle.loads(pickle.dumps(folder))[7].image == 7).all()


def test_a_finished_folder_is_not_drawn_again(tmp_path):
    fill(tmp_path)
    before, again = fingerprints(tmp_path), Counting()
    fill(tmp_path, again)
    assert again.drawn == [] and fingerprints(tmp_path) == before


def test_an_interrupted_run_carries_on_and_ends_up_the_same(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        fill(tmp_path / "a", Counting(fail_at=8))
    with pytest.raises(UserError, match=r"unfinished \(2 shards so far\)"):
        ShardFolder(tmp_path / "a")
    before, again = fingerprints(tmp_path / "a"), Counting()
    fill(tmp_path / "a", again)
    assert again.drawn == [8]
    after = fingerprints(tmp_path / "a")
    assert {name: after[name] for name in before} == before
    fill(tmp_path / "b")
    assert [s[0] for s in after.values()] == [s[0] for s in fingerprints(tmp_path / "b").values()]


def test_a_killed_process_leaves_only_whole_shards(tmp_path):
    """A real SIGKILL, in the middle of the third shard; what is listed is whole and stays as it is."""
    script = (
        f"import sys, time; sys.path[:0] = {[str(Path(__file__).parent), str(Path(__file__).parents[1])]}\n"
        "import test_shards as t\n"
        "def slow(first, many):\n"
        "    if first == 8: print('third', flush=True); time.sleep(60)\n"
        "    return t.numbered_images(first, many)\n"
        f"t.fill(t.Path({str(tmp_path)!r}), slow, count=20)\n"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline().strip() == "third"
        process.send_signal(signal.SIGKILL)
    host = socket.gethostname().partition(".")[0]
    (tmp_path / f".shard-00002.safetensors.{host}.{process.pid}-1.part").write_bytes(b"half of something")
    before, again = fingerprints(tmp_path), Counting()
    assert len(before) == 2
    fill(tmp_path, again, count=20)
    assert again.drawn == [8, 12, 16]
    assert {name: value for name, value in fingerprints(tmp_path).items() if name in before} == before
    assert not list(tmp_path.glob(".*.part"))
    ShardFolder(tmp_path).verify()


def flip_a_byte(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)


def test_a_flipped_bit_is_found_named_and_repaired_alone(tmp_path):
    fill(tmp_path)
    whole = fingerprints(tmp_path)
    flip_a_byte(tmp_path / "shard-00001.safetensors", -5)
    with pytest.raises(UserError, match=r"shard-00001\.safetensors .* is damaged \(its checksum"):
        ShardFolder(tmp_path).verify()
    again = Counting()
    fill(tmp_path, again)
    assert again.drawn == [4]
    assert [s[0] for s in fingerprints(tmp_path).values()] == [s[0] for s in whole.values()]
    ShardFolder(tmp_path).verify()


@pytest.mark.parametrize("damage", ["truncated", "missing", "garbled"])
def test_reading_a_damaged_shard_names_it_and_leaves_the_others_readable(tmp_path, damage):
    fill(tmp_path)
    path = tmp_path / "shard-00000.safetensors"
    if damage == "missing":
        path.unlink()
    else:
        data = path.read_bytes()
        path.write_bytes(data[:100] if damage == "truncated" else b"\xff" * len(data))
    folder = ShardFolder(tmp_path)
    assert (folder[7].image == 7).all()
    with pytest.raises(UserError, match=r"shard-00000\.safetensors .* is damaged"):
        folder[0]


def test_other_settings_are_refused_and_nothing_is_touched(tmp_path):
    fill(tmp_path)
    before, manifest = fingerprints(tmp_path), (tmp_path / _MANIFEST).read_text()
    for change in ({"settings": {**SETTINGS, "seed": 1}}, {"count": 11}, {"per_shard": 5}):
        with pytest.raises(UserError, match="other settings"):
            fill(tmp_path, **change)
    with pytest.raises(UserError, match=r"rules\.spacing: None there, relaxed here"):
        fill(tmp_path, settings={**SETTINGS, "rules": {"spacing": "relaxed"}})
    assert fingerprints(tmp_path) == before and (tmp_path / _MANIFEST).read_text() == manifest


def test_a_manifest_names_no_shard_outside_its_folder(tmp_path):
    fill(tmp_path / "shards")
    (tmp_path / "shards" / "shard-00001.safetensors").rename(tmp_path / "moved.safetensors")
    path = tmp_path / "shards" / _MANIFEST
    path.write_text(path.read_text().replace("shard-00001.safetensors", "../moved.safetensors"))
    folder = ShardFolder(tmp_path / "shards")
    assert len(folder[0].image) == 3
    for use in (folder.verify, lambda: folder[5], lambda: fill(tmp_path / "shards")):
        with pytest.raises(UserError, match="not a file inside that folder"):
            use()


def test_a_folder_that_holds_something_else_is_refused(tmp_path):
    (tmp_path / _MANIFEST).write_text('{"name": "some web app"}')
    with pytest.raises(UserError, match="not the manifest of a shard folder"):
        fill(tmp_path)
    assert list(tmp_path.iterdir()) == [tmp_path / _MANIFEST]
    (tmp_path / _MANIFEST).write_text('{"format": "tessera-shards", "version": 99}')
    with pytest.raises(UserError, match="version 99"):
        ShardFolder(tmp_path)


def test_a_full_disk_is_one_sentence_and_finished_shards_stay(tmp_path, monkeypatch):
    real = Path.write_bytes

    def full(path, data):
        if "shard-00002" in path.name:
            real(path, data[:50])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(path, data)

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(UserError, match=r"No space left on device; 2 of 3 shards are finished and intact"):
        fill(tmp_path)
    before = fingerprints(tmp_path)
    assert len(before) == 2 and not list(tmp_path.glob(".*"))
    monkeypatch.undo()
    fill(tmp_path)
    assert {k: v for k, v in fingerprints(tmp_path).items() if k in before} == before


RENDER = ["render", "--count", "6", "--size", "32", "--shards", "2", "--set", "visibility=off", "--device", "cpu"]


def run_tessera(*words: str, **options) -> subprocess.CompletedProcess:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tessera", *words]
    return subprocess.run(command, capture_output=True, text=True, env=environment, **options)


def test_a_limit_on_file_size_ends_the_command_with_code_2(tmp_path):
    """The kernel itself refuses the write: 32x32 shards of two images are larger than 4 kB."""

    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))

    done = run_tessera(*RENDER, "--out", str(tmp_path), preexec_fn=limit)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert "File too large" in done.stderr and "0 of 3 shards" in done.stderr.replace("\n", " ")


def test_a_really_full_disk_ends_the_command_with_code_2(tmp_path):
    """A file system of 32 kB in a namespace of its own: two shards fit, the third does not."""
    words = " ".join([sys.executable, "-m", "tessera", *RENDER, "--out", str(tmp_path)])
    ls = f"ls -A {tmp_path}"
    mount = f"mount -t tmpfs -o size=32k none {tmp_path}"
    script = f"{mount} || exit 77; OMP_NUM_THREADS=1 {words}; echo code=$?; {ls}; cat {tmp_path}/{_MANIFEST}"
    try:
        done = subprocess.run(["unshare", "-rm", "sh", "-c", script], capture_output=True, text=True)
    except FileNotFoundError:
        pytest.skip("this system has no unshare")
    if done.returncode == 77 or "unshare" in done.stderr:
        pytest.skip("this system lets us mount no file system of our own")
    assert "code=2" in done.stdout and "No space left on device" in done.stderr, done
    assert "Traceback" not in done.stderr and ".part" not in done.stdout
    listed = json.loads(done.stdout[done.stdout.index("{") :])
    assert not listed["complete"] and 0 < len(listed["shards"]) < 3


@pytest.mark.parametrize(("words", "images"), [("4096", 4096), ("1MB", 20), ("2.5kb", 1), ("1 GB", 20345), ("10kB", 1)])
def test_shard_sizes_are_numbers_of_images_or_bytes(words, images):
    assert images_per_shard(words, 49152) == images


@pytest.mark.parametrize("words", ["0", "-4", "many", "1.5", "0MB", "4 TBs"])
def test_what_is_no_shard_size_is_refused(words):
    with pytest.raises(UserError):
        images_per_shard(words, 49152)


def test_shards_and_images_of_the_same_command_are_the_same(tmp_path):
    from tessera.cli.main import main

    common = ["--count", "5", "--size", "32", "--device", "cpu", "--visibility", "off", "--batch", "3"]
    for words in (["--out", str(tmp_path / "a")], ["--out", str(tmp_path / "b"), "--shards", "2"]):
        with pytest.raises(SystemExit) as leaving:
            main(with_set("render", *common, *words))
        assert leaving.value.code == 0
    for path in (tmp_path / "a").glob("*/*.png"):
        path.rename(path.with_name(path.name.removeprefix("CLEVR_tessera_")))
    from compare_renders import compare

    found = compare(tmp_path / "a", tmp_path / "b")
    assert len(found) == 5 and all(row.psnr == 100 for row in found)
    assert all(iou == 1 for row in found for iou in row.mask_iou)


def test_many_images_at_random_open_each_shard_once(tmp_path, monkeypatch):
    opened, really_open = [], shards.safe_open

    def open_and_note(path, **options):
        opened.append(path.name)
        return really_open(path, **options)

    fill(tmp_path, count=200, per_shard=50)
    monkeypatch.setattr(shards, "safe_open", open_and_note)
    folder = ShardFolder(tmp_path)
    order = torch.randperm(200, generator=torch.Generator().manual_seed(0)).tolist()
    batch = folder.batch(order)
    assert batch.images[:, 0, 0, 0].tolist() == order
    assert len(opened) == len(set(opened)) == 4
