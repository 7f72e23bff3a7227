"""What the page shows is what the library measures, and what the command line makes again."""

import base64
import io
import json
import shlex
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

pytest.importorskip("fastapi", reason="the explorer's extra is not installed")

from pydantic import ValidationError

from tessera.cli import main
from tessera.denoiser.folder import Model
from tessera.errors import UserError
from tessera.explorer.requests import Drawing, Probing, Watching
from tessera.explorer.shelf import NO_MODELS, Exhibit, distinct, open_shelf
from tessera.explorer.verbs import extra_needed
from tessera.explorer.ways import Memory, Way
from tessera.images.pictures import to_uint8
from tessera.judge.kmax import Training
from tessera.locality.pixels import pixel_influence
from tessera.sampler.sample import sample

PLACES = ((0.65, 0.65), (0.25, 0.40625))
ASKED = {"places": PLACES, "seed": 5, "each": 2, "steps": 4}


def pixels(url):
    return np.array(Image.open(io.BytesIO(base64.b64decode(url.partition(",")[2]))))


def last(events, kind):
    return [event for event in events if event["event"] == kind][-1]


def run(command, folder, monkeypatch):
    """A command line of the page's, in a folder of its own."""
    monkeypatch.chdir(folder)
    words = shlex.split(command)
    assert words[0] == "tessera"
    with pytest.raises(SystemExit) as left:
        main(words[1:])
    assert left.value.code == 0
    return folder / words[words.index("--out") + 1]


@pytest.mark.parametrize(
    ("name", "asked"),
    [
        ("exp1", ASKED),
        ("exp1", {**ASKED, "how": "localize", "radius": 1}),
        ("exp1C", {**ASKED, "how": "project"}),
        ("exp3", {**ASKED, "places": ()}),
        ("color", {"colors": ("blue", "red"), "steps": 3, "how": "sum"}),
    ],
)
def test_the_exported_command_makes_the_same_pixels(studio, name, asked, tmp_path, monkeypatch):
    done = last(studio.draw(Drawing(models=(name,), **asked)), "done")
    out = run(done["command"], tmp_path, monkeypatch)
    made = [np.array(Image.open(path)) for path in sorted(out.glob("k*/*.png"))]
    assert len(made) == len(done["pictures"]) == asked.get("each", 1)
    for shown, file in zip(done["pictures"], made):
        np.testing.assert_array_equal(pixels(shown), file)
    record = json.loads((out / "asked.json").read_text())
    assert [picture["seed"] for picture in record["pictures"]] == done["seeds"]


def test_the_exported_probe_command_measures_the_same(studio, tmp_path, monkeypatch):
    request = Probing(models=("exp1",), **ASKED, how="localize", picture=1, step=2, at=(0.5, 0.3))
    shown = last(studio.probe(request), "probed")
    record = json.loads((run(shown["command"], tmp_path, monkeypatch) / "probe.json").read_text())
    influence = np.frombuffer(base64.b64decode(shown["influence"]), np.float32).reshape(32, 32)
    np.testing.assert_allclose(record["influence"], influence, rtol=1e-5, atol=1e-9)
    np.testing.assert_allclose(record["conditions"], shown["conditions"], rtol=1e-5)
    assert (record["row"], record["col"], record["side90"]) == (shown["row"], shown["col"], shown["side90"])
    assert (tmp_path / "explored/exp1-probe/influence.png").is_file()


def test_every_step_is_shown_and_the_last_picture_is_the_samplers(studio):
    told = list(studio.draw(Drawing(models=("exp1C",), **ASKED)))
    assert [event["step"] for event in told[:-1]] == [0, 1, 2, 3]
    model = studio.shelf["exp1C"].model
    way = studio.memory.get(Drawing(models=("exp1C",), **ASKED).key("exp1C"))
    seeds = [ask.seed for ask in way.asks]
    from tessera.sampler.noise import noise_levels

    true = sample(model.denoiser, model.tell.at(PLACES), 32, seeds, sigmas=noise_levels(4))
    assert torch.equal(to_uint8(true), to_uint8(way.pictures))


