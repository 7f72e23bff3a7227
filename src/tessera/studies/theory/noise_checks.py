"""More noise, more compositional: Lemma 3, what its proof needs, and the rate of Claim 1."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from tessera.studies.theory.check import Check, CheckRegistry, Outcome, Trial, at_most, largest
from tessera.studies.theory.divergences import gaussian_kl, kl_rate, line_kl
from tessera.studies.theory.mixtures import Mixture, random_cov, random_mixture

check = CheckRegistry()

LEVELS = (0.0, 0.2, 0.5, 1.0, 2.0, 5.0)
_SLACK = 1e-10  # of the quadrature


# --- two parts coupled by a hidden coin -----------------------------------------------------------------------
#
# The smallest family with finite Definition 3 errors at every noise level. Given the coin h the parts x and y are
# independent Gaussians. Noise on both keeps that form, and p(x|y) depends on y through one number, the probability w
# of h = 1 given y. The range of w over all y, and hence the supremum, is exact.


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

    def turning_point(self) -> float:
        """The y with the most extreme odds: where the variances of y differ, the log odds are quadratic in y."""
        (m0, m1), (v0, v1) = self.y_mean, self.y_var
        return (m1 * v0 - m0 * v1) / (v0 - v1)

    def posterior_range(self) -> tuple[float, float]:
        """Ends of the range of w over all y; an end may be reached only as y grows without bound."""
        if self.y_var[0] == self.y_var[1]:
            return (0.0, 1.0) if self.y_mean[0] != self.y_mean[1] else (self.prior, self.prior)
        extreme = self.posterior(self.turning_point())
        return (extreme, 1.0) if self.y_var[1] > self.y_var[0] else (0.0, extreme)


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
    x_mean, y_mean = (4 * u[3] - 2, 4 * u[4] - 2), (4 * u[7] - 2, 4 * u[8] - 2)
    return Coin(0.1 + 0.8 * u[2], x_mean, (0.2 + u[5], 0.2 + u[6]), y_mean, y_var)


# --- Lemma 3 ------------------------------------------------------------------------------------------------

#: The most informative y about x moves as noise is added.
_MOVING = Coin(prior=0.8, x_mean=(-2.0, 2.0), x_var=(1.0, 1.0), y_mean=(0.0, 3.0), y_var=(0.05, 1.0))


def _lemma3(conditional_first: bool, noise_on_y: bool, trial: Trial) -> Iterator[float]:
    """By how much the supremum grows at most from one noise level to the next (below zero: it falls)."""
    rng = trial.generator(20 + 2 * conditional_first + noise_on_y)
    for number in range(trial.instances):
        coin = random_coin(rng, equal_variance=number % 4 == 0)
        suprema = [supremum(coin.noised(sigma, sigma * noise_on_y), conditional_first) for sigma in LEVELS]
        yield np.diff(suprema).max()


# Both directions of the KL, with noise on x alone or on both parts.
for first, direction, kl in (
    (False, "its own", "KL(p(x) || p(x|y))"),
    (True, "definition 3", "KL(p(x|y) || p(x)), as in Definition 3,"),
):
    for on_y, noisy in ((False, "x alone"), (True, "x and y both")):
        check.append(
            Check(
                f"lemma 3, {direction} direction, noise on {noisy}",
                f"The supremum over y of {kl} falls as noise is added to {noisy}.",
                "largest rise from one noise level to the next (must not be above 0)",
                partial(_lemma3, first, on_y),
                _SLACK,
            )
        )


@check("lemma 3's proof: Claim 1 at the maximizing y", "rise of the KL at one and the same y", expected=False)
def _lemma3_pointwise(trial: Trial) -> Outcome:
    """With noise on x and y both, KL(p(x) || p(x|y)) at the y that maximizes it falls with noise."""
    low, high = 0.1, 0.5
    noisier, cleaner = _MOVING.noised(high, high), _MOVING.noised(low, low)
    y = noisier.turning_point()  # where the supremum is reached
    sooner, later = (float(kl_at(coin, coin.posterior(y), False)) for coin in (cleaner, noisier))
    tops = [float(supremum(coin, False)) for coin in (cleaner, noisier)]
    witness = {"p": str(_MOVING), "sigma": [low, high], "y": y, "KL": [sooner, later], "supremum": tops}
    return at_most(0, [later - sooner], witness)


@check("lemma 3's proof: sup at t1 := KL at t2", "difference of the two sides", expected=False)
def _lemma3_line(trial: Trial) -> Outcome:
    """The supremum at the lower noise level equals the KL at the higher one, at the latter's maximizer.

    The proof's second line, read literally, sets the supremum at t1 equal to a value at t2.
    """
    coin, (low, high) = random_coin(trial.generator(30)), (0.2, 2.0)
    sooner, later = (float(supremum(coin.noised(sigma, 0.0), False)) for sigma in (low, high))
    witness = {"p": str(coin), "sigma": [low, high], "left": sooner, "right": later, "meant": "t2 on the left"}
    return at_most(_SLACK, [abs(sooner - later)], witness)


@check("lemma 3 speaks of definition 3's errors", "difference of the two suprema", expected=False)
def _lemma3_direction(trial: Trial) -> Outcome:
    """The supremum in Lemma 3, KL(p(x) || p(x|y)), is the error of Definition 3, KL(p(x|y) || p(x)).

    y nearly determines which of two states x is in: log 2 in one direction, far more in the other.
    """
    coin = Coin(prior=0.5, x_mean=(-3.0, 3.0), x_var=(0.2, 0.2), y_mean=(-1.0, 1.0), y_var=(0.3, 0.3))
    ours, theirs = (float(supremum(coin, first)) for first in (True, False))
    witness = {"p": str(coin), "definition 3": ours, "lemma 3": theirs}
    return at_most(_SLACK, [abs(ours - theirs)], witness)


@check("lemma 3, strictly", "change of the supremum", expected=False)
def _lemma3_strict(trial: Trial) -> Outcome:
    """The supremum falls strictly for every p."""
    coin = Coin(0.5, (0.0, 0.0), (1.0, 1.0), (-1.0, 1.0), (0.3, 0.3))
    values = [float(supremum(coin.noised(sigma, sigma), False)) for sigma in (0.5, 1.0)]
    witness = {"p": "x and y independent", "sigma": [0.5, 1.0], "supremum": values}
    return Outcome(values[1] < values[0] - _SLACK, values[1] - values[0], witness=witness)


@check("claim 1, rate for Gaussians", "largest relative difference of derivative and formula")
def _claim1_gaussian(trial: Trial) -> Outcome:
    """d/dt KL(N_t[q] || N_t[r]) = -t E_{N_t[q]} |grad log N_t[q]/N_t[r]|^2 < 0 (the source omits the mean)."""
    rng, tried, signs, dim = trial.generator(40), [], [], 4
    for number in range(trial.instances):
        means = torch.randn(2, dim, dtype=torch.float64, generator=rng)
        covs = [random_cov(dim, rng) for _ in range(2)]
        sigma = torch.tensor(LEVELS[1 + number % 5], dtype=torch.float64, requires_grad=True)
        noise = sigma.square() * torch.eye(dim, dtype=torch.float64)
        kl = gaussian_kl(means[0], covs[0] + noise, means[1], covs[1] + noise)
        (slope,) = torch.autograd.grad(kl, sigma)
        rate = kl_rate(means[0], covs[0], means[1], covs[1], sigma.item())
        tried.append((slope - rate).abs() / rate.abs())
        signs.append(float(rate))
    return Outcome(largest(tried) <= 1e-9 and max(signs) < 0, largest(tried), len(tried))


@check("claim 1, rate for mixtures", "largest relative difference of difference quotient and formula", 1e-3)
def _claim1_mixture(trial: Trial) -> Iterator[Tensor]:
    """The same for mixtures in one dimension.

    Both sides by quadrature, the derivative from a symmetric difference.
    """
    rng, step = trial.generator(41), 1e-3
    for number in range(trial.instances):
        q, r = random_mixture(1, 2, rng), random_mixture(1, 3, rng)
        sigma = LEVELS[1 + number % 5]
        ends = [line_kl(q.noised(s), r.noised(s)) for s in (sigma - step, sigma + step)]
        slope, rate = (ends[1] - ends[0]) / (2 * step), _mixture_rate(q.noised(sigma), r.noised(sigma), sigma)
        yield (slope - rate).abs() / (rate.abs() + 1e-6)


def _mixture_rate(q, r, sigma: float) -> torch.Tensor:
    x = torch.linspace(-80, 80, 16001, dtype=torch.float64)[:, None]
    gap = (q.score(x) - r.score(x))[:, 0]
    return -sigma * torch.trapezoid(q.log_density(x).exp() * gap.square(), x[:, 0])
