"""Training of the detector, and the synthetic images it learns from."""

import pytest
import torch

from programs import call_program
from synthetic_data import ABSENT, THERE, synthetic_data, target_cells
from tessera.evaluation.detector import load_detector, save_detector
from tessera.evaluation.network import DetectorNetwork
from train_detector import heat, learn, loss, measure_range

CPU = torch.device("cpu")


def test_a_batch_is_a_function_of_its_number():
    one, two, other = synthetic_data(5, 3, 9, CPU), synthetic_data(5, 3, 9, CPU), synthetic_data(5, 4, 9, CPU)
    assert all(torch.equal(a, b) for a, b in zip(one.columns(), two.columns()))
    assert not torch.equal(one.images, other.images)


def test_grafts_change_some_images_of_a_batch():
    plain, grafted = synthetic_data(5, 3, 12, CPU), synthetic_data(5, 3, 12, CPU, grafted=1.0)
    assert plain.images.shape == grafted.images.shape and not torch.equal(plain.images, grafted.images)
    assert (grafted.well_formed < plain.well_formed).any()


def test_true_locations_are_inside_and_heat_peaks_at_it():
    batch = synthetic_data(6, 0, 12, CPU)
    there = batch.state == THERE
    assert ((batch.location[there] > 0) & (batch.location[there] < 1)).all()
    target, counts = heat(batch)
    cell, within = target_cells(batch.location)
    rows, slots = torch.nonzero(there, as_tuple=True)
    assert (target.flatten(1)[rows, cell[rows, slots]] > 0.5).all()
    assert counts.flatten(1)[rows, cell[rows, slots]].all()
    assert ((within >= 0) & (within <= 1))[there].all()
    empty = (batch.state == ABSENT).all(1)
    assert (target[empty] == 0).all()


def test_however_short_the_time_one_step_is_learned():
    steps = list(learn(DetectorNetwork((8, 8, 8, 8), (0, 0, 0, 0)), 64, 2, 1e-3, 7, CPU, minutes=1e-9))
    assert [step.images for step in steps] == [2]


@pytest.mark.slow
def test_learning_lowers_the_loss_and_survives_saving(tmp_path):
    torch.manual_seed(0)
    network = DetectorNetwork((8, 16, 16, 16), (0, 0, 1, 1))
    lesson = synthetic_data(7, 0, 24, CPU)
    before = loss(network(lesson.images), lesson).item()
    losses = [float(step.loss) for step in learn(network, 48 * 6, 6, 3e-3, 7, CPU)]
    assert len(losses) == 48
    assert loss(network.eval()(lesson.images), lesson).item() < 0.8 * before
    save_detector(tmp_path, network, measure_range(network, 8, CPU, images=256))
    detections, ood = load_detector(tmp_path).detect(lesson.images[:2])
    assert len(detections) == 2 and ood.isfinite().all()


def test_training_a_detector_on_nothing_is_refused(tmp_path, capsys):
    for words in (("--total", 0), ("--batch", 0), ("--minutes", -1), ("--rate", 0), ("--grafted", 2)):
        assert call_program("train_detector", "--out", tmp_path / "detector", *words, "--device", "cpu") == 2
    assert not (tmp_path / "detector").exists()
