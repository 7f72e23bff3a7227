"""Boxes and heat-maps with a known answer."""

import base64
import io
import re

import numpy as np
import torch
from PIL import Image

from tessera.analysis.locality import Probe, SceneLocality
from tessera.analysis.pixel_influence import Pixel
from tessera.app.report.columns import ReportColumn, ReportData
from tessera.app.report.page import page
from tessera.app.report.tiles import viewer
from tessera.evaluation.detection import Detection
from tessera.plots.figures import heat_colors
from tessera.render.image_io import png_url
from tessera.studies.clevr.image_grids import ShownImages


def obj(x, y, well_formed=0.9):
    return Detection(x, y, "red", "cube", "large", "metal", 0.9, well_formed)


class Sees:
    """A detector that finds the same objects in every image."""

    def __init__(self, *objects, ood=0.0):
        self.objects, self.ood = list(objects), ood

    def detect(self, images):
        return [self.objects] * len(images), torch.full((len(images),), self.ood)


def subject(wanted, found=1, extra=0, ok=True):
    shown = ShownImages(torch.zeros(3, 16, 16, dtype=torch.uint8), wanted, found, extra, ok)
    return ReportColumn("one", shown={len(wanted): [shown]})


def drawn(subject, detector):
    """The page's element for the first image."""
    text = page(ReportData([subject]), detector, "x", "")
    return re.search(r'<figure class="tile.*?</figure>', text, re.DOTALL)[0]


def decoded(uri):
    return np.array(Image.open(io.BytesIO(base64.b64decode(uri.partition(",")[2]))))


def test_boxes_are_green_where_prompted_red_where_not_and_orange_where_half_drawn():
    detector = Sees(obj(0.5, 0.5), obj(0.1, 0.9), obj(0.9, 0.9, well_formed=0.1))
    tile = drawn(subject([(0.5, 0.5), (0.3, 0.3)]), detector)
    assert re.findall(r'class="box (\w+)"', tile) == ["good", "bad", "odd"]
    assert re.findall(r'class="ring (\w+)" cx="([\d.]+)"', tile) == [("good", "50.0"), ("bad", "30.0")]
    left, top, width, height = (float(re.search(rf' {name}="([\d.]+)" ', tile.partition("box good")[2])[1]) for name in
                                ("x", "y", "width", "height"))  # fmt: skip
    assert abs(left + width / 2 - 50) < 0.11 and abs(top + height / 2 - 50) < 0.11
    assert "nothing at (0.30, 0.30)" in tile and "1/2" in tile


def test_prompted_colors_are_swatches_and_not_rings():
    tile = drawn(subject(["red", "blue"]), Sees(obj(0.5, 0.5)))
    assert re.findall(r'swatch (\w+)" style="[^"]*" title="(\w+)"', tile) == [("good", "red"), ("bad", "blue")]
    assert "ring" not in tile


def test_an_image_the_detector_does_not_know_is_marked():
    known, unknown = (drawn(subject([(0.5, 0.5)]), Sees(obj(0.5, 0.5), ood=ood)) for ood in (0.5, 2.0))
    assert 'class="tile ok ood"' in unknown and "unlike the images the detector was trained on" in unknown
    assert 'class="tile ok"' in known and "unlike" not in known


def test_images_come_back_pixel_by_pixel():
    image = torch.randint(0, 256, (3, 5, 7), dtype=torch.uint8)
    assert (decoded(png_url(image)) == image.permute(1, 2, 0).numpy()).all()


def test_heat_runs_from_dark_to_bright_and_its_scale_can_be_given():
    values = torch.tensor([[0.0, 1.0], [0.25, 4.0]])
    own, wide = heat_colors(values).float().mean(0), heat_colors(values, 400.0).float().mean(0)
    assert own[0, 0] < own[1, 0] < own[0, 1] < own[1, 1]
    assert wide[1, 1] < own[1, 1] and wide[0, 0] == own[0, 0]


def result(levels=3, side=16):
    locations = ((0.25, 0.25), (0.75, 0.75))
    probes = [Probe("loc 0", Pixel(4, 4)), Probe("loc 1", Pixel(12, 12)), Probe("center", Pixel(8, 8))]
    condition_influence = torch.zeros(1, levels, 3, 2)
    condition_influence[:, :, 0, 0] = condition_influence[:, :, 1, 1] = (
        1.0  # every location is moved by its own condition
    )
    shape = {"influence": (levels, 3), "condition_influence_maps": (levels, 2)}
    maps = {name: torch.rand(*lead, side, side) for name, lead in shape.items()}
    return SceneLocality(
        prompt=locations, probes=probes, sigmas=[10.0, 1.0, 0.1], clean=torch.zeros(levels, 3, side, side),
        sides=torch.full((levels, 3), 5), energy=torch.ones(levels, 3), sides_each=torch.ones(1, levels, 3),
        energy_each=torch.ones(1, levels, 3), condition_influence=condition_influence,
        own_condition_influence=torch.ones(1, levels, 2, 2), **maps,
    )  # fmt: skip


def test_the_viewer_opens_where_conditions_matter_and_shows_what_moves_what():
    band = {"sigma_min": 0.5, "sigma_max": 2.0}
    record = {"conditional_locality": {"band": band}, "plan": {"source": "truth"}}
    found = viewer(ReportColumn("one", locality=record, result=result()))
    assert [frame["in_band"] for frame in found["frames"]] == [False, True, False] and found["start"] == 1
    assert found["probes"] == ["location 1", "location 2", "center"]
    assert [name for name, _ in found["prompts"]] == ["location 1", "location 2"]
    first = found["frames"][0]["pixels"][0]
    assert first.square == ((4.5 - 2.5) / 16, (4.5 - 2.5) / 16, 5 / 16)
    own, other = first.crosses
    assert own.strength == 1.0 and other.strength < 0.1


def test_without_a_measurement_there_is_no_viewer():
    assert viewer(ReportColumn("one")) is None
