"""Small networks that are awake: untrained, but with every gain switched on."""

import pytest
import torch

from tessera.config import settings_for
from tessera.models.build import build_denoiser
from tessera.models.edm2 import EDM2


def woken(network, seed=0):
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in network.named_parameters():
        parameter.requires_grad_(False)
        if name.endswith("gain"):
            parameter.copy_(0.4 + 0.6 * torch.rand((), generator=generator))
    return network.eval()


@pytest.fixture(scope="session")
def small_edm2():
    """8 x 8 pixels, attention included, in float64."""
    torch.manual_seed(0)
    network = EDM2(8, cond_dim=5, width=8, mult=(1, 2), blocks=1, attention=(4,), head_width=8)
    return woken(network).double()


@pytest.fixture(scope="session")
def patchwise():
    """The tiny preset's network of exp2L with a patch of one cell to each side."""
    return woken(build_denoiser(settings_for("exp2L", "tiny", {"denoiser": {"radius": 1, "width": 8}})))


@pytest.fixture(scope="session")
def tiny_edm2():
    return woken(build_denoiser(settings_for("exp1", "tiny", {"denoiser": {"width": 8}})))


from feature_fixtures import *  # noqa: E402, F403
