"""The exact distributions behind the checks, against autograd and torch's own."""

import itertools
import math

import pytest
import torch
from torch.distributions import MultivariateNormal, kl_divergence

from tessera.studies.theory.compositions import KINDS, composition, coupled, layout, literal_composition, subsets
from tessera.studies.theory.divergences import gaussian_kl, line_kl, mapped_kl, table_kl, total_correlation
from tessera.studies.theory.feature_checks import feature_map
from tessera.studies.theory.mixtures import gaussian, points, product, random_cov, random_mixture, random_orthogonal
from tessera.studies.theory.noise_checks import Coin, kl_at, random_coin, supremum
from tessera.studies.theory.tables import errors, induced, projective, random_tables


@pytest.fixture
def rng():
    return torch.Generator().manual_seed(0)


def test_a_score_is_the_slope_of_the_log_density(rng):
    mixture = random_mixture(3, 4, rng).noised(0.3)
    x = mixture.draw(5, rng).requires_grad_()
    (slope,) = torch.autograd.grad(mixture.log_density(x).sum(), x)
    assert torch.allclose(mixture.score(x), slope, atol=1e-12)


def test_a_mixture_of_one_is_torchs_gaussian(rng):
    mean, cov = torch.randn(3, dtype=torch.float64, generator=rng), random_cov(3, rng)
    x = torch.randn(4, 3, dtype=torch.float64, generator=rng)
    assert torch.allclose(gaussian(mean, cov).log_density(x), MultivariateNormal(mean, cov).log_prob(x))


def test_noised_points_have_the_posterior_mean_of_the_data(rng):
    data, sigma = torch.randn(6, 2, dtype=torch.float64, generator=rng), 0.7
    x = torch.randn(3, 2, dtype=torch.float64, generator=rng)
    weights = (-(x[:, None] - data).square().sum(2) / (2 * sigma**2)).softmax(1)
    assert torch.allclose(x + sigma**2 * points(data).noised(sigma).score(x), weights @ data, atol=1e-12)


def test_draws_have_the_mean_and_spread_of_the_mixture(rng):
    mixture = random_mixture(2, 3, rng)
    x = mixture.draw(40_000, rng)
    assert (x.mean(0) - mixture.mean()).abs().max() < 0.03
    assert points(torch.zeros(1, 2, dtype=torch.float64)).draw(3, rng).abs().max() == 0


def test_a_product_has_the_sum_of_log_densities(rng):
    parts, locations = [random_mixture(2, 2, rng), random_mixture(1, 3, rng)], [[0, 2], [1]]
    whole = product(parts, locations, 3)
    x = torch.randn(4, 3, dtype=torch.float64, generator=rng)
    separate = sum(part.log_density(x[:, location]) for part, location in zip(parts, locations))
    assert torch.allclose(whole.log_density(x), separate, atol=1e-12)
    assert torch.allclose(whole.on([0, 2]).log_density(x[:, [0, 2]]), parts[0].log_density(x[:, [0, 2]]))


def test_there_are_two_to_the_n_subsets():
    assert len(list(subsets(6))) == 64 == len(set(subsets(6)))


def test_a_layout_uses_every_pixel_once(rng):
    assert sorted(itertools.chain(*layout((1, 3, 2), 2, rng))) == list(range(8))


@pytest.mark.parametrize("kind", KINDS)
def test_projective_mixture_has_a_local_score(kind, rng):
    family = composition((1, 2), 1, kind, rng)
    x = torch.randn(4, 4, dtype=torch.float64, generator=rng)
    for J in subsets(2):
        assert torch.allclose(family.local_score(J, 0.5, x), family.given(J).noised(0.5).score(x), atol=1e-10)


def test_a_literal_composition_is_local_only_with_the_wider_neighborhood(rng):
    family = literal_composition((1, 2), 1, rng)
    x = torch.randn(4, 4, dtype=torch.float64, generator=rng)
    true = family.given((0,)).noised(0.5).score(x)
    assert torch.allclose(family.local_score((0,), 0.5, x, wide=True), true, atol=1e-12)
    assert (family.local_score((0,), 0.5, x) - true).abs().max() > 1e-2


