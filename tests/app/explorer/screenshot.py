"""Makes docs/images/explorer.png: `python tests/app/explorer/screenshot.py [MODEL ...] [--out FILE] [--theme dark]`."""

import argparse
import json
import shutil
from pathlib import Path
from urllib.parse import quote

import torch
from playwright.sync_api import expect, sync_playwright

from conftest import Running
from tessera.app.explorer.models import open_models
from tessera.app.explorer.session import Session
from tessera.evaluation.detector import load_detector
from tessera.scenes.vocabulary import LOCATIONS

PATIENCE = 600_000  # ms; a slow machine samples for minutes


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("models", nargs="*")
    words.add_argument("--out", type=Path, default=Path("docs/images/explorer.png"))
    words.add_argument("--theme", choices=("light", "dark"), default="light")
    words.add_argument("--size", type=int, nargs=2, default=(1440, 900))
    words.add_argument("--k", type=int, default=6)
    words.add_argument("--seed", type=int, default=0)
    words.add_argument("--each", type=int, default=1)
    words.add_argument("--steps", type=int, default=18)
    words.add_argument("--compose", default="plain")
    given = words.parse_args()
    session = Session(open_models(given.models, torch.device("cpu")), load_detector())
    server = Running(session)
    try:
        take(server.url, given)
    finally:
        server.stop()


def take(url: str, given: argparse.Namespace) -> None:
    """Sample, probe the first location, and take the screenshot."""
    locations, probe = LOCATIONS[: given.k], LOCATIONS[0]
    settings = {"locations": locations, "probe": probe, "seed": given.seed, "each": given.each}
    settings |= {"steps": given.steps, "compose": given.compose}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        width, height = given.size
        viewport = {"width": width, "height": height}
        page = browser.new_page(viewport=viewport, color_scheme=given.theme)
        page.goto(url + "#" + quote(json.dumps(settings)))
        for model in page.locator(".model").all():
            expect(model.locator(".influence p")).to_contain_text("90%", timeout=PATIENCE)
        expect(page.locator("#status")).to_have_attribute("data-kind", "well", timeout=PATIENCE)
        page.screenshot(path=given.out)
        browser.close()


if __name__ == "__main__":
    main()
