"""How alike the denoised images of two denoisers are, per noise level."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tessera.devices import in_double
from tessera.models.contract import Denoiser
from tessera.rng import generator
from tessera.sampling.schedule import seeded_noise
from tessera.stats import mean_interval

SIGMAS = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 20.0)


def pearson_r(a: Tensor, b: Tensor) -> Tensor:
    """Correlation of the pixels of each pair of images, (B,)."""
    a, b = (in_double(x.flatten(1)) for x in (a, b))
    return torch.cosine_similarity(a - a.mean(1, keepdim=True), b - b.mean(1, keepdim=True))


def r_squared(guess: Tensor, truth: Tensor) -> Tensor:
    """1 - |guess - truth|^2 / |truth - its mean|^2 per image, (B,): at most 1, below 0 if worse than the mean."""
    guess, truth = in_double(guess.flatten(1)), in_double(truth.flatten(1))
    return 1 - (guess - truth).square().mean(1) / truth.var(1, correction=0)


@torch.no_grad()
def likeness(
    ideal: Denoiser,
    model: Denoiser,
    images: Tensor,
    cond: Tensor,
    floor: Tensor,
    sigmas: Sequence = SIGMAS,
    seed: int = 0,
) -> list[dict[str, Any]]:
    """A row per noise level: both denoise the same noisy images (B, C, H, W), the model's output is the truth.

    And the same for departures from `floor` (C, H, W), the mean image of the data: most of an image is background,
    which any denoiser gets right.
    """
    noise = seeded_noise([(seed << 32) + n for n in range(len(images))], images.shape[1:], images.device)
    rows = []
    for sigma in sigmas:
        x, level = images + sigma * noise, torch.tensor(sigma, device=images.device)
        ours, theirs = ideal(x, level, cond).float(), model(x, level, cond).float()
        beyond = _compared(ours - floor, theirs - floor, seed)
        rows.append({"sigma": sigma, "n": len(images), **_compared(ours, theirs, seed), "beyond_mean": beyond})
    return rows


def _compared(ours: Tensor, theirs: Tensor, seed: int) -> dict[str, Any]:
    rng = generator(seed)
    values = {"pearson_r": pearson_r(ours, theirs), "r_squared": r_squared(ours, theirs)}
    return {name: mean_interval(value.cpu().numpy(), rng).to_dict() for name, value in values.items()}
