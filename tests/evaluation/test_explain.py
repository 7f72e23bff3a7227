import pytest
import torch

from tessera.evaluation.detection import Detection
from tessera.evaluation.explain import BAD, GOOD, ODD, PANEL, _wrapped, draw_explanation, half_sides, words
from tessera.evaluation.matching import match
from tessera.render.render import render
from tessera.sampling.prompts import Prompt
from tessera.scenes import scenes_at


def obj(x, y, size="large", well_formed=0.9):
    return Detection(x, y, "red", "cube", size, "metal", 0.97, well_formed)


def inks(image):
    return {tuple(pixel) for pixel in image.flatten(1).T.tolist()}


def test_small_images_are_enlarged_and_get_a_panel():
    drawn = draw_explanation(torch.zeros(3, 48, 64), match([], []))
    assert drawn.dtype == torch.uint8 and drawn.shape == (3, 384, 512 + PANEL)
    large = draw_explanation(torch.zeros(3, 480, 640), match([], []))
    assert large.shape == (3, 480, 640 + PANEL)


def test_colors_conditioner_filled_extra_and_half_drawn_apart():
    detections = [obj(0.3, 0.3), obj(0.7, 0.7), obj(0.3, 0.7, well_formed=0.1)]
    locations = [(0.3, 0.3), (0.3, 0.7)]
    prompt = Prompt(tuple(locations))
    seen = inks(draw_explanation(torch.zeros(3, 64, 64), match(detections, locations), prompt))
    assert {GOOD, BAD, ODD} <= seen
    alone = inks(draw_explanation(torch.zeros(3, 64, 64), match(detections[:1], locations[:1]), Prompt(((0.3, 0.3),))))
    assert GOOD in alone and not {BAD, ODD} & alone


def test_the_panel_says_what_was_found_and_why_it_does_not_do():
    detections = [obj(0.3, 0.3)]
    score = match(detections, [(0.3, 0.3), (0.65, 0.25)], ood_score=2.0)
    lines = [text for text, _ in words(score, prompted=True)]
    assert lines == [
        "1  large red metal cube at (0.30, 0.30), sure 0.97",
        "1 of 2 found, 0 extra",
        "nothing at (0.65, 0.25)",
        "unlike the images the detector was trained on (score 2.0 > 1)",
    ]


@pytest.mark.parametrize("size", ["small", "large"])
def test_a_box_holds_the_object_it_is_drawn_around(size):
    location = (0.55, 0.45)
    scene = scenes_at([location], shape="sphere", size=size)
    rows, columns = (render(scene, (320, 240), layers=("mask",))["mask"][0] == 1).nonzero(as_tuple=True)
    half_x, half_y = half_sides(obj(*location, size), 4 / 3)
    for ends, half, middle, scale in ((columns, half_x, location[0], 320), (rows, half_y, location[1], 240)):
        assert middle - half < ends.min() / scale and ends.max() / scale < middle + half
        assert (ends.max() - ends.min()) / scale > 1.4 * half  # and is not much larger


def test_an_object_that_floats_above_the_horizon_still_gets_a_box():
    half_x, half_y = half_sides(obj(0.5, 0.01), 4 / 3)
    assert 0.02 < half_x < 0.2 and half_y == pytest.approx(half_x * 4 / 3)


def test_long_reasons_are_wrapped_between_words():
    text = "nothing at " + ", ".join(f"(0.{n}5, 0.45)" for n in range(9))
    lines = _wrapped(text)
    assert max(map(len, lines)) <= 60 and " ".join(line.strip() for line in lines) == text
