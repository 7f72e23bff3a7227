"""A statement, whether the numbers bear it out, and whether we say it should hold."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from tessera.scenes.random import seeded_generator


@dataclass(frozen=True)
class Check:
    """One statement tried on many instances."""

    name: str
    statement: str
    holds: bool
    error: float  # what the verdict rests on; `measure` says in which sense
    measure: str
    instances: int
    expected: bool = True  # False: we say that the statement does not hold
    published: bool = True  # False: ours, be it a repair, a converse or a warning
    witness: dict[str, Any] = field(default_factory=dict)  # numbers that show it

    @property
    def as_expected(self) -> bool:
        return self.holds == self.expected

    @property
    def record(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "holds": self.holds,
            "expected": self.expected,
            "published": self.published,
            "error": self.error,
            "measure": self.measure,
            "instances": self.instances,
            "statement": self.statement,
            **({"witness": self.witness} if self.witness else {}),
        }


Runner = Callable[["Trial"], Check]


@dataclass(frozen=True)
class Trial:
    """How much to try, and the seed everything random comes from."""

    instances: int = 200
    conditions: int = 6
    seed: int = 0

    def chance(self, number: int = 0) -> torch.Generator:
        return seeded_generator(self.seed * 1_000_003 + number)


def largest(errors: list[Any]) -> float:
    return float(max(float(error) for error in errors))
