"""The loss, its gradients and whole training steps against recorded numbers of the reference."""

import json
import math

import pytest
import torch
from safetensors.torch import load_file

from edm2_reference import from_reference, our_state
from tessera.config import TrainingConfig
from tessera.models.edm2 import EDM2
from tessera.models.ema import Averages
from tessera.models.magnitude import normalize_weights, project_gradients, set_weight_norm
from tessera.training.loss import edm_loss, training_sigmas
from tessera.training.schedule import learning_rate


def relative(a, b):
    return ((a - b).norm() / b.norm()).item()


def part(tensors, prefix):
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


@pytest.fixture(scope="module")
def manifest(edm2_parity):
    return json.loads((edm2_parity / "manifest.json").read_text())


def network(edm2_parity, manifest, name):
    state = part(load_file(edm2_parity / f"precond_{name}.safetensors"), "state/")
    return from_reference(manifest["nets"][name], state)


@pytest.mark.parametrize(("name", "mode"), [("main", "train"), ("main", "eval"), ("uncond", "train")])
def test_loss_and_gradients_match_the_reference(edm2_parity, manifest, name, mode):
    t = load_file(edm2_parity / f"loss_{name}.safetensors")
    net = network(edm2_parity, manifest, name).train(mode == "train")
    set_weight_norm(net, "in-forward")
    normal = t["in/rnd_normal"].flatten()
    settings = manifest["loss"][name]
    sigma = training_sigmas(normal, settings["P_mean"], settings["P_std"])
    assert relative(sigma, t["in/sigma"].flatten()) < 1e-6
    loss = edm_loss(net, t["in/images"], t.get("in/class_labels"), sigma, t["in/eps"])
    assert relative(loss, t[f"{mode}/loss"]) < 1e-5
    assert relative(loss.sum() / len(loss), t[f"{mode}/loss_sum_over_batch"]) < 1e-5
    (loss.sum() / len(loss)).backward()
    gradients = {name: parameter.grad for name, parameter in net.named_parameters()}
    expected = our_state(part(t, f"{mode}/grad/"), net)
    assert set(expected) == set(gradients)
    for name, value in expected.items():
        assert relative(gradients[name], value) < 1e-4, name


def replay(net, t, settings, how):
    """The recorded training steps: losses (step, round), learning rates, averages."""
    set_weight_norm(net.train(), how)
    if how != "in-forward":
        normalize_weights(net)
    adam = settings["optimizer"]
    optimizer = torch.optim.Adam(net.parameters(), betas=tuple(adam["betas"]), eps=adam["eps"])
    averages = Averages(net, settings["ema_stds"])
    batch, lr = settings["batch_size"], settings["lr"]
    losses, rates = [], []
    for step in range(settings["steps"]):
        optimizer.zero_grad()
        losses.append([])
        rounds = [t[f"in/{name}"][step] for name in ("images", "labels", "sigma", "eps")]
        for images, labels, sigma, noise in zip(*rounds, strict=True):
            loss = edm_loss(net, images, labels, sigma.flatten(), noise)
            (loss.sum() / batch).backward()
            losses[-1].append(loss.mean().item())
        rates.append(
            learning_rate(
                step * batch,
                TrainingConfig(
                    batch=batch, lr=lr["ref_lr"], lr_decay_start=lr["ref_batches"], lr_warmup=lr["rampup_Mimg"] * 1e6
                ),
            )
        )
        if how == "projected":
            project_gradients(net)
        optimizer.param_groups[0]["lr"] = rates[-1]
        optimizer.step()
        averages.update((step + 1) * batch, batch)
        if how != "in-forward":
            normalize_weights(net)
    return torch.tensor(losses), rates, averages


def start(edm2_parity, manifest, t):
    net = network(edm2_parity, manifest, manifest["train_trace"]["net"])
    net.load_state_dict(our_state(part(t, "state_before_first_step/"), net), strict=False)
    return net


