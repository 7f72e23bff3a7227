import itertools
import subprocess
import sys

import numpy as np
import pytest

from tessera.errors import UserError
from tessera.evaluation.detection import Detection
from tessera.evaluation.matching import CELL, filled_at, match, match_colors, score_detections


def obj(x, y, color="red", confidence=0.9, well_formed=0.9):
    return Detection(x, y, color, "cube", "large", "metal", confidence, well_formed)


def test_an_image_with_everything_in_location_is_ok():
    score = match([obj(0.25, 0.66), obj(0.66, 0.25)], [(0.65, 0.25), (0.25, 0.65)])
    assert score.ok and (score.num_found, score.missing, score.extra) == (2, 0, 0)
    assert set(score.pairs) == {(0, 1), (1, 0)}
    assert score.reason == "all 2 locations are filled"


def test_the_reason_says_what_is_missing_and_what_is_too_much():
    score = match([obj(0.25, 0.65), obj(0.40, 0.52)], [(0.65, 0.25), (0.25, 0.65)])
    assert not score.ok
    assert score.reason == "nothing at (0.65, 0.25); 1 extra near (0.40, 0.52)"


def test_nothing_prompted_and_nothing_drawn_is_ok_and_anything_drawn_is_extra():
    assert match([], []).ok
    score = match([obj(0.5, 0.5), obj(0.1, 0.2)], [])
    assert not score.ok and score.extra == 2 and score.wanted == 0
    assert score.reason == "2 extra near (0.50, 0.50) and (0.10, 0.20)"


def test_an_object_counts_up_to_the_edge_of_the_cell_and_no_further():
    assert match([obj(0.5 + CELL, 0.5 - CELL)], [(0.5, 0.5)]).ok  # a corner: within a cell in x and in y
    score = match([obj(0.5 + CELL * 1.01, 0.5)], [(0.5, 0.5)])
    assert (score.num_found, score.missing, score.extra) == (0, 1, 1)


def test_one_object_cannot_fill_two_locations():
    score = match([obj(0.5, 0.5)], [(0.48, 0.5), (0.52, 0.5)])
    assert (score.num_found, score.missing, score.extra) == (1, 1, 0)


def test_as_many_locations_as_possible_are_filled_even_if_a_nearer_pair_must_be_given_up():
    # The object at 0.50 is nearest to the location at 0.51, but only it can fill the location at 0.45.
    score = match([obj(0.50, 0.5), obj(0.56, 0.5)], [(0.51, 0.5), (0.45, 0.5)])
    assert score.ok and set(score.pairs) == {(0, 1), (1, 0)}


def brute_force(locations, wanted, cell):
    """Most pairs, then least distance, over all ways to give detections to prompts."""
    best = (0, 0.0)
    slots = list(range(len(locations))) + [None] * len(wanted)
    for choice in set(itertools.permutations(slots, len(wanted))):
        pairs = [(w, f) for w, f in enumerate(choice) if f is not None]
        gaps = [np.subtract(wanted[w], locations[f]) for w, f in pairs]
        if all(np.abs(gap).max() <= cell for gap in gaps):
            best = max(best, (len(pairs), -sum(np.hypot(*gap) for gap in gaps)))
    return best


@pytest.mark.parametrize("seed", range(12))
def test_the_pairing_agrees_with_trying_all_of_them(seed):
    rng = np.random.default_rng(seed)
    locations, wanted = rng.uniform(0.4, 0.6, (rng.integers(1, 5), 2)), rng.uniform(0.4, 0.6, (3, 2))
    score = match([obj(*location) for location in locations], wanted)
    distance = sum(np.hypot(*(wanted[w] - locations[f])) for w, f in score.pairs)
    number, least = brute_force(locations, wanted, CELL)
    assert score.num_found == number
    assert distance == pytest.approx(-least)


def test_a_half_drawn_object_is_flagged_and_counts_unless_properness_is_required():
    detections = [obj(0.65, 0.25, well_formed=0.2)]
    lenient, stern = (match(detections, [(0.65, 0.25)], require_well_formed=p) for p in (False, True))
    assert lenient.ok and lenient.malformed == 1 and lenient.reason == "half-drawn object at (0.65, 0.25)"
    assert not stern.ok and (stern.num_found, stern.missing, stern.extra) == (0, 1, 0)


def test_where_form_is_required_a_well_formed_object_is_preferred_to_a_nearer_blob():
    detections = [obj(0.50, 0.5, well_formed=0.1), obj(0.53, 0.5)]
    score = match(detections, [(0.5, 0.5)], require_well_formed=True)
    assert score.pairs == ((0, 1),) and score.found == [True] and score.extra == 1


def test_extras_may_be_allowed():
    detections = [obj(0.5, 0.5), obj(0.1, 0.1), obj(0.9, 0.9)]
    assert [match(detections, [(0.5, 0.5)]).succeeds(n) for n in range(3)] == [False, False, True]


def test_colors_are_matched_as_often_as_they_were_prompted():
    detections = [obj(0, 0, "red"), obj(0, 0, "red"), obj(0, 0, "blue")]
    assert match_colors(detections, {"red": 2, "blue": 1}).ok
    assert match_colors(detections, ["blue", "red", "red"]).ok
    score = match_colors(detections, {"red": 1, "green": 2})
    assert (score.num_found, score.missing, score.extra) == (1, 2, 2)
    assert score.reason == "no 2 green; 2 extra: red, blue"


def test_a_color_takes_the_surest_well_formed_object():
    detections = [obj(0, 0, confidence=0.99, well_formed=0.1), obj(0, 0, confidence=0.6), obj(0, 0)]
    assert match_colors(detections, ["red"]).pairs == ((0, 2),)
    stern = match_colors(detections[:1], ["red"], require_well_formed=True)
    assert (stern.num_found, stern.missing, stern.extra) == (0, 1, 0)


def test_unknown_colors_and_locations_that_are_no_pairs_are_refused():
    with pytest.raises(UserError, match="`pink` is no color"):
        match_colors([], ["pink"])
    with pytest.raises(UserError, match="pair"):
        match([], [(0.5,)])


def test_the_public_name_is_the_function_whatever_was_imported_before():
    code = "import tessera.evaluation.detector; from tessera.evaluation import evaluate; assert callable(evaluate)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_a_prompt_is_filled_in_the_images_that_pair_it():
    wanted = [(0.2, 0.5), (0.5, 0.5), (0.8, 0.5)]
    scores = [match([obj(*wanted[n]) for n in found], wanted) for found in ((0, 2), (2,), ())]
    assert filled_at(scores) == [1, 0, 2]
    colors = [match_colors([obj(0.1, 0.1, "blue")], ["red", "blue"])]
    assert filled_at(colors) == [0, 1]


def test_a_score_lists_for_each_location_whether_it_is_found():
    score = score_detections([obj(0.8, 0.5), obj(0.1, 0.1)], [(0.2, 0.5), (0.8, 0.5)], ood_score=0.3)
    assert score.found == [False, True] and score.extra == 1 and score.ood_score == 0.3
    assert score_detections([obj(0.8, 0.5, "blue")], ("blue", "red")).found == [True, False]
    assert score_detections([], {"blue": 1}).missing == 1


def test_a_cell_is_a_sixteenth_of_the_image():
    assert CELL == 0.0625
    assert match([obj(0.562, 0.5)], [(0.5, 0.5)]).ok and not match([obj(0.564, 0.5)], [(0.5, 0.5)]).ok
