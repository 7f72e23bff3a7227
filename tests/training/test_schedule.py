"""The learning rate against recorded and hand-made numbers."""

import json

import pytest

from tessera.config import TrainingConfig
from tessera.training.schedule import learning_rate


def test_rates_match_the_reference(edm2_parity):
    for case in json.loads((edm2_parity / "lr_schedule.json").read_text())["cases"]:
        rate = learning_rate(
            case["cur_nimg"],
            TrainingConfig(
                batch=case["batch_size"],
                lr=case["ref_lr"],
                lr_decay_start=case["ref_batches"],
                lr_warmup=case["rampup_Mimg"] * 1e6,
            ),
        )
        assert rate == pytest.approx(case["lr"], rel=1e-10, abs=0)


def test_the_first_step_of_a_ramp_has_rate_zero():
    assert learning_rate(0, TrainingConfig(batch=64)) == 0


def test_half_way_up_the_ramp_is_half_the_rate():
    assert learning_rate(500, TrainingConfig(batch=1, lr=0.01, lr_decay_start=0, lr_warmup=1000)) == 0.005


def test_four_times_as_late_is_half_the_rate():
    settings = TrainingConfig(batch=8, lr_decay_start=10, lr_warmup=0)
    late, later = (learning_rate(n, settings) for n in (800, 3200))
    assert later == pytest.approx(late / 2)


def test_both_parts_can_be_switched_off():
    assert learning_rate(7, TrainingConfig(batch=8, lr=0.3, lr_decay_start=0, lr_warmup=0)) == 0.3


def test_the_rate_falls_to_zero_toward_the_end():
    settings = TrainingConfig(batch=1, lr=0.4, lr_decay_start=0, lr_warmup=0, cooldown=100, total=300)
    assert [learning_rate(seen, settings) for seen in (0, 200, 250, 300, 400)] == [0.4, 0.4, 0.2, 0.0, 0.0]
