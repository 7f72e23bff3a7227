"""The records in results/study are of the cells as they are now: a cell that changes must be run again."""

from pathlib import Path

import pytest

from tessera.config import first_difference, settings_from
from tessera.files import read_json
from tessera.studies.clevr.entries import CELLS
from tessera.studies.clevr.runs import _HARMLESS, job_name

RECORDS = sorted((Path(__file__).parents[3] / "results" / "study").glob("*.json"))


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.stem)
def test_a_shipped_record_is_of_its_cell(path):
    record = read_json(path)
    cell, preset, seed = CELLS[record["cell"]], record["preset"], record["seed"]
    assert path.stem == job_name(cell.name, preset, seed)
    settings = settings_from(record["settings"])
    assert first_difference(settings, cell.settings(preset, seed), _HARMLESS) is None
    assert record["training"]["images_seen"] == settings.training.total
    evaluation = {"ks": list(cell.ks), "each": cell.each, "s_churn": cell.s_churn}
    assert {name: record["evaluation"].get(name, 0.0) for name in evaluation} == evaluation
    assert (record["paper"], record["about"]) == (cell.paper.plain(), cell.about)
    assert {row["n"] for row in record["result"]["rows"]} == {cell.each}
