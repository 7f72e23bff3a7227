"""Studies along trajectories, the test of the definition, and correlations: known answers."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from matplotlib.colors import to_hex
from scipy import stats

from doc_tables import locality as tables
from tessera.analysis import locality as study
from tessera.analysis.locality import (
    LocalityConfig,
    LocalityResult,
    conditional_locality_alone,
    default_probes,
    generated,
    measure_locality,
    noised,
    picked,
    prompts_for_k,
    truth,
)
from tessera.analysis.locality_figures import figure_scatter
from tessera.analysis.residual import Residuals, definition_residual, replacement
from tessera.analysis.scatter import Point, correlation, point_from, scatter_record
from tessera.conditioning import ColorCounts, LocationGrid, Unconditional
from tessera.conditioning.labels import locations_of
from tessera.errors import UserError
from tessera.models.model import Model
from tessera.plots.figures import distinct_colors
from tessera.sampling import Trajectory, heun, noise_levels, seeded_noise
from tessera.scenes.vocabulary import LOCATIONS


def local_painter(size=16, cells=16):
    """Shrinks each pixel, and brightens the prompted cells: local in both."""

    def denoise(x, sigma, cond=None):
        sigma = torch.as_tensor(sigma).reshape(-1, 1, 1, 1)
        prompted = 0 if cond is None else cond.view(-1, 1, cells, cells)
        return x / (1 + sigma**2) + prompted * sigma / (1 + sigma)

    return denoise


CONDITIONER = LocationGrid(cells=16)


# -- trajectories --------------------------------------------------------------------------------------------


def test_a_generated_trajectory_is_the_one_the_sampler_takes():
    denoise = local_painter()
    cond = CONDITIONER.at(LOCATIONS[:2]).expand(2, -1)
    way = generated(denoise, cond, 16, [3, 4], steps=10, levels=4)
    x = seeded_noise([3, 4], (3, 16, 16)) * 80
    seen = [step.x for step in heun(lambda x, s: denoise(x, s, cond), x, noise_levels(10))]
    assert picked(10, 4) == [0, 3, 6, 9]
    torch.testing.assert_close(way.x, torch.stack([seen[n] for n in (0, 3, 6, 9)]))
    torch.testing.assert_close(way.sigmas, noise_levels(10)[[0, 3, 6, 9]])


def test_noised_truth_is_truth_plus_one_noise_at_every_level():
    images = truth(LOCATIONS[:2], 16, 3, seed=0)
    way = noised(images, [1, 2, 3], steps=8, levels=3)
    scaled = (way.x - images) / way.sigmas.view(-1, 1, 1, 1, 1)
    torch.testing.assert_close(scaled[0], seeded_noise([1, 2, 3], (3, 16, 16)), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(scaled[1], scaled[0], rtol=1e-3, atol=1e-3)


def test_truth_shows_objects_at_the_prompted_locations():
    there, nothing = (truth(locations, 32, 4, seed=0).mean(0) for locations in (LOCATIONS[:1], ()))
    change = (there - nothing).abs().sum(0)
    row, col = np.unravel_index(int(change.argmax()), (32, 32))
    assert abs(row - 0.65 * 32) <= 5 and abs(col - 0.65 * 32) <= 5


# -- studies -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("source", ["generated", "truth"])
@pytest.mark.parametrize("k", [1, 4, 6])
def test_a_local_painter_is_local_in_pixels_and_conditions(source, k):
    plan = LocalityConfig(k=k, images=2, levels=4, steps=8, source=source, scenes=2)
    model = Model(local_painter(), CONDITIONER, size=16)
    found = measure_locality(model, plan)
    record = found.to_dict()
    assert len(found.scenes) == 2 and record["conditional_locality"]["value"] == 1.0
    assert conditional_locality_alone(model, plan) == record["conditional_locality"]
    assert record["conditional_locality"]["scenes"] == 2
    assert all(row["side90"] == 1 for row in record["levels"])
    for row in record["levels"]:  # three channels, each 1 / (1 + sigma^2)
        assert row["energy"] == pytest.approx((3 / (1 + row["sigma"] ** 2)) ** 2, rel=1e-4)
    assert [probe.name for probe in found.probes] == [*(f"loc {n}" for n in range(k)), "center"]
    assert [probe.title for probe in found.probes] == [*(f"location {n}" for n in range(1, k + 1)), "center"]
    assert found.scenes[0].condition_influence_maps.shape == (4, k, 16, 16)


def test_images_of_one_scene_are_no_evidence_about_other_scenes():
    """Sides that differ between scenes alone: as wide an interval for many images of each as for one."""
    model = Model(local_painter(), CONDITIONER, size=16)
    (seen,) = measure_locality(model, LocalityConfig(k=2, images=1, levels=2, steps=4)).scenes

    def level_records(scenes):
        return LocalityResult(scenes, seed=0)._levels()

    def of_scenes(*sides, images):
        each = [torch.full((images, *seen.sides_each.shape[1:]), float(side)) for side in sides]
        return [replace(seen, sides_each=one, energy_each=one) for one in each]

    few, many = (level_records(of_scenes(1, 3, 5, 9, images=n))[0]["side90_each"] for n in (1, 50))
    assert {**many, "n": 4} == few and many["value"] == 4.5 and many["high"] - many["low"] > 4
    one = of_scenes(3, images=50)
    one[0].sides_each[:25] += 6
    alone = level_records(one)[0]["side90_each"]
    assert alone["value"] == 6 and 0.5 < alone["high"] - alone["low"] < 4


def test_conditions_without_a_location_and_models_without_conditions_are_studied_in_pixels():
    paint = lambda x, sigma, cond=None: x * 0.5 + 0 * x.sum()  # noqa: E731
    colors = measure_locality(Model(paint, ColorCounts(), size=16), LocalityConfig(k=3, images=2, levels=3, steps=6))
    assert colors.to_dict()["conditional_locality"] is None and colors.conditional_locality.value is None
    assert colors.scenes[0].condition_influence.shape == (2, 3, 1, 3)
    nothing = measure_locality(Model(paint, Unconditional(), size=16), LocalityConfig(k=0, images=2, levels=3, steps=6))
    assert nothing.condition_influence.shape[-1] == 0 and nothing.pixel_influence.shape == (3, 1, 16, 16)


def test_random_scenes_that_do_not_show_everything_are_replaced_by_the_next(monkeypatch):
    whole = study.random_locations(3, 8, seed=1)

    def every_second(scenes):
        locations, visible = locations_of(scenes)
        return locations, visible & (torch.arange(len(visible)) % 2 == 0)[:, None]

    monkeypatch.setattr(study, "locations_of", every_second)
    found = study.random_locations(3, 8, seed=1)
    assert len(found) == 8 and found[:4] == whole[::2]
    monkeypatch.setattr(study, "locations_of", lambda scenes: (locations_of(scenes)[0], scenes.present & False))
    with pytest.raises(UserError, match="only 0 show all 3"):
        study.random_locations(3, 8, seed=1)


def test_prompts_begin_with_the_study_and_hold_k_conditions():
    prompts = prompts_for_k(CONDITIONER, 4, scenes=4, seed=1)
    assert prompts[0] == LOCATIONS[:4]
    assert len(set(prompts)) == len(prompts) >= 3 and all(len(locations) == 4 for locations in prompts)
    assert [len(set(colors)) for colors in prompts_for_k(ColorCounts(), 3, scenes=3)] == [3, 3, 3]
    for k, words in ((0, "K = 0"), (13, "at most 12")):
        with pytest.raises(UserError, match=words):
            prompts_for_k(CONDITIONER, k)
    with pytest.raises(UserError, match="1 to 8"):
        picked(8, 9)


def test_probes_are_the_prompted_locations_and_the_center():
    assert [probe.at for probe in default_probes(LOCATIONS[:2], 32, 32)] == [(20, 20), (8, 20), (16, 16)]


# -- the definition --------------------------------------------------------------------------------------------


def way_of(images=2, size=16, levels=(5.0, 0.5)):
    sigmas = torch.tensor(levels)
    x = torch.randn(len(levels), images, 3, size, size, generator=torch.Generator().manual_seed(0))
    return Trajectory(sigmas, x * sigmas.view(-1, 1, 1, 1, 1))


@pytest.mark.parametrize("fill", ["noise", "other"])
def test_a_local_score_does_not_change_when_the_rest_is_exchanged(fill):
    cond = CONDITIONER.at(LOCATIONS[:4]).expand(2, -1)
    found = definition_residual(local_painter(), way_of(), cond, CONDITIONER, radius=1, fill=fill)
    for row in found.record():
        assert row["both"]["rms"] == row["pixels"]["rms"] == row["conditions"]["rms"] == 0
        assert row["ceiling"] > 0.1


def test_the_residual_of_a_mean_over_the_image_is_known():
    """D = mean of all pixels: with a window of one cell of 256 kept, nearly all of the mean is exchanged."""

    def denoise(x, sigma, cond=None):
        return x.mean((2, 3), keepdim=True).expand_as(x)

    way = way_of()
    found = definition_residual(denoise, way, None, None, radius=0, fill="other")
    other = way.x.roll(1, 1)
    known = ((way.x.mean((3, 4)) - other.mean((3, 4))) ** 2).mean(2).T  # were everything exchanged, (B, S)
    np.testing.assert_allclose(found.ceiling, known, rtol=1e-4)
    np.testing.assert_allclose(found.squares["pixels"], known, rtol=0.1)


def test_conditions_that_act_from_afar_leave_a_residual():
    def denoise(x, sigma, cond=None):
        return 0 * x + cond.sum(1)[:, None, None, None]

    cond = CONDITIONER.at(LOCATIONS[:1]).expand(2, -1)
    found = definition_residual(denoise, way_of(), cond, CONDITIONER, radius=2)
    row = found.record()[0]
    assert row["pixels"]["rms"] == 0
    assert row["conditions"]["rms"] == pytest.approx(np.sqrt(1 - 25 / 256))  # it is removed from all cells but 5 x 5
    assert row["both"]["relative"] == pytest.approx(np.sqrt(1 - 25 / 256))


def test_noise_that_fills_an_image_is_as_strong_as_data_and_noise_together():
    strong, none = replacement(way_of(levels=(1.2, 0.0)), "noise", seed=0)
    assert strong.std().item() == pytest.approx(1.3, rel=0.05)  # 1.2^2 + 0.5^2 = 1.3^2
    assert none.std().item() == pytest.approx(0.5, rel=0.05)


def test_a_residual_is_relative_to_the_ceiling_as_roots_not_squares():
    squares, ceiling = np.full((3, 1), 4.0), np.full((3, 1), 16.0)
    (row,) = Residuals([1.0], {"both": squares}, ceiling, radius=1, cells=16, fill="noise").record()
    assert (row["ceiling"], row["both"]["rms"], row["both"]["relative"]) == (4, 2, 0.5)


@pytest.mark.slow
def test_a_patchwise_network_is_a_local_conditional_score(patchwise):
    cond = patchwise.conditioner.at(LOCATIONS[:2]).expand(1, -1)
    way = way_of(1, 32, (2.0,))
    found = definition_residual(patchwise, way, cond, patchwise.conditioner, radius=1, rows=8)
    row = found.record()[0]
    assert row["both"]["rms"] <= 1e-5 and row["ceiling"] > 0.1


def test_neighborhoods_that_make_no_sense_are_refused():
    with pytest.raises(UserError, match="0 to 15 cells"):
        definition_residual(local_painter(), way_of(), None, CONDITIONER, radius=16)
    with pytest.raises(UserError, match="at least two"):
        definition_residual(local_painter(), way_of(1), None, CONDITIONER, fill="other")


# -- correlation -------------------------------------------------------------------------------------------------


def points(noise=0.1, models=5, each=5, seed=0):
    rng = np.random.default_rng(seed)
    made = []
    for m in range(models):
        for n in range(each):
            gained = int(rng.integers(-2, 7))
            locality = 0.4 + 0.06 * gained + noise * rng.normal()
            made.append(Point(f"model {m}", (n + 1) * 1000, 3 + gained, 3, locality))
    return made


def test_correlations_are_those_of_scipy_and_their_intervals_hold_them():
    made = points()
    found = correlation(made, 300)
    a, b = [p.gained for p in made], [p.locality for p in made]
    assert found["spearman"]["value"] == pytest.approx(stats.spearmanr(a, b).statistic)
    assert found["pearson"]["value"] == pytest.approx(stats.pearsonr(a, b).statistic)
    for name in ("spearman", "pearson"):
        for kind in ("interval", "interval_by_model"):
            low, high = found[name][kind]
            assert -1 <= low < found[name]["value"] < high <= 1
    assert (found["points"], found["models"]) == (25, 5)


def test_snapshots_that_only_repeat_their_model_widen_the_interval_by_model():
    made = [point for point in points(noise=0.3, models=6, each=1) for _ in range(6)]
    found = correlation(made, 300)["pearson"]
    widths = [np.ptp(found[kind]) for kind in ("interval", "interval_by_model")]
    assert widths[1] > 1.5 * widths[0]


def test_points_come_from_the_records_of_locality_and_detector():
    result = {"model": "exp1", "images_seen": 5, "conditional_locality": {"value": 0.9, "low": 0.8, "high": 0.95}}
    evaluated = {"max_train_objects": 3, "k_max": {"paper": {"value": 7, "at_least": False}}}
    point = point_from(result, evaluated)
    assert (point.gained, point.locality, point.low) == (4, 0.9, 0.8)
    unsaid = evaluated | {"max_train_objects": None}
    with pytest.raises(UserError, match="the most objects in a training image"):
        point_from(result, unsaid)
    for broken in ({}, {"k_max": {"paper": {"value": None}}}):
        with pytest.raises(UserError):
            point_from(result, broken)


def test_tables_leave_empty_what_could_not_be_measured():
    """Colors lie nowhere, and of flat points there is no correlation."""
    flat = scatter_record([Point("m", n, 3, 3, 0.5) for n in range(5)], 100)
    reading = flat | {"reading": "paper", "max_train_objects": None}
    known = reading | {"spearman": {"value": 0.5, "interval": [0.1, 0.9], "interval_by_model": [0.0, 1.0]}}
    result = {"model": "color", "studies": [{"k": 4, "source": "truth", "conditional_locality": None}]}
    results = Results(result, reading | {"rule": "strict", "readings": [reading, known]})
    assert tables.conditional(results)[1] == ("color", "4", "truth", "", "", "")
    assert [row[-2:] for row in tables.scatter(results)[1:]] == [
        ("not defined", ""),
        ("0.50 [0.10, 0.90]", "[0.00, 1.00]"),
    ]
    assert tables.scatter_headline(results) == []
    condition_influence = tables.scatter_headline(Results(result, known | {"rule": "strict", "readings": [reading]}))
    assert condition_influence[0][1] == "Spearman 0.50 [0.00, 1.00]; by the paper rule not defined"


class Results:
    def __init__(self, result, scatter):
        self.result, self.scatter = result, scatter

    def several(self, pattern):
        return [self.result]

    def one(self, name):
        return self.scatter


def test_too_few_points_are_refused_and_flat_ones_have_no_correlation():
    with pytest.raises(UserError, match="at least 3 points"):
        correlation(points()[:2])
    flat = [Point("m", n, 3, 3, 0.5) for n in range(5)]
    assert scatter_record(flat, 100)["spearman"] == {"value": None, "interval": None, "interval_by_model": None}


def test_trainings_of_one_kind_share_a_color_and_a_line_of_the_legend():
    models = [*(f"exp1-M3, seed {seed}" for seed in range(3)), "exp2-M3, seed 0", "a model of mine"]
    points = [Point(model, 1, k, 3, 0.1 * k) for k, model in enumerate(models)]
    legend = figure_scatter(points, scatter_record(points, 100)).axes[0].get_legend()
    assert legend is not None
    named = [text.get_text() for text in legend.get_texts()][:-3]  # the rest are the stages
    assert named == ["exp1-M3, 3 trainings", "exp2-M3", "a model of mine"]


@pytest.mark.parametrize("count", [2, 13, 41])
def test_no_two_are_given_the_same_color(count):
    assert len({to_hex(color) for color in distinct_colors(count)}) == count
