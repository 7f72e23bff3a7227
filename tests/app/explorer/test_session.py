"""The page shows what the library measures and what its exported commands make."""

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

from programs import with_set
from tessera.analysis.pixel_influence import pixel_influence
from tessera.app.explorer.models import _NO_MODELS, SessionModel, open_models
from tessera.app.explorer.requests import PixelProbeRequest, SampleRequest, TrajectoryRequest
from tessera.app.explorer.sampling import SampleCache, Sampled
from tessera.cli.main import main
from tessera.errors import UserError, needs_extra
from tessera.evaluation.kmax import TrainingRange
from tessera.models.model import Model
from tessera.render.image_io import to_uint8
from tessera.rows import distinct
from tessera.sampling.sample import sample
from tessera.sampling.schedule import noise_levels
from tessera.sampling.trajectory import Trajectory

LOCATIONS = ((0.65, 0.65), (0.25, 0.40625))
REQUEST = {"locations": LOCATIONS, "seed": 5, "each": 2, "steps": 4}


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
        main(with_set(*words[1:]))
    assert left.value.code == 0
    return folder / words[words.index("--out") + 1]


@pytest.mark.parametrize(
    ("name", "prompt"),
    [
        ("exp1", REQUEST),
        ("exp1", {**REQUEST, "compose": "localize", "radius": 1}),
        ("exp1C", {**REQUEST, "compose": "project"}),
        ("exp3", {**REQUEST, "locations": ()}),
        ("color", {"colors": ("blue", "red"), "steps": 3, "compose": "sum"}),
    ],
)
def test_the_exported_command_makes_the_same_pixels(session, name, prompt, tmp_path, monkeypatch):
    done = last(session.sample(SampleRequest(models=(name,), **prompt)), "done")
    out = run(done["command"], tmp_path, monkeypatch)
    made = [np.array(Image.open(path)) for path in sorted(out.glob("k*/*.png"))]
    assert len(made) == len(done["images"]) == prompt.get("each", 1)
    for shown, file in zip(done["images"], made):
        np.testing.assert_array_equal(pixels(shown), file)
    record = json.loads((out / "samples.json").read_text())
    assert [image["seed"] for image in record["images"]] == done["seeds"]


def test_the_exported_probe_command_measures_the_same(session, tmp_path, monkeypatch):
    request = PixelProbeRequest(models=("exp1",), **REQUEST, compose="localize", image=1, step=2, at=(0.5, 0.3))
    shown = last(session.probe(request), "probe")
    record = json.loads((run(shown["command"], tmp_path, monkeypatch) / "probe.json").read_text())
    influence = np.frombuffer(base64.b64decode(shown["influence"]), np.float32).reshape(32, 32)
    np.testing.assert_allclose(record["influence"], influence, rtol=1e-5, atol=1e-9)
    np.testing.assert_allclose(record["conditions"], shown["conditions"], rtol=1e-5)
    assert (record["row"], record["col"], record["side90"]) == (shown["row"], shown["col"], shown["side90"])
    assert (tmp_path / "explored/exp1-probe/influence.png").is_file()


def test_every_step_is_shown_and_the_last_image_is_the_samplers(session):
    got = list(session.sample(SampleRequest(models=("exp1C",), **REQUEST)))
    assert [event["step"] for event in got[:-1]] == [0, 1, 2, 3]
    model = session.models["exp1C"].model
    sampled = session.cache.get(SampleRequest(models=("exp1C",), **REQUEST).key("exp1C"))
    seeds = [prompt.seed for prompt in sampled.prompts]
    true = sample(model.denoiser, model.conditioner.at(LOCATIONS), 32, seeds, sigmas=noise_levels(4))
    assert torch.equal(to_uint8(true), to_uint8(sampled.trajectory.last))


