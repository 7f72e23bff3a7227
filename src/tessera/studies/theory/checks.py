"""All statements of the theory, in the order of the paper."""

from collections.abc import Callable

from tessera.studies.theory import feature_checks, lemma_checks, noise_checks
from tessera.studies.theory.check import Check, CheckResult, Trial

CHECKS: tuple[Check, ...] = (
    *lemma_checks.check.registered,
    *noise_checks.check.registered,
    *feature_checks.check.registered,
)


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
