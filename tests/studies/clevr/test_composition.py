"""Composition at inference time: each method is evaluated like a model, and its cost is recorded."""

import json

import pytest
import torch

from doc_tables.study import STUDY_TABLES
from tessera.conditioning import LocationGrid
from tessera.config import settings_for
from tessera.models.build import build_denoiser
from tessera.models.contract import trained_network
from tessera.models.model_folder import save_model
from tessera.render.image_io import load_png
from tessera.studies.clevr.figures import GAP, SIDE
from tessera.studies.clevr.tables import composition_rows

SMALL = {"width": 8, "mult": (1,), "blocks": 1, "head_width": 8, "tile": 1}


class Kept:
    """A folder of records, as the tables see it."""

    def __init__(self, *records):
        self.records = records

    def several(self, pattern):
        return list(self.records)


@pytest.fixture
def model(tmp_path):
    settings = settings_for("exp2", "tiny", {"data": {"size": 8}, "conditioner": {"cells": 8}, "denoiser": SMALL})
    torch.manual_seed(0)
    denoiser = build_denoiser(settings)
    trained_network(denoiser).out_gain.data.fill_(1)  # as it starts, the network is not listened to
    config = {"settings": settings.plain()}
    return save_model(tmp_path / "exp2", denoiser, LocationGrid(8, "one"), config)


@pytest.fixture
def repaired(call, detector, model, tmp_path, monkeypatch):
    monkeypatch.setattr("tessera.cli.studies.load_detector", lambda device: detector)

    def run(*more):
        out = tmp_path / "repair.json"
        words = ["--k", "0-3", "--each", "2", "--steps", "2", "--device", "cpu", "--out", out]
        return call("reproduce", "composition", model, *words, *more), out

    return run


def test_every_way_has_its_k_max_and_its_cost(repaired, model):
    code, out = repaired("--beside", str(model))
    assert code == 0
    lines = json.loads(out.read_text())["rows"]
    assert [line["way"] for line in lines] == ["plain", "sum", "project", "localize", "plain"]
    assert all(line["k_max"]["paper"]["value"] == 2 for line in lines)  # as far as this detector sees objects
    cost = {line["way"]: line["passes"] for line in lines}
    assert cost["plain"] == 1 and cost["sum"] == cost["project"] == pytest.approx(1 + 6 / 4)  # K = 0, 1, 2, 3
    assert 1 < cost["localize"] <= 8
    rows = composition_rows(lines)
    assert (
        rows[0][:4] == ("model", "composition", "K_max, paper rule", "strict") and len({len(row) for row in rows}) == 1
    )


def test_fresh_noise_reaches_every_way_and_the_table(repaired, model, detector, tmp_path):
    images = {}
    for s_churn in (0, 20):
        _, out = repaired("--ways", "plain", "--beside", "none", "--s-churn", s_churn)
        record = json.loads(out.read_text())
        assert record["evaluation"]["s_churn"] == s_churn
        images[s_churn] = detector.seen[-1]
    assert (images[0] - images[20]).abs().mean() > 0.1
    assert STUDY_TABLES["composition"](Kept(record))[1][0] == "exp2, stochastic sampling"


def test_a_radius_as_wide_as_the_image_asks_once_about_all_of_it(repaired):
    cost = {}
    for radius in (1, 2, 7):  # of 8 cells
        _, out = repaired("--ways", "localize", "--beside", "none", "--radius", radius)
        record = json.loads(out.read_text())
        cost[record["radius"]] = record["rows"][0]["passes"]
    assert cost[7] == 1 and cost[1] != cost[2] != 1


def test_the_table_tells_what_counted_as_near_if_not_the_usual(repaired):
    for radius, words in ((1, ", radius 1"), (2, "")):
        _, out = repaired("--beside", "none", "--radius", radius)
        ways = [row[1] for row in STUDY_TABLES["composition"](Kept(json.loads(out.read_text())))[1:]]
        assert ways == ["plain", "sum", f"project{words}", f"localize{words}"]


def test_the_terminal_has_a_column_for_each_way(repaired, capsys):
    repaired("--beside", "none")
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["composition", "plain", "sum", "project", "localize"] in lines
    assert ["K", "=", "3", "0%", "0%", "0%", "0%"] in lines  # this detector sees two objects at most


def test_a_figure_has_a_block_for_each_way_and_is_refused_before_the_work(repaired, tmp_path, capsys):
    sides = []
    for ways in ("plain", "plain,sum"):
        figure = tmp_path / ways / "repair.webp"
        assert repaired("--beside", "none", "--ways", ways, "--figure", figure)[0] == 0
        sides.append(load_png(figure).shape[1:])
    (height, one), (same, two) = sides
    assert height == same and two - one == 2 * (SIDE + GAP) + 3 * GAP  # two images of each K
    (tmp_path / "repair.json").unlink()
    code, out = repaired("--figure", tmp_path / "repair.jpg")
    assert code == 2 and "repair.jpg will not do" in capsys.readouterr().err and not out.exists()


def test_unknown_ways_are_refused(repaired, capsys):
    code, _ = repaired("--ways", "plain,prompt")
    assert code == 2 and "no way `prompt`" in capsys.readouterr().err


def test_the_table_says_when_it_was_not_run():
    assert STUDY_TABLES["composition"](Kept())[1] == ("not run", "not run")


def test_the_given_precision_reaches_the_network_and_the_record(repaired, detector):
    images = {}
    for given, kept in (("auto", "float32"), ("bfloat16", "bfloat16")):
        _, out = repaired("--ways", "plain", "--beside", "none", "--precision", given)
        assert json.loads(out.read_text())["precision"] == kept
        images[kept] = detector.seen[-1]
    assert not torch.equal(images["float32"], images["bfloat16"])
