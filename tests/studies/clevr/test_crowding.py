"""Many or close: locations far apart, location-by-location counts, and what renders at the same locations show."""

import json
import math
from itertools import combinations

import pytest
import torch

from doc_tables.study import STUDY_TABLES
from tessera.conditioning import ColorCounts, LocationGrid, LocationList
from tessera.config import settings_for
from tessera.evaluation.detection import Detection
from tessera.evaluation.detector import load_detector
from tessera.evaluation.pipeline import Evaluator
from tessera.models.build import build_denoiser
from tessera.models.model_folder import save_model
from tessera.sampling.prompts import cell_center, own_prompts
from tessera.scenes.placement import reachable
from tessera.scenes.vocabulary import LOCATIONS
from tessera.studies.clevr.crowding import far_apart, rendered, smallest_gap
from tessera.studies.clevr.tables import crowding_pair_rows, crowding_rows

TINY = {"width": 8, "mult": (1,), "blocks": 1, "head_width": 8, "tile": 1}
LAST = LOCATIONS[2]  # the location this detector never sees filled in what a model drew


def obj(location):
    return Detection(*location, "red", "cube", "large", "metal", 0.9, 0.9)


class SeesAllButOne:
    """Sees every location of the study but one in what a model drew, and every one in renders, which come later."""

    def __init__(self):
        self.calls, self.first = 0, None

    def detect(self, images):
        self.calls += 1
        self.first = images if self.first is None else self.first
        seen = [location for location in LOCATIONS if self.calls > 1 or location != LAST]
        return [[obj(location) for location in seen]] * len(images), torch.zeros(len(images))


def saved(folder, experiment, conditioner):
    settings = settings_for(experiment, "tiny", {"data": {"size": 8}, "denoiser": TINY})
    torch.manual_seed(0)
    return save_model(folder, build_denoiser(settings), conditioner, {"settings": settings.plain()})


@pytest.fixture
def detectors(monkeypatch):
    """The detectors of the runs of a test, in order."""
    opened = []

    def open_another(device):
        opened.append(SeesAllButOne())
        return opened[-1]

    monkeypatch.setattr("tessera.cli.studies.load_detector", open_another)
    return opened


@pytest.fixture
def crowded(call, detectors, tmp_path):
    model = saved(tmp_path / "mine", "exp1", LocationGrid(16, "all"))

    def run(*more):
        words = ["--k", "0-4", "--each", "2", "--pairs", "3", "--steps", "2", "--device", "cpu"]
        code = call("reproduce", "crowding", model, *words, "--results", tmp_path, *more)
        return code, tmp_path / "crowding-mine.json"

    return run


def test_locations_are_counted_one_by_one_and_two_by_two(crowded, tmp_path):
    code, out = crowded()
    record = json.loads(out.read_text())
    assert code == 0 and (tmp_path / "figures" / "crowding-mine.png").is_file()
    rows = record["study"]["rows"]
    assert [row["k"] for row in rows] == [1, 2, 3, 4]
    assert rows[3]["filled_at"] == [2, 2, 0, 2] and rows[3]["rendered"]["filled_at"] == [2, 2, 2, 2]
    assert [row["all_found"]["value"] for row in rows] == [1, 1, 0, 0]
    assert {row["rendered"]["all_found"]["value"] for row in rows} == {1}
    together = {tuple(pair["pair"]): (pair["both"], pair["rendered"]) for pair in record["pairs"]}
    assert list(together) == list(combinations(range(4), 2))
    assert all(found == ((0 if 2 in pair else 3), 3) for pair, found in together.items())


def test_as_many_are_prompted_far_apart(crowded, detectors):
    _, out = crowded()
    row = json.loads(out.read_text())["apart"]["rows"][3]
    assert row["locations"] == [list(location) for location in far_apart(4)]
    assert sum(row["filled_at"]) < 8  # this detector sees objects at the study's locations, not there
    assert len(detectors[0].first) == 4 * 2 + 4 * 2 + 6 * 3  # the study's, far apart, pairs


