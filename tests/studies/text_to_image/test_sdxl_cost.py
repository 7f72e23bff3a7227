"""What a study costs is known before it is run: SDXL's own sizes without its weights."""

import pytest
import torch

from tessera.studies.text_to_image.build import FULL, unet_config
from tessera.studies.text_to_image.cost import (
    SDXL_NAME,
    PassCost,
    Peak,
    added,
    features_bill,
    locality_bill,
    pass_cost,
    sustained_tflops,
)
from tessera.studies.text_to_image.hooks import blocks_of


def test_bytes_that_live_together_are_counted():
    with Peak() as peak:
        a = torch.zeros(1000)  # 4000 bytes
        b = a + 1  # 8000
        del a
        c = b.double()  # 4000 + 8000
        view = c[:10]
        view.add_(1)
    assert peak.most == 12_000 and peak.live == 12_000
    del b, c, view
    assert peak.live == 0


@pytest.fixture(scope="module")
def full():
    """One forward pass of SDXL itself, followed without content."""
    return pass_cost(SDXL_NAME, torch.bfloat16, sites=("block", "maps"), gradients=False)


def test_sdxl_is_as_large_as_it_is(full):
    assert full.parameters == 2_567_463_684
    assert len(full.floats["block"]) == 70 and sum(full.floats["block"].values()) == 104_857_600
    assert sum(full.floats["maps"].values()) == 60 * 1024 + 10 * 4096
    assert full.unet_weights == 2 * full.parameters
    assert (
        6.4 * 2**30 < full.weights < 7 * 2**30
    )  # with two text encoders, and the decoder in single precision
    assert full.forward_flops == pytest.approx(5.98e12, rel=0.01)
    assert full.image_floats == 3 * 1024 * 1024


def test_features_of_24_prompts_and_10_seeds_fit_the_budget(full):
    options = {
        "site": "block", "rows": 25, "prompts": 25, "seeds": 10, "steps": 15, "at": (0,), "guidance": 5.0,
        "null": 0, "outputs": False, "batch": 8, "element": 2,
    }  # fmt: skip
    memory = 8 * 2**30
    bill = features_bill(full, memory=memory, **options)
    assert bill.host_bytes <= memory and bill.groups == 7  # 25 x 10 x 104,857,600 numbers of 2 bytes
    assert bill.passes == {"walking": 0, "listening": 7 * 250, "listening, untrained": 0, "decoding": 0}
    whole = features_bill(full, memory=2**40, **options)
    assert whole.groups == 1 and whole.host_bytes == 250 * 104_857_600 * 2
    assert bill.flops == 7 * whole.flops and bill.device_bytes < 16 * 2**30
    both = added([bill, whole])
    assert both.flops == 8 * whole.flops and both.host_bytes == whole.host_bytes


def test_the_bill_of_a_locality_study_counts_its_passes(folder):
    cost = pass_cost(folder)
    bill = locality_bill(
        cost, seeds=2, steps=10, guidance=5.0, levels=3, probes=4, words=8, word_levels=5, ways=1, batch=2, rows=2
    )  # fmt: skip
    assert bill.passes["walking"] == 2 * 10 * 2 and bill.passes["words"] == 5 * 2 * 9
    assert bill.passes["gradients, backward"] == 3 * 2 * 4 * 4
    assert bill.minutes(1e-3) == pytest.approx(bill.flops / 1e9 / 60)
    assert cost.parameters == 782_660 and len(cost.floats["block"]) == 17
    assert cost.gradient_bytes > 5 * cost.forward_bytes  # what a backward pass needs is remembered
    assert 0.5 < cost.backward_flops / cost.forward_flops < 1.5  # weights take no gradients


def test_the_device_needs_fifteen_hundredths_more_than_tensors_hold():
    cost = PassCost(
        weights=700, unet_weights=500, parameters=0, forward_flops=0, backward_flops=0, forward_bytes=100,
        gradient_bytes=0, decode_flops=0, decode_bytes=0, image_floats=0, floats={"block": {"a": 10}},
    )  # fmt: skip
    locality = locality_bill(
        cost, seeds=1, steps=1, guidance=1.0, levels=1, probes=0, words=0, word_levels=0, ways=1, batch=3, rows=1
    )  # fmt: skip
    features = features_bill(
        cost, site="block", rows=1, prompts=1, seeds=1, steps=1, at=(0,), guidance=1.0, null=1, outputs=False,
        memory=1000, batch=2, element=2,
    )  # fmt: skip
    assert locality.device_bytes == pytest.approx(1.15 * 1000, abs=1)  # weights, and three passes
    assert features.device_bytes == pytest.approx(1.15 * 1440, abs=1)  # untrained weights too, and features


def test_the_full_shape_has_sdxls_blocks_in_order():
    from tessera.studies.text_to_image.build import make_unet

    with torch.device("meta"):
        names = list(blocks_of(make_unet(unet_config(FULL))))
    assert names[0].startswith("down_blocks.1") and names[24].startswith("mid_block")
    assert names[34].startswith("up_blocks.0") and len(names) == 70


def test_speed_is_measured_in_positive_numbers():
    assert sustained_tflops(torch.device("cpu"), torch.float32, repeats=1) > 1e-4
