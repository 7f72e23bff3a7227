"""Composition at inference time: K_max of a model with its conditions composed in each way, and the cost."""

from typing import Any

from tessera.evaluation.pipeline import EvaluationConfig, ScoredSamples

ABOUT = {
    "plain": "all conditions at once",
    "sum": "one condition at a time; the changes are added",
    "project": "every object from a pass with its condition alone",
    "localize": "every cell from a pass with the conditions near it",
}
SHOWN = 4  # images of each K in a figure
KEPT = ("k", "n", "all_found", "exact", "allowed_extras", "two_missing", "found", "extra")


def passes(composed: Any, samples: ScoredSamples, evaluation: EvaluationConfig) -> float:
    """Images denoised for each image that the plain model would denoise."""
    calls = 2 * evaluation.steps - 1  # Heun takes two calls in every step but the last
    return composed.passes / (len(samples.prompts) * calls)
