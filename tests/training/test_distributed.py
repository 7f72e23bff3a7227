"""Several processes: the same samples seen, the same result up to the order of sums."""

import multiprocessing

import pytest
import torch
import torch.distributed as dist

from tessera.denoiser.sealed import read_sealed
from tessera.training.distributed import ALONE, Group, buckets
from tessera.training.run import RunFolder, train_run


def one_of_two(rank, settings, folder, meeting):
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
    train_run(settings, folder, group=Group(rank, 2), tell_person=lambda message: None)
    dist.destroy_process_group()


def run_two(settings, folder, meeting):
    context = multiprocessing.get_context("fork")
    pair = [context.Process(target=one_of_two, args=(r, settings, folder, meeting)) for r in (0, 1)]
    for process in pair:
        process.start()
    for process in pair:
        process.join(60)
    assert [process.exitcode for process in pair] == [0, 0]


def state_of(folder):
    return read_sealed(RunFolder(folder).states()[0])[0]


@pytest.mark.parametrize("experiment", ["exp1", "exp2L"])
def test_two_processes_train_like_one(minute, tmp_path, experiment):
    settings = minute(experiment, training={"total": 32, "batch": 8, "lr": 0.002})
    train_run(settings, tmp_path / "one", tell_person=lambda message: None)
    run_two(settings, tmp_path / "two", tmp_path / "meeting")
    one, two = state_of(tmp_path / "one"), state_of(tmp_path / "two")
    assert one.keys() == two.keys()
    for name in one:
        if name.startswith("model."):
            assert torch.allclose(one[name], two[name], atol=2e-3), name
    losses = [[r["loss"] for r in RunFolder(tmp_path / name).records()] for name in ("one", "two")]
    assert losses[0] == pytest.approx(losses[1], abs=1e-3)


def test_two_processes_carry_on_what_one_began(minute, tmp_path):
    begun = minute(training={"total": 16, "batch": 8})
    train_run(begun, tmp_path / "run", tell_person=lambda message: None)
    run_two(minute(training={"total": 32, "batch": 8}), tmp_path / "run", tmp_path / "meeting")
    assert RunFolder(tmp_path / "run").states()[0].name == "state-000000000032.safetensors"


def test_alone_nothing_is_summed():
    tensor = torch.ones(3)
    ALONE.sum_([tensor])
    assert tensor.tolist() == [1, 1, 1] and ALONE.leads and ALONE.agree(True) and not ALONE.agree(False)


def test_buckets_hold_every_tensor_once(monkeypatch):
    monkeypatch.setattr("tessera.training.distributed.BUCKET", 40)
    tensors = [torch.zeros(n) for n in (3, 4, 20, 1)]
    assert [[t.numel() for t in portion] for portion in buckets(tensors)] == [[3, 4, 20], [1]]
