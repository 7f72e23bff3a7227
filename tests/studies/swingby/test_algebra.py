"""The equations of motion against autograd, against each other, and against known solutions (spec 6.1)."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from scipy.integrate import simpson, solve_ivp

from tessera.errors import UserError
from tessera.studies.swingby import deep, one_layer, pairs, symmetric
from tessera.studies.swingby.data import Sim, second_moment
from tessera.studies.swingby.integrate import check_step, trajectory, watch
from tessera.studies.swingby.starts import aligned_map, factor, root

PAIR = Sim((1, 2), 0.05)
W0 = aligned_map(0.05, 0.9)


def random_setting(seed: int):
    random = np.random.default_rng(seed)
    d = int(random.integers(1, 6))
    s, width = int(random.integers(1, d + 1)), int(random.integers(1, 7))
    a = second_moment(random.uniform(0.5, 3, s), random.uniform(0, 1, s), d)
    return random.standard_normal((d, width)), a


def autograd_gradient(u: np.ndarray, a: np.ndarray) -> np.ndarray:
    """dL/dU by torch, from the loss alone."""
    weights = torch.tensor(u, requires_grad=True)
    off = weights @ weights.T - torch.eye(len(u), dtype=torch.float64)
    loss = 0.5 * (off @ torch.diag(torch.tensor(a)) @ off.T).trace()
    return torch.autograd.grad(loss, weights)[0].numpy()


@pytest.mark.parametrize("seed", range(50))
def test_gradient_field_and_terms_agree(seed):
    u, a = random_setting(seed)
    w, g = symmetric.map_of(u), symmetric.gradient(u, a)
    scale = max(1.0, np.abs(g).max() * np.abs(u).max())
    assert np.abs(g - autograd_gradient(u, a)).max() <= 1e-12 * scale
    v = symmetric.field(w, a)
    assert np.abs(-0.5 * (g @ u.T + u @ g.T) - v).max() <= 1e-12 * scale
    printed = w @ np.diag(a) + np.diag(a) @ w
    printed -= 0.5 * (np.diag(a) @ w @ w + w @ w @ np.diag(a) + 2 * w @ np.diag(a) @ w)
    assert np.abs(printed - v).max() <= 1e-12 * scale
    parts = symmetric.terms(w, a)
    assert np.abs(parts.growth - parts.suppression - parts.noise - v).max() <= 1e-12 * scale


def test_terms_follow_the_entrywise_formulas():
    u, a = random_setting(7)
    w, d = symmetric.map_of(u), len(a)
    parts = symmetric.terms(w, a)
    for i in range(d):
        for j in range(d):
            own = w[i, i] * (3 * a[i] + a[j]) + (i != j) * w[j, j] * (3 * a[j] + a[i])
            rest = sum(w[k, i] * w[k, j] * (a[i] + a[j] + 2 * a[k]) for k in range(d) if k not in (i, j))
            assert parts.growth[i, j] == pytest.approx(w[i, j] * (a[i] + a[j]), abs=1e-12)
            assert parts.suppression[i, j] == pytest.approx(0.5 * w[i, j] * own, abs=1e-10)
            assert parts.noise[i, j] == pytest.approx(0.5 * rest, abs=1e-10)


def test_one_step_on_u_is_the_field_plus_a_square():
    u, a = random_setting(3)
    rate = 1e-3
    w, g = symmetric.map_of(u), symmetric.gradient(u, a)
    stepped = symmetric.map_of(u - rate / 2 * g)
    assert np.abs(stepped - (w + rate * symmetric.field(w, a) + rate**2 / 4 * g @ g.T)).max() <= 1e-12


def test_the_flow_on_u_by_autograd_is_the_flow_on_w():
    def velocity(state):
        return (-0.5 * autograd_gradient(state[0], PAIR.a),)

    states = trajectory(velocity, (root(W0),), [0.02] * 600)
    by_autograd = watch(states, lambda state: symmetric.map_of(state[0]))
    on_w = symmetric.flow(W0, PAIR.a, 12, 0.005).w[::4]
    assert np.abs(by_autograd - on_w).max() < 3e-6  # two fourth-order paths, the coarser at 0.02


def test_both_flows_agree_to_8_digits_at_a_small_step():
    on_u = symmetric.factor_path(root(W0), PAIR.a, 12, 0.005).w
    on_w = symmetric.flow(W0, PAIR.a, 12, 0.005).w
    assert np.abs(on_u - on_w).max() < 1e-8


def test_descent_is_first_order_and_richardson_makes_it_exact():
    exact = symmetric.flow(W0, PAIR.a, 12, 0.002).w
    paths = [symmetric.factor_path(root(W0), PAIR.a, 12, 2e-3 / k, "descent", every=k).w for k in (1, 2, 4)]
    errors = [np.abs(path - exact).max() for path in paths]
    assert errors[0] / errors[1] == pytest.approx(2, abs=0.01)
    assert errors[1] / errors[2] == pytest.approx(2, abs=0.01)
    assert errors[2] > 1e-6  # raw descent does not get there
    once = [2 * fine - coarse for coarse, fine in pairwise(paths)]
    assert np.abs(once[1] - exact).max() < 1e-6
    assert np.abs((4 * once[1] - once[0]) / 3 - exact).max() < 1e-8


def test_runge_kutta_is_fourth_order_on_the_canonical_run():
    exact = symmetric.flow(W0, PAIR.a, 10, 0.001).w[-1]
    expected = {0.05: 1.2e-5, 0.02: 3.3e-7, 0.01: 2.2e-8}
    for step, error in expected.items():
        assert np.abs(symmetric.flow(W0, PAIR.a, 10, step).w[-1] - exact).max() == pytest.approx(error, rel=0.05)


def test_the_two_clocks_follow_the_same_path():
    paper = symmetric.flow(W0, PAIR.a, 8, 0.01, "paper")
    plain = symmetric.flow(W0, PAIR.a, 4, 0.005, "flow")
    assert plain.times * 2 == pytest.approx(paper.times)
    assert np.abs(plain.w - paper.w).max() < 1e-14
    on_u = symmetric.factor_path(root(W0), PAIR.a, 4, 0.005, clock="flow")
    assert np.abs(on_u.w - paper.w).max() < 1e-7


def test_a_diagonal_start_follows_the_logistic_curve():
    start = np.array([0.01, 0.02])
    path = symmetric.flow(np.diag(start), PAIR.a, 10, 0.005)
    odds = start / (1 - start) * np.exp(2 * PAIR.a * path.times[:, None])
    logistic = odds / (1 + odds)
    assert np.abs(np.diagonal(path.w, axis1=1, axis2=2) - logistic).max() < 1e-9
    assert np.abs(path.w[:, 0, 1]).max() == 0
    half = np.log((1 - start) / start) / (2 * PAIR.a)
    for k in range(2):
        assert np.interp(half[k], path.times, path.w[:, k, k]) == pytest.approx(0.5, abs=1e-4)


def test_log_det_moves_as_predicted():
    path = symmetric.flow(W0, PAIR.a, 10, 0.002)
    # d log det W / dt = 2 tr(A (I - W)): full rank is never lost, missing rank never gained.
    speeds = 2 * (PAIR.a * (1 - np.diagonal(path.w, axis1=-2, axis2=-1))).sum(-1)
    change = np.log(np.linalg.det(path.w[-1])) - np.log(np.linalg.det(path.w[0]))
    assert change == pytest.approx(simpson(speeds, x=path.times), abs=2e-9)


def test_early_and_late_rates_are_sums_of_moments():
    tiny = aligned_map(1e-4, 0.5)
    path = symmetric.flow(tiny, PAIR.a, 1, 0.01)
    growth = np.log(path.w[-1] / path.w[0])
    assert growth == pytest.approx(PAIR.a[:, None] + PAIR.a, rel=1e-5)
    near = np.eye(2) + 1e-6 * np.array([[1, 0.5], [0.5, -1]])
    late = symmetric.flow(near, PAIR.a, 1, 0.01)
    decay = -np.log(np.abs((late.w[-1] - np.eye(2)) / (near - np.eye(2))))
    assert decay == pytest.approx(PAIR.a[:, None] + PAIR.a, rel=1e-5)


def test_the_pair_equations_are_the_general_ones():
    random = np.random.default_rng(0)
    u = random.standard_normal((6, 2, 2))
    a = random.uniform(0.1, 2, (6, 2))
    on_u = pairs.pair_velocity(u.reshape(6, 4).T, *a.T)
    assert on_u.T.reshape(6, 2, 2) == pytest.approx(-0.5 * symmetric.gradient(u, a), abs=1e-12)


def test_deep_velocity_is_minus_the_gradient():
    random = np.random.default_rng(1)
    task = Sim((1, 2), 0.3, 3)
    layers = tuple(random.standard_normal(shape) for shape in ((4, 3), (5, 4), (3, 5)))
    inputs = deep.pseudo_samples(task.a)
    tensors = [torch.tensor(layer, requires_grad=True) for layer in layers]
    off = tensors[2] @ tensors[1] @ tensors[0] - torch.eye(3, dtype=torch.float64)
    loss = 0.5 * (off.square() * torch.tensor(task.a)).sum()
    for mine, theirs in zip(deep.velocity(layers, inputs, inputs), torch.autograd.grad(loss, tensors)):
        assert np.abs(mine + theirs.numpy()).max() < 1e-12


def test_balanced_two_layers_move_like_the_paper_clock_up_to_an_antisymmetric_part():
    w = symmetric.map_of(np.random.default_rng(2).standard_normal((2, 2)))
    layers = deep.balanced_layers(w, 2)
    inputs = deep.pseudo_samples(PAIR.a)
    below, above = deep.velocity(layers, inputs, inputs)
    speed = above @ layers[0] + layers[1] @ below
    assert 0.5 * (speed + speed.T) == pytest.approx(symmetric.field(w, PAIR.a), abs=1e-12)
    assert np.abs(speed - speed.T).max() > 0.1


@pytest.mark.parametrize("depth", [2, 3, 4])
def test_a_balanced_diagonal_mode_obeys_its_scalar_equation(depth):
    layers = deep.balanced_layers(np.diag([0.05, 0.05]), depth)
    path = deep.path(layers, PAIR.a, 20, 0.01)

    def speed(_, w):
        return depth * PAIR.a[1] * w ** (2 - 2 / depth) * (1 - w)

    limits = {"rtol": 1e-11, "atol": 1e-13, "method": "DOP853"}
    expected = solve_ivp(speed, (0, path.times[-1]), [0.05], t_eval=path.times, **limits).y[0]
    assert np.abs(path.w[:, 1, 1] - expected).max() < 1e-7


def test_a_batch_of_runs_equals_the_runs_one_by_one():
    starts = aligned_map(np.array([0.02, 0.3]), np.array([0.9, -0.4]))
    a = second_moment([[1, 2], [1, 3]], 0.1, 2)
    together = symmetric.flow(starts, a, 3, 0.01).w
    for k in range(2):
        assert together[:, k] == pytest.approx(symmetric.flow(starts[k], a[k], 3, 0.01).w, abs=1e-15)
    layers = deep.uniform_layers(range(3), (3, 4, 3))
    many = deep.path(layers, Sim((1, 2), 0.1, 3).a, 3, 0.1, "descent").w
    lone = deep.path(deep.uniform_layers([2], (3, 4, 3)), Sim((1, 2), 0.1, 3).a, 3, 0.1, "descent").w
    assert many[:, 2] == pytest.approx(lone[:, 0], abs=1e-13)


def test_uniform_layers_have_torch_bounds():
    layers = deep.uniform_layers(range(50), (4, 9, 4))
    assert [layer.shape for layer in layers] == [(50, 9, 4), (50, 4, 9)]
    assert 0.49 < np.abs(layers[0]).max() <= 0.5 and 0.32 < np.abs(layers[1]).max() <= 1 / 3


def test_factors_multiply_back_to_their_map():
    w = aligned_map(0.3, -0.7)
    assert symmetric.map_of(root(w)) == pytest.approx(w, abs=1e-15)
    assert symmetric.map_of(factor(w)) == pytest.approx(w, abs=1e-15)
    assert w[0, 1] / np.sqrt(w[0, 0] * w[1, 1]) == pytest.approx(-0.7)
    single = np.outer([1, 2], [1, 2]) * 0.1
    assert factor(single).shape == (2, 1)
    assert deep.product(deep.balanced_layers(w, 5)) == pytest.approx(w, abs=1e-14)


def test_a_start_without_a_real_root_is_refused():
    for bad in (np.array([[1.0, 2.0], [2.0, 1.0]]), np.array([[1.0, 0.5], [0.0, 1.0]])):
        with pytest.raises(UserError, match="symmetric"):
            factor(bad)
    with pytest.raises(UserError, match="cosine"):
        aligned_map(0.1, 1.2)


def test_steps_beyond_the_stable_limit_are_refused_with_the_limit():
    with pytest.raises(UserError, match=r"stable limit is 0\.6955"):
        symmetric.flow(W0, PAIR.a, 20, 0.7)
    with pytest.raises(UserError, match=r"stable limit is 0\.4994"):
        symmetric.factor_path(root(W0), PAIR.a, 5, 0.5, "descent")
    with pytest.raises(UserError, match=r"stable limit is 0\.2497"):
        symmetric.factor_path(root(W0), PAIR.a, 2.5, 0.25, "descent", "flow")
    with pytest.raises(UserError, match=r"stable limit is 0\.9988"):
        one_layer.descent(W0, PAIR.a, 1.0, [0, 1])
    with pytest.raises(UserError, match=r"stable limit is 0\.3329"):
        deep.path(deep.balanced_layers(W0, 3), PAIR.a, 3.4, 0.34, "descent")
    with pytest.raises(UserError, match="must be positive"):
        check_step(0.0, 1.0, "flow")


@pytest.mark.parametrize("factor_of_limit", [0.98, 1.03])
def test_the_stable_limit_is_where_descent_begins_to_diverge(factor_of_limit):
    rate = factor_of_limit / PAIR.a.max()
    near = (np.diag([1.0, 1.001]),)

    def velocity(state):
        return (-0.5 * symmetric.gradient(state[0], PAIR.a),)

    path = watch(trajectory(velocity, near, [rate] * 60, "descent"), lambda state: np.abs(state[0] - np.eye(2)).max())
    assert (path[-1] < path[0]) == (factor_of_limit < 1)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_start_too_large_for_its_step_is_noticed():
    with pytest.raises(UserError, match="diverged"):
        symmetric.factor_path(30 * np.eye(2), PAIR.a, 20, 0.1, "descent")


def test_too_few_columns_warn_and_leave_concepts_unlearned():
    with pytest.warns(UserWarning, match="1 of them will never be learned"):
        path = symmetric.factor_path(np.array([[0.05], [0.05]]), PAIR.a, 40, 0.02)
    assert path.w[-1] == pytest.approx(np.diag([0, 1]), abs=1e-6)
    assert path.error(PAIR.target)[-1] == pytest.approx(0.5, abs=1e-6)
