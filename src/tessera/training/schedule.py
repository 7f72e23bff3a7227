"""The learning rate as a function of images seen: EDM2's Eq. 67, and optionally a linear cooldown to 0."""

import math

from tessera.config import TrainingConfig


def learning_rate(images_seen: float, settings: TrainingConfig) -> float:
    """Rises linearly over `lr_warmup` images, falls as 1 / sqrt after `lr_decay_start` steps; 0 turns either off.

    Over the last `cooldown` of `total` images it falls linearly to 0: a short training ends as sharp as a longer one
    would. `images_seen` counts images before the step, so with a warmup the very first step has rate 0.
    """
    rate = settings.lr
    if settings.lr_decay_start > 0:
        rate /= math.sqrt(max(images_seen / (settings.lr_decay_start * settings.batch), 1.0))
    if settings.lr_warmup > 0:
        rate *= min(images_seen / settings.lr_warmup, 1.0)
    if settings.cooldown > 0:
        rate *= min(max(settings.total - images_seen, 0.0) / settings.cooldown, 1.0)
    return rate
