"""The whole network against recorded numbers of the reference."""

import json

import pytest
import torch
from safetensors.torch import load_file

from edm2_reference import from_reference, our_config, our_name, our_state
from tessera.errors import UserError
from tessera.models.edm2 import EDM2
from tessera.models.magnitude import set_weight_norm

NETS = ["main", "variant", "uncond"]


def relative(a, b):
    return ((a - b).norm() / b.norm()).item()


def part(tensors, prefix):
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


@pytest.fixture(scope="module", params=NETS)
def recorded(request, edm2_parity):
    """(network, its recorded tensors)"""
    tensors = load_file(edm2_parity / f"precond_{request.param}.safetensors")
    config = json.loads((edm2_parity / "manifest.json").read_text())["nets"][request.param]
    return from_reference(config, part(tensors, "state/")).eval(), tensors


def test_the_clean_image_matches(recorded):
    net, t = recorded
    clean = net(t["in/x"], t["in/sigma"], t.get("in/class_labels"))
    assert relative(clean, t["eval/D"]) < 1e-5
    if "eval_nolabel/D" in t:
        assert relative(net(t["in/x"], t["in/sigma"], None), t["eval_nolabel/D"]) < 1e-5
    if "eval_soft/D" in t:
        soft = t["eval_soft/class_labels"]
        assert relative(net(t["in/x"], t["in/sigma"], soft), t["eval_soft/D"]) < 1e-5
    if "eval_scalar_sigma/D" in t:
        clean = net(t["in/x"], torch.tensor(1.7), t.get("in/class_labels"))
        assert relative(clean, t["eval_scalar_sigma/D"]) < 1e-5


def test_the_expected_error_matches(recorded):
    net, t = recorded
    assert relative(net.logvar(t["in/sigma"]), t["eval/logvar"].flatten()) < 1e-5


def test_the_inside_matches_location_by_location(recorded):
    net, t = recorded
    seen = {}
    modules = dict(net.named_modules())
    wanted = part(t, "eval/act/")
    for name in wanted:
        location = our_name(f"unet.{name}.weight").removesuffix(".weight")
        modules[location].register_forward_hook(lambda _, __, y, name=name: seen.__setitem__(name, y))
    net(t["in/x"], t["in/sigma"], t.get("in/class_labels"))
    for name, value in wanted.items():
        assert relative(seen[name], value) < 1e-5, name
    if "eval/emb" in t:
        emb = net.embed(t["in/sigma"].log() / 4, t.get("in/class_labels"))
        assert relative(emb, t["eval/emb"]) < 1e-5
    if "eval/F" in t:
        inp = t["in/x"] / (net.sigma_data**2 + t["in/sigma"] ** 2).sqrt()[:, None, None, None]
        raw = net.raw(inp, t["in/sigma"].log() / 4, t.get("in/class_labels"))
        assert relative(raw, t["eval/F"]) < 1e-5


def test_training_mode_matches_and_overwrites_the_weights(recorded):
    net, t = recorded
    before = {name: value.clone() for name, value in net.state_dict().items()}
    try:
        set_weight_norm(net.train(), "in-forward")
        clean = net(t["in/x"], t["in/sigma"], t.get("in/class_labels"))
        assert relative(clean, t["train/D"]) < 1e-5
        assert relative(net.logvar(t["in/sigma"]), t["train/logvar"].flatten()) < 1e-5
        after = net.state_dict()
        for name, value in our_state(part(t, "state_after_train/"), net).items():
            assert relative(after[name], value) < 1e-5, name
    finally:
        net.eval().load_state_dict(before)


@pytest.mark.parametrize(("precision", "key", "tolerance"), [("float16", "F_fp16", 5e-3), ("bfloat16", "F_bf16", 3e-2)])
def test_reduced_precision_stays_close(edm2_parity, precision, key, tolerance):
    t = load_file(edm2_parity / "unet_reduced_precision.safetensors")
    state = part(load_file(edm2_parity / "precond_main.safetensors"), "state/")
    config = json.loads((edm2_parity / "manifest.json").read_text())["nets"]["main"]
    net = from_reference(config, state).eval()
    net.precision = precision
    raw = net.raw(t["x_in"], t["c_noise"], t["class_labels"])
    assert raw.dtype == torch.float32
    assert relative(raw, t[key].float()) < tolerance
    assert 1e-5 < relative(raw, t["F_fp32"]) < tolerance  # reduced indeed, and not by much


def test_full_size_names_shapes_and_counts_match(edm2_parity):
    arch = json.loads((edm2_parity / "arch_edm2-img64-xs_res128_label256.json").read_text())
    config = {key: arch[key] for key in ("img_resolution", "img_channels", "label_dim", "model_channels")}
    with torch.device("meta"):
        net = EDM2(**our_config(config))
        reference = {name: torch.empty(shape) for name, shape, _ in arch["entries"]}
    ours = {name: value.shape for name, value in net.state_dict().items()}
    theirs = {name: value.shape for name, value in our_state(reference, net).items()}
    assert ours == theirs
    assert sum(p.numel() for p in net.parameters()) == arch["num_parameters"]
    attends = {name for name, module in net.named_modules() if getattr(module, "heads", 0)}
    expected = {our_name(f"{name}.weight").removesuffix(".weight") for name in arch["blocks_with_attention"]}
    assert attends == expected


def test_an_argument_the_reference_does_not_have_is_named():
    with pytest.raises(UserError, match="depth"):
        our_config({"img_resolution": 64, "depth": 3})
