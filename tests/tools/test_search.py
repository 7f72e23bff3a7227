"""The search program of `tools/`: the queue, and one cell trained, scored and continued."""

import json
import time

import pytest
import torch

import programs
import search
from tessera.config import Ki, Mi, parse_count, settings_from
from tessera.errors import UserError
from tessera.evaluation.detector import load_detector
from tessera.evaluation.pipeline import Evaluator
from tessera.files import read_json
from tessera.training.run_folder import RunFolder


def test_averages_are_scored_at_their_own_intervals_and_all_of_them_at_the_end():
    cell = search.SearchCell(
        "a", changes={"training": {"total": "3Mi", "ema": [0.05, 0.1]}}, scores={"512Ki": [0.1], "1Mi": [0.05]}
    )
    assert cell.settings.training.total == 3 * Mi
    assert cell.settings.training.snapshot == 512 * Ki
    assert [cell.averages_at(n * Ki) for n in (256, 512, 1024, 3072)] == [[], [0.1], [0.05, 0.1], [0.05, 0.1]]


QUEUES = sorted(programs.TOOLS.glob("search-*.json"))


@pytest.mark.parametrize("path", QUEUES, ids=lambda path: path.stem)
def test_every_change_a_queue_asks_for_is_in_the_settings_of_its_cell(path):
    for cell in search.read_queue(path):
        plain = cell.settings.plain()
        for group, values in cell.changes.items():
            for name, value in values.items():
                requested = parse_count(value) if name in ("total", "cooldown") else value
                assert plain[group][name] == requested, (cell.name, group, name)


@pytest.mark.parametrize("path", QUEUES, ids=lambda path: path.stem)
def test_every_parent_in_a_queue_keeps_the_state_its_child_continues_from(path):
    cells = {cell.name: cell for cell in search.read_queue(path)}
    for cell in cells.values():
        assert cell.settings.training.total % cell.settings.training.batch == 0
        if cell.parent:
            name, images = cell.parent
            assert images % cells[name].settings.training.snapshot == 0
            assert cell.settings.training.ema == cells[name].settings.training.ema
            assert cell.settings.denoiser == cells[name].settings.denoiser
            assert cell.settings.data == cells[name].settings.data


def test_every_record_of_a_search_is_of_a_cell_that_stands_in_a_queue():
    cells = {cell.name: cell for path in QUEUES for cell in search.read_queue(path)}
    records = sorted((programs.TOOLS.parent / "results" / "search").glob("*.json"))
    assert records
    for path in records:
        record = read_json(path)
        cell = cells[record["cell"]]
        assert path.stem == cell.name
        assert record["settings"] is None or settings_from(record["settings"]) == cell.settings
        assert (record["start"], record["model"], record["about"]) == (cell.start, cell.model, cell.about)


@pytest.mark.parametrize(
    "entries", [[{"name": "a", "size": 3}], [{"name": "a"}, {"name": "a"}], [{"name": "a", "start": "b:1Mi"}]]
)
def test_a_queue_that_makes_no_sense_is_refused(tmp_path, entries):
    path = tmp_path / "queue.json"
    path.write_text(json.dumps(entries))
    with pytest.raises(UserError):
        search.read_queue(path)


def tiny(name, **more):
    training = {"total": 64, "render_batch": 32, "ema": [0.1, 0.2], **more.pop("training", {})}
    return search.SearchCell(name, preset="tiny", changes={"training": training}, **more)


def test_a_cell_is_scored_along_training_and_another_continues_from_its_state(tmp_path):
    device = torch.device("cpu")
    evaluator = Evaluator(load_detector(), None, device)
    task = search.Task(tmp_path, "cpu", 1, 1, time.time() + 600)
    first = tiny("first", scores={"32": [0.1]})
    second = tiny("second", start="first:32", training={"cooldown": 32})
    for cell, keep in ((first, {32}), (second, set())):
        search.train_and_score(cell, task, search.Scorer(cell, evaluator, tmp_path, 1, 1, keep))

    record = read_json(tmp_path / "records" / "first.json")
    moments = [(score["images_seen"], score["average"]) for score in record["scores"]]
    assert moments == [(32, 0.1), (64, 0.1), (64, 0.2)]
    assert record["finished"]
    assert all(len(score["all_found"]) == 13 for score in record["scores"])
    assert (tmp_path / "sheets" / "first.png").is_file()

    continued = RunFolder(tmp_path / "runs" / "second").records()
    assert [line["images_seen"] for line in continued] == [64]  # not trained from the beginning
    assert search.record_of(second, tmp_path)["finished"]
    with pytest.raises(UserError):
        search.record_of(tiny("second", training={"lr": 0.5}), tmp_path)
