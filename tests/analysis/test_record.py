"""Recording: the right hooks, the right numbers, and a network that stays as it was."""

import itertools
import tracemalloc

import pytest
import torch
from torch import nn
from waking import awake

from tessera.analysis.hooks import MODULATION, OUTPUT, chosen_hooks, find_hooks, matches
from tessera.analysis.recording import record
from tessera.conditioning import LocationGrid
from tessera.conditioning.unconditional import Unconditional
from tessera.errors import UserError
from tessera.models.diffusers_unet import from_diffusers
from tessera.models.local_conv import LocalConv, resized
from tessera.models.magnitude import mp_silu
from tessera.models.model import Model
from tessera.models.patchwise import Patchwise, Tiled

X = torch.randn(3, 3, 8, 8, generator=torch.Generator().manual_seed(0))
COND = torch.eye(8)[:3]


def hooks_of(network: nn.Module) -> list:
    """All that a recording could leave behind."""
    return [(name, len(m._forward_hooks), len(m._forward_pre_hooks)) for name, m in network.named_modules()]


# -- which hooks ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "pattern", "fits"),
    [
        ("encoder.8.block0", "encoder.*.block*", True),
        ("encoder.8.block0.res0", "encoder.*.block*", False),
        ("encoder.8.block0.scale", "**.scale", True),
        ("scale", "**.scale", True),
        ("decoder.8.up.scale", "decoder.**", True),
        ("decoder.8.up", "decoder.**.scale", False),
        ("encoder.16.conv", "encoder.[0-9].conv", False),
    ],
)
def test_a_star_stays_inside_one_part_of_a_name(name, pattern, fits):
    assert matches(name, pattern) is fits


def test_a_container_stands_for_the_blocks_in_it(edm2):
    blocks = ["encoder.8.conv", "encoder.8.block0", "encoder.4.down", "encoder.4.block0"]
    assert list(chosen_hooks(edm2, "encoder.*")) == blocks
    assert list(chosen_hooks(edm2, "encoder")) == blocks
    assert list(chosen_hooks(edm2, "encoder.4")) == blocks[2:]
    assert list(chosen_hooks(edm2, ["output", "encoder.4.down"])) == ["encoder.4.down", "output"]


def test_modulation_layers_are_all_blocks_of_encoder_and_decoder(edm2):
    names = list(chosen_hooks(edm2, "**.scale"))
    assert len(names) == len(edm2.blocks()) == 10
    assert [name.split(".")[0] for name in names] == ["encoder"] * 3 + ["decoder"] * 7


@pytest.mark.parametrize("kind", ["UNet2DModel", "UNet2DConditionModel"])
def test_diffusers_unets_are_recorded_by_default_in_their_middle_and_their_way_up(kind):
    diffusers = pytest.importorskip("diffusers")
    down, up = {"UNet2DModel": ("DownBlock2D", "UpBlock2D")}.get(kind, ("CrossAttnDownBlock2D", "CrossAttnUpBlock2D"))
    blocks = {"down_block_types": (down, "DownBlock2D"), "up_block_types": ("UpBlock2D", up)}
    sizes = {"block_out_channels": (8, 8), "norm_num_groups": 4, "layers_per_block": 1, "attention_head_dim": 4}
    text = {} if kind == "UNet2DModel" else {"cross_attention_dim": 8}
    unet = getattr(diffusers, kind)(16, in_channels=3, out_channels=3, **blocks, **sizes, **text).eval()
    conditioner = LocationGrid(cells=8) if text else Unconditional()
    model = from_diffusers(unet, diffusers.DDPMScheduler(), conditioner)
    names = ["up_blocks.0", "up_blocks.1", "mid_block", "output"]
    assert sorted(chosen_hooks(model, [MODULATION, OUTPUT])) == sorted(names)
    with record(model, [MODULATION, OUTPUT]) as seen:
        model(X.new_zeros(2, 3, 16, 16), 1.0, X.new_zeros(2, conditioner.dim))
    assert list(seen) == ["mid_block", "up_blocks.0", "up_blocks.1", "output"]


def test_a_network_without_blocks_of_any_kind_has_no_default():
    with pytest.raises(UserError, match="no modulation layers"):
        chosen_hooks(nn.Linear(2, 2), MODULATION)


