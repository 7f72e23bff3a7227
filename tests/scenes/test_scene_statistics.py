"""Drawn scenes against the official rules: counts, attributes, positions, and how often placements fail."""

import csv

import numpy as np
import pytest
import torch
from scipy import stats

from tessera.scenes import Scenes
from tessera.scenes.camera import project
from tessera.scenes.vocabulary import SHAPES

CHANCE = 1e-4  # a right sampler fails one of these tests so often; seeds are fixed, so it does not

# From 200 scenes per count (120 for 9 and 10), drawn by another program that follows the generator's rules:
# candidates per scene, placements that ran out of tries, placements that hid an object, attempts per scene.
PUBLISHED = {
    1: (200, 1, 0.00, 0.000, 1.00),
    2: (200, 2.4, 0.00, 0.005, 1.00),
    3: (200, 4.3, 0.00, 0.05, 1.05),
    4: (200, 8.4, 0.00, 0.07, 1.07),
    5: (200, 14, 0.00, 0.12, 1.14),
    6: (200, 24, 0.01, 0.14, 1.17),
    7: (200, 54, 0.07, 0.25, 1.4),
    8: (200, 120, 0.30, 0.29, 2.0),
    9: (120, 407, 0.64, 0.43, 4.8),
    10: (120, 2490, 0.92, 0.50, 25),
}


@pytest.fixture(scope="module")
def many():
    """20,000 scenes of up to six objects, by all rules."""
    return Scenes(objects=(1, 6)).draw(20_000, seed=7)


@pytest.fixture(scope="module")
def unselected():
    """20,000 scenes of up to four objects whatever their visibility: no rule prefers one attribute here."""
    return Scenes(objects=(1, 4), visibility="off").draw(20_000, seed=8)


def test_counts_are_uniform(many):
    seen = torch.bincount(many.count, minlength=7)
    assert seen[0] == 0
    assert stats.chisquare(seen[1:]).pvalue > CHANCE


def test_attributes_are_uniform_and_independent(unselected):
    here = unselected.present
    large = (unselected.size[here] > 0.5).long()
    code = ((unselected.shape[here] * 8 + unselected.color[here]) * 2 + unselected.material[here]) * 2 + large
    assert stats.chisquare(torch.bincount(code, minlength=96)).pvalue > CHANCE


def test_yaw_is_uniform_over_the_circle(unselected):
    yaw = unselected.rotation[unselected.present].double() / (2 * torch.pi)
    assert stats.kstest(yaw, "uniform").pvalue > CHANCE


def test_the_first_object_stands_anywhere_on_the_square(unselected):
    first = unselected.xy[:, 0].double()
    for axis in range(2):
        assert stats.kstest(first[:, axis] / 6 + 0.5, "uniform").pvalue > CHANCE


def test_objects_of_one_scene_have_independent_looks(unselected):
    pairs = unselected.present[:, 1]
    code = unselected.color[pairs, 0] * 8 + unselected.color[pairs, 1]
    assert stats.chisquare(torch.bincount(code, minlength=64)).pvalue > CHANCE


@pytest.fixture(scope="module")
def official(clevr_reference) -> dict[int, list[dict[str, str]]]:
    """Objects of scenes sampled by the official rules, per count."""
    with open(clevr_reference / "sampled_centres.csv") as file:
        rows = list(csv.DictReader(file))
    return {n: [row for row in rows if int(row["n_objects"]) == n] for n in range(1, 11)}


def published_centers(rows: list[dict[str, str]]) -> np.ndarray:
    return np.array([(float(row["x_over_W"]), float(row["y_over_H"])) for row in rows])


def centers(scenes: Scenes, count: int, seed: int) -> np.ndarray:
    drawn = scenes.draw(count, seed)
    return project(drawn.center, drawn.camera)[0][drawn.present].numpy()