def test_the_cost_of_composition_is_reported(session):
    """Summed scores take a pass without a condition and one for each of the two."""
    costs = {
        how: last(session.sample(SampleRequest(models=("exp1",), **REQUEST, compose=how)), "done")["cost"]
        for how in ("plain", "sum")
    }
    assert costs == {"plain": 1.0, "sum": 3.0}


def test_every_model_shows_something_before_any_is_done(session):
    got = list(session.sample(SampleRequest(models=("exp1", "exp1C", "exp3"), **REQUEST)))
    first_done = next(n for n, event in enumerate(got) if event["event"] == "done")
    assert {event["model"] for event in got[:first_done]} == {"exp1", "exp1C", "exp3"}
    assert {event["model"] for event in got if event["event"] == "done"} == {"exp1", "exp1C", "exp3"}


def test_scores_count_found_missing_and_extra(session):
    done = last(session.sample(SampleRequest(models=("exp1",), **REQUEST)), "done")
    for score in done["scores"]:
        assert score["wanted"] == 2 == score["num_found"] + score["missing"] == len(score["found"])
        assert len(score["detections"]) == score["num_found"] + score["extra"]
        assert score["reason"] and sum(score["found"]) == score["num_found"]
        for detection in score["detections"]:
            left, top, right, bottom = detection["box"]
            assert left < detection["location"][0] < right and top < detection["location"][1] < bottom


def test_a_refusal_of_one_model_leaves_the_others(session):
    many = tuple((0.03 * n, 0.5) for n in range(13))  # the list has twelve slots
    got = list(session.sample(SampleRequest(models=("exp3", "exp1C"), locations=many, steps=2)))
    refused = last(got, "refused")
    assert refused["model"] == "exp3" and "12 conditions" in refused["sentence"]
    assert last(got, "done")["model"] == "exp1C"


def test_colors_have_no_location_and_cannot_be_localized(session):
    got = list(session.sample(SampleRequest(models=("color",), colors=("red",), steps=2, compose="localize")))
    assert [event["event"] for event in got] == ["refused"]
    assert "conditioned on colors" in got[0]["sentence"]


def test_what_was_sampled_is_cached(session):
    request = TrajectoryRequest(models=("exp1C",), **REQUEST, image=1)
    assert session.cached(request) is None
    list(session.sample(SampleRequest(models=("exp1C",), **REQUEST)))
    got = list(session.trajectory(request))
    assert [event["event"] for event in got] == ["trajectory"]
    (again,) = session.cached_trajectory(request, session.cached(request))
    assert again | {"seconds": 0} == got[0] | {"seconds": 0}
    assert pixels(got[0]["denoised"]).shape == pixels(got[0]["noisy"]).shape == (4 * 32, 32, 3)


def test_trajectories_at_hand_are_shown_even_if_the_cache_drops_them_meanwhile(session, monkeypatch):
    request = TrajectoryRequest(models=("exp1C",), **REQUEST)
    list(session.trajectory(request))
    found = session.cached(request)
    session.cache.kept.clear()
    monkeypatch.setattr(session, "sampled", None)  # no network may run
    assert [event["event"] for event in session.cached_trajectory(request, found)] == ["trajectory"]
    beyond = TrajectoryRequest(models=("exp1C",), **REQUEST, image=6)
    assert "only 2 were made" in session.cached_trajectory(beyond, found)[0]["sentence"]


def test_a_trajectory_that_is_not_cached_is_sampled_again(session):
    got = list(session.trajectory(TrajectoryRequest(models=("exp1C",), **REQUEST)))
    assert [event["event"] for event in got] == ["step"] * 4 + ["trajectory"]


def test_the_denoised_column_ends_at_the_image(session):
    """At the last level hardly any noise is left, so noisy, denoised and final image agree."""
    done = last(session.sample(SampleRequest(models=("exp1C",), **REQUEST)), "done")
    way = last(session.trajectory(TrajectoryRequest(models=("exp1C",), **REQUEST)), "trajectory")
    final = pixels(done["images"][0]).astype(int)
    assert np.abs(pixels(way["denoised"])[-32:] - final).max() <= 3
    assert np.abs(pixels(way["noisy"])[-32:] - final).max() <= 3


