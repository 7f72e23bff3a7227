"""Concepts inside a network that learned nothing: the confound, its controls, and a planted truth."""

from dataclasses import replace

import pytest
import torch

from tessera.analysis.feature_statistics import disentanglement
from tessera.analysis.feature_study import FeatureBatch, hook_products
from tessera.analysis.recording import record
from tessera.studies.text_to_image import features
from tessera.studies.text_to_image.blocks import block_hooks
from tessera.studies.text_to_image.features import TextFeatureConfig, text_features, untrained
from tessera.studies.text_to_image.pipeline import Sdxl, load_sdxl
from tessera.studies.text_to_image.prompts import _CATEGORIES, PAPER, Composite, Concept, concepts_of
from tiny_pipeline import DEEP, TINY, known_words, make_pipeline, texts

SOME = tuple(concept for concept in concepts_of("one") if concept.category in ("animals", "foods"))[::3]
QUICK = TextFeatureConfig(SOME, outputs=False, seeds=range(6), batch=6, resamples=20)


def ratios(found):
    return [space.raw.ratio for space in found.blocks.learned[0].values()]


def ps(found):
    return [space.raw.p for space in found.blocks.learned[0].values()]


def inputs_of(sdxl, rows, x, sigma=9.5):
    """The same latents x (S, C, H, W) under every row."""
    cond = torch.stack([sdxl.conditioner(row.for_seeds(len(x))) for row in rows])
    return FeatureBatch(x.expand(len(rows), *x.shape), cond, sigma)


def test_one_wording_shows_nothing_where_nothing_was_learned(sdxl):
    found = text_features(sdxl, replace(QUICK, concepts=concepts_of("one")))
    assert len(ratios(found)) == 17 and all(0.97 < ratio < 1.03 for ratio in ratios(found))
    assert min(ps(found)) > 0.02


def test_a_wording_per_category_fakes_categories_in_every_layer(sdxl):
    """The confound of the paper's prompts, on random weights."""
    found = text_features(sdxl, replace(QUICK, concepts=concepts_of("own")))
    assert min(ratios(found)) > 1.05 and max(ps(found)) < 0.01


def test_crossed_wordings_take_the_confound_away(sdxl):
    found = text_features(sdxl, replace(QUICK, concepts=concepts_of("crossed")))
    assert all(0.97 < ratio < 1.03 for ratio in ratios(found)) and min(ps(found)) > 0.02


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_the_same_over_all_70_blocks(seed):
    """Where even an arch over layers can appear without learning."""
    deep = Sdxl(make_pipeline(DEEP, known_words(texts()), seed=seed), "deep", (64, 64))
    plan = replace(QUICK, seeds=tuple(range(10)), batch=10)
    one, own = (ratios(text_features(deep, replace(plan, concepts=concepts_of(name)))) for name in ("one", "own"))
    assert len(one) == 70 and all(0.97 < ratio < 1.03 for ratio in one)
    assert min(own) > 1.01 and sum(own) / 70 > 1.05


def test_half_precision_gives_nearly_the_same_products(folder, sdxl):
    half = load_sdxl(folder, dtype=torch.bfloat16)
    rows, hooks = QUICK.rows, block_hooks(sdxl.unet, layers="mid*")
    pairs = [(row, 0) for row in range(1, len(rows))]
    inputs = inputs_of(sdxl, rows, sdxl.start((0, 1), 15))
    exact = hook_products(sdxl.plain, inputs, hooks, pairs, rows=6, memory=2**30)
    for name, products in hook_products(half.plain, inputs, hooks, pairs, rows=6, memory=2**30).items():
        assert products.among.dtype == torch.float64
        assert ((products.among - exact[name].among).norm() / exact[name].among.norm()) < 0.1


@pytest.mark.parametrize("wording", ["one", "crossed"])
def test_planted_categories_are_found(wording):
    """The control for power: words of a category alike, wording controlled."""
    planted = Sdxl(make_pipeline(TINY, known_words(texts()), seed=0, planted=_CATEGORIES), "planted")
    found = text_features(planted, replace(QUICK, concepts=concepts_of(wording)))
    assert min(ratios(found)) > 1.005 and max(ps(found)) < 0.01
    space = list(found.blocks.learned[0].values())[8]
    assert space.centered.within > 0.6 and space.centered.between < -0.1  # plain once the shared part is gone
    assert space.raw.between > 0.8  # which squeezes the ratio


def test_the_study_gives_what_differences_of_features_give(sdxl):
    name = "mid_block.attentions.0.transformer_blocks.1"
    x, level = sdxl.start(QUICK.seeds, 15), float(sdxl.sigmas(15)[0])
    (space,) = text_features(sdxl, replace(QUICK, layers=name)).blocks.learned[0].values()
    whole = []
    for row in QUICK.rows:
        with record(sdxl.plain, name, keep="rows") as activations, torch.no_grad():
            sdxl.plain(x, torch.tensor(level), sdxl.conditioner(row.for_seeds(6)))
        whole.append(activations[name].flatten(1))
    direct = disentanglement(torch.stack(whole[1:]), whole[0], [concept.category for concept in SOME], resamples=20)
    assert torch.allclose(space.raw.matrix, direct.matrix, atol=1e-5)
    assert space.raw.ratio == pytest.approx(direct.ratio, abs=1e-5) and space.raw.p == direct.p
    assert space.raw.intervals["gap"] == pytest.approx(direct.intervals["gap"], abs=1e-4)


