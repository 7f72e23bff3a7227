"""The detector and the judge around it."""

import json

import pytest
import torch

from tessera.errors import UserError
from tessera.images.render import render
from tessera.judge.detector import Detector, fold_norms, to_canvas
from tessera.judge.judge import load_judge, save_detector
from tessera.judge.practice import ABSENT, THERE, practice, target_cells
from tessera.judge.train import heat, learn, loss, measure_range
from tessera.scenes.camera import project
from tessera.scenes.sampling import Scenes

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def judge():
    return load_judge()


def test_the_shipped_judge_counts_what_the_renderer_drew(judge):
    batch = Scenes(objects=(0, 6)).draw(48, seed=77)
    counts = torch.tensor([len(found) for found in judge.find(render(batch, 64, quality="fast")["rgb"])])
    assert (counts == batch.count).float().mean() >= 0.95


@pytest.mark.parametrize("size", [32, 128, (320, 240)])
def test_it_sees_pictures_of_other_sizes(judge, size):
    batch = Scenes(objects=(1, 3)).draw(12, seed=78)
    counts = torch.tensor([len(found) for found in judge.find(render(batch, size, quality="fast")["rgb"])])
    assert (counts == batch.count).float().mean() >= 0.9


def test_findings_lie_at_the_centres_and_have_the_right_colours(judge):
    batch = Scenes(objects=(2, 2)).draw(16, seed=79)
    places = project(batch.center, batch.camera)[0]
    right, near, total = 0, 0, 0
    for scene, truth, found in zip(batch.unstack(), places, judge.find(render(batch, 64)["rgb"])):
        for thing, place in zip(scene.things, truth.tolist()):
            gaps = [max(abs(f.place[0] - place[0]), abs(f.place[1] - place[1])) for f in found]
            closest = min(range(len(gaps)), key=gaps.__getitem__)
            near += gaps[closest] < 1 / 32  # half a grid cell
            right += found[closest].color == thing.color
            total += 1
    assert near >= 0.97 * total and right >= 0.97 * total


def test_findings_do_not_depend_on_the_batch(judge):
    pictures = render(Scenes(objects=(1, 4)).draw(5, seed=80), 64)["rgb"]
    together = judge.find(pictures)
    for i in range(5):
        (alone,) = judge.find(pictures[i : i + 1])
        assert [f.color for f in alone] == [f.color for f in together[i]]
        assert all(a.place == pytest.approx(b.place, abs=1e-3) for a, b in zip(alone, together[i]))


def test_findings_come_surest_first(judge):
    found = judge.find(render(Scenes(objects=(5, 5)).draw(4, seed=81), 64)["rgb"])
    assert all(list(f) == sorted(f, key=lambda x: -x.confidence) for f in found)


@pytest.mark.parametrize("kind", ["noise", "grey", "white"])
def test_it_says_when_it_looks_at_no_scene(judge, kind):
    random = torch.Generator().manual_seed(0)
    noise = torch.rand(6, 3, 64, 64, generator=random) * 2 - 1
    pictures = {"noise": noise, "grey": torch.zeros(6, 3, 64, 64), "white": torch.ones(6, 3, 64, 64)}[kind]
    findings, strange = judge.look(pictures)
    assert sum(map(len, findings)) == 0
    assert (strange > 1).all()


def test_scenes_are_not_strange(judge):
    assert (judge.strangeness(render(Scenes(objects=(0, 6)).draw(24, seed=82), 64)["rgb"]) < 1).all()


def test_ties_between_neighbours_count_once(judge):
    heads = {name: torch.zeros(1, n, 64, 64) for name, n in (("offset", 2), ("proper", 1), ("color", 8))}
    heads |= {name: torch.zeros(1, n, 64, 64) for name, n in (("shape", 3), ("size", 2), ("material", 2))}
    heads["there"] = torch.full((1, 1, 64, 64), -9.0)
    heads["there"][0, 0, 30, 30:32] = 4.0
    heads["there"][0, 0, 10, 50] = 2.0
    (found,) = judge._gather(heads, 1)
    assert [round(f.confidence, 2) for f in found] == [0.98, 0.88]


def test_no_pictures_give_no_findings(judge):
    assert judge.find(torch.zeros(0, 3, 64, 64)) == []


