"""The learning rate against recorded and hand-made numbers."""

import json

import pytest

from tessera.training.schedule import learning_rate


def test_rates_match_the_reference(edm2_parity):
    for case in json.loads((edm2_parity / "lr_schedule.json").read_text())["cases"]:
        rate = learning_rate(
            case["cur_nimg"],
            batch=case["batch_size"],
            reference=case["ref_lr"],
            decay_batches=case["ref_batches"],
            rampup_images=case["rampup_Mimg"] * 1e6,
        )
        assert rate == pytest.approx(case["lr"], rel=1e-10, abs=0)


def test_the_first_step_of_a_ramp_has_rate_zero():
    assert learning_rate(0, batch=64) == 0


def test_half_way_up_the_ramp_is_half_the_rate():
    assert learning_rate(500, batch=1, reference=0.01, decay_batches=0, rampup_images=1000) == 0.005


def test_four_times_as_late_is_half_the_rate():
    late, later = (learning_rate(n, batch=8, decay_batches=10, rampup_images=0) for n in (800, 3200))
    assert later == pytest.approx(late / 2)


def test_both_parts_can_be_switched_off():
    assert learning_rate(7, batch=8, reference=0.3, decay_batches=0, rampup_images=0) == 0.3


def test_the_rate_falls_to_zero_toward_the_end():
    def rate(seen):
        return learning_rate(
            seen,
            batch=1,
            reference=0.4,
            decay_batches=0,
            rampup_images=0,
            cooldown_images=100,
            total_images=300,
        )

    assert [rate(seen) for seen in (0, 200, 250, 300, 400)] == [0.4, 0.4, 0.2, 0.0, 0.0]
