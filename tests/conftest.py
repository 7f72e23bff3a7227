"""Shared by all tests: one thread per worker, and the reference data when it lies beside the project."""

import os
from pathlib import Path

import pytest
import torch

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