@pytest.mark.parametrize("objects", range(1, 8))
def test_centers_are_distributed_like_the_official_ones(official, objects):
    theirs = published_centers(official[objects])
    ours = centers(Scenes(objects=objects), 1500, seed=objects)
    for axis in range(2):
        assert stats.ks_2samp(ours[:, axis], theirs[:, axis]).pvalue > CHANCE


def test_the_official_centers_would_expose_a_wrong_rule(official):
    """The comparison above has teeth: drawing large objects only is enough to fail it."""
    theirs = published_centers([row for n in range(1, 7) for row in official[n]])
    ours = centers(Scenes(objects=(1, 6), sizes=("large",)), 1500, seed=1)
    assert stats.ks_2samp(ours[:, 1], theirs[:, 1]).pvalue < CHANCE


@pytest.mark.parametrize("objects", range(1, 7))
def test_sizes_and_shapes_survive_the_rules_as_often_as_official_ones(official, many, objects):
    here = many.present & (many.count == objects)[:, None]
    large = [row["size"] == "large" for row in official[objects]]
    shapes = [SHAPES.index(row["shape"]) for row in official[objects]]
    big, kind = (many.size[here] > 0.5).tolist(), many.shape[here].tolist()
    for ours, theirs, kinds in ((big, large, 2), (kind, shapes, 3)):
        table = [np.bincount(np.array(values, dtype=int), minlength=kinds) for values in (ours, theirs)]
        assert stats.chi2_contingency(table).pvalue > CHANCE


def check_share(ours: int, our_trials: int, share: float, their_trials: float) -> None:
    """Two shares agree within chance (4 sigma) and the digits that were published."""
    pooled = (ours + share * their_trials) / (our_trials + their_trials)
    sigma = (pooled * (1 - pooled) * (1 / our_trials + 1 / their_trials)) ** 0.5
    assert abs(ours / our_trials - share) <= 4 * sigma + 0.005


def check_mean(ours: torch.Tensor, mean: float, their_trials: int, digits: float) -> None:
    """Two means agree within chance (4 sigma) and the digits that were published."""
    sigma = ours.double().std().item() * (1 / len(ours) + 1 / their_trials) ** 0.5
    assert abs(ours.double().mean().item() - mean) <= 4 * sigma + digits


def check_effort(objects: int, count: int) -> None:
    scenes, candidates, crowded, unseen, attempts = PUBLISHED[objects]
    effort = Scenes(objects=objects).numbered(torch.arange(count), objects)[1]
    tried, full, hidden = (int(part.sum()) for part in (effort.attempts, effort.crowded, effort.unseen))
    check_share(full, tried, crowded, scenes * attempts)
    check_share(hidden, tried - full, unseen, scenes * attempts * (1 - crowded))
    check_mean(effort.candidates, candidates, scenes, digits=0.05 if candidates < 10 else 0.5)
    check_mean(effort.attempts, attempts, scenes, digits=0.05)


@pytest.mark.parametrize("objects", range(1, 8))
def test_placements_are_dropped_as_often_as_published(objects):
    check_effort(objects, 1500)


@pytest.mark.slow
@pytest.mark.parametrize("objects", [8, 9, 10])
def test_crowded_placements_are_dropped_as_often_as_published(objects):
    check_effort(objects, 1000)


@pytest.mark.slow
def test_the_default_range_of_the_generator_has_its_positions(official):
    """20,000 scenes of 3 to 10 objects: all centers, and the share of large objects in the fullest scenes."""
    drawn = Scenes(objects=(3, 10)).draw(20_000, seed=1)
    assert stats.chisquare(torch.bincount(drawn.count)[3:]).pvalue > CHANCE
    full = drawn.present & (drawn.count == 10)[:, None]
    assert (drawn.size[full] > 0.5).double().mean().item() == pytest.approx(0.43, abs=0.05)
    locations = project(drawn.center, drawn.camera)[0]
    for objects in range(3, 11):
        ours = locations[drawn.present & (drawn.count == objects)[:, None]]
        theirs = published_centers(official[objects])
        for axis in range(2):
            assert stats.ks_2samp(ours[:, axis], theirs[:, axis]).pvalue > CHANCE
