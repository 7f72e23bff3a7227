"""Statistics of features: known answers, agreement with direct computation, invariances."""

import math

import numpy as np
import pytest
import torch

from tessera.analysis.feature_statistics import (
    Band,
    between_halves,
    cosines,
    disentanglement,
    from_products,
    mean_products,
    null_band,
    off_diagonal,
    off_rms,
    permutation_p,
    products_of,
    repetition_p,
    seed_weights,
    within_between,
)
from tessera.errors import UserError
from tessera.stats import spread_around

GROUPS = ["animal"] * 3 + ["food"] * 3


def chance(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def noisy(means: torch.Tensor, seeds: int, noise: float, seed: int = 0) -> torch.Tensor:
    return means[:, None] + noise * torch.randn(len(means), seeds, means.shape[1], generator=chance(seed))


def seed_products(differences: torch.Tensor) -> torch.Tensor:
    """(C, S, F) to (C, S, C, S), as by the definition."""
    return torch.einsum("isf,jtf->isjt", differences.double(), differences.double())


def orthogonal(concepts: int, features: int) -> torch.Tensor:
    return torch.linalg.qr(torch.randn(features, concepts, generator=chance(9)))[0].T


def test_orthogonal_concepts_have_cosine_zero_and_repeat_perfectly():
    features = orthogonal(4, 32)[:, None].expand(4, 6, 32)
    found = disentanglement(features, torch.zeros(6, 32))
    torch.testing.assert_close(found.matrix, torch.eye(4, dtype=torch.float64), atol=1e-6, rtol=0)
    assert found.within == pytest.approx(1, abs=1e-6) and found.between == pytest.approx(0, abs=1e-6)
    assert found.gap == pytest.approx(1, abs=1e-6)


def test_a_baseline_is_taken_off_seed_by_seed():
    seeds = torch.randn(5, 16, generator=chance(1))  # what each seed brings, in all conditions alike
    found = disentanglement(2 * orthogonal(3, 16)[:, None] + seeds, seeds)
    torch.testing.assert_close(found.matrix, torch.eye(3, dtype=torch.float64), atol=1e-6, rtol=0)
    torch.testing.assert_close(found.lengths, torch.full((3,), 2, dtype=torch.float64), atol=1e-6, rtol=0)


def test_products_give_the_same_cosines_as_the_vectors_do():
    features = noisy(torch.randn(5, 40, generator=chance(2)), 7, 1.0)
    baseline = torch.randn(7, 40, generator=chance(3))
    vectors = (features - baseline).mean(1).double().numpy()
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    by_products = cosines(mean_products(seed_products(features - baseline)))
    np.testing.assert_allclose(by_products, unit @ unit.T, atol=1e-6)
    np.testing.assert_allclose(disentanglement(features, baseline).matrix, unit @ unit.T, atol=1e-6)


def test_products_of_prompts_are_those_of_their_differences():
    features = torch.randn(4, 3, 50, generator=chance(14))
    pairs = [(1, 0), (2, 0), (3, 2)]
    differences = torch.stack([features[one] - features[other] for one, other in pairs])
    found = products_of(features, pairs)
    torch.testing.assert_close(found.among, seed_products(differences), atol=1e-5, rtol=1e-5)
    assert found.floor == pytest.approx(1e-12 * features.square().sum(2).mean().item())


def test_many_features_are_added_up_in_double_precision():
    rows = torch.cat([torch.full((1, 1, 200_001), 0.1), torch.full((1, 1, 200_001), -0.1), torch.zeros(1, 1, 200_001)])
    exact = 200_001 * float(torch.tensor(0.1)) ** 2
    assert products_of(rows, [(0, 2), (1, 2)]).among[0, 0, 1, 0].item() == pytest.approx(-exact, rel=1e-12)


def test_weighted_seeds_equal_seeds_repeated():
    products = seed_products(noisy(orthogonal(3, 20), 4, 1.0))
    weights = torch.tensor([0.5, 0, 0.25, 0.25], dtype=torch.float64)
    again = noisy(orthogonal(3, 20), 4, 1.0)[:, [0, 0, 2, 3]]
    torch.testing.assert_close(mean_products(products, weights), mean_products(seed_products(again)), atol=1e-6, rtol=0)


def test_centering_equals_subtracting_the_grand_mean():
    vectors = torch.randn(6, 2, 30, generator=chance(4), dtype=torch.float64)
    centered = from_products(seed_products(vectors), center=True)
    torch.testing.assert_close(centered.matrix, from_products(seed_products(vectors - vectors.mean(0))).matrix)


def test_centering_removes_what_all_concepts_share():
    features = orthogonal(5, 30)[:, None] + 50 * torch.ones(30)
    raw, bare = (disentanglement(features, torch.zeros(1, 30), center=flag) for flag in (False, True))
    assert raw.off_diagonal > 0.99
    assert bare.off_diagonal == pytest.approx(-1 / 4, abs=1e-4)


def test_within_and_between_are_the_means_over_pairs():
    matrix = torch.full((6, 6), 0.2)
    for block in (slice(0, 3), slice(3, 6)):
        matrix[block, block] = 0.8
    within, between = within_between(matrix.fill_diagonal_(1), GROUPS)
    assert within.item() == pytest.approx(0.8) and between.item() == pytest.approx(0.2)
    assert off_diagonal(matrix).item() == pytest.approx((6 * 0.8 + 9 * 0.2) / 15)


def test_cosines_of_both_signs_cancel_in_the_mean_but_not_in_the_rms():
    matrix = torch.tensor([[1.0, 0.5, -0.5], [0.5, 1.0, 0.0], [-0.5, 0.0, 1.0]]).double()
    assert off_diagonal(matrix).item() == pytest.approx(0)
    assert off_rms(matrix).item() == pytest.approx(math.sqrt(0.5 / 3))
    found = disentanglement(torch.linalg.cholesky(matrix)[:, None].expand(3, 4, 3), torch.zeros(1, 3))
    assert found.off_rms == pytest.approx(math.sqrt(0.5 / 3)) and found.record()["off_rms"]["low"] is not None


def test_shuffled_names_of_two_triples_give_the_exact_chance():
    # Of the 10 ways to make two triples of six concepts, one is the true one.
    matrix = torch.full((6, 6), 0.1)
    for block in (slice(0, 3), slice(3, 6)):
        matrix[block, block] = 0.9
    p = permutation_p(matrix, GROUPS, shuffles=4000)
    assert p == pytest.approx(0.1, abs=0.02)
    assert permutation_p(matrix, ["a", "b"] * 3, shuffles=400) > 0.5


def test_categories_are_found_where_they_were_planted():
    kinds = torch.randn(4, 300, generator=chance(5)).repeat_interleave(6, 0)
    planted = noisy(kinds + 0.5 * torch.randn(24, 300, generator=chance(6)), 10, 0.3)
    groups = [i // 6 for i in range(24)]
    found = disentanglement(planted, torch.zeros(10, 300), groups)
    assert found.within == pytest.approx(0.8, abs=0.03)  # 1 / (1 + 0.5^2), with noise a little less
    assert abs(found.between) < 0.1 and found.p == pytest.approx(1 / 1001)
    low, high = found.intervals["within"]
    assert low < found.within < high and high - low < 0.05
    low, high = found.intervals["ratio"]
    assert low < found.ratio < high


def test_without_categories_unrelated_noise_is_not_taken_for_structure():
    found = disentanglement(torch.randn(6, 8, 500, generator=chance(7)), torch.zeros(1, 500))
    assert abs(found.gap) < 0.1 and found.p > 0.05


def test_repetition_says_when_names_do_not_matter():
    assert repetition_p(torch.ones(8, 8), shuffles=99) == 1.0
    assert repetition_p(torch.eye(8), shuffles=999) == pytest.approx(1 / 1000, abs=2e-3)


def test_halves_of_the_seeds_share_no_noise():
    # One strong noise per seed, common to all concepts: whole means look alike, halves do not.
    seeds = 3 * torch.randn(400, 8, generator=chance(8)).T  # (8 seeds, 400)
    features = (0.001 * orthogonal(5, 400)[:, None] + seeds).double()
    products = seed_products(features)
    assert cosines(mean_products(products)).min() > 0.99
    assert between_halves(products).abs().max() < 0.1


def test_seeds_drawn_again_cover_the_truth():
    angle = math.acos(0.6)
    means = torch.zeros(2, 50)
    means[0, 0], means[1, 0], means[1, 1] = 1, math.cos(angle), math.sin(angle)
    hits = 0
    for trial in range(60):
        found = disentanglement(noisy(means, 24, 0.15, trial), torch.zeros(1, 50), resamples=200)
        low, high = found.intervals["off_diagonal"]
        hits += low <= 0.6 <= high
    assert hits >= 50  # 95% of 60 is 57


def test_seed_weights_are_shares():
    weights = seed_weights(7, 50)
    torch.testing.assert_close(weights.sum(1), torch.ones(50, dtype=torch.float64))
    assert torch.equal(weights, seed_weights(7, 50)) and not torch.equal(weights, seed_weights(7, 50, seed=1))


def test_an_interval_holds_its_value_and_unknowns_have_none():
    ends = spread_around(0.5, torch.linspace(0.1, 0.3, 1001))
    assert ends == pytest.approx((0.405, 0.595), abs=1e-3)
    assert spread_around(math.nan, torch.ones(3)) is None
    assert spread_around(1.0, torch.full((3,), math.nan)) is None


def test_a_scale_or_rotation_of_the_features_changes_nothing():
    features = noisy(torch.randn(4, 24, generator=chance(10)), 6, 0.5).double()
    turned = 7 * features @ torch.linalg.qr(torch.randn(24, 24, generator=chance(11)).double())[0]
    first, second = (disentanglement(one, torch.zeros(1, 24)) for one in (features, turned))
    torch.testing.assert_close(first.matrix, second.matrix)
    assert first.gap == pytest.approx(second.gap) and first.p == second.p


def test_conditions_that_change_nothing_have_no_cosine():
    features = torch.randn(1, 5, 30, generator=chance(12)).expand(3, 5, 30)
    shaken = features * (1 + 1e-8 * torch.randn(3, 5, 30, generator=chance(13), dtype=torch.float64))
    found = disentanglement(shaken, features[0].double())
    assert math.isnan(found.off_diagonal) and math.isnan(found.p)
    record = found.record()
    assert record["off_diagonal"]["value"] is None and record["matrix"][0][1] is None


def test_one_seed_gives_numbers_without_intervals():
    found = disentanglement(orthogonal(6, 20)[:, None], torch.zeros(1, 20), GROUPS)
    assert found.intervals == {} and found.record()["gap"]["low"] is None
    assert abs(found.gap) < 1e-6
    assert math.isnan(disentanglement(orthogonal(6, 20)[:, None], torch.zeros(1, 20)).within)


def test_a_band_is_the_range_of_networks_that_learned_nothing():
    band = null_band([0.3, math.nan, 0.1, 0.2])
    assert band == Band(0.1, 0.3, pytest.approx(0.2), 3) and band.chance_outside == 0.5
    assert (band.clears(0.05), band.clears(0.2), band.clears(0.4)) == ("below", None, "above")
    assert band.clears(math.nan) is None and null_band([math.nan]) is None


def test_bands_of_untrained_stand_ins_hold_another_one():
    nulls = [disentanglement(torch.randn(6, 5, 80, generator=chance(s)), None, GROUPS) for s in range(30)]
    for measure in ("gap", "off_diagonal"):
        band = null_band([getattr(null, measure) for null in nulls])
        assert band.networks == 30 and band.low < 0 < band.high


@pytest.mark.parametrize(
    ("features", "baseline", "groups"),
    [
        (torch.zeros(3, 4), None, None),
        (torch.zeros(1, 4, 5), None, None),
        (torch.zeros(3, 4, 5), torch.zeros(3, 5), None),
        (torch.zeros(3, 4, 5), torch.zeros(4, 6), None),
        (torch.ones(3, 4, 5), None, ["a", "b"]),
        (torch.ones(3, 4, 5), None, ["a", "b", "c"]),
        (torch.ones(3, 4, 5), None, ["a", "a", "a"]),
    ],
)
def test_what_cannot_be_compared_is_refused_in_one_sentence(features, baseline, groups):
    with pytest.raises(UserError):
        disentanglement(features, baseline, groups)


def test_products_of_other_shapes_are_refused():
    with pytest.raises(UserError, match="Inner products"):
        from_products(torch.zeros(3, 4, 3, 5))
