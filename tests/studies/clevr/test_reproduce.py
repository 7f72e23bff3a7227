import json

import pytest
from PIL import Image
from rich.console import Console

from tessera.cli.reproduce import status_table
from tessera.config import settings_for
from tessera.studies.clevr.entries import CELLS
from tessera.studies.clevr.records import moments_of, over_seeds
from tessera.studies.clevr.reproduce import Study, _same_make
from tessera.studies.clevr.runs import evenly
from tessera.training.run_folder import RunLog


@pytest.fixture
def results(tmp_path):
    return tmp_path / "results"


def record_of(results, cell="color-M5"):
    return json.loads((results / "study" / f"{cell}-tiny-seed0.json").read_text())


def no_training(*_, **__):
    raise AssertionError("nothing was left to train")


def test_a_cell_leaves_a_whole_record_an_image_grid_and_a_figure(reproduce, results):
    assert reproduce("fig4", "--only", "exp1-M1") == 0
    record = record_of(results, "exp1-M1")
    assert record["settings"]["data"]["objects"] == [1, 1] and record["evaluation"]["ks"] == [0, 1, 2, 3]
    assert record["training"]["images_seen"] == 16 and record["training"]["seconds"] > 0
    assert {"commit", "device", "date"} <= record["provenance"].keys()
    assert record["paper"]["k_max"] == 1 and record["quality"]["well_formed"]["value"] == 1
    k_max = record["result"]["k_max"]["paper"]
    assert (k_max["value"], k_max["tested_to"]) == (2, 3) and k_max["low"] <= 2 <= k_max["high"]
    row = record["result"]["rows"][2]
    assert row["counts"][2][0] == 2 and row["all_found"]["value"] == 1 and row["all_found"]["n"] == 2
    assert row["filled_at"] == [2, 2] and record["result"]["rows"][3]["filled_at"] == [0, 0, 0]
    assert row["all_found"]["low"] < 1 and "detector" not in row  # the calibration has it
    assert record["result"]["detector"]["arrangement"] == "study"
    assert record["shown"]["3"] == [[0, 0, 0, 0]] * 2 and record["shown"]["2"] == [[2, 0, 1, 0]] * 2
    assert Image.open(results / "study" / "image_grids" / "exp1-M1-tiny-seed0.webp").size == (16, 32)
    assert Image.open(results / "figures" / "fig4-tiny.webp").width > 2 * 4 * 128
    row = next(r for r in json.loads((results / "study.json").read_text())["presets"]["tiny"] if r["run"])
    assert row["cell"] == "exp1-M1" and row["k_max"]["paper"]["value"] == 2 and row["at_zero"] == [0, 0]
    sized = row["as_paper"]
    assert sized["first"] == [2] and sized["any"]["median"] == sized["any_64"]["median"] == 2


def test_a_finished_cell_is_left_alone(reproduce, results, monkeypatch, detector):
    assert reproduce("fig5") == 0
    before = (results / "study" / "color-M5-tiny-seed0.json").read_bytes()
    monkeypatch.setattr("tessera.studies.clevr.reproduce.train_run", no_training)
    assert reproduce("fig5") == 0
    assert detector.evaluations == 1 and (results / "study" / "color-M5-tiny-seed0.json").read_bytes() == before


def test_settings_are_recorded_to_the_last_digit_and_recognized(reproduce, detector):
    rate = ("--training.lr", "0.01234567890123")
    assert reproduce("fig5", *rate) == 0 and detector.evaluations == 1
    assert reproduce("fig5", *rate) == 0 and detector.evaluations == 1


def test_another_evaluation_needs_no_other_training(reproduce, results, monkeypatch, detector):
    assert reproduce("fig5") == 0
    monkeypatch.setattr("tessera.studies.clevr.reproduce.train_run", no_training)
    assert reproduce("fig5", "--k", "0-5") == 0
    assert detector.evaluations == 2 and record_of(results)["evaluation"]["ks"] == [0, 1, 2, 3, 4, 5]
    assert reproduce("fig5", "--k", "1-2", "--each", "1") == 0  # it is answered already, and better
    assert detector.evaluations == 2 and record_of(results)["evaluation"]["ks"] == [0, 1, 2, 3, 4, 5]


