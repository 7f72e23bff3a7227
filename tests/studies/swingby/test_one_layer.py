"""One layer: the closed form, when it is monotone, and when it is not (spec 6.1 and 6.3)."""

import numpy as np
import pytest

from tessera.studies.swingby import analysis, one_layer
from tessera.studies.swingby.data import Sim
from tessera.studies.swingby.integrate import Path, trajectory, watch
from tessera.studies.swingby.starts import aligned_map

PAIR = Sim((1, 2), 0.05)
TIMES = np.linspace(0, 30, 3001)


def velocity(a):
    return lambda state: (-(state[0] - np.eye(len(a))) * a,)


def error(w0, task=PAIR, times=TIMES):
    return Path(times, one_layer.flow(w0, task.a, times)).error(task.target)


def test_descent_is_the_discrete_closed_form_to_the_last_digit():
    w0 = np.random.default_rng(0).standard_normal((3, 3))
    a = Sim((1, 2), 0.3, 3).a
    stepped = watch(trajectory(velocity(a), (w0,), [0.1] * 200, "descent"), lambda state: state[0])
    assert np.abs(stepped - one_layer.descent(w0, a, 0.1, np.arange(201))).max() < 1e-14


def test_runge_kutta_is_the_continuous_closed_form():
    w0 = aligned_map(0.05, 0.9)
    stepped = watch(trajectory(velocity(PAIR.a), (w0,), [0.01] * 1000), lambda state: state[0])
    assert np.abs(stepped - one_layer.flow(w0, PAIR.a, 0.01 * np.arange(1001))).max() < 1e-9


def test_the_component_form_holds_for_any_input():
    a = Sim((1, 2), 0.3, 4).a
    random = np.random.default_rng(2)
    w0, z = random.standard_normal((4, 4)), random.standard_normal(4)  # z also beyond the concept axes
    expected = one_layer.flow(w0, a, [1.7])[0] @ z
    # f_k(z) = (1 - e^{-a_k t}) z_k + sum_i e^{-a_i t} w_ki(0) z_i; the sum runs over all d coordinates.
    components = (1 - np.exp(-a * 1.7)) * z + w0 @ (np.exp(-a * 1.7) * z)
    assert components == pytest.approx(expected, abs=1e-13)


def test_half_times_are_inverse_to_the_moments():
    half = np.log(2) / PAIR.a
    assert half == pytest.approx([1.37940, 0.34614], abs=1e-5)
    path = one_layer.flow(np.zeros((2, 2)), PAIR.a, half)
    assert path[0, 0, 0] == pytest.approx(0.5) and path[1, 1, 1] == pytest.approx(0.5)


def test_the_zero_start_error_is_a_sum_of_exponentials():
    expected = 0.5 * (np.exp(-2 * PAIR.a * TIMES[:, None]) * np.square(PAIR.mu)).sum(1)
    assert error(np.zeros((2, 2))) == pytest.approx(expected, abs=1e-13)


@pytest.mark.parametrize("w0", [aligned_map(0.05, 0.9), np.zeros((2, 2))])
def test_the_starts_that_swing_elsewhere_never_rise_here(w0):
    assert analysis.rise(error(w0)) == 0


@pytest.mark.parametrize(("scale", "monotone"), [(0.01, 1.0), (0.05, 1.0), (0.1, 1.0), (0.3, 0.978), (0.7, 0.828)])
def test_small_gaussian_starts_are_monotone_and_large_ones_often_not(scale, monotone):
    w0 = scale * np.random.default_rng(0).standard_normal((500, 2, 2))
    falls = analysis.rise(error(w0)) <= analysis.MONOTONE
    assert falls.mean() == pytest.approx(monotone, abs=0 if monotone == 1 else 0.04)
    certified = one_layer.certificate(w0, PAIR.a, 2)
    assert not (certified & ~falls).any()
    # The simpler sufficient condition ||M^T M - I||_2 <= a_min / a_max, M = I - W(0), certifies no more starts.
    m = np.eye(2) - w0
    distance = np.linalg.norm(np.swapaxes(m, -1, -2) @ m - np.eye(2), 2, axis=(-2, -1))
    assert not ((distance <= PAIR.a.min() / PAIR.a.max()) & ~certified).any()
    if scale <= 0.1:
        assert certified.all()


def test_the_certificate_holds_at_every_corner():
    task = Sim((1, 1.5, 2.2), 0.05, 4)
    w0 = 0.4 * np.random.default_rng(3).standard_normal((200, 4, 4))
    certified = one_layer.certificate(w0, task.a, task.s)
    assert 20 < certified.sum() < 200
    path = Path(TIMES[::10], one_layer.flow(w0, task.a, TIMES[::10]))
    for corner in task.corners:
        assert analysis.rise(path.error(corner))[certified].max() <= analysis.MONOTONE


def test_one_layer_can_rise_from_a_large_start():
    w0 = np.array([[0, 0.3], [0, 0.95]])
    assert analysis.rise(error(w0)) == pytest.approx(0.0719, abs=1e-4)
    assert not one_layer.certificate(w0, PAIR.a, 2)


def test_order_follows_the_moment_and_flips_with_diversity():
    for sigma, first in ((1.22, 2), (1.23, 1)):
        task = Sim((1, 2), (sigma, 0.05))
        assert analysis.order(np.log(2) / task.a)[0] == first
    assert Sim((1, 2), (1.2258, 0.05)).a == pytest.approx([2.0025, 2.0025], abs=2e-4)
