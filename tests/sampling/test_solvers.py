"""Samplers against recorded numbers of the reference, and against equations that can be solved by hand."""

import json
import math
from functools import partial

import pytest
import torch
from safetensors.torch import load_file

from edm2_reference import from_reference
from tessera.errors import UserError
from tessera.sampling import collect, euler, guided, heun, last_x, noise_levels
from tessera.sampling.guidance import unconditional


def relative(a, b):
    return ((a - b).norm() / b.norm()).item()


# -- the reference's numbers ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def nets(edm2_parity):
    configs = json.loads((edm2_parity / "manifest.json").read_text())["nets"]

    def load(name):
        tensors = load_file(edm2_parity / f"precond_{name}.safetensors")
        state = {k.removeprefix("state/"): v for k, v in tensors.items() if k.startswith("state/")}
        return from_reference(configs[name], state).eval()

    return {name: load(name) for name in configs}


@pytest.fixture(scope="module")
def recorded(edm2_parity):
    return load_file(edm2_parity / "sampler.safetensors")


@pytest.fixture(scope="module")
def settings(edm2_parity):
    return json.loads((edm2_parity / "sampler.json").read_text())


CASES = [
    "heun8",
    "heun8_guided_uncond_net",
    "heun8_autoguided_variant_net",
    "heun_custom_schedule_nolabels",
    "heun_churn",
]


@pytest.mark.parametrize("name", CASES)
def test_trajectories_match_the_reference(nets, recorded, settings, name):
    case = next(case for case in settings["cases"] if case["name"] == name)
    t = {key.removeprefix(f"{name}/"): value for key, value in recorded.items() if key.startswith(f"{name}/")}
    sigmas = noise_levels(case["num_steps"], case["sigma_min"], case["sigma_max"], case["rho"])
    denoise = nets[case["net"]]
    if case["gnet"]:
        denoise = guided(denoise, nets[case["gnet"]], case["guidance"])
    cond = recorded[case["labels"]] if case["labels"] else None
    stochastic = {}
    if case["S_churn"]:
        draws = iter(t["churn_noise"])  # in order of use: a step outside the band takes none
        stochastic = {name.lower(): float(case[name]) for name in ("S_churn", "S_min", "S_max", "S_noise")}
        stochastic["noise"] = lambda index, x: next(draws)
    calls = []

    def watched(x, sigma):
        calls.append((x, sigma, denoise(x, sigma, cond)))
        return calls[-1][2]

    steps = list(heun(watched, recorded["noise"] * sigmas[0], sigmas, **stochastic))
    assert relative(steps[-1].x, t["out"]) < 1e-4
    if "x_steps" in t:
        for mine, reference in zip([step.x for step in steps], t["x_steps"], strict=True):
            assert relative(mine, reference) < 1e-4
    for column, key in enumerate(("call_x", "call_sigma", "call_D")):
        for mine, reference in zip([call[column] for call in calls], t.get(key, []), strict=key in t):
            assert relative(mine, reference) < 1e-4, key


def test_noise_levels_match_the_reference(settings):
    for case in settings["sigma_schedules"]:
        mine = noise_levels(case["num_steps"], case["sigma_min"], case["sigma_max"], case["rho"])
        reference = torch.tensor(case["sigmas_float32"])
        torch.testing.assert_close(mine, reference, rtol=5e-6, atol=0)


# -- closed forms --------------------------------------------------------------------------------


def gaussian(x, sigma, cond=None, mean=0.3, spread=0.5):
    """The ideal denoiser of images drawn from N(mean, spread^2) in every pixel."""
    return mean + (x - mean) * spread**2 / (spread**2 + sigma**2)


def solution(x, sigma, mean=0.3, spread=0.5):
    """Where the probability flow of the same images takes x from noise level sigma to 0."""
    return mean + (x - mean) * spread / math.hypot(spread, sigma)


def error(solver, steps):
    """Down to sigma 0.5 only: the last step to 0 is always of first order and would blur the count."""
    sigmas = noise_levels(steps, sigma_min=0.5, sigma_max=10)[:-1].double()
    x = torch.linspace(-20, 20, 9, dtype=torch.float64).view(1, 1, 3, 3)
    exact = 0.3 + (x - 0.3) * math.hypot(0.5, sigmas[-1].item()) / math.hypot(0.5, sigmas[0].item())
    return (last_x(solver(gaussian, x, sigmas)) - exact).abs().max().item()


def test_heun_recovers_a_gaussian():
    sigmas = noise_levels(256).double()
    x = torch.linspace(-160, 160, 9, dtype=torch.float64).view(1, 1, 3, 3)
    torch.testing.assert_close(last_x(heun(gaussian, x, sigmas)), solution(x, 80.0), rtol=0, atol=5e-4)


@pytest.mark.parametrize(("solver", "order"), [(heun, 2), (euler, 1)])
def test_error_falls_with_the_order_of_the_solver(solver, order):
    """Twice the steps, 2^order times less error."""
    assert error(solver, 128) / error(solver, 256) == pytest.approx(2**order, rel=0.1)


