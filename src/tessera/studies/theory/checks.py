"""All statements of the theory, in the order of the paper."""

from collections.abc import Callable

from tessera.studies.theory import feature_checks, lemma_checks, noise_checks
from tessera.studies.theory.check import Check, Runner, Trial

RUNNERS: tuple[Runner, ...] = (*lemma_checks.CHECKS, *noise_checks.CHECKS, *feature_checks.CHECKS)


def run_checks(trial: Trial, after_each: Callable[[], None] = lambda: None) -> list[Check]:
    """Every statement tried; the same seed gives the same numbers."""
    found = []
    for runner in RUNNERS:
        found.append(runner(trial))
        after_each()
    return found
