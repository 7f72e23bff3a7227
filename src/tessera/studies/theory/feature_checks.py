"""Compositions in feature space: Corollary 1, noise that does not commute with the map, the mean heuristic."""

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from tessera.studies.theory.check import CheckRegistry, Outcome, Trial, at_most, largest
from tessera.studies.theory.compositions import KINDS, Kind, Subset, composition, literal_composition
from tessera.studies.theory.divergences import gaussian_kl, line_kl, mapped_kl, mapped_kl_rate
from tessera.studies.theory.lemma_checks import BATCH, EXACT, SIGMAS, score_error, sizes
from tessera.studies.theory.mixtures import Mixture, gaussian, points, random_cov, random_orthogonal

check = CheckRegistry()

_MapKind = Literal["orthogonal", "linear", "nonlinear"]
LEVELS = (0.0, 0.1, 0.3, 1.0, 3.0, 10.0, 100.0)


# --- feature space (Definition 4) --------------------------------------------------------------------------


@dataclass(frozen=True)
class _FeatureMap:
    """An invertible z = A(x): a matrix, then asinh(bend z) / bend on every feature (bend 0: linear)."""

    matrix: Tensor  # (n, n)
    bend: float = 0.0

    def __call__(self, x: Tensor) -> Tensor:
        z = x @ self.matrix.T
        return torch.asinh(self.bend * z) / self.bend if self.bend else z

    def inverse(self, z: Tensor) -> Tensor:
        z = torch.sinh(self.bend * z) / self.bend if self.bend else z
        return torch.linalg.solve(self.matrix, z.T).T

    def log_det(self, x: Tensor) -> Tensor:
        """log |det dz/dx|, (B,)."""
        straight = torch.linalg.slogdet(self.matrix)[1].expand(len(x))
        if not self.bend:
            return straight
        return straight - 0.5 * (1 + (self.bend * x @ self.matrix.T).square()).log().sum(1)

    def pull_back(self, x: Tensor, score: Tensor) -> Tensor:
        """A score in features (B, n) as the score in pixels: J^T s + grad log |det J|."""
        y = x @ self.matrix.T
        slope = (1 + (self.bend * y).square()).rsqrt()  # of every feature; 1 if linear
        volume = -(self.bend**2) * y * slope.square()
        return (slope * score + volume) @ self.matrix


def feature_map(kind: _MapKind, dim: int, rng: torch.Generator) -> _FeatureMap:
    if kind == "orthogonal":
        return _FeatureMap(random_orthogonal(dim, rng))
    stretch = 0.5 + 1.5 * torch.rand(dim, dtype=torch.float64, generator=rng)
    matrix = random_orthogonal(dim, rng) * stretch @ random_orthogonal(dim, rng)
    return _FeatureMap(matrix, 0.0 if kind == "linear" else 0.5)


# --- Corollary 1 --------------------------------------------------------------------------------------------


def _pixel_errors(trial: Trial, number: int, kind: Kind, map_kind: _MapKind) -> Iterator[float]:
    """True score of p^t in pixels against A^T (local score in features), for all J and noise levels."""
    rng = trial.generator(number)
    family = composition(sizes(trial.conditions), 2, kind, rng)
    matrix = feature_map(map_kind, family.dim, rng).matrix
    inverse = torch.linalg.inv(matrix)

    def local(J: Subset, sigma: float, x: Tensor) -> Tensor:
        return family.local_score(J, sigma, x @ matrix.T) @ matrix

    for J, sigma in itertools.product(family.subsets(), SIGMAS):
        yield score_error(family.given(J).mapped(inverse).noised(sigma), partial(local, J, sigma), rng)


@check("corollary 1, orthogonal map", "largest difference of scores", EXACT)
def _corollary1_orthogonal(trial: Trial) -> Iterator[float]:
    """For orthogonal A the pixel score of p^t is A^T times the local score at A x, for all J and noise levels."""
    for n, kind in enumerate(KINDS):
        yield from _pixel_errors(trial, 50 + n, kind, "orthogonal")


@check("corollary 1, noise in feature space", "largest difference of scores", EXACT)
def _corollary1_linear(trial: Trial) -> Iterator[float]:
    """For linear A the feature-space score of (A#p)^t, noise added to the features, is the local score."""
    rng = trial.generator(55)
    kinds: tuple[_MapKind, ...] = ("orthogonal", "linear")
    for map_kind in kinds:
        family = composition(sizes(trial.conditions), 2, "mixture", rng)
        matrix = feature_map(map_kind, family.dim, rng).matrix
        inverse = torch.linalg.inv(matrix)
        for J, sigma in itertools.product(family.subsets(), SIGMAS[::2]):
            features = family.given(J).mapped(inverse).mapped(matrix).noised(sigma)
            yield score_error(features, partial(family.local_score, J, sigma), rng)


