"""Two parts coupled by a hidden coin: the smallest family with finite Definition 3 errors at every noise level.

Given the coin h the parts x and y are independent Gaussians. Noise on both keeps that form, and p(x|y) depends on
y through one number, the probability w of h = 1 given y. The range of w over all y, and hence the supremum, is exact.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from tessera.studies.theory.divergences import line_kl
from tessera.studies.theory.mixtures import Mixture


@dataclass(frozen=True)
class Coin:
    """h = 1 with probability `prior`; x given h is N(x_mean[h], x_var[h]), y likewise."""

    prior: float
    x_mean: tuple[float, float]
    x_var: tuple[float, float]
    y_mean: tuple[float, float]
    y_var: tuple[float, float]

    def noised(self, sigma_x: float, sigma_y: float) -> "Coin":
        x_var, y_var = ((v[0] + s * s, v[1] + s * s) for v, s in ((self.x_var, sigma_x), (self.y_var, sigma_y)))
        return Coin(self.prior, self.x_mean, x_var, self.y_mean, y_var)

    def x_given(self, probability: float) -> Mixture:
        """The law of x when h = 1 has this probability."""
        means, covs = (torch.tensor(v, dtype=torch.float64) for v in (self.x_mean, self.x_var))
        weights = torch.tensor([1 - probability, probability], dtype=torch.float64)
        return Mixture(weights, means[:, None], covs[:, None, None])

    def log_odds(self, y: float) -> float:
        """Of h = 1, given y."""
        logs = [-((y - m) ** 2) / (2 * v) - math.log(v) / 2 for m, v in zip(self.y_mean, self.y_var)]
        return math.log(self.prior / (1 - self.prior)) + logs[1] - logs[0]

    def posterior(self, y: float) -> float:
        """The probability of h = 1 given y."""
        return 1 / (1 + math.exp(-min(max(self.log_odds(y), -700), 700)))

    def turning_point(self) -> float | None:
        """The y with the most extreme odds, where there is one: the log odds are quadratic in y."""
        (m0, m1), (v0, v1) = self.y_mean, self.y_var
        return (m1 * v0 - m0 * v1) / (v0 - v1) if v0 != v1 else None

    def posterior_range(self) -> tuple[float, float]:
        """Ends of the range of w over all y; an end may be reached only as y grows without bound."""
        extreme = self.turning_point()
        if extreme is None:
            return (0.0, 1.0) if self.y_mean[0] != self.y_mean[1] else (self.prior, self.prior)
        return (self.posterior(extreme), 1.0) if self.y_var[1] > self.y_var[0] else (0.0, self.posterior(extreme))


def kl_at(coin: Coin, probability: float, conditional_first: bool) -> Tensor:
    """KL(p(x|y) || p(x)) as in Definition 3, or KL(p(x) || p(x|y)) as in Lemma 3, at w = probability."""
    pair = coin.x_given(probability), coin.x_given(coin.prior)
    return line_kl(*pair) if conditional_first else line_kl(*reversed(pair))


def supremum(coin: Coin, conditional_first: bool) -> Tensor:
    """Over all y. The divergence is convex in w, so it is largest at an end of the range."""
    return torch.stack([kl_at(coin, w, conditional_first) for w in coin.posterior_range()]).max()


def random_coin(rng: torch.Generator, equal_variance: bool = False) -> Coin:
    u = torch.rand(9, dtype=torch.float64, generator=rng).tolist()
    y_var = (0.1 + u[0], 0.1 + u[0] if equal_variance else 0.1 + u[1])
    return Coin(
        prior=0.1 + 0.8 * u[2],
        x_mean=(4 * u[3] - 2, 4 * u[4] - 2),
        x_var=(0.2 + u[5], 0.2 + u[6]),
        y_mean=(4 * u[7] - 2, 4 * u[8] - 2),
        y_var=y_var,
    )