def test_a_probe_is_eq_9_of_the_image_at_that_level(session):
    request = PixelProbeRequest(models=("exp1",), **REQUEST, image=1, step=2, at=(0.5, 0.3))
    shown = last(session.probe(request), "probe")
    sampled, model = session.cache.get(request.key("exp1")), session.models["exp1"].model
    x, sigma = sampled.trajectory.x[2, 1][None], sampled.sigmas[2]
    true = pixel_influence(model.denoiser, x, sigma, model.conditioner.at(LOCATIONS), at=[(9, 16)])[0, 0]
    influence = np.frombuffer(base64.b64decode(shown["influence"]), np.float32).reshape(32, 32)
    np.testing.assert_allclose(influence, true.numpy(), rtol=1e-5, atol=1e-9)
    assert (shown["row"], shown["col"], shown["sigma"]) == (9, 16, sigma)


def test_a_composed_model_is_probed_as_composed(session):
    """With near conditions only, a far condition has no influence, though it has in the network itself."""
    prompt = {**REQUEST, "locations": ((0.1, 0.1), (0.9, 0.9)), "image": 0, "step": 2, "at": (0.1, 0.1)}
    plain = last(session.probe(PixelProbeRequest(models=("exp1",), **prompt)), "probe")
    local = last(session.probe(PixelProbeRequest(models=("exp1",), compose="localize", radius=1, **prompt)), "probe")
    assert plain["conditions"][1] > 0
    assert local["conditions"][0] > 0 and local["conditions"][1] == 0


def test_a_local_network_has_influence_only_near_the_probe(session):
    shown = last(session.probe(PixelProbeRequest(models=("exp1C",), **REQUEST, step=1, at=(0.1, 0.1))), "probe")
    influence = np.frombuffer(base64.b64decode(shown["influence"]), np.float32).reshape(32, 32)
    assert influence[:6, :6].max() > 0 and influence[16:].max() == influence[:, 16:].max() == 0


def test_a_probe_beyond_the_images_made_is_refused(session):
    got = list(session.probe(PixelProbeRequest(models=("exp1C",), **{**REQUEST, "steps": 2}, step=3, at=(0, 0))))
    assert "There is no image 0 at step 3" in last(got, "refused")["sentence"]
    got = list(session.trajectory(TrajectoryRequest(models=("exp1C",), **REQUEST, image=6)))
    assert "only 2 were made" in last(got, "refused")["sentence"]


def test_the_cache_keeps_the_last_and_drops_the_oldest():
    def sampled(n):
        return Sampled([], Trajectory(torch.zeros(0), torch.zeros(n)))

    cache = SampleCache(limit=200)
    for key, size in (("a", 10), ("b", 10), ("c", 10)):  # 80 bytes each
        cache.get("a")
        cache.put(key, sampled(size))
    assert cache.get("a") and cache.get("b") is None and cache.get("c")
    cache.put("huge", sampled(1000))
    assert cache.get("huge") and cache.get("a") is None


@pytest.mark.parametrize(
    "wrong",
    [
        {"locations": [[1.5, 0]]},
        {"seed": -1},
        {"each": 99},
        {"steps": 0},
        {"compose": "magic"},
        {"models": []},
        {"what": 1},
    ],
)
def test_requests_that_make_no_sense_are_refused(wrong):
    with pytest.raises(ValidationError):
        SampleRequest(**{"models": ["exp1"], **wrong})


# -- the models and the verbs -----------------------------------------------------------------------------------------


def test_cards_have_what_the_page_needs(models):
    cards = {entry.name: entry.card() for entry in models.values()}
    assert {name: card["condition_kind"] for name, card in cards.items()} == {
        "exp1": "locations",
        "exp1C": "locations",
        "exp3": "locations",
        "color": "colors",
    }
    assert cards["exp1"]["max_train_objects"] == 3 and cards["exp1"]["cells"] == 16 and cards["exp3"]["capacity"] == 12
    assert cards["color"]["compose_methods"] == ["plain", "sum"]


