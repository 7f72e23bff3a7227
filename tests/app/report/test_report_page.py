"""The report through the command line, on networks that were trained for a second."""

import json
import re
import shutil
from pathlib import Path

import pytest

from tessera.app.report.measure import EVALUATION_FILE, LOCALITY, load_locality

LITTLE = ["--n", "2", "--k", "0-3", "--steps", "3", "--quick", "--device", "cpu"]
RESULTS = Path(__file__).parents[3] / "results"


def unmeasured(run, copy):
    """A copy of a run without what a report measured of it."""
    return shutil.copytree(run, copy, ignore=shutil.ignore_patterns("report-*"))


def test_the_page_is_complete_in_itself(report):
    text = report.read_text()
    links = re.findall(r'(?:src|href|action|data)="([^"]*)"', text)
    assert links and all(link.startswith(("data:", "#")) for link in links)
    assert not re.search(r"url\((?!#)|@import|<script src|<link rel=.stylesheet", text)
    assert re.findall(r"https?://[^'\" ]*", text) and all(
        "w3.org" in found for found in re.findall(r"https?://[^'\" ]*", text)
    )  # names of XML dialects


def test_every_link_inside_the_page_leads_somewhere_and_no_id_occurs_twice(report):
    text = report.read_text()
    ids = re.findall(r'\bid="([^"]+)"', text)
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'href="#([^"]+)"', text)) <= set(ids)


def test_both_models_have_a_verdict_images_and_heat_maps(report):
    text = report.read_text()
    assert text.count('<article class="card') == 2 and text.count('class="viewer"') == 2
    assert text.count('<figure class="tile') == 2 * 4 * 2  # models, K = 0..3, images
    for section in ("verdict", "images", "how-far", "why", "method"):
        assert f'id="{section}"' in text
    assert 'id="theory"' not in text and 'id="dynamics"' not in text  # no records of them were given


def test_a_second_report_measures_nothing_and_is_the_same(report, runs, call, monkeypatch):
    before = report.read_text()
    monkeypatch.setattr("tessera.evaluation.pipeline.Evaluator.run", None)  # would fail if it were called
    monkeypatch.setattr("tessera.app.report.measure.measure_locality", None)
    assert call("report", runs / "exp1", runs / "exp1C", "--out", report, *LITTLE) == 0
    assert report.read_text() == before


def test_what_was_measured_more_thinly_is_measured_again(runs, call, tmp_path):
    run = unmeasured(runs / "exp1C", tmp_path / "exp1C")
    few = ["--k", "1", "--steps", "2", "--quick", "--device", "cpu", "--out", tmp_path / "page.html"]
    assert call("report", run, "--n", "1", *few) == 0
    assert json.loads((run / "results" / EVALUATION_FILE).read_text())["evaluation"]["each"] == 1
    assert call("report", run, "--n", "3", *few) == 0
    assert json.loads((run / "results" / EVALUATION_FILE).read_text())["evaluation"]["each"] == 3


def test_other_weights_are_measured_again(runs, call, tmp_path):
    run = unmeasured(runs / "exp1C", tmp_path / "exp1C")
    few = ["--n", "1", "--k", "1", "--steps", "2", "--quick", "--device", "cpu", "--out", tmp_path / "page.html"]
    assert call("report", run, *few) == 0
    record = json.loads((run / "results" / LOCALITY).read_text())
    record["model"]["images_seen"] = 7  # as if the run had been carried on since
    (run / "results" / LOCALITY).write_text(json.dumps(record))
    assert call("report", run, *few) == 0
    assert json.loads((run / "results" / LOCALITY).read_text())["model"]["images_seen"] == 32


def test_a_model_folder_keeps_its_measurements_beside_the_page(runs, call, tmp_path, capfd):
    assert call("models", "export", runs / "exp1C", "--out", tmp_path / "mine") == 0
    capfd.readouterr()
    assert call("report", tmp_path / "mine", "--out", tmp_path / "page.html", *LITTLE, "--json") == 0
    said = json.loads(capfd.readouterr().out)
    assert [one["name"] for one in said["subjects"]] == ["mine"]
    assert said["subjects"][0]["verdict"].endswith(".") and said["subjects"][0]["rows"][1]["n"] == 2
    assert said["config"]["n"] == 2 and said["provenance"]["torch"]
    kept = tmp_path / "page-measured" / "mine"
    result = load_locality(kept / "report-locality.safetensors")
    assert result.influence.shape[-2:] == (16, 16) and len(result.probes) == 5


