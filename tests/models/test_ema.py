"""Power-function averages: recorded numbers, closed forms, and reconstruction after the fact."""

import json
import math

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from edm2_reference import response
from tessera.errors import UserError
from tessera.models.ema import Averages, Snapshot, beta, correlation, reconstruct, solve_coefficients, std_to_exponent


@pytest.fixture(scope="module")
def numbers(edm2_parity):
    return json.loads((edm2_parity / "phema.json").read_text())


@pytest.fixture(scope="module")
def traces(edm2_parity):
    return load_file(edm2_parity / "phema.safetensors")


def exponent_to_std(exponent):
    """Eq. 125, the inverse of `std_to_exponent`."""
    return math.sqrt((exponent + 1) / ((exponent + 2) ** 2 * (exponent + 3)))


class Two(nn.Module):
    """A scalar and a matrix, as in the recorded traces, and a constant."""

    def __init__(self, a, b):
        super().__init__()
        self.a, self.b = nn.Parameter(a.clone()), nn.Parameter(b.clone())
        self.register_buffer("constant", torch.tensor(5.0))

    def become(self, a, b):
        self.a.data.copy_(a)
        self.b.data.copy_(b)


# -- the reference's numbers ---------------------------------------------------------------------------------


def test_conversions_match_the_reference(numbers):
    for std, exponent in numbers["std_to_exp"]:
        assert std_to_exponent(std) == pytest.approx(exponent, rel=1e-10)
    for exponent, std in numbers["exp_to_std"]:
        assert exponent_to_std(exponent) == pytest.approx(std, rel=1e-10)


def test_decay_response_and_correlation_match_the_reference(numbers):
    for case in numbers["beta"]:
        kept = beta(case["std"], case["t_next"], case["t_delta"])
        assert kept == pytest.approx(case["beta"], rel=1e-10, abs=1e-300)
    for case in numbers["response"]:
        weights = response(case["std"], case["ofs"], case["len"])
        np.testing.assert_allclose(weights, case["response"], rtol=1e-10, atol=1e-30)
    for case in numbers["correlation"]:
        value = correlation(case["a_ofs"], case["a_std"], case["b_ofs"], case["b_std"])
        assert value == pytest.approx(case["value"], rel=1e-10)


def test_coefficients_match_the_reference(numbers):
    for case in [*numbers["solve_posthoc"], numbers["posthoc"]]:
        stored = list(zip(case["in_ofs"], case["in_std"], strict=True))
        stds = case.get("out_std") or case["out_stds"]
        found = solve_coefficients(stored, [(case["out_ofs"], std) for std in stds])
        np.testing.assert_allclose(found, case["coefficients"], rtol=0, atol=1e-9)


@pytest.mark.parametrize(("precision", "tolerance"), [("f64", 1e-12), ("f32", 1e-5)])
@pytest.mark.parametrize("start", ["fresh", "midrun"])
def test_traces_match_the_reference(numbers, traces, precision, tolerance, start):
    at = f"{precision}/{start}"
    a, b = traces[f"{at}/p_a"], traces[f"{at}/p_b"]
    model = Two(a[0], b[0])
    averages = Averages(model, numbers["trace"]["stds"])
    snapshots = []
    for step, images_seen in enumerate(traces[f"{at}/nimg"].tolist()):
        model.become(a[step + 1], b[step + 1])
        averages.update(images_seen, numbers["trace"]["batch_size"])
        for std in averages.stds:
            state = averages.state(std)
            for name in ("a", "b"):
                expected = traces[f"{at}/ema_{std:.3f}_{name}"][step]
                assert (state[name] - expected).norm() <= tolerance * expected.norm()
            if (step + 1) % numbers["trace"]["snapshot_every"] == 0:
                kept = {name: value.clone() for name, value in state.items()}
                snapshots.append(Snapshot(images_seen, std, lambda kept=kept: kept))
    if start == "fresh":
        for row, std in enumerate(numbers["posthoc"]["out_stds"]):
            rebuilt = reconstruct(snapshots, std)
            expected = traces[f"{at}/posthoc_b"][row]
            assert (rebuilt["b"] - expected).norm() <= max(tolerance, 1e-6) * expected.norm()
            assert rebuilt["constant"].item() == pytest.approx(5.0)


# -- closed forms --------------------------------------------------------------------------------


def test_std_and_exponent_undo_each_other():
    for std in (0.01, 0.05, 0.1, 0.2, 0.28):
        assert exponent_to_std(std_to_exponent(std)) == pytest.approx(std, rel=1e-12)


