"""EDM2 on its own: sizes, names, numbers kept in this repository, compilation, memory."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from benchmarks.flops import flops_per_image
from tessera.errors import UserError
from tessera.models.build import denoiser_config, denoiser_from
from tessera.models.contract import Denoiser
from tessera.models.edm2 import EDM2, attention
from tessera.models.magnitude import _CHANNELS_BY, _FOLDING, normalize_weights, set_weight_norm
from tessera.training.loss import edm_loss, training_sigmas

KEPT = Path(__file__).parents[1] / "fixtures" / "edm2"


def tiny(**changes):
    """A network with every kind of part, gains switched on."""
    torch.manual_seed(0)
    options = {"size": 16, "cond_dim": 4, "width": 8, "mult": (1, 2), "blocks": 1, "attention": (8,), "head_width": 8}
    net = EDM2(**(options | changes))
    with torch.no_grad():
        for name, parameter in net.named_parameters():
            if name.endswith("gain"):
                parameter.fill_(0.6)
    return net


def inputs(batch=3, size=16, cond_dim=4):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(batch, 3, size, size, generator=generator)
    sigma = torch.rand(batch, generator=generator) + 0.1
    return x, sigma, torch.rand(batch, cond_dim, generator=generator)


# -- numbers ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("attention", "count"), [((32, 16), 124_330_021), ((16, 8), 120_201_253)])
def test_the_paper_size_has_as_many_weights_as_published(attention, count):
    with torch.device("meta"):
        net = EDM2(128, 256, width=128, mult=(1, 2, 3, 4), blocks=3, attention=attention)
    assert sum(parameter.numel() for parameter in net.parameters()) == count


def test_numbers_recorded_after_the_reference_was_matched_still_hold():
    """Weights and answers of a small network, kept here so that the check survives without the reference."""
    tensors = load_file(KEPT / "tiny.safetensors")
    net = EDM2(**json.loads((KEPT / "tiny.json").read_text()))
    net.load_state_dict({n.removeprefix("state/"): v for n, v in tensors.items() if n.startswith("state/")})
    x, sigma, cond = tensors["x"], tensors["sigma"], tensors["cond"]
    torch.testing.assert_close(net.eval()(x, sigma, cond), tensors["clean"], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(net.logvar(sigma), tensors["logvar"], rtol=1e-4, atol=1e-5)
    loss = edm_loss(net, tensors["images"], cond, training_sigmas(tensors["normal"]), tensors["noise"])
    torch.testing.assert_close(loss, tensors["loss"], rtol=1e-4, atol=1e-5)
    (loss.sum() / len(loss)).backward()
    for name, parameter in net.named_parameters():
        expected = tensors[f"gradient/{name}"]
        assert (parameter.grad.norm() - expected).abs() <= 1e-3 * expected + 1e-6, name


def test_an_untrained_network_returns_the_scaled_input():
    """Gains start at 0, so D = c_skip x with c_skip = 0.25 / (0.25 + sigma^2)."""
    net = EDM2(16, width=8, mult=(1, 2), blocks=1, head_width=8)
    x = torch.randn(2, 3, 16, 16)
    torch.testing.assert_close(net(x, torch.tensor([0.5, 1.5])), x * torch.tensor([0.5, 0.1])[:, None, None, None])


def test_only_the_last_gain_and_the_expected_error_learn_first():
    net = EDM2(16, width=8, mult=(1, 2), blocks=1, head_width=8)
    x, sigma, _ = inputs()
    edm_loss(net, x, None, training_sigmas(sigma.log()), torch.randn_like(x)).mean().backward()
    moving = {name for name, p in net.named_parameters() if p.grad is not None and p.grad.abs().max() > 0}
    assert moving == {"out_gain", "logvar_linear.weight"}


def test_all_factors_at_once_are_the_factors_of_each_block():
    net = tiny()
    emb = torch.randn(3, 16)
    for together, block in zip(net.factors(emb), net.blocks(), strict=True):
        torch.testing.assert_close(together, block.emb(emb, block.gain) + 1)


def test_magnitudes_stay_near_one_through_the_whole_network():
    torch.manual_seed(0)
    net = EDM2(32, width=32, mult=(1, 2, 2), blocks=2, attention=(8,), head_width=32)
    sizes = {}
    for name, module in net.named_modules():
        if hasattr(module, "heads"):
            module.register_forward_hook(
                lambda _, __, y, name=name: sizes.__setitem__(name, y.square().mean().sqrt().item())
            )
    net.raw(torch.randn(4, 3, 32, 32), torch.randn(4), None)
    assert len(sizes) == len(net.blocks())
    assert all(0.6 < size < 1.4 for size in sizes.values()), sizes


def test_flops_agree_with_a_count_by_hand():
    net = EDM2(8, cond_dim=5, width=4, mult=(1, 2), blocks=1, attention=(4,), head_width=4)
    emb = 4 * 8 + 5 * 8  # noise and condition to width 8
    first = 9 * 4 * 4 * 64
    high = 8 * 4 + (9 * 4 * 4) * 2 * 64  # encoder.8.block0: factors, two convolutions
    down = 8 * 4 + (9 * 4 * 4) * 2 * 16
    attending = 8 * 24 * 16 + 8 * 8 * 16 + 2 * 16 * 16 * 8  # qkv, proj, scores and sums at 4 x 4
    low = 8 * 8 + (9 * 8 * 8) * 2 * 16 + 4 * 8 * 16 + attending  # encoder.4.block0, with a 1 x 1 skip
    in0 = 8 * 8 + (9 * 8 * 8) * 2 * 16 + attending
    in1 = 8 * 8 + (9 * 8 * 8) * 2 * 16
    low0 = 8 * 8 + 9 * (16 * 8 + 8 * 8) * 16 + 16 * 8 * 16 + attending  # 8 + 8 channels in
    low1 = 8 * 8 + 9 * (12 * 8 + 8 * 8) * 16 + 12 * 8 * 16 + attending  # 8 + 4
    up = 8 * 8 + (9 * 8 * 8) * 2 * 64
    high0 = 8 * 4 + 9 * (12 * 4 + 4 * 4) * 64 + 12 * 4 * 64  # 8 + 4
    high1 = 8 * 4 + 9 * (8 * 4 + 4 * 4) * 64 + 8 * 4 * 64  # 4 + 4
    out = 9 * 4 * 3 * 64
    total = emb + first + high + down + low + in0 + in1 + low0 + low1 + up + high0 + high1 + out
    assert flops_per_image(net, training=False) == 2 * total
    assert flops_per_image(net) == 6 * total
    assert flops_per_image(net, training=False, folded=True) == 2 * (total - 5 * 8 * 8 * 64)


# -- interface ----------------------------------------------------------------------------------------------


def test_a_network_is_rebuilt_from_its_config():
    net = tiny(coords=True, clip=3.0, dropout=0.1)
    again = EDM2(**json.loads(json.dumps(net.config)))
    again.load_state_dict(net.state_dict())
    x, sigma, cond = inputs()
    assert torch.equal(net.eval()(x, sigma, cond), again.eval()(x, sigma, cond))
    assert again.config == net.config
    assert set(net.config) >= {"size", "cond_dim", "width", "mult", "attention", "coords", "sigma_data"}


def test_interior_locations_have_stable_names():
    names = set(dict(tiny().named_modules()))
    assert {"encoder.16.conv", "encoder.16.block0", "encoder.8.down", "encoder.8.block0.qkv"} <= names
    assert {"decoder.8.in0", "decoder.8.in1", "decoder.16.up", "decoder.16.block1.res1"} <= names


def test_the_lowest_decoder_block_attends_whatever_is_requested():
    net = tiny(attention=())
    assert [name for name, module in net.named_modules() if getattr(module, "heads", 0)] == ["decoder.8.in0"]


def test_it_is_a_denoiser():
    assert isinstance(tiny(), Denoiser)


def test_no_condition_means_all_zeros():
    net, (x, sigma, cond) = tiny(), inputs()
    assert torch.equal(net(x, sigma), net(x, sigma, torch.zeros_like(cond)))


def test_one_noise_level_for_all_is_the_same_level_for_each():
    net, (x, _, cond) = tiny(), inputs()
    each = net(x, torch.full((3,), 0.7), cond)
    assert torch.equal(net(x, torch.tensor(0.7), cond), each)
    assert torch.equal(net(x, 0.7, cond), each)


def test_coordinates_conditioner_left_from_right():
    """On a blank image a network without them has the same answer along a row, away from the rim."""
    x, sigma, cond = torch.zeros(1, 3, 16, 16), torch.ones(1), torch.zeros(1, 4)
    plain, given = tiny(mult=(1,))(x, sigma, cond), tiny(mult=(1,), coords=True)
    middle = plain[0, :, 8, 6:10]
    given_clean = given(x, sigma, cond)[0, :, 8, 6:10]
    assert given.coords.shape == (1, 2, 16, 16) and given.coords.abs().max() < 1
    assert given.coords[0, 0, 0, -1] > 0 > given.coords[0, 0, 0, 0]
    assert given_clean.std(1).mean() > 3 * middle.std(1).mean()


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"size": 17}, "multiple of 2"),
        ({"size": 0}, "multiple of 2"),
        ({"mult": ()}, "some levels"),
        ({"width": 0}, "positive"),
        ({"head_width": 0}, "at least one channel, not 0"),
        ({"head_width": 12}, "Heads of 12 channels do not divide the 16"),
        ({"attention": (), "head_width": 12}, "Heads of 12 channels do not divide the 16"),
    ],
)
def test_impossible_sizes_are_refused(changes, sentence):
    with pytest.raises(UserError, match=sentence):
        tiny(**changes)


def test_wrong_inputs_are_refused():
    net, (x, sigma, cond) = tiny(), inputs()
    with pytest.raises(UserError, match=r"takes images \(B, 3, 16, 16\)"):
        net(x[..., :12], sigma, cond)
    with pytest.raises(UserError, match=r"takes conditions \(3, 4\)"):
        net(x, sigma, cond[:, :2])
    deaf = tiny(cond_dim=0)
    assert torch.equal(deaf(x, sigma, cond), deaf(x, sigma))  # as the weaker one of a guided pair
    with pytest.raises(UserError, match="no precision"):
        net.precision = "float8"


# -- speed and memory --------------------------------------------------------------------------------


def training_loss(net):
    def loss(images, cond, normal, noise):
        return edm_loss(net, images, cond, training_sigmas(normal), noise).sum() / len(images)

    return loss


def test_the_training_loss_traces_as_one_graph():
    net, (x, _, cond) = tiny(mult=(1,)), inputs()
    draws = torch.tensor([-1.0, 0.0, 0.5]), torch.randn_like(x)
    loss = training_loss(net)
    traced = torch.compile(loss, fullgraph=True, backend="eager")
    torch.testing.assert_close(traced(x, cond, *draws), loss(x, cond, *draws))


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("how", ["after-update", "projected"])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_a_training_step_traces_forward_and_backward(precision, how, checkpointing):
    net, (x, _, cond) = tiny(), inputs()
    net.precision, net.checkpointing = precision, checkpointing
    normalize_weights(net)
    set_weight_norm(net, how)
    draws = torch.tensor([-1.0, 0.0, 0.5]), torch.randn_like(x)
    loss = training_loss(net)
    plain = loss(x, cond, *draws)
    plain.backward()
    gradients = {name: p.grad.clone() for name, p in net.named_parameters()}
    net.zero_grad()
    value = torch.compile(loss, fullgraph=True, backend="aot_eager")(x, cond, *draws)
    value.backward()
    loose = 1e-4 if precision == "float32" else 0.1
    torch.testing.assert_close(value, plain, rtol=loose, atol=loose)
    for name, parameter in net.named_parameters():
        difference = (parameter.grad - gradients[name]).norm()
        assert difference <= loose * gradients[name].norm() + loose, name


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="compiling for the CPU needs a C++ compiler")
@pytest.mark.parametrize(
    ("how", "multiple", "precision", "loose"), [("transposed", 1, "float32", 1e-3), ("phases", 8, "bfloat16", 0.1)]
)
def test_compiled_code_computes_the_same(monkeypatch, how, multiple, precision, loose):
    """Through the whole compiler, with the ways of convolving that CPUs and GPUs take."""
    monkeypatch.setitem(_FOLDING, "cpu", how)
    monkeypatch.setitem(_CHANNELS_BY, "cpu", multiple)
    net, (x, _, cond) = tiny(), inputs()
    net.precision = precision
    draws = torch.tensor([-1.0, 0.0, 0.5]), torch.randn_like(x)
    loss = training_loss(net)
    plain = loss(x, cond, *draws)
    plain.backward()
    gradients = {name: p.grad.clone() for name, p in net.named_parameters()}
    net.zero_grad()
    compiled = torch.compile(loss, fullgraph=True)(x, cond, *draws)
    compiled.backward()
    torch.testing.assert_close(compiled, plain, rtol=loose, atol=0)
    for name, parameter in net.named_parameters():
        assert (parameter.grad - gradients[name]).norm() <= loose * gradients[name].norm(), name


def test_recomputing_blocks_changes_nothing_but_memory():
    net, (x, sigma, cond) = tiny(), inputs()
    gradients = []
    for net.checkpointing in (False, True):
        net.zero_grad()
        net(x, sigma, cond).square().sum().backward()
        gradients.append([p.grad.clone() for p in net.parameters() if p.grad is not None])
    for kept, recomputed in zip(*gradients, strict=True):
        torch.testing.assert_close(kept, recomputed)


def test_activations_stay_in_channels_last_from_end_to_end():
    net, (x, sigma, cond) = tiny(), inputs()
    layouts = []
    for block in net.blocks():
        block.register_forward_hook(lambda _, __, y: layouts.append(y.is_contiguous(memory_format=torch.channels_last)))
    net(x, sigma, cond)
    assert layouts and all(layouts)


def test_inside_the_network_activations_have_the_requested_precision():
    net, (x, sigma, cond) = tiny(), inputs()
    seen = set()
    for block in net.blocks():
        block.register_forward_hook(lambda _, __, y: seen.add(y.dtype))
    net.precision = "bfloat16"
    assert net(x, sigma, cond).dtype == torch.float32
    assert seen == {torch.bfloat16}


@pytest.mark.parametrize("tokens", [1, 9, 25, 64, 289])
def test_attention_is_the_same_however_many_tokens_there_are(tokens):
    generator = torch.Generator().manual_seed(0)
    q, k, v = torch.randn(3, 2, 2, tokens, 8, generator=generator, dtype=torch.float64)
    shares = torch.softmax(torch.einsum("bhqc,bhkc->bhqk", q, k) / 8**0.5, dim=-1)
    torch.testing.assert_close(attention(q, k, v), torch.einsum("bhqk,bhkc->bhqc", shares, v))


def test_a_config_under_former_names_builds_the_same_network():
    config = denoiser_config(tiny())
    former = {("taps" if name == "resample_filter" else name): value for name, value in config.items()}
    assert former != config and denoiser_config(denoiser_from(former)) == config