def test_fresh_noise_reaches_the_images(crowded, detectors):
    crowded()
    crowded("--s-churn", "20")
    assert (detectors[0].first - detectors[1].first).abs().mean() > 0.1


def test_distances_are_those_of_the_prompted_cells(crowded):
    _, out = crowded("--k", "1-11")
    record = json.loads(out.read_text())
    cells = {tuple(pair["pair"]): pair["cells"] for pair in record["pairs"]}
    assert cells[0, 1] == 6  # (0.65, 0.65) and (0.65, 0.25): rows 10 and 4
    assert cells[7, 10] == 1  # (0.25, 0.45) and (0.35, 0.55): cells that touch at a corner
    nearest = [row["nearest_cells"] for row in record["study"]["rows"]]
    assert nearest[0] is None and nearest[10] == pytest.approx(math.sqrt(2))


def test_locations_of_a_list_are_targets_as_they_are(crowded, call, tmp_path):
    model = saved(tmp_path / "listed", "exp3", LocationList(12, "all"))
    words = ["--k", "2", "--each", "1", "--pairs", "1", "--steps", "1", "--results", tmp_path, "--device", "cpu"]
    assert call("reproduce", "crowding", model, *words) == 0
    (row,) = json.loads((tmp_path / "crowding-listed.json").read_text())["study"]["rows"]
    assert row["nearest_cells"] == pytest.approx(0.4 * 16) and row["filled_at"] == [1, 1]


def test_the_tables_have_a_row_for_each_k_and_each_distance(crowded):
    _, out = crowded()
    record = json.loads(out.read_text())
    rows, pairs = crowding_rows([record]), crowding_pair_rows([record])
    assert len({len(row) for row in rows}) == 1 and len(rows) == 1 + 4 + 2
    assert rows[3][:5] == ("mine", "3", "0%", "100%", "6.0")
    assert [row[1] for row in rows[5:]] == ["K_max, paper rule", "K_max, strict rule"]
    assert sum(int(row[2]) for row in pairs[1:]) == len(record["pairs"]) == 6

    class Nothing:
        def several(self, pattern):
            return []

    assert STUDY_TABLES["crowding"](Nothing())[1][0] == "not run"


def test_locations_far_apart_can_all_be_filled_and_are_further_than_the_study_tells_its_own():
    conditioner = LocationGrid(16, "all")
    for k in (2, 6, 9, 12):
        locations = far_apart(k)
        assert len(set(locations)) == k and locations == far_apart(k)
        assert reachable(locations, "large").all() and reachable(locations, "small").all()
        assert smallest_gap(locations) > smallest_gap(
            [cell_center(conditioner, location) for location in LOCATIONS[:k]]
        )
    assert len(far_apart(1)) == 1


def test_the_detector_finds_what_is_rendered_far_apart():
    evaluator = Evaluator(load_detector(None, torch.device("cpu")), None, torch.device("cpu"))
    prompts = own_prompts(LocationGrid(16, "all"), far_apart(6), 8, 0)
    scores = rendered(evaluator, prompts, 64, 0)
    assert len(scores) == 8 and sum(score.missing for score in scores) <= 1


def test_what_cannot_be_prompted_is_refused_in_one_sentence(call, tmp_path, crowded, capsys):
    model = saved(tmp_path / "colored", "color", ColorCounts())
    assert call("reproduce", "crowding", model, "--results", tmp_path) == 2
    assert "not conditioned on locations" in capsys.readouterr().err
    assert crowded("--k", "13")[0] == 2 and "at most 12" in capsys.readouterr().err
    assert crowded("--k", "0")[0] == 2 and "above 0" in capsys.readouterr().err
    assert crowded("--pairs", "0")[0] == 2 and "at least one image" in capsys.readouterr().err
    assert not (tmp_path / "crowding-mine.json").exists()