@check("corollary 1, nonlinear map, clean data", "largest relative difference of scores", EXACT)
def _corollary1_nonlinear(trial: Trial) -> Iterator[float]:
    """For invertible nonlinear A the pixel score of p is J^T times the local score plus grad log |det J|.

    Autograd through the pixel density against the pulled-back local score, without noise.
    """
    rng = trial.generator(56)
    family = composition(sizes(trial.conditions), 2, "gaussian", rng)
    change = feature_map("nonlinear", family.dim, rng)
    for J in family.subsets():
        x = change.inverse(family.given(J).draw(BATCH, rng)).requires_grad_()
        density = family.given(J).log_density(change(x)) + change.log_det(x)
        (true,) = torch.autograd.grad(density.sum(), x)
        with torch.no_grad():
            local = change.pull_back(x, family.local_score(J, 0.0, change(x)))
        yield float((true - local).abs().max() / true.abs().max())


@check("corollary 1 in pixels for linear maps", "largest difference of scores", expected=False, published=False)
def _corollary1_pixels(trial: Trial) -> Outcome:
    """For invertible linear A, too, the pixel score of p^t is A^T times the local score at A x."""
    small = Trial(trial.instances, min(trial.conditions, 3), trial.seed)
    found = [*_pixel_errors(small, 57, "mixture", "linear")]
    witness = {"A": "two rotations around a stretch by 1/2 to 2", "largest difference": largest(found)}
    return at_most(EXACT, found, witness)


# --- noising against mapping -------------------------------------------------------------------------------


@check("noising commutes with orthogonal maps", "largest KL", 1e-12)
def _commuting(trial: Trial) -> Iterator[float]:
    """N_t[A#p] = A#N_t[p] for orthogonal A: the KL of Claim 2 is 0 at every noise level."""
    rng = trial.generator(60)
    for _ in range(trial.instances):
        cov, turn = random_cov(4, rng), random_orthogonal(4, rng)
        yield max(float(mapped_kl(cov, turn, sigma).abs()) for sigma in LEVELS)


@check("claim 2", "largest rise from one noise level to the next", expected=False)
def _claim2(trial: Trial) -> Outcome:
    """KL(N_t[A#p] || A#N_t[p]) falls with t."""
    one = torch.ones(1, 1, dtype=torch.float64)
    values = {f"{sigma:g}": float(mapped_kl(one, 2 * one, sigma)) for sigma in LEVELS}
    rise = float(np.diff([*values.values()]).max())
    witness = {"p": "N(0, 1), A = 2", "KL by sigma": values, "limit": (1 / 4 - 1 + math.log(4)) / 2}
    return Outcome(rise < 0, rise, witness=witness)


@check("claim 2 reversed, Gaussians", "largest fall, or excess over the limit (must not be above 0)", published=False)
def _claim2_reversed(trial: Trial) -> Outcome:
    """For Gaussian p and every linear A, KL(N_t[A#p] || A#N_t[p]) starts at 0, never falls, and tends to (tr
    G^-1 - n + log det G)/2, G = A A^T, from below."""
    rng, falls, over = trial.generator(61), [], []
    for _ in range(trial.instances):
        cov, matrix = random_cov(4, rng), feature_map("linear", 4, rng).matrix
        values = [float(mapped_kl(cov, matrix, sigma)) for sigma in LEVELS]
        falls.append(-np.diff(values).min())
        over.append(values[-1] - float(_noise_kl(matrix)))
    return replace(at_most(1e-12, [*falls, *over]), instances=trial.instances)


def _noise_kl(matrix: Tensor) -> Tensor:
    """KL(N(0, I) || N(0, A A^T)), the limit at high noise."""
    zero, eye = torch.zeros(len(matrix)).to(matrix), torch.eye(len(matrix)).to(matrix)
    return gaussian_kl(zero, eye, zero, matrix @ matrix.T)


def _claim2_rate(trial: Trial) -> tuple[list[float], list[float]]:
    """Relative differences of the derivative from the published rate, and from the corrected one."""
    rng, found = trial.generator(62), []
    for number in range(trial.instances):
        cov, matrix = random_cov(3, rng), feature_map("linear", 3, rng).matrix
        sigma = torch.tensor(LEVELS[1 + number % 5], dtype=torch.float64, requires_grad=True)
        (slope,) = torch.autograd.grad(mapped_kl(cov, matrix, sigma), sigma)
        rates = torch.stack(mapped_kl_rate(cov, matrix, sigma.item()))
        found.append((slope - rates).abs() / slope.abs())
    published, corrected = torch.stack(found).T.tolist()
    return published, corrected


@check(
    "claim 2's proof: heat equation for A#N_t[p]", "least relative difference of derivative and formula", expected=False
)
def _claim2_published_rate(trial: Trial) -> Outcome:
    """d/dt KL(N_t[A#p] || A#N_t[p]) = -t E |grad log N_t[A#p] / A#N_t[p]|^2."""
    found = _claim2_rate(trial)[0]
    witness = {"the derivative is positive, the formula negative": True, "instances": len(found)}
    return Outcome(largest(found) <= 1e-8, min(found), len(found), witness)


@check("claim 2's rate, corrected", "largest relative difference of derivative and formula", 1e-8, published=False)
def _claim2_corrected_rate(trial: Trial) -> list[float]:
    """With G = A A^T, d/dt KL = -t E[grad rho . (grad log N_t[A#p] - G grad log A#N_t[p])], rho their log
    ratio."""
    return _claim2_rate(trial)[1]


