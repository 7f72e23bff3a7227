"""The learning rate, as a function of images seen: EDM2's Eq. 67, and on request a fall to 0 at the end."""

import math


def learning_rate(
    images_seen: float,
    *,
    batch: int,
    reference: float = 0.012,
    decay_batches: float = 35_000,
    rampup_images: float = 10e6,
    cooldown_images: float = 0,
    total_images: float = math.inf,
) -> float:
    """Rises linearly over `rampup_images`, falls as 1 / sqrt after `decay_batches`; 0 switches either off.

    Over the last `cooldown_images` of `total_images` it falls linearly to 0: a short training ends as sharp as a
    longer one would. `images_seen` counts images before the step, so with a ramp the very first step has rate 0.
    """
    rate = reference
    if decay_batches > 0:
        rate /= math.sqrt(max(images_seen / (decay_batches * batch), 1.0))
    if rampup_images > 0:
        rate *= min(images_seen / rampup_images, 1.0)
    if cooldown_images > 0:
        rate *= min(max(total_images - images_seen, 0.0) / cooldown_images, 1.0)
    return rate
