"""A pipeline as a denoiser: the same numbers as diffusers, and one sentence for what is no pipeline."""

import json
import sys

import pytest
import torch
from torch import nn

from tessera.errors import UserError
from tessera.models.contract import Denoiser
from tessera.studies.text_to_image.pipeline import Sdxl, load_sdxl
from tessera.studies.text_to_image.prompts import IMAGE
from tiny_pipeline import TINY, make_encoders, make_pipeline, make_tokenizers, tiny_sdxl, unet_config, vae_config


def test_saving_and_loading_changes_no_bit(sdxl):
    from tiny_pipeline import known_words, texts

    fresh = Sdxl(make_pipeline(TINY, known_words(texts()), seed=0), "memory")
    for mine, theirs in zip(
        (fresh.unet, fresh.vae, *fresh.encoders), (sdxl.unet, sdxl.vae, *sdxl.encoders), strict=True
    ):
        state = theirs.state_dict()
        assert all(torch.equal(weight, state[name]) for name, weight in mine.state_dict().items())
    # Weights mapped from a file lie at other addresses, and some processors round sums by where numbers lie.
    torch.testing.assert_close(fresh.conditioner(IMAGE), sdxl.conditioner(IMAGE), rtol=1e-5, atol=1e-6)


def test_conditions_are_those_of_diffusers(sdxl):
    prompts = [IMAGE, "A woodblock print in the style of Hokusai.", ""]
    with torch.no_grad():
        theirs = sdxl.pipe.encode_prompt(prompts, device="cpu", do_classifier_free_guidance=True)
    cond = sdxl.net.parts(sdxl.conditioner(prompts))
    assert torch.equal(cond.sequence, theirs[0]) and torch.equal(cond.pooled, theirs[2])
    nothing = sdxl.net.parts(sdxl.unconditional().expand(3, -1))
    assert torch.equal(nothing.sequence, theirs[1]) and torch.equal(nothing.pooled, theirs[3])
    assert cond.sizes[0].tolist() == [128, 128, 0, 0, 128, 128]


def test_two_kinds_of_nothing_differ(sdxl):
    empty, zeros = (sdxl.unconditional(kind) for kind in ("empty", "zeros"))
    assert torch.equal(empty, sdxl.conditioner("")) and not torch.equal(empty, zeros)
    assert sdxl.net.parts(zeros).sequence.abs().max() == 0 and torch.equal(
        sdxl.net.parts(zeros).sizes, sdxl.net.parts(empty).sizes
    )


def test_a_trajectory_ends_where_the_pipeline_ends(sdxl):
    seeds, steps = [5, 6], 12
    generators = [torch.Generator().manual_seed(seed) for seed in seeds]
    theirs = sdxl.pipe(
        [IMAGE] * 2, num_inference_steps=steps, guidance_scale=5.0, generator=generators, output_type="latent"
    ).images
    cond = sdxl.conditioner(IMAGE)
    whole = sdxl.trajectory(cond, steps=steps, seeds=seeds, guidance=5.0, keep=(0, 7, steps))
    assert (whole.last - theirs).abs().max() < 1e-4
    assert whole.steps == (0, 7, steps) and torch.equal(whole.x[0], sdxl.start(seeds, steps))
    short = sdxl.trajectory(cond, steps=steps, seeds=seeds, keep=(7,))
    assert torch.equal(short.x[0], whole.x[1])


def test_so_does_one_of_70_blocks(deep):
    theirs = deep.pipe(
        "a big cat",
        height=64,
        width=64,
        num_inference_steps=3,
        guidance_scale=5.0,
        generator=torch.Generator().manual_seed(2),
        output_type="latent",
    ).images
    assert (deep.trajectory(deep.conditioner("a big cat"), steps=3, seeds=[2]).last - theirs).abs().max() < 1e-4


