"""Noise becomes pictures: any denoiser, any schedule, one seed per picture."""

from tessera.sampler.guidance import guided
from tessera.sampler.noise import noise_levels, seeded_noise
from tessera.sampler.sample import sample
from tessera.sampler.solvers import Churn, Step, euler, heun

__all__ = ["Churn", "Step", "euler", "guided", "heun", "noise_levels", "sample", "seeded_noise"]
