"""The verb `theory check`: every statement of the theory, tried on exact distributions."""

from dataclasses import dataclass

import torch
from rich.table import Table

from tessera.console import progress, publish
from tessera.errors import UserError
from tessera.provenance import provenance
from tessera.studies.theory.check import Check, Trial
from tessera.studies.theory.checks import RUNNERS, run_checks


@dataclass(frozen=True)
class TheoryCheck:
    """Try the theory's statements on distributions whose scores are known; leaves with 1 if one surprises us.

    Statements of the source that do not hold as written are among them, expected to fail, with a witness.
    """

    instances: int = 200
    """Random instances for each statement about KL divergences."""
    conditions: int = 6
    """Conditions of the compositions; all their subsets are tried."""
    seed: int = 0
    """Where chance begins."""
    json: bool = False
    """Print the record on stdout."""

    def run(self) -> int:
        if self.instances < 1 or not 1 <= self.conditions <= 8:
            raise UserError("There must be at least one instance, and 1 to 8 conditions.")
        trial = Trial(self.instances, self.conditions, self.seed)
        with progress("checking", len(RUNNERS)) as advance:
            found = run_checks(trial, advance)
        surprises = [check.name for check in found if not check.as_expected]
        record = {
            "checks": [check.record for check in found],
            "as_expected": not surprises,
            "seed": self.seed,
            "conditions": self.conditions,
            "provenance": provenance(torch.device("cpu")),
        }
        publish(record, self.json, None, table(found), *(f"Not as expected: {name}." for name in surprises))
        return 1 if surprises else 0


def table(found: list[Check]) -> Table:
    """A row per statement, for people."""
    rows = Table("statement", "holds", "expected", "error", "meaning of the error", "instances")
    for check in found:
        style = None if check.as_expected else "bold red"
        words = [("yes" if value else "no") for value in (check.holds, check.expected)]
        rows.add_row(
            check.name, *words, f"{check.error:.2g}", check.measure, str(check.instances), style=style
        )
    return rows
