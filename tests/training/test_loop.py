"""The trainer: it learns, accumulates exactly, and its random numbers are keyed by sample."""

from dataclasses import replace

import pytest
import torch

from tessera.errors import UserError
from tessera.models.build import build_denoiser
from tessera.models.contract import training_views
from tessera.training import trainer as loop
from tessera.training.distributed import ProcessGroup
from tessera.training.run_folder import _stream_for
from tessera.training.strategies import CompiledNormal
from tessera.training.trainer import Trainer, train


def trainer_for(settings, **changes):
    settings = replace(settings, training=replace(settings.training, **changes))
    return Trainer(build_denoiser(settings), settings.training)


def weights(trainer):
    return {name: p.detach().clone() for name, p in trainer.denoiser.named_parameters()}


@pytest.mark.parametrize(("experiment", "kind"), [("exp1", "edm2"), ("exp2L", "patchwise"), ("exp2", "localconv")])
def test_every_network_learns_something(minute, experiment, kind):
    settings = minute(experiment, denoiser={"kind": kind})
    trainer = trainer_for(settings, total=96, lr=0.02)
    steps = list(train(trainer, _stream_for(settings)))
    assert [step.images_seen for step in steps] == list(range(4, 100, 4))
    early, late = (torch.stack([s.loss for s in part]).mean() for part in (steps[:6], steps[-6:]))
    assert late < 0.85 * early


@pytest.mark.parametrize("experiment", ["exp2-random", "exp2-drop", "exp3", "exp3L", "color"])
def test_every_other_experiment_takes_steps(minute, experiment):
    trainer = trainer_for(minute(experiment), total=12)
    before = weights(trainer)
    steps = list(train(trainer, _stream_for(minute(experiment))))
    assert all(torch.isfinite(step.loss) for step in steps)
    assert any(not torch.allclose(before[name], value, atol=5e-3) for name, value in weights(trainer).items())


def test_the_first_step_of_a_ramp_moves_nothing(minute):
    trainer = trainer_for(minute())
    before = weights(trainer)
    step = next(train(trainer, _stream_for(minute())))
    assert step.lr == 0
    assert all(torch.allclose(before[name], value, atol=5e-3) for name, value in weights(trainer).items())


@pytest.mark.parametrize("experiment", ["exp1", "exp2L"])
def test_micro_batches_give_the_gradient_of_the_whole_batch(minute, experiment):
    settings = minute(experiment)
    batch = next(_stream_for(settings).steps(0, 4))
    grads = []
    for micro_batch in (0, 1, 3):
        trainer = trainer_for(settings, micro_batch=micro_batch)
        for name, parameter in trainer.denoiser.named_parameters():
            if name.endswith("gain"):
                torch.nn.init.constant_(parameter, 0.5)
        trainer.step(batch)
        grads.append([p.grad.clone() for p in trainer.denoiser.parameters()])
    for whole, ones, threes in zip(*grads):
        assert torch.allclose(whole, ones, rtol=1e-3, atol=1e-4)
        assert torch.allclose(whole, threes, rtol=1e-3, atol=1e-4)


def test_noise_is_keyed_by_the_sample(minute):
    settings = minute()
    trainer, stream = trainer_for(settings), _stream_for(settings)
    views = [trainer.noise(stream_views(stream, start, count)) for start, count in ((0, 6), (4, 2))]
    assert torch.equal(views[0][0][4:], views[1][0]) and torch.equal(views[0][1][4:], views[1][1])
    assert abs(float(views[0][1].std()) - 1) < 0.1


def stream_views(stream, start, count):
    from tessera.models.contract import Views

    batch = stream.batch(start, count)
    return Views(batch.images, batch.cond, batch.index)


@pytest.mark.parametrize("how", ["after-update", "in-forward", "projected"])
def test_all_ways_of_keeping_weights_at_unit_size_train_alike(minute, how):
    settings = minute()
    trainer = trainer_for(settings, weight_norm=how, total=40)
    reference = trainer_for(settings, weight_norm="after-update", total=40)
    losses, expected = (
        torch.stack([step.loss for step in train(one, _stream_for(settings))]) for one in (trainer, reference)
    )
    assert torch.allclose(losses, expected, atol=2e-3)


