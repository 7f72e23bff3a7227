"""The verb `theory check`: every statement of the theory, tried on exact distributions."""

from dataclasses import dataclass

import torch
from rich.table import Table

from tessera.console import progress, publish
from tessera.errors import UserError
from tessera.provenance import provenance
from tessera.records import TheoryRecord, new_record
from tessera.studies.theory.check import CheckResult, Trial
from tessera.studies.theory.checks import CHECKS, run_checks


@dataclass(frozen=True)
class Theory:
    """Check the theory's statements on distributions with known scores; exit code 1 if a result is not as expected.

    Statements of the source that do not hold as written are among them, expected to fail, with a witness.
    """

    instances: int = 200
    """Random instances for each statement about KL divergences."""
    conditions: int = 6
    """Conditions of the compositions; all their subsets are tried."""
    seed: int = 0
    """Random seed."""
    json: bool = False
    """Print the record on stdout."""

    def run(self) -> int:
        if self.instances < 1 or not 1 <= self.conditions <= 8:
            raise UserError("There must be at least one instance, and 1 to 8 conditions.")
        trial = Trial(self.instances, self.conditions, self.seed)
        with progress("checking", len(CHECKS)) as advance:
            found = run_checks(trial, advance)
        surprises = [result.check.name for result in found if not result.as_expected]
        record = {
            "checks": [result.record for result in found],
            "as_expected": not surprises,
            "seed": self.seed,
            "conditions": self.conditions,
            "provenance": provenance(torch.device("cpu")),
        }
        publish(
            new_record(TheoryRecord, record),
            self.json,
            None,
            table(found),
            *(f"Not as expected: {name}." for name in surprises),
        )
        return 1 if surprises else 0


def table(found: list[CheckResult]) -> Table:
    """A row per statement."""
    rows = Table("statement", "holds", "expected", "error", "meaning of the error", "instances")
    for result in found:
        check, outcome = result.check, result.outcome
        style = None if result.as_expected else "bold red"
        words = [("yes" if value else "no") for value in (outcome.holds, check.expected)]
        error, instances = f"{outcome.error:.2g}", str(outcome.instances)
        rows.add_row(check.name, *words, error, check.measure, instances, style=style)
    return rows