def test_counts_on_the_card_go_before_fewer_counts_made_here(runs, call, tmp_path, capfd):
    assert call("models", "export", runs / "exp1C", "--out", tmp_path / "mine") == 0
    config = json.loads((tmp_path / "mine" / "config.json").read_text())
    share = {"value": 1.0, "low": 0.9, "high": 1.0, "count": 64, "n": 64}
    yes = {"paper": True, "strict": True}
    rows = [
        {"k": k, "n": 64, "all_found": share, "allowed_extras": share, "two_missing": share, "succeeds": yes}
        for k in range(1, 6)
    ]
    found = {"value": 5, "low": 5, "high": 5, "tested_to": 5, "at_least": True}
    config["results"] = {"k_max": {"paper": found, "strict": found}, "rows": rows, "at_zero": [0, 1]}
    config["results"]["provenance"] = {"device": "a large machine", "date": "2026-01-01", "commit": "abc", "torch": "2"}
    (tmp_path / "mine" / "config.json").write_text(json.dumps(config))
    capfd.readouterr()
    assert call("report", tmp_path / "mine", "--out", tmp_path / "page.html", *LITTLE, "--json") == 0
    said = json.loads(capfd.readouterr().out)["subjects"][0]
    assert said["verdict"].startswith("Composes up to 5, perhaps further")
    text = (tmp_path / "page.html").read_text()
    assert "on the model&#39;s card" in text and "a large machine" in text
    assert text.count('<figure class="tile') == 4 * 2  # images are drawn here all the same


def without_cells(words):
    """The same options for a conditioner that has no cells."""
    at = words.index("--conditioner.cells")
    return [*words[:at], *words[at + 2 :]]


def test_a_model_of_colors_gets_swatches_and_no_conditional_locality(call, tmp_path, minute, capfd):
    assert call("train", "color", *without_cells(minute), "--out", tmp_path / "color") == 0
    few = ["--n", "1", "--k", "1,3", "--steps", "2", "--quick", "--device", "cpu", "--out", tmp_path / "page.html"]
    capfd.readouterr()
    assert call("report", tmp_path / "color", *few, "--json") == 0
    said = json.loads(capfd.readouterr().out)["subjects"][0]
    text = (tmp_path / "page.html").read_text()
    assert said["conditional_locality"] is None and "conditions have no location" in text
    assert text.count('class="swatch') == 1 + 3


def test_an_unconditional_model_is_shown_but_not_evaluated(call, tmp_path, minute, capfd):
    words = ["--conditioner.kind", "nothing", "--out", tmp_path / "free"]
    assert call("train", "exp1", *without_cells(minute), *words) == 0
    assert call("report", tmp_path / "free", "--quick", "--device", "cpu", "--out", tmp_path / "page.html") == 0
    text = (tmp_path / "page.html").read_text()
    assert "How far it composes was not measured." in text and 'id="images"' not in text
    assert 'class="viewer"' in text


def test_records_get_sections_of_their_own(call, tmp_path):
    page = tmp_path / "records.html"
    assert call("report", RESULTS / "theory-check.json", RESULTS / "dynamics-depth.json",
                RESULTS / "dynamics-run.json", "--out", page) == 0  # fmt: skip
    text = page.read_text()
    assert 'id="theory"' in text and 'id="dynamics"' in text and 'id="images"' not in text
    assert "lemma 1" in text and "Starts that rise, by depth" in text


def test_of_closed_forms_only_those_that_were_evaluated_are_listed(call, tmp_path):
    """A record of how a network compares with a closed form has no K_max."""
    words = [RESULTS / "theory-ideal-32.json", RESULTS / "theory-likeness-exp1.json"]
    assert call("report", *words, "--out", tmp_path / "page.html") == 0
    sheet = (tmp_path / "page.html").read_text().partition("Denoisers that no one trained")[2]
    assert sheet.partition("</table>")[0].count('<th scope="row">') == 1


