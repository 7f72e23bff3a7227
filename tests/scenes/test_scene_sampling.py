"""Drawn scenes obey the official rules, and scene i is scene i however it is asked for."""

import math
from dataclasses import fields

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tessera.errors import UserError
from tessera.scenes import Scenes, sampling
from tessera.scenes.camera import BEHIND, CAMERA, RIGHT
from tessera.scenes.random import uniform
from tessera.scenes.sampling import SPACINGS, TRIES, looks
from tessera.scenes.scene import BACK, FILL, KEY
from tessera.scenes.vocabulary import COLOR_NAMES, MATERIALS, SHAPES, SIZES


def same(a, b) -> bool:
    return all(torch.equal(getattr(a, f.name), getattr(b, f.name)) for f in fields(a))


rules = st.builds(
    Scenes,
    objects=st.tuples(st.integers(0, 3), st.integers(3, 6)),
    shapes=st.lists(st.sampled_from(SHAPES), min_size=1, unique=True).map(tuple),
    colors=st.lists(st.sampled_from(COLOR_NAMES), min_size=1, unique=True).map(tuple),
    sizes=st.lists(st.sampled_from(tuple(SIZES)), min_size=1, unique=True).map(tuple),
    spacing=st.sampled_from(["official", "relaxed"]),
    jitter=st.booleans(),
    visibility=st.sampled_from(["fast", "off"]),
)


@settings(deadline=None, max_examples=12)
@given(rules, st.integers(0, 2**40), st.integers(0, 2**40), st.integers(1, 9))
def test_a_scene_is_the_same_in_any_batch_from_any_start(scenes, seed, start, count):
    whole = scenes.draw(count, seed, start)
    parts = [scenes.draw(1, seed, start + i) for i in range(count)]
    assert all(same(whole[i : i + 1], part) for i, part in enumerate(parts))


def test_hard_scenes_too_are_the_same_in_any_batch():
    hard = Scenes(objects=9)
    assert same(hard.draw(8, seed=4)[5:6], hard.draw(1, seed=4, start=5))


def test_scenes_can_be_requested_by_number_in_any_order():
    numbers = torch.tensor([7, 2**35, 3])
    some = Scenes().numbered(numbers, seed=5)[0]
    for row, number in enumerate(numbers.tolist()):
        assert same(some[row : row + 1], Scenes().draw(1, seed=5, start=number))


def test_seeds_and_indices_give_different_scenes():
    one, two = Scenes().draw(200, seed=0), Scenes().draw(200, seed=1)
    assert (one.camera != two.camera).all()
    assert len(set(one.unstack())) == 200


@settings(deadline=None, max_examples=12)
@given(rules, st.integers(0, 1000))
def test_every_scene_obeys_the_spacing_rules(scenes, seed):
    drawn = scenes.draw(16, seed)
    low, high = scenes.objects
    assert ((drawn.count >= low) & (drawn.count <= high)).all()
    assert drawn.present.shape == (16, high)
    assert (drawn.xy.abs() <= 3).all()
    distances = SPACINGS[scenes.spacing]
    for scene in drawn.unstack():
        for i, one in enumerate(scene.objects):
            assert one.shape in scenes.shapes and one.color in scenes.colors and one.size_name in scenes.sizes
            assert 0 <= one.rotation <= 2 * math.pi
            for other in scene.objects[:i]:
                dx, dy = one.xy[0] - other.xy[0], one.xy[1] - other.xy[1]
                assert math.hypot(dx, dy) - one.size - other.size > distances.apart - 1e-5
                for axis in (RIGHT, BEHIND):
                    assert abs(dx * axis[0] + dy * axis[1]) > distances.margin - 1e-5


def scalar_scene(scenes: Scenes, seed: int, i: int) -> list[tuple]:
    """The generator's nested loops for one scene, object by object and try by try, with our numbers."""
    index = torch.tensor([i])
    low, high = scenes.objects
    count = low + int(uniform(seed, index, "count", 1)[0, 0] * (high - low + 1))
    distances, turn = SPACINGS[scenes.spacing], 0
    while True:
        objects: list[tuple] = []
        look = uniform(seed, index, "look", 2 * high, turn)[0].numpy()
        for k in range(count):
            size, shape, color, material = looks(scenes)[int(look[2 * k] * np.float32(len(looks(scenes))))]
            radius = np.float32(list(SIZES.values())[size])
            numbers = uniform(seed, index, f"place {k}", 2 * TRIES, turn)[0].numpy().reshape(TRIES, 2)
            for x, y in np.float32(3) * (2 * numbers - 1):
                if all(keeps_away(x, y, radius, *other[:3], distances) for other in objects):
                    objects.append((x, y, radius, shape, color, material, look[2 * k + 1]))
                    break
            else:
                break
        if len(objects) == count:
            return objects
        turn += 1


def keeps_away(x, y, r, other_x, other_y, other_r, distances) -> bool:
    dx, dy = x - other_x, y - other_y
    if np.sqrt(dx * dx + dy * dy) - r - other_r < distances.apart:
        return False
    for direction in (RIGHT, BEHIND, [-v for v in RIGHT], [-v for v in BEHIND]):
        if 0 < dx * direction[0] + dy * direction[1] < distances.margin:
            return False
    return True