def _bent_kl(sigma: float) -> float:
    """KL(N_t[A#p] || A#N_t[p]) for p = N(0, 1) and A(x) = x + tanh x, by quadrature."""
    spread = math.sqrt(1 + sigma**2)
    u = torch.linspace(-9, 9, 801, dtype=torch.float64)
    v = torch.linspace(-9, 9, 2001, dtype=torch.float64) * spread
    slope = 1 + 1 / v.cosh().square()
    offset = ((v + v.tanh())[:, None] - (u + u.tanh())) / sigma
    log_a = (-(offset.square() + u.square()) / 2).logsumexp(1) + ((u[1] - u[0]) / (2 * math.pi * sigma)).log()
    log_b = -(v / spread).square() / 2 - math.log(spread * math.sqrt(2 * math.pi)) - slope.log()
    return float(torch.trapezoid(log_a.exp() * slope * (log_a - log_b), v))


@check("claim 2 at high noise, maps that are nearly rigid far out", "KL at the highest noise level", published=False)
def _claim2_bounded(trial: Trial) -> Outcome:
    """For A(x) = x + tanh x, whose bend stays bounded, the KL starts at 0, rises, and falls to 0 at high noise."""
    levels = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
    values = {sigma: _bent_kl(sigma) for sigma in levels}
    top = max(values, key=lambda sigma: values[sigma])
    after = [values[s] for s in levels if s >= top]
    holds = top > levels[0] and after == sorted(after, reverse=True) and after[-1] < 0.2 * after[0]
    return Outcome(holds, after[-1], len(levels), {"KL by sigma": _by_text(values), "largest at": top})


def _by_text(values: dict[float, float]) -> dict[str, float]:
    return {f"{sigma:g}": value for sigma, value in values.items()}


@check("claim 2 for finite data", "distance from the upper bound at both ends", published=False)
def _claim2_points(trial: Trial) -> Outcome:
    """For finite data and linear A the KL is at its upper bound at both ends of the noise and lower between: it
    falls only on part of the way.

    Two points, doubled: far apart each is a point mass, far below the noise both are one.
    """
    data = points(torch.tensor([[-2.0], [2.0]], dtype=torch.float64))  # A#p
    levels = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
    values = {sigma: float(line_kl(data.noised(sigma), data.noised(2 * sigma))) for sigma in levels}
    limit = float(_noise_kl(2 * torch.ones(1, 1, dtype=torch.float64)))
    least = min(values, key=lambda sigma: values[sigma])
    ends = max(abs(values[sigma] - limit) for sigma in (levels[0], levels[-1]))
    holds = levels[0] < least < levels[-1] and ends < 0.01 < limit - values[least]
    witness = {"p": "-1 or 1, A = 2", "KL by sigma": _by_text(values), "bound": limit}
    return Outcome(holds, ends, len(levels), witness)


# --- the heuristic of orthogonal mean differences ----------------------------------------------------------


def _largest_shift_product(given, conditions: int) -> float:
    """Of the inner products of mu_j - mu_b for two different conditions."""
    shifts = torch.stack([given((j,)).mean() - given(()).mean() for j in range(conditions)])
    products = shifts @ shifts.T
    return float((products - products.diagonal().diag()).abs().max())


@check("orthogonal mean differences are necessary", "largest inner product", 1e-12)
def _heuristic_necessary(trial: Trial) -> Iterator[float]:
    """In a CPC the shifts of the mean by different conditions are orthogonal (Definition 2 as written is
    enough)."""
    rng = trial.generator(70)
    for number in range(trial.instances):
        if number % 4 == 3:
            family = literal_composition((1, 2, 1), 1, rng)
        else:
            family = composition((1, 2, 1), 1, KINDS[number % 4], rng)
        yield _largest_shift_product(family.given, 3)


def _impostor(correlation: float = 0.9):
    """Orthogonal shifts, but the two pixels are correlated under both conditions."""
    eye = torch.eye(2, dtype=torch.float64)
    tied = eye + correlation * eye.flip(0)

    def given(J) -> Mixture:
        mean = torch.tensor([float(j in J) for j in range(2)], dtype=torch.float64)
        return gaussian(mean, tied if len(J) == 2 else eye)

    return given


@check("orthogonal mean differences are sufficient", "difference of scores", expected=False, published=False)
def _heuristic_sufficient(trial: Trial) -> Outcome:
    """Orthogonal shifts of the mean make a CPC."""
    given = _impostor()
    both, x = given((0, 1)), torch.zeros(1, 2, dtype=torch.float64)
    apart = torch.cat([given((j,)).on([j]).score(x[:, [j]]) for j in range(2)], 1)
    witness = {
        "p": "unit Gaussians, condition j shifts pixel j by 1; under both, the pixels correlate by 0.9",
        "inner product of shifts": _largest_shift_product(given, 2),
        "score at 0": both.score(x)[0].tolist(),
        "local score at 0": apart[0].tolist(),
    }
    return at_most(EXACT, [(both.score(x) - apart).abs().max()], witness)
