"""Records of finished jobs, put together: every number here can be worked out by hand."""

import json
from pathlib import Path

import numpy as np
import pytest

from tessera.errors import UserError
from tessera.evaluation.kmax import TrainingRange
from tessera.studies.clevr.records import drawn_again, k_max_filled, read_records, spread_at
from tessera.studies.clevr.runs import StudyPaths


def test_within_the_training_range_locations_half_filled_do_not_count_as_filled():
    shares = {str(k): {"all_found": {"value": full}, "two_missing": {"value": 1.0}} for k, full in ((1, 1.0), (2, 0.5))}
    assert k_max_filled(shares, max_train_objects=3) == 1
    assert k_max_filled(shares, max_train_objects=1) == 2  # beyond it, over a quarter is enough


def test_extras_are_those_of_the_k_that_succeed_and_objects_those_of_empty_prompts():
    def row(k, succeeds, most):
        return {
            "k": k,
            "succeeds": {"paper": succeeds},
            "extra": {"typical": [0, most]},
            "objects": {"typical": [1, 4]},
        }

    record = {"result": {"rows": [row(0, None, 9), row(1, True, 1), row(2, True, 2), row(3, False, 7)]}}
    assert spread_at([record], "extra", succeeded=True) == [0, 2]
    assert spread_at([record], "objects", succeeded=False) == [1, 4]


@pytest.mark.parametrize(("rare", "low", "high"), [(3, 1, 1), (6, 0, 2)])  # 3.75% and 7.5% of evaluations
def test_nine_evaluations_in_ten_lie_in_the_interval_and_one_in_twenty_to_each_side(rare, low, high):
    counts = {1: np.array([[rare, 0], [80 - rare, 0]]), 2: np.array([[0, 0], [80 - rare, 0], [rare, 0]])}
    found = drawn_again(1, counts, TrainingRange(2))
    assert found == {"median": 1, "low": low, "high": high, "share": 0.9}


@pytest.mark.parametrize(("entry", "value"), [("images_seen", "many"), ("images_seen", 1.5), ("seconds", None)])
def test_a_record_with_a_training_of_other_types_is_refused(tmp_path, entry, value):
    shipped = Path(__file__).parents[3] / "results" / "study" / "exp1-M3-small-seed0.json"
    record = json.loads(shipped.read_text())
    record["training"][entry] = value
    (tmp_path / "study").mkdir()
    (tmp_path / "study" / shipped.name).write_text(json.dumps(record))
    with pytest.raises(UserError, match=f"`{entry}` cannot be"):
        read_records(StudyPaths(results=tmp_path))
