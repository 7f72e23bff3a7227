"""Verdicts are derived from numbers: every sentence here follows from records with a known answer."""

import pytest

from tessera.app.report.columns import ReportColumn, take_scores
from tessera.app.report.sections import reach_words
from tessera.app.report.verdict import degree_of, reach_of, verdict


def row(k, ok=True, n=64, ood=0):
    counted = {"value": ood / n, "count": ood, "n": n}
    return {"k": k, "n": n, "succeeds": {"paper": ok, "strict": ok}, "ood": counted}


def scores(value, low, high, max_train_objects=3, n=64, most=12, ood=0, ks=None):
    found = {"value": value, "low": low, "high": high, "tested_to": most, "at_least": value == most}
    rows = [row(k, k <= value, n, ood) for k in (ks or range(most + 1))]
    return {"max_train_objects": max_train_objects, "k_max": {"paper": found, "strict": found}, "rows": rows}


def scores_apart(paper, strict):
    """Marks whose K_max, low and high are given for each rule."""
    found = scores(*paper)
    value, low, high = strict
    found["k_max"]["strict"] = {**found["k_max"]["paper"], "value": value, "low": low, "high": high}
    return found


def result(value, low, high, k=4, p=0.001, images=16):
    found = {"value": value, "low": low, "high": high, "k": k, "no_locality": 1 / k, "images": images}
    return {"conditional_locality": {**found, "null": {"p_value": p}}}


LOCAL, GLOBAL = result(0.95, 0.93, 0.97), result(0.3, 0.28, 0.33)


@pytest.mark.parametrize(
    ("found", "where", "sentence"),
    [
        (scores(9, 9, 9), LOCAL, "Composes up to 9, with local influence of its conditions."),
        (scores(9, 8, 10), LOCAL, "Composes up to about 9, with local influence of its conditions."),
        (scores(12, 12, 12), LOCAL, "Composes up to 12, perhaps further, with local influence of its conditions."),
        (scores(9, 9, 9), GLOBAL, "Composes up to 9, though the influence of its conditions is not local."),
        (scores(9, 9, 9), None, "Composes up to 9."),
        (
            scores(3, 3, 3),
            GLOBAL,
            "Does not compose beyond the 3 objects of its training images, and the influence of its conditions is not local.",
        ),
        (
            scores(1, 1, 1),
            LOCAL,
            "Does not compose: right only up to 1, though trained on up to 3, and yet the influence of its conditions is local.",
        ),
        (scores(0, 0, 0), None, "Does not show even one object reliably."),
        (scores(5, 3, 6), None, "May compose up to about 5, but 3 cannot be ruled out."),
        (scores(2, 0, 8), None, "May not compose beyond 2; anything from 0 to 8 is possible."),
        (scores(9, 9, 9, n=16), LOCAL, "Seems to compose up to 9, with local influence of its conditions."),
        (None, LOCAL, "How far it composes was not measured; the influence of its conditions is local."),
    ],
)
def test_the_sentence_follows_from_the_numbers(found, where, sentence):
    assert verdict(found, where).headline == sentence


def test_locations_filled_with_too_many_others_are_not_called_a_failure_to_fill_them():
    found = scores_apart((1, 0, 2), (6, 5, 7))
    given = verdict(found | {"label": "one"}, LOCAL)
    sentence = (
        "Follows its prompts up to about 6, but adds more than training does; the influence of its conditions is local."
    )
    assert given.headline == sentence and given.tone == "unsure"
    assert verdict(found | {"label": "all"}, LOCAL).headline.startswith("Does not compose")


def test_locations_filled_with_perhaps_too_many_others_are_not_called_one_either():
    found = scores_apart((0, 0, 9), (7, 6, 7))
    given = verdict(found | {"label": "one"}, LOCAL)
    sentence = "Follows its prompts up to about 7, and may add more than training does; the influence of its conditions is local."
    assert given.headline == sentence and given.tone == "unsure"
    assert "May not compose" in verdict(found, LOCAL).headline  # told of everything, extras are mistakes


def test_a_card_without_a_label_is_read_with_that_of_the_training():
    found = scores_apart((1, 0, 2), (6, 5, 7))
    subject = ReportColumn(
        "exp2L", settings={"conditioner": {"label": "one"}, "data": {"objects": [1, found["max_train_objects"]]}}
    )
    take_scores(subject, {name: value for name, value in found.items() if name != "max_train_objects"}, {})
    assert verdict(subject.scores, LOCAL).headline.startswith("Follows its prompts up to about 6")


def test_few_images_claim_nothing():
    said = verdict(scores(9, 9, 9, n=4), LOCAL)
    assert said.headline.startswith("Too few images to say") and said.tone == "unsure"
    assert any("Only 4 images" in doubt for doubt in said.doubts)


def test_a_gap_between_the_prompted_k_is_reported_and_no_interval_is_claimed():
    found = scores(1, 1, 1, ks=(1, 3, 6, 9), most=9)
    found["k_max"]["paper"]["tested_to"] = 1  # K = 2 was not asked for
    for each in found["rows"]:
        each["succeeds"] = dict.fromkeys(("paper", "strict"), each["k"] <= 6)
    reach = reach_of(found)
    assert (reach.value, reach.low, reach.high, reach.gaps) == (6, None, None, True)
    said = verdict(found, None)
    assert said.headline == "Seems to compose up to 6." and any("Not every K" in one for one in said.doubts)


def test_a_gap_beyond_the_first_failure_decides_nothing():
    found = scores(0, 0, 0, ks=(1, 3, 6, 9), most=9)
    found["k_max"]["paper"]["tested_to"] = 1
    reach = reach_of(found)
    assert (reach.value, reach.low, reach.high, reach.gaps) == (0, 0, 0, False)


def test_without_the_training_range_nothing_is_called_composing():
    found = scores(9, 9, 9, max_train_objects=None)
    del found["k_max"]["paper"]
    assert verdict(found, None).headline == "Follows its prompts up to 9."


def test_ood_images_make_the_counts_doubtful():
    assert any("50% of its images" in one for one in verdict(scores(9, 9, 9, ood=32), None).doubts)
    assert verdict(scores(9, 9, 9, ood=1), LOCAL).doubts == []


@pytest.mark.parametrize(
    ("record", "degree"),
    [
        (LOCAL, "local"),
        (GLOBAL, "not"),
        (result(0.9, 0.6, 0.95), "partly"),  # the lower end decides
        (result(0.4, 0.2, 0.6), "partly"),  # the upper end decides
        (result(0.9, 0.25 + 0.75 * 0.71, 0.95), "local"),  # 0.7 of the way from chance to locality
        (result(0.9, 0.25 + 0.75 * 0.69, 0.95), "partly"),
        (result(0.4, 0.2, 0.25 + 0.75 * 0.36), "partly"),  # 0.35 of it
        (result(0.4, 0.2, 0.25 + 0.75 * 0.34), "not"),
        (result(0.9, 0.85, 0.95, p=0.2), "chance"),
        (result(1.0, 1.0, 1.0, k=1), "unknown"),  # one condition is always its own
        ({"conditional_locality": None}, "unknown"),
        (None, "unknown"),
    ],
)
def test_locality_is_evaluated_by_its_whole_interval(record, degree):
    assert degree_of(record) == degree


def test_the_table_says_where_a_gap_leaves_k_max_open():
    found = scores(1, 1, 1, ks=(1, 3), most=3)
    found["k_max"]["paper"]["tested_to"] = 1
    found["rows"][1]["succeeds"] = {"paper": True, "strict": False}
    assert reach_words(ReportColumn("one", scores=found), "paper") == "3 of those evaluated"