def test_interrupted_training_carries_on_to_the_same_images(reproduce, results, tmp_path, monkeypatch):
    after_step = RunLog.after_step

    def interrupted(log, step):
        after_step(log, step)
        if step.images_seen == 12:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(RunLog, "after_step", interrupted)
        assert reproduce("fig5") == 130
    assert not list((results / "study").glob("*.json"))
    assert (tmp_path / "runs" / "color-M5-tiny-seed0" / "snapshots" / "state-000000000008.safetensors").is_file()
    assert reproduce("fig5") == 0
    carried_on = (results / "study" / "image_grids" / "color-M5-tiny-seed0.webp").read_bytes()
    assert reproduce("fig5", "--root", tmp_path / "again", "--results", tmp_path / "again") == 0
    assert (tmp_path / "again" / "study" / "image_grids" / "color-M5-tiny-seed0.webp").read_bytes() == carried_on


def test_an_interrupted_evaluation_is_set_again_without_training(reproduce, results, monkeypatch, detector):
    def leave(images):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(detector, "detect", leave)
        assert reproduce("fig5") == 130
    monkeypatch.setattr("tessera.studies.clevr.reproduce.train_run", no_training)
    assert reproduce("fig5") == 0
    assert record_of(results)["training"]["images_seen"] == 16


def test_the_clock_stops_the_study_and_the_next_call_ends_it(reproduce, results, capfd):
    assert reproduce("fig5", "--minutes", "0.000001", total=4096) == 0
    assert "the same command carries on" in capfd.readouterr().err.replace("\n", " ")
    assert not (results / "study" / "color-M5-tiny-seed0.json").exists()
    assert reproduce("fig5") == 0


def test_full_states_go_and_averages_stay(reproduce, tmp_path):
    assert reproduce("fig5") == 0
    kept = {path.name[:4] for path in (tmp_path / "runs").rglob("*.safetensors")}
    assert kept == {"ema-"}


def test_patch_networks_are_examined_with_fresh_noise_and_without(reproduce, results, detector):
    assert reproduce("fig4", "--only", "exp2L-M1") == 0
    record = record_of(results, "exp2L-M1")
    assert record["evaluation"]["s_churn"] > 0 and detector.evaluations == 2
    assert record["still"]["k_max"]["paper"]["value"] == 2 and len(record["still"]["rows"]) == 4
    noisy, still = detector.seen
    assert (noisy - still).abs().mean() > 0.1  # other images, not the same ones twice
    assert reproduce("fig4", "--only", "exp2L-M1") == 0 and detector.evaluations == 2


def test_the_evaluation_without_fresh_noise_has_no_more_images_than_other_cells(reproduce, detector, monkeypatch):
    monkeypatch.setattr("tessera.studies.clevr.reproduce.IMAGES", 1)
    assert reproduce("fig4", "--only", "exp2L-M1") == 0
    assert [len(seen) for seen in detector.seen] == [4 * 2, 4]


def test_cells_at_the_edge_of_the_rule_are_evaluated_on_more_images(call, results, capfd):
    def images(*more):
        assert call("reproduce", "fig4", "--seeds", 1, "--dry-run", "--json", "--results", results, *more) == 0
        return {job["job"]: job["samples"] for job in json.loads(capfd.readouterr().out)["jobs"]}

    one, patches = "exp1-M1-small-seed0", "exp2L-M1-small-seed0"
    assert images() == {one: 13 * 64, patches: 13 * 256}
    assert images("--each", 16) == {one: 13 * 16, patches: 13 * 16}


def test_evaluations_recorded_before_there_was_fresh_noise_still_count(reproduce, results, detector):
    assert reproduce("fig5") == 0
    path = results / "study" / "color-M5-tiny-seed0.json"
    record = json.loads(path.read_text())
    del record["evaluation"]["s_churn"]
    path.write_text(json.dumps(record))
    assert reproduce("fig5") == 0 and detector.evaluations == 1


def test_moments_of_training_are_examined_too(reproduce, results, detector):
    assert reproduce("fig5", "--snapshots", "4") == 0
    record = record_of(results)
    moments = moments_of(record)
    assert [moment["images_seen"] for moment in moments] == [4, 8, 12, 16] and detector.evaluations == 4
    assert all(moment["k_max"]["paper"]["value"] == 0 for moment in moments)  # red objects, but blue was prompted
    assert len(moments[0]["rows"]) == 4
    assert "rows" not in record["snapshots"][-1] and moments[-1]["rows"] == record["result"]["rows"]