def test_training_steps_match_the_reference(edm2_parity, manifest):
    t, settings = load_file(edm2_parity / "train_trace.safetensors"), manifest["train_trace"]
    net = start(edm2_parity, manifest, t)
    losses, rates, averages = replay(net, t, settings, "in-forward")
    assert rates == pytest.approx([row["lr"] for row in settings["learning_rates"]], rel=1e-10)
    assert relative(losses, t["loss_mean"]) < 1e-5
    parameters = dict(net.named_parameters())
    for name, value in our_state(part(t, "final/net/"), net).items():
        if name in parameters:
            assert relative(parameters[name], value) < 1e-4, name
    for std in settings["ema_stds"]:
        state = averages.state(std)
        for name, value in our_state(part(t, f"final/ema_{std:.3f}/"), net).items():
            assert relative(state[name], value) < 1e-4, name


@pytest.mark.parametrize("how", ["after-update", "projected"])
def test_normalising_after_the_update_trains_the_same(edm2_parity, manifest, how):
    """What is stored between steps differs from the reference; what is computed does not."""
    t, settings = load_file(edm2_parity / "train_trace.safetensors"), manifest["train_trace"]
    net = start(edm2_parity, manifest, t)
    losses, _, _ = replay(net, t, settings, how)
    assert relative(losses, t["loss_mean"]) < 1e-5
    final = start(edm2_parity, manifest, t)
    final.load_state_dict(our_state(part(t, "final/net/"), net), strict=False)
    normalize_weights(final)
    expected = dict(final.named_parameters())
    for name, parameter in net.named_parameters():
        assert relative(parameter, expected[name]) < 1e-4, name


# -- closed forms --------------------------------------------------------------------------------


class Perfect:
    """Knows the answer."""

    def __init__(self, answer):
        self.answer = answer

    def __call__(self, x, sigma, cond=None):
        return self.answer


def test_a_perfect_denoiser_has_no_loss():
    images = torch.randn(2, 3, 4, 4)
    loss = edm_loss(Perfect(images), images, None, torch.rand(2) + 0.1, torch.randn_like(images))
    assert torch.equal(loss, torch.zeros_like(images))


def test_an_error_is_weighed_by_its_noise_level():
    """(0.5^2 + 0.5^2) / (0.5 0.5)^2 = 8, and at sigma 1: (1 + 0.25) / 0.25 = 5."""
    images = torch.zeros(2, 1, 2, 2)
    loss = edm_loss(Perfect(images + 3), images, None, torch.tensor([0.5, 1.0]), torch.zeros_like(images))
    torch.testing.assert_close(loss[:, 0, 0, 0], torch.tensor([72.0, 45.0]))


def test_an_untrained_network_has_a_loss_near_one_at_every_level():
    """The weighting's purpose, for images of standard deviation 0.5 and no learned uncertainty."""
    torch.manual_seed(0)
    net = EDM2(16, width=8, mult=(1,), blocks=1)
    images = 0.5 * torch.randn(64, 3, 16, 16)
    for sigma in (0.01, 0.3, 5.0, 80.0):
        levels = torch.full((64,), sigma)
        u = net.logvar(levels)[0]
        loss = edm_loss(net, images, None, levels, torch.randn_like(images))
        assert ((loss - u) * u.exp()).mean().item() == pytest.approx(1, rel=0.03)


def test_the_best_uncertainty_is_the_log_of_the_error():
    """e / exp(u) + u is least at u = ln e."""
    errors = torch.tensor(2.7)
    u = torch.linspace(0, 2, 2001)
    best = u[(errors / u.exp() + u).argmin()].item()
    assert best == pytest.approx(math.log(2.7), abs=2e-3)


def test_the_noise_levels_are_log_normal():
    torch.manual_seed(0)
    logs = training_sigmas(torch.randn(100_000), -0.8, 1.6).log()
    assert logs.mean().item() == pytest.approx(-0.8, abs=0.02)
    assert logs.std().item() == pytest.approx(1.6, abs=0.02)
