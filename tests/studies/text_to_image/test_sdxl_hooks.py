"""Listening changes nothing, leaves nothing behind, and hears what is there."""

import pytest
import torch

from tessera.errors import UserError
from tessera.studies.text_to_image.hooks import blocks_of, chosen_blocks, listen, recording, short_name
from tessera.studies.text_to_image.prompts import IMAGE


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
    """Everything a listener could leave behind."""
    hooks = [len(module._forward_hooks) + len(module._forward_pre_hooks) for module in sdxl.unet.modules()]
    return hooks, [id(block.attn2.processor) for block in blocks_of(sdxl.unet).values()]


def test_blocks_are_named_in_the_order_in_which_they_run(sdxl, prompt):
    called = []
    blocks = blocks_of(sdxl.unet)
    with recording(blocks, "block", lambda name, h: called.append(name)):
        prompt()
    assert called == list(blocks) and len(called) == 17
    assert [short_name(name) for name in called[:8:7]] == ["down1 0.0", "mid 0.1"]


def test_the_deep_pipeline_has_all_70_blocks(deep):
    positions = [name.split(".attentions")[0] for name in blocks_of(deep.unet)]
    counts = {position: positions.count(position) for position in dict.fromkeys(positions)}
    assert counts == {
        "down_blocks.1": 4,
        "down_blocks.2": 20,
        "mid_block": 10,
        "up_blocks.0": 30,
        "up_blocks.1": 6,
    }


@pytest.mark.parametrize("site", ["block", "ff", "attn2"])
def test_hooks_leave_the_output_bit_equal(sdxl, prompt, site):
    before, seen_before = prompt(), traces(sdxl)
    with listen(sdxl, site) as seen:
        during = prompt()
    assert torch.equal(before, during) and traces(sdxl) == seen_before
    assert len(seen) == 17 and seen["mid_block.attentions.0.transformer_blocks.0"].shape == (16, 32)


def test_maps_hardly_change_the_output_and_are_gone_afterwards(sdxl, prompt):
    before, seen_before = prompt(), traces(sdxl)
    with listen(sdxl, "maps", keep="rows") as seen:
        during = prompt()
    assert (before - during).abs().max() < 1e-4
    assert torch.equal(prompt(), before) and traces(sdxl) == seen_before
    for shares in seen.values():
        assert shares.shape[2] == 77 and (shares.sum(-1) - 1).abs().max() < 1e-5


def test_the_same_holds_for_all_70_blocks(deep):
    x, cond = deep.start([0, 1], 15), deep.conditioner(["a horse", "a big cat"])
    before = traces(deep)
    with torch.no_grad():
        plain = deep.plain(x, torch.tensor(5.0), cond)
        with listen(deep, "block") as states:
            assert torch.equal(deep.plain(x, torch.tensor(5.0), cond), plain)
        with listen(deep, "maps", keep="rows") as maps:
            deep.plain(x, torch.tensor(5.0), cond)
    assert len(states) == len(maps) == 70 and traces(deep) == before
    assert all((shares.sum(-1) - 1).abs().max() < 1e-5 for shares in maps.values())
    assert all(state.isfinite().all() for state in states.values())


@pytest.mark.parametrize("site", ["block", "maps"])
def test_nothing_is_left_behind_by_an_exception(sdxl, site):
    before = traces(sdxl)
    with pytest.raises(ZeroDivisionError), listen(sdxl, site, sigmas=[1.0]):
        raise ZeroDivisionError
    assert traces(sdxl) == before


def test_a_token_gives_its_own_column(sdxl, prompt):
    with listen(sdxl, "maps", "mid*", keep="rows") as whole:
        prompt()
    with listen(sdxl, "maps", "mid*", keep="rows", tokens=[5, 2]) as own:
        prompt()
    with listen(sdxl, "maps", "mid*", keep="rows", tokens=5) as one:
        prompt()
    for name, shares in whole.items():
        assert torch.equal(own[name], torch.stack([shares[0, :, 5], shares[1, :, 2]]))
        assert torch.equal(one[name], shares[..., 5])
    with pytest.raises(UserError, match="3 tokens for 2 latents"), listen(sdxl, "maps", tokens=[1, 2, 3]):
        prompt()