def test_moments_examined_before_an_interruption_are_not_examined_again(reproduce, results, detector, monkeypatch):
    detect = detector.detect

    def tired(images):
        if detector.evaluations == 2:
            raise KeyboardInterrupt
        return detect(images)

    with monkeypatch.context() as patch:
        patch.setattr(detector, "detect", tired)
        assert reproduce("fig5", "--snapshots", "4") == 130
    assert reproduce("fig5", "--snapshots", "4") == 0
    assert detector.evaluations == 4 and len(record_of(results)["snapshots"]) == 4


def test_more_moments_than_were_kept_are_evaluated_only_once(reproduce, results, detector):
    assert reproduce("fig5", "--snapshots", "2") == 0
    assert reproduce("fig5", "--snapshots", "9") == 0
    evaluations = detector.evaluations
    assert reproduce("fig5", "--snapshots", "9") == 0
    assert detector.evaluations == evaluations and len(record_of(results)["snapshots"]) == 2


def test_a_cell_that_fails_does_not_stop_the_others(reproduce, results, monkeypatch, capfd):
    from tessera.errors import UserError
    from tessera.studies.clevr import reproduce as module

    train = module.train_run

    def sometimes(settings, *rest, **more):
        if settings.experiment == "exp1":
            raise UserError("The loss became NaN.")
        return train(settings, *rest, **more)

    monkeypatch.setattr(module, "train_run", sometimes)
    local = ["--denoiser.radius", "1"]
    assert reproduce("fig4", "--json", *local) == 1
    said = capfd.readouterr()
    assert json.loads(said.out)["failed"] == {"exp1-M1-tiny-seed0": "The loss became NaN."}
    assert record_of(results, "exp2L-M1")["result"]["k_max"]["paper"]["value"] == 2


def test_seeds_make_one_row_whose_interval_covers_them(reproduce, results, detector, capfd):
    assert reproduce("fig4", "--only", "exp1-M1") == 0
    capfd.readouterr()
    detector.limit = 1
    assert reproduce("fig4", "--only", "exp1-M1", "--seeds", "2", "--json") == 0
    (row,) = json.loads(capfd.readouterr().out)["cells"]
    assert row["seeds"] == [0, 1] and row["k_max"]["paper"]["values"] == [2, 1]
    assert row["k_max"]["paper"]["value"] == 1
    assert (row["k_max"]["paper"]["low"], row["k_max"]["paper"]["high"]) == (1, 2)
    assert row["shares"]["2"]["all_found"] == pytest.approx({**row["shares"]["2"]["all_found"], "value": 0.5})


def test_evaluations_that_leave_out_one_object_have_no_k_max_and_damage_nothing(reproduce, call, results, capfd):
    words = ("fig4", "--only", "exp1-M1", "--seeds", "2", "--k", "2,3")
    assert reproduce(*words, "--json") == 0
    (row,) = json.loads(capfd.readouterr().out)["cells"]
    assert row["k_max"]["paper"]["value"] is None and row["seeds"] == [0, 1]
    assert call("reproduce", "status", "--preset", "tiny", "--results", results) == 0
    assert "Traceback" not in capfd.readouterr().err
    kept = over_seeds([row["k_max"]["paper"], {"value": 3, "low": 2, "high": 4, "tested_to": 5}])
    assert (kept["value"], kept["low"], kept["high"], kept["values"]) == (3, 2, 4, [3])


def test_learners_of_another_seed_are_let_go(reproduce, monkeypatch):
    held = []
    real = Study.trainer_for

    def spy(study, settings):
        found = real(study, settings)
        held.append({make.training.seed for make in study.trainers})
        return found

    monkeypatch.setattr(Study, "trainer_for", spy)
    assert reproduce("fig4", "--seeds", "2", "--denoiser.radius", "1") == 0
    assert held == [{0}, {0}, {1}, {1}]


def test_a_dry_run_counts_images_and_gives_minutes_only_where_a_speed_is_known(reproduce, results, capfd):
    assert reproduce("fig4", "--dry-run", "--json", "--seeds", "2", total=6000) == 0
    plan = json.loads(capfd.readouterr().out)
    assert plan["images"] == 4 * 6000 and plan["samples"] == 4 * 4 * 2
    assert plan["minutes"] is None and plan["unknown"] == 4
    settings = CELLS["exp1-M1"].settings("tiny").plain()
    del settings["denoiser"]["emb_mult"]  # a record from before there was such a setting
    bench = {"settings": settings, "images_per_second": {"value": 100.0}}
    results.mkdir()
    (results / "bench-train-tiny.json").write_text(json.dumps(bench))
    words = ["--total", "6000", "--dry-run", "--json"]
    assert plain_dry_run(reproduce, results, words) == 0
    first, second = json.loads(capfd.readouterr().out)["jobs"]
    assert first["training_minutes"] == pytest.approx(1.0) and second["minutes"] is None
    assert not (results / "study").exists()


