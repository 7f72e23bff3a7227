"""The cost of a study is estimated before it runs: SDXL's own sizes without its weights."""

import pytest
import torch
from diffusers import UNet2DConditionModel

from tessera.analysis.feature_study import by_memory
from tessera.studies.text_to_image.blocks import blocks_of
from tessera.studies.text_to_image.estimate import _SDXL_NAME, _SDXL_UNET, pass_cost, sampling_passes, study_cost


@pytest.fixture(scope="module")
def full():
    """One forward pass of SDXL itself, on tensors without content."""
    return pass_cost(_SDXL_NAME, torch.bfloat16, sites=("block", "maps"))


def test_sdxl_is_as_large_as_published(full):
    assert full.parameters == 2_567_463_684 and full.unet_weights == 2 * full.parameters
    assert full.forward_flops == pytest.approx(6.76e12, rel=0.01)  # 0.78e12 of it for attention itself


def test_features_of_sdxl_are_counted_block_by_block(full):
    blocks, maps = full.features["block"], full.features["maps"]
    assert len(blocks) == 70 and sum(blocks.values()) == 2 * 104_857_600
    assert sum(maps.values()) == 2 * (60 * 1024 + 10 * 4096)
    assert len(list(by_memory(blocks, 25 * 10, 8 * 2**30))) == 7  # 24 concepts and 10 seeds in 8 GiB


def test_a_backward_pass_costs_about_as_much_as_a_forward_pass(folder):
    cost = pass_cost(folder, gradients=True)
    assert cost.parameters == 782_660
    assert 0.5 < cost.backward_flops / cost.forward_flops < 1.5  # weights take no gradients
    recomputed = pass_cost(folder, gradients=True, checkpoint=True)
    assert recomputed.backward_flops > 1.5 * cost.backward_flops


def test_an_estimate_adds_up_its_passes(folder):
    cost = pass_cost(folder, gradients=True)
    passes = {"sampling": sampling_passes(2, 10, 5.0), "words": 5 * 2 * 9, "gradients, backward": 96}
    assert passes["sampling"] == 2 * 10 * 2 and sampling_passes(2, 10, 1.0) == 20
    found = study_cost(cost, passes, tflops=1e-3)
    flops = 130 * cost.forward_flops + 96 * cost.backward_flops
    assert found["passes"] == passes and found["pflop"] == pytest.approx(flops / 1e15)
    assert found["minutes"] == pytest.approx(flops / 1e9 / 60)


def test_the_configuration_of_sdxl_has_its_blocks():
    with torch.device("meta"):
        names = blocks_of(UNet2DConditionModel.from_config(_SDXL_UNET))
    positions = [name.partition("_")[0] for name in names]
    assert [positions.count(position) for position in ("down", "mid", "up")] == [24, 10, 36]
