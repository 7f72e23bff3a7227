"""Conditional Projective Compositions (Definition 2), with known scores; coupled ones; and in feature space."""

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from tessera.models.precondition import per_image
from tessera.studies.theory.mixtures import (
    Mixture,
    gaussian,
    product,
    random_cov,
    random_mixture,
    random_orthogonal,
    random_points,
)

Kind = Literal["gaussian", "mixture", "points"]
KINDS: tuple[Kind, ...] = ("gaussian", "mixture", "points")
MapKind = Literal["orthogonal", "linear", "nonlinear"]
Subset = tuple[int, ...]


def subsets(conditions: int) -> Iterator[Subset]:
    """All sets J of conditions, smallest first."""
    for size in range(conditions + 1):
        yield from itertools.combinations(range(conditions), size)


@dataclass(frozen=True)
class Family:
    """p(x|c_J) for every J: regions M_j, the background M_b, and a function from J to the distribution."""

    regions: tuple[Sequence[int], ...]  # M_j, disjoint
    background: Sequence[int]  # M_b
    given: Callable[[Subset], Mixture]

    @property
    def dim(self) -> int:
        return sum(len(region) for region in self.regions) + len(self.background)

    @property
    def conditions(self) -> int:
        return len(self.regions)

    def uncontrolled(self, J: Subset) -> list[int]:
        """M_J^c: pixels that no active condition controls."""
        return _without(self.dim, [self.regions[j] for j in J])


def _without(dim: int, regions: Sequence[Sequence[int]]) -> list[int]:
    """Pixels outside these regions, in order."""
    controlled = set(itertools.chain(*regions))
    return [pixel for pixel in range(dim) if pixel not in controlled]


def local_score(family: Family, J: Subset, sigma: float, x: Tensor) -> Tensor:
    """The score of Lemma 1: N_i = M_j and L_i = {j} n J for i in M_j, else N_i = M_b and L_i empty."""
    score = torch.empty_like(x)
    for j, region in enumerate(family.regions):
        own = (j,) if j in J else ()
        score[:, region] = family.given(own).on(region).noised(sigma).score(x[:, region])
    rest = list(family.background)
    if rest:
        score[:, rest] = family.given(()).on(rest).noised(sigma).score(x[:, rest])
    return score


def wide_local_score(family: Family, J: Subset, sigma: float, x: Tensor) -> Tensor:
    """Lemma 1 repaired without a new assumption: N_i(J) = M_J^c for every pixel no active condition controls."""
    score, rest = torch.empty_like(x), family.uncontrolled(J)
    for j in J:
        region = family.regions[j]
        score[:, region] = family.given((j,)).on(region).noised(sigma).score(x[:, region])
    if rest:
        score[:, rest] = family.given(()).on(rest).noised(sigma).score(x[:, rest])
    return score


# --- builders ----------------------------------------------------------------------------------------------


def layout(sizes: Sequence[int], background: int, rng: torch.Generator | None = None) -> list[list[int]]:
    """Pixels of every region, then of the background; scattered over the image when rng is given."""
    total = sum(sizes) + background
    order = torch.randperm(total, generator=rng).tolist() if rng else list(range(total))
    cuts = [0, *itertools.accumulate([*sizes, background])]
    return [sorted(order[low:high]) for low, high in itertools.pairwise(cuts)]


def _random_part(dim: int, kind: Kind, rng: torch.Generator) -> Mixture:
    if kind == "points":
        return random_points(dim, 2, rng)
    return random_mixture(dim, 1 if kind == "gaussian" else 2, rng)


def composition(
    sizes: Sequence[int], background: int, kind: Kind, rng: torch.Generator, scattered: bool = True
) -> Family:
    """A CPC whose unconditional distribution factorizes over the regions too."""
    return _assembled(layout(sizes, background, rng if scattered else None), kind, rng)


