import json

import numpy as np
import pytest
from scipy.stats import binom, hypergeom

from tessera.errors import UserError
from tessera.evaluation.detection import Detection
from tessera.evaluation.detector_error import DetectorError, confusion, missed_among_wanted, unconfuse
from tessera.evaluation.kmax import (
    Counts,
    TrainingRange,
    crossing,
    evaluations_of,
    generalization_record,
    k50,
    k_max,
    mean_recall,
    shares_of,
)
from tessera.evaluation.matching import match
from tessera.stats import wilson


def images(k, *kinds):
    """Counts from (number of images, filled, extra)."""
    filled = [f for number, f, _ in kinds for _ in range(number)]
    extra = [e for number, _, e in kinds for _ in range(number)]
    return Counts(k, filled, extra, np.add(filled, extra), np.zeros(len(filled)))


def rule_says(rule, counts, max_train_objects=3, label="all"):
    return generalization_record([counts], max_train_objects, label, resamples=10)["rows"][0]["succeeds"][rule]


# --- the paper's rule ---------------------------------------------------------------------------------------


def test_within_the_training_range_seven_of_eight_must_be_right():
    assert rule_says("paper", images(3, (7, 3, 0), (1, 2, 0)))
    assert not rule_says("paper", images(3, (6, 3, 0), (2, 2, 0)))
    assert rule_says("paper", images(3, (56, 3, 0), (8, 0, 0)))
    assert not rule_says("paper", images(3, (55, 3, 0), (9, 3, 1)))  # an extra spoils an image


def test_beyond_the_training_range_seven_of_eight_fill_all_but_two_and_over_a_quarter_fill_all():
    assert rule_says("paper", images(6, (3, 6, 0), (4, 4, 0), (1, 0, 0)))
    assert not rule_says("paper", images(6, (2, 6, 0), (5, 4, 0), (1, 0, 0)))  # a quarter is not more
    assert not rule_says("paper", images(6, (3, 6, 0), (3, 4, 0), (2, 3, 0)))  # six of eight
    assert rule_says("paper", images(6, (8, 6, 5)))  # extras do not count there


@pytest.mark.parametrize(
    ("label", "allowed"), [("all", 0), ("one", 3), ("random", 3), ("all-but-one", 1), ("drop", 1)], ids=lambda x: str(x)
)
def test_objects_that_training_left_unlabeled_may_appear_unlabeled(label, allowed):
    assert TrainingRange(4, label).extras_allowed == allowed
    assert rule_says("paper", images(2, (8, 2, allowed)), max_train_objects=4, label=label)
    assert not rule_says("paper", images(2, (8, 2, allowed + 1)), max_train_objects=4, label=label)


def test_without_the_training_range_there_is_no_paper_rule():
    record = generalization_record([images(1, (8, 1, 0))], resamples=10)
    assert set(record["k_max"]) == {"strict"}


# --- the strict rule ----------------------------------------------------------------------------------------


def test_the_strict_rule_asks_for_a_lower_bound_of_a_half():
    least = next(count for count in range(65) if wilson(count, 64)[0] >= 0.5)
    assert least == 40
    assert rule_says("strict", images(5, (least, 5, 0), (64 - least, 4, 0)))
    assert not rule_says("strict", images(5, (least - 1, 5, 0), (65 - least, 4, 0)))


def test_the_strict_rule_forbids_extras_only_where_all_objects_were_labeled():
    counts = images(2, (64, 2, 1))
    assert not rule_says("strict", counts, label="all")
    assert all(rule_says("strict", counts, label=label) for label in ("one", "random", "all-but-one", "drop"))


# --- K_max --------------------------------------------------------------------------------------------------


def test_k_max_is_the_end_of_the_unbroken_run_from_one():
    assert k_max({1: True, 2: True, 3: False, 4: True}) == 2
    assert k_max({1: False, 2: True}) == 0
    assert k_max({1: True, 3: True}) == 1  # K = 2 was not measured
    assert k_max({}) == 0
    assert k_max({1: np.array([True, True, False]), 2: np.array([True, False, True])}).tolist() == [2, 1, 0]


