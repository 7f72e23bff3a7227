"""The canonical swing-by and what shapes it (spec 6.2): mu = (1, 2), sigma = 0.05, omega = 0.05, rho = 0.9."""

import numpy as np
import pytest

from tessera.studies.swingby import analysis, pairs, symmetric
from tessera.studies.swingby.data import Sim, population_loss
from tessera.studies.swingby.starts import aligned_map, positive_factors

PAIR = Sim((1, 2), 0.05)
R = PAIR.a[0] / PAIR.a[1]


@pytest.fixture(scope="module")
def path():
    return symmetric.flow(aligned_map(0.05, 0.9), PAIR.a, 20, 0.005)


@pytest.fixture(scope="module")
def errors(path):
    return path.error(PAIR.target)


def test_turning_points(path, errors):
    found = analysis.swing(path.times, errors)
    assert errors[0] == pytest.approx(2.47855078, abs=5e-9)
    assert found.t_min == pytest.approx(2.1325, abs=1e-4) and found.e_min == pytest.approx(0.3936571, abs=2e-7)
    assert found.t_max == pytest.approx(3.9203, abs=1e-4) and found.e_max == pytest.approx(0.4473084, abs=2e-7)
    assert found.rise == pytest.approx(0.0536513, abs=2e-7)
    assert found.rise / found.e_min == pytest.approx(0.136, abs=5e-4)
    assert found.rise_over_first == pytest.approx(found.rise / errors[0])
    assert found.swing_by
    assert analysis.descents(errors) == 2


def test_the_error_at_whole_times(path, errors):
    expected = {1: 1.9515832, 2: 0.3999757, 4: 0.4471862, 6: 0.3427022, 8: 0.0798757, 10: 0.0033613}
    for moment, error in expected.items():
        assert errors[round(moment / 0.005)] == pytest.approx(error, abs=2e-7)
    assert errors[-1] < 1e-11


def test_the_minor_peaks_while_the_strong_major_saturates(path):
    at = int(path.w[:, 0, 1].argmax())
    t_peak, height = analysis.refine(path.times, path.w[:, 0, 1], at)
    assert height == pytest.approx(0.0610882, abs=1e-7) and t_peak == pytest.approx(1.7983, abs=1e-4)
    assert np.interp(t_peak, path.times, path.w[:, 1, 1]) == pytest.approx(0.76538, abs=1e-4)
    # The exact condition for the turn, with the weak entry as it is.
    w11, w22 = (np.interp(t_peak, path.times, path.w[:, k, k]) for k in range(2))
    a1, a2 = PAIR.a
    assert w22 * (3 * a2 + a1) + w11 * (3 * a1 + a2) == pytest.approx(2 * (a1 + a2), abs=1e-4)


def test_concept_times_and_order(path):
    half = analysis.half_times(path.times, path.w, 2)
    assert half == pytest.approx([7.5965, 1.5002], abs=1e-4)
    assert analysis.order(half) == [2, 1]


def test_the_output_swings_by_the_strong_cluster(path):
    outputs = path.outputs(PAIR.target)

    def at(moment):
        return np.array([np.interp(moment, path.times, outputs[:, k]) for k in range(2)])

    assert at(2.1325) == pytest.approx([0.118, 1.903], abs=1e-3)
    at_max = at(3.9203)
    assert at_max == pytest.approx([0.054, 2.014], abs=1e-3)
    assert np.linalg.norm(at_max - PAIR.centers[1]) == pytest.approx(0.056, abs=1e-3)


def test_training_loss_only_falls(path):
    loss = population_loss(path.w, PAIR.a)
    assert np.all(np.diff(loss[loss > 1e-13]) < 0)
    assert np.interp(2.1325, path.times, loss) == pytest.approx(0.25719, abs=1e-5)
    assert np.interp(3.9203, path.times, loss) == pytest.approx(0.23938, abs=1e-5)


def test_the_end_slows_down_at_twice_the_weak_moment(path):
    speed = np.linalg.norm(np.gradient(path.outputs(PAIR.target), path.times, axis=0), axis=-1)
    late = (path.times >= 14) & (path.times <= 18)
    slope = np.polyfit(path.times[late], np.log(speed[late]), 1)[0]
    assert slope == pytest.approx(-1.0044, abs=1e-4)
    assert slope == pytest.approx(-2 * PAIR.a[0], abs=2e-3)


def test_stages_begin_at_the_turn_of_the_minor(path):
    found = analysis.stages(path.times, path.w, 2)
    assert [(stage.what, stage.concept) for stage in found] == [("all grow", None), ("suppression", 2), ("growth", 1)]
    assert found[0].end == pytest.approx(1.7983, abs=0.005)
    assert found[1].end == pytest.approx(3.635, abs=0.01)
    assert found[2].end == 20
    assert [stage.start for stage in found[1:]] == [stage.end for stage in found[:-1]]


@pytest.mark.parametrize(("omega", "tolerance"), [(0.05, 8e-3), (0.01, 8e-4), (0.001, 1e-4)])
def test_the_closed_form_peak(omega, tolerance):
    path = symmetric.flow(aligned_map(omega, 0.9), PAIR.a, 6, 0.002)
    minor = path.w[:, 0, 1]
    t_peak, height = analysis.refine(path.times, minor, int(minor.argmax()))
    assert analysis.peak_height(R, 0.9, omega) == pytest.approx(height, rel=tolerance)
    assert analysis.peak_time(R, omega, PAIR.a[1]) == pytest.approx(t_peak, abs=0.3 * tolerance + 2e-4)
    early = path.times <= t_peak
    closed_form = analysis.minor_path(path.times[early], omega, 0.9, *PAIR.a)
    assert np.abs(closed_form / minor[early] - 1).max() < 1.5 * tolerance


