"""Shared by all tests: one thread per worker, and the reference data when it lies beside the project."""

import os
from pathlib import Path

import pytest
import torch

from browser import Watched, open_browser

torch.set_num_threads(1)

SHARED = Path(os.environ.get("TESSERA_SHARED", Path(__file__).parents[2] / "shared"))


@pytest.fixture(scope="session")
def clevr_reference() -> Path:
    """Real Blender renders with their exact scenes."""
    folder = SHARED / "clevr-reference"
    if not folder.is_dir():
        pytest.skip("the reference renders are not here")
    return folder


@pytest.fixture(scope="session")
def edm2_parity() -> Path:
    """Numbers recorded from the reference EDM2 network."""
    folder = SHARED / "edm2-parity"
    if not folder.is_dir():
        pytest.skip("the reference network's numbers are not here")
    return folder


@pytest.fixture(scope="session")
def checkpoints() -> Path:
    """Third-party MNIST models."""
    folder = SHARED / "checkpoints"
    if not folder.is_dir():
        pytest.skip("the third-party checkpoints are not here")
    return folder


@pytest.fixture(scope="session")
def browser():
    """Headless Chromium; skips with a reason where there is none."""
    yield from open_browser()


@pytest.fixture
def page(browser):
    """A fresh page of 1280 x 900 with `page.watched.errors` and `page.watched.requests`."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    page.watched = Watched()
    page.watched.follow(page)
    yield page
    context.close()
