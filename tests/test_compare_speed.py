"""The comparison of speeds: its measures work in today's names, and its ratios are what the clock says."""

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "tools"))

import compare_speed
import speed_adapter


@pytest.mark.slow
@pytest.mark.parametrize("name", speed_adapter.MEASURES)
def test_every_measure_works(name):
    work, units, unit = speed_adapter.MEASURES[name]()
    work()
    assert units > 0 and unit in ("steps", "images", "scenes")


def test_ratios_are_of_rates_within_a_turn():
    old = [{"units": 10, "seconds": seconds, "unit": "steps"} for seconds in (1.0, 2.0, 4.0)]
    new = [{"units": 10, "seconds": seconds, "unit": "steps"} for seconds in (0.5, 1.0, 2.0)]
    row = compare_speed.row("train", old, new)
    assert (row["old"], row["new"], row["ratio"], row["low"], row["high"]) == (5, 10, 2, 2, 2)
    assert row["unit"] == "steps/s" and row["rounds"] == 3


def test_both_trees_answer_in_turn(tmp_path):
    adapter = tmp_path / "adapter.py"
    adapter.write_text("import time\nMEASURES = {'nap': lambda: (lambda: time.sleep(0.05), 2, 'naps')}\n")
    source = Path(__file__).parents[1] / "src"
    trees = [compare_speed.Tree(source, adapter, threads=1) for _ in range(2)]
    try:
        (row,) = compare_speed.compare(*trees, rounds=2, only=["nap"])
    finally:
        for tree in trees:
            tree.process.kill()
    assert 0 < row["old"] <= 40 and 0 < row["new"] <= 40
