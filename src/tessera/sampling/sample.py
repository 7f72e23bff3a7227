"""From seeds and conditions to images."""

from collections.abc import Iterator, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from tessera.errors import UserError
from tessera.models.contract import Denoiser
from tessera.sampling.schedule import churn_noise, noise_levels, seeded_noise
from tessera.sampling.solvers import SamplingStep, Solver, heun, last_x


def sample(
    denoise: Denoiser,
    cond: Tensor | None,
    size: int,
    seeds: Sequence[int] | Tensor,
    *,
    steps: int = 32,
    batch: int = 64,
    channels: int = 3,
    sigmas: Tensor | None = None,
    solver: Solver = heun,
    s_churn: float = 0.0,
    device=None,
) -> Tensor:
    """One image per seed; image i depends on seed i and condition i alone, whatever the batch.

    Args:
        denoise: a denoiser, `denoise(x, sigma, cond) -> clean`, or a `Model`.
        cond: conditions (len(seeds), ...) or (1, ...) for all, or None.
        size: side of the images in pixels.
        seeds: one per image.
        steps: noise levels of the schedule of Karras et al. (2022), unless `sigmas` are given.
        batch: images denoised together.
        channels: channels of an image.
        sigmas: falling noise levels, the last one 0.
        solver: `heun` or `euler`, or any generator of steps like them.
        s_churn: strength of stochastic sampling (S_churn, Karras et al. 2022), 0 for none.
        device: where to sample; by default where the network is.

    Returns:
        Images (len(seeds), channels, size, size).

    Example:
        >>> import tessera
        >>> model = tessera.load("exp1")
        >>> cond = model.conditioner.at([(0.65, 0.65), (0.25, 0.65)])
        >>> tessera.sample(model, cond, model.size, seeds=range(2), steps=4).shape
        torch.Size([2, 3, 64, 64])
    """
    sigmas = noise_levels(steps) if sigmas is None else sigmas
    device = device or home(denoise, cond)
    batches = sample_batches(denoise, cond, size, seeds, sigmas, batch, channels, solver, s_churn, device)
    images = [last_x(steps) for steps in batches]
    return torch.cat(images) if images else torch.empty(0, channels, size, size, device=device)


def sample_batches(
    denoise: Denoiser,
    cond: Tensor | None,
    size: int,
    seeds: Sequence[int] | Tensor,
    sigmas: Tensor | None = None,
    batch: int = 64,
    channels: int = 3,
    solver: Solver = heun,
    s_churn: float = 0.0,
    device=None,
) -> Iterator[Iterator[SamplingStep]]:
    """The solver's steps of every batch of `sample` in turn."""
    seeds = [int(seed) for seed in seeds]
    cond = matched(cond, len(seeds))
    device = device or home(denoise, cond)
    sigmas = noise_levels() if sigmas is None else sigmas
    for start in range(0, len(seeds), batch):
        rows = slice(start, start + batch)
        given = None if cond is None else cond[rows].to(device)
        x = seeded_noise(seeds[rows], (channels, size, size), device) * sigmas[0].item()
        stochastic = {"s_churn": s_churn, "noise": churn_noise(seeds[rows])} if s_churn else {}
        yield solver(partial(denoise, cond=given), x, sigmas, **stochastic)


def matched(cond: Tensor | None, count: int) -> Tensor | None:
    """One condition per image."""
    if cond is None or cond.shape[0] == count:
        return cond
    if cond.shape[0] != 1:
        raise UserError(f"There are {cond.shape[0]} conditions for {count} seeds.")
    return cond.expand(count, *cond.shape[1:])


def home(denoise: Denoiser, cond: Tensor | None) -> torch.device:
    """The device of the network, else of the condition."""
    network = getattr(denoise, "denoiser", denoise)  # a loaded model holds its network
    if isinstance(network, nn.Module):
        for parameter in network.parameters():
            return parameter.device
    return cond.device if cond is not None else torch.device("cpu")