def test_grey_scale_tensors_are_refused(judge):
    with pytest.raises(UserError, match="colour pictures"):
        judge.find(torch.zeros(2, 1, 64, 64))


def test_a_missing_judge_is_told_in_one_sentence(tmp_path):
    with pytest.raises(UserError, match="no readable judge"):
        load_judge(tmp_path)


def test_weights_that_are_not_those_of_their_detector_are_refused(tmp_path):
    known = {"mean": torch.zeros(4), "whiten": torch.eye(4), "limit": torch.ones(1)}
    save_detector(tmp_path, Detector((8, 8, 16, 16), (0, 1, 1, 1)), known)
    load_judge(tmp_path)
    settings = json.loads((tmp_path / "detector.json").read_text())
    deeper, wider = {"depths": [1, 1, 1, 1]}, {"widths": [8, 8, 16, 24]}
    for other in (deeper, wider, {"no such": 1}):
        (tmp_path / "detector.json").write_text(json.dumps(settings | other))
        with pytest.raises(UserError, match="not those of its detector"):
            load_judge(tmp_path)
    save_detector(tmp_path, Detector((8, 8, 16, 16), (0, 1, 1, 1)), {"mean": torch.zeros(4)})
    with pytest.raises(UserError, match="not those of its detector"):
        load_judge(tmp_path)


def test_folding_normalisation_changes_nothing():
    torch.manual_seed(0)
    detector = Detector((8, 8, 16, 16), (0, 1, 1, 1)).train()
    with torch.no_grad():
        detector(torch.randn(4, 3, 64, 64))  # running statistics away from their start
        pictures = torch.randn(2, 3, 64, 64)
        before = detector.eval()(pictures).heads
        after = fold_norms(detector)(pictures).heads
    for name in before:
        torch.testing.assert_close(before[name], after[name], atol=1e-4, rtol=1e-4)


def test_the_canvas_is_always_the_same_size():
    for shape in ((32, 32), (64, 64), (128, 128), (240, 320), (320, 480), (100, 300)):
        assert to_canvas(torch.zeros(1, 3, *shape)).shape == (1, 3, 128, 128)


def test_practice_is_a_function_of_its_number():
    one, two, other = practice(5, 3, 9, CPU), practice(5, 3, 9, CPU), practice(5, 4, 9, CPU)
    assert all(torch.equal(a, b) for a, b in zip(one.columns(), two.columns()))
    assert not torch.equal(one.images, other.images)


def test_practice_truth_is_inside_and_heat_peaks_at_it():
    batch = practice(6, 0, 12, CPU)
    there = batch.state == THERE
    assert ((batch.place[there] > 0) & (batch.place[there] < 1)).all()
    target, counts = heat(batch)
    cell, within = target_cells(batch.place)
    rows, slots = torch.nonzero(there, as_tuple=True)
    assert (target.flatten(1)[rows, cell[rows, slots]] > 0.5).all()
    assert counts.flatten(1)[rows, cell[rows, slots]].all()
    assert ((within >= 0) & (within <= 1))[there].all()
    empty = (batch.state == ABSENT).all(1)
    assert (target[empty] == 0).all()


def test_however_short_the_time_one_step_is_learned():
    steps = list(learn(Detector((8, 8, 8, 8), (0, 0, 0, 0)), 64, 2, 1e-3, 7, CPU, minutes=1e-9))
    assert [step.pictures for step in steps] == [2]


@pytest.mark.slow
def test_learning_lowers_the_loss_and_survives_saving(tmp_path):
    torch.manual_seed(0)
    detector = Detector((8, 16, 16, 16), (0, 0, 1, 1))
    lesson = practice(7, 0, 24, CPU)
    before = loss(detector(lesson.images), lesson).item()
    losses = [float(step.loss) for step in learn(detector, 48 * 6, 6, 3e-3, 7, CPU)]
    assert len(losses) == 48
    assert loss(detector.eval()(lesson.images), lesson).item() < 0.8 * before
    save_detector(tmp_path, detector, measure_range(detector, 8, CPU, pictures=256))
    findings, strange = load_judge(tmp_path).look(lesson.images[:2])
    assert len(findings) == 2 and strange.isfinite().all()
