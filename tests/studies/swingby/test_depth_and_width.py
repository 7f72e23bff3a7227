"""Order, depth, width, several descents, diversity and phase diagrams (spec 6.4 to 6.7)."""

import numpy as np
import pytest
from scipy.stats import binomtest

from tessera.errors import UserError
from tessera.studies.swingby import analysis, deep, one_layer, sweep, symmetric
from tessera.studies.swingby.data import Sim, ordered_pairs
from tessera.studies.swingby.pairs import run_pairs
from tessera.studies.swingby.starts import aligned_map, gaussian_factors, positive_factors

PAIR = Sim((1, 2), 0.05)
FOUR = Sim((1, 1.5, 2.2, 2.7), (0.05, 0.05, 0.05, 0.5))


def test_four_concepts_are_learned_in_strict_order():
    assert FOUR.a == pytest.approx([0.2525, 0.565, 1.2125, 2.0725])
    assert np.log(2) / FOUR.a == pytest.approx([2.7451, 1.2268, 0.5717, 0.3344], abs=1e-4)
    path = symmetric.factor_path(gaussian_factors(range(20), 0.02, (4, 4)), FOUR.a, 40, 0.04)
    half = np.array([analysis.half_times(path.times, path.w[:, k], 4) for k in range(20)])
    assert all(analysis.order(times) == [4, 3, 2, 1] for times in half)
    assert half.mean(0) == pytest.approx([16.16, 6.95, 2.95, 1.64], abs=0.03)


# L = 4: the specification gives .2810, .218 and 4.81; our value is the same at steps of 0.02 and 0.005 and with an
# adaptive solver (test below), so the tolerance here covers the difference.
@pytest.mark.parametrize(
    ("depth", "rise", "lowest", "top", "t_min", "t_max", "weak", "duration"),
    [
        (2, 0.0355, 0.416, 0.452, 2.10, 3.52, 7.6, 20),
        (3, 0.1928, 0.302, 0.495, 3.54, 15.3, 27.5, 50),
        (4, 0.2810, 0.218, 0.499, 4.81, 24.6, 58.1, 80),
    ],
)
def test_deeper_is_sharper(depth, rise, lowest, top, t_min, t_max, weak, duration):
    path = deep.path(deep.balanced_layers(aligned_map(0.05, 0.9), depth), PAIR.a, duration, 0.02)
    found = analysis.swing(path.times, path.error(PAIR.target))
    loose = 20 if depth == 4 else 1
    assert found.rise == pytest.approx(rise, abs=1e-4 * loose)
    assert (found.e_min, found.e_max) == (pytest.approx(lowest, abs=2e-3), pytest.approx(top, abs=1e-3))
    assert found.t_min == pytest.approx(t_min, abs=0.035 if depth == 4 else 5e-3)
    assert found.t_max == pytest.approx(t_max, abs=0.05)
    assert analysis.half_times(path.times, path.w, 2)[0] == pytest.approx(weak, abs=0.06)
    assert found.swing_by


def test_one_layer_from_the_same_start_does_not_rise():
    path = deep.path(deep.balanced_layers(aligned_map(0.05, 0.9), 1), PAIR.a, 20, 0.02)
    assert analysis.rise(path.error(PAIR.target)) == 0
    exact = one_layer.flow(aligned_map(0.05, 0.9), PAIR.a, path.times)
    assert np.abs(path.w - exact).max() < 1e-8


def test_four_layers_agree_with_an_adaptive_solver():
    from scipy.integrate import solve_ivp

    layers = deep.balanced_layers(aligned_map(0.05, 0.9), 4)
    inputs = deep.pseudo_samples(PAIR.a)

    def speed(_, flat):
        return np.stack(deep.velocity(tuple(flat.reshape(4, 2, 2)), inputs, inputs)).ravel()

    times = np.linspace(0, 30, 1501)
    start = np.stack(layers).ravel()
    exact = solve_ivp(speed, (0, 30), start, t_eval=times, rtol=1e-10, atol=1e-12, method="DOP853").y
    w = np.stack([deep.product(tuple(flat.reshape(4, 2, 2))) for flat in exact.T])
    ours = deep.path(layers, PAIR.a, 30, 0.02).w
    assert np.abs(w - ours).max() < 1e-5


