"""The Structured Identity Mapping data."""

import numpy as np
import pytest

from tessera.errors import UserError
from tessera.studies.swingby.data import Sim, error_at, ordered_pairs, population_loss, second_moment


def moment_of(task: Sim) -> np.ndarray:
    """E[x x^T] in coordinates, (d, d)."""
    return task.turn @ np.diag(task.a) @ task.turn.T


def empirical_moment(points: np.ndarray) -> np.ndarray:
    return points.T @ points / len(points)


def trace_form(w: np.ndarray, moment: np.ndarray) -> float:
    """The loss 1/2 tr((W - I) A (W - I)^T) for any second moment A."""
    off = w - np.eye(len(w))
    return 0.5 * np.trace(off @ moment @ off.T)


def test_the_second_moment_is_uncentred_and_zero_beyond_the_concepts():
    assert Sim((1, 2), 0.05).a == pytest.approx([0.5025, 2.0025], abs=1e-15)
    assert Sim((1, 2), 0.05, dim=4).a == pytest.approx([0.5025, 2.0025, 0, 0], abs=1e-15)


def test_batched_moments_equal_single_ones():
    many = second_moment(np.array([[1, 2], [3, 1]]), np.array([[0.1], [0.4]]), 3)
    assert many[0] == pytest.approx(Sim((1, 2), 0.1, 3).a)
    assert many[1] == pytest.approx(Sim((3, 1), 0.4, 3).a)


def test_drawn_points_have_the_predicted_second_moment():
    for task in (Sim((1, 2), (0.3, 0.6), 3, rotation=5), Sim((1, 2), 0.3, origin=True)):
        moment = empirical_moment(task.draw(100_000, seed=1))
        assert np.abs(moment - moment_of(task)).max() < 0.02


def test_noise_never_leaves_the_concept_axes():
    points = Sim((1, 2), 0.5, dim=5).draw(100, seed=0)
    assert np.all(points[:, 2:] == 0) and points[:, :2].std() > 0.3


def test_clusters_share_one_covariance_and_lie_on_their_axes():
    points = Sim((1, 2), (0.1, 0.7)).draw(50_000, seed=2).reshape(2, -1, 2)
    assert points.mean(1) == pytest.approx(np.diag([1, 2]), abs=0.02)
    assert points.std(1) == pytest.approx(np.array([[0.1, 0.7], [0.1, 0.7]]), abs=0.01)


def test_the_trace_form_equals_the_sample_loss_with_the_empirical_moment():
    task = Sim((1, 2, 0.5), 0.3, dim=5, rotation=3)
    points, w = task.draw(200, seed=0), np.random.default_rng(1).standard_normal((5, 5))
    sample_loss = 0.5 * np.square(points @ w.T - points).sum(-1).mean()
    assert sample_loss == pytest.approx(trace_form(w, empirical_moment(points)), rel=1e-12)


def test_the_population_loss_is_the_trace_form_of_a_diagonal_moment():
    task, w = Sim((1, 2), 0.2, 3), np.random.default_rng(0).standard_normal((3, 3))
    assert population_loss(w, task.a) == pytest.approx(trace_form(w, moment_of(task)), rel=1e-13)


def test_corners_read_back_as_their_codes():
    task = Sim((1, 2, 3), 0.1, dim=6, rotation=7)
    assert task.corners.shape == (8, 6)
    assert task.concepts(task.corners) == pytest.approx(task.codes, abs=1e-12)
    assert task.target == pytest.approx(task.corners[-1])
    assert np.linalg.norm(task.target) == pytest.approx(np.sqrt(14))


def test_a_rotation_keeps_lengths_and_turns_train_and_test_alike():
    plain, turned = Sim((1, 2), 0.3, 4), Sim((1, 2), 0.3, 4, rotation=1)
    assert turned.turn @ turned.turn.T == pytest.approx(np.eye(4), abs=1e-12)
    assert turned.draw(10, 0) == pytest.approx(plain.draw(10, 0) @ turned.turn.T, abs=1e-12)
    assert turned.target == pytest.approx(turned.turn @ plain.target, abs=1e-12)


def test_one_concept_cannot_be_kept_away_from_its_own_composition():
    with pytest.raises(UserError, match="With one concept"):
        Sim((1.0,), 0.05, truncate=True)


def test_truncated_data_keep_away_from_the_composition():
    task = Sim((1, 2), 1.0, truncate=True)
    free = Sim((1, 2), 1.0).draw(2000, seed=0)
    kept = task.draw(2000, seed=0)
    assert (np.linalg.norm(free - task.target, axis=1) < 0.5).sum() > 50
    assert np.linalg.norm(kept - task.target, axis=1).min() >= 0.5


def test_the_origin_cluster_changes_the_weights():
    assert Sim((1, 2), 0.1, origin=True).a == pytest.approx([0.01 + 1 / 3, 0.01 + 4 / 3])
    assert Sim((1, 2), 0.1, origin=True).draw(7, 0).shape == (21, 2)


def test_the_order_of_corners_has_65_pairs_for_four_concepts():
    codes = Sim((1, 2, 3, 4)).codes
    pairs = ordered_pairs(codes)
    assert len(pairs) == 3**4 - 2**4
    assert all((codes[low] <= codes[high]).all() for low, high in pairs)


def test_the_error_broadcasts_over_maps_and_points():
    maps = np.random.default_rng(0).standard_normal((5, 2, 2))
    point = np.array([1.0, 2.0])
    assert error_at(maps, point)[3] == pytest.approx(0.5 * np.square(maps[3] @ point - point).sum())


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"mu": (1, 2), "sigma": -0.1}, "must not be negative"),
        ({"mu": (1, 2), "sigma": (0.1, 0.2, 0.3)}, "one for each of the 2"),
        ({"mu": (1, 2, 3), "dim": 2}, "do not fit"),
        ({"mu": (0, 1)}, "must be positive"),
        ({"mu": (1, float("nan"))}, "must be positive"),
    ],
)
def test_settings_that_make_no_sense_are_refused(options, complaint):
    with pytest.raises(UserError, match=complaint):
        Sim(**options)
