"""Run folders: killed, damaged, mistaken or out of space, nothing finished is lost and the end is the same."""

import multiprocessing
import os
import random
import signal
import time
from pathlib import Path

import pytest
import torch

from edm2_reference import response
from tessera.errors import UserError
from tessera.models.checkpoint_io import read_checkpoint, write_checkpoint
from tessera.models.run_snapshots import load_run, stored_averages
from tessera.training import trainer as loop
from tessera.training.run_folder import RunFolder, train_run

PATIENCE = 120  # seconds for one step of a tiny network, on the busiest of machines
STARTING = 0.1  # seconds in which a life that is to take no step is killed
SLACK = 2  # steps that a life may take beyond those it is killed after


def state_of(folder):
    """The newest state, as tensors."""
    return read_checkpoint(RunFolder(folder).states()[0])[0]


def moment(state):
    return int(state.stem.removeprefix("state-"))


def equal(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def quietly(settings, folder, **options):
    said = []
    outcome = train_run(settings, folder, on_message=said.append, **options)
    return outcome, said


def start_and_kill(settings, folder, steps, share):
    """Train in a process of its own and kill it a `share` of a step after so many steps.

    It is held back soon after them, so that it cannot get away, however quick it is and late the kill.
    """
    context = multiprocessing.get_context("fork")
    taken, allowed = context.Semaphore(0), context.Semaphore(steps + SLACK)

    def count(images_seen):
        taken.release()
        allowed.acquire()

    process = context.Process(target=quietly, args=(settings, folder), kwargs={"on_step": count})
    process.start()
    began = time.perf_counter()
    for _ in range(steps):
        assert taken.acquire(timeout=PATIENCE), "the run hangs, or ended before its time"
        began, pace = time.perf_counter(), time.perf_counter() - began
    time.sleep(share * (pace if steps else STARTING))
    assert process.is_alive()
    os.kill(process.pid, signal.SIGKILL)
    process.join()


def check_killed_run(settings, tmp_path, kills, steps, seed=0):
    """Kill a run so many times, each at most `steps` steps on; it ends as if nothing had happened."""
    quietly(settings, tmp_path / "whole")
    chance = random.Random(seed)
    lives = [chance.randint(0, steps) for _ in range(kills)]
    for taken in lives:
        start_and_kill(settings, tmp_path / "killed", taken, chance.random())
    newest = RunFolder(tmp_path / "killed").states()[0]
    # A state is written after every step here, so that a kill costs no step that was done.
    assert sum(lives) * settings.training.batch <= moment(newest) < settings.training.total
    outcome, _ = quietly(settings, tmp_path / "killed")
    assert outcome.finished
    assert equal(state_of(tmp_path / "killed"), state_of(tmp_path / "whole"))
    records = [
        [(r["images_seen"], r["loss"]) for r in RunFolder(tmp_path / name).records()] for name in ("killed", "whole")
    ]
    assert records[0] == records[1]
    for path in (tmp_path / "killed" / "snapshots").glob("*.safetensors"):
        read_checkpoint(path)


def test_a_run_killed_twice_ends_bit_for_bit_like_an_uninterrupted_one(minute, tmp_path):
    check_killed_run(minute(training={"checkpoint": 4, "total": 120}), tmp_path, kills=2, steps=8)


@pytest.mark.slow
def test_a_run_killed_twenty_times_ends_bit_for_bit_like_an_uninterrupted_one(minute, tmp_path):
    settings = minute(training={"checkpoint": 4, "total": 2400, "snapshot": 64})
    check_killed_run(settings, tmp_path, kills=20, steps=24, seed=1)


def test_a_paused_run_carries_on_and_the_total_may_grow(minute, tmp_path):
    quietly(minute(), tmp_path / "whole")
    paused, _ = quietly(minute(), tmp_path / "parts", minutes=0)
    assert not paused.finished and paused.images_seen == 4
    shorter, said = quietly(minute(training={"total": 32}), tmp_path / "parts")
    assert shorter.finished and "Carrying on" in said[0]
    quietly(minute(), tmp_path / "parts")
    assert equal(state_of(tmp_path / "parts"), state_of(tmp_path / "whole"))


def test_a_finished_run_stays_as_it_is(minute, tmp_path):
    quietly(minute(), tmp_path)
    before = state_of(tmp_path)
    outcome, _ = quietly(minute(), tmp_path)
    assert outcome.finished and equal(state_of(tmp_path), before)


def test_a_term_signal_saves_and_stops(minute, tmp_path):
    def stop(images_seen):
        if images_seen == 20:
            os.kill(os.getpid(), signal.SIGTERM)

    outcome, _ = quietly(minute(), tmp_path, on_step=stop)
    assert not outcome.finished and outcome.images_seen == 20
    assert RunFolder(tmp_path).states()[0].name == "state-000000000020.safetensors"


def test_before_the_first_step_a_signal_does_not_wait(minute, tmp_path, monkeypatch):
    def interrupted(trainer, batch):
        os.kill(os.getpid(), signal.SIGTERM)
        raise AssertionError("the step went on")

    monkeypatch.setattr(loop.Trainer, "step", interrupted)
    with pytest.raises(KeyboardInterrupt):
        quietly(minute(), tmp_path)
    assert not RunFolder(tmp_path).states()
    monkeypatch.undo()
    assert quietly(minute(), tmp_path)[0].finished  # and the folder is free again


@pytest.mark.parametrize("damage", ["truncated", "tampered"])
def test_a_damaged_state_is_skipped_with_a_message(minute, tmp_path, damage):
    quietly(minute(), tmp_path / "whole")
    quietly(minute(training={"total": 32}), tmp_path / "hurt")
    newest = RunFolder(tmp_path / "hurt").states()[0]
    whole = newest.read_bytes()
    changed = whole[:-50] + bytes([whole[-50] ^ 255]) + whole[-49:]
    newest.write_bytes(whole[: len(whole) // 2] if damage == "truncated" else changed)
    _, said = quietly(minute(), tmp_path / "hurt")
    assert newest.name in said[0] and "falling back" in said[0] and "state-000000000024" in said[1]
    assert equal(state_of(tmp_path / "hurt"), state_of(tmp_path / "whole"))


def test_with_all_states_damaged_training_starts_anew_and_ends_the_same(minute, tmp_path):
    settings = minute(training={"total": 16})
    quietly(settings, tmp_path)
    before = state_of(tmp_path)
    for path in RunFolder(tmp_path).states():
        path.write_bytes(b"")
    _, said = quietly(settings, tmp_path)
    assert "falling back to state-000000000008" in said[0] and "beginning anew" in said[1]
    assert equal(state_of(tmp_path), before)


def test_a_run_with_dropout_carries_on_exactly_whatever_the_global_generator(minute, tmp_path):
    settings = minute(denoiser={"dropout": 0.2})
    torch.manual_seed(0)
    quietly(settings, tmp_path / "whole")
    quietly(settings, tmp_path / "parts", minutes=0)
    torch.manual_seed(1)
    quietly(settings, tmp_path / "parts")
    assert equal(state_of(tmp_path / "parts"), state_of(tmp_path / "whole"))
    quietly(minute(), tmp_path / "none")
    assert not equal(state_of(tmp_path / "none"), state_of(tmp_path / "whole"))


def test_a_state_with_former_weight_names_is_continued(minute, tmp_path):
    settings = minute("exp1C", training={"total": 16})
    quietly(settings, tmp_path)
    path = RunFolder(tmp_path).states()[0]
    tensors, facts = read_checkpoint(path)
    former = {name.replace(".cond.weight", ".told.weight"): value for name, value in tensors.items()}
    assert former.keys() != tensors.keys()
    write_checkpoint(path, former, facts)
    _, said = quietly(settings, tmp_path)
    assert said == ["Carrying on from state-000000000016.safetensors (16 images)."]


def test_averages_keep_their_length_to_the_last_digit(minute, tmp_path):
    lengths = (0.0501, 0.0504, 0.0125, 0.1)
    quietly(minute(training={"snapshot": 64, "ema": lengths}), tmp_path)
    stored = stored_averages(tmp_path)
    assert {average.std for average in stored} == set(lengths) and len(stored) == 4
    models = {std: load_run(tmp_path, std) for std in (0.0501, 0.0503, 0.0504)}
    assert len({model.denoiser.out_gain.item() for model in models.values()}) == 3  # a number, kept in float32
    assert [model.config["ema"] for model in models.values()] == list(models)


def test_whatever_goes_wrong_after_a_snapshot_its_state_is_kept(minute, tmp_path):
    def fail(run, trainer):
        raise OSError("no room for an image")

    with pytest.raises(OSError, match="no room"):
        quietly(minute(), tmp_path, on_snapshot=fail)
    assert moment(RunFolder(tmp_path).states()[0]) == 32


def test_only_the_newest_states_are_kept_and_all_averages(minute, tmp_path):
    quietly(minute(), tmp_path)
    run = RunFolder(tmp_path)
    assert [p.name[6:18] for p in run.states()] == ["000000000064", "000000000056"]
    assert [(s.images_seen, s.std) for s in stored_averages(tmp_path)] == [(32, 0.05), (32, 0.1), (64, 0.05), (64, 0.1)]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"training": {"batch": 8}}, "training.batch is `4`, not `8`"),
        ({"data": {"objects": (1, 3)}}, "data.objects is `1,2`, not `1,3`"),
        ({"denoiser": {"width": 16}}, "denoiser.width is `8`, not `16`"),
    ],
)
def test_another_run_in_the_folder_is_left_alone(minute, tmp_path, change, named):
    quietly(minute(training={"total": 8}), tmp_path)
    before = state_of(tmp_path)
    with pytest.raises(UserError, match=named):
        quietly(minute(**change), tmp_path)
    with pytest.raises(UserError, match="experiment is `exp1`, not `exp2`"):
        quietly(minute("exp2"), tmp_path)
    assert equal(state_of(tmp_path), before)


