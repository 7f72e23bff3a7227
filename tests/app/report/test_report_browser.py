"""The report in a real browser: nothing is fetched, nothing complains, and everything on it works."""

import pytest


@pytest.fixture
def shown(page, report):
    page.goto(report.as_uri())
    yield page
    assert page.watched.errors == []
    assert page.watched.requests == [report.as_uri()]


def background(page) -> str:
    return page.evaluate("getComputedStyle(document.body).backgroundColor")


def test_it_opens_without_an_error_or_a_request(shown):
    assert "Tessera" in shown.title() and shown.locator(".card h2").count() == 2
    assert shown.locator("image").count() > 20
    wide = shown.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert wide, "the page scrolls sideways"


def test_the_tiles_of_a_card_stand_in_one_row_with_centered_numbers(shown):
    tiles = shown.locator(".card").first.locator("ol.k-tiles li")
    boxes = [tiles.nth(n).bounding_box() for n in range(tiles.count())]
    assert len(boxes) > 1 and len({round(box["y"]) for box in boxes}) == 1
    assert tiles.first.evaluate("tile => getComputedStyle(tile).alignItems") == "center"


def test_the_slider_goes_from_noise_to_image(shown):
    levels = shown.locator(".viewer").first.locator(".frame").count()
    shown.locator("#level").fill("0")
    noisy = shown.locator("#level-words").text_content()
    assert shown.locator(".viewer").first.locator(".frame.on").count() == 1
    shown.locator("#level").focus()
    shown.keyboard.press("End")
    clean = shown.locator("#level-words").text_content()
    assert levels > 1 and "σ = 80" in noisy and noisy != clean
    last = shown.locator(".viewer").first.locator(".frame").nth(levels - 1)
    assert last.is_visible()


def test_light_turns_dark_and_back(shown):
    light = background(shown)
    shown.locator("#theme").click()
    dark = background(shown)
    shown.locator("#theme").click()
    assert dark != light and background(shown) == light
    shown.emulate_media(color_scheme="dark")
    shown.reload()
    shown.watched.requests.pop()  # the reload itself
    assert background(shown) == dark


def test_boxes_and_locations_can_be_hidden(shown):
    rings = shown.locator(".ring").first
    assert rings.is_visible()
    shown.locator("#show-rings").uncheck()
    assert not rings.is_visible()


def test_tables_copy_as_csv_and_latex(shown):
    shown.context.grant_permissions(["clipboard-read", "clipboard-write"])
    sheet = shown.locator("#how-far .sheet").first
    sheet.locator("[data-copy=csv]").click()
    assert shown.evaluate("navigator.clipboard.readText()").startswith("model,training range")
    sheet.locator("[data-copy=latex]").click()
    assert r"\toprule" in shown.evaluate("navigator.clipboard.readText()")


def test_a_narrow_window_does_not_scroll_sideways(shown):
    shown.set_viewport_size({"width": 360, "height": 740})
    assert shown.evaluate("document.documentElement.scrollWidth") <= 360


def test_on_paper_it_is_light_and_folded_tables_are_open(shown):
    shown.locator("#theme").click()  # dark, which paper ignores
    shown.emulate_media(media="print")
    assert background(shown) == "rgb(255, 255, 255)" and not shown.locator("nav").is_visible()
    shown.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert shown.locator("#method details:not([open])").count() == 0
    assert shown.pdf().startswith(b"%PDF")