def test_a_running_mean_is_the_mean_of_all_rows(sdxl, prompt):
    with listen(sdxl, "block", "up*") as mean, listen(sdxl, "block", "up*", keep="rows") as rows:
        prompt()
        prompt()
    for name in mean:
        assert rows[name].shape[0] == 4
        assert torch.allclose(mean[name], rows[name].mean(0), atol=1e-5)


def test_a_block_is_its_feed_forward_term_upon_what_came_before(sdxl, prompt):
    """Post-FFN means with the residual; `ff` alone is another object."""
    with (
        listen(sdxl, "block", "mid*", keep="rows") as block,
        listen(sdxl, "ff", "mid*", keep="rows") as term,
    ):
        prompt()
    name = next(iter(block))
    before = block[name] - term[name]
    norm, ff = (getattr(chosen_blocks(sdxl.unet, name)[name], part) for part in ("norm3", "ff"))
    with torch.no_grad():
        assert (ff(norm(before)) - term[name]).abs().max() < 1e-4
    assert (block[name] - term[name]).abs().max() > 1e-2


def test_noise_levels_choose_the_passes_of_a_whole_way(sdxl):
    levels = sdxl.sigmas(4)
    with listen(sdxl, "block", "mid*", sigmas=[float(levels[1])], keep="rows") as one:
        kept = sdxl.trajectory(sdxl.conditioner("a cat"), steps=4, guidance=1.0, keep=(1, 4))
    with listen(sdxl, "block", "mid*", keep="rows") as direct, torch.no_grad():
        sdxl.plain(kept.x[0], levels[1], sdxl.conditioner("a cat"))
    assert all(torch.equal(one[name], direct[name]) for name in direct)


def test_the_told_half_of_a_guided_pipeline(sdxl):
    def run():
        sdxl.pipe(
            "a cat",
            num_inference_steps=2,
            guidance_scale=5.0,
            generator=torch.Generator().manual_seed(0),
            output_type="latent",
        )

    first = float(sdxl.sigmas(2)[0])
    with listen(sdxl, "block", "mid*", keep="rows", half="conditional", sigmas=[first]) as told:
        run()
    with listen(sdxl, "block", "mid*", keep="rows") as direct, torch.no_grad():
        sdxl.plain(sdxl.start([0], 2), torch.tensor(first), sdxl.conditioner("a cat"))
    for name in direct:
        assert told[name].shape[0] == 1 and (told[name] - direct[name]).abs().max() < 1e-4


def test_a_pattern_that_fits_nothing_is_told_near_names(sdxl):
    with pytest.raises(UserError, match=r"called `middle\*`; near are .*mid_block"):
        chosen_blocks(sdxl.unet, "middle*")
    with (
        pytest.raises(UserError, match="One can listen at block, ff, attn2, maps, not at `ear`"),
        listen(sdxl, "ear"),
    ):
        pass


def test_maps_agree_with_attention_map_diffusers(sdxl):
    other = pytest.importorskip("attention_map_diffusers")
    options = {"num_inference_steps": 2, "guidance_scale": 5.0, "output_type": "latent"}
    with other.AttentionCapture(sdxl.pipe, relations="image->text", timesteps="all") as capture:
        sdxl.pipe(IMAGE, generator=torch.Generator().manual_seed(0), **options)
    with listen(sdxl, "maps", keep="rows") as seen:
        sdxl.pipe(IMAGE, generator=torch.Generator().manual_seed(0), **options)
    records = capture.compute().records
    assert len(records) == 2 * 17
    for record in records:
        name = record.layer_id.removeprefix("unet.").removesuffix(".attn2")
        ours = seen[name].unflatten(0, (2, 2))[record.step_index]  # (2, H W, tokens)
        assert (record.data[:, 0] - ours).abs().max() < 1e-6
