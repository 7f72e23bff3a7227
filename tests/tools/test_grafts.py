"""Objects that are stretched, doubled, or given a twin in the training images of the detector."""

import torch

import grafts
from grafts import add_grafts, no_grafts
from tessera.render.render import render
from tessera.scenes.camera import ASPECT, project
from tessera.scenes.sampling import Scenes

CPU = torch.device("cpu")


def grafted(monkeypatch, stretched: float, count: int = 12, objects=(1, 4)):
    """Scenes with a graft wherever one fits, before and after."""
    monkeypatch.setattr(grafts, "STRETCHED", stretched)
    scenes = Scenes(objects=objects, visibility="off").draw(count, seed=1)
    frame = render(scenes, 64, layers=("rgb", "mask"), quality="fast")
    location = project(scenes.center, scenes.camera, ASPECT)[0]
    random = torch.Generator().manual_seed(0)
    spared = torch.full((count,), -1)
    return scenes, frame, add_grafts(no_grafts(frame["rgb"], frame["mask"], scenes, location), spared, 1.0, random)


def test_a_twin_is_one_object_more_of_another_color(monkeypatch):
    scenes, frame, after = grafted(monkeypatch, stretched=0.0)
    more = after.scenes.present.sum(1) - scenes.present.sum(1)
    had_room = ~scenes.present.all(1)
    assert had_room.any() and (more == had_room.long()).all()
    new = after.scenes.present & ~scenes.present
    for row, slot in torch.nonzero(new).tolist():
        shown = after.mask[row] == slot + 1
        assert shown.any() or after.covered[row, slot]
        near = (after.location[row, scenes.present[row]] - after.location[row, slot]).norm(dim=1).argmin()
        assert scenes.present[row, near]
    assert not after.stretched.any()
    assert (after.images != frame["rgb"]).flatten(1).any(1)[had_room].all()


def test_a_stretched_object_stays_one_and_covers_more(monkeypatch):
    monkeypatch.setattr(grafts, "DOUBLED", 0.0)
    scenes, frame, after = grafted(monkeypatch, stretched=1.0, objects=(1, 1))
    assert torch.equal(after.scenes.present, scenes.present)
    assert torch.equal(after.stretched.any(1), torch.ones(12, dtype=torch.bool))
    before_area, after_area = ((mask > 0).float().mean((1, 2)) for mask in (frame["mask"], after.mask))
    assert (after_area > 1.15 * before_area).float().mean() > 0.8  # some leave the frame
    shown = after.mask[0] > 0
    y, x = torch.nonzero(shown, as_tuple=True)
    middle = torch.tensor([x.float().mean() + 0.5, y.float().mean() + 0.5]) / 64
    assert (middle - after.location[0, 0]).abs().max() < 0.06


def test_a_spared_object_and_images_without_room_stay_as_they_are():
    scenes = Scenes(objects=(1, 1), visibility="off").draw(6, seed=2)
    frame = render(scenes, 32, layers=("rgb", "mask"), quality="fast")
    location = project(scenes.center, scenes.camera, ASPECT)[0]
    spared = scenes.present.int().argmax(1)
    before = no_grafts(frame["rgb"], frame["mask"], scenes, location)
    after = add_grafts(before, spared, 1.0, torch.Generator().manual_seed(1))
    assert torch.equal(after.images, frame["rgb"]) and torch.equal(after.mask, frame["mask"])
