"""`evaluate`, `length_generalization` and the image folders they share a path with."""

import json

import pytest
import torch
from stand_in import StandIn

from tessera.errors import UserError
from tessera.evaluation import evaluate, length_generalization
from tessera.evaluation.detection import Detection
from tessera.evaluation.image_sets import images_in
from tessera.evaluation.pipeline import _is_one_prompt, score_folder
from tessera.models.loading import load
from tessera.render.image_io import save_png, to_uint8
from tessera.render.render import render
from tessera.sampling.prompts import Prompt
from tessera.scenes import LOCATIONS, scenes_at

PAIR = [(0.65, 0.65), (0.4, 0.4)]


def obj(x, y, color="red"):
    return Detection(x, y, color, "cube", "large", "metal", 0.9, 0.9)


def test_rendered_objects_are_found_where_they_stand():
    images = render(scenes_at(PAIR, count=3), 128)["rgb"]
    result = evaluate(images, PAIR)
    assert result.all_found.value == 1 and result.all_found.n == 3 and result.all_found.low < 1
    assert [score.found for score in result.images] == [[True, True]] * 3
    first = result.images[0].detections[0]
    assert min(abs(first.x - x) + abs(first.y - y) for x, y in PAIR) < 0.05 and first.well_formed > 0.5
    assert "3 images" in repr(result) and json.dumps(result.to_dict())


def test_bytes_and_floats_are_evaluated_alike():
    images = render(scenes_at(PAIR), 64)["rgb"]
    one, other = evaluate(images, PAIR), evaluate(to_uint8(images), PAIR)
    assert one.images[0].detections == other.images[0].detections


def test_each_image_may_have_its_own_prompt():
    detector = StandIn([[obj(0.5, 0.5)], [obj(0.5, 0.5, "blue")], []])
    result = evaluate(torch.zeros(3, 3, 32, 32), [[(0.5, 0.5), (0.1, 0.1)], ["blue"], []], detector)
    assert [score.found for score in result.images] == [[True, False], [True], []]
    assert result.all_found.value == pytest.approx(2 / 3)
    with pytest.raises(UserError, match="2 prompts for 3 images"):
        evaluate(torch.zeros(3, 3, 32, 32), [["blue"], ["red"]], detector)
    with pytest.raises(UserError, match="are \\(B, 3, H, W\\)"):
        evaluate(torch.zeros(3, 32, 32), PAIR, detector)


@pytest.mark.parametrize(
    ("prompts", "one"),
    [
        (PAIR, True),
        ([], True),
        (["red"], True),
        ({"red": 2}, True),
        (Prompt(), True),
        ([[]], False),
        ([PAIR], False),
        ([PAIR, PAIR], False),
        ([["red"], ["blue"]], False),
        ([Prompt(), Prompt()], False),
    ],
)
def test_one_prompt_for_all_and_one_for_each_are_distinguished(prompts, one):
    assert _is_one_prompt(prompts) == one


def test_length_generalization_of_a_model_has_intervals_a_table_and_a_plot():
    every = LOCATIONS[:2]
    detector = StandIn([[obj(*every[0])]] * 8 + [[obj(*spot) for spot in every]] * 3 + [[]] * 5)
    found = length_generalization(load("exp1"), ks=(1, 2), samples=8, steps=2, detector=detector)
    assert found.by_k[1].value == 1 and found.by_k[2].value == 3 / 8
    assert found.k50.value == pytest.approx(1.8) and found.k50.low <= 1.8 <= found.k50.high
    assert found.k_max_strict.value == 1 and found.max_train_objects == 3
    assert found.table().row_count == 2 and found.plot().axes
    assert "16 images" in str(found.table()) and "100 (68-100)" in str(found.table())  # as `print` shows it
    assert "k50=1.8" in repr(found) and json.dumps(found.to_dict())


def test_images_of_any_origin_take_their_prompts_from_a_file(tmp_path):
    for name in ("one.png", "two.png"):
        save_png(tmp_path / name, torch.zeros(3, 32, 32, dtype=torch.uint8))
    prompts = tmp_path / "prompts.json"
    prompts.write_text(json.dumps([{"file": "two.png", "locations": PAIR}, {"file": "one.png", "colors": ["red"]}]))
    scored = score_folder(images_in(tmp_path, prompts=prompts), StandIn([[obj(*PAIR[1])], [obj(0, 0)]]))
    assert [score.found for score in scored.scores] == [[False, True], [True]]
    prompts.write_text(json.dumps({"one.png": [[0.5, 0.5]]}))
    assert [prompt.wanted for prompt in images_in(tmp_path, prompts=prompts).prompts] == [((0.5, 0.5),)]
    for wrong in ({"../one.png": []}, [{"locations": []}], [3], []):
        prompts.write_text(json.dumps(wrong))
        with pytest.raises(UserError):
            images_in(tmp_path, prompts=prompts)
