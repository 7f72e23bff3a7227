"""Locality in feature space: shares with known answers."""

import math

import pytest
import torch

from tessera.analysis.leakage import leakage
from tessera.errors import UserError

K = 4


def vectors(concepts: int = 6, features: int = 40) -> torch.Tensor:
    """Orthogonal, of different lengths."""
    square = torch.linalg.qr(torch.randn(features, concepts, generator=torch.Generator().manual_seed(0)))[0]
    return (square * torch.arange(1, concepts + 1)).T.double()


def found(alone: torch.Tensor, change: torch.Tensor, seeds: int = 1, noise: float = 0.0):
    rows = torch.cat([alone, change])[:, None].expand(-1, seeds, -1)
    shaken = rows + noise * torch.randn(rows.shape, generator=torch.Generator().manual_seed(1)).double()
    return leakage(torch.einsum("isf,jtf->isjt", shaken, shaken), len(alone), resamples=300)


def test_a_removal_along_its_own_vector_does_not_leak():
    alone = vectors()
    one = found(alone, 3 * alone[:K])
    assert one.leakage == pytest.approx(0, abs=1e-9) and one.locality == pytest.approx(1)
    torch.testing.assert_close(one.coefficients[:K], 3 * torch.eye(K).double(), atol=1e-6, rtol=0)


def test_it_does_not_leak_either_where_vectors_are_entangled():
    alone = vectors() + 5 * torch.ones(40).double()
    one = found(alone, alone[:K])
    assert one.leakage == pytest.approx(0, abs=1e-9) and one.locality == pytest.approx(1)


def test_features_that_are_an_average_leak_one_kth_to_the_others():
    # h = mean of the prompted vectors: r_i = e_i / K - sum of the others / (K (K - 1)), by hand 1 / K of the energy.
    alone = vectors() / torch.arange(1, 7)[:, None]
    mean = alone[:K].mean(0)
    less = torch.stack([alone[[j for j in range(K) if j != i]].mean(0) for i in range(K)])
    one = found(alone, mean - less)
    torch.testing.assert_close(one.own, torch.full((K,), 1 - 1 / K).double())
    torch.testing.assert_close(one.others, torch.full((K,), 1 / K).double())
    assert one.elsewhere.max() < 1e-9
    assert one.locality == pytest.approx(1 / 2)  # |1/K| beside K - 1 times |1/(K (K - 1))|


def test_what_no_vector_spans_is_elsewhere():
    alone = vectors(4, 8)
    beyond = torch.linalg.svd(alone)[2][4]  # a unit vector outside their span
    one = found(alone, alone[:2] / alone[:2].norm(dim=1, keepdim=True) + 2 * beyond)
    torch.testing.assert_close(one.own, torch.full((2,), 0.2).double())
    torch.testing.assert_close(one.elsewhere, torch.full((2,), 0.8).double())
    torch.testing.assert_close(one.own + one.others + one.elsewhere, torch.ones(2).double())


def test_removals_that_all_do_the_same_have_no_locality():
    alone = vectors() / torch.arange(1, 7)[:, None]
    one = found(alone, alone[:K].sum(0).expand(K, -1))
    assert one.locality == pytest.approx(1 / K) and one.leakage == pytest.approx(1 - 1 / K)


def test_locality_asks_which_removals_move_a_concept_not_which_concepts_a_removal_moves():
    alone = vectors(2)
    one = found(alone, torch.stack([alone[0], 3 * alone[0] + 2 * alone[1]]))
    torch.testing.assert_close(one.coefficients, torch.tensor([[1.0, 3], [0, 2]]).double())
    assert one.locality == pytest.approx((1 / 4 + 2 / 2) / 2)


def test_seeds_give_an_interval_around_the_value():
    one = found(vectors(), vectors()[:K], seeds=12, noise=0.3)
    low, high = one.intervals["leakage"]
    assert low <= one.leakage <= high and 0 < high - low < 0.2
    record = one.record()
    assert record["leakage"]["low"] == low and record["no_locality"] == 1 / K


def test_a_removal_that_changes_nothing_has_no_leakage():
    one = found(vectors(), torch.zeros(K, 40).double())
    assert math.isnan(one.leakage) and one.record()["leakage"]["value"] is None


def test_only_concepts_that_were_seen_alone_can_be_removed():
    with pytest.raises(UserError, match="1 to 2"):
        found(vectors(2), vectors()[:3])
