"""Statements as checks: a function tried on exact distributions says whether the numbers bear a statement out.

A check is one decorated function; its docstring's first paragraph is the statement::

    check = CheckRegistry()

    @check("claim 2", "largest rise from one noise level to the next", expected=False)
    def _claim2(trial: Trial) -> Outcome:
        \"""KL(N_t[A#p] || A#N_t[p]) falls with t.\"""
        ...
        return at_most(0, rises)
"""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from tessera.scenes.random import seeded_generator


@dataclass(frozen=True)
class Trial:
    """How much to try, and the seed of everything random."""

    instances: int = 200
    conditions: int = 6
    seed: int = 0

    def generator(self, number: int) -> torch.Generator:
        """Generator `number` of this trial; every check has numbers of its own."""
        return seeded_generator(self.seed * 1_000_003 + number)


@dataclass(frozen=True)
class Outcome:
    """What a check found."""

    holds: bool
    error: float  # the number that decides; `Check.measure` says which
    instances: int = 1
    witness: dict[str, Any] = field(default_factory=dict)  # numbers that show it


def at_most(
    bound: float, errors: Sequence[Any], instances: int | None = None, witness: dict[str, Any] | None = None
) -> Outcome:
    """The statement holds if no error is larger than the bound."""
    worst = largest(errors)
    return Outcome(worst <= bound, worst, len(errors) if instances is None else instances, witness or {})


def largest(errors: Sequence[Any]) -> float:
    return float(max(float(error) for error in errors))


_Test = Callable[[Trial], Outcome]


@dataclass(frozen=True)
class Check:
    """One statement and the function that tries it."""

    name: str
    statement: str
    measure: str  # what `Outcome.error` is
    test: _Test
    expected: bool = True  # False: the documentation says that the statement fails
    published: bool = True  # False: ours, such as a corrected statement or a converse

    def run(self, trial: Trial) -> "CheckResult":
        return CheckResult(self, self.test(trial))


@dataclass(frozen=True)
class CheckResult:
    check: Check
    outcome: Outcome

    @property
    def as_expected(self) -> bool:
        return self.outcome.holds == self.check.expected

    @property
    def record(self) -> dict[str, Any]:
        return {
            "name": self.check.name,
            "holds": self.outcome.holds,
            "expected": self.check.expected,
            "published": self.check.published,
            "error": self.outcome.error,
            "measure": self.check.measure,
            "instances": self.outcome.instances,
            "statement": self.check.statement,
            **({"witness": self.outcome.witness} if self.outcome.witness else {}),
        }


class CheckRegistry:
    """Collects the checks of one module; the object is the decorator."""

    def __init__(self) -> None:
        self.registered: list[Check] = []

    def __call__(
        self, name: str, measure: str, *, expected: bool = True, published: bool = True
    ) -> Callable[[_Test], _Test]:
        """Register a function as a check; the first paragraph of its docstring is the statement."""

        def register(test: _Test) -> _Test:
            statement = " ".join((inspect.getdoc(test) or name).split("\n\n")[0].split())
            self.add(Check(name, statement, measure, test, expected, published))
            return test

        return register

    def add(self, new: Check) -> None:
        self.registered.append(new)
