"""Numpy's chance, keyed by whole numbers. (That of scenes and images is `tessera.scenes.random`.)"""

import numpy as np


def generator(*key: int) -> np.random.Generator:
    """The generator that belongs to these numbers, a seed first; negative ones are as good as any."""
    return np.random.default_rng([number % 2**64 for number in key])
