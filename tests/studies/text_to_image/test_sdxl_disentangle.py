"""Concepts inside a network that learned nothing: the confound, its controls, and a planted truth."""

from dataclasses import replace

import pytest
import torch

from tessera.analysis.feature_statistics import disentanglement
from tessera.errors import UserError
from tessera.studies.text_to_image.build import DEEP, TINY, known_words, make_pipeline, untrained
from tessera.studies.text_to_image.cost import SPARE, Peak, features_bill, pass_cost
from tessera.studies.text_to_image.disentangle import (
    DisentangleConfig,
    Row,
    banded,
    fitting_composites,
    groups_of,
    layer_products,
    of_differences,
    rows_for,
    sizes_of,
    space_of,
    stages,
    study,
)
from tessera.studies.text_to_image.hooks import blocks_of, listen
from tessera.studies.text_to_image.pipeline import Sdxl, load_sdxl, quiet
from tessera.studies.text_to_image.prompts import CATEGORIES, PAPER, Composite, concepts_of, texts

QUICK = DisentangleConfig(outputs=False, seeds=tuple(range(6)), batch=6, resamples=20)
SOME = tuple(concept for concept in concepts_of("one") if concept.category in ("animals", "foods"))[::3]


def ratios(found):
    return [space.found.ratio for space in found.levels[0].spaces]


def ps(found):
    return [space.found.p for space in found.levels[0].spaces]


def test_one_wording_shows_nothing_where_nothing_was_learned(sdxl):
    found = study(sdxl, concepts_of("one"), QUICK)
    assert len(ratios(found)) == 17 and all(0.97 < ratio < 1.03 for ratio in ratios(found))
    assert min(ps(found)) > 0.02


def test_a_wording_per_category_fakes_categories_in_every_layer(sdxl):
    """The confound of the paper's prompts, on random weights."""
    found = study(sdxl, concepts_of("own"), QUICK)
    assert min(ratios(found)) > 1.05 and max(ps(found)) < 0.01


def test_crossed_wordings_take_the_confound_away(sdxl):
    found = study(sdxl, concepts_of("crossed"), QUICK)
    assert all(0.97 < ratio < 1.03 for ratio in ratios(found)) and min(ps(found)) > 0.02


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_the_same_over_all_70_blocks(seed):
    """Where even an arch over layers can appear without learning."""
    deep = Sdxl(make_pipeline(DEEP, known_words(texts()), seed=seed), "deep", (64, 64))
    plan = replace(QUICK, seeds=tuple(range(10)), batch=10)
    one, own = (ratios(study(deep, concepts_of(name), plan)) for name in ("one", "own"))
    assert len(one) == 70 and all(0.97 < ratio < 1.03 for ratio in one)
    assert min(own) > 1.01 and sum(own) / 70 > 1.05


def test_features_are_held_in_the_networks_precision(folder, sdxl):
    half = load_sdxl(folder, dtype=torch.bfloat16)
    rows = rows_for(SOME, (), "block")
    plan = replace(QUICK, layers="mid*", seeds=(0, 1))
    x = [sdxl.start(plan.seeds, 15)] * len(rows)
    assert next(iter(sizes_of(half, plan, 5).values())) * 2 == next(iter(sizes_of(sdxl, plan, 5).values()))
    for name, products in layer_products(half, rows, x, 9.5, plan).items():
        exact = layer_products(sdxl, rows, x, 9.5, plan)[name]
        assert products.dtype == torch.float64 and ((products - exact).norm() / exact.norm()) < 0.02


@pytest.mark.parametrize("wording", ["one", "crossed"])
def test_planted_categories_are_found(wording):
    """The control for power: words of a category alike, wording controlled."""
    planted = Sdxl(make_pipeline(TINY, known_words(texts()), seed=0, planted=CATEGORIES), "planted")
    found = study(planted, concepts_of(wording), QUICK)
    assert min(ratios(found)) > 1.005 and max(ps(found)) < 0.01
    space = found.levels[0].spaces[8]
    assert space.centered.within > 0.6 and space.centered.between < -0.1  # plain once the shared part is gone
    assert space.found.between > 0.8  # which squeezes the ratio