def test_constants_of_the_closed_form():
    assert analysis.turnover(R) == pytest.approx(0.76959, abs=1e-5)
    assert analysis.peak_height(R, 1.0, 1.0) == pytest.approx(0.64488, abs=1e-5)


def test_heights_scale_with_the_start():
    omegas = np.geomspace(1e-3, 1e-2, 4)
    path = symmetric.flow(aligned_map(omegas, 0.9), PAIR.a, 30, 0.02)
    minors = [analysis.refine(path.times, m, int(m.argmax()))[1] for m in path.w[:, :, 0, 1].T]
    assert np.polyfit(np.log(omegas), np.log(minors), 1)[0] == pytest.approx(0.7487, abs=5e-4)
    heights = analysis.rise(path.error(PAIR.target))
    assert np.polyfit(np.log(omegas), np.log(heights), 1)[0] == pytest.approx(0.733, abs=0.02)


def test_rise_by_alignment():
    rho = np.array([0.5, 0.7, 0.9, 0.97, 0.99, 0.999])
    path = symmetric.flow(aligned_map(0.05, rho), PAIR.a, 30, 0.01)
    expected = [0.00376, 0.01994, 0.05365, 0.07858, 0.09255, 0.10697]
    assert analysis.rise(path.error(PAIR.target)) == pytest.approx(expected, abs=2e-5)
    low = symmetric.flow(aligned_map(0.05, np.array([0.3, 0.0, -0.5])), PAIR.a, 30, 0.01)
    assert analysis.rise(low.error(PAIR.target)).max() <= analysis.MONOTONE


def test_threshold_alignment():
    found = pairs.threshold_alignment([0.3, 0.1, 0.05, 0.01, 0.001], (1, 2), PAIR.a, digits=3)
    assert found == pytest.approx([0.527, 0.463, 0.387, 0.216, 0.079], abs=1.5e-3)


@pytest.mark.parametrize(
    ("omega", "mean", "spread"), [(0.01, 0.0143, 0.0034), (0.05, 0.0446, 0.0125), (0.1, 0.0686, 0.0223)]
)
def test_positive_starts_always_swing(omega, mean, spread):
    w0 = symmetric.map_of(positive_factors(range(20), omega, (2, 2)))
    path = symmetric.flow(w0, PAIR.a, 40, 0.02)
    errors = path.error(PAIR.target)
    assert analysis.swings(errors).sum() == 20
    relative = analysis.rise(errors) / errors[0]
    assert relative.mean() == pytest.approx(mean, abs=1e-4)
    assert relative.std() == pytest.approx(spread, abs=1e-4)
    if omega == 0.05:
        each = [analysis.swing(path.times, curve) for curve in errors.T]
        means = [np.mean([getattr(s, name) for s in each]) for name in ("t_min", "e_min", "t_max", "e_max")]
        assert means == pytest.approx([1.95, 0.335, 4.60, 0.445], abs=5e-3)
        assert np.mean([s.rise for s in each]) == pytest.approx(0.110, abs=1.5e-3)


def test_the_fast_pair_solver_finds_the_same_rise():
    w0 = np.concatenate([aligned_map(0.05, 0.9)[None], symmetric.map_of(positive_factors([3], 0.05, (2, 2)))])
    runs = pairs.run_pairs(w0, np.tile(PAIR.mu, (2, 1)), np.tile(PAIR.a, (2, 1)))
    slow = analysis.rise(symmetric.flow(w0, PAIR.a, 30, 0.01).error(PAIR.target))
    assert runs.rise == pytest.approx(slow, abs=5e-5)
    assert runs.first[0] == pytest.approx(2.47855078, abs=1e-8) and runs.swings().all()


def test_a_pair_run_does_not_depend_on_its_companions():
    random = np.random.default_rng(0)
    w0 = symmetric.map_of(random.uniform(0.001, 0.4, (30, 1, 1)) * random.uniform(0.5, 1.5, (30, 2, 2)))
    mu = np.stack([np.ones(30), random.uniform(1, 4, 30)], -1)
    a = mu**2 / 2 + 0.01
    together = pairs.run_pairs(w0, mu, a)
    lone = pairs.run_pairs(w0[7:8], mu[7:8], a[7:8])
    assert together.rise[7] == lone.rise[0] and together.last[7] == lone.last[0]


def test_a_nearly_singular_start_does_not_run_away():
    w0 = aligned_map(np.array([0.5]), np.array([1 - 1e-9]))
    runs = pairs.run_pairs(w0, np.array([[1.0, 4.0]]), np.array([[0.5, 8.0]]))
    assert np.isfinite(runs.last).all() and runs.last[0] < 1e-2


def test_scaling_the_data_scales_error_and_time():
    big = Sim((3, 6), 0.15)
    small = symmetric.flow(aligned_map(0.05, 0.9), PAIR.a, 9, 0.009)
    large = symmetric.flow(aligned_map(0.05, 0.9), big.a, 1, 0.001)
    assert large.error(big.target) == pytest.approx(9 * small.error(PAIR.target), abs=1e-9)
