"""Each operation against recorded numbers of the reference, and against what its name promises."""

import json
import math

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file

from edm2_reference import _INSIDE, our_layout
from tessera.errors import UserError
from tessera.models.edm2 import Block
from tessera.models.magnitude import (
    _FOLDING,
    EPS,
    Fourier,
    MPConv,
    aligned_conv,
    as_kernel,
    downsample,
    mp_cat,
    mp_silu,
    mp_sum,
    normalize,
    normalize_weights,
    project_gradients,
    set_weight_norm,
    upsample,
    upsampled_conv,
)


def relative(a, b):
    scale = b.norm()
    return ((a - b).norm() / scale).item() if scale > 0 else (a - b).norm().item()


@pytest.fixture(scope="module")
def recorded(edm2_parity):
    """name of a case -> (arguments, its tensors)."""
    tensors = load_file(edm2_parity / "ops.safetensors")
    cases = json.loads((edm2_parity / "manifest.json").read_text())["ops"]
    return {
        case["name"]: (case["args"], {field: tensors[f"{case['name']}/{field}"] for field in case["fields"]})
        for case in cases
    }


# -- the reference's numbers ---------------------------------------------------------------------------


def test_elementary_operations_match_the_reference(recorded):
    checks = {
        "normalize_weightlike": lambda t: normalize(t["x"]),
        "normalize_pixelnorm": lambda t: normalize(t["x"], dim=1),
        "mp_silu": lambda t: mp_silu(t["x"]),
        "mp_sum_t0.5": lambda t: mp_sum(t["a"], t["b"], 0.5),
        "mp_sum_t0.3": lambda t: mp_sum(t["a"], t["b"], 0.3),
        "mp_sum_broadcast": lambda t: mp_sum(t["a"], t["b"], 0.5),
        "mp_cat_t0.5": lambda t: mp_cat(t["a"], t["b"], 0.5),
        "mp_cat_t0.3": lambda t: mp_cat(t["a"], t["b"], 0.3),
        "resample_down_f2": lambda t: downsample(t["x"]),
        "resample_down_f4": lambda t: downsample(t["x"], (1, 3, 3, 1)),
        "resample_up_f2": lambda t: upsample(t["x"]),
        "resample_up_f4": lambda t: upsample(t["x"], (1, 3, 3, 1)),
    }
    for name, compute in checks.items():
        tensors = recorded[name][1]
        assert relative(compute(tensors), tensors["y"]) < 1e-5, name


def test_fourier_features_match_the_reference(recorded):
    tensors = recorded["mp_fourier"][1]
    fourier = Fourier(24)
    fourier.load_state_dict({"freqs": tensors["freqs"], "phases": tensors["phases"]})
    assert relative(fourier(tensors["x"]), tensors["y"]) < 1e-5


@pytest.mark.parametrize(
    "name",
    [
        "mpconv_linear",
        "mpconv_linear_gain",
        "mpconv_conv1x1",
        "mpconv_conv1x1_gain",
        "mpconv_conv3x3",
        "mpconv_conv3x3_gain",
        "mpconv_conv3x3_tinyrows",
    ],
)
@pytest.mark.parametrize("mode", ["eval", "train"])
def test_layers_match_the_reference_with_gradients(recorded, name, mode):
    args, tensors = recorded[name]
    layer = recorded_layer(args, tensors["weight"]).train(mode == "train")
    set_weight_norm(layer, "in-forward")
    x, gain = tensors["x"].clone().requires_grad_(), tensors["gain"].clone().requires_grad_()
    y = layer(x, gain)
    (y * tensors["upstream"]).sum().backward()
    assert relative(y, tensors[f"y_{mode}"]) < 1e-5
    assert relative(layer.weight.grad, ours(tensors[f"grad_weight_{mode}"])) < 1e-4
    assert relative(x.grad, tensors[f"grad_x_{mode}"]) < 1e-4
    assert relative(gain.grad, tensors[f"grad_gain_{mode}"]) < 1e-4
    kept = tensors["weight_after_train"] if mode == "train" else tensors["weight"]
    assert relative(layer.weight, ours(kept)) < 1e-5


