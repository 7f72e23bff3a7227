"""All statements of the theory, in the order of the paper, and the study `reproduce theory` that checks them."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from rich.table import Table

from tessera.console import progress, publish
from tessera.errors import UserError
from tessera.provenance import provenance
from tessera.records import TheoryRecord, new_record
from tessera.studies.theory import feature_checks, lemma_checks, noise_checks
from tessera.studies.theory.check import Check, CheckResult, Trial

CHECKS: tuple[Check, ...] = (*lemma_checks.check, *noise_checks.check, *feature_checks.check)


def run_checks(trial: Trial | None = None, after_each: Callable[[], None] = lambda: None) -> list[CheckResult]:
    """Every statement tried; the same seed gives the same numbers.

    Args:
        trial: instances, conditions and seed; by default 200 instances and six conditions.
        after_each: called after each check, for a progress bar.

    Returns:
        A result for each check: whether it holds, whether that is expected, and the numbers behind it.
    """
    results = []
    for check in CHECKS:
        results.append(check.run(trial or Trial()))
        after_each()
    return results


@dataclass(frozen=True)
class Theory:
    """Check the theory's statements on distributions with known scores; exit code 1 if a result is not as expected.

    Statements of the source that do not hold as written are among them, expected to fail, with a witness.
    """

    #: Random instances for each statement about KL divergences.
    instances: int = 200
    #: Conditions of the compositions; all their subsets are tried.
    conditions: int = 6
    #: Random seed.
    seed: int = 0
    #: Print the record on stdout.
    json: bool = False

    def run(self) -> int:
        if self.instances < 1 or not 1 <= self.conditions <= 8:
            raise UserError("There must be at least one instance, and 1 to 8 conditions.")
        with progress("checking", len(CHECKS)) as advance:
            found = run_checks(Trial(self.instances, self.conditions, self.seed), advance)
        surprises = [result.check.name for result in found if not result.as_expected]
        record = {
            "checks": [result.record for result in found],
            "as_expected": not surprises,
            "seed": self.seed,
            "conditions": self.conditions,
            "provenance": provenance(torch.device("cpu")),
        }
        lines = [f"Not as expected: {name}." for name in surprises]
        publish(new_record(TheoryRecord, record), self.json, None, _table(found), *lines)
        return 1 if surprises else 0


def _table(found: list[CheckResult]) -> Table:
    """A row per statement."""
    rows = Table("statement", "holds", "expected", "error", "meaning of the error", "instances")
    for result in found:
        check, outcome = result.check, result.outcome
        style = None if result.as_expected else "bold red"
        words = [("yes" if value else "no") for value in (outcome.holds, check.expected)]
        rows.add_row(check.name, *words, f"{outcome.error:.2g}", check.measure, str(outcome.instances), style=style)
    return rows
