"""What SECURITY.md promises: input that is damaged or made to do harm is refused in one sentence, and nothing is lost."""

import io
import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tarfile
import time

import pytest
import torch
from PIL import Image

from tessera.analysis.cifar import load_cifar
from tessera.cli.main import main
from tessera.config import settings_for
from tessera.errors import UserError
from tessera.files import atomic, check_types, fits_type, read_json, read_lines, write_json
from tessera.models.checkpoint_io import read_checkpoint, write_checkpoint
from tessera.models.run_snapshots import load_run
from tessera.render.image_io import open_image
from tessera.render.shards import ShardFolder
from tessera.training.run_folder import RunFolder, train_run

TINY = {
    "data": {"size": 8},
    "conditioner": {"cells": 4},
    "denoiser": {"width": 8, "blocks": 1, "mult": (1,), "head_width": 8, "tile": 1},
    "training": {"batch": 4, "total": 24, "snapshot": 8, "checkpoint": 8, "render_batch": 16},
}


def tiny(**training):
    return settings_for("exp1", "tiny", {**TINY, "training": {**TINY["training"], **training}})


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "run"
    train_run(tiny(), folder)
    return folder


@pytest.fixture
def run(finished, tmp_path):
    return shutil.copytree(finished, tmp_path / "run")


def code_of(*words):
    with pytest.raises(SystemExit) as left:
        main([str(word) for word in words])
    return left.value.code


# -- one checked reader of JSON ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "content",
    [
        b"[" * 200_000,
        b"[" * 500 + b"]" * 500,
        b"9" * 5000,
        b"[1e999]",
        b"[NaN]",
        b"[99999999999999999999]",
        b'["\\ud800"]',
        b"\xff\xfe",
        b"",
    ],
)
def test_immoderate_json_is_refused_in_one_sentence(tmp_path, content):
    (tmp_path / "a.json").write_bytes(content)
    with pytest.raises(UserError, match="not valid JSON"):
        read_json(tmp_path / "a.json")
    (tmp_path / "a.jsonl").write_bytes(b'{"a": 1}\n' + content + b"\n")
    assert read_lines(tmp_path / "a.jsonl") == [{"a": 1}]


def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for read in (read_json, read_checkpoint, open_image, read_lines):
        with pytest.raises(UserError, match="no regular file"):
            read(tmp_path / "pipe")


def test_types_are_compared_with_annotations():
    assert fits_type(3, float) and fits_type([1, 2], tuple[int, ...]) and fits_type(None, int | None)
    for value, hint in ((True, int), ("3", float), ([1], tuple[int, int]), ([1, "a"], list[int]), ({}, list[int])):
        assert not fits_type(value, hint)
    with pytest.raises(UserError, match="`images_seen` cannot be 'many'"):
        check_types(type("Row", (), {"__annotations__": {"images_seen": int}}), {"images_seen": "many"}, "A row")


@pytest.mark.parametrize(
    ("group", "name", "value"),
    [
        ("data", "size", 10**9),
        ("denoiser", "width", "wide"),
        ("denoiser", "mult", [10**6]),
        ("conditioner", "cells", True),
        ("training", "batch", None),
        ("training", "ema", ["a"]),
    ],
)
def test_a_config_with_a_wrong_value_is_refused(run, group, name, value):
    config = json.loads((run / "config.json").read_text())
    config[group][name] = value
    (run / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match=name):
        load_run(run)


# -- images ------------------------------------------------------------------------------------------------------


def test_a_decompression_bomb_is_refused_by_its_header(tmp_path):
    Image.new("1", (13_000, 13_000)).save(tmp_path / "bomb.png")
    with pytest.raises(UserError, match="million pixels"):
        open_image(tmp_path / "bomb.png")


def test_a_file_that_starts_another_program_is_no_image(tmp_path):
    (tmp_path / "a.png").write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n")
    with pytest.raises(UserError, match="not an image"):
        open_image(tmp_path / "a.png")


def test_a_tar_bomb_is_refused_before_it_is_unpacked(tmp_path):
    with tarfile.open(tmp_path / "bomb.tar.gz", "w:gz", compresslevel=1) as archive:
        member = tarfile.TarInfo("test_batch.bin")
        member.size = 80 << 20
        archive.addfile(member, io.BytesIO(bytes(member.size)))
    with pytest.raises(UserError, match="no archive of CIFAR-10"):
        load_cifar(tmp_path / "bomb.tar.gz", "test")


# -- sealed facts ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["ema-000000000016-0.050", "ema-000000000024-0.100"])
def test_an_average_under_another_name_is_not_believed(run, name):
    shutil.copy(run / f"snapshots/{name}.safetensors", run / "snapshots/ema-000000000024-0.050.safetensors")
    with pytest.raises(UserError, match="not what its name says"):
        load_run(run)


@pytest.mark.parametrize("facts", [{"images_seen": "many"}, {}, {"images_seen": 10**30}, {"losses": 3}])
def test_a_state_with_odd_facts_is_skipped(run, facts, capsys):
    newest = RunFolder(run).states()[0]
    tensors, _ = read_checkpoint(newest)
    write_checkpoint(newest, tensors, facts)
    assert train_run(tiny(total=28), run, on_message=print).finished
    assert f"Skipping {newest.name}, falling back" in capsys.readouterr().out


def test_an_average_of_another_run_is_not_believed(run, tmp_path):
    train_run(tiny(seed=1), tmp_path / "other")
    name = "snapshots/ema-000000000024-0.050.safetensors"
    shutil.copy(tmp_path / "other" / name, run / name)
    with pytest.raises(UserError, match="its seal is"):
        load_run(run)


