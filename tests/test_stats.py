import numpy as np
import pytest
from scipy.stats import binomtest

from tessera.stats import Interval, mean_interval, quantile_range, resampled_means, share_interval, wilson


@pytest.mark.parametrize(("count", "n"), [(0, 8), (7, 8), (8, 8), (31, 64), (1, 2000)])
def test_wilson_agrees_with_scipy(count, n):
    known = binomtest(count, n).proportion_ci(method="wilson")
    assert wilson(count, n) == pytest.approx((known.low, known.high), abs=1e-12)


def test_wilson_takes_arrays_and_keeps_the_ends_exact():
    low, high = wilson(np.array([0, 5, 10]), 10)
    assert low[0] == 0 and high[2] == 1
    assert (low[1], high[1]) == pytest.approx(wilson(5, 10))


def test_seven_of_eight_says_little():
    low, high = wilson(7, 8)
    assert low == pytest.approx(0.529, abs=1e-3) and high == pytest.approx(0.978, abs=1e-3)


def test_a_share_of_nothing_is_null_and_an_interval_of_nothing_an_error():
    assert share_interval(0, 0).value is None
    with pytest.raises(ValueError, match="at least one"):
        wilson(0, 0)


def test_the_bootstrap_of_a_mean_has_its_standard_error():
    values = np.random.default_rng(0).integers(0, 5, 400)
    means = resampled_means(values, np.random.default_rng(1), 4000)
    assert means.std() == pytest.approx(values.std() / 20, rel=0.05)
    assert means.mean() == pytest.approx(values.mean(), abs=0.01)


def test_counting_kinds_and_drawing_values_give_the_same_interval():
    whole = np.random.default_rng(0).integers(0, 40, 300).astype(float)
    jittered = whole + np.linspace(0, 1e-9, 300)  # too many kinds for the short cut
    ranges = [quantile_range(resampled_means(v, np.random.default_rng(1), 4000)) for v in (whole, jittered)]
    assert ranges[0] == pytest.approx(ranges[1], abs=0.15)


def test_a_mean_of_constant_values_has_no_width():
    record = mean_interval(np.full(9, 3.0), np.random.default_rng(0))
    assert record == Interval(3.0, 3.0, 3.0, 9)
