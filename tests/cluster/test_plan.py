"""Forecasts of independent pieces on several workers."""

import pytest

from tessera.cluster.plan import ClusterConditions, enough_workers, forecast

NO_TROUBLE = ClusterConditions(startup=0.0, slow_share=0.0, failures_per_hour=0.0)


def test_without_trouble_a_forecast_is_the_list_schedule():
    minutes = [4.0, 3.0, 3.0, 2.0]
    assert [forecast(minutes, workers, NO_TROUBLE, runs=3).minutes for workers in (1, 2, 4, 64)] == [12, 6, 4, 4]
    assert forecast(minutes, 4, NO_TROUBLE, runs=3).efficiency == pytest.approx(0.75)
    assert forecast([], 4, NO_TROUBLE, runs=3).minutes == 0


def test_every_trouble_makes_it_longer_and_is_repeated_by_its_seed():
    minutes = [5.0] * 64
    calm = forecast(minutes, 8, NO_TROUBLE).minutes
    for trouble in ({"startup": 1.0}, {"slow_share": 0.5}, {"failures_per_hour": 2.0}):
        after = forecast(minutes, 8, ClusterConditions(**{**vars(NO_TROUBLE), **trouble}))
        assert after.minutes > calm and after.low <= after.minutes <= after.high
    assert forecast(minutes, 8) == forecast(minutes, 8)


def test_the_longest_piece_bounds_how_many_workers_help():
    minutes = [10.0] + [1.0] * 30
    most = enough_workers(minutes)
    assert most == 4
    gain = forecast(minutes, most, NO_TROUBLE, 3).minutes - forecast(minutes, 10 * most, NO_TROUBLE, 3).minutes
    assert 0 <= gain <= 1
    assert enough_workers([]) == 1