def test_a_run_without_its_config_is_not_carried_on_with_other_settings(run):
    (run / "config.json").unlink()
    with pytest.raises(UserError, match=r"training\.lr"):
        RunFolder(run).prepare(tiny(lr=0.001))
    assert not (run / "config.json").exists()
    RunFolder(run).prepare(tiny(total=32))


def test_a_shard_is_compared_with_its_checksum_before_its_first_image(tmp_path):
    assert not code_of("render", "--count", 2, "--size", 16, "--shards", 1, "--out", tmp_path, "--device", "cpu")
    shard = tmp_path / "shard-00001.safetensors"
    content = bytearray(shard.read_bytes())
    content[-9] ^= 1
    shard.write_bytes(content)
    folder = ShardFolder(tmp_path)
    folder[0]
    with pytest.raises(UserError, match="checksum does not match"):
        folder[1]


@pytest.mark.parametrize("change", [{"per_shard": 0}, {"per_shard": "2"}, {"count": 10**9}, {"count": -1}])
def test_a_manifest_that_lists_other_shards_is_refused(tmp_path, change):
    assert not code_of("render", "--count", 2, "--size", 16, "--shards", 1, "--out", tmp_path, "--device", "cpu")
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    manifest["settings"] |= change
    write_json(tmp_path / "manifest.json", manifest)
    with pytest.raises(UserError):
        ShardFolder(tmp_path)


# -- what is left behind -----------------------------------------------------------------------------------------


def test_tensor_files_may_be_read_by_whom_their_folder_lets_in(tmp_path):
    write_checkpoint(tmp_path / "a.safetensors", {"a": torch.zeros(3)})
    (tmp_path / "b.txt").touch()
    assert stat.S_IMODE((tmp_path / "a.safetensors").stat().st_mode) == stat.S_IMODE(
        (tmp_path / "b.txt").stat().st_mode
    )


def test_what_a_killed_process_began_to_write_is_removed_by_the_next(tmp_path):
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    host = socket.gethostname().partition(".")[0]
    (tmp_path / f".a.json.{host}.{dead.pid}-1.part").touch()
    others = [f".a.json.elsewhere.{dead.pid}-1.part", f".a.json.{host}.{os.getppid()}-1.part", "notes.part"]
    for name in others:
        (tmp_path / name).touch()
    write_json(tmp_path / "a.json", {})
    assert sorted(os.listdir(tmp_path)) == sorted([*others, "a.json"])


def test_a_name_as_long_as_names_can_be_is_written(tmp_path):
    with atomic(tmp_path / ("a" * 255)) as temporary:
        temporary.write_text("whole")
    assert (tmp_path / ("a" * 255)).read_text() == "whole"
    with pytest.raises(UserError, match="too long"), atomic(tmp_path / ("a" * 256)) as temporary:
        temporary.write_text("whole")


def test_the_log_is_the_same_after_a_pause_between_two_lines(tmp_path):
    settings = tiny(total=16, snapshot=16, checkpoint=16)
    train_run(settings, tmp_path / "whole")

    def stop_after_two(images_seen):
        if images_seen == 8:
            os.kill(os.getpid(), signal.SIGTERM)

    assert train_run(settings, tmp_path / "paused", on_step=stop_after_two).interrupted
    train_run(settings, tmp_path / "paused")
    logs = [[row["loss"] for row in RunFolder(tmp_path / name).records()] for name in ("whole", "paused")]
    assert logs[0] == logs[1]


def test_a_run_leaves_the_same_states_however_often_it_was_paused(run, tmp_path):
    settings = tiny(total=32)

    def stop_between(images_seen):
        if images_seen == 28:
            os.kill(os.getpid(), signal.SIGTERM)

    assert train_run(settings, run, on_step=stop_between).interrupted
    train_run(settings, run)
    assert [path.stem[-2:] for path in RunFolder(run).states()] == ["32", "24"]


def test_samples_that_a_kill_prevented_are_made_on_resuming(run):
    seen = []
    train_run(tiny(total=28), run, on_snapshot=lambda folder, trainer: seen.append(trainer.images_seen))
    assert seen == [24, 28]


# -- how a command ends ------------------------------------------------------------------------------------------


def ending_of(words, **options):
    command = [sys.executable, "-m", "tessera", *map(str, words)]
    return subprocess.run(command, stderr=subprocess.PIPE, text=True, timeout=60, check=False, **options)


def test_a_full_disk_behind_stdout_is_one_sentence():
    with open("/dev/full", "w") as full:
        found = ending_of(["models", "--json"], stdout=full)
    assert found.returncode == 2 and found.stderr.startswith("tessera: ") and found.stderr.count("\n") == 1


def test_a_locale_without_letters_spells_them_out():
    plain = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": "ascii"}
    found = ending_of(["train", "expé"], env=plain, stdout=subprocess.DEVNULL)
    assert found.returncode == 2 and "Traceback" not in found.stderr


def test_a_name_too_long_for_a_file_is_one_sentence(capsys):
    assert code_of("evaluate", "a" * 300) == 2
    assert code_of("sample", "a" * 5000) == 2
    assert "Traceback" not in capsys.readouterr().err


def test_sigterm_ends_a_render_with_a_sentence_and_no_leftovers(tmp_path):
    words = ["render", "--count", "5000", "--size", "64", "--out", tmp_path / "r", "--device", "cpu", "--threads", "1"]
    process = subprocess.Popen([sys.executable, "-m", "tessera", *map(str, words)], stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while not list(tmp_path.glob("r/images/*.png")) and time.monotonic() < deadline:
        time.sleep(0.05)
    process.terminate()
    said = process.communicate(timeout=60)[1]
    assert process.returncode == 143 and said == "tessera: stopped.\n"
    assert not list(tmp_path.rglob("*.part"))
