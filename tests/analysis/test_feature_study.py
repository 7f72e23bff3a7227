"""The study on networks whose answer is known: planted directions, and networks that learned nothing."""

import pytest
import torch
from torch import nn
from waking import awake

from tessera.analysis.feature_study import FeatureBatch, by_memory, hook_products, mean_over_hooks
from tessera.analysis.features import (
    FeatureConfig,
    chosen_steps,
    concepts_for,
    feature_study,
    noisy_inputs,
    reinitialized,
    truth,
    weight_seeds,
)
from tessera.analysis.recording import record
from tessera.conditioning import ColorCounts, LocationGrid
from tessera.conditioning.unconditional import Unconditional
from tessera.config import settings_for
from tessera.errors import UserError
from tessera.models.build import build_denoiser
from tessera.models.model import Model
from tessera.sampling.schedule import noise_levels
from tessera.scenes.vocabulary import COLOR_NAMES, LOCATIONS

QUICK = {"seeds": 4, "steps": 4, "nulls": 0, "sigmas": (10.0,)}


class Planted(nn.Module):
    """Its one hook of features is a bit of the image plus a learned vector for every count of a color."""

    def __init__(self, directions: torch.Tensor, average: bool = False):
        super().__init__()
        self.directions = nn.Parameter(directions, requires_grad=False)  # (8, F)
        self.features, self.average = nn.Identity(), average

    def forward(self, x, sigma, cond=None):
        counts = cond / cond.sum(1, keepdim=True).clamp(min=1) if self.average else cond
        self.features(0.01 * x.flatten(1)[:, : self.directions.shape[1]] + counts @ self.directions)
        return 0.5 * x


def planted(directions: torch.Tensor, **options) -> Model:
    return Model(Planted(directions, **options), ColorCounts(), config={"denoiser": {"size": 8}})


def orthogonal(features: int = 64) -> torch.Tensor:
    return torch.linalg.qr(torch.randn(features, 8, generator=torch.Generator().manual_seed(0)))[0].T


def study_of(model: Model, **options):
    plan = FeatureConfig(COLOR_NAMES, at=("features",), **QUICK | options)
    return feature_study(model, plan, resamples=100)


# -- known answers -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("source", ["generated", "shared", "truth"])
def test_orthogonal_colors_are_found_orthogonal_and_local(source):
    found = study_of(planted(orthogonal()), source=source).learned[0]["features"]
    assert abs(found.raw.off_diagonal) < 0.02 and found.raw.within > 0.95 and found.raw.p < 0.05
    assert found.centered.off_diagonal == pytest.approx(-1 / 7, abs=0.02)
    assert found.leak.leakage < 0.01 and found.leak.locality > 0.95


def test_a_part_common_to_all_colors_shows_in_the_raw_cosines_only():
    common = torch.ones(64) / 8
    found = study_of(planted(orthogonal() + common), source="shared").learned[0]["features"]
    assert found.raw.off_diagonal == pytest.approx(0.5, abs=0.05)
    assert found.centered.off_diagonal == pytest.approx(-1 / 7, abs=0.02)
    assert found.leak.leakage < 0.01  # entangled, yet every color moves its own vector alone


def test_an_average_over_colors_leaks_as_computed_by_hand():
    found = study_of(planted(orthogonal(), average=True), k=4, source="shared").learned[0]["features"]
    assert found.leak.leakage == pytest.approx(1 / 4, abs=1e-3)
    assert found.leak.locality == pytest.approx(1 / 2, abs=1e-3)


def test_untrained_networks_lie_in_the_null_band_and_are_orthogonal_too():
    # Any rank among the ten is as likely as another. Low cosines without learning are why the band is needed.
    ranks, cosines = [], []
    for seed in range(6):
        changes = {"denoiser": {"width": 8}, "training": {"seed": seed}}
        network = awake(build_denoiser(settings_for("color", "tiny", changes)))
        model = Model(network, ColorCounts(), config={"denoiser": {"size": 32}})
        options = QUICK | {"nulls": 10, "seeds": 2, "steps": 1, "seed": seed}
        study = feature_study(model, FeatureConfig(COLOR_NAMES, source="shared", **options), resamples=2)
        own, *nulls = (mean_over_hooks(one[0], "off_diagonal") for one in (study.learned, *study.nulls))
        ranks.append(sum(null < own for null in nulls))
        cosines += [own, *nulls]
    assert 2.5 < sum(ranks) / len(ranks) < 7.5 and len({rank for rank in ranks if 0 < rank < 10}) > 1
    assert max(abs(value) for value in cosines) < 0.3


def test_planted_entanglement_leaves_the_null_band():
    entangled = orthogonal() + 2 * torch.ones(64) / 8
    study = study_of(planted(entangled), nulls=6, source="shared")
    nulls = [null[0]["features"].raw.off_diagonal for null in study.nulls]
    assert study.learned[0]["features"].raw.off_diagonal > 0.7 > 0.3 > max(nulls)


def test_a_network_that_ignores_its_conditions_has_no_cosines():
    found = study_of(planted(torch.zeros(8, 64)), source="shared").learned[0]["features"]
    assert found.raw.record()["off_diagonal"]["value"] is None
    assert found.leak.record()["leakage"]["value"] is None


# -- how it is done ----------------------------------------------------------------------------------------