def plain_dry_run(reproduce, results, words):
    """The preset as it is, so that the recorded speed is one of the same network."""
    import sys

    from tessera.cli.main import main

    try:
        main(["reproduce", "fig4", "--preset", "tiny", "--seeds", "1", "--results", str(results), *words])
    except SystemExit as leaving:
        return leaving.code
    return sys.maxsize


def test_status_names_every_cell_run_or_not(reproduce, call, tmp_path, results, capfd):
    assert reproduce("fig5") == 0
    capfd.readouterr()
    words = ["--preset", "tiny", "--root", tmp_path / "runs", "--results", results]
    assert call("reproduce", "status", *words, "--json") == 0
    status = json.loads(capfd.readouterr().out)
    assert [row["cell"] for row in status["cells"]] == list(CELLS) and status["run"] == 1
    assert [row["cell"] for row in status["cells"] if "k_max" in row] == ["color-M5"]
    assert call("reproduce", "status", *words) == 0
    assert "not run" in capfd.readouterr().out


def test_80_columns_break_no_interval():
    k_max = {"value": 10, "low": 10, "high": 11, "values": [10, 11, 10]}
    rows = [
        {
            "cell": name,
            "paper": cell.paper.plain(),
            "run": True,
            "k_max": {"paper": k_max, "strict": k_max},
            "at_zero": [0, 12],
            "images_seen": [5 << 18],
        }
        for name, cell in CELLS.items()
    ]
    screen = Console(width=80)
    with screen.capture() as shown:
        screen.print(status_table(rows))
    assert shown.get().count("10 [10, 11]") == shown.get().count("(10, 11, 10)") == 2 * len(CELLS)


def test_another_training_in_the_same_folder_is_not_overwritten(reproduce, capfd):
    assert reproduce("fig5") == 0
    assert reproduce("fig5", "--training.lr", "0.5") == 1
    assert "holds another run" in capfd.readouterr().err.replace("\n", " ")


def test_a_dry_run_tells_that_another_training_is_in_the_way(reproduce, capfd):
    assert reproduce("fig5") == 0
    capfd.readouterr()
    other = ("fig5", "--training.lr", "0.5", "--dry-run")
    assert reproduce(*other, "--json") == 0
    (job,) = json.loads(capfd.readouterr().out)["jobs"]
    assert job["state"] == "another run" and job["images"] == job["images"] == 0
    assert reproduce(*other) == 0
    assert "1 cannot begin" in capfd.readouterr().out.replace("\n", " ")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["reproduce", "fig9"], "did you mean `fig"),
        (["reproduce", "fig1", "--only", "exp1-M33"], "did you mean `exp1-M3`"),
        (["reproduce", "fig1", "--seeds", "0"], "At least one seed"),
        (["reproduce", "fig1", "--each", "0"], "at least one image"),
        (["reproduce", "fig1", "--k", "99"], "none of --k is among them"),
        (["reproduce", "composition", "exp1", "--beside", "nowhere"], "nowhere"),
        (["reproduce", "status", "--preset", "smal"], "did you mean `small`"),
    ],
)
def test_mistakes_are_refused_in_one_sentence(call, capfd, words, sentence):
    assert call(*words) == 2
    assert sentence in capfd.readouterr().err


def test_moments_are_spread_evenly_and_end_at_the_end():
    assert evenly([1, 2, 3, 4, 5, 6, 7, 8], 4) == [2, 4, 6, 8] and evenly([1, 2, 3], 8) == [1, 2, 3]
    assert evenly([1, 2, 3, 4, 5], 1) == [5]


def test_cells_share_a_trainer_when_they_differ_in_scenes_and_labels_alone():
    def make(experiment, **changes):
        return _same_make(settings_for(experiment, "tiny", changes))

    ours = make("exp1")
    assert ours == make("exp2", data={"objects": (1, 6), "seed": 3}) == make("exp2-drop")
    others = [make("exp3"), make("exp2L"), make("color"), make("exp1", training={"seed": 1})]
    assert all(other != ours for other in others)