@pytest.mark.parametrize("experiment", ["exp1", "exp2L"])
def test_a_trainer_loaded_from_its_tensors_carries_on_bit_for_bit(minute, experiment):
    settings = minute(experiment)
    whole = trainer_for(settings)
    list(train(whole, _stream_for(settings)))
    half = trainer_for(settings, total=32)
    list(train(half, _stream_for(settings)))
    other = trainer_for(settings)
    other.load({name: tensor.clone() for name, tensor in half.tensors().items()}, 32)
    list(train(other, _stream_for(settings)))
    kept, expected = other.tensors(), whole.tensors()
    assert kept.keys() == expected.keys()
    assert all(torch.equal(kept[name], expected[name]) for name in expected)


def test_the_rate_cools_down_toward_the_total(minute):
    trainer = trainer_for(minute(), total=16, lr_warmup=0, lr_decay_start=0, lr=0.01, cooldown=8)
    rates = [step.lr for step in train(trainer, _stream_for(minute()))]
    assert rates == pytest.approx([0.01, 0.01, 0.01, 0.005])


def test_a_step_on_patches_trains_on_the_configured_number_per_image(minute):
    settings = minute("exp2L")
    trainer = trainer_for(settings, total=4, patches=6)
    seen = []
    real = trainer.loss_fn
    trainer.loss_fn = lambda images, *rest: seen.append(len(images)) or real(images, *rest)
    trainer.step(next(_stream_for(settings).steps(0, 4)))
    assert seen == [6 * 4]


def test_a_loss_radius_restricts_the_loss_to_the_center_of_a_patch(minute):
    settings = minute("exp2L")
    trainer, batch = trainer_for(settings), next(_stream_for(settings).steps(0, 4))
    center = replace(trainer.settings, loss_radius=0)
    views = training_views(trainer.denoiser, batch.images, batch.cond, batch.index, center)
    noise = trainer.noise(views)
    of_center = trainer.loss(views.images, views.cond, *noise, views.inside, views.loss_weight, 4)
    of_all = trainer.loss(views.images, views.cond, *noise, views.inside, views.inside, 4)
    of_none = trainer.loss(views.images, views.cond, *noise, views.inside, 0 * views.inside, 4)
    assert of_none == 0 and of_center != of_all
    narrow, whole = (trainer_for(settings, total=4, loss_radius=radius) for radius in (0, 16))
    assert narrow.step(batch).loss * views.images.shape[1:].numel() == pytest.approx(of_center.item() / 2)
    assert whole.step(batch).loss != narrow.step(batch).loss


def test_a_restarted_trainer_trains_as_a_new_one_would(minute):
    settings = minute()
    used, fresh = trainer_for(settings, total=12), trainer_for(settings, total=12, seed=3)
    list(train(used, _stream_for(settings)))
    used.settings = fresh.settings
    used.restart(build_denoiser(replace(settings, training=fresh.settings)))
    for trainer in (used, fresh):
        list(train(trainer, _stream_for(settings)))
    found, expected = used.tensors(), fresh.tensors()
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], value) for name, value in expected.items())


def test_a_state_of_another_network_is_refused(minute):
    trainer = trainer_for(minute())
    next(train(trainer, _stream_for(minute())))
    other = trainer_for(minute(denoiser={"width": 16}))
    with pytest.raises(UserError, match="does not fit"):
        other.load(trainer.tensors(), 4)


def test_the_averaged_copy_leaves_the_trainer_alone(minute):
    trainer = trainer_for(minute(), total=24)
    list(train(trainer, _stream_for(minute())))
    before = weights(trainer)
    copy = trainer.averaged(0.10)
    assert not any(p.requires_grad for p in copy.parameters())
    assert any(not torch.equal(p, before[name]) for name, p in copy.named_parameters())
    assert all(torch.equal(before[name], value) for name, value in weights(trainer).items())


def test_a_batch_that_cannot_be_shared_is_refused(minute):
    trainer = trainer_for(minute())
    trainer.group = ProcessGroup(0, 3)
    with pytest.raises(UserError, match="shared evenly"):
        next(train(trainer, _stream_for(minute())))


