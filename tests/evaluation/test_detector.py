"""The detector and the detector around it."""

import json

import pytest
import torch

from tessera.errors import UserError
from tessera.evaluation.detector import load_detector, save_detector
from tessera.evaluation.network import DetectorNetwork, fold_norms, to_canvas
from tessera.render.render import render
from tessera.scenes.camera import project
from tessera.scenes.sampling import Scenes

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def detector():
    return load_detector()


def test_the_shipped_detector_counts_what_the_renderer_drew(detector):
    batch = Scenes(objects=(0, 6)).draw(48, seed=77)
    counts = torch.tensor([len(found) for found in detector.detect(render(batch, 64, quality="fast")["rgb"])[0]])
    assert (counts == batch.count).float().mean() >= 0.95


@pytest.mark.parametrize("size", [32, 128, (320, 240)])
def test_it_sees_images_of_other_sizes(detector, size):
    batch = Scenes(objects=(1, 3)).draw(12, seed=78)
    counts = torch.tensor([len(found) for found in detector.detect(render(batch, size, quality="fast")["rgb"])[0]])
    assert (counts == batch.count).float().mean() >= 0.9


def test_detections_lie_at_the_centers_and_have_the_right_colors(detector):
    batch = Scenes(objects=(2, 2)).draw(16, seed=79)
    locations = project(batch.center, batch.camera)[0]
    right, near, total = 0, 0, 0
    for scene, truth, found in zip(batch.unstack(), locations, detector.detect(render(batch, 64)["rgb"])[0]):
        for obj, location in zip(scene.objects, truth.tolist()):
            gaps = [max(abs(f.location[0] - location[0]), abs(f.location[1] - location[1])) for f in found]
            closest = min(range(len(gaps)), key=gaps.__getitem__)
            near += gaps[closest] < 1 / 32  # half a grid cell
            right += found[closest].color == obj.color
            total += 1
    assert near >= 0.97 * total and right >= 0.97 * total


def test_detections_do_not_depend_on_the_batch(detector):
    images = render(Scenes(objects=(1, 4)).draw(5, seed=80), 64)["rgb"]
    together, _ = detector.detect(images)
    for i in range(5):
        ((alone,), _) = detector.detect(images[i : i + 1])
        assert [f.color for f in alone] == [f.color for f in together[i]]
        assert all(a.location == pytest.approx(b.location, abs=1e-3) for a, b in zip(alone, together[i]))


def test_detections_come_surest_first(detector):
    found, _ = detector.detect(render(Scenes(objects=(5, 5)).draw(4, seed=81), 64)["rgb"])
    assert all(list(f) == sorted(f, key=lambda x: -x.confidence) for f in found)


@pytest.mark.parametrize("kind", ["noise", "gray", "white"])
def test_it_says_when_it_looks_at_no_scene(detector, kind):
    random = torch.Generator().manual_seed(0)
    noise = torch.rand(6, 3, 64, 64, generator=random) * 2 - 1
    images = {"noise": noise, "gray": torch.zeros(6, 3, 64, 64), "white": torch.ones(6, 3, 64, 64)}[kind]
    detections, ood = detector.detect(images)
    assert sum(map(len, detections)) == 0
    assert (ood > 1).all()


def test_scenes_are_not_ood(detector):
    assert (detector.detect(render(Scenes(objects=(0, 6)).draw(24, seed=82), 64)["rgb"])[1] < 1).all()


def test_ties_between_neighbors_count_once(detector):
    heads = {name: torch.zeros(1, n, 64, 64) for name, n in (("offset", 2), ("well_formed", 1), ("color", 8))}
    heads |= {name: torch.zeros(1, n, 64, 64) for name, n in (("shape", 3), ("size", 2), ("material", 2))}
    heads["there"] = torch.full((1, 1, 64, 64), -9.0)
    heads["there"][0, 0, 30, 30:32] = 4.0
    heads["there"][0, 0, 10, 50] = 2.0
    (found,) = detector._gather(heads, 1)
    assert [round(f.confidence, 2) for f in found] == [0.98, 0.88]


def test_no_images_give_no_detections(detector):
    assert detector.detect(torch.zeros(0, 3, 64, 64))[0] == []


def test_gray_scale_tensors_are_refused(detector):
    with pytest.raises(UserError, match="color images"):
        detector.detect(torch.zeros(2, 1, 64, 64))


def test_a_missing_detector_is_one_sentence(tmp_path):
    with pytest.raises(UserError, match="no readable detector"):
        load_detector(tmp_path)


def test_weights_that_are_not_those_of_their_detector_are_refused(tmp_path):
    known = {"mean": torch.zeros(4), "whiten": torch.eye(4), "limit": torch.ones(1)}
    save_detector(tmp_path, DetectorNetwork((8, 8, 16, 16), (0, 1, 1, 1)), known)
    load_detector(tmp_path)
    settings = json.loads((tmp_path / "detector.json").read_text())
    deeper, wider = {"depths": [1, 1, 1, 1]}, {"widths": [8, 8, 16, 24]}
    for other in (deeper, wider, {"no such": 1}):
        (tmp_path / "detector.json").write_text(json.dumps(settings | other))
        with pytest.raises(UserError, match="not those of its detector"):
            load_detector(tmp_path)
    save_detector(tmp_path, DetectorNetwork((8, 8, 16, 16), (0, 1, 1, 1)), {"mean": torch.zeros(4)})
    with pytest.raises(UserError, match="not those of its detector"):
        load_detector(tmp_path)


def test_folding_normalization_changes_nothing():
    torch.manual_seed(0)
    network = DetectorNetwork((8, 8, 16, 16), (0, 1, 1, 1)).train()
    with torch.no_grad():
        network(torch.randn(4, 3, 64, 64))  # running statistics away from their start
        images = torch.randn(2, 3, 64, 64)
        before = network.eval()(images).heads
        after = fold_norms(network)(images).heads
    for name in before:
        torch.testing.assert_close(before[name], after[name], atol=1e-4, rtol=1e-4)


def test_the_canvas_is_always_the_same_size():
    for shape in ((32, 32), (64, 64), (128, 128), (240, 320), (320, 480), (100, 300)):
        assert to_canvas(torch.zeros(1, 3, *shape)).shape == (1, 3, 128, 128)