def test_the_map_of_each_prompts_own_token_is_compared(sdxl):
    rows = [Concept("cat", "", ("a cat",), "cat"), Concept("dog", "", ("a big dog",), "dog")]
    inputs = replace(inputs_of(sdxl, rows, sdxl.start((0, 1), 15)), tokens=torch.tensor([[2, 2], [3, 1]]))
    hooks = block_hooks(sdxl.unet, "maps", "mid*")
    products = hook_products(sdxl.plain, inputs, hooks, [(0, 1)], rows=3, memory=2**30)
    with record(sdxl.plain, hooks, keep="rows") as maps, torch.no_grad():
        sdxl.plain(inputs.x.flatten(0, 1), torch.tensor(9.5), inputs.cond.flatten(0, 1))
    for name in hooks:
        first, second, third, fourth = maps[name]
        differences = torch.stack([first[:, 2] - third[:, 3], second[:, 2] - fourth[:, 1]]).double()
        torch.testing.assert_close(products[name].among[0, :, 0], differences @ differences.T, rtol=1e-3, atol=1e-9)


def test_the_answer_does_not_depend_on_memory_or_batch(sdxl):
    whole = text_features(sdxl, QUICK).blocks.learned[0]
    parts = text_features(sdxl, replace(QUICK, memory=10**6, batch=4)).blocks.learned[0]
    assert list(whole) == list(parts)
    for name, space in whole.items():
        assert torch.allclose(space.raw.matrix, parts[name].raw.matrix, atol=1e-4)


def test_seeds_take_turns_with_wordings():
    assert Concept("", "", ("p", "q"), "").for_seeds(5) == ["p", "q", "p", "q", "p"]


@pytest.mark.parametrize("site", ["block", "maps"])
def test_a_composite_that_is_its_concept_has_cosine_one(sdxl, site, monkeypatch):
    same = Composite("dog alone", PAPER[0].prompts[0], {"dog": "dog"})
    monkeypatch.setattr(features, "COMPOSITES", [same])
    plan = replace(QUICK, concepts=PAPER, site=site, layers="mid*", seeds=(0, 1))
    found = text_features(sdxl, plan)
    for space in found.blocks.learned[0].values():
        (row,) = space.composites
        assert row["composite"] == "dog alone" and row["concept"] == "dog"
        assert row["cosine"] == pytest.approx(1, abs=1e-4) and row["cosine_with_others"] < 0.99


def test_outputs_compare_a_composite_with_the_row_of_its_own_prompt(sdxl, monkeypatch):
    """For maps a composite has a row per token; its image is the same in all of them."""
    dog, cat = PAPER[0].prompts[0], PAPER[2].prompts[0]
    two = (Composite("first", dog, {"dog": "dog", "horse": "dog"}), Composite("second", cat, {"cat": "cat"}))
    monkeypatch.setattr(features, "COMPOSITES", two)
    plan = TextFeatureConfig(PAPER[:4], "maps", layers="mid*", steps=1, seeds=(0, 1), batch=2, resamples=2)
    for space in text_features(sdxl, plan).outputs.values():
        cosines = {row["concept"]: row["cosine"] for row in space.composites}
        assert cosines["dog"] == pytest.approx(1, abs=1e-4) == cosines["cat"] and cosines["horse"] < 0.9999


def test_the_papers_composites_come_with_the_papers_concepts(sdxl):
    maps, blocks = TextFeatureConfig(PAPER, "maps"), TextFeatureConfig(PAPER, "block")
    assert [len(composite.tokens) for composite in maps.composites] == [3, 2, 2]
    assert TextFeatureConfig(concepts_of("one")).composites == []
    assert len(maps.rows) == 1 + 8 + 7 and len(maps.sampled) == len(blocks.rows) == 1 + 8 + 3


def test_outputs_are_latents_and_images_at_the_end_of_sampling(sdxl):
    plan = TextFeatureConfig(SOME, steps=2, at=(0, 1), seeds=(0, 1), layers="mid*", resamples=5, batch=2)
    calls = []
    found = text_features(sdxl, plan, advance=lambda: calls.append(1))
    assert list(found.outputs) == ["latent", "pixel"] and len(found.blocks.learned) == 2
    assert len(calls) == plan.stages
    assert list(found.images) == ["", *(concept.name for concept in SOME)]
    assert all(image.shape == (3, 128, 128) for image in found.images.values())
    ends = [
        sdxl.trajectory(sdxl.conditioner(prompt), steps=2, seeds=(0, 1)).last
        for prompt in ("", *(c.prompts[0] for c in SOME))
    ]
    direct = disentanglement(torch.stack(ends[1:]), ends[0], [c.category for c in SOME], resamples=5)
    assert torch.allclose(found.outputs["latent"].raw.matrix, direct.matrix, atol=1e-4)


def test_untrained_networks_make_a_band(sdxl):
    plan = replace(QUICK, null=2, seeds=(0, 1), layers="mid*")
    found = text_features(sdxl, plan)
    for layer in found.to_dict()["levels"][0]["layers"]:
        band = found.band(0, layer["name"], "ratio")
        assert band.networks == 2 and band.low < band.high and layer["null"]["ratio"]["networks"] == 2
    assert text_features(sdxl, replace(plan, null=0)).to_dict()["levels"][0]["layers"][0]["null"] == {}


def test_an_untrained_twin_shares_all_but_its_weights(sdxl):
    one, again, other = (untrained(sdxl, seed) for seed in (1, 1, 2))
    weight = "conv_in.weight"
    assert torch.equal(one.unet.state_dict()[weight], again.unet.state_dict()[weight])
    assert not torch.equal(one.unet.state_dict()[weight], other.unet.state_dict()[weight])
    assert torch.equal(one.conditioner("a cat"), sdxl.conditioner("a cat"))
    assert not torch.equal(untrained(sdxl, 1, also_text=True).conditioner("a cat"), sdxl.conditioner("a cat"))
    assert one.plain is not sdxl.plain
