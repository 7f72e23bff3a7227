"""Boxes and heat-maps with a known answer."""

import base64
import io

import numpy as np
import torch
from PIL import Image

from tessera.judge.finding import Finding
from tessera.locality.pixels import Pixel
from tessera.locality.study import Located, Probe
from tessera.report.subjects import Subject
from tessera.report.tiles import data_uri, heated, tiles_of, viewer
from tessera.study.strips import Shown


def thing(x, y, proper=0.9):
    return Finding((x, y), "red", "cube", "large", "metal", 0.9, proper)


class Sees:
    """A judge that finds the same things in every picture."""

    def __init__(self, *things, strange=0.0):
        self.things, self.strange = list(things), strange

    def look(self, images):
        return [self.things] * len(images), torch.full((len(images),), self.strange)


def subject(wanted, found=1, extra=0, ok=True):
    shown = Shown(torch.zeros(3, 16, 16, dtype=torch.uint8), wanted, found, extra, ok)
    return Subject("one", shown={len(wanted): [shown]})


def decoded(uri):
    return np.array(Image.open(io.BytesIO(base64.b64decode(uri.partition(",")[2]))))


def test_boxes_are_green_where_asked_red_where_not_and_orange_where_half_drawn():
    judge = Sees(thing(0.5, 0.5), thing(0.1, 0.9), thing(0.9, 0.9, proper=0.1))
    tile = tiles_of(subject([(0.5, 0.5), (0.3, 0.3)]), judge, 8)[2][0]
    assert [box.kind for box in tile.boxes] == ["good", "bad", "odd"]
    assert [kind for _, _, kind in tile.rings] == ["good", "bad"]
    centre = tile.boxes[0]
    assert (
        abs(centre.left + centre.width / 2 - 0.5) < 1e-9 and abs(centre.top + centre.height / 2 - 0.5) < 1e-9
    )
    assert "nothing at (0.30, 0.30)" in tile.words


def test_a_picture_the_judge_does_not_know_is_marked():
    tile = tiles_of(subject([(0.5, 0.5)]), Sees(thing(0.5, 0.5), strange=2.0), 8)[1][0]
    assert tile.strange and tile.ok and "not a scene the judge knows" in tile.words


def test_pictures_come_back_pixel_by_pixel():
    picture = torch.randint(0, 256, (3, 5, 7), dtype=torch.uint8)
    assert (decoded(data_uri(picture)) == picture.permute(1, 2, 0).numpy()).all()


def test_heat_runs_from_dark_to_bright_and_its_scale_can_be_given():
    values = torch.tensor([[0.0, 1.0], [0.25, 4.0]])
    own, wide = heated(values).float().mean(0), heated(values, 400.0).float().mean(0)
    assert own[0, 0] < own[1, 0] < own[0, 1] < own[1, 1]
    assert wide[1, 1] < own[1, 1] and wide[0, 0] == own[0, 0]


def located(levels=3, side=16):
    places = ((0.25, 0.25), (0.75, 0.75))
    probes = [Probe("loc 0", Pixel(4, 4)), Probe("loc 1", Pixel(12, 12)), Probe("center", Pixel(8, 8))]
    told = torch.zeros(1, levels, 3, 2)
    told[:, :, 0, 0] = told[:, :, 1, 1] = 1.0  # every place is moved by its own condition
    shape = {"influence": (levels, 3), "told_maps": (levels, 2)}
    maps = {name: torch.rand(*lead, side, side) for name, lead in shape.items()}
    return Located(
        wanted=places, probes=probes, sigmas=[10.0, 1.0, 0.1], clean=torch.zeros(levels, 3, side, side),
        sides=torch.full((levels, 3), 5), energy=torch.ones(levels, 3), sides_each=torch.ones(1, levels, 3),
        energy_each=torch.ones(1, levels, 3), told=told, told_own=torch.ones(1, levels, 2, 2), **maps,
    )  # fmt: skip


def test_the_viewer_opens_where_conditions_matter_and_shows_what_moves_what():
    band = {"sigma_min": 0.5, "sigma_max": 2.0}
    record = {"conditional_locality": {"band": band}, "plan": {"source": "truth"}}
    found = viewer(Subject("one", locality=record, located=located()))
    assert [frame.in_band for frame in found.frames] == [False, True, False] and found.start == 1
    assert found.probes == ["place 1", "place 2", "center"]
    assert [name for name, _ in found.wishes] == ["place 1", "place 2"]
    first = found.frames[0].pixels[0]
    assert first.square == ((4.5 - 2.5) / 16, (4.5 - 2.5) / 16, 5 / 16)
    own, other = first.crosses
    assert own.strength == 1.0 and other.strength < 0.1


def test_without_a_measurement_there_is_no_viewer():
    assert viewer(Subject("one")) is None
