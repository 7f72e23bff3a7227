"""Distributions over small images whose scores are known at every noise level, in double precision.

A Gaussian is a mixture of one, a finite data set a mixture of points (zero covariance).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Mixture:
    """sum_k weight_k N(mean_k, cov_k) over n pixels."""

    weights: Tensor  # (K,)
    means: Tensor  # (K, n)
    covs: Tensor  # (K, n, n)

    @property
    def dim(self) -> int:
        return self.means.shape[1]

    def noised(self, sigma: float) -> "Mixture":
        """N_t[p]: independent noise of this size added to every pixel."""
        return Mixture(self.weights, self.means, self.covs + sigma**2 * torch.eye(self.dim).to(self.covs))

    def on(self, pixels: Sequence[int]) -> "Mixture":
        """Marginal p(x_N)."""
        kept = torch.as_tensor(list(pixels))
        return Mixture(self.weights, self.means[:, kept], self.covs[:, kept][:, :, kept])

    def mapped(self, matrix: Tensor) -> "Mixture":
        """The law of `matrix` x (the pushforward A#p)."""
        return Mixture(self.weights, self.means @ matrix.T, matrix @ self.covs @ matrix.T)

    def component_logs(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """log(weight_k N(x; k)) and cov_k^-1 (x - mean_k) for x (B, n): (B, K), (B, K, n)."""
        factor = torch.linalg.cholesky(self.covs)  # (K, n, n)
        offset = x[:, None] - self.means  # (B, K, n)
        pulled = torch.cholesky_solve(offset.permute(1, 2, 0), factor).permute(2, 0, 1)
        log_det = 2 * factor.diagonal(dim1=1, dim2=2).log().sum(1)
        square = (offset * pulled).sum(2)
        return self.weights.log() - (square + log_det + self.dim * math.log(2 * math.pi)) / 2, pulled

    def log_density(self, x: Tensor) -> Tensor:
        """(B, n) to (B,)."""
        return self.component_logs(x)[0].logsumexp(1)

    def score(self, x: Tensor) -> Tensor:
        """grad log p, (B, n)."""
        logs, pulled = self.component_logs(x)
        return -(logs.softmax(1)[:, :, None] * pulled).sum(1)

    def mean(self) -> Tensor:
        return self.weights @ self.means

    def draw(self, count: int, rng: torch.Generator) -> Tensor:
        which = self.weights.multinomial(count, replacement=True, generator=rng)
        values, vectors = torch.linalg.eigh(self.covs)  # points have no Cholesky factor
        root = vectors * values.clamp(min=0).sqrt()[:, None]
        noise = torch.randn(count, self.dim, 1, dtype=self.means.dtype, generator=rng)
        return self.means[which] + (root[which] @ noise)[:, :, 0]


def gaussian(mean: Tensor, cov: Tensor) -> Mixture:
    return Mixture(torch.ones(1, dtype=mean.dtype), mean[None], cov[None])


def points(data: Tensor) -> Mixture:
    """A finite data set (N, n): its empirical distribution."""
    count, dim = data.shape
    return Mixture(torch.full((count,), 1 / count).to(data), data, data.new_zeros(count, dim, dim))


def product(parts: Sequence[Mixture], regions: Sequence[Sequence[int]], dim: int) -> Mixture:
    """Independent parts, part r on the pixels regions[r]: every combination of components."""
    whole = points(torch.zeros(1, dim, dtype=torch.float64))
    for part, region in zip(parts, regions):
        few, pixels = len(part.weights), torch.as_tensor(list(region))
        means = whole.means[:, None].repeat(1, few, 1)  # (many, few, n)
        covs = whole.covs[:, None].repeat(1, few, 1, 1)
        means[:, :, pixels] = part.means
        covs[:, :, pixels[:, None], pixels] = part.covs
        weights = whole.weights[:, None] * part.weights
        whole = Mixture(weights.flatten(), means.flatten(0, 1), covs.flatten(0, 1))
    return whole


# --- random instances --------------------------------------------------------------------------------------


def random_cov(dim: int, rng: torch.Generator, floor: float = 0.2) -> Tensor:
    root = torch.randn(dim, dim, dtype=torch.float64, generator=rng) / math.sqrt(dim)
    return root @ root.T + floor * torch.eye(dim, dtype=torch.float64)


def random_mixture(dim: int, components: int, rng: torch.Generator) -> Mixture:
    weights = torch.rand(components, dtype=torch.float64, generator=rng) + 0.2
    means = torch.randn(components, dim, dtype=torch.float64, generator=rng)
    covs = torch.stack([random_cov(dim, rng) for _ in range(components)])
    return Mixture(weights / weights.sum(), means, covs)


def random_orthogonal(dim: int, rng: torch.Generator) -> Tensor:
    q, r = torch.linalg.qr(torch.randn(dim, dim, dtype=torch.float64, generator=rng))
    return q * r.diagonal().sign()