def recorded_layer(args, weight):
    layer = MPConv(args["in_channels"], args["out_channels"], *args["kernel"][:1])
    layer.load_state_dict({"weight": ours(weight)})
    return layer


def ours(weight):
    return our_layout("weight", weight, 0)


BLOCKS = [
    "block_enc_keep",
    "block_enc_skipconv_attn",
    "block_enc_down",
    "block_dec_skipconv_attn",
    "block_dec_keep_attn_onehead",
    "block_dec_up",
    "block_dec_clip",
    "block_enc_zero_heads",
    "block_dec_uneven_heads",
]


@pytest.mark.parametrize("name", BLOCKS)
def test_blocks_match_the_reference_with_gradients(recorded, name):
    args, tensors = recorded[name]
    block = recorded_block(args)
    rename = {old: (_INSIDE[old], old) for old in _INSIDE if f"state/{old}" in tensors}
    block.load_state_dict({new: block_layout(block, new, tensors[f"state/{old}"]) for new, old in rename.values()})
    x, emb = tensors["x"].clone().requires_grad_(), tensors["emb"].clone().requires_grad_()
    block.eval()
    y = block(x, block.emb(emb, block.gain) + 1)
    (y * tensors["upstream"]).sum().backward()
    assert relative(y, tensors["y_eval"]) < 1e-5
    assert relative(x.grad, tensors["grad_x_eval"]) < 1e-4
    assert relative(emb.grad, tensors["grad_emb_eval"]) < 1e-4
    parameters = dict(block.named_parameters())
    assert set(parameters) == {new for new, _ in rename.values()}
    for new, old in rename.values():
        expected = block_layout(block, new, tensors[f"grad_eval/{old}"])
        assert relative(parameters[new].grad, expected) < 1e-4, new
    set_weight_norm(block.train(), "in-forward")
    assert relative(block(x, block.emb(emb, block.gain) + 1), tensors["y_train"]) < 1e-5


def block_layout(block, name, value):
    return our_layout(f"block.{name}", value, block.heads)


def recorded_block(args):
    return Block(
        args["in_channels"],
        args["out_channels"],
        args["emb_channels"],
        side={"enc": "encoder", "dec": "decoder"}[args["flavor"]],
        resample=args["resample_mode"],
        attends=args["attention"],
        head_width=args["channels_per_head"],
        resample_filter=args["resample_filter"],
        residual_balance=args["res_balance"],
        attention_balance=args["attn_balance"],
        clip=args["clip_act"],
        dropout=args["dropout"],
    )


# -- what the names promise ------------------------------------------------------------------------------


def size(x):
    return x.square().mean().sqrt().item()


def test_every_operation_keeps_unit_size():
    torch.manual_seed(0)
    a, b = torch.randn(8, 64, 24, 24), torch.randn(8, 32, 24, 24)
    assert size(mp_silu(a)) == pytest.approx(1, abs=0.01)
    assert size(mp_sum(a, torch.randn_like(a), 0.3)) == pytest.approx(1, abs=0.01)
    assert size(mp_cat(a, b, 0.3)) == pytest.approx(1, abs=0.01)
    assert size(Fourier(256)(torch.randn(64))) == pytest.approx(1, abs=0.02)
    assert size(normalize(7 * a, dim=1)) == pytest.approx(1, abs=1e-3)
    for kernel in (1, 3):
        inside = MPConv(64, 48, kernel)(a)[..., 1:-1, 1:-1]  # zero padding dims the rim
        assert size(inside) == pytest.approx(1, abs=0.03)


def test_concatenation_balances_the_energy_of_its_parts():
    torch.manual_seed(0)
    joined = mp_cat(torch.ones(1, 10, 1, 1), torch.ones(1, 90, 1, 1), 0.5)
    assert joined[:, :10].square().sum().item() == pytest.approx(joined[:, 10:].square().sum().item())