def test_products_give_what_features_give(sdxl):
    """Statistics from inner products of raw features, against differences of features kept whole."""
    rows = rows_for(SOME, (), "block")
    x = sdxl.start(QUICK.seeds, 15)
    level = float(sdxl.sigmas(15)[0])
    name = "mid_block.attentions.0.transformer_blocks.1"
    plan = replace(QUICK, layers=name)
    space = space_of(
        name, layer_products(sdxl, rows, [x] * len(rows), level, plan)[name], SOME, (), "block", 20
    )
    whole = []
    for row in rows:
        with listen(sdxl, "block", name, keep="rows") as seen, torch.no_grad():
            sdxl.plain(x, torch.tensor(level), sdxl.conditioner(row.for_seeds(6)))
        whole.append(seen[name].flatten(1))
    direct = disentanglement(
        torch.stack(whole[1:]), whole[0], [concept.category for concept in SOME], resamples=20
    )
    assert torch.allclose(space.found.matrix, direct.matrix, atol=1e-5)
    assert space.found.ratio == pytest.approx(direct.ratio, abs=1e-5) and space.found.p == direct.p
    assert space.found.intervals["gap"] == pytest.approx(direct.intervals["gap"], abs=1e-4)


def test_the_answer_does_not_depend_on_memory_or_batch(sdxl):
    rows = rows_for(SOME, (), "block")
    x = [sdxl.start(QUICK.seeds, 15)] * len(rows)
    whole = layer_products(sdxl, rows, x, 9.5, QUICK)
    least = 5 * 6 * 64 * 32 * 4  # the largest layer of all rows and seeds, alone
    parts = layer_products(sdxl, rows, x, 9.5, replace(QUICK, memory=3 * least, batch=4))
    for name, products in whole.items():
        assert torch.allclose(products, parts[name], rtol=1e-4)
    with pytest.raises(UserError, match=r"alone take .* GiB, more than the"):
        layer_products(sdxl, rows, x, 9.5, replace(QUICK, memory=least - 1))


def test_layers_are_grouped_by_what_fits():
    sizes = {"a": 3, "b": 3, "c": 5, "d": 1}
    assert groups_of(sizes, 6) == [["a", "b"], ["c", "d"]]
    assert groups_of(sizes, 100) == [["a", "b", "c", "d"]]
    assert groups_of(sizes, 5) == [["a"], ["b"], ["c"], ["d"]]


def test_seeds_take_turns_with_wordings():
    assert Row(("p", "q"), "").for_seeds(5) == ["p", "q", "p", "q", "p"]


@pytest.mark.parametrize("site", ["block", "maps"])
def test_a_composite_that_is_its_concept_has_cosine_one(sdxl, site):
    same = (Composite("dog alone", PAPER[0].prompts[0], {"dog": "dog"}),)
    plan = replace(QUICK, site=site, layers="mid*", seeds=(0, 1))
    found = study(sdxl, PAPER, plan, same)
    for space in found.levels[0].spaces:
        (record,) = space.composites
        assert record["composite"] == "dog alone" and record["concept"] == "dog"
        assert record["cosine"] == pytest.approx(1, abs=1e-4) and record["cosine_with_others"] < 0.99


def test_outputs_know_which_row_a_composite_is(sdxl):
    """For maps a composite has a row per token; its image is the same in all of them."""
    dog, cat = PAPER[0].prompts[0], PAPER[2].prompts[0]
    two = (Composite("first", dog, {"dog": "dog", "horse": "dog"}), Composite("second", cat, {"cat": "cat"}))
    plan = DisentangleConfig(site="maps", layers="mid*", steps=1, seeds=(0, 1), batch=2, resamples=2)
    for space in study(sdxl, PAPER[:4], plan, two).outputs:
        cosines = {record["concept"]: record["cosine"] for record in space.composites}
        assert cosines["dog"] == pytest.approx(1, abs=1e-4) == cosines["cat"] and cosines["horse"] < 0.9999