def test_two_processes_cannot_train_in_one_folder(minute, tmp_path):
    quietly(minute(training={"total": 8}), tmp_path)
    before = (tmp_path / "config.json").read_text()
    with RunFolder(tmp_path).alone(), pytest.raises(UserError, match="Another process"):
        quietly(minute(), tmp_path)
    assert (tmp_path / "config.json").read_text() == before  # it is the first one's


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_loss_that_is_no_number_stops_and_names_the_last_good_state(minute, tmp_path, monkeypatch, value):
    real = loop.edm_loss
    calls = []

    def spoilt(*args, **kwargs):
        calls.append(1)
        return real(*args, **kwargs) * (value if len(calls) == 12 else 1)

    monkeypatch.setattr(loop, "edm_loss", spoilt)
    with pytest.raises(UserError, match=r"NaN or infinite .*state-000000000040"):
        quietly(minute(), tmp_path)
    assert all(torch.isfinite(tensor).all() for tensor in state_of(tmp_path).values())
    monkeypatch.setattr(loop, "edm_loss", real)
    assert quietly(minute(), tmp_path)[0].finished


def test_a_full_disk_is_one_sentence_and_loses_nothing(minute, tmp_path, monkeypatch):
    quietly(minute(training={"total": 16}), tmp_path)
    before = state_of(tmp_path)

    def full(path, content):
        path.write_text("half a file")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(UserError, match="No space left on device"):
        quietly(minute(), tmp_path)
    assert equal(state_of(tmp_path), before)
    assert not list((tmp_path / "snapshots").glob("*.part"))