def test_a_network_on_tiles_has_the_names_of_the_one_inside():
    tiled = awake(Tiled(16, 8, tile=2, width=8, mult=(1, 2), blocks=1, attention=()))
    assert {"encoder.8.block0", "encoder.8.block0.scale", "output"} <= set(find_hooks(tiled))
    with record(tiled, ["encoder.8.block0", "output"]) as seen:
        out = tiled(torch.randn(2, 3, 16, 16), 1.0)
    assert seen["encoder.8.block0"].shape == (8, 8, 8)
    torch.testing.assert_close(seen["output"], out.mean(0))


@pytest.mark.parametrize("pattern", ["encodr.*", "encoder.8.blok0", "decoder.*.scale", "scale"])
def test_a_pattern_without_a_hook_lists_near_names(edm2, pattern):
    with pytest.raises(UserError, match=r"No hook .* near are \w+") as caught:
        chosen_hooks(edm2, pattern)
    near = str(caught.value).partition("near are ")[2].rstrip(".").split(", ")
    assert len(near) >= 1 and all(name in str(list(find_hooks(edm2))) for name in near)


def test_a_plain_function_has_no_inside():
    with pytest.raises(UserError, match="Only features of a torch network"), record(lambda x, s, c: x):
        pass


# -- which numbers -----------------------------------------------------------------------------------------


def test_the_scale_is_what_the_block_goes_on_with(edm2):
    inputs = {}
    handles = [
        block.res1.register_forward_pre_hook(lambda _, given, n=n: inputs.setdefault(n, given[0]))
        for n, block in enumerate(edm2.blocks())
    ]
    with record(edm2, "**.scale", keep="rows") as seen:
        edm2(X, 2.0, COND)
    for handle in handles:
        handle.remove()
    assert len(seen) == len(inputs)
    for n, rows in enumerate(seen.values()):
        torch.testing.assert_close(mp_silu(rows), inputs[n], rtol=0, atol=0)


def test_the_scale_of_a_local_block_is_what_it_goes_on_with():
    local = awake(LocalConv(16, LocationGrid(cells=8), radius=2, width=8, depth=2))
    given = {}
    handle = local.blocks[1].res1.register_forward_pre_hook(lambda _, inputs: given.update(x=inputs[0]))
    with record(local, "blocks.1.scale", keep="rows") as seen:
        local(torch.randn(2, 3, 16, 16), 1.0, LocationGrid(cells=8).at([(0.3, 0.3)]).expand(2, -1))
    handle.remove()
    torch.testing.assert_close(mp_silu(seen["blocks.1.scale"]), given["x"], rtol=0, atol=0)
    assert resized(torch.ones(1, 1, 2, 2), 4).shape[-1] == 4


def test_running_means_equal_the_mean_over_all_images(edm2):
    with record(edm2, "encoder.*") as mean, record(edm2, "encoder.*", keep="rows") as rows:
        edm2(X, 2.0, COND)
        edm2(X[:1], 0.5, COND[:1])
    assert list(mean) == list(rows) and mean.count("encoder.8.conv") == 4
    for name in mean:
        assert len(rows[name]) == 4
        torch.testing.assert_close(mean[name], rows[name].mean(0))


def test_chosen_noise_levels_are_kept_apart_and_others_ignored(edm2):
    with record(edm2, "output", sigmas=(2.0, 0.5)) as seen:
        outs = {s: edm2(X, s, COND) for s in (2.0, 0.5, 7.0)}
        edm2(x=X, sigma=torch.tensor(2.01), cond=COND)
    torch.testing.assert_close(seen.level(0.5)["output"], outs[0.5].mean(0))
    assert seen.count("output") == 9
    with pytest.raises(UserError, match=r"chosen were 2, 0\.5"):
        seen.level(7.0)


def test_images_of_several_levels_in_one_pass_are_kept_apart(edm2):
    levels = torch.tensor([2.0, 0.5, 2.0])
    with record(edm2, "output", sigmas=[2.0]) as seen:
        out = edm2(X, levels, COND)
    torch.testing.assert_close(seen["output"], out[[0, 2]].mean(0))


def test_patches_of_several_levels_cannot_be_kept_apart():
    network = awake(Patchwise(16, LocationGrid(cells=4), 1, mult=(1,), width=8, blocks=1, attention=()))
    images, cond = torch.randn(2, 3, 16, 16), torch.zeros(2, 16)
    with pytest.raises(UserError, match="cannot be separated"), record(network, "**.block0", sigmas=[1.0]):
        network(images, torch.tensor([1.0, 3.0]), cond)
    with record(network, "**.block0", sigmas=[1.0]) as seen:
        network(images, 1.0, cond)
    assert seen.count("encoder.12.block0") == 2 * 16