def test_half_precision_stays_inside_the_network(folder, sdxl):
    half = load_sdxl(folder, dtype=torch.bfloat16)
    cond = half.conditioner("a cat")
    latents = half.trajectory(cond, steps=2, seeds=[0]).last
    assert cond.dtype == latents.dtype == half.decode(latents).dtype == torch.float32
    assert next(half.unet.parameters()).dtype == torch.bfloat16
    whole = sdxl.trajectory(sdxl.conditioner("a cat"), steps=2, seeds=[0]).last
    assert 0 < (latents - whole).norm() / whole.norm() < 0.05


def test_a_seed_gives_its_latent_whatever_the_batch(sdxl):
    cond = sdxl.conditioner("a cat")
    both = sdxl.trajectory(cond, steps=3, seeds=[8, 9]).last
    alone = sdxl.trajectory(cond, steps=3, seeds=[9]).last
    assert (both[1] - alone[0]).abs().max() < 1e-4


@pytest.mark.parametrize("steps", [15, 50])
def test_a_noise_level_finds_the_time_it_was_made_at(sdxl, steps):
    schedule = sdxl.schedule(steps)
    assert (sdxl.plain.time(schedule.sigmas[:-1]) - schedule.timesteps).abs().max() < 1e-3


def test_noise_levels_are_those_of_sdxl(sdxl):
    fifty, fifteen = sdxl.sigmas(50), sdxl.sigmas(15)
    assert fifty[[0, 24, 25, 49, 50]].tolist() == pytest.approx([13.12, 1.62, 1.52, 0.041, 0], abs=5e-3)
    assert fifteen[[0, 6, 7, 14]].tolist() == pytest.approx([9.54, 1.78, 1.43, 0.041], abs=5e-3)


def test_it_is_a_denoiser_of_variance_exploding_noise(sdxl, latents):
    x, sigma = latents
    cond = sdxl.conditioner(["a dog", "a cat"])
    assert isinstance(sdxl.plain, Denoiser)
    given = sdxl.net.parts(cond)
    time = sdxl.plain.time(sigma.expand(2))
    with torch.no_grad():
        eps = sdxl.unet(
            x / (sigma**2 + 1).sqrt(),
            time,
            given.sequence,
            added_cond_kwargs={"text_embeds": given.pooled, "time_ids": given.sizes},
        ).sample
        assert (sdxl.plain(x, sigma, cond) - (x - sigma * eps)).abs().max() < 1e-4


def test_guidance_is_linear_in_its_weight(sdxl, latents):
    x, sigma = latents
    cond = sdxl.conditioner(["a dog", "a cat"])
    with torch.no_grad():
        plain, three, five = (sdxl.denoiser(w)(x, sigma, cond) for w in (1.0, 3.0, 5.0))
        floor = sdxl.plain(x, sigma, sdxl.unconditional("zeros").expand(2, -1))
    assert (three - (floor + 3 * (plain - floor))).abs().max() < 1e-4
    assert (five - three - 2 * (plain - floor)).abs().max() < 1e-4
    assert (five - plain).abs().max() > 1e-3


def test_images_need_not_be_square(folder):
    wide = load_sdxl(folder, size=(64, 128))
    assert wide.latent == (4, 8, 16) and wide.net.parts(wide.conditioner("a cat")).sizes.tolist() == [
        [64, 128, 0, 0, 64, 128]
    ]
    end = wide.trajectory(wide.conditioner("a cat"), steps=2).last
    assert end.shape == (1, 4, 8, 16) and wide.decode(end).shape == (1, 3, 64, 128)
    with pytest.raises(UserError, match="multiples of 32 pixels, not 100 x 128"):
        load_sdxl(folder, size=(100, 128))


def stable_diffusion(kind: str):
    """A pipeline of the SD 1.5 sort: one text encoder, no pooled vector."""
    from diffusers import AutoencoderKL, PNDMScheduler, StableDiffusionPipeline, UNet2DConditionModel

    words = ["a", "cat"]
    tokenizer = make_tokenizers(words)[0]
    config = unet_config(TINY) | {"cross_attention_dim": 16, "addition_embed_type": None}
    for key in ("addition_time_embed_dim", "projection_class_embeddings_input_dim"):
        config.pop(key)
    torch.manual_seed(0)
    return StableDiffusionPipeline(
        vae=AutoencoderKL(**vae_config(TINY)).eval(),
        text_encoder=make_encoders(TINY, tokenizer.get_vocab())[0],
        tokenizer=tokenizer,
        unet=UNet2DConditionModel(**config),
        scheduler=PNDMScheduler(
            beta_start=0.00085, beta_end=0.012, beta_schedule="scaled_linear", steps_offset=1, prediction_type=kind
        ),
        safety_checker=None,
        feature_extractor=None,
    )


