"""Recording inside a pipeline's UNet: hidden states and attention maps, without a trace afterwards."""

import pytest
import torch

from tessera.analysis.recording import record
from tessera.errors import UserError
from tessera.studies.text_to_image.blocks import block_hooks, block_of, blocks_of, short_name
from tessera.studies.text_to_image.prompts import IMAGE

MID = "mid_block.attentions.0.transformer_blocks.0"


@pytest.fixture
def prompt(sdxl, latents):
    """One pass over two latents."""
    x, sigma = latents
    cond = sdxl.conditioner([IMAGE, "a cat"])

    def run():
        with torch.no_grad():
            return sdxl.plain(x, sigma, cond)

    return run


def traces(sdxl):
    """Everything a recording could leave behind."""
    modules = dict(sdxl.unet.named_modules())
    hooks = [len(module._forward_hooks) + len(module._forward_pre_hooks) for module in modules.values()]
    return hooks, [id(modules[f"{name}.attn2"].processor) for name in blocks_of(sdxl.unet)]


def recording(sdxl, site="block", layers="*", **options):
    return record(sdxl.plain, block_hooks(sdxl.unet, site, layers), **options)


def test_blocks_are_recorded_in_the_order_in_which_they_run(sdxl, prompt):
    with recording(sdxl) as activations:
        prompt()
    positions = [name.partition("_")[0] for name in activations]
    assert positions == sorted(positions, key=["down", "mid", "up"].index) and len(positions) == 17
    names = list(activations)
    assert [short_name(name) for name in names[:8:7]] == ["down1 0.0", "mid 0.1"]


def test_the_deep_pipeline_has_all_70_blocks(deep):
    positions = [name.split(".attentions")[0] for name in blocks_of(deep.unet)]
    counts = {position: positions.count(position) for position in dict.fromkeys(positions)}
    assert counts == {"down_blocks.1": 4, "down_blocks.2": 20, "mid_block": 10, "up_blocks.0": 30, "up_blocks.1": 6}


@pytest.mark.parametrize("site", ["block", "ff", "attn2"])
def test_hooks_leave_the_output_bit_equal(sdxl, prompt, site):
    before, traces_before = prompt(), traces(sdxl)
    with recording(sdxl, site) as activations:
        during = prompt()
    assert torch.equal(before, during) and traces(sdxl) == traces_before
    (own,) = [name for name in activations if block_of(name) == MID]
    assert len(activations) == 17 and activations[own].shape == (16, 32)


def test_maps_hardly_change_the_output_and_are_gone_afterwards(sdxl, prompt):
    before, traces_before = prompt(), traces(sdxl)
    with recording(sdxl, "maps", keep="rows") as maps:
        during = prompt()
    assert (before - during).abs().max() < 1e-4
    assert torch.equal(prompt(), before) and traces(sdxl) == traces_before
    for shares in maps.values():
        assert shares.shape[2] == 77 and (shares.sum(-1) - 1).abs().max() < 1e-5


def test_the_same_holds_for_all_70_blocks(deep):
    x, cond = deep.start([0, 1], 15), deep.conditioner(["a horse", "a big cat"])
    before = traces(deep)
    with torch.no_grad():
        plain = deep.plain(x, torch.tensor(5.0), cond)
        with recording(deep) as states:
            assert torch.equal(deep.plain(x, torch.tensor(5.0), cond), plain)
        with recording(deep, "maps", keep="rows") as maps:
            deep.plain(x, torch.tensor(5.0), cond)
    assert len(states) == len(maps) == 70 and traces(deep) == before
    assert all((shares.sum(-1) - 1).abs().max() < 1e-5 for shares in maps.values())
    assert all(state.isfinite().all() for state in states.values())


@pytest.mark.parametrize("site", ["block", "maps"])
def test_nothing_is_left_behind_by_an_exception(sdxl, site):
    before = traces(sdxl)
    with pytest.raises(ZeroDivisionError), recording(sdxl, site, sigmas=[1.0]):
        raise ZeroDivisionError
    assert traces(sdxl) == before


