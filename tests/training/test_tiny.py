"""The tiny preset: a few minutes on two cores must end in pictures with things at the asked places."""

import time

import pytest
import torch

from tessera.experiments import settings_for
from tessera.sampler import noise_levels, sample
from tessera.scenes.vocabulary import LOCATIONS
from tessera.training.run import load_run, train_run


def things_at(pictures, places):
    """How much each picture differs, around each place, from what most pictures show there: (B, places)."""
    unusual = (pictures - pictures.median(0).values).abs().mean(1)  # (B, H, W)
    size = pictures.shape[-1]
    corners = [(int(y * size), int(x * size)) for x, y in places]
    return torch.stack([unusual[:, r - 1 : r + 2, c - 1 : c + 2].mean((1, 2)) for r, c in corners], 1)


@pytest.mark.slow
def test_tiny_training_puts_things_at_asked_places(tmp_path):
    begun = time.process_time()
    train_run(settings_for("exp1C", "tiny"), tmp_path, tell_person=lambda message: None)
    assert time.process_time() - begun < 360  # of one thread: three minutes of two cores
    assert placement(load_run(tmp_path, std=0.10)) > 0.95


def placement(model):
    """How often an asked place shows more of a thing than a place nobody asked for: 1 always, 0.5 by chance."""
    chance = torch.Generator().manual_seed(0)
    asked = torch.stack([torch.randperm(12, generator=chance)[:2] for _ in range(48)])  # two of twelve places
    cond = torch.cat([model.tell.at([LOCATIONS[n] for n in row]) for row in asked.tolist()])
    pictures = sample(model.denoiser, cond, model.size, range(48), sigmas=noise_levels(12))
    seen = things_at(pictures, LOCATIONS)
    wanted = torch.zeros(48, 12, dtype=torch.bool).scatter(1, asked, True)
    far = torch.tensor([[min_distance(p, row) > 0.15 for p in LOCATIONS] for row in asked.tolist()])
    return float((seen[wanted][:, None] > seen[far][None]).float().mean())


def min_distance(place, row):
    return min(max(abs(place[0] - LOCATIONS[n][0]), abs(place[1] - LOCATIONS[n][1])) for n in row)
