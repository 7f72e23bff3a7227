"""How far distributions are apart: Kullback-Leibler, exact for Gaussians and tables, by quadrature in one dimension."""

import torch
from torch import Tensor

from tessera.studies.theory.mixtures import Mixture

_NODES = 4001  # the trapezoid rule converges faster than any power on smooth, decaying integrands


def gaussian_kl(mean_q: Tensor, cov_q: Tensor, mean_r: Tensor, cov_r: Tensor) -> Tensor:
    """KL(q || r)."""
    offset = mean_r - mean_q
    ratio = torch.linalg.solve(cov_r, cov_q)
    square = offset @ torch.linalg.solve(cov_r, offset)
    return (ratio.diagonal().sum() + square - len(offset) - torch.linalg.slogdet(ratio)[1]) / 2


def kl_rate(mean_q: Tensor, cov_q: Tensor, mean_r: Tensor, cov_r: Tensor, sigma: float) -> Tensor:
    """Claim 1 for Gaussians: -sigma E_q |grad log q / r|^2, both noised by sigma; exact."""
    eye = torch.eye(len(mean_q)).to(cov_q)
    sharp_q, sharp_r = (torch.linalg.inv(cov + sigma**2 * eye) for cov in (cov_q, cov_r))
    slope, shift = sharp_r - sharp_q, sharp_r @ (mean_q - mean_r)  # grad log q/r = slope (x - mean_q) + shift
    return -sigma * (torch.trace(slope @ (cov_q + sigma**2 * eye) @ slope.T) + shift @ shift)


def mapped_kl_rate(cov: Tensor, matrix: Tensor, sigma: float) -> tuple[Tensor, Tensor]:
    """d/dt KL(N_t[A#p] || A#N_t[p]) for p = N(m, cov): as published, and with the heat equation of A#N_t.

    A#N_t[p] obeys db/dt = t div(G grad b), G = A A^T, so the rate is -t E[grad rho . (grad log a - G grad log b)].
    """
    mapped, spread = matrix @ cov @ matrix.T, matrix @ matrix.T
    first, second = mapped + sigma**2 * torch.eye(len(cov)).to(cov), mapped + sigma**2 * spread
    sharp_a, sharp_b = torch.linalg.inv(first), torch.linalg.inv(second)
    slope = sharp_b - sharp_a
    published = -sigma * torch.trace(slope @ first @ slope)
    return published, -sigma * torch.trace(slope @ (spread @ sharp_b - sharp_a) @ first)


def mapped_kl(cov: Tensor, matrix: Tensor, sigma: float | Tensor) -> Tensor:
    """KL(N_t[A#p] || A#N_t[p]) for p = N(m, cov): how badly noising and A fail to commute."""
    mapped, zero = matrix @ cov @ matrix.T, torch.zeros(len(cov)).to(cov)
    eye = torch.eye(len(cov)).to(cov)
    return gaussian_kl(zero, mapped + sigma**2 * eye, zero, mapped + sigma**2 * matrix @ matrix.T)


def total_correlation(cov: Tensor, blocks: list[list[int]]) -> Tensor:
    """KL of a Gaussian from the product of its own marginals on these blocks."""
    apart = sum(torch.linalg.slogdet(cov[block][:, block])[1] for block in blocks if block)
    return (apart - torch.linalg.slogdet(cov)[1]) / 2


def line_kl(q: Mixture, r: Mixture) -> Tensor:
    """KL(q || r) of one-dimensional mixtures, by the trapezoid rule."""
    spread = torch.cat([q.covs.flatten(), r.covs.flatten()]).max().sqrt()
    means = torch.cat([q.means.flatten(), r.means.flatten()])
    x = torch.linspace(means.min() - 14 * spread, means.max() + 14 * spread, _NODES, dtype=torch.float64)
    log_q, log_r = q.log_density(x[:, None]), r.log_density(x[:, None])
    return torch.trapezoid(log_q.exp() * (log_q - log_r), x)


def table_kl(p: Tensor, q: Tensor, dims: tuple[int, ...] | None = None) -> Tensor:
    """KL of probability tables over `dims` (all of them by default)."""
    terms = torch.where(p > 0, p * (p / q).log(), 0.0)
    return terms.sum() if dims is None else terms.sum(dims)