@pytest.mark.parametrize("objects", [(0, 6), 8])
def test_batched_drawing_equals_the_nested_loops(objects):
    scenes = Scenes(objects=objects, visibility="off")
    drawn = scenes.draw(24, seed=11, start=100)
    for row in range(24):
        expected = scalar_scene(scenes, 11, 100 + row)
        assert int(drawn.count[row]) == len(expected)
        for k, (x, y, radius, shape, color, material, angle) in enumerate(expected):
            assert (float(drawn.xy[row, k, 0]), float(drawn.xy[row, k, 1])) == (float(x), float(y))
            assert float(drawn.size[row, k]) == float(radius)
            numbers = (drawn.shape[row, k], drawn.color[row, k], drawn.material[row, k])
            assert tuple(map(int, numbers)) == (shape, color, material)
            assert float(drawn.rotation[row, k]) == pytest.approx(2 * math.pi * angle, abs=1e-6)


def test_effort_counts_what_the_nested_loops_would():
    _, effort = Scenes(objects=9, visibility="fast").numbered(torch.arange(6), 2)
    assert (effort.attempts == 1 + effort.crowded + effort.unseen).all()
    assert (effort.candidates >= 9 * (1 + effort.unseen)).all()
    assert (effort.candidates >= 50 * effort.crowded).all()


def test_jitter_stays_in_its_box_and_can_be_turned_off():
    drawn = Scenes().draw(3000)
    boxes = (("camera", CAMERA, 0.5), ("key", KEY, 1), ("fill", FILL, 1), ("back", BACK, 1))
    for name, resting, reach in boxes:
        offset = getattr(drawn, name) - torch.tensor(resting)
        assert offset.abs().max() <= reach + 1e-6 and offset.abs().max() > 0.99 * reach
        assert offset.mean(0).abs().max() < 4 * reach / (3 * 3000) ** 0.5
    still = Scenes(jitter=False).draw(5)
    assert torch.equal(still.camera, torch.tensor(CAMERA).expand(5, 3))
    assert torch.equal(still.back, torch.tensor(BACK).expand(5, 3))


@pytest.mark.parametrize(
    "held_out",
    [
        (("cube", "red"),),
        ({"shape": "cube", "color": "red"},),
        ({"shape": ("cube", "sphere"), "size": "small"}, ("metal", "gray", "cylinder")),
        (("purple",),),
    ],
)
def test_held_out_combinations_never_appear_and_the_rest_does(held_out):
    scenes = Scenes(objects=4, held_out=held_out, visibility="off")
    drawn = scenes.draw(1500)
    columns = (drawn.shape, drawn.color, drawn.material, (drawn.size > 0.5).long())
    shown = {tuple(row) for row in torch.stack([c.flatten() for c in columns], -1).tolist()}
    names = (SHAPES, COLOR_NAMES, MATERIALS, tuple(SIZES))
    words = {frozenset(kind[i] for kind, i in zip(names, row)) for row in shown}
    assert not any(set(taboo) <= look for taboo in scenes.held_out for look in words)
    assert len(words) == len(looks(scenes)) < 96


@pytest.mark.parametrize("count", [11, 12])
def test_relaxed_spacing_has_room_for_a_dozen(count):
    assert (Scenes(objects=count, spacing="relaxed").draw(8).count == count).all()


def test_no_objects_and_no_scenes_are_fine():
    assert Scenes(objects=0).draw(3).present.shape == (3, 0)
    assert Scenes(objects=(0, 2)).draw(0).present.shape == (0, 2)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"objects": (-1, 3)}, "cannot hold"),
        ({"objects": (4, 3)}, "cannot hold"),
        ({"shapes": ("pyramid",)}, "`pyramid` is no shape"),
        ({"colors": ("pink",)}, "`pink` is no color"),
        ({"colors": ()}, "at least one color"),
        ({"sizes": ("small", "small")}, "each only once"),
        ({"spacing": "tight"}, "`tight` is no spacing"),
        ({"visibility": "maybe"}, "`maybe` is no visibility"),
        ({"held_out": (("cube", "pink"),)}, "`pink`"),
        ({"held_out": ({"colour": "red"},)}, "`colour` is no attribute"),
        ({"held_out": ("cube", "red")}, "group of words .* not `cube`"),
        ({"held_out": (("cube", "red", "blue"),)}, "both red and blue: a combination has one color"),
        ({"shapes": ("cube",), "held_out": (("cube",),)}, "held out"),
    ],
)
def test_bad_rules_are_one_sentence(options, sentence):
    with pytest.raises(UserError, match=sentence):
        Scenes(**options)


@pytest.mark.parametrize(("objects", "spacing"), [(40, "official"), ((1, 14), "official"), (40, "relaxed")])
def test_objects_that_cannot_fit_are_refused_not_waited_for(objects, spacing):
    with pytest.raises(UserError, match="do not fit"):
        Scenes(objects=objects, spacing=spacing).draw(1)


def test_a_refusal_is_remembered(monkeypatch):
    attempts, failed = [], torch.ones(1, dtype=torch.bool)
    monkeypatch.setattr(sampling, "attempt", lambda *given: attempts.append(given) or (None, None, failed, failed))
    tried = []
    for _ in range(2):
        with pytest.raises(UserError, match="do not fit"):
            Scenes(objects=7, colors="purple").draw(1)
        tried.append(len(attempts))
    assert 0 < tried[0] == tried[1]
    sampling.fits.cache_clear()  # what a stand-in said must not be remembered any longer


def test_negative_counts_are_refused():
    with pytest.raises(UserError, match="negative"):
        Scenes().draw(-1)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("objects", [(1, 3), 6, 9])
def test_the_device_changes_no_scene(objects):
    scenes = Scenes(objects=objects)
    assert same(scenes.draw(500, seed=3), scenes.draw(500, seed=3, device="cuda").to("cpu"))


def test_the_official_distances_are_those_of_the_official_generator():
    assert SPACINGS["official"] == (0.25, 0.4)  # its --min_dist and --margin
