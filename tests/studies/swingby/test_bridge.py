"""The linear conditional denoiser between SIM and diffusion (spec 4)."""

import numpy as np
import pytest

from tessera.errors import UserError
from tessera.studies.swingby import analysis, bridge, deep
from tessera.studies.swingby.data import Sim
from tessera.studies.swingby.integrate import trajectory, watch
from tessera.studies.swingby.starts import aligned_map

PAIR = Sim((1, 2), 0.05)
W0 = aligned_map(0.05, 0.9)


def test_the_input_moment_is_that_of_drawn_inputs():
    tau, task = 1.5, Sim((1, 2), 0.4)
    clean = task.draw(100_000, 0)
    noisy = clean + tau * np.random.default_rng(1).standard_normal(clean.shape)
    inputs = np.concatenate([clean, noisy / np.sqrt(1 + tau**2)], axis=1)
    assert np.abs(inputs.T @ inputs / len(inputs) - bridge.input_moment(task.a, tau)).max() < 0.02


@pytest.mark.parametrize(("tau", "distance"), [(10, 4.0e-3), (100, 4.1e-5), (1000, 4.1e-7)])
def test_one_layer_becomes_sim_at_high_noise(tau, distance):
    times = np.linspace(0, 20, 2001)
    assert bridge.distance_from_sim(PAIR.a, tau, times) == pytest.approx(distance, rel=0.02)


def test_the_closed_form_is_gradient_flow():
    moment = bridge.input_moment(PAIR.a, 2.0)
    goal = np.eye(2, 4)
    states = trajectory(lambda state: (-(state[0] - goal) @ moment,), (np.zeros((2, 4)),), [0.01] * 500)
    stepped = watch(states, lambda state: state[0])
    assert np.abs(stepped - bridge.one_layer_flow(PAIR.a, 2.0, 0.01 * np.arange(501))).max() < 1e-8


@pytest.mark.parametrize(("tau", "rise"), [(100, 0.0355), (10, 0.0333), (3, 0.0137), (1, 0.0), (0.5, 0.0)])
def test_two_layers_swing_only_at_high_noise(tau, rise):
    blocks = bridge.two_layer_flow(W0, PAIR.a, tau, 20, 0.02).w
    found = analysis.rise(bridge.condition_error(blocks, PAIR.target))
    assert found == pytest.approx(rise, abs=1e-4)
    if rise == 0:
        assert found <= analysis.MONOTONE


def test_with_the_image_the_whole_output_swings_at_low_noise_too():
    path = bridge.two_layer_flow(W0, PAIR.a, 0.5, 20, 0.02)
    found = analysis.swing(path.times, bridge.full_error(path.w, PAIR.target, 0.5))
    assert found.swing_by and found.rise == pytest.approx(0.0309, abs=2e-4)


def test_two_layers_at_very_high_noise_are_the_untied_model():
    blocks = bridge.two_layer_flow(W0, PAIR.a, 1e4, 10, 0.02).w
    plain = deep.path(deep.balanced_layers(W0, 2), PAIR.a, 10, 0.02).w
    assert np.abs(blocks[..., :2] - plain).max() < 1e-6
    assert np.abs(blocks[..., 2:]).max() < 1e-3


def test_the_full_error_is_the_expected_squared_miss():
    random = np.random.default_rng(0)
    block, tau = random.standard_normal((2, 4)), 0.8
    noise = random.standard_normal((200_000, 2))
    noisy = (PAIR.target + tau * noise) / np.sqrt(1 + tau**2)
    inputs = np.concatenate([np.tile(PAIR.target, (len(noise), 1)), noisy], axis=1)
    sampled = 0.5 * np.square(inputs @ block.T - PAIR.target).sum(1).mean()
    assert bridge.full_error(block[None], PAIR.target, tau)[0] == pytest.approx(sampled, rel=0.01)


def test_noise_must_be_positive():
    with pytest.raises(UserError, match="tau must be positive"):
        bridge.input_moment(PAIR.a, 0.0)