@pytest.mark.parametrize(("depth", "share"), [(1, 0.07), (2, 0.43), (4, 0.56)])
def test_share_of_default_starts_that_rise_in_two_dimensions(depth, share):
    assert sweep.depth_study(depth, 2, range(200)).mean() == pytest.approx(share, abs=0.1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("depth", "dim", "seeds", "share"),
    [
        (3, 2, 200, 0.51),
        (1, 3, 200, 0.01),
        (2, 3, 200, 0.23),
        (3, 3, 200, 0.40),
        (4, 3, 200, 0.52),
        (1, 8, 100, 0.0),
        (2, 8, 100, 0.04),
        (4, 8, 100, 0.36),
        (1, 64, 12, 0.0),
        (2, 64, 12, 0.0),
        (4, 64, 12, 0.08),
    ],
)
def test_share_of_default_starts_that_rise(depth, dim, seeds, share):
    assert sweep.depth_study(depth, dim, range(seeds)).mean() == pytest.approx(share, abs=0.1)


def test_default_starts_all_converge():
    task = Sim((1, 2), 0.05, 3)
    layers = deep.uniform_layers(range(100), (3, 3, 3))
    assert deep.descent_errors(layers, task.a, 0.1, 3200, task.target)[-1].max() < 1e-3


def test_errors_of_layers_equal_errors_of_their_product():
    task = Sim((1, 2), 0.05, 3)
    layers = deep.uniform_layers(range(4), (3, 5, 3))
    errors = deep.descent_errors(layers, task.a, 0.1, 50, task.target)
    assert errors == pytest.approx(deep.path(layers, task.a, 5, 0.1, "descent").error(task.target), abs=1e-12)


def test_swing_by_vanishes_with_width():
    shares = [sweep.width_study(width, range(200)).mean() for width in (2, 4, 8, 16, 32, 64)]
    assert shares == pytest.approx([0.41, 0.23, 0.10, 0.05, 0.02, 0.0], abs=0.011)


def test_three_concepts_descend_three_times():
    task = Sim((1, 1.5, 2.2), 0.05)
    u0 = positive_factors([48], 0.02, (3, 3), 0, 1)[0]
    path = symmetric.factor_path(u0, task.a, 40, 0.005)
    errors = path.error(task.target)
    assert analysis.descents(errors) == 3
    expected = [(3.004, 1.2373, 6.144, 1.4874), (10.937, 0.4193, 12.256, 0.4235)]
    for found, known in zip(analysis.rises(path.times, errors), expected, strict=True):
        assert found == pytest.approx(known, abs=1e-3)


def test_how_often_three_concepts_descend_again():
    task = Sim((1, 1.5, 2.2), 0.05)
    path = symmetric.factor_path(positive_factors(range(60), 0.02, (3, 3), 0, 1), task.a, 60, 0.04)
    counts = [analysis.descents(curve) - 1 for curve in path.error(task.target).T]
    assert [counts.count(k) for k in range(4)] == [5, 39, 16, 0]


def test_four_concepts_descend_four_times():
    path = symmetric.factor_path(positive_factors([46], 0.1, (4, 4), 0, 1)[0], FOUR.a, 60, 0.005)
    errors = path.error(FOUR.target)
    expected = [(1.417, 1.3774, 1.770, 1.4152), (2.643, 1.2884, 3.911, 1.3662), (8.887, 0.2675, 15.178, 0.3712)]
    for found, known in zip(analysis.rises(path.times, errors), expected, strict=True):
        assert found == pytest.approx(known, abs=1.5e-3)
    assert len(analysis.stages(path.times, path.w, 4)) == 7


@pytest.mark.parametrize("omega", [0.05, 0.1])
def test_the_supposed_failure_is_a_long_plateau(omega):
    task = Sim((0.7, 1.7, 3), 0.05)
    u0 = positive_factors(range(60), omega, (3, 3), 0, 1)
    errors = symmetric.factor_path(u0, task.a, 55, 0.05, every=10).error(task.target)
    assert errors[-1].max() < 1e-3
    assert np.median(errors[round(10 / 0.5)]) > 0.2  # nearly all of the weak concept's 0.245 is still missing


