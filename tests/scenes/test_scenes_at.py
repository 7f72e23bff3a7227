"""Objects at asked locations of the image."""

import warnings
from dataclasses import fields

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tessera.errors import UserError
from tessera.scenes import LOCATIONS, Scenes, placement, scenes_at
from tessera.scenes.camera import project
from tessera.scenes.placement import LocationWarning, _touching, reachable
from tessera.scenes.sampling import random_looks
from tessera.scenes.vocabulary import COLOR_NAMES

INSIDE = [location for location, fits in zip(LOCATIONS, reachable(LOCATIONS)) if fits]


@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.tuples(st.floats(0.05, 0.95), st.floats(0.25, 0.95)), min_size=0, max_size=5),
    st.integers(0, 2**40),
    st.booleans(),
)
def test_centers_project_to_the_requested_locations(locations, seed, jitter):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LocationWarning)
        scenes = scenes_at(locations, seed=seed, count=3, rules=Scenes(jitter=jitter))
    assert scenes.present.shape == (3, len(locations)) and scenes.present.all()
    shown = project(scenes.center, scenes.camera)[0]
    assert torch.allclose(shown, torch.tensor(locations).reshape(-1, 2).expand_as(shown), atol=1e-5)


def test_the_twelve_locations_fit_without_touching():
    with pytest.warns(LocationWarning, match=r"Off the square .*\(0.65, 0.25\)") as passed_on:
        scenes = scenes_at(LOCATIONS, count=32)
    assert len(passed_on) == 1
    assert not _touching(scenes.xy, scenes.size).any()
    assert scenes.size.unique().numel() == 2


def test_scene_i_depends_on_its_number_only():
    whole = scenes_at(INSIDE, count=6, seed=5)
    part = scenes_at(INSIDE, count=2, seed=5, start=3)
    assert all(torch.equal(getattr(whole[3:5], f.name), getattr(part, f.name)) for f in fields(part))
    assert not torch.equal(whole.color, scenes_at(INSIDE, count=6, seed=6).color)


def test_attributes_can_be_given_for_all_or_for_each():
    scene = scenes_at(
        [(0.4, 0.5), (0.6, 0.5)], shape="cube", color=["red", "cyan"], size=("small", "large"), rotation=0.5
    ).unstack()[0]
    assert [(t.shape, t.color, t.size_name, t.rotation) for t in scene.objects] == [
        ("cube", "red", "small", 0.5),
        ("cube", "cyan", "large", 0.5),
    ]


def test_rules_choose_the_looks_that_are_not_given():
    rules = Scenes(shapes=("sphere",), held_out=(("metal",), ("small",)), jitter=False)
    scenes = scenes_at(INSIDE[:4], count=20, rules=rules)
    assert {(t.shape, t.material, t.size_name) for s in scenes.unstack() for t in s.objects} == {
        ("sphere", "rubber", "large")
    }


def test_given_words_never_make_what_the_rules_hold_out():
    rules = Scenes(held_out=(("cube", "red"), ("small", "blue")), jitter=False)
    scenes = scenes_at(INSIDE[:3], shape="cube", color=[*["blue"] * 2, "green"], rules=rules, count=20)
    assert {(t.shape, t.color, t.size_name) for s in scenes.unstack() for t in s.objects} == {
        ("cube", "blue", "large"),
        ("cube", "green", "large"),
        ("cube", "green", "small"),
    }
    cubes = scenes_at(INSIDE[:3], shape="cube", rules=rules, count=200)
    assert {t.color for s in cubes.unstack() for t in s.objects} == set(COLOR_NAMES) - {"red"}
    with pytest.raises(UserError, match="hold out every object that is cube and red"):
        scenes_at(INSIDE[:1], shape="cube", color="red", rules=rules)


def test_given_words_change_no_other_chance_where_nothing_is_held_out():
    free, given = scenes_at(INSIDE[:3], count=6, seed=2), scenes_at(INSIDE[:3], count=6, seed=2, color="red")
    assert all(torch.equal(getattr(free, n), getattr(given, n)) for n in ("shape", "size", "material", "xy"))


def test_looks_are_drawn_once_where_given_sizes_leave_nothing_to_try(monkeypatch):
    drawn = []
    monkeypatch.setattr(placement, "random_looks", lambda *a: drawn.append(a) or random_looks(*a))
    with pytest.warns(LocationWarning, match="Objects touch"):
        scenes_at([(0.5, 0.5), (0.52, 0.5)], size="large")
    assert len(drawn) == 1


def test_each_scene_can_have_its_own_locations():
    locations = torch.tensor([[[0.4, 0.5]], [[0.6, 0.6]]])
    scenes = scenes_at(locations)
    assert torch.allclose(project(scenes.center, scenes.camera)[0], locations, atol=1e-5)


def test_the_diamond_of_reachable_locations_is_the_known_one():
    inside = [(0.522, 0.245), (0.925, 0.435), (0.455, 0.775), (0.095, 0.401), (0.5, 0.5)]
    outside = [(0.522, 0.230), (0.945, 0.435), (0.455, 0.790), (0.080, 0.401), (0.65, 0.25)]
    assert reachable(inside).all() and not reachable(outside).any()


def test_objects_too_large_for_their_locations_are_flagged():
    with pytest.warns(LocationWarning, match="Objects touch in 2 of 2 scenes"):
        scenes_at([(0.5, 0.5), (0.52, 0.5)], count=2)


@pytest.mark.parametrize(
    ("locations", "options", "sentence"),
    [
        ([(1.2, 0.5)], {}, r"\(1.2, 0.5\) lies outside the image"),
        ([(0.5, float("nan"))], {}, "lies outside the image"),
        ([(0.5,)], {}, "must be pairs"),
        ("here", {}, "must be pairs of numbers"),
        ([(0.5, 0.0)], {"aspect": 0.5}, "above the horizon"),
        ([(0.5, 0.5)], {"color": "pink"}, "`pink` is no color"),
        ([(0.5, 0.5)], {"color": ["red", "blue"]}, "1 locations need as many values of color"),
        ([[(0.5, 0.5)]], {"count": 2}, "for 1 scenes, but 2"),
    ],
)
def test_impossible_prompts_are_one_sentence(locations, options, sentence):
    with pytest.raises(UserError, match=sentence):
        scenes_at(locations, **options)


def test_the_study_asks_for_its_twelve_locations_in_one_order():
    hundredths = [(round(100 * x, 6), round(100 * y, 6)) for x, y in LOCATIONS]
    assert hundredths == [
        (65, 65), (65, 25), (25, 65), (35, 35), (45, 65), (45, 25),
        (65, 45), (25, 45), (45, 45), (55, 55), (35, 55), (55, 35),
    ]  # fmt: skip
