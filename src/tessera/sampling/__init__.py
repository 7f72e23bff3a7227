"""Samplers: any denoiser, any noise schedule, one seed per image."""

from tessera.sampling.guidance import guided
from tessera.sampling.sample import sample, sample_batches
from tessera.sampling.schedule import noise_levels, seeded_noise
from tessera.sampling.solvers import SamplingStep, euler, heun, last_x
from tessera.sampling.trajectory import Trajectory, collect, sample_trajectory

__all__ = [
    "SamplingStep",
    "Trajectory",
    "collect",
    "euler",
    "guided",
    "heun",
    "last_x",
    "noise_levels",
    "sample",
    "sample_batches",
    "sample_trajectory",
    "seeded_noise",
]
