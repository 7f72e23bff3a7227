"""The tutorials and the page for strangers are programs: here they run, as small as they go."""

import os
import re
import runpy
import sys
from pathlib import Path

import pytest
import torch

from tessera.cli.main import main
from tessera.conditioning import Conditioner, registry
from tessera.errors import UserError
from tessera.files import read_json
from tessera.models import build
from tessera.scenes import LOCATIONS, Scenes

ROOT = Path(__file__).parents[1]
TUTORIALS = ROOT / "docs" / "tutorials"


@pytest.fixture
def tutorial(monkeypatch, tmp_path):
    """Run one of them in a folder of its own; the text of the page it writes."""

    def run(name, *words):
        monkeypatch.setattr(sys, "argv", [name, "--out", str(tmp_path), *map(str, words)])
        runpy.run_path(str(TUTORIALS / name), run_name="__main__")
        return (tmp_path / "report.html").read_text()

    return run


def test_reproduce_puts_two_trainings_side_by_side(tutorial, capsys, tmp_path):
    page = tutorial("reproduce.py", "--total", 64, "--each", 2, "--k", "0-2", "--steps", 2)
    assert "exp1-M3: K_max" in capsys.readouterr().out
    assert page.count('<article class="card') == 2 and page.count('class="viewer"') == 2
    assert len(list((tmp_path / "results" / "study").glob("*.json"))) == 2

    with pytest.raises(SystemExit) as left:  # the records alone: counts, images and tables, but no heat-maps
        main(["report", str(tmp_path / "results"), "--out", str(tmp_path / "study.html"), "--device", "cpu"])
    study = (tmp_path / "study.html").read_text()
    assert left.value.code == 0 and study.count('<article class="card') == 2 and 'id="study"' in study
    assert study.count('<figure class="tile') == 2 * 3 * 2 and 'class="viewer"' not in study


def test_a_flow_matching_network_answers_the_same_questions(tutorial, capsys):
    page = tutorial("own_model.py", "--images", 64, "--batch", 16, "--n", 1, "--steps", 3, "--device", "cpu")
    assert "mine" in page and 'id="why"' in page
    assert "loss" in capsys.readouterr().out


@pytest.mark.slow
def test_composed_models_are_reported_beside_the_original(tutorial, capsys, tmp_path):
    page = tutorial("repair.py", "--n", 1, "--k", "1,2", "--steps", 4, "--device", "cpu")
    assert page.count('<article class="card') == 5
    said = capsys.readouterr().out
    assert all(f"exp2, {how}: " in said for how in ("sum", "project", "localize"))
    local = {}
    for name in ("exp2", "exp2, project", "exp2, localize", "exp1"):
        kept = read_json(tmp_path / "report-measured" / name / "report-locality.json")
        local[name] = kept["conditional_locality"]["value"]
    assert local["exp2, project"] == local["exp2, localize"] == 1.0  # by construction
    assert local["exp2"] < 0.5 < 0.8 < local["exp1"]  # trained with one labeled object, and with all


# --- the page for strangers ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def stranger(tmp_path_factory):
    """Everything that docs/your-own.md defines, after following it to the end in an empty folder."""
    text = (ROOT / "docs" / "your-own.md").read_text()
    program = "\n".join(re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE))
    tables = registry.CONDITIONERS.parts, build.NETWORKS.parts
    known = [dict(table) for table in tables]
    folder, before = tmp_path_factory.mktemp("stranger"), os.getcwd()
    os.chdir(folder)
    names = {"__name__": "stranger"}
    try:
        exec(compile(program, "docs/your-own.md", "exec"), names)
    finally:
        os.chdir(before)
    yield names, folder
    for table, kept in zip(tables, known):
        table.clear()
        table.update(kept)


def test_a_stranger_can_add_a_conditioner_and_a_denoiser_by_following_one_page(stranger):
    names, folder = stranger
    assert (folder / "report.html").stat().st_size > 100_000
    assert (folder / "mine" / "model.safetensors").is_file()
    model = names["model"]
    assert type(model.denoiser) is names["Plain"] and model.conditioner == names["ReadingOrder"]()
    assert names["found"].subjects[0].max_train_objects == 3


def test_the_strangers_conditioner_keeps_the_contract(stranger):
    conditioner = stranger[0]["ReadingOrder"](slots=4)
    assert isinstance(conditioner, Conditioner)
    scenes = Scenes(objects=3).draw(8, seed=1)
    cond = conditioner.encode(scenes)
    assert cond.shape == (8, conditioner.dim)
    for row, locations in zip(cond, conditioner.conditions(cond)):
        assert len(locations) == 3 and locations == sorted(locations, key=lambda location: (location[1], location[0]))
        assert torch.equal(conditioner.at(locations)[0], row)
    alone = conditioner.encode(Scenes(objects=3).draw(8, seed=1), torch.arange(8), 0)
    assert torch.equal(cond, alone)


def test_the_strangers_conditioner_takes_out_what_is_named_or_numbered(stranger):
    conditioner = stranger[0]["ReadingOrder"](slots=4)
    cond = conditioner.at(LOCATIONS[:3])
    for number, location in enumerate(conditioner.conditions(cond)[0]):
        assert torch.equal(conditioner.without(cond, number), conditioner.without(cond, location))
        assert len(conditioner.conditions(conditioner.without(cond, location))[0]) == 2
    with pytest.raises(UserError, match="no condition"):
        conditioner.without(cond, 3)
    with pytest.raises(UserError, match="at most 4"):
        conditioner.at(LOCATIONS[:5])
