"""EDM2 on tiles: the same contract as EDM2, on fewer and thicker pixels."""

import pytest
import torch

from tessera.config import settings_for
from tessera.errors import UserError
from tessera.models.build import build_denoiser, denoiser_config, denoiser_from
from tessera.models.edm2 import EDM2
from tessera.models.patchwise import Tiled

SMALL = {"width": 8, "mult": (1, 2), "blocks": 1, "head_width": 8, "coords": True}


def network(**options):
    torch.manual_seed(0)
    made = Tiled(16, cond_dim=4, **{"tile": 2, "attention": (16,), **SMALL, **options}).eval()
    for name, parameter in made.named_parameters():
        if name.endswith("gain"):
            torch.nn.init.constant_(parameter, 0.5)
    return made


def test_it_is_the_network_on_rearranged_pixels():
    denoiser, x, cond = network(), torch.randn(2, 3, 16, 16), torch.randn(2, 4)
    blocks = x.reshape(2, 3, 8, 2, 8, 2).permute(0, 1, 3, 5, 2, 4).reshape(2, 12, 8, 8)
    clean = denoiser.network(blocks, torch.tensor(0.7), cond)
    expected = clean.reshape(2, 3, 2, 2, 8, 8).permute(0, 1, 4, 2, 5, 3).reshape(2, 3, 16, 16)
    assert torch.allclose(denoiser(x, torch.tensor(0.7), cond), expected, atol=1e-6)


def test_attention_is_where_the_whole_image_would_have_it():
    assert network().network.encoder["8"]["block0"].heads == 1


def test_one_pixel_tiles_are_the_plain_network():
    plain = EDM2(16, cond_dim=4, attention=(16,), **SMALL)
    tiled = network(tile=1)
    plain.load_state_dict(tiled.network.state_dict())
    x = torch.randn(1, 3, 16, 16)
    assert torch.allclose(plain.eval()(x, 1.0), tiled(x, 1.0), atol=1e-6)


def test_settings_and_configs_build_it():
    made = build_denoiser(settings_for("exp1", "tiny", {"denoiser": {"tile": 4}}))
    again = denoiser_from(denoiser_config(made))
    assert type(made) is type(again) is Tiled and again.network.size == 8
    again.load_state_dict(made.state_dict())


def test_tiles_must_divide_the_image():
    with pytest.raises(UserError, match="do not divide"):
        Tiled(16, tile=3, **SMALL)