def test_memory_changes_the_number_of_passes_but_no_number(color_network):
    model = Model(color_network, ColorCounts(), config={"denoiser": {"size": 32}})
    plan = FeatureConfig(COLOR_NAMES[:3], k=2, **QUICK | {"seeds": 2})
    inputs = noisy_inputs(model, plan)[0]
    calls = []
    handle = color_network.register_forward_hook(lambda *_: calls.append(1))
    whole = hook_products(color_network, inputs, plan.at, plan.pairs, rows=64, memory=plan.memory)
    first = len(calls)
    pieces = hook_products(color_network, inputs, plan.at, plan.pairs, rows=64, memory=1)
    handle.remove()
    assert first == 2 and len(calls) - first == 1 + len(whole) == 12
    for name in whole:
        assert torch.equal(whole[name].among, pieces[name].among)


def test_a_budget_parts_hooks_without_changing_their_order():
    sizes = {"a": 3, "b": 3, "c": 10, "d": 1}
    assert list(by_memory(sizes, 2, 12)) == [["a", "b"], ["c"], ["d"]]


def test_batches_of_any_size_show_the_same(color_network):
    x, cond = torch.randn(3, 2, 3, 32, 32), torch.eye(8)[:3]
    parts = list(FeatureBatch(x, cond, 2.0).batches(4))
    assert [len(part[0]) for part in parts] == [4, 2]
    assert torch.equal(torch.cat([part[0] for part in parts]), x.flatten(0, 1))
    assert torch.equal(torch.cat([part[2] for part in parts]), cond.repeat_interleave(2, 0))


def test_an_image_less_one_condition_is_that_of_the_full_prompt(color_network):
    model = Model(color_network, ColorCounts(), config={"denoiser": {"size": 32}})
    plan = FeatureConfig(COLOR_NAMES[:3], k=2, **QUICK | {"seeds": 2, "steps": 6, "sigmas": (10.0, 1.0)})
    assert plan.prompts == [
        (), ("blue",), ("brown",), ("cyan",), ("blue", "brown"), ("brown",), ("blue",)
    ]  # fmt: skip
    high, low = noisy_inputs(model, plan)
    assert [high.sigma, low.sigma] == [float(noise_levels(6)[step]) for step in chosen_steps(plan)]
    assert torch.equal(low.x[4], low.x[5]) and torch.equal(low.x[4], low.x[6])
    assert not torch.equal(low.x[1], low.x[2])
    assert low.cond.tolist()[5] == [0, 1, 0, 0, 0, 0, 0, 0]


def test_truth_shows_the_same_scene_in_another_color():
    blue, red, both = (truth(prompt, 32, 2, 0) for prompt in (("blue",), ("red",), ("blue", "red")))
    changed = (blue - red).abs().amax(1) > 0.1
    assert 0 < changed.float().mean() < 0.3
    assert not torch.equal(both, blue) and truth((), 32, 2, 0).shape == blue.shape


def test_weights_drawn_anew_keep_gains_and_size_and_leave_the_learned_ones(color_network):
    before = {name: value.clone() for name, value in color_network.state_dict().items()}
    fresh, other = reinitialized(color_network, 0), reinitialized(color_network, 1)
    for name, value in fresh.named_parameters():
        learned = color_network.get_parameter(name)
        if value.ndim > 1:
            assert not torch.equal(value, learned) and not torch.equal(value, other.get_parameter(name))
            assert value.square().mean().sqrt().item() == pytest.approx(learned.square().mean().sqrt().item(), rel=0.5)
        else:
            assert torch.equal(value, learned)
    after = color_network.state_dict()
    assert all(torch.equal(value, after[name]) for name, value in before.items())
    assert torch.equal(reinitialized(color_network, 0).network.out.weight, fresh.network.out.weight)


def test_every_study_has_untrained_networks_of_its_own():
    seeds = [weight_seeds(FeatureConfig(COLOR_NAMES, nulls=5, seed=seed)) for seed in (0, 1, 2**32)]
    assert len({seed for some in seeds for seed in some}) == 15
    assert weight_seeds(FeatureConfig(COLOR_NAMES, nulls=3)) == seeds[0][:3]


def test_nothing_stays_hooked_after_a_study(color_network):
    model = Model(color_network, ColorCounts(), config={"denoiser": {"size": 32}})
    feature_study(model, FeatureConfig(COLOR_NAMES[:2], k=1, **QUICK | {"seeds": 2}), resamples=10)
    assert not any(len(module._forward_hooks) for module in color_network.modules())
    with record(color_network, "output") as seen:
        pass
    assert len(seen) == 0


# -- what can be measured -------------------------------------------------------------------------------------


def test_conditions_to_compare_are_those_of_the_conditioner():
    assert concepts_for(ColorCounts()) == COLOR_NAMES
    assert concepts_for(ColorCounts(), ["red", "blue"]) == ("red", "blue")
    assert concepts_for(LocationGrid()) == LOCATIONS[:8]
    with pytest.raises(UserError, match="not conditioned on colors"):
        concepts_for(LocationGrid(), ["red"])
    with pytest.raises(UserError, match="unconditional"):
        concepts_for(Unconditional())
    with pytest.raises(UserError, match="did you mean red"):
        concepts_for(ColorCounts(), ["redd"])


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"concepts": ("red",)}, "two conditions"),
        ({"concepts": ("red", "red")}, "none of them twice"),
        ({"k": 0}, "1 to 8"),
        ({"k": 9}, "1 to 8"),
        ({"seeds": 1}, "two seeds"),
        ({"nulls": -1}, "fewer than none"),
        ({"sigmas": ()}, "Noise levels"),
        ({"sigmas": (1.0, 0.0)}, "Noise levels"),
        ({"sigmas": (float("nan"),)}, "Noise levels"),
    ],
)
def test_plans_that_cannot_work_are_refused_before_any_work(change, complaint):
    with pytest.raises(UserError, match=complaint):
        FeatureConfig(**{"concepts": COLOR_NAMES} | change)
