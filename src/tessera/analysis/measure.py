"""The public functions `tessera.locality` and `tessera.features`: one measurement of one model."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tessera.analysis.feature_study import FeatureResult
from tessera.analysis.features import FeatureConfig, concepts_for, feature_study
from tessera.analysis.hooks import MODULATION, OUTPUT
from tessera.analysis.locality import LocalityConfig, LocalityResult, Source, measure_locality
from tessera.models.loading import load
from tessera.models.model import Model
from tessera.sampling.sample import home


def locality(
    model: Model | str | Path,
    num_objects: int = 4,
    *,
    images: int = 8,
    scenes: int = 1,
    levels: int = 12,
    steps: int = 32,
    source: Source = "generated",
    seed: int = 0,
    device: Any = None,
) -> LocalityResult:
    """Measure which pixels and which conditions influence an output pixel, along trajectories of the sampler.

    Args:
        model: a `Model`, or anything that `tessera.load` takes.
        num_objects: conditions in the prompt; 0 for an unconditional model.
        images: samples of each scene.
        scenes: prompts: the study's locations (or colors) first, then random ones.
        levels: noise levels at which influence is measured, spread over the sampler's steps.
        steps: noise levels of the sampler.
        source: `generated` for the model's own trajectories, `truth` for noised rendered scenes.
        seed: random seed of samples and scenes.
        device: where to compute; by default where the model is.

    Returns:
        A `LocalityResult` with `.conditional_locality` (an `Interval`), `.pixel_influence`,
        `.condition_influence`, `.sigmas`, `.probes`, `.to_dict()`, `.table()`, `.plot()` and `.plot_maps()`.

    Example:
        >>> import tessera
        >>> local = tessera.locality("exp2L", num_objects=2, images=1, levels=2, steps=4)
        >>> round(local.conditional_locality.value, 2), local.pixel_influence.shape
        (1.0, torch.Size([2, 3, 64, 64]))
    """
    model = load(model, device=device)
    plan = LocalityConfig(num_objects, images, scenes, levels, steps, source, seed)
    return measure_locality(model, plan, device or home(model.denoiser, None))


def features(
    model: Model | str | Path,
    num_objects: int = 4,
    *,
    colors: Sequence[str] | None = None,
    at: str | Sequence[str] = (MODULATION, OUTPUT),
    seeds: int = 10,
    sigmas: Sequence[float] = (10.0, 2.0, 0.4),
    untrained: int = 19,
    steps: int = 32,
    seed: int = 0,
    device: Any = None,
) -> FeatureResult:
    """Compare the directions by which single conditions change a network's features, beside untrained networks.

    Args:
        model: a `Model`, or anything that `tessera.load` takes.
        num_objects: conditions that are prompted together, from which each is removed in turn.
        colors: for models conditioned on colors, those to compare; by default all.
        at: patterns of hook names, such as `encoder.*`; by default the modulation layers, or in diffusers UNets the middle
            and up blocks, and the output.
        seeds: images for every condition.
        sigmas: noise levels; the sampler's nearest are taken.
        untrained: networks with random weights, whose range is the null.
        steps: noise levels of the sampler.
        seed: random seed of samples and untrained networks.
        device: where to compute; by default where the model is.

    Returns:
        A `FeatureResult` with `.learned` and `.nulls` by noise level and hook, `.to_dict()`, `.table()` and `.plot()`.

    Example:
        >>> import tessera
        >>> settings = {"num_objects": 2, "seeds": 2, "sigmas": [2.0], "untrained": 1, "steps": 4}
        >>> tessera.features("color", colors=["red", "blue"], at="output", **settings)
        FeatureResult(mean cosine between concepts ... at sigma ...; 1 untrained network)
    """
    model = load(model, device=device)
    patterns = tuple(at.replace(",", " ").split()) if isinstance(at, str) else tuple(at)
    concepts, nulls = concepts_for(model.conditioner, colors), untrained
    plan = FeatureConfig(concepts, num_objects, seeds, tuple(sigmas), patterns, nulls=nulls, steps=steps, seed=seed)
    return feature_study(model, plan, device or home(model.denoiser, None))