def test_a_hand_computed_study_gives_its_k_max_and_says_when_nothing_larger_was_tried():
    good = [images(k, (64, k, 0)) for k in (1, 2, 3)]
    late = images(4, (30, 4, 0), (34, 2, 0))  # fine beyond the training range, but 30 of 64 are too few
    record = generalization_record([*good, late], 3)["k_max"]
    assert record["paper"] == {"value": 4, "low": 4, "high": 4, "tested_to": 4, "at_least": True}
    assert record["strict"]["value"] == 3 and not record["strict"]["at_least"]


def test_without_images_of_one_object_k_max_is_not_known_rather_than_nought():
    record = generalization_record([images(2, (8, 2, 0))], 2, error=PERFECT)["k_max"]["paper"]
    assert record == {"value": None, "low": None, "high": None, "tested_to": 0, "at_least": False}


def test_the_interval_of_k_max_shows_a_verdict_on_the_edge():
    edge = images(2, (56, 2, 0), (8, 1, 0))  # exactly 7 of 8: half of all resamples fall below
    record = generalization_record([images(1, (64, 1, 0)), edge], 2)["k_max"]["paper"]
    assert (record["value"], record["low"], record["high"]) == (2, 1, 2)


def test_evaluations_of_eight_images_pass_as_often_as_the_binomial_law_says():
    tables = {1: images(1, (56, 1, 0), (8, 0, 0)).table(), 2: images(2, (60, 2, 0), (4, 1, 0)).table()}
    found = evaluations_of(8, tables, TrainingRange(3), resamples=20_000)
    first, second = (binom.sf(6, 8, right / 64) for right in (56, 60))
    assert np.mean(found >= 1) == pytest.approx(first, abs=0.012)
    assert np.mean(found >= 2) == pytest.approx(first * second, abs=0.012)
    assert evaluations_of(8, {1: images(1, (64, 1, 0)).table()}, TrainingRange(3)).tolist() == [1] * 1000


def test_asking_for_nothing_has_a_row_but_no_part_in_k_max():
    nothing = images(0, (4, 0, 0), (3, 0, 1), (1, 0, 2))
    record = generalization_record([nothing, images(1, (8, 1, 0))], 1)
    row = record["rows"][0]
    assert record["k_max"]["paper"]["value"] == 1
    assert row["objects"]["value"] == pytest.approx(5 / 8) and row["objects"]["typical"] == [0, 2]
    assert row["exact"]["value"] == 0.5 and row["succeeds"] == {"paper": None, "strict": None}


def test_shares_are_counted_as_by_hand_and_the_record_is_plain_json():
    counts = Counts(3, [3, 3, 2, 0], [0, 2, 0, 1], [3, 5, 2, 1], [0, 1, 1, 1])
    row = generalization_record([counts], 3, "one")["rows"][0]
    shares = {name: row[name]["value"] for name in ("all_found", "exact", "allowed_extras", "two_missing")}
    assert shares == {"all_found": 0.5, "exact": 0.25, "allowed_extras": 0.5, "two_missing": 0.75}
    assert row["found"]["value"] == 2.0 and row["extra"]["value"] == 0.75
    assert row["well_formed"]["value"] == pytest.approx(8 / 11)
    assert (row["exact"]["low"], row["exact"]["high"]) == wilson(1, 4)
    json.dumps(row, allow_nan=False)


def test_counts_come_from_scores():
    objects = [Detection(x, 0.5, "red", "cube", "large", "metal", 0.9, 0.9) for x in (0.2, 0.5, 0.1)]
    score = match(objects, [(0.2, 0.5), (0.5, 0.5), (0.9, 0.9)])
    counts = Counts.of(3, [score, score])
    assert counts.filled.tolist() == [2, 2] and counts.objects.tolist() == [3, 3] and counts.n == 2


def test_impossible_counts_are_refused():
    with pytest.raises(UserError, match="0 to 2 can be filled"):
        images(2, (1, 3, 0))
    with pytest.raises(UserError, match="at least one image"):
        Counts.of(2, [])
    with pytest.raises(UserError, match="twice"):
        generalization_record([images(1, (1, 1, 0))] * 2)
    with pytest.raises(UserError, match="labeled"):
        generalization_record([images(1, (1, 1, 0))], label="some")


# --- the detector's own error ----------------------------------------------------------------------------------


