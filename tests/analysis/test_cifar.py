"""CIFAR-10 from its binary archive, and Figure 12 in small."""

import io
import signal
import tarfile
from dataclasses import replace

import numpy as np
import pytest
import torch

from tessera.analysis.cifar import ShuffledImages, load_cifar
from tessera.analysis.locality import LocalityConfig
from tessera.errors import UserError
from tessera.render.image_io import to_uint8
from tessera.studies.clevr.fig12 import cifar_settings, fig12, growth


@pytest.fixture(scope="module")
def known():
    """Five training files and a test file of four images each: (6, 4, 3072) values and (6, 4) labels."""
    rng = np.random.default_rng(0)
    return rng.integers(256, size=(6, 4, 3072), dtype=np.uint8), rng.integers(10, size=(6, 4), dtype=np.uint8)


NAMES = [*(f"data_batch_{n}" for n in range(1, 6)), "test_batch"]


def as_binary(data: np.ndarray, labels: np.ndarray) -> bytes:
    return np.concatenate([labels[:, None], data], axis=1).tobytes()


@pytest.mark.parametrize("packed", [True, False])
def test_packed_and_unpacked_archives_give_the_same_images(tmp_path, known, packed):
    files = {f"{name}.bin": as_binary(*part) for name, part in zip(NAMES, zip(*known))}
    folder = "cifar-10-batches-bin"
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
        assert torch.equal(found, torch.from_numpy(known[0][rows].reshape(-1, 3, 32, 32)))


def test_damaged_files_are_refused_in_one_sentence(tmp_path, known):
    cases = {"no multiple of 3073": b"12345", "outside 0 to 9": as_binary(known[0][0], known[1][0] + 10)}
    for sentence, content in cases.items():
        (tmp_path / "test_batch.bin").write_bytes(content)
        with pytest.raises(UserError, match=sentence):
            load_cifar(tmp_path, "test")
    (tmp_path / "broken.tar.gz").write_bytes(b"no archive")
    for path, sentence in ((tmp_path / "broken.tar.gz", "as an archive"), (tmp_path / "none", "no CIFAR-10")):
        with pytest.raises(UserError, match=sentence):
            load_cifar(path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "data_batch_1").write_bytes(b"the python version, a pickle")
    with pytest.raises(UserError, match="none of the files of CIFAR-10's binary version"):
        load_cifar(tmp_path / "empty")


# -- training on it ------------------------------------------------------------------------------------------------


def test_every_pass_shows_every_image_once_and_resuming_changes_nothing():
    images = torch.arange(10, dtype=torch.uint8).view(10, 1, 1, 1).expand(-1, 3, 1, 1)
    stream = ShuffledImages(images, seed=3)
    steps = stream.steps(0, 4)
    batches = [next(steps) for _ in range(10)]
    numbers = torch.stack([to_uint8(batch.images)[:, 0, 0, 0] for batch in batches])
    for turn in numbers.flatten().view(4, 10):
        assert sorted(turn.tolist()) == list(range(10))
    assert not torch.equal(*numbers.flatten().view(4, 10)[:2])
    resumed = next(stream.steps(28, 4))
    assert torch.equal(resumed.images, batches[7].images) and resumed.index.tolist() == [28, 29, 30, 31]
    assert resumed.cond.shape == (4, 0)


@pytest.fixture
def archive(tmp_path, known):
    folder = tmp_path / "cifar-10-batches-bin"
    folder.mkdir()
    for name, part in zip(NAMES, zip(*known)):
        (folder / f"{name}.bin").write_bytes(as_binary(*part))
    return tmp_path


FEW = LocalityConfig(k=0, images=1, levels=2, steps=2, source="truth")


def test_an_interrupted_training_is_put_away_after_its_step(archive):
    settings = cifar_settings("tiny", 48)
    with pytest.raises(UserError, match="the same command carries on"):
        fig12(archive, archive / "out", settings, FEW, on_step=lambda seen: signal.raise_signal(signal.SIGTERM))
    states = sorted(path.name for path in archive.rglob("state-*.safetensors"))
    assert states == ["state-000000000016.safetensors"]


def test_figure_12_in_small(tmp_path, archive):
    settings = cifar_settings("tiny", 16)
    record = fig12(tmp_path, tmp_path / "out", settings, FEW)
    assert (tmp_path / "out" / "fig12.png").stat().st_size > 10_000
    sigmas, ratio = [row["sigma"] for row in record["levels"]], record["growth"]["ratio"]
    assert len(sigmas) == 2 and sigmas[0] == 80 and sigmas[-1] == pytest.approx(0.002)
    assert ratio["low"] <= ratio["value"] <= ratio["high"]
    own = replace(FEW, source="generated")
    again = fig12(tmp_path, tmp_path / "out", settings, own)  # trained once, measured twice
    assert again["source"] == "generated" and again["settings"] == record["settings"]


def test_growth_compares_the_highest_third_of_the_levels_with_the_lowest():
    found = growth(np.array([[9.0, 7, 5, 3, 3, 1]]), [80, 20, 5, 1, 0.2, 0.05])
    assert (found["side_high_noise"], found["side_low_noise"], found["levels_in_a_third"]) == (8, 2, 2)
    assert found["ratio"] == {"value": 4, "low": 4, "high": 4} and found["spearman_with_sigma"] > 0.9