def test_normalising_adds_eps_to_the_root():
    row = torch.tensor([[3.0, -3.0, 3.0, -3.0]])
    assert torch.equal(normalize(row), row / (3 + EPS))


def test_a_zero_row_has_a_finite_gradient():
    x = torch.zeros(2, 3, requires_grad=True)
    normalize(x).sum().backward()
    assert torch.isfinite(x.grad).all()


@pytest.mark.parametrize("how", ["transposed", "phases"])
def test_an_upsampled_convolution_is_upsampling_then_convolution(monkeypatch, how):
    monkeypatch.setitem(_FOLDING, "cpu", how)
    torch.manual_seed(0)
    x = torch.randn(2, 5, 6, 7, dtype=torch.float64).to(memory_format=torch.channels_last)
    filters = torch.randn(4, 9 * 5, dtype=torch.float64)
    plainly = F.conv2d(upsample(x), as_kernel(filters, 3), padding=1)
    folded = upsampled_conv(x, filters)
    torch.testing.assert_close(folded, plainly)
    assert folded.is_contiguous(memory_format=torch.channels_last)


def test_channels_added_for_the_hardware_change_nothing():
    x, filters = torch.randn(2, 4, 6, 6), torch.randn(3, 9 * 4)
    expected = F.conv2d(x, as_kernel(filters, 3), padding=1)
    torch.testing.assert_close(aligned_conv(x, as_kernel(filters, 3), 8), expected)


def test_a_kernel_is_a_view_in_channels_last():
    filters = torch.randn(8, 9 * 16)
    kernel = as_kernel(filters, 3)
    assert kernel.data_ptr() == filters.data_ptr()
    assert kernel.is_contiguous(memory_format=torch.channels_last)


# -- three ways to keep weights at unit size ----------------------------------------------------------------


def test_repeated_normalization_settles_at_one_minus_eps():
    layer = MPConv(6, 4, 3)
    for _ in range(4):
        normalize_weights(layer)
    sizes = layer.weight.square().mean(1).sqrt()
    torch.testing.assert_close(sizes, torch.full((4,), 1 - EPS), rtol=0, atol=1e-6)


def test_projected_gradients_are_the_gradients_of_the_norm():
    """The fast way is exact: same output, same gradient, on weights as training leaves them."""
    torch.manual_seed(0)
    layer, x = MPConv(6, 5, 3), torch.randn(2, 6, 8, 8)
    normalize_weights(layer)
    layer.weight.data += 0.01 * torch.randn_like(layer.weight)  # an optimizer step
    normalize_weights(layer)
    gradients, outputs = [], []
    for how in ("after-update", "projected"):
        set_weight_norm(layer, how)
        layer.weight.grad = None
        y = layer(x, 0.7)
        (y * torch.linspace(-1, 2, y.numel()).view_as(y)).sum().backward()
        if how == "projected":
            project_gradients(layer)
        gradients.append(layer.weight.grad)
        outputs.append(y.detach())
    assert relative(outputs[1], outputs[0]) < 1e-6
    assert relative(gradients[1], gradients[0]) < 1e-5


def test_a_projected_gradient_does_not_change_the_size_of_filters():
    layer = MPConv(6, 5)
    for _ in range(3):
        normalize_weights(layer)
    layer.weight.grad = torch.randn_like(layer.weight) + 3 * layer.weight.detach()
    project_gradients(layer)
    along = (layer.weight * layer.weight.grad).mean(1)
    assert along.abs().max() < 4e-4  # eps times the radial part that went in


def test_evaluation_normalizes_whatever_is_stored():
    layer, x = MPConv(6, 5).eval(), torch.randn(3, 6)
    for how in ("after-update", "in-forward", "projected"):
        set_weight_norm(layer, how)
        before = layer.weight.detach().clone()
        y = layer(x)
        assert torch.equal(layer.weight, before)
        torch.testing.assert_close(y, x @ normalize(layer.weight).T / math.sqrt(6))


def test_an_unknown_weight_norm_is_refused():
    with pytest.raises(UserError, match="no weight norm"):
        set_weight_norm(MPConv(2, 2), "sometimes")