def test_a_running_mean_is_the_mean_of_all_rows(sdxl, prompt):
    with recording(sdxl, layers="up*") as mean, recording(sdxl, layers="up*", keep="rows") as rows:
        prompt()
        prompt()
    for name in mean:
        assert rows[name].shape[0] == 4
        assert torch.allclose(mean[name], rows[name].mean(0), atol=1e-5)


def test_a_block_is_its_feed_forward_term_upon_what_came_before(sdxl, prompt):
    """Post-FFN means with the residual; `ff` alone is something else."""
    with record(sdxl.plain, [MID, f"{MID}.ff"], keep="rows") as rows:
        prompt()
    before = rows[MID] - rows[f"{MID}.ff"]
    block = sdxl.unet.get_submodule(MID)
    with torch.no_grad():
        assert (block.ff(block.norm3(before)) - rows[f"{MID}.ff"]).abs().max() < 1e-4
    assert before.abs().max() > 1e-2


def test_noise_levels_choose_the_passes_of_a_trajectory(sdxl):
    levels = sdxl.sigmas(4)
    with recording(sdxl, layers="mid*", sigmas=[float(levels[1])], keep="rows") as one:
        trajectory = sdxl.trajectory(sdxl.conditioner("a cat"), steps=4, guidance=1.0, keep=(1, 4))
    with recording(sdxl, layers="mid*", keep="rows") as direct, torch.no_grad():
        sdxl.plain(trajectory.x[0], levels[1], sdxl.conditioner("a cat"))
    assert all(torch.equal(one[name], direct[name]) for name in direct)


def test_the_conditional_half_of_a_guided_pipeline(sdxl):
    """A pipeline called the usual way passes [unconditional, conditional] at every step."""

    def conditional(rows):
        return rows.chunk(2)[1].clone()

    with recording(sdxl, layers="mid*", keep=conditional) as passes:
        sdxl.pipe(
            "a cat",
            num_inference_steps=2,
            guidance_scale=5.0,
            generator=torch.Generator().manual_seed(0),
            output_type="latent",
        )
    first = float(sdxl.sigmas(2)[0])
    with recording(sdxl, layers="mid*", keep="rows") as direct, torch.no_grad():
        sdxl.plain(sdxl.start([0], 2), torch.tensor(first), sdxl.conditioner("a cat"))
    for name in direct:
        assert len(passes[name]) == 2 and (passes[name][0] - direct[name]).abs().max() < 1e-4


def test_a_pattern_that_fits_nothing_lists_near_names(sdxl):
    with pytest.raises(UserError, match=r"called `middle\*`; near are .*mid_block"):
        block_hooks(sdxl.unet, layers="middle*")
    with pytest.raises(UserError, match="recorded at block, ff, attn2, maps, not at `ear`"):
        block_hooks(sdxl.unet, "ear")


def test_maps_agree_with_attention_map_diffusers(sdxl):
    other = pytest.importorskip("attention_map_diffusers")
    options = {"num_inference_steps": 2, "guidance_scale": 5.0, "output_type": "latent"}
    with other.AttentionCapture(sdxl.pipe, relations="image->text", timesteps="all") as capture:
        sdxl.pipe(IMAGE, generator=torch.Generator().manual_seed(0), **options)
    with recording(sdxl, "maps", keep="rows") as maps:
        sdxl.pipe(IMAGE, generator=torch.Generator().manual_seed(0), **options)
    records = capture.compute().records
    assert len(records) == 2 * 17
    for one in records:
        name = one.layer_id.removeprefix("unet.")
        ours = maps[f"{name}.maps"].unflatten(0, (2, 2))[one.step_index]  # (2, H W, tokens)
        assert (one.data[:, 0] - ours).abs().max() < 1e-6