@pytest.mark.slow
def test_smaller_starts_stay_longer_on_the_plateau_and_leave_it_too():
    task = Sim((0.7, 1.7, 3), 0.05)
    u0 = positive_factors(range(120), 0.01, (3, 3), 0, 1)
    errors = symmetric.factor_path(u0, task.a, 130, 0.05, every=10).error(task.target)
    assert (errors[round(55 / 0.5)] < 1e-3).sum() < 120  # some are still waiting here
    assert errors[-1].max() < 1e-3


def test_diversity_removes_the_swing():
    sigma = np.array([0, 0.5, 1.0, 1.2, 1.3, 1.6])
    mu = np.tile([1.0, 2.0], (len(sigma), 1))
    a = mu**2 / 2 + sigma[:, None] ** 2
    runs = run_pairs(np.tile(aligned_map(0.05, 0.9), (len(sigma), 1, 1)), mu, a)
    assert runs.rise / 0.5 == pytest.approx([0.107, 0.086, 0.018, 0.001, 0, 0], abs=1e-3)
    assert runs.rise[-1] <= analysis.MONOTONE


def test_the_phase_diagram_has_the_known_heights():
    omegas = np.array([0.011, 0.045, 0.089, 0.35])
    mu = np.tile([1.0, 4.0], (4, 1))
    runs = run_pairs(aligned_map(omegas, 0.9), mu, mu**2 / 2 + 0.05**2)
    assert runs.rise / 0.5 == pytest.approx([0.033, 0.145, 0.286, 0.69], abs=5e-3)
    near = np.array([[1.0, 1.25]])
    assert run_pairs(aligned_map(np.array([0.05]), 0.9), near, near**2 / 2 + 0.0025).rise <= analysis.MONOTONE


def test_a_small_phase_diagram_is_laid_out_along_its_axes():
    phase = sweep.phase_diagram(sweep.PhaseSettings(cells=5, seeds=3))
    assert phase.heights.shape == (5, 5, 3)
    k, row, column = 2, 3, 4
    w0 = symmetric.map_of(positive_factors([k], phase.y[row], (2, 2)))
    mu = np.array([[1.0, phase.x[column]]])
    alone = run_pairs(w0, mu, mu**2 / 2 + 0.0025)
    assert phase.heights[row, column, k] == pytest.approx(alone.rise[0] / 0.5, abs=1e-12)
    assert phase.share[:, 0].max() == 0 or phase.mean[:, 0].max() < phase.mean[:, -1].max()


def test_phase_diagrams_refuse_settings_without_meaning():
    with pytest.raises(UserError, match="two different axes"):
        sweep.phase_diagram(sweep.PhaseSettings("ratio", "ratio"))
    with pytest.raises(UserError, match="deterministic"):
        sweep.phase_diagram(sweep.PhaseSettings(start="aligned", seeds=2))
    with pytest.raises(UserError, match="aligned"):
        sweep.phase_diagram(sweep.PhaseSettings("rho", "omega", start="positive"))
    with pytest.raises(UserError, match="not be negative"):
        sweep.phase_diagram(sweep.PhaseSettings(cells=2, seeds=1, sigma=-1.0))


def test_studies_count_starts_that_rise_with_wilson_intervals():
    narrow, wide = sweep.share_study("width", [{"width": 2}, {"width": 64}], 20)["rows"]
    hits = int(sweep.width_study(2, range(20)).sum())
    expected = binomtest(hits, 20).proportion_ci(method="wilson")
    assert (narrow["value"], narrow["n"]) == (hits / 20, 20) and 0 < hits < 20
    assert (narrow["low"], narrow["high"]) == pytest.approx((expected.low, expected.high))
    assert (wide["width"], wide["value"], wide["low"]) == (64, 0, 0)


def test_the_hierarchy_of_corners_is_mostly_kept_by_relu():
    from tessera.studies.swingby.mlp import Recipe, train

    task = Sim((1, 2, 3, 4), 0.5, 64, rotation=0)
    pairs = ordered_pairs(task.codes)
    runs = train(task, Recipe(depth=2, relu=True, epochs=5), range(3), task.corners, every=157)
    kept = [analysis.hierarchy_kept(runs.errors[epoch, seed], pairs) for epoch in (1, 3, 5) for seed in range(3)]
    assert min(kept) >= 0.9 and np.mean(kept) > 0.93
