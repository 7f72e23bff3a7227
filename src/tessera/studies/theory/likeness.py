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
    a, b = (x - x.mean(1, keepdim=True) for x in (a, b))
    return (a * b).sum(1) / (a.norm(dim=1) * b.norm(dim=1))


def r_squared(guess: Tensor, truth: Tensor) -> Tensor:
    """1 - |guess - truth|^2 / |truth - its mean|^2 per image, (B,): at most 1, below 0 if worse than the mean."""
    guess, truth = in_double(guess.flatten(1)), in_double(truth.flatten(1))
    spread = (truth - truth.mean(1, keepdim=True)).square().sum(1)
    return 1 - (guess - truth).square().sum(1) / spread


@torch.no_grad()
def likeness(
    ideal: Denoiser,
    model: Denoiser,
    images: Tensor,
    cond: Tensor,
    sigmas: Sequence[float] = SIGMAS,
    seed: int = 0,
    floor: Tensor | None = None,
) -> list[dict[str, Any]]:
    """A row per noise level: both denoise the same noisy images (B, C, H, W), the model's output is the truth.

    With `floor` (C, H, W), the mean image of the data, the same for departures from it: most of an
    image is background, which any denoiser gets right.
    """
    noise = seeded_noise([(seed << 32) + n for n in range(len(images))], images.shape[1:], images.device)
    rows = []
    for sigma in sigmas:
        x, level = images + sigma * noise, torch.tensor(sigma, device=images.device)
        ours, theirs = ideal(x, level, cond).float(), model(x, level, cond).float()
        row: dict[str, Any] = {"sigma": sigma, "n": len(images), **compared(ours, theirs, seed)}
        if floor is not None:
            row["beyond_mean"] = compared(ours - floor, theirs - floor, seed)
        rows.append(row)
    return rows


def compared(ours: Tensor, theirs: Tensor, seed: int) -> dict[str, Any]:
    rng = generator(seed)
    return {
        "pearson_r": mean_interval(pearson_r(ours, theirs).cpu().numpy(), rng).to_dict(),
        "r_squared": mean_interval(r_squared(ours, theirs).cpu().numpy(), rng).to_dict(),
    }