def test_the_papers_composites_come_with_the_papers_concepts(sdxl):
    assert [len(composite.tokens) for composite in fitting_composites(PAPER)] == [3, 2, 2]
    assert fitting_composites(concepts_of("one")) == ()
    assert len(rows_for(PAPER, fitting_composites(PAPER), "maps")) == 1 + 8 + 7
    assert len(rows_for(PAPER, fitting_composites(PAPER), "block")) == 1 + 8 + 3


def test_outputs_are_latents_and_images_at_the_end_of_the_way(sdxl):
    plan = DisentangleConfig(steps=2, at=(0, 1), seeds=(0, 1), layers="mid*", resamples=5, batch=2)
    calls = []
    found = study(sdxl, SOME, plan, advance=lambda: calls.append(1))
    assert [space.name for space in found.outputs] == ["latent", "pixel"] and len(found.levels) == 2
    assert len(calls) == stages(sdxl, SOME, plan)
    assert found.images.shape == (5, 3, 128, 128)
    ends = [
        sdxl.trajectory(sdxl.conditioner(prompt), steps=2, seeds=(0, 1)).last
        for prompt in ("", *(c.prompts[0] for c in SOME))
    ]
    direct = disentanglement(torch.stack(ends[1:]), ends[0], [c.category for c in SOME], resamples=5)
    assert torch.allclose(found.outputs[0].found.matrix, direct.matrix, atol=1e-4)


def test_untrained_networks_make_a_band(sdxl):
    plan = replace(QUICK, null=2, seeds=(0, 1), layers="mid*")
    found = study(sdxl, SOME, plan)
    for space in found.levels[0].spaces:
        band = space.null["ratio"]
        assert band.n == 2 and band.low < band.high and space.record()["null"]["ratio"]["networks"] == 2
    assert banded(space, [], SOME) is space


def test_an_untrained_twin_shares_all_but_its_weights(sdxl):
    one, again, other = (untrained(sdxl, seed) for seed in (1, 1, 2))
    weight = "conv_in.weight"
    assert torch.equal(one.unet.state_dict()[weight], again.unet.state_dict()[weight])
    assert not torch.equal(one.unet.state_dict()[weight], other.unet.state_dict()[weight])
    assert torch.equal(one.conditioner("a cat"), sdxl.conditioner("a cat"))
    assert not torch.equal(untrained(sdxl, 1, also_text=True).conditioner("a cat"), sdxl.conditioner("a cat"))
    assert one.plain is not sdxl.plain


def test_memory_stays_under_the_printed_budget(deep, tmp_path):
    """A run over all 70 blocks in several groups, every tensor counted, against the bill of the dry run."""
    with quiet():
        deep.pipe.save_pretrained(tmp_path / "deep")
    rows = [Row(("",), ""), Row(("a photograph of a cat",), "")]
    plan = DisentangleConfig(outputs=False, seeds=(0, 1, 2), batch=3, memory=200_000)
    cost = pass_cost(tmp_path / "deep", size=(64, 64), gradients=False)
    bill = features_bill(
        cost, site="block", rows=2, prompts=2, seeds=3, steps=15, at=(0,), guidance=5.0, null=0, outputs=False,
        memory=plan.memory, batch=3, element=4,
    )  # fmt: skip
    x = [deep.start(plan.seeds, 15)] * 2
    passes = []
    handle = deep.unet.register_forward_hook(lambda *_: passes.append(1))
    with Peak() as peak:
        found = layer_products(deep, rows, x, 9.5, plan)
    handle.remove()
    assert len(found) == len(blocks_of(deep.unet)) == 70 and bill.groups == 4
    assert len(passes) == 1 + bill.passes["listening"] // 3  # one pass finds out the sizes
    assert bill.host_bytes <= plan.memory
    printed = bill.host_bytes + bill.device_bytes / SPARE - cost.weights
    assert 0.5 * printed < peak.most <= printed


def test_differences_of_products_forget_the_baseline():
    torch.manual_seed(0)
    h = torch.randn(4, 3, 50, dtype=torch.float64)
    products = torch.einsum("isf,jtf->isjt", h, h)
    d = h[1:] - h[:1]
    found, floor = of_differences(products)
    assert torch.allclose(found, torch.einsum("isf,jtf->isjt", d, d), atol=1e-10) and floor > 0