@pytest.mark.slow
def test_compiled_training_computes_what_plain_training_does(minute):
    settings = minute()
    plain, compiled = trainer_for(settings, total=16), trainer_for(settings, total=16, strategy="compiled")
    losses = [torch.stack([s.loss for s in train(one, _stream_for(settings))]) for one in (plain, compiled)]
    assert torch.allclose(*losses, atol=1e-3)


def test_compiled_noise_is_used_only_where_its_numbers_are_right():
    from tessera.scenes.random import normal

    draw = CompiledNormal()
    draw.compiled = lambda seed, index, stream, count: normal(seed, index, stream, count) + 1
    index = torch.arange(3)
    assert torch.equal(draw(0, index, "noise", 5), normal(0, index, "noise", 5))
    draw.compiled = lambda seed, index, stream, count: normal(seed, index, stream, count).clone()
    assert torch.equal(draw(0, index, "noise", 6), normal(0, index, "noise", 6))
    assert draw.trusted == {(3, 5): False, (3, 6): True}


def test_a_network_s_own_sigma_data_is_that_of_its_loss(minute, monkeypatch):
    used = []
    real = loop.edm_loss
    monkeypatch.setattr(loop, "edm_loss", lambda *a, **options: used.append(options) or real(*a, **options))
    trainer = trainer_for(minute())
    trainer.sigma_data = trainer.network.sigma_data = 0.25
    next(train(trainer, _stream_for(minute())))
    assert used == [{"sigma_data": 0.25}]
    assert trainer_for(minute()).sigma_data == build_denoiser(minute()).sigma_data


def test_a_frozen_weight_is_carried_along(minute):
    def frozen():
        trainer = trainer_for(minute())
        trainer.denoiser.out_gain.requires_grad_(False)
        return trainer

    trainer, again = frozen(), frozen()
    next(train(trainer, _stream_for(minute())))
    again.load(trainer.tensors(), trainer.images_seen)
    assert all(torch.equal(value, weights(again)[name]) for name, value in weights(trainer).items())


def test_a_state_that_does_not_fit_changes_nothing(minute):
    trainer, other = trainer_for(minute()), trainer_for(minute(), seed=1)
    next(train(other, _stream_for(minute())))
    torn = {name: value for name, value in other.tensors().items() if name != "adam.exp_avg.out.weight"}
    before = weights(trainer)
    with pytest.raises(UserError, match="does not fit"):
        trainer.load(torn, other.images_seen)
    assert all(torch.equal(value, before[name]) for name, value in weights(trainer).items())


def test_a_patch_has_no_noise_beyond_the_border_of_the_image(minute, monkeypatch):
    settings = minute("exp2L")
    trainer, batch = trainer_for(settings), next(_stream_for(settings).steps(0, 4))
    views = training_views(trainer.denoiser, batch.images, batch.cond, batch.index, trainer.settings)
    shown = []
    real = loop.edm_loss
    monkeypatch.setattr(loop, "edm_loss", lambda *given, **more: shown.append(given[4]) or real(*given, **more))
    trainer.gradients(batch)
    beyond = (views.inside == 0).expand_as(shown[0])
    assert beyond.any() and (shown[0][beyond] == 0).all() and (shown[0][~beyond] != 0).all()


def test_the_optimizer_forgets_at_the_rates_of_the_settings(minute):
    trainer = trainer_for(minute(), beta1=0.8, beta2=0.97)
    assert trainer.optimizer.param_groups[0]["betas"] == (0.8, 0.97)


def test_a_projected_step_moves_the_weights_as_one_normalized_in_the_forward_does(minute):
    settings, rate = minute(), 0.01
    batch = next(_stream_for(settings).steps(0, 4))
    moved = []
    for how in ("projected", "after-update"):
        trainer = trainer_for(settings, weight_norm=how, lr_warmup=0, lr_decay_start=0, lr=rate)
        for name, parameter in trainer.denoiser.named_parameters():
            if name.endswith("gain"):  # they begin at 0, and most weights would not count
                torch.nn.init.constant_(parameter, 0.5)
        trainer.step(batch)
        moved.append(torch.cat([value.flatten() for value in weights(trainer).values()]))
    assert (moved[0] - moved[1]).abs().mean() < 0.01 * rate
