"""Noise becomes images: any denoiser, any schedule, one seed per image."""

from tessera.sampling.guidance import guided
from tessera.sampling.sample import sample
from tessera.sampling.schedule import noise_levels, seeded_noise
from tessera.sampling.solvers import SamplingStep, Stochasticity, euler, heun

__all__ = [
    "SamplingStep",
    "Stochasticity",
    "euler",
    "guided",
    "heun",
    "noise_levels",
    "sample",
    "seeded_noise",
]
