"""Statements as checks: a function tried on exact distributions says whether the numbers bear a statement out.

A check is one decorated function; its docstring's first paragraph is the statement. It yields errors, none of which may
be larger than the bound, or returns an `Outcome`::

    check = CheckRegistry()

    @check("lemma 1", "largest difference of scores", 1e-10)
    def _lemma1(trial: Trial) -> Iterator[float]:
        \"""The score of a CPC whose unconditional distribution factorizes is the local conditional score.\"""
        ...
        yield error
"""

import inspect
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
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


def at_most(bound: float, errors: Sequence[Any], witness: dict[str, Any] | None = None) -> Outcome:
    """The statement holds if no error is larger than the bound."""
    worst = largest(errors)
    return Outcome(worst <= bound, worst, len(errors), witness or {})


def largest(errors: Sequence[Any]) -> float:
    return float(max(float(error) for error in errors))


_Test = Callable[[Trial], Outcome | Iterable[Any]]


@dataclass(frozen=True)
class Check:
    """One statement and the function that tries it."""

    name: str
    statement: str
    measure: str  # what `Outcome.error` is
    test: _Test
    bound: float = math.inf  # of errors that `test` yields
    expected: bool = True  # False: the documentation says that the statement fails
    published: bool = True  # False: ours, such as a corrected statement or a converse

    def run(self, trial: Trial) -> "CheckResult":
        found = self.test(trial)
        return CheckResult(self, found if isinstance(found, Outcome) else at_most(self.bound, [*found]))


@dataclass(frozen=True)
class CheckResult:
    check: Check
    outcome: Outcome

    @property
    def as_expected(self) -> bool:
        return self.outcome.holds == self.check.expected

    @property
    def record(self) -> dict[str, Any]:
        names = ("name", "statement", "expected", "published", "measure")
        record = {name: getattr(self.check, name) for name in names} | asdict(self.outcome)
        return {name: value for name, value in record.items() if value != {}}  # not all have a witness


class CheckRegistry(list[Check]):
    """Collects the checks of one module; the object is the decorator."""

    def __call__(
        self, name: str, measure: str, bound: float = math.inf, *, expected: bool = True, published: bool = True
    ) -> Callable[[_Test], _Test]:
        """Register a function as a check; the first paragraph of its docstring is the statement."""

        def register(test: _Test) -> _Test:
            statement = " ".join((inspect.getdoc(test) or name).split("\n\n")[0].split())
            self.append(Check(name, statement, measure, test, bound, expected, published))
            return test

        return register