def test_the_cost_of_a_repair_is_told(studio):
    """Summed scores ask about nothing and about each of the two conditions."""
    costs = {
        how: last(studio.draw(Drawing(models=("exp1",), **ASKED, how=how)), "done")["cost"]
        for how in ("plain", "sum")
    }
    assert costs == {"plain": 1.0, "sum": 3.0}


def test_every_model_shows_something_before_any_is_done(studio):
    told = list(studio.draw(Drawing(models=("exp1", "exp1C", "exp3"), **ASKED)))
    first_done = next(n for n, event in enumerate(told) if event["event"] == "done")
    assert {event["model"] for event in told[:first_done]} == {"exp1", "exp1C", "exp3"}
    assert {event["model"] for event in told if event["event"] == "done"} == {"exp1", "exp1C", "exp3"}


def test_verdicts_name_what_is_found_missing_and_extra(studio):
    done = last(studio.draw(Drawing(models=("exp1",), **ASKED)), "done")
    for verdict in done["verdicts"]:
        assert verdict["wanted"] == 2 == verdict["found"] + verdict["missing"] == len(verdict["filled"])
        assert len(verdict["findings"]) == verdict["found"] + verdict["extra"]
        assert verdict["reason"] and sum(verdict["filled"]) == verdict["found"]
        for finding in verdict["findings"]:
            left, top, right, bottom = finding["box"]
            assert left < finding["place"][0] < right and top < finding["place"][1] < bottom


def test_a_model_that_cannot_refuses_alone(studio):
    many = tuple((0.03 * n, 0.5) for n in range(13))  # the list has twelve slots
    told = list(studio.draw(Drawing(models=("exp3", "exp1C"), places=many, steps=2)))
    refused = last(told, "refused")
    assert refused["model"] == "exp3" and "12 conditions" in refused["sentence"]
    assert last(told, "done")["model"] == "exp1C"


def test_colours_lie_nowhere_and_cannot_be_localized(studio):
    told = list(studio.draw(Drawing(models=("color",), colors=("red",), steps=2, how="localize")))
    assert [event["event"] for event in told] == ["refused"]
    assert "told colors" in told[0]["sentence"]


def test_what_was_drawn_is_remembered_not_drawn_again(studio):
    request = Watching(models=("exp1C",), **ASKED, picture=1)
    assert studio.remembered(request) is None
    list(studio.draw(Drawing(models=("exp1C",), **ASKED)))
    told = list(studio.watch(request))
    assert [event["event"] for event in told] == ["way"]
    assert studio.watched(request, studio.remembered(request)) == told
    assert pixels(told[0]["clean"]).shape == pixels(told[0]["noisy"]).shape == (4 * 32, 32, 3)


def test_ways_at_hand_are_shown_even_if_memory_forgets_them_meanwhile(studio, monkeypatch):
    request = Watching(models=("exp1C",), **ASKED)
    list(studio.watch(request))
    ways = studio.remembered(request)
    studio.memory.ways.clear()
    monkeypatch.setattr(studio, "gone", None)  # no network may be asked
    assert [event["event"] for event in studio.watched(request, ways)] == ["way"]
    beyond = Watching(models=("exp1C",), **ASKED, picture=6)
    assert "only 2 were made" in studio.watched(beyond, ways)[0]["sentence"]


def test_a_forgotten_way_is_gone_again(studio):
    told = list(studio.watch(Watching(models=("exp1C",), **ASKED)))
    assert [event["event"] for event in told] == ["step"] * 4 + ["way"]