def test_a_pipeline_without_a_pooled_vector_works_too():
    old = Sdxl(stable_diffusion("epsilon"), "old")
    with torch.no_grad():
        theirs = old.pipe.encode_prompt("a cat", "cpu", 1, do_classifier_free_guidance=False)[0]
    cond = old.net.parts(old.conditioner("a cat"))
    assert torch.equal(cond.sequence, theirs) and cond.pooled is None and old.chosen_nothing("default") == "empty"
    trajectory = old.trajectory(old.conditioner("a cat"), steps=3, seeds=[0])
    assert trajectory.last.isfinite().all() and trajectory.sigmas.tolist() == [0]


def test_v_prediction_is_understood_and_others_are_refused(sdxl):
    one = Sdxl(stable_diffusion("v_prediction"), "v")
    x, sigma = one.start([0], 5), torch.tensor(2.0)
    with torch.no_grad():
        v = one.net(x / 5**0.5, one.plain.time(sigma[None]), one.conditioner("a cat"))
        assert (one.plain(x, sigma, one.conditioner("a cat")) - (x / 5 - 2 / 5**0.5 * v)).abs().max() < 1e-5
    with pytest.raises(UserError, match="predicts `flow_prediction`"):
        _ = Sdxl(stable_diffusion("flow_prediction"), "other").plain


def test_no_gradient_is_kept_for_weights(sdxl):
    parts: list[nn.Module] = [sdxl.unet, sdxl.vae, *sdxl.encoders]
    assert not any(weight.requires_grad for part in parts for weight in part.parameters())


# -- bad input ---------------------------------------------------------------------------------------------


def test_what_is_no_diffusers_folder_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"is no diffusers folder: it has no model_index\.json"):
        load_sdxl(tmp_path)
    with pytest.raises(UserError, match="no hub id such as someone/model"):
        load_sdxl(tmp_path / "nowhere" / "at" / "all")
    (tmp_path / "model_index.json").write_text("{")
    with pytest.raises(UserError, match="is not valid JSON"):
        load_sdxl(tmp_path)
    (tmp_path / "model_index.json").write_text(json.dumps({"transformer": []}))
    with pytest.raises(UserError, match="has no UNet"):
        load_sdxl(tmp_path)


def test_a_damaged_pipeline_is_one_sentence(folder, tmp_path):
    (tmp_path / "model_index.json").write_text((folder / "model_index.json").read_text())
    with pytest.raises(UserError, match="Could not load") as refusal:
        load_sdxl(tmp_path)
    assert "\n" not in str(refusal.value)


def test_a_missing_extra_comes_with_the_command_to_get_it(monkeypatch, folder):
    monkeypatch.setitem(sys.modules, "diffusers", None)
    with pytest.raises(UserError, match=r"pip install 'tessera-diffusion\[t2i\]'"):
        load_sdxl(folder)


def test_a_prompt_of_more_than_77_tokens_is_refused(sdxl):
    assert sdxl.conditioner("cat " * 75).shape[0] == 1
    with pytest.raises(UserError, match="has 78 tokens with its start and end; the text encoder reads 77"):
        sdxl.conditioner("cat " * 76)


def test_steps_beyond_the_samplers_are_refused(sdxl):
    with pytest.raises(UserError, match="ends before step 4"):
        sdxl.trajectory(sdxl.conditioner(""), steps=3, keep=(4,))


def test_a_full_folder_is_not_overwritten(folder):
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    with pytest.raises(UserError, match="is not empty"):
        tiny_sdxl(folder)
    assert before == {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
