"""The page in a real browser: prompt, sample, probe, export, keys, narrow windows, and a server that goes away."""

import base64
import io
import json
import re
import shlex
import threading
from urllib.parse import quote

import numpy as np
import pytest
import torch
from PIL import Image

pytest.importorskip("fastapi", reason="the explorer's extra is not installed")

from tessera.app.explorer.models import ModelList
from tessera.app.explorer.requests import MAX_SEED
from tessera.app.explorer.session import Session
from tessera.cli.main import main
from tessera.evaluation.detection import Detection

pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
from playwright.sync_api import expect

PATIENCE = 30_000  # ms; machines may be slow, so that conditions are waited for and never times
expect.set_options(timeout=PATIENCE)


@pytest.fixture(scope="module")
def small_session(models, detector):
    """Models conditioned on locations, of which most tests hide exp3, and one on colors."""
    return Session(ModelList((name, models[name]) for name in ("exp1", "exp1C", "exp3", "color")), detector)


@pytest.fixture(scope="module")
def served(small_session, start_server):
    server = start_server(small_session)
    yield server
    server.stop()


class Visit:
    """A page being looked at, and everything it said and fetched."""

    def __init__(self, browser, server, size=(1300, 900), scheme="light", **settings):
        self.server, self.complaints, self.fetched = server, [], []
        self.context = browser.new_context(
            viewport={"width": size[0], "height": size[1]}, color_scheme=scheme, accept_downloads=True
        )
        self.context.set_default_timeout(PATIENCE)
        self.page = self.context.new_page()
        self.page.on("console", lambda said: said.type == "error" and self.complaints.append(said.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.fetched.append(request.url))
        self.page.goto(server.url + "#" + quote(json.dumps({"steps": 4, "hidden": ["exp3"], **settings})))

    def find(self, selector):
        return self.page.locator(selector)

    def finished(self):
        """Wait until nothing is going on any more."""
        expect(self.find("#status")).to_have_attribute("data-kind", "well")
        for model in self.find(".model").all():
            expect(model.locator(".sum b")).to_have_count(1)
        return self

    def probe(self, model="exp1"):
        self.find(f".model[data-model={model}] .image .frame").click(position={"x": 60, "y": 90})
        for column in self.find(".model").all():
            expect(column.locator(".influence p")).to_contain_text("90% within")
            expect(column.locator(".heat")).not_to_have_class(re.compile("stale"))

    def cell(self, row, col):
        return self.find(f"#board [data-row='{row}'][data-col='{col}']")

    def pixels(self, selector):
        """A canvas as it is, (H, W, 4)."""
        url = self.find(selector).evaluate("canvas => canvas.toDataURL()")
        return np.array(Image.open(io.BytesIO(base64.b64decode(url.partition(",")[2]))))

    def saved(self, button):
        with self.page.expect_download() as waiting:
            self.find(button).click()
        return waiting.value.path()


@pytest.fixture
def visit(browser, served):
    """`visit(size=..., locations=...)` opens the page; afterwards nothing may have failed or come from outside."""
    visits = []

    def open_page(**options):
        visits.append(Visit(browser, served, **options))
        return visits[-1]

    yield open_page
    for one in visits:
        one.context.close()
        assert one.complaints == []
        foreign = [url for url in one.fetched if not url.startswith((served.url, "data:", "blob:"))]
        assert foreign == []


def run(command, folder, monkeypatch):
    monkeypatch.chdir(folder)
    words = shlex.split(command)
    with pytest.raises(SystemExit) as left:
        main(words[1:])
    assert left.value.code == 0
    return folder / words[words.index("--out") + 1]


def image_of(url):
    return np.array(Image.open(io.BytesIO(base64.b64decode(url.partition(",")[2]))))


# -- prompting and sampling ------------------------------------------------------------------------------------


def test_clicks_add_and_remove_objects_and_every_model_samples_them(visit):
    page = visit(locations=[]).finished()
    expect(page.find(".model")).to_have_count(2)
    before = page.pixels(".model[data-model=exp1] .image canvas")
    page.cell(4, 10).click()
    page.cell(10, 3).click()
    expect(page.find("#k")).to_have_text("K = 2")
    expect(page.find(".model[data-model=exp1] .sum")).to_contain_text("of 2")
    page.finished()
    assert not np.array_equal(before, page.pixels(".model[data-model=exp1] .image canvas"))
    page.cell(4, 10).click()
    expect(page.find("#k")).to_have_text("K = 1")
    expect(page.find("#locations-text")).to_have_value("0.21875,0.65625")
    page.find("#undo").click()
    expect(page.find("#k")).to_have_text("K = 2")
    page.find("#study").fill("12")
    expect(page.find("#board .filled")).to_have_count(12)
    expect(page.find(".model[data-model=exp1C] .sum")).to_contain_text("of 12")


def test_scores_count_found_missing_and_extra_with_a_reason(visit):
    page = visit(locations=[[0.65, 0.65]]).finished()
    expect(page.find(".model[data-model=exp1] .sum")).to_have_text(
        re.compile(r"correct.*found \d of 1 · missing \d · extra \d+")
    )
    expect(page.find(".model[data-model=exp1] .reason")).to_have_text(re.compile(r"\w+.*\."))
    assert page.find(".model[data-model=exp1] .image svg circle").count() == 2  # ring and rim
    page.find("#boxes").uncheck()
    expect(page.find(".model[data-model=exp1] .image svg *")).to_have_count(0)


def test_boxes_say_which_detections_are_at_the_prompt_extra_or_malformed(visit, small_session, monkeypatch):
    class Detector:
        def detect(self, images):
            found = [
                Detection(x, y, "red", "cube", "large", "metal", 0.9, well_formed)
                for x, y, well_formed in ((0.65, 0.65, 0.9), (0.3, 0.3, 0.9), (0.8, 0.2, 0.1))
            ]
            return [found] * len(images), torch.zeros(len(images))

    monkeypatch.setattr(small_session, "detector", Detector())
    page = visit(locations=[[0.65, 0.65], [0.1, 0.1]]).finished()
    scores = page.find(".model[data-model=exp1] .image svg")
    for kind, boxes, rings in (("good", 1, 1), ("bad", 1, 1), ("odd", 1, 0)):
        assert scores.locator(f"rect.{kind}").count() == boxes
        assert scores.locator(f"circle.{kind}").count() == rings
    expect(page.find(".model[data-model=exp1] .sum")).to_contain_text("found 1 of 2 · missing 1 · extra 2")


def test_several_images_are_chosen_one_at_a_time(visit):
    page = visit(each=3).finished()
    thumbs = page.find(".model[data-model=exp1] .thumbs button")
    expect(thumbs).to_have_count(3)
    before = page.pixels(".model[data-model=exp1C] .image canvas")
    thumbs.nth(2).click()
    expect(page.find(".model[data-model=exp1C] .thumbs button").nth(2)).to_have_attribute("aria-pressed", "true")
    assert not np.array_equal(before, page.pixels(".model[data-model=exp1C] .image canvas"))
    page.finished()


def test_composition_and_models_are_switched_on_and_off(visit):
    page = visit().finished()
    plain = page.pixels(".model[data-model=exp1] .image canvas")
    page.find("#methods [data-value=localize]").click()
    expect(page.find("#method-hint")).to_contain_text("near it")
    page.finished()
    assert not np.array_equal(plain, page.pixels(".model[data-model=exp1] .image canvas"))
    page.find("#open-export").click()
    expect(page.find("#commands")).to_contain_text("--compose localize --set radius=2")
    page.page.keyboard.press("Escape")
    page.find("#methods [data-value=plain]").click()
    page.finished()
    np.testing.assert_array_equal(plain, page.pixels(".model[data-model=exp1] .image canvas"))
    page.find("#shown").get_by_label("exp1", exact=True).uncheck()
    expect(page.find(".model")).to_have_count(1)


def test_without_sampling_after_every_change_the_screen_keeps_its_images(visit):
    page = visit(locations=[[0.3, 0.4]], auto=False).finished()
    page.cell(1, 1).click()
    expect(page.find("#k")).to_have_text("K = 2")
    expect(page.find("#status")).to_contain_text("press Sample")
    page.probe()  # of the image on the screen
    page.find("#open-export").click()
    expect(page.find("#commands")).to_contain_text("--locations 0.3,0.4 ")
    page.page.keyboard.press("Escape")
    page.page.keyboard.press("s")
    expect(page.find(".model[data-model=exp1] .sum")).to_contain_text("of 2")
    page.finished()


def test_colors_have_a_mode_of_their_own(visit):
    page = visit().finished()
    page.find("#modes [data-value=colors]").click()
    page.page.get_by_label("One more red").click()
    page.page.get_by_label("One more red").click()
    expect(page.find("#k-colors")).to_have_text("K = 2")
    expect(page.find(".model[data-model=color] .sum")).to_contain_text("of 2")
    expect(page.find("#methods [data-value=localize]")).to_be_disabled()
    page.finished().probe("color")
    page.find("#open-export").click()
    expect(page.find("#commands")).to_contain_text("--colors red,red")


# -- looking inside ------------------------------------------------------------------------------------------


def test_the_noise_level_is_dragged_from_noise_to_image(visit):
    page = visit().finished()
    noisy = ".model[data-model=exp1C] .noisy canvas"
    page.find("#level").fill("0")
    expect(page.find("#level-value")).to_contain_text("σ = 80")
    first = page.pixels(noisy)
    page.find("#level").fill("3")
    expect(page.find("#level-value")).to_contain_text("step 4 of 4")
    assert np.abs(first.astype(int) - page.pixels(noisy)).mean() > 10
    image = page.pixels(".model[data-model=exp1C] .image canvas").astype(int)
    assert np.abs(page.pixels(noisy) - image).max() <= 3  # hardly any noise is left
    expect(page.find("#level")).to_have_attribute("aria-valuetext", re.compile("sigma .*, step 4 of 4"))


def test_a_click_shows_which_pixels_and_conditions_move_a_pixel(visit):
    page = visit(locations=[[0.3, 0.4], [0.7, 0.7]], step=2).finished()
    page.probe()
    heat = page.pixels(".model[data-model=exp1C] .heat canvas")[..., :3]
    assert heat.max() > 200 and (heat.sum(-1) < 10).mean() > 0.5  # a local network glows in few locations
    assert page.find(".model[data-model=exp1] .heat svg g").count() == 2  # a cross for each location
    expect(page.find(".model[data-model=exp1] .bar span")).to_have_count(2)
    page.find("#level").fill("1")
    expect(page.find(".model[data-model=exp1] .heat")).not_to_have_class(re.compile("stale"))
    expect(page.find("#probe-text")).to_contain_text("Probe at (")
    page.cell(1, 1).click()  # other images, so the same pixel is probed anew
    expect(page.find(".model[data-model=exp1] .heat svg g")).to_have_count(3)
    expect(page.find(".model[data-model=exp1] .heat")).not_to_have_class(re.compile("stale"))


# -- taking away ---------------------------------------------------------------------------------------------


def test_what_is_exported_can_be_made_again_bit_for_bit(visit, tmp_path, monkeypatch):
    page = visit(each=2, locations=[[0.3, 0.4]], compose="sum", seed=7).finished()
    page.probe()
    page.find("#open-export").click()
    commands = page.find("#commands").inner_text().splitlines()
    record = json.loads(page.saved("#save-json").read_text())
    assert record["commands"] == commands and len(commands) == 4
    shown = {model["name"]: model for model in record["models"]}
    assert shown["exp1"]["scores"] and len(shown["exp1"]["probe"]["influence"]) == 32 * 32
    for command in commands[::2]:
        out = run(command, tmp_path, monkeypatch)
        made = [np.array(Image.open(path)) for path in sorted(out.glob("k*/*.png"))]
        for one, file in zip(shown[out.name]["images"], made, strict=True):
            np.testing.assert_array_equal(image_of(one), file)
    again = json.loads((run(commands[1], tmp_path, monkeypatch) / "probe.json").read_text())
    np.testing.assert_allclose(again["conditions"], shown["exp1"]["probe"]["conditions"], rtol=1e-4)
    assert again["side90"] == shown["exp1"]["probe"]["side90"]


def test_images_and_the_overview_are_saved_as_png(visit):
    page = visit().finished()
    page.probe()
    exact = Image.open(page.saved(".model[data-model=exp1] .save"))
    assert exact.size == (32, 32)
    np.testing.assert_array_equal(np.array(exact.convert("RGBA")), page.pixels(".model[data-model=exp1] .image canvas"))
    page.find("#open-export").click()
    sheet = Image.open(page.saved("#save-png"))
    assert sheet.format == "PNG" and sheet.width > 800 and len(sheet.getcolors(1 << 24)) > 50


# -- for everybody -------------------------------------------------------------------------------------------


def test_everything_can_be_done_with_the_keyboard(visit):
    page = visit(locations=[]).finished()
    keys = page.page.keyboard
    keys.press("Tab")
    expect(page.find(".skip")).to_be_focused()
    page.cell(8, 8).focus()
    for key in ("ArrowUp", "ArrowUp", "ArrowLeft", "Space"):
        keys.press(key)
    expect(page.cell(6, 7)).to_be_focused()
    expect(page.cell(6, 7)).to_have_attribute("aria-selected", "true")
    expect(page.find("#k")).to_have_text("K = 1")
    expect(page.find(".model[data-model=exp1] .sum")).to_contain_text("of 1")
    page.finished()
    keys.press("Tab")
    expect(page.find("#study")).to_be_focused()
    page.find("#methods [data-value=plain]").focus()
    keys.press("ArrowRight")
    expect(page.find("#methods [data-value=sum]")).to_have_attribute("aria-checked", "true")
    page.finished().find(".model[data-model=exp1C] .image .frame").focus()
    keys.press("Shift+ArrowLeft")
    keys.press("Enter")
    expect(page.find(".model[data-model=exp1] .influence p")).to_contain_text("90% within")
    step = page.find("#level").input_value()
    keys.press("]")
    expect(page.find("#level")).to_have_value(str(int(step) + 1))
    keys.press("?")
    expect(page.find("#help")).to_be_visible()
    keys.press("Escape")
    expect(page.find("#help")).not_to_be_visible()
    page.finished()


def test_every_control_has_a_name_and_shows_its_focus(visit):
    page = visit(each=2).finished()
    unnamed = page.page.evaluate(
        """() => [...document.querySelectorAll("button, input, [tabindex='0']")].filter((one) => one.checkVisibility()
            && !(one.getAttribute("aria-label") || one.labels?.length || one.textContent.trim() || one.title))
            .map((one) => one.outerHTML.slice(0, 80))"""
    )
    assert unnamed == []
    page.page.keyboard.press("Tab")
    page.page.keyboard.press("Tab")
    focused = page.page.evaluate("() => getComputedStyle(document.activeElement).outlineStyle")
    assert focused == "solid"


@pytest.mark.parametrize("width", [360, 700])
def test_a_narrow_window_needs_no_sideways_scrolling(visit, width):
    page = visit(size=(width, 800), each=4).finished()
    page.probe()
    assert page.page.evaluate("() => document.documentElement.scrollWidth") <= width
    left = page.page.evaluate(
        "() => [...document.querySelectorAll('.model')].map((m) => m.getBoundingClientRect().left)"
    )
    assert len(set(left)) == 1  # one below the other
    page.cell(2, 2).click()
    expect(page.find("#k")).to_have_text("K = 4")
    page.finished()


def test_dark_and_light_follow_the_system_and_the_button(visit):
    def paper(page):
        return page.page.evaluate("() => getComputedStyle(document.body).backgroundColor")

    dark = visit(scheme="dark")
    light = visit(scheme="light").finished()
    assert paper(dark.finished()) != paper(light)
    dark.find("#theme").click()
    assert paper(dark) == paper(light)


def test_bad_input_is_explained_in_one_sentence_and_nothing_is_lost(visit):
    page = visit(locations=[[0.5, 0.5]]).finished()
    page.find("#locations-text").fill("0.5,0.5 7,1")
    expect(page.find("#locations-error")).to_have_text(re.compile("“7,1” lies outside the image"))
    expect(page.find("#k")).to_have_text("K = 1")
    page.find("#seed").fill("abc")
    expect(page.find("#dial-error")).to_have_text(re.compile("The seed must be a whole number"))
    expect(page.find("#locations-text")).to_have_value("0.5,0.5")
    page.find("#seed").fill("3")
    expect(page.find("#dial-error")).not_to_be_visible()
    page.finished()
    page.page.reload()
    expect(page.find("#seed")).to_have_value("3")
    expect(page.find("#k")).to_have_text("K = 1")
    page.finished()


def test_another_seed_may_be_the_largest_and_then_the_first(visit):
    page = visit(seed=MAX_SEED - 1, steps=1).finished()
    for seed in (MAX_SEED, 0):
        page.find("#reroll").click()
        expect(page.find("#seed")).to_have_value(str(seed))


def test_a_models_refusal_is_in_its_column(visit):
    page = visit(locations=[[0.06 * n, 0.5] for n in range(13)], hidden=["exp1"])
    expect(page.find(".model[data-model=exp3] .reason")).to_contain_text("K = 13 is more than this model")
    expect(page.find(".model[data-model=exp1C] .sum")).to_contain_text("of 13")
    page.find("#clear").click()
    expect(page.find(".model[data-model=exp3] .sum")).to_contain_text("of 0")
    page.finished()


def test_a_composition_that_is_impossible_for_colors_is_switched_off(visit):
    page = visit(compose="localize").finished()
    page.find("#modes [data-value=colors]").click()
    expect(page.find(".model[data-model=color] .sum b")).to_have_count(1)
    expect(page.find("#methods [data-value=plain]")).to_have_attribute("aria-checked", "true")
    page.finished()


# -- several people, and a server that goes away -------------------------------------------------------------


class Held:
    """The first job waits until it may go on."""

    def __init__(self, session):
        self.session, self.go, self.first = session, threading.Event(), True

    def sample(self, request):
        if self.first:
            self.first = False
            yield {"event": "started"}
            assert self.go.wait(PATIENCE / 1000)
        yield from Session.sample(self.session, request)


@pytest.fixture
def held(small_session, monkeypatch):
    work = Held(small_session)
    monkeypatch.setattr(small_session, "sample", work.sample, raising=False)
    yield work
    work.go.set()


def test_the_second_page_shows_its_position(visit, held):
    first = visit(seed=100)
    expect(first.find("#status")).to_contain_text("Sampling")
    second = visit(seed=101)
    expect(second.find("#status")).to_contain_text("One job is ahead of yours")
    held.go.set()
    first.finished()
    second.finished()


def test_a_restart_of_the_server_loses_nothing(browser, small_session, start_server):
    server = start_server(small_session)
    page = Visit(browser, server, locations=[[0.5, 0.5]]).finished()
    try:
        server.stop()
        expect(page.find("#notice")).to_contain_text("cannot be reached")
        expect(page.find("#status")).to_have_attribute("data-kind", "lost")
        page.cell(2, 2).click()  # meanwhile
        expect(page.find("#k")).to_have_text("K = 2")
        server.start()
        expect(page.find("#notice")).to_contain_text("restarted")
        expect(page.find(".model[data-model=exp1] .sum")).to_contain_text("of 2")
        page.finished()
    finally:
        page.context.close()
        server.stop()
    assert [text for text in page.complaints if "ERR_" not in text] == []
