"""The tiny preset: a few minutes on two cores must end in images with objects at the prompted locations."""

import time

import pytest
import torch

from tessera.config import settings_for
from tessera.models.run_snapshots import load_run
from tessera.sampling import noise_levels, sample
from tessera.scenes.vocabulary import LOCATIONS
from tessera.training.run_folder import train_run


def objects_at(images, locations):
    """How much each image differs, around each location, from what most images show there: (B, locations)."""
    unusual = (images - images.median(0).values).abs().mean(1)  # (B, H, W)
    size = images.shape[-1]
    corners = [(int(y * size), int(x * size)) for x, y in locations]
    return torch.stack([unusual[:, r - 1 : r + 2, c - 1 : c + 2].mean((1, 2)) for r, c in corners], 1)


@pytest.mark.slow
def test_tiny_training_puts_objects_at_the_prompted_locations(tmp_path):
    begun = time.process_time()
    train_run(settings_for("exp1C", "tiny"), tmp_path, on_message=lambda message: None)
    assert time.process_time() - begun < 360  # of one thread: three minutes of two cores
    assert placement(load_run(tmp_path, std=0.10)) > 0.95


def placement(model):
    """How often an asked location shows more of an object than a location nobody asked for: 1 always, 0.5 by chance."""
    chance = torch.Generator().manual_seed(0)
    requested = torch.stack([torch.randperm(12, generator=chance)[:2] for _ in range(48)])  # two of twelve locations
    cond = torch.cat([model.conditioner.at([LOCATIONS[n] for n in row]) for row in requested.tolist()])
    images = sample(model.denoiser, cond, model.size, range(48), sigmas=noise_levels(12))
    seen = objects_at(images, LOCATIONS)
    wanted = torch.zeros(48, 12, dtype=torch.bool).scatter(1, requested, True)
    far = torch.tensor([[min_distance(p, row) > 0.15 for p in LOCATIONS] for row in requested.tolist()])
    return float((seen[wanted][:, None] > seen[far][None]).float().mean())


def min_distance(location, row):
    return min(max(abs(location[0] - LOCATIONS[n][0]), abs(location[1] - LOCATIONS[n][1])) for n in row)