def _assembled(regions: Sequence[Sequence[int]], kind: Kind, rng: torch.Generator) -> Family:
    """A CPC with random parts on these regions, the last one the background (which may be empty)."""
    dim = sum(len(pixels) for pixels in regions)
    nonempty = [pixels for pixels in regions if len(pixels)]
    off = [_random_part(len(pixels), kind, rng) for pixels in nonempty]
    on = [_random_part(len(pixels), kind, rng) for pixels in regions[:-1]]

    @functools.cache
    def given(J: Subset) -> Mixture:
        return product([on[r] if r in J else off[r] for r in range(len(nonempty))], nonempty, dim)

    return Family(tuple(regions[:-1]), regions[-1], given)


def on_grid(cells: int, cell: int, kind: Kind, rng: torch.Generator) -> Family:
    """A CPC over square images: condition j controls the j-th cell of a grid, row by row; no background."""
    pixels = torch.arange((cells * cell) ** 2).unflatten(0, (cells, cell, cells, cell))
    regions = pixels.permute(0, 2, 1, 3).reshape(cells**2, -1).tolist()
    return _assembled([*regions, []], kind, rng)


class FamilyDenoiser:
    """A family over square images as a denoiser (Tweedie: x + sigma^2 score), conditioned on a set J."""

    def __init__(self, family: Family):
        self.family = family

    def __call__(self, x: Tensor, sigma: Tensor | float, cond: Tensor | None = None) -> Tensor:
        """The clean image for x (B, 1, S, S), noise level () or (B,), conditions (B, conditions) of 0 and 1."""
        levels = per_image(sigma, x).tolist()
        active = [()] * len(x) if cond is None else [tuple(row.nonzero()[:, 0].tolist()) for row in cond]
        rows = []
        for image, level, J in zip(x.flatten(1).double(), levels, active):
            rows.append(image + level**2 * self.family.given(J).noised(level).score(image[None])[0])
        return torch.stack(rows).reshape(x.shape).to(x.dtype)


def literal_composition(sizes: Sequence[int], background: int, rng: torch.Generator) -> Family:
    """All that Definition 2 requires, and no more: p(x|no condition) is a Gaussian that couples everything."""
    regions = layout(sizes, background)
    dim = sum(sizes) + background
    free = gaussian(torch.randn(dim, dtype=torch.float64, generator=rng), random_cov(dim, rng))
    on = [_random_part(len(pixels), "gaussian", rng) for pixels in regions[:-1]]

    @functools.cache
    def given(J: Subset) -> Mixture:
        parts, controlled = [on[j] for j in J], [regions[j] for j in J]
        if rest := _without(dim, controlled):
            parts, controlled = [*parts, free.on(rest)], [*controlled, rest]
        return product(parts, controlled, dim)

    return Family(tuple(regions[:-1]), regions[-1], given)


def coupled(family: Family, coupling: float, rng: torch.Generator) -> Family:
    """An approximate CPC: a share `coupling` in [0, 1] of a fixed dense covariance is added, whatever J.

    At 0 it is the family itself; marginals of single regions stay Gaussian mixtures.
    """
    extra = coupling * random_cov(family.dim, rng, floor=0.0)

    def given(J: Subset) -> Mixture:
        whole = family.given(J)
        return Mixture(whole.weights, whole.means, whole.covs + extra)

    return Family(family.regions, family.background, given)


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


def feature_map(kind: MapKind, dim: int, rng: torch.Generator) -> _FeatureMap:
    if kind == "orthogonal":
        return _FeatureMap(random_orthogonal(dim, rng))
    stretch = 0.5 + 1.5 * torch.rand(dim, dtype=torch.float64, generator=rng)
    matrix = random_orthogonal(dim, rng) * stretch @ random_orthogonal(dim, rng)
    return _FeatureMap(matrix, 0.0 if kind == "linear" else 0.5)


def in_pixels(family: Family, matrix: Tensor) -> Callable[[Subset], Mixture]:
    """The distribution of x = A^-1 z for z from a feature-space CPC, A a matrix."""
    inverse = torch.linalg.inv(matrix)
    return lambda J: family.given(J).mapped(inverse)