def test_std_is_the_spread_of_the_profile():
    """Of the density (g + 1) t^g on [0, 1]."""
    exponent = std_to_exponent(0.1)
    mean = (exponent + 1) / (exponent + 2)
    variance = (exponent + 1) / (exponent + 3) - mean**2
    assert math.sqrt(variance) == pytest.approx(0.1, rel=1e-12)


def test_the_average_of_a_straight_line_lags_by_the_mean_of_the_profile():
    """w(t) = t is averaged to T (g + 1) / (g + 2), up to the size of one step."""
    model = Two(torch.zeros((), dtype=torch.float64), torch.zeros(1))
    averages = Averages(model, [0.1])
    for step in range(1, 2001):
        model.a.data.fill_(step)
        averages.update(step * 32, 32)
    exponent = std_to_exponent(0.1)
    assert averages.state(0.1)["a"].item() == pytest.approx(2000 * (exponent + 1) / (exponent + 2), abs=1)


def test_the_first_update_forgets_where_it_started():
    model = Two(torch.tensor(100.0), torch.ones(2))
    averages = Averages(model)
    model.become(torch.tensor(3.0), torch.zeros(2))
    averages.update(8, 8)
    assert all(averages.state(std)["a"].item() == 3 for std in averages.stds)


def test_a_stored_average_reconstructs_to_itself():
    stored = [(images, std) for images in (1.0, 2.0, 3.0) for std in (0.05, 0.1)]
    weights = solve_coefficients(stored, [stored[-1]])[:, 0]
    np.testing.assert_allclose(weights, [0, 0, 0, 0, 0, 1], atol=1e-12)


def test_a_length_that_was_not_tracked_is_recovered_closely():
    generator = torch.Generator().manual_seed(0)
    path = torch.randn(400, 5, generator=generator, dtype=torch.float64).cumsum(0) / 20
    model = Two(torch.zeros(()), torch.zeros(5, dtype=torch.float64))
    averages, direct = Averages(model, (0.05, 0.1)), Averages(model, [0.075])
    snapshots = []
    for step in range(400):
        model.b.data.copy_(path[step])
        for tracked in (averages, direct):
            tracked.update(step + 1, 1)
        if (step + 1) % 25 == 0:
            for std in averages.stds:
                kept = {"b": averages.state(std)["b"].clone()}
                snapshots.append(Snapshot(step + 1, std, lambda kept=kept: kept))
    wanted = direct.state(0.075)["b"]
    error = (reconstruct(snapshots, 0.075)["b"] - wanted).norm() / wanted.norm()
    nearest = min((averages.state(std)["b"] - wanted).norm() / wanted.norm() for std in averages.stds)
    assert error < 0.1 * nearest


def test_an_earlier_moment_can_be_requested():
    states = {images: {"w": torch.tensor([float(images)])} for images in (1, 2, 3)}
    snapshots = [Snapshot(n, std, lambda n=n: states[n]) for n in states for std in (0.05, 0.1)]
    assert reconstruct(snapshots, 0.1, images_seen=2)["w"].item() == pytest.approx(2)
    with pytest.raises(UserError, match="nearest is at 2"):
        reconstruct(snapshots, 0.1, images_seen=2.4)
    with pytest.raises(UserError, match="no snapshot"):
        reconstruct([], 0.1)


# -- carrying on --------------------------------------------------------------------------------


def test_averages_follow_the_model_and_carry_on_after_loading():
    torch.manual_seed(0)
    model = Two(torch.randn(()), torch.randn(3))
    first = Averages(model)
    first.update(8, 8)
    saved = {std: {name: value.clone() for name, value in first.state(std).items()} for std in first.stds}
    second = Averages(model)
    for std, state in saved.items():
        second.load(std, state)
    model.become(torch.randn(()), torch.randn(3))
    for averages in (first, second):
        averages.update(16, 8)
    for std in first.stds:
        assert torch.equal(first.state(std)["b"], second.state(std)["b"])
        Two(torch.zeros(()), torch.zeros(3)).load_state_dict(first.state(std))


def test_impossible_lengths_and_misfits_are_refused():
    model = Two(torch.zeros(()), torch.zeros(3))
    with pytest.raises(UserError, match=r"between 0 and 0\.2887"):
        Averages(model, [0.3])
    averages = Averages(model)
    with pytest.raises(UserError, match=r"No average of std 0\.2"):
        averages.state(0.2)
    with pytest.raises(UserError, match="b is missing or of another shape"):
        averages.load(0.05, {"a": torch.zeros(()), "b": torch.zeros(4)})