def test_the_log_has_a_line_for_each_checkpoint(minute, tmp_path):
    quietly(minute(), tmp_path)
    records = RunFolder(tmp_path).records()
    assert [r["images_seen"] for r in records] == list(range(8, 72, 8))
    assert all(r["loss"] > 0 and r["images_per_second"] > 0 for r in records)


def test_a_log_line_cut_short_is_dropped(minute, tmp_path):
    quietly(minute(training={"total": 16}), tmp_path)
    with open(tmp_path / "log.jsonl", "a") as file:
        file.write('{"images_seen": 99, "lo')
    quietly(minute(training={"total": 24}), tmp_path)
    assert [r["images_seen"] for r in RunFolder(tmp_path).records()] == [8, 16, 24]


def test_a_run_gives_back_its_averaged_network(minute, tmp_path):
    seen = {}

    def keep(run, trainer):
        seen[trainer.images_seen] = trainer.averaged(0.05)

    quietly(minute(), tmp_path, on_snapshot=keep)
    model = load_run(tmp_path)
    cond = model.conditioner.at([(0.5, 0.5)])
    x = torch.randn(1, 3, 8, 8)
    assert torch.allclose(model(x, 1.0, cond), seen[64](x, 1.0, cond), atol=1e-2)
    assert model.config["images_seen"] == 64 and model.max_train_objects == 2
    early = load_run(tmp_path, images_seen=32)
    assert torch.allclose(early(x, 1.0, cond), seen[32](x, 1.0, cond), atol=1e-2)


def test_an_average_of_another_length_is_rebuilt_from_snapshots(minute, tmp_path):
    """Against the average computed directly from the weights of every step."""
    settings = minute(training={"snapshot": 8})
    weights = []
    trainer_of = {}

    def watch(images_seen):
        weights.append(trainer_of["it"].denoiser.out.weight.detach().clone())

    real = loop.Trainer.__init__

    def spy(self, *args, **kwargs):
        real(self, *args, **kwargs)
        trainer_of["it"] = self

    loop.Trainer.__init__ = spy
    try:
        quietly(settings, tmp_path, on_step=watch)
    finally:
        loop.Trainer.__init__ = real
    shares = torch.tensor(response(0.075, len(weights), len(weights) + 1)[1:])
    expected = (torch.stack(weights) * shares[:, None, None].float()).sum(0)
    rebuilt = load_run(tmp_path, std=0.075).denoiser.out.weight
    nearest = load_run(tmp_path, std=0.10).denoiser.out.weight
    assert (rebuilt - expected).norm() < 0.5 * (nearest - expected).norm()


def test_a_run_without_a_fitting_snapshot_is_refused(minute, tmp_path):
    quietly(minute(training={"total": 4}), tmp_path)
    with pytest.raises(UserError, match="nearest is at 4"):
        load_run(tmp_path, images_seen=3)
    for path in (tmp_path / "snapshots").glob("ema*"):
        path.unlink()
    with pytest.raises(UserError, match="no snapshot yet"):
        load_run(tmp_path)