def independent_error(recall, false=0.0, fill=0.0, most=16, n=10**6):
    """A detector that misses each object, and imagines one per image, independently."""
    tables = {}
    for objects in range(most + 1):
        missed = binom.pmf(np.arange(objects + 1), objects, 1 - recall)
        tables[objects] = np.round(n * np.outer(missed, [1 - false, false])).astype(int)
    return DetectorError(tables, {t: (round(n * fill), n) for t in range(most + 1)})


PERFECT = independent_error(1.0)


def test_a_perfect_detector_corrects_nothing():
    table = confusion(PERFECT, 4, 3)
    assert np.allclose(table, np.eye(len(table)))
    counts = [images(1, (50, 1, 0), (14, 0, 1)), images(2, (64, 2, 0))]
    record = generalization_record(counts, 2, error=PERFECT)
    for row in record["rows"]:
        assert row["exact"]["corrected"]["value"] == pytest.approx(row["exact"]["value"])
    assert record["k_max"]["strict"]["corrected"]["value"] == record["k_max"]["strict"]["value"]
    assert record["k_max"]["strict"]["detector_range"] == [2, 2]


def test_every_column_of_the_confusion_is_a_distribution():
    table = confusion(independent_error(0.9, false=0.1, fill=0.05), 5, 4)
    assert np.allclose(table.sum(0), 1) and (table >= 0).all()


def test_an_object_seen_falsely_is_an_extra_or_fills_a_location_but_never_both():
    always = DetectorError({0: np.array([[0, 10]])}, {0: (10, 10)})  # one, and just where it was asked for
    at_random = DetectorError({0: np.array([[0, 10]])}, {0: (3, 10)})
    for error, filled in ((always, 1.0), (at_random, 0.3)):
        seen = confusion(error, 1, 2)[:, 0].reshape(2, 3)  # of an empty image
        assert seen[1, 0] == pytest.approx(filled) and seen[0, 1] == pytest.approx(1 - filled)
        assert seen[1, 1] == 0


def test_missed_objects_are_spread_over_prompted_and_extra_ones_at_random():
    known = hypergeom(7, 4, 3).pmf(np.arange(4))
    assert missed_among_wanted(4, 3, 3) == pytest.approx(tuple(known))


def test_with_one_location_the_correction_is_that_of_rogan_and_gladen():
    recall, fill, counted = 0.9, 0.05, 0.7
    table = confusion(independent_error(recall, false=fill, fill=fill), 1, 0)
    true = unconfuse(np.array([[1 - counted, counted]]), table, steps=5000)
    assert true[0, 1] == pytest.approx((counted - fill) / (recall - fill), abs=1e-4)


def test_the_correction_stays_between_none_and_all():
    table = confusion(independent_error(0.8), 1, 0)
    true = unconfuse(np.array([[0.0, 1.0], [1.0, 0.0]]), table)
    assert true[0, 1] == pytest.approx(1, abs=1e-3) and true[1, 1] == pytest.approx(0, abs=1e-3)


def evaluated(k, truth, recall, rng):
    """Counts of a detector that misses objects, from true (filled, extra) images."""
    filled = [rng.binomial(f, recall) for f, _ in truth]
    extra = [rng.binomial(e, recall) for _, e in truth]
    return Counts(k, filled, extra, np.add(filled, extra), np.zeros(len(filled)))


def test_true_shares_are_recovered_from_a_detector_that_misses_one_object_in_twenty():
    k, n, recall = 8, 4000, 0.95
    truth = [(8, 0)] * 2400 + [(7, 0)] * 800 + [(8, 1)] * 800
    counts = evaluated(k, truth, recall, np.random.default_rng(0))
    row = generalization_record([counts], 8, error=independent_error(recall))["rows"][0]
    assert row["exact"]["value"] < 0.45  # as counted: 0.6 * 0.95^8 and a little more
    assert row["exact"]["corrected"]["value"] == pytest.approx(2400 / n, abs=0.04)
    assert row["all_found"]["corrected"]["value"] == pytest.approx(3200 / n, abs=0.04)
    corrected = row["exact"]["corrected"]
    assert corrected["low"] < 0.6 < corrected["high"]