def test_swing_by_of_a_diffusion_model_is_drawn_in_the_colors_of_the_page(call, tmp_path):
    row = {
        "gap": 0.4, "seeds": 2, "first": {"concept": "size"}, "steps": [1, 10, 100], "error": [1.0, 0.4, 0.5],
        "path": [[0, 0], [0.2, 0.9], [0.4, 0.9]], "band": [[0.9, 0.3, 0.4], [1.1, 0.5, 0.6]], "trained_at": 10,
        "rise": {"value": 0.1, "low": 0.05, "high": 0.2}, "rise_by_chance": 0.01, "p": 0.01, "swing_by": True,
    }  # fmt: skip
    (tmp_path / "swingby.json").write_text(json.dumps({"plan": {}, "gaps": [row], "provenance": {}}))
    assert call("report", tmp_path / "swingby.json", "--out", tmp_path / "page.html") == 0
    text = (tmp_path / "page.html").read_text()
    assert "0.100" in text and "diffusion model of circles" in text
    assert "fill: #000000" not in text.partition('id="dynamics"')[2]


def test_records_of_detector_and_locality_about_one_model_make_one_subject(runs, call, tmp_path, capfd):
    little = ["--steps", "2", "--device", "cpu"]
    look = ["--k", "2", "--images", "1", "--levels", "2", "--source", "generated"]
    assert call("locality", runs / "exp1C", *look, *little, "--out", tmp_path / "result") == 0
    assert call("sample", runs / "exp1C", "--k", "1-2", "--each", "1", *little, "--out", tmp_path / "samples") == 0
    assert call("evaluate", tmp_path / "samples", "--device", "cpu", "--out", tmp_path / "detector.json") == 0
    capfd.readouterr()
    records = [tmp_path / "result" / "locality.json", tmp_path / "detector.json"]
    assert call("report", *records, "--out", tmp_path / "page.html", "--json") == 0
    said = json.loads(capfd.readouterr().out)["subjects"]
    assert [one["name"] for one in said] == ["exp1C"] and said[0]["max_train_objects"] == 3
    assert said[0]["conditional_locality"]["k"] == 2 and [row["k"] for row in said[0]["rows"]] == [1, 2]
    assert 'id="why"' in (tmp_path / "page.html").read_text()


def test_a_scatter_is_drawn_from_three_points_on(call, tmp_path):
    points = [
        {"model": name, "images_seen": 10, "k_max": k, "max_train_objects": 3, "locality": where}
        for name, k, where in (("a", 3, 0.3), ("b", 6, 0.6), ("c", 9, 0.9))
    ]
    (tmp_path / "points.json").write_text(json.dumps(points))
    assert call("report", tmp_path / "points.json", "--out", tmp_path / "page.html") == 0
    text = (tmp_path / "page.html").read_text()
    assert 'id="scatter"' in text and "Spearman 1.00" in text and "too few for more than a hint" in text


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("nowhere",), "no model"),
        ((), "at least one run"),
        (("exp1", "--out", "report.pdf"), "such as report.html"),
        (("exp1", "--n", "0"), "At least one image"),
    ],
)
def test_bad_input_is_one_sentence(call, capfd, words, sentence, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert call("report", *words) == 2
    said = capfd.readouterr().err
    assert sentence in said and "Traceback" not in said
    assert not list(tmp_path.glob("*.html"))


def test_a_record_of_no_known_kind_is_refused_alone_and_passed_over_in_a_folder(call, tmp_path, capfd):
    (tmp_path / "odd.json").write_text("{}")
    assert call("report", tmp_path / "odd.json", "--out", tmp_path / "page.html") == 2
    assert "no record that a report can show" in capfd.readouterr().err
    assert call("report", tmp_path, "--out", tmp_path / "page.html") == 2
    assert "nothing to report" in " ".join(capfd.readouterr().err.split())
