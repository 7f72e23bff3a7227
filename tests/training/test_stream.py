"""The endless stream: sample i does not depend on its batch."""

import itertools

import pytest
import torch

from tessera.conditioning import LocationGrid
from tessera.scenes import Scenes
from tessera.training.stream import Stream

STREAM = Stream(Scenes(objects=(1, 3)), 16, LocationGrid(cells=8, label="random"), seed=3)


@pytest.fixture(scope="module")
def sixteen():
    return STREAM.batch(0, 16)


def same(batch, other):
    """Labels and numbers exactly; pixels up to the rounding of another batch shape."""
    assert torch.equal(batch.index, other.index) and torch.equal(batch.cond, other.cond)
    assert torch.allclose(batch.images, other.images, atol=1e-5)


def test_images_and_conditions_have_their_shapes(sixteen):
    assert sixteen.images.shape == (16, 3, 16, 16) and sixteen.cond.shape == (16, 64)
    assert sixteen.images.abs().max() <= 1 and sixteen.images.std() > 0.05
    assert sixteen.cond.sum(1).min() >= 1 and sixteen.cond.sum(1).max() <= 3


def test_a_sample_does_not_depend_on_its_batch(sixteen):
    same(STREAM.batch(5, 4), sixteen[5:9])
    shuffled = torch.tensor([9, 2, 14])
    made = STREAM.samples(shuffled)
    assert torch.equal(made.cond, sixteen.cond[shuffled])
    assert torch.allclose(made.images, sixteen.images[shuffled], atol=1e-5)


def test_its_scenes_are_those_of_the_scene_stream(sixteen):
    drawn = Scenes(objects=(1, 3)).draw(6, seed=3)
    assert torch.equal(STREAM.conditioner.encode(drawn, torch.arange(6), 3), sixteen.cond[:6])


@pytest.mark.parametrize("render_batch", [1, 8, 12])
def test_steps_do_not_depend_on_the_render_batch(sixteen, render_batch):
    steps = list(itertools.islice(STREAM.steps(4, batch=4, render_batch=render_batch), 3))
    for turn, step in enumerate(steps):
        same(step, sixteen[4 * turn + 4 : 4 * turn + 8])


def test_a_resumed_stream_is_bit_for_bit_the_same():
    whole = list(itertools.islice(STREAM.steps(0, batch=4, render_batch=8), 4))
    resumed = next(STREAM.steps(12, batch=4, render_batch=8))
    assert torch.equal(whole[3].images, resumed.images)


def test_processes_share_every_step(sixteen):
    for step in range(2):
        parts = [list(itertools.islice(STREAM.steps(0, 8, 16, rank=rank, world=2), 2))[step] for rank in (0, 1)]
        assert torch.cat([part.index for part in parts]).tolist() == list(range(8 * step, 8 * step + 8))
        assert torch.equal(parts[1].cond, sixteen.cond[8 * step + 4 : 8 * step + 8])


def test_another_seed_is_another_stream(sixteen):
    other = Stream(Scenes(objects=(1, 3)), 16, LocationGrid(cells=8), seed=4).batch(0, 4)
    assert not torch.allclose(other.images, sixteen.images[:4], atol=0.05)
