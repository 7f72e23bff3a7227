"""The detectors on curves whose answer is known."""

import numpy as np
import pytest

from tessera.studies.swingby import analysis


def test_a_falling_curve_has_no_rise_and_no_top():
    times = np.linspace(0, 5, 100)
    found = analysis.swing(times, np.exp(-times))
    assert (found.rise, found.swing_by, found.t_max, found.e_max) == (0.0, False, None, None)
    assert found.t_min == 5 and analysis.descents(np.exp(-times)) == 1


def test_a_rise_that_is_never_undone_is_no_swing():
    times = np.linspace(0, 1, 101)
    curve = np.where(times < 0.5, 1 - times, times)
    found = analysis.swing(times, curve)
    assert found.rise == pytest.approx(0.5, abs=1e-3) and not found.swing_by


@pytest.mark.parametrize(("left", "verdict"), [(0.05, True), (1 / 3, False)])
def test_a_rise_of_which_a_third_is_left_at_the_end_is_no_swing(left, verdict):
    curve = np.array([3.0, 1.0, 4.0, 1.0 + 3 * left])
    assert analysis.swing(np.arange(4.0), curve).swing_by == analysis.swings(curve) == verdict


def test_turning_points_are_found_between_samples():
    times = np.arange(0, 3, 0.1)
    t, value = analysis.refine(times, (times - 1.234) ** 2 + 2, 12)
    assert (t, value) == (pytest.approx(1.234), pytest.approx(2.0))


def test_turning_points_are_found_between_unevenly_spaced_samples():
    times = np.linspace(0, np.sqrt(3), 30) ** 2  # spaced as the evaluations of swing-by
    curve = (times - 1.234) ** 2 + 2
    assert analysis.refine(times, curve, int(curve.argmin())) == (pytest.approx(1.234), pytest.approx(2.0))


def test_samples_too_coarse_for_a_parabola_are_left_alone():
    times = np.arange(4.0)
    curve = np.array([10.0, 0.5, 1.0, 0.0])
    found = analysis.swing(times, curve)
    assert (found.t_min, found.e_min, found.e_max) == (1.0, 0.5, 1.0)
    assert found.rise == analysis.rise(curve)


def test_descents_are_counted_with_hysteresis():
    times = np.linspace(0, 1, 2001)
    curve = 3 - 3 * times + 0.2 * np.sin(20 * times)
    expected = sum(1 for a, b in zip(np.sign(np.diff(curve)), np.sign(np.diff(curve))[1:]) if a < 0 < b)
    assert expected == 3 and analysis.descents(curve) == expected + 1
    ripple = 3 - 3 * times + 2e-4 * np.sin(20000 * times)
    assert analysis.descents(ripple) == 1


def test_rises_come_as_valley_and_peak():
    curve = np.array([5.0, 1.0, 2.0, 0.5, 3.0, 0.1])
    found = analysis.turns(curve)
    assert found == [1, 2, 3, 4]
    assert analysis.turns(np.array([3.0, 1.0, 2.0])) == [1, 2]


def test_the_rise_is_measured_against_the_lowest_point_before():
    curves = np.array([[3.0, 1.0], [1.0, 2.0], [2.0, 0.5], [0.5, 3.0]])
    assert analysis.rise(curves) == pytest.approx([1.0, 2.5])


def test_concepts_never_learned_are_left_out_of_the_order():
    assert analysis.order(np.array([np.inf, 2.0, 1.0])) == [3, 2]
    assert analysis.crossing(np.array([0.0, 1.0]), np.array([0.0, 0.4])) == np.inf
    assert analysis.crossing(np.array([0.0, 1.0]), np.array([0.0, 1.0])) == pytest.approx(0.5)


def test_the_hierarchy_share_counts_pairs():
    assert analysis.hierarchy_kept(np.array([0.0, 1.0, 0.5]), [(0, 1), (1, 2)]) == 0.5
