"""A real browser for tests of pages: Debian's Chromium driven by playwright, watched for errors and requests."""

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")  # as Debian and others call it
OWN = ("data:", "blob:", "about:")


def open_browser() -> Iterator[Any]:
    """A headless Chromium, or a skip that says what is missing."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    path = next((found for name in NAMES if (found := shutil.which(name))), None)
    if path is None:
        pytest.skip("there is no Chromium on this machine")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


@dataclass
class Watched:
    """What happened on a page."""

    errors: list[str] = field(default_factory=list)  # console errors, warnings and uncaught exceptions
    requests: list[str] = field(default_factory=list)  # everything fetched but data inside the page

    def follow(self, page: Any) -> None:
        page.on("console", self.keep_complaint)
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("request", self.note)

    def keep_complaint(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.errors.append(message.text)

    def note(self, request: Any) -> None:
        if not request.url.startswith(OWN):
            self.requests.append(request.url)
