"""Conditional Projective Compositions (Definition 2), with known scores, and coupled ones."""

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from tessera.studies.theory.mixtures import Mixture, gaussian, points, product, random_cov, random_mixture

Kind = Literal["gaussian", "mixture", "points"]
KINDS: tuple[Kind, ...] = ("gaussian", "mixture", "points")
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

    def subsets(self) -> Iterator[Subset]:
        return subsets(self.conditions)

    def parts(self, J: Subset) -> list[tuple[Sequence[int], Subset]]:
        """Lemma 1's N and L: every region with its own condition, where active, and the background with none."""
        regions = [(region, (j,) if j in J else ()) for j, region in enumerate(self.regions)]
        return [*regions, (self.background, ())]

    def wide_parts(self, J: Subset) -> list[tuple[Sequence[int], Subset]]:
        """The regions of active conditions, and M_J^c: all pixels that none of them controls."""
        rest = _without(self.dim, [self.regions[j] for j in J])
        return [*((self.regions[j], (j,)) for j in J), (rest, ())]

    def local_score(self, J: Subset, sigma: float, x: Tensor, wide: bool = False) -> Tensor:
        """The score of Lemma 1: N_i = M_j and L_i = {j} n J for i in M_j, else N_i = M_b and L_i empty.

        `wide` repairs it without a new assumption: N_i(J) = M_J^c for every pixel that no active condition controls.
        """
        score = torch.empty_like(x)
        for pixels, own in self.wide_parts(J) if wide else self.parts(J):
            if len(pixels):
                score[:, pixels] = self.given(own).on(pixels).noised(sigma).score(x[:, pixels])
        return score


def _without(dim: int, regions: Sequence[Sequence[int]]) -> list[int]:
    """Pixels outside these regions, in order."""
    controlled = set(itertools.chain(*regions))
    return [pixel for pixel in range(dim) if pixel not in controlled]


# --- builders ----------------------------------------------------------------------------------------------


def layout(sizes: Sequence[int], background: int, rng: torch.Generator | None = None) -> list[list[int]]:
    """Pixels of every region, then of the background; scattered over the image when rng is given."""
    total = sum(sizes) + background
    order = torch.randperm(total, generator=rng).tolist() if rng else range(total)
    cuts = [0, *itertools.accumulate([*sizes, background])]
    return [sorted(order[low:high]) for low, high in itertools.pairwise(cuts)]


def _random_part(dim: int, kind: Kind, rng: torch.Generator) -> Mixture:
    if kind == "points":
        return points(torch.randn(2, dim, dtype=torch.float64, generator=rng))
    return random_mixture(dim, 1 if kind == "gaussian" else 2, rng)


def composition(sizes: Sequence[int], background: int, kind: Kind, rng: torch.Generator) -> Family:
    """A CPC whose unconditional distribution factorizes over the regions too, which are scattered over the image."""
    return assembled(layout(sizes, background, rng), kind, rng)


def assembled(regions: Sequence[Sequence[int]], kind: Kind, rng: torch.Generator) -> Family:
    """A CPC with random parts on these regions, the last one the background (which may be empty)."""
    dim = sum(len(pixels) for pixels in regions)
    nonempty = [pixels for pixels in regions if len(pixels)]
    off = [_random_part(len(pixels), kind, rng) for pixels in nonempty]
    on = [_random_part(len(pixels), kind, rng) for pixels in regions[:-1]]

    @functools.cache
    def given(J: Subset) -> Mixture:
        return product([on[r] if r in J else off[r] for r in range(len(nonempty))], nonempty, dim)

    return Family(tuple(regions[:-1]), regions[-1], given)


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
