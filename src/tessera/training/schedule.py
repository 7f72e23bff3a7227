"""The learning rate, as a function of pictures seen (EDM2 Eq. 67)."""

import math


def learning_rate(
    images_seen: float,
    *,
    batch: int,
    reference: float = 0.012,
    decay_batches: float = 35_000,
    rampup_images: float = 10e6,
) -> float:
    """Rises linearly over `rampup_images`, falls as 1 / sqrt after `decay_batches`; 0 switches either off.

    `images_seen` counts pictures before the step, so with a ramp the very first step has rate 0.
    """
    rate = reference
    if decay_batches > 0:
        rate /= math.sqrt(max(images_seen / (decay_batches * batch), 1.0))
    if rampup_images > 0:
        rate *= min(images_seen / rampup_images, 1.0)
    return rate