def test_a_coupling_of_zero_changes_nothing(rng):
    family = composition((1, 2), 1, "mixture", rng)
    assert torch.equal(coupled(family, 0.0, rng).given((0,)).covs, family.given((0,)).covs)


@pytest.mark.parametrize("kind", ["orthogonal", "linear", "nonlinear"])
def test_feature_maps_invert_and_give_their_volume(kind, rng):
    change, x = feature_map(kind, 3, rng), torch.randn(4, 3, dtype=torch.float64, generator=rng)
    assert torch.allclose(change.inverse(change(x)), x, atol=1e-10)
    slopes = torch.stack([torch.autograd.functional.jacobian(lambda v: change(v[None])[0], row) for row in x])
    assert torch.allclose(change.log_det(x), torch.linalg.slogdet(slopes)[1], atol=1e-10)


def test_kl_agrees_with_torch(rng):
    means = torch.randn(2, 3, dtype=torch.float64, generator=rng)
    covs = [random_cov(3, rng) for _ in range(2)]
    theirs = kl_divergence(*(MultivariateNormal(m, c) for m, c in zip(means, covs)))
    assert torch.allclose(gaussian_kl(means[0], covs[0], means[1], covs[1]), theirs)


def test_quadrature_agrees_with_the_closed_form():
    one, two = (gaussian(torch.tensor([m]).double(), torch.tensor([[v]]).double()) for m, v in ((0, 1.0), (1, 2.0)))
    exact = gaussian_kl(one.means[0], one.covs[0], two.means[0], two.covs[0])
    assert abs(line_kl(one, two) - exact) < 1e-12


def test_total_correlation_of_two_pixels_is_known():
    cov = torch.tensor([[1.0, 0.6], [0.6, 1.0]], dtype=torch.float64)
    assert total_correlation(cov, [[0], [1]]) == pytest.approx(-math.log(1 - 0.36) / 2)


def test_doubling_gives_the_kl_of_two_known_variances():
    one = torch.ones(1, 1, dtype=torch.float64)
    ratio = (4 + 1) / (4 + 4)  # noise 1: variances 4 + 1 and 4 + 4
    assert float(mapped_kl(one, 2 * one, 1.0)) == pytest.approx((ratio - 1 - math.log(ratio)) / 2)


def test_uncoupled_tables_have_no_error(rng):
    tables = random_tables(3, 2, 0.0, rng)
    assert max(float(e.max()) for e in vars(errors(tables)).values()) < 1e-12
    for J, table in tables.given.items():
        assert torch.allclose(table, induced(tables, J)) and torch.allclose(table, projective(tables, J))


def test_induced_and_projective_are_distributions(rng):
    tables = random_tables(3, 2, 1.0, rng)
    for J in tables.given:
        assert float(induced(tables, J).sum()) == pytest.approx(1)
        assert float(projective(tables, J).sum()) == pytest.approx(1)
        assert table_kl(tables.given[J], induced(tables, J)) > 0


def test_a_coins_supremum_is_no_less_than_any_value(rng):
    for number in range(6):
        coin = random_coin(rng, equal_variance=number % 2 == 0)
        for first in (True, False):
            top = float(supremum(coin, first))
            values = [float(kl_at(coin, coin.posterior(y), first)) for y in (-9, -2, -0.5, 0, 0.7, 3, 9)]
            assert max(values) <= top + 1e-9


def test_the_odds_of_a_coin_follow_bayes():
    coin = Coin(0.3, (0.0, 1.0), (1.0, 1.0), (0.0, 2.0), (1.0, 0.5))
    here = [
        weight * math.exp(-((0.7 - m) ** 2) / (2 * v)) / math.sqrt(v)
        for weight, m, v in zip((0.7, 0.3), coin.y_mean, coin.y_var)
    ]
    assert coin.posterior(0.7) == pytest.approx(here[1] / sum(here))


def test_random_turns_are_orthogonal(rng):
    turn = random_orthogonal(5, rng)
    assert torch.allclose(turn @ turn.T, torch.eye(5, dtype=torch.float64), atol=1e-12)