def test_churn_keeps_the_distribution():
    """Fresh noise at matched levels: samples of a Gaussian keep its mean and spread."""
    generator = torch.Generator().manual_seed(0)
    sigmas = noise_levels(64, sigma_max=10)
    x = torch.randn(4, 1, 64, 64, generator=generator) * sigmas[0]
    noise = partial(torch.randn, generator=generator)
    out = last_x(heun(gaussian, x, sigmas, s_churn=20, noise=lambda index, x: noise(x.shape)))
    assert out.mean().item() == pytest.approx(0.3, abs=0.03)
    assert out.std().item() == pytest.approx(0.5, abs=0.03)


def test_one_step_goes_straight_to_the_clean_image():
    x = torch.randn(2, 3, 4, 4)
    sigmas = noise_levels(1)
    assert sigmas.tolist() == [80.0, 0.0]
    for solver in (heun, euler):
        torch.testing.assert_close(last_x(solver(gaussian, x, sigmas)), gaussian(x, sigmas[0]), rtol=0, atol=1e-4)


def test_heun_calls_the_denoiser_twice_per_step_but_once_in_the_last():
    calls = []

    def counting(x, sigma):
        calls.append(sigma)
        return gaussian(x, sigma)

    last_x(heun(counting, torch.zeros(1, 1, 2, 2), noise_levels(32)))
    assert len(calls) == 63


@pytest.mark.parametrize("solver", [heun, euler])
def test_a_solver_yields_its_state_at_every_level(solver):
    x, sigmas = torch.randn(2, 3, 4, 4) * 80, noise_levels(6)
    steps = list(solver(gaussian, x, sigmas))
    assert [step.index for step in steps] == list(range(7))
    assert torch.equal(steps[0].x, x)
    assert [step.sigma for step in steps] == sigmas.tolist()
    torch.testing.assert_close(steps[3].denoised, gaussian(steps[3].x, steps[3].sigma))
    assert torch.equal(steps[-1].x, steps[-1].denoised)


def test_stochastic_steps_are_at_the_raised_noise_level():
    """sigma_hat = (1 + gamma) sigma, gamma = S_churn / N inside [S_min, S_max] (Karras et al. 2022, Algorithm 2)."""
    sigmas = noise_levels(6)
    steps = list(heun(gaussian, torch.zeros(1, 1, 2, 2), sigmas, s_churn=1.2, s_min=0.05, s_max=50))
    raised = [level * 1.2 if 0.05 <= level <= 50 else level for level in sigmas.tolist()]
    assert [step.sigma for step in steps] == pytest.approx(raised)


def test_a_step_is_computed_only_when_it_is_needed():
    calls = []

    def counting(x, sigma):
        calls.append(float(sigma))
        return gaussian(x, sigma)

    steps = heun(counting, torch.zeros(1, 1, 2, 2), noise_levels(8))
    assert not calls
    next(steps)
    assert len(calls) == 1
    next(steps)
    assert len(calls) == 3  # Heun's correction of the first step, and the second


def test_steps_leave_no_graph_and_gradients_stay_on_for_the_caller():
    weight = torch.ones((), requires_grad=True)
    for step in heun(lambda x, sigma: weight * x, torch.ones(1, 1, 2, 2), noise_levels(3)):
        assert not step.x.requires_grad and not step.denoised.requires_grad
        assert torch.is_grad_enabled()


def test_a_trajectory_has_the_kept_steps_of_all_batches():
    sigmas, x = noise_levels(5), torch.randn(3, 1, 4, 4) * 80
    whole = list(heun(gaussian, x, sigmas))
    kept = collect([heun(gaussian, x[:2], sigmas), heun(gaussian, x[2:], sigmas)], [4, 1, 5], True)
    assert kept.steps == (1, 4, 5) and kept.sigmas.tolist() == [step.sigma for step in whole if step.index in (1, 4, 5)]
    for row, step in enumerate(kept.steps):
        torch.testing.assert_close(kept.x[row], whole[step].x)
        torch.testing.assert_close(kept.denoised[row], whole[step].denoised)
    assert torch.equal(kept.at([4]).x[0], kept.x[1]) and torch.equal(kept.last, kept.x[2])
    with pytest.raises(UserError, match="ends before step 6"):
        collect([heun(gaussian, x, sigmas)], [6])


def test_guidance_moves_away_from_the_weaker_one():
    x, sigma = torch.randn(1, 1, 2, 2), torch.tensor(1.0)
    weaker = partial(gaussian, mean=-1.0)
    pulled = guided(gaussian, weaker, 2.5)(x, sigma)
    strong, weak = gaussian(x, sigma), weaker(x, sigma)
    torch.testing.assert_close(pulled, strong + 1.5 * (strong - weak))


def test_guidance_of_weight_one_never_calls_the_weaker_one():
    def never(x, sigma, cond=None):
        raise AssertionError

    assert guided(gaussian, never, 1) is gaussian


def test_the_unconditional_network_has_no_condition():
    conds = []
    unconditional(lambda x, sigma, cond=None: conds.append(cond) or x)(torch.zeros(1), torch.ones(()), torch.ones(1))
    assert conds == [None]


def test_impossible_schedules_are_refused():
    with pytest.raises(UserError, match="at least one step"):
        noise_levels(0)
    with pytest.raises(UserError, match="0 < sigma_min"):
        noise_levels(4, sigma_min=0)
