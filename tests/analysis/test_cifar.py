"""CIFAR-10 in every form it comes in, a pickle that can do no harm, and Figure 12 in small."""

import io
import json
import os
import pickle
import signal
import struct
import tarfile

import numpy as np
import pytest
import torch

from tessera.analysis.cifar import load_cifar, read_plain_pickle, shuffled_steps
from tessera.errors import UserError
from tessera.render.image_io import save_png
from tessera.studies.clevr.fig12 import fig12


@pytest.fixture(scope="module")
def known():
    """Five training files and a test file of four images each: (6, 4, 3072) values and (6, 4) labels."""
    rng = np.random.default_rng(0)
    return rng.integers(256, size=(6, 4, 3072), dtype=np.uint8), rng.integers(10, size=(6, 4), dtype=np.uint8)


NAMES = [*(f"data_batch_{n}" for n in range(1, 6)), "test_batch"]


def text(word: bytes) -> bytes:
    """A string as Python 2 pickled it."""
    return b"U" + bytes([len(word)]) + word


def whole(number: int) -> bytes:
    return b"J" + struct.pack("<i", number)


def as_python_2(data: np.ndarray, labels: np.ndarray) -> bytes:
    """The official files' very opcodes: protocol 2, byte strings, an array rebuilt by numpy."""
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\nq\x01cnumpy\nndarray\nq\x02K\x00\x85" + text(b"b") + b"\x87R"
        b"(K\x01" + whole(data.shape[0]) + whole(data.shape[1]) + b"\x86"
        b"cnumpy\ndtype\n" + text(b"u1") + b"K\x00K\x01\x87R(K\x03" + text(b"|") + b"NNN"
        b"J\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89T"
        + struct.pack("<i", data.size)
        + data.tobytes()
        + b"tb"
    )
    listed = b"](" + b"".join(b"K" + bytes([label]) for label in labels) + b"e"
    entries = text(b"batch_label") + text(b"part 1") + text(b"labels") + listed + text(b"data") + array
    return b"\x80\x02}(" + entries + b"u."


def as_python_3(data: np.ndarray, labels: np.ndarray) -> bytes:
    return pickle.dumps({b"data": data, b"labels": labels.tolist()}, protocol=3)


def as_binary(data: np.ndarray, labels: np.ndarray) -> bytes:
    return np.concatenate([labels[:, None], data], axis=1).tobytes()


FORMS = {"python 2": (as_python_2, ""), "python 3": (as_python_3, ""), "binary": (as_binary, ".bin")}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("packed", [True, False])
def test_every_form_gives_the_same_images(tmp_path, known, form, packed):
    write, ending = FORMS[form]
    files = {name + ending: write(*part) for name, part in zip(NAMES, zip(*known))}
    folder = "cifar-10-batches-bin" if ending else "cifar-10-batches-py"
    if packed:
        path = tmp_path / "cifar.tar.gz"
        with tarfile.open(path, "w:gz") as archive:
            for name, content in files.items():
                entry = tarfile.TarInfo(f"{folder}/{name}")
                entry.size = len(content)
                archive.addfile(entry, io.BytesIO(content))
    else:
        path = tmp_path
        (tmp_path / folder).mkdir()
        for name, content in files.items():
            (tmp_path / folder / name).write_bytes(content)
    for split, rows in (("train", slice(0, 5)), ("test", slice(5, 6))):
        found = load_cifar(path, split)
        assert torch.equal(found.images, torch.from_numpy(known[0][rows].reshape(-1, 3, 32, 32)))
        assert found.labels.tolist() == known[1][rows].ravel().tolist()


def test_folders_of_png_and_strips_of_png(tmp_path, known):
    images = torch.from_numpy(known[0][0].reshape(-1, 3, 32, 32))
    for number, image in enumerate(images):
        folder = tmp_path / "classes" / ("bee" if number % 2 else "ant")
        folder.mkdir(parents=True, exist_ok=True)
        save_png(folder / f"{number}.png", image)
    found = load_cifar(tmp_path / "classes")
    assert found.classes == ("ant", "bee") and found.labels.tolist() == [0, 0, 1, 1]
    assert torch.equal(found.images, images[[0, 2, 1, 3]])
    with pytest.raises(UserError, match="too few images"):
        load_cifar(tmp_path / "classes", "test")
    image_grids = tmp_path / "image_grids"
    image_grids.mkdir()
    save_png(image_grids / "test_batch.png", images.flatten(2).transpose(0, 1))  # a row per image
    (image_grids / "test_labels.json").write_text(json.dumps([3, 1, 4, 1]))
    found = load_cifar(image_grids, "test")
    assert torch.equal(found.images, images) and found.labels.tolist() == [3, 1, 4, 1]