def test_the_denoised_column_ends_at_the_picture(studio):
    """At the last level hardly any noise is left, so noisy, denoised and final picture agree."""
    done = last(studio.draw(Drawing(models=("exp1C",), **ASKED)), "done")
    way = last(studio.watch(Watching(models=("exp1C",), **ASKED)), "way")
    final = pixels(done["pictures"][0]).astype(int)
    assert np.abs(pixels(way["clean"])[-32:] - final).max() <= 3
    assert np.abs(pixels(way["noisy"])[-32:] - final).max() <= 3


def test_a_probe_is_eq_9_of_the_picture_at_that_level(studio):
    request = Probing(models=("exp1",), **ASKED, picture=1, step=2, at=(0.5, 0.3))
    shown = last(studio.probe(request), "probed")
    way, model = studio.memory.get(request.key("exp1")), studio.shelf["exp1"].model
    x, sigma = way.x[2, 1][None], way.sigmas[2]
    true = pixel_influence(model.denoiser, x, sigma, model.tell.at(PLACES), at=[(9, 16)])[0, 0]
    influence = np.frombuffer(base64.b64decode(shown["influence"]), np.float32).reshape(32, 32)
    np.testing.assert_allclose(influence, true.numpy(), rtol=1e-5, atol=1e-9)
    assert (shown["row"], shown["col"], shown["sigma"]) == (9, 16, sigma)


def test_a_repaired_model_is_probed_as_repaired(studio):
    """Told only what is near, a far condition cannot move a pixel; the network inside would still let it."""
    asked = {**ASKED, "places": ((0.1, 0.1), (0.9, 0.9)), "picture": 0, "step": 2, "at": (0.1, 0.1)}
    plain = last(studio.probe(Probing(models=("exp1",), **asked)), "probed")
    local = last(studio.probe(Probing(models=("exp1",), how="localize", radius=1, **asked)), "probed")
    assert plain["conditions"][1] > 0
    assert local["conditions"][0] > 0 and local["conditions"][1] == 0


def test_a_local_network_glows_only_near_the_probe(studio):
    shown = last(studio.probe(Probing(models=("exp1C",), **ASKED, step=1, at=(0.1, 0.1))), "probed")
    influence = np.frombuffer(base64.b64decode(shown["influence"]), np.float32).reshape(32, 32)
    assert influence[:6, :6].max() > 0 and influence[16:].max() == influence[:, 16:].max() == 0


def test_a_probe_beyond_the_pictures_made_is_refused(studio):
    told = list(studio.probe(Probing(models=("exp1C",), **{**ASKED, "steps": 2}, step=3, at=(0, 0))))
    assert "There is no picture 0 at step 3" in last(told, "refused")["sentence"]
    told = list(studio.watch(Watching(models=("exp1C",), **ASKED, picture=6)))
    assert "only 2 were made" in last(told, "refused")["sentence"]


def test_memory_keeps_the_last_and_forgets_the_oldest():
    def way(n):
        return Way([], [], torch.zeros(n), torch.zeros(0), torch.zeros(0))

    memory = Memory(limit=100)
    for key, size in (("a", 10), ("b", 10), ("c", 10)):  # 40 bytes each
        memory.get("a")
        memory.put(key, way(size))
    assert memory.get("a") and memory.get("b") is None and memory.get("c")
    memory.put("huge", way(1000))
    assert memory.get("huge") and memory.get("a") is None


@pytest.mark.parametrize(
    "wrong",
    [
        {"places": [[1.5, 0]]},
        {"seed": -1},
        {"each": 99},
        {"steps": 0},
        {"how": "magic"},
        {"models": []},
        {"what": 1},
    ],
)
def test_requests_that_make_no_sense_are_refused(wrong):
    with pytest.raises(ValidationError):
        Drawing(**{"models": ["exp1"], **wrong})


# -- the shelf and the verbs -----------------------------------------------------------------------------------------


def test_cards_tell_what_the_page_must_know(shelf):
    cards = {exhibit.name: exhibit.card() for exhibit in shelf}
    assert {name: card["told"] for name, card in cards.items()} == {
        "exp1": "places",
        "exp1C": "places",
        "exp3": "places",
        "color": "colors",
    }
    assert cards["exp1"]["seen_max"] == 3 and cards["exp1"]["cells"] == 16 and cards["exp3"]["capacity"] == 12
    assert cards["color"]["hows"] == ["plain", "sum"]