def test_a_model_whose_settings_are_null_has_a_card(models, monkeypatch):
    monkeypatch.setattr(Model, "max_train_objects", 3)  # this and the label are read elsewhere
    monkeypatch.setattr(SessionModel, "training", TrainingRange(3, "all"))
    entry = models["exp1"]
    bare = replace(entry, model=entry.model.copy_with(config={**entry.model.config, "settings": None}))
    assert bare.card()["about"] == ""


def test_equal_names_are_numbered():
    assert distinct(["a", "b", "a", "a"]) == ["a", "b", "a (2)", "a (3)"]


def test_an_unknown_model_is_refused_in_a_sentence(models):
    with pytest.raises(UserError, match="no model `exp9` in this session"):
        models["exp9"]


def test_without_a_model_the_shipped_ones_are_shown(folders, monkeypatch):
    monkeypatch.setattr("tessera.models.model_folder.ZOO_FOLDERS", (folders["exp1"].parent,))
    assert [entry.name for entry in open_models([], torch.device("cpu")).values()] == ["exp1", "color"]


def call(*words):
    with pytest.raises(SystemExit) as left:
        main(with_set(*words))
    return left.value.code


def test_without_any_model_one_sentence_says_what_to_do(monkeypatch, tmp_path, capfd):
    monkeypatch.setattr("tessera.models.model_folder.ZOO_FOLDERS", (tmp_path,))
    assert call("explore", "--device", "cpu") == 2
    assert _NO_MODELS in " ".join(capfd.readouterr().err.split())


def test_without_its_extra_the_verb_says_what_to_install(folders, monkeypatch, capfd):
    monkeypatch.delitem(sys.modules, "tessera.app.explorer.server", raising=False)
    monkeypatch.setitem(sys.modules, "fastapi", None)
    assert call("explore", folders["exp1"], "--device", "cpu") == 2
    assert "pip install 'tessera-diffusion[explorer]'" in capfd.readouterr().err


def test_another_import_that_fails_is_not_blamed_on_the_extra():
    with pytest.raises(ImportError, match="broken"), needs_extra("The explorer needs its extra", "explorer", "fastapi"):
        raise ImportError("broken", name="tessera.evaluation")


def test_bad_input_of_the_verbs_is_refused_in_one_sentence(folders, capfd):
    model = folders["exp1"]
    probe = ["explore", model, "--step", "0", "--steps", "2", "--device", "cpu"]
    for words, sentence in [
        (["explore", "nowhere", "--device", "cpu"], "There is no model `nowhere`"),
        (["explore", model, "--port", "99999", "--device", "cpu"], "Cannot listen"),
        ([*probe, "--probe", "0.5"], "A location is a pair"),
        ([*probe, "--probe", "0.5,0.5 0.1,0.1"], "One location is probed"),
        ([*probe, "--probe", "0.5,0.5", "--colors", "red"], "exp1 is conditioned on locations"),
        ([*probe, "--probe", "0.5,0.5", "--each", "50"], "The request does not fit: each"),
    ]:
        assert call(*words) == 2, words
        got = capfd.readouterr().err
        assert sentence in got and "Traceback" not in got


def test_a_probe_from_the_command_line_prints_one_object(folders, capfd):
    words = ["--probe", "0.5,0.5", "--step", "1", "--steps", "2", "--locations", "0.5,0.5", "--device", "cpu", "--json"]
    assert call("explore", folders["exp1C"], *words) == 0
    record = json.loads(capfd.readouterr().out)
    assert len(record["conditions"]) == 1 and record["provenance"]["tessera"]
    assert call("explore", folders["color"], *words[:6], "--colors", "red", "--device", "cpu") == 0
    assert "red" in capfd.readouterr().out