def test_images_that_nobody_divided_are_either_for_training_or_for_the_test(tmp_path, known):
    images = torch.from_numpy(known[0].reshape(-1, 3, 32, 32))  # 24
    for number, image in enumerate(images):
        (tmp_path / "ant").mkdir(exist_ok=True)
        save_png(tmp_path / "ant" / f"{number:02d}.png", image)
    held_out = torch.arange(24) % 6 == 5
    assert torch.equal(load_cifar(tmp_path, "train").images, images[~held_out])
    assert torch.equal(load_cifar(tmp_path, "test").images, images[held_out])


# -- what a pickle may not do ------------------------------------------------------------------------------------


class Harm:
    def __init__(self, call, *words):
        self.call, self.words = call, words

    def __reduce__(self):
        return self.call, self.words


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_a_pickle_that_wants_to_act_is_refused_and_does_not_act(tmp_path, protocol):
    mark = tmp_path / "harm"
    for call, words in (
        (os.system, (f"touch {mark}",)),
        (eval, (f"open({str(mark)!r}, 'w')",)),
        (open, (str(mark), "w")),
    ):
        content = pickle.dumps({"data": Harm(call, *words), "labels": [0]}, protocol=protocol)
        with pytest.raises(UserError, match="was refused: it asks for"):
            read_plain_pickle(content, "it")
    assert not mark.exists()


def test_damaged_files_are_told(tmp_path, known):
    good = as_python_2(known[0][0], known[1][0])
    cases = {
        "was refused": good[:-500],
        "lacks `data`": pickle.dumps({"labels": [1]}),
        "do not fit": as_python_2(known[0][0], known[1][0][:3]),
        "outside 0 to 9": as_python_2(known[0][0], known[1][0] + 10),
        "not bytes": as_python_3(known[0][0].astype(np.float32), known[1][0]),
    }
    for words, content in cases.items():
        (tmp_path / "test_batch").write_bytes(content)
        with pytest.raises(UserError, match=words):
            load_cifar(tmp_path, "test")
    (tmp_path / "test_batch").unlink()
    (tmp_path / "test_batch.bin").write_bytes(b"12345")
    with pytest.raises(UserError, match="no multiple"):
        load_cifar(tmp_path, "test")
    (tmp_path / "broken.tar.gz").write_bytes(b"no archive")
    for path, words in ((tmp_path / "broken.tar.gz", "as an archive"), (tmp_path / "none", "no CIFAR-10")):
        with pytest.raises(UserError, match=words):
            load_cifar(path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="neither the files"):
        load_cifar(tmp_path / "empty")


# -- training on it ------------------------------------------------------------------------------------------------


def test_every_pass_shows_every_image_once_and_resuming_changes_nothing():
    steps = shuffled_steps(10, 4, 0, seed=3)
    seen = torch.stack([next(steps) for _ in range(10)])
    for turn in seen.flatten().view(4, 10):
        assert sorted(turn.tolist()) == list(range(10))
    assert not torch.equal(*seen.flatten().view(4, 10)[:2])
    resumed = shuffled_steps(10, 4, 7, seed=3)
    assert torch.equal(next(resumed), seen[7])


@pytest.fixture
def archive(tmp_path, known):
    folder = tmp_path / "cifar-10-batches-bin"
    folder.mkdir()
    for name, part in zip(NAMES, zip(*known)):
        (folder / f"{name}.bin").write_bytes(as_binary(*part))
    return tmp_path


FEW = {"preset": "tiny", "images": 1, "levels": 2, "steps": 2}


def test_an_interrupted_training_is_put_away_after_its_step(archive):
    with pytest.raises(UserError, match="the same command carries on"):
        fig12(
            archive,
            archive / "out",
            **FEW,
            total=48,
            on_step=lambda seen: signal.raise_signal(signal.SIGTERM),
        )
    states = sorted(path.name for path in archive.rglob("state-*.safetensors"))
    assert states == ["state-000000000016.safetensors"]


def test_figure_12_in_small(tmp_path, archive):
    options = {**FEW, "total": 16}
    record = fig12(tmp_path, tmp_path / "out", **options)
    assert (tmp_path / "out" / "fig12.png").stat().st_size > 10_000
    sigmas, ratio = [row["sigma"] for row in record["levels"]], record["growth"]["ratio"]
    assert len(sigmas) == 2 and sigmas[0] == 80 and sigmas[-1] == pytest.approx(0.002)
    assert ratio["low"] <= ratio["value"] <= ratio["high"]
    again = fig12(tmp_path, tmp_path / "out", **options, source="generated")  # trained once, measured twice
    assert again["source"] == "generated" and again["settings"] == record["settings"]