def test_a_k_max_lost_to_the_detector_is_given_back_with_the_range_it_leaves_open():
    rng, recall = np.random.default_rng(1), 0.93
    counts = [evaluated(k, [(k, 0)] * 200, recall, rng) for k in range(1, 13)]
    record = generalization_record(counts, 12, error=independent_error(recall, n=2000))["k_max"]["paper"]
    assert record["value"] <= 2  # 0.93^2 is below 7 of 8
    assert record["corrected"]["value"] == 12
    assert record["detector_range"][0] == record["value"] and record["detector_range"][1] == 12


def test_the_nearest_measured_number_of_objects_stands_in_for_one_that_was_not():
    error = DetectorError({2: np.array([[8], [1], [1]]), 6: np.array([[9], [1]])}, {2: (1, 10)})
    assert error.missed_and_false(5)[:, 0] == pytest.approx([0.9, 0.1])
    assert error.missed_and_false(1)[:, 0] == pytest.approx([0.8, 0.2])  # one object cannot be missed twice
    assert error.false_fill(9) == 0.1


def test_shares_of_many_tables_are_those_of_each():
    tables = np.random.default_rng(0).integers(1, 9, (5, 4, 3))
    together = shares_of(tables, TrainingRange(2, "one"))
    for i, table in enumerate(tables):
        assert np.allclose([share[i] for share in together], shares_of(table, TrainingRange(2, "one")))


def test_what_was_never_counted_may_yet_be_the_truth():
    always_one = DetectorError({0: np.array([[1]]), 1: np.array([[0], [1]]), 2: np.array([[0], [1]])}, {})
    true = unconfuse(np.array([[0.0, 1.0, 0.0]]), confusion(always_one, 2, 0))  # one of two, in every image
    assert true[0] == pytest.approx([0, 0, 1], abs=1e-3)


def test_two_objects_beyond_a_training_on_one_may_both_be_left_out():
    assert rule_says("paper", images(2, (3, 2, 0), (5, 0, 0)), max_train_objects=1)
    assert not rule_says("paper", images(2, (2, 2, 0), (6, 0, 0)), max_train_objects=1)  # a quarter is not more


def test_the_interval_of_well_formed_objects_lies_around_their_share():
    counts = Counts(4, [4] * 16, [0] * 16, [4] * 16, [1] + [0] * 15)
    well_formed = generalization_record([counts], 4, resamples=10)["rows"][0]["well_formed"]
    assert well_formed["value"] == 63 / 64 and 0.9 < well_formed["low"] <= 63 / 64 <= well_formed["high"] <= 1


# --- K50 ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shares", "expected"),
    [
        ([1, 1, 1, 0], 2.5),
        ([1, 0.75, 0.25, 0], 1.5),
        ([1, 1, 0.2, 0.6, 0], 1 + 5 / 6),  # 0.2 and 0.6 become 0.4 twice
        ([1, 0, 0], 0.5),
        ([1, 1, 1], 2.0),  # not below one half anywhere
        ([1, 0.9, 0.5, 0.5, 0.4], 3.0),
    ],
)
def test_k50_is_where_the_best_falling_curve_crosses_one_half(shares, expected):
    assert crossing(range(len(shares)), shares) == pytest.approx(expected)


def test_the_interval_of_k50_holds_it_and_narrows_with_more_samples():
    few, many = (k50(range(4), [n, n * 3 // 4, n // 4, 0], n) for n in (16, 1024))
    for found in (few, many):
        assert found.low <= found.value == 1.5 <= found.high
    assert many.high - many.low < (few.high - few.low) / 2


def test_k50_may_skip_numbers_and_needs_the_first():
    assert crossing([1, 3], [1, 0.25]) == pytest.approx(1 + 2 * 0.5 / 0.75)
    assert k50([2, 3], [8, 8], 8).value is None


def test_k50_of_several_trainings_is_of_their_mean_and_as_wide_as_they_differ():
    alike = k50(range(3), [[64, 40, 10]] * 4, 64)
    apart = k50(range(3), [[64, 64, 20], [64, 16, 0], [64, 64, 20], [64, 16, 0]], 64)
    assert apart.high - apart.low > 2 * (alike.high - alike.low)


def test_mean_recall_counts_locations_beyond_the_training_range():
    counts = [images(1, (4, 1, 0)), images(2, (2, 2, 0), (2, 1, 0)), images(4, (4, 2, 0))]
    found = mean_recall(counts, beyond=1)
    assert found.value == pytest.approx((0.75 + 0.5) / 2) and found.low <= found.value <= found.high and found.n == 8
