"""The circles task and the reading of size and color."""

import pytest
import torch

from tessera.errors import UserError
from tessera.studies.swingby.circles import CODES, COMPOSITION, TRAINING_CORNERS, CirclesTask, blurred, disc
from tessera.studies.swingby.coordinates import coordinates, measure

ALL = (0, 1, 2, 3)


def classes(measured, task):
    """The nearer class of each concept, (B, 2) in {0, 1}, or -1 where no disc was found."""
    near = (coordinates(measured, task) > 0.5).long()
    return torch.where(measured.found[:, None], near, -1)


def test_an_image_depends_on_its_number_alone():
    task = CirclesTask(gap=0.4, seed=3)
    many = task.batch(torch.arange(20))
    few = task.batch(torch.tensor([17, 4]))
    assert torch.equal(many.images[[17, 4]], few.images)
    assert torch.equal(many.cond[[17, 4]], few.cond)
    assert not torch.equal(many.images, CirclesTask(gap=0.4, seed=4).batch(torch.arange(20)).images)


def test_training_never_shows_the_composition():
    corner = CirclesTask().batch(torch.arange(300)).corner
    assert sorted(corner.unique().tolist()) == list(TRAINING_CORNERS)
    assert torch.bincount(corner).tolist() == [100, 100, 100]
    assert CODES[COMPOSITION] == (1, 1)


@pytest.mark.parametrize("gap", [0.1, 0.4, 0.8])
def test_sizes_and_colors_are_spread_as_the_task_says(gap):
    batch = CirclesTask(gap=gap).batch(torch.arange(1000), ALL)
    assert batch.images.shape == (1000, 3, 32, 32)
    assert batch.images.min() >= -1 and batch.images.max() <= 1
    for corner, (blue, small) in enumerate(CODES):
        radius, red, green, blueness = batch.cond[batch.corner == corner].T
        middle = 0.25 if small else 0.65
        assert radius.min() >= middle - 0.15 - 1e-6 and radius.max() <= middle + 0.15 + 1e-6
        assert radius.mean() == pytest.approx(middle, abs=0.02)
        assert red.mean() == pytest.approx(0.5 + gap * (0.5 - blue), abs=0.02)
        assert blueness.mean() == pytest.approx(0.5 - gap * (0.5 - blue), abs=0.02)
        assert (green - (0.5 - gap / 2)).abs().max() <= gap / 8 + 1e-6
    assert batch.center.abs().max() <= 0.5


def test_conditions_of_samples_are_the_means_of_the_corner():
    task = CirclesTask(gap=0.4)
    conditions = task.conditions(COMPOSITION, 5)
    assert conditions.shape == (5, 4)
    assert conditions[0].tolist() == pytest.approx([0.25, 0.3, 0.3, 0.7])


def test_a_disc_has_its_area_and_the_blur_keeps_it():
    mask = disc(torch.zeros(1, 2), torch.tensor([0.5]), 64)
    assert mask.mean() * 4 == pytest.approx(3.14159 * 0.25, rel=0.01)
    soft = blurred(mask, 1.5)
    assert soft.sum() == pytest.approx(mask.sum().item(), rel=1e-4)
    assert soft[0, 0, 32, 32] == pytest.approx(1) and 0.2 < soft[0, 0, 32, 48] < 0.8


@pytest.mark.parametrize("gap", [0.1, 0.2, 0.5, 0.8])
def test_rendered_images_are_read_without_error(gap):
    task = CirclesTask(gap=gap, seed=11)
    batch = task.batch(torch.arange(500), ALL)
    measured = measure(batch.images)
    assert measured.found.all()
    assert torch.equal(classes(measured, task), torch.tensor(CODES)[batch.corner])
    assert (measured.radius - batch.cond[:, 0]).abs().max() < 0.06
    assert (measured.radius - batch.cond[:, 0]).abs().mean() < 0.01
    assert (measured.color - batch.cond[:, 1:]).abs().quantile(0.95) < 0.05
    assert (measured.center - batch.center).norm(dim=1).quantile(0.95) < 0.05


def test_pixel_noise_hardly_disturbs_the_reading():
    task = CirclesTask(gap=0.3)
    batch = task.batch(torch.arange(600), ALL)
    grain = torch.randn(batch.images.shape, generator=torch.Generator().manual_seed(0))
    right = classes(measure(batch.images + 0.1 * grain), task) == torch.tensor(CODES)[batch.corner]
    assert right.float().mean() > 0.998


def test_coordinates_grow_with_the_object_they_measure():
    task = CirclesTask(gap=0.4, noise=0.0)
    index = torch.zeros(9, dtype=torch.long)
    share = torch.linspace(0, 1, 9)
    cond = task.mean_condition(torch.stack([share, 1 - share], dim=1))
    measured = measure(task.draw(index, cond, torch.zeros(9, 2)))
    found = coordinates(measured, task)
    assert (found[:, 0] - share).abs().max() < 0.08 and (found[:, 1] - (1 - share)).abs().max() < 0.08


def test_an_empty_image_has_coordinates_of_one_half():
    task = CirclesTask()
    measured = measure(torch.full((3, 3, 32, 32), 0.8))
    assert not measured.found.any()
    assert torch.equal(coordinates(measured, task), torch.full((3, 2), 0.5))
    assert (classes(measured, task) == -1).all()


def test_other_sizes_work_too():
    task = CirclesTask(gap=0.5, size=64)
    batch = task.batch(torch.arange(60), ALL)
    assert torch.equal(classes(measure(batch.images), task), torch.tensor(CODES)[batch.corner])


@pytest.mark.parametrize("options", [{"gap": 0.0}, {"gap": 0.9}, {"size_gap": 1.0}, {"size": 4}, {"noise": -1.0}])
def test_tasks_without_meaning_are_refused(options):
    with pytest.raises(UserError):
        CirclesTask(**options)
