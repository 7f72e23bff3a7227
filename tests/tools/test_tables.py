import json

import pytest

from programs import call_program
from tessera.config import settings_for
from tessera.rows import NOT_RUN
from write_tables import NOT_MEASURED, TABLES, Results, filled_in, markdown

PAGE = "before\n<!-- results:render-speed -->\nold\n<!-- /results -->\nafter\n"


def bench(device, size, rate):
    measured = {"images_per_second": {"median": rate}, "peak_memory_bytes": 2**30}
    return {
        "size": [size, size],
        "objects": "3",
        "quality": {"fast": measured},
        "scene_drawing": {"scenes_per_second": {"median": 5000.0}},
        "provenance": {"device": device},
    }


@pytest.fixture
def root(tmp_path):
    (tmp_path / "results").mkdir()
    (tmp_path / "README.md").write_text(PAGE)
    (tmp_path / "results" / "bench-render-cpu.json").write_text(json.dumps(bench("this cpu", 64, 1234.4)))
    return tmp_path


def tables(*words) -> int:
    return call_program("write_tables", *words)


def test_numbers_come_from_records_and_the_rest_is_not_measured(root):
    rows = TABLES["render-speed"](Results(root / "results"))
    assert rows[1] == ("this cpu", "64x64, 3 objects", "fast", "1,234", "5,000", "1.00 GiB")
    assert [row[:2] for row in rows[2:]] == [("h200", "64x64"), ("h200", "128x128")]
    assert all(cell == NOT_MEASURED for row in rows[2:] for cell in row[2:])


def test_a_file_may_hold_several_records(root):
    both = [bench("gpu", 128, 20.0), bench("gpu", 64, 80.0)]
    (root / "results" / "bench-render-h200.json").write_text(json.dumps(both))
    rows = TABLES["render-speed"](Results(root / "results"))
    assert [(row[0], row[3]) for row in rows[2:]] == [("gpu", "80"), ("gpu", "20")]


def test_a_changed_network_is_not_passed_off_as_its_preset(tmp_path):
    settings = settings_for("exp1", "small", {"denoiser": {"width": 64, "coords": False}}).plain()
    speed = {"images_per_second": {"value": 9.0}, "images_per_second_without_rendering": {"value": 10.0}}
    how = {"precision": "bfloat16", "compiled": True, "gpu_hours_for_total": 0.123}
    record = {"settings": settings, "weights": 5, **how, **speed, "peak_memory_bytes": None}
    (tmp_path / "bench-train-x.json").write_text(json.dumps({**record, "provenance": {"device": "gpu"}}))
    rows = TABLES["training-speed"](Results(tmp_path))
    assert rows[1][0] == "exp1 small but width 64, coords off"
    assert rows[1][2] == "bfloat16, compiled" and rows[1][-2] == "0.12"
    assert ("exp1 small", *[NOT_MEASURED] * 8) in rows


def test_training_speed_names_the_strategy_of_a_record(tmp_path):
    speed = {"images_per_second": {"value": 9.0}, "images_per_second_without_rendering": {"value": 10.0}}
    record = {"settings": settings_for("exp1", "small").plain(), "weights": 5, "precision": "float32", **speed}
    record |= {"gpu_hours_for_total": 1.0, "peak_memory_bytes": None, "provenance": {"device": "gpu"}}
    for strategy, shown in {"eager": "float32", "graph": "float32, graph"}.items():
        (tmp_path / "bench-train-x.json").write_text(json.dumps({**record, "strategy": strategy}))
        assert TABLES["training-speed"](Results(tmp_path))[1][2] == shown


def test_fast_paths_stand_with_their_gain_and_unmeasured_ones_are_left_out(tmp_path):
    rate = {"value": 100.0, "low": 90.0, "high": 110.0, "n": 4}
    graph = {"images_per_second": {"with": {**rate, "value": 150.0}, "without": rate}}
    graph["gain"] = {"value": 1.5, "low": 1.4, "high": 1.6, "n": 4}
    record = {
        "settings": settings_for("exp1", "small").plain(),
        "provenance": {"device": "gpu"},
        "paths": {"CUDA graph": graph, "scene kernel": {"not_measured": "needs a CUDA device, not cpu"}},
    }
    (tmp_path / "bench-strategies-x.json").write_text(json.dumps(record))
    rows = TABLES["training-strategies"](Results(tmp_path))
    assert rows[1:] == [("CUDA graph", "exp1 small", "gpu", "150", "100", "1.50 [1.40, 1.60]")]


def test_the_overview_gives_accuracy_and_speed_of_the_same_qualities(root):
    record = bench("this cpu", 64, 100.0)
    record["quality"]["true"] = {"images_per_second": {"median": 40.0}, "peak_memory_bytes": 0}
    (root / "results" / "bench-render-cpu.json").write_text(json.dumps(record))
    rows = {row[0]: row[1] for row in TABLES["overview"](Results(root / "results"))}
    assert rows["rendering on a CPU, 64x64"] == "100 images/s `fast`, 40 images/s `true`"
    assert sum("quality `" in what for what in rows) == 2


@pytest.mark.parametrize("name", TABLES)
def test_without_any_record_every_table_is_whole_and_says_so(tmp_path, name):
    rows = TABLES[name](Results(tmp_path))
    assert len({len(row) for row in rows}) == 1 and len(rows) > 1
    made = markdown(rows)
    assert (NOT_MEASURED in made or NOT_RUN in made) and "\n|---|" in made


def test_the_verb_rewrites_what_is_between_markers_and_nothing_else(root):
    assert tables("--root", root, "--check") == 1
    assert (root / "README.md").read_text() == PAGE
    assert tables("--root", root) == 0
    made = (root / "README.md").read_text()
    assert made.startswith("before\n<!-- results:render-speed -->\n| machine") and "1,234" in made
    assert made.endswith("<!-- /results -->\nafter\n") and "old" not in made
    assert tables("--root", root, "--check") == 0


def test_detector_rows_show_every_arrangement(tmp_path):
    share = {"value": 0.995, "low": 0.99, "high": 0.999}
    sets = {"official": {"rows": {"1": {"exact_count": share}, "2": {"exact_count": share}}}, "nothing": {}}
    (tmp_path / "detector-calibration.json").write_text(json.dumps({"sizes": {"64": sets}}))
    rows = TABLES["detector-error"](Results(tmp_path))
    assert rows == [("objects", "exact count, official"), ("1", "99.5% [99.0, 99.9]"), ("2", "99.5% [99.0, 99.9]")]


@pytest.mark.parametrize(
    ("page", "sentence"),
    [
        ("<!-- results:nonsense -->\n<!-- /results -->", "asks for the table `nonsense`"),
        ("<!-- results:overview -->\n", "never closed"),
    ],
)
def test_wrong_markers_are_reported(root, capsys, page, sentence):
    (root / "README.md").write_text(page)
    assert tables("--root", root) == 2
    assert sentence in capsys.readouterr().err


def test_a_folder_without_documents_is_reported(tmp_path, capsys):
    assert tables("--root", tmp_path) == 2
    assert "neither README.md" in capsys.readouterr().err


def test_filling_in_twice_changes_nothing(root):
    results = Results(root / "results")
    once = filled_in(PAGE, results)
    assert filled_in(once, results) == once