def test_a_function_makes_its_own_of_every_pass(edm2):
    with record(edm2, "encoder.4.*", keep=lambda rows: tuple(rows.shape)) as seen:
        edm2(X, 1.0)
        edm2(X[:2], 1.0)
    assert seen["encoder.4.block0"] == [(3, 16, 4, 4), (2, 16, 4, 4)]


def test_half_precision_means_are_added_up_in_float32(edm2):
    edm2.precision = "bfloat16"
    with record(edm2, "encoder.8.block0") as seen:
        edm2(X, 1.0, COND)
    assert seen["encoder.8.block0"].dtype == torch.float32


# -- leaves no trace ---------------------------------------------------------------------------------------


def test_outputs_are_the_same_bits_with_and_without(edm2):
    plain = edm2(X, 2.0, COND)
    with record(edm2, ["**", "**.scale", "output"]):
        watched = edm2(X, 2.0, COND)
    assert torch.equal(plain, watched)


def test_gradients_pass_through_a_recording_unchanged(edm2):
    def pull():
        x = X.clone().requires_grad_()
        return torch.autograd.grad(edm2(x, 2.0, COND).square().sum(), x)[0]

    plain = pull()
    with record(edm2, "**.scale") as seen:
        assert torch.equal(plain, pull())
    assert not any(value.requires_grad for value in seen.values())


def stumble(network):
    with record(network, "**.scale"):
        raise RuntimeError


def stumble_inside(network):
    with record(network, "**.scale"):
        network(torch.zeros(1, 3, 9, 9), 1.0)


def stumble_while_hooking(network):
    turns, real = itertools.count(), nn.Module.register_forward_hook

    def failing(self, *given, **named):
        if next(turns) == 4:
            raise RuntimeError
        return real(self, *given, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nn.Module, "register_forward_hook", failing)
        with record(network, "**.scale"):
            pytest.fail("the fifth hook could not be set")


@pytest.mark.parametrize("way", [stumble, stumble_inside, stumble_while_hooking])
def test_no_hook_survives_an_exception(edm2, way):
    before = hooks_of(edm2)
    with pytest.raises((RuntimeError, UserError)):
        way(edm2)
    assert hooks_of(edm2) == before and not any(trace[1] for trace in before)


def test_two_recordings_may_be_open_at_once(edm2):
    with record(edm2, "**.scale") as outer:
        with record(edm2, "encoder.8.block0.scale") as inner:
            edm2(X, 1.0, COND)
        edm2(X, 1.0, COND)
    assert outer.count("encoder.8.block0.scale") == 6 and inner.count("encoder.8.block0.scale") == 3
    assert not any(trace[1] for trace in hooks_of(edm2))


def test_memory_does_not_grow_with_the_number_of_images(edm2):
    with record(edm2, "**.scale") as seen:
        edm2(X, 1.0, COND)
        first = [value.data_ptr() for kept in seen.kept.values() for value in kept.values()]
        tracemalloc.start()
        for _ in range(20):
            edm2(X, 1.0, COND)
        grown = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
    assert [value.data_ptr() for kept in seen.kept.values() for value in kept.values()] == first
    assert grown < 100_000


# -- reading -----------------------------------------------------------------------------------------------


def test_reading_what_was_not_recorded_is_refused_in_one_sentence(edm2):
    with record(edm2, ["encoder.8.block0", "encoder.8.block0.emb"]) as seen:
        edm2(X, 1.0)
    with pytest.raises(UserError, match="no image passed"):
        seen["encoder.8.block0.emb"]  # factors of all blocks are computed together
    with pytest.raises(UserError, match="was not recorded"):
        seen["decoder"]
    assert "decoder" not in seen and "encoder.8.block0" in seen


def test_a_loaded_model_can_be_recorded(edm2):
    model = Model(edm2, LocationGrid(cells=2))
    with record(model, "encoder.*") as seen:
        model(X, 1.0)
    assert len(seen) == 4


@pytest.mark.parametrize("sigmas", [[], [0.0], [1.0, -2.0]])
def test_levels_must_be_positive(edm2, sigmas):
    with pytest.raises(UserError, match="positive"), record(edm2, "output", sigmas=sigmas):
        pass


def test_levels_need_a_network_that_takes_sigma():
    class Plain(nn.Linear):
        def forward(self, input):
            return super().forward(input)

    plain = Plain(2, 2)
    with pytest.raises(UserError, match="sigma"), record(plain, "output", sigmas=[1.0]):
        plain(torch.zeros(1, 2))
    with record(plain, "output") as seen:
        plain(torch.zeros(1, 2))
    torch.testing.assert_close(seen["output"], plain.bias)