def test_a_model_whose_settings_are_null_has_a_card(shelf, monkeypatch):
    monkeypatch.setattr(Model, "seen_max", 3)  # this and the label are read elsewhere
    monkeypatch.setattr(Exhibit, "training", Training(3, "all"))
    exhibit = shelf["exp1"]
    bare = replace(exhibit, model=replace(exhibit.model, config={**exhibit.model.config, "settings": None}))
    assert bare.card()["about"] == ""


def test_equal_names_are_numbered():
    assert distinct(["a", "b", "a", "a"]) == ["a", "b", "a (2)", "a (3)"]


def test_an_unknown_model_is_refused_in_a_sentence(shelf):
    with pytest.raises(UserError, match="no model `exp9` here"):
        shelf["exp9"]


def test_without_a_model_the_shipped_ones_are_shown(folders, monkeypatch):
    monkeypatch.setattr("tessera.denoiser.folder.SHELVES", (folders["exp1"].parent,))
    assert [exhibit.name for exhibit in open_shelf([], torch.device("cpu"))] == ["exp1", "color"]


def call(*words):
    with pytest.raises(SystemExit) as left:
        main([str(word) for word in words])
    return left.value.code


def test_without_any_model_one_sentence_says_what_to_do(monkeypatch, tmp_path, capfd):
    monkeypatch.setattr("tessera.denoiser.folder.SHELVES", (tmp_path,))
    assert call("explore", "--device", "cpu") == 2
    assert NO_MODELS in " ".join(capfd.readouterr().err.split())


def test_without_its_extra_the_verb_says_what_to_install(folders, monkeypatch, capfd):
    monkeypatch.delitem(sys.modules, "tessera.explorer.server", raising=False)
    monkeypatch.setitem(sys.modules, "fastapi", None)
    assert call("explore", folders["exp1"], "--device", "cpu") == 2
    assert "pip install 'tessera-diffusion[explorer]'" in capfd.readouterr().err


def test_another_import_that_fails_is_not_blamed_on_the_extra():
    with pytest.raises(ImportError, match="broken"), extra_needed():
        raise ImportError("broken", name="tessera.judge")


def test_bad_input_of_the_verbs_is_told_in_one_sentence(folders, capfd):
    model = folders["exp1"]
    probe = ["explore", "probe", model, "--step", "0", "--steps", "2", "--device", "cpu"]
    for words, sentence in [
        (["explore", "nowhere", "--device", "cpu"], "There is no model `nowhere`"),
        (["explore", model, "--port", "99999", "--device", "cpu"], "Cannot listen"),
        ([*probe, "--at", "0.5"], "A place is a pair"),
        ([*probe, "--at", "0.5,0.5 0.1,0.1"], "One place is probed"),
        ([*probe, "--at", "0.5,0.5", "--colors", "red"], "exp1 is told places"),
        ([*probe, "--at", "0.5,0.5", "--each", "50"], "The request does not fit: each"),
    ]:
        assert call(*words) == 2, words
        told = capfd.readouterr().err
        assert sentence in told and "Traceback" not in told


def test_a_probe_from_the_command_line_prints_one_object(folders, capfd):
    words = [
        "--at",
        "0.5,0.5",
        "--step",
        "1",
        "--steps",
        "2",
        "--places",
        "0.5,0.5",
        "--device",
        "cpu",
        "--json",
    ]
    assert call("explore", "probe", folders["exp1C"], *words) == 0
    record = json.loads(capfd.readouterr().out)
    assert len(record["conditions"]) == 1 and record["provenance"]["tessera"]
    assert call("explore", "probe", folders["color"], *words[:6], "--colors", "red", "--device", "cpu") == 0
    assert "red" in capfd.readouterr().out
