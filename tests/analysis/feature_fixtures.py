"""Small untrained networks whose conditions have an effect."""

import pytest
import torch
from waking import awake

from tessera.conditioning import ColorCounts
from tessera.config import settings_for
from tessera.models.build import build_denoiser
from tessera.models.edm2 import EDM2
from tessera.models.model_folder import save_model


@pytest.fixture(scope="session")
def edm2():
    torch.manual_seed(0)
    return awake(EDM2(8, cond_dim=8, width=8, mult=(1, 2), blocks=1, attention=(4,), head_width=8))


@pytest.fixture(scope="session")
def color_network():
    """The tiny preset's, on tiles."""
    return awake(build_denoiser(settings_for("color", "tiny", {"denoiser": {"width": 8}})))


@pytest.fixture(scope="session")
def color_model(color_network, tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "color"
    settings = settings_for("color", "tiny").plain()
    return save_model(folder, color_network, ColorCounts(), {"settings": settings, "images_seen": 0})
