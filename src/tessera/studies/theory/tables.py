"""Finite conditional distributions as tables: Definition 3 and Lemma 2 of the relaxation, without estimates.

An image has a background (axis 0) and one region per condition (axes 1, 2, ...), each with a few states.
"""

import functools
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from tessera.studies.theory.compositions import Subset, subsets
from tessera.studies.theory.divergences import table_kl


@dataclass(frozen=True)
class _ProbabilityTables:
    """p(x|c_J) for every J, each a table (states of background, of region 0, of region 1, ...)."""

    given: Mapping[Subset, Tensor]

    @property
    def conditions(self) -> int:
        return self.given[()].ndim - 1

    def marginal(self, J: Subset, axis: int) -> Tensor:
        table = self.given[J]
        return table.sum([a for a in range(table.ndim) if a != axis])


@dataclass(frozen=True)
class Errors:
    """Definition 3: suprema over J and over everything outside the region."""

    own_errors: Tensor  # eps_j (conditions,)
    other_errors: Tensor  # eps~_j
    background: Tensor  # eps_b

    def bound(self, J: Subset) -> Tensor:
        """Lemma 2: sum of eps_j over J, of eps~_j over the rest, and eps_b."""
        inside = torch.tensor([j in J for j in range(len(self.own_errors))])
        return torch.where(inside, self.own_errors, self.other_errors).sum() + self.background


def random_tables(conditions: int, states: int, coupling: float, rng: torch.Generator) -> _ProbabilityTables:
    """Products of random marginals times exp(coupling * noise): coupling 0 is a CPC, more is more coupled."""

    def simplex() -> Tensor:
        weights = torch.rand(states, dtype=torch.float64, generator=rng) + 0.1
        return weights / weights.sum()

    off = [simplex() for _ in range(conditions + 1)]
    on = [simplex() for _ in range(conditions)]

    def table(J: Subset) -> Tensor:
        whole = _outer([off[0], *(on[j] if j in J else off[j + 1] for j in range(conditions))])
        noise = torch.randn(whole.shape, dtype=torch.float64, generator=rng)
        bent = whole * (coupling * noise).exp()
        return bent / bent.sum()

    return _ProbabilityTables({J: table(J) for J in subsets(conditions)})


def induced(tables: _ProbabilityTables, J: Subset) -> Tensor:
    """The distribution whose score is Lemma 1's: every region and the background on its own."""
    own = [(j,) if j in J else () for j in range(tables.conditions)]
    return _outer([tables.marginal(source, axis) for axis, source in enumerate([(), *own])])


def _outer(factors: list[Tensor]) -> Tensor:
    """Independent parts, one for each axis."""
    return functools.reduce(lambda whole, factor: whole[..., None] * factor, factors)


def projective(tables: _ProbabilityTables, J: Subset) -> Tensor:
    """C*_J[p] as the proof of Lemma 2 writes it: what no active condition controls stays coupled."""
    axes = [j + 1 for j in J]
    whole = tables.given[()].sum(axes, keepdim=True) if axes else tables.given[()]
    for axis in axes:
        whole = (whole.transpose(axis, -1) * tables.marginal((axis - 1,), axis)).transpose(axis, -1)
    return whole


def worst(table: Tensor, axis: int, target: Tensor) -> Tensor:
    """sup over everything else of KL(p(x_axis | everything else) || target)."""
    rows = table.movedim(axis, -1).flatten(0, -2)
    rows = rows[rows.sum(1) > 0]
    return table_kl(rows / rows.sum(1, keepdim=True), target, (1,)).max()


def errors(tables: _ProbabilityTables) -> Errors:
    """The smallest errors for which the tables are an approximate CPC."""
    count = tables.conditions
    own_errors, other_errors = torch.zeros(2, count, dtype=torch.float64)
    background = torch.zeros((), dtype=torch.float64)
    for J, table in tables.given.items():
        background = torch.maximum(background, worst(table, 0, tables.marginal((), 0)))
        for j in range(count):
            kind, source = (own_errors, (j,)) if j in J else (other_errors, ())
            kind[j] = torch.maximum(kind[j], worst(table, j + 1, tables.marginal(source, j + 1)))
    return Errors(own_errors, other_errors, background)


def opposite_pair(slip: float) -> _ProbabilityTables:
    """Two binary regions that agree (except with probability `slip`) without conditions and disagree under condition 0.

    Region 0 is a fair coin throughout; regions 1 and 2 form the pair; the background has one state.
    """
    equal = torch.tensor([[1 - slip, slip], [slip, 1 - slip]], dtype=torch.float64) / 2
    coin = torch.full((2,), 0.5, dtype=torch.float64)
    pair = {J: equal.flip(0) if 0 in J else equal for J in subsets(3)}
    return _ProbabilityTables({J: (coin[:, None, None] * table)[None] for J, table in pair.items()})
