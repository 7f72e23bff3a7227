"""Do concepts of one category lie together inside a text-to-image network, and others apart?

The study of `analysis.feature_study` with prompts as concepts: the baseline is the empty prompt on the same noise,
hooks are transformer blocks, and the latents and images at the end of sampling are compared as well.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from rich.table import Table
from torch import Tensor

from tessera.analysis import feature_statistics, feature_study
from tessera.analysis.feature_statistics import Band, FeatureProducts, cosines, known, mean_products, products_of
from tessera.analysis.feature_study import FeatureBatch, FeatureResult, HookFeatures, Level, mean_over_hooks
from tessera.sampling.trajectory import Trajectory
from tessera.stats import RESAMPLES
from tessera.studies.text_to_image.blocks import Site, block_hooks, block_of, position_of
from tessera.studies.text_to_image.pipeline import Nothing, Sdxl, quiet
from tessera.studies.text_to_image.prompts import COMPOSITES, Composite, Concept
from tessera.studies.text_to_image.words import token_position

_Advance = Callable[[], Any]
_NULL_SEED = 90_000  # weights of untrained networks are others than those of a tiny pipeline
MEASURES = ("within", "between", "ratio", "gap")
_POSITIONS = ("down", "mid", "up", "latent", "pixel")


@dataclass(frozen=True)
class TextFeatureConfig:
    """Settings of a feature study of a pipeline."""

    concepts: tuple[Concept, ...]
    site: Site = "block"
    layers: str = "*"  # patterns of blocks, with commas between them
    steps: int = 15
    at: tuple[int, ...] = (0,)  # steps, counted from 0: the first has the most noise
    seeds: Sequence[int] = range(10)
    guidance: float = 5.0  # of the sampler; features are those of the conditional network alone
    nothing: Nothing = "default"  # what guidance moves away from
    null: int = 0  # untrained networks
    null_text: bool = False  # whether their text encoders are untrained, too
    outputs: bool = True  # also the latents and images at the end of sampling
    memory: int = 4 * 2**30  # bytes of features held at a time
    batch: int = 8
    resamples: int = RESAMPLES

    @property
    def composites(self) -> list[Composite]:
        """Those of the paper whose concepts are all among the given ones."""
        names = {concept.name for concept in self.concepts}
        return [composite for composite in COMPOSITES if names >= composite.tokens.keys()]

    @property
    def rows(self) -> list[Concept]:
        """The empty prompt first, then the concepts, then the composites (for maps once per token)."""
        rows = [Concept("", "", ("",), ""), *self.concepts]
        for composite in self.composites:
            tokens = composite.tokens.values() if self.site == "maps" else ("",)
            rows += [Concept(composite.name, "", (composite.prompt,), token) for token in tokens]
        return rows

    @property
    def sampled(self) -> list[Concept]:
        """Rows whose prompts differ: those of one composite differ in their token alone."""
        return list({row.prompts: row for row in self.rows}.values())

    @property
    def last_step(self) -> int:
        """How far sampling goes."""
        return self.steps if self.outputs else max(self.at)

    @property
    def stages(self) -> int:
        """How often `text_features` will call `advance`."""
        batches = math.ceil(len(self.seeds) / self.batch)
        return len(self.sampled) * batches + len(self.at) * (1 + self.null)


@dataclass(frozen=True)
class TextFeatureResult:
    """Blocks at every noise level, beside untrained networks, and the outputs."""

    config: TextFeatureConfig
    blocks: FeatureResult
    outputs: Level  # latent and pixel
    images: dict[str, Tensor]  # (3, H, W), of the first seed, by name of the prompt; none without outputs

    @property
    def composites(self) -> list[dict[str, Any]]:
        """Concepts in composite prompts, as the first layer has them."""
        return next(iter(self.blocks.learned[0].values())).composites

    @property
    def layer_positions(self) -> list[str]:
        """The part of the network that each layer is in: down, mid or up."""
        return [position_of(name) for name in self.blocks.learned[0]]

    def positions(self, number: int) -> dict[str, Level]:
        """Layers of the down, middle and up part at one level, and the outputs."""
        found: dict[str, Level] = {position: {} for position in _POSITIONS}
        for name, features in (self.blocks.learned[number] | self.outputs).items():
            found[position_of(name)][name] = features
        return {position: level for position, level in found.items() if level}

    def band(self, number: int, name: str, measure: str) -> Band | None:
        """The range of a measure over untrained networks."""
        return None if name in self.outputs else self.blocks.band(number, name, measure)

    def to_dict(self) -> dict[str, Any]:
        """All numbers but the matrices, JSON-ready."""
        levels = []
        for number, (step, sigma) in enumerate(zip(self.config.at, self.blocks.sigmas)):
            parts = [part for part in self.positions(number).items() if part[0] not in self.outputs]
            level = {
                "step": step + 1,
                "sigma": sigma,
                "positions": [self._position_record(number, *part) for part in parts],
                "layers": [self._layer_record(number, *layer) for layer in self.blocks.learned[number].items()],
            }
            levels.append(level)
        return {
            "site": self.config.site,
            "resamples": self.config.resamples,
            "concepts": [asdict(concept) for concept in self.config.concepts],
            "levels": levels,
            "outputs": [self._layer_record(0, *output) for output in self.outputs.items()],
        }

    def _layer_record(self, number: int, name: str, found: HookFeatures) -> dict[str, Any]:
        raw, centered = found.raw.record(), found.centered.record()
        bands: dict[str, Band | None] = {}
        if self.blocks.nulls and name not in self.outputs:
            bands = {measure: self.band(number, name, measure) for measure in feature_statistics.MEASURES}
        return {
            "name": name,
            **{key: value for key, value in raw.items() if key not in ("matrix", "lengths")},
            "centered": {key: centered[key] for key in ("within", "between", "gap", "p")},
            "composites": found.composites,
            "null": {measure: band and band.record() for measure, band in bands.items()},
            "clears_null": {
                measure: band.clears(getattr(found.raw, measure)) for measure, band in bands.items() if band
            },
        }

    def _position_record(self, number: int, position: str, level: Level) -> dict[str, Any]:
        """Means over the layers of one part of the network, and its best layer."""
        best = max(level, key=lambda name: np.nan_to_num(level[name].raw.ratio, nan=-np.inf))
        above = []
        for name, found in level.items():
            if band := self.band(number, name, "ratio"):
                above.append(band.clears(found.raw.ratio) == "above")
        return {
            "position": position,
            "layers": len(level),
            **{name: known(mean_over_hooks(level, name)) for name in MEASURES},
            "largest_ratio": {"layer": best, "ratio": known(level[best].raw.ratio)},
            "layers_above_null": sum(above) if above else None,
        }

    def table(self, number: int, label: str) -> Table:
        """A row per part of the network and per output."""
        title = f"{label}, step {self.config.at[number] + 1}, sigma {self.blocks.sigmas[number]:.3g}"
        table = Table("position", *MEASURES, "centered gap", "p", "untrained ratio", title=title)
        for position, level in self.positions(number).items():
            ps = [found.raw.p for found in level.values()]
            bands = [band for name in level if (band := self.band(number, name, "ratio"))]
            untrained_ratio = "-"
            if bands:
                untrained_ratio = f"{min(b.low for b in bands):.3f} to {max(b.high for b in bands):.3f}"
            table.add_row(
                position if len(level) == 1 else f"{position} ({len(level)} layers)",
                *(f"{mean_over_hooks(level, name):.3f}" for name in MEASURES),
                f"{mean_over_hooks(level, 'centered_gap'):.3f}",
                f"{min(ps):.3f}" if len(ps) == 1 else f"{min(ps):.3f} to {max(ps):.3f}",
                untrained_ratio,
            )
        return table

    def arrays(self) -> dict[str, Any]:
        """Cosines (layers, C, C) of every level and of the outputs, and the names of the layers in order."""
        levels = {f"step{step + 1}": level for step, level in zip(self.config.at, self.blocks.learned)}
        arrays: dict[str, Any] = {}
        for name, level in (levels | {"outputs": self.outputs}).items():
            if level:
                arrays[f"{name}_cosines"] = torch.stack([found.raw.matrix for found in level.values()])
                arrays[f"{name}_centered"] = torch.stack([found.centered.matrix for found in level.values()])
                arrays[f"{name}_names"] = list(level)
        return arrays


def text_features(sdxl: Sdxl, config: TextFeatureConfig, advance: _Advance = lambda: None) -> TextFeatureResult:
    """Every chosen block at every chosen level, the outputs, and the band of untrained networks."""
    rows = config.rows
    pairs = [(row, 0) for row in range(1, len(rows))]
    trajectories = _sample_rows(sdxl, config, advance)
    x = torch.stack([trajectories[row.prompts].at(config.at).x for row in rows], dim=1)  # (levels, R, S, C, H, W)
    sigmas = sdxl.sigmas(config.steps)[list(config.at)].tolist()
    categories = [concept.category for concept in config.concepts]
    plain = partial(feature_study.describe_products, concepts=len(categories), groups=categories)

    def describe(products: FeatureProducts) -> HookFeatures:
        found = plain(products, resamples=config.resamples, shuffles=RESAMPLES)
        return replace(found, composites=_composite_records(products, config))

    def levels_of(network: Sdxl, describe: Callable[[FeatureProducts], HookFeatures]) -> list[Level]:
        levels = feature_study.measure_network(
            network.plain,
            _inputs(network, config, x, sigmas),
            block_hooks(network.unet, config.site, config.layers),
            pairs,
            describe,
            rows=min(config.batch, len(config.seeds)),  # of one prompt: rounding depends on the batch
            memory=config.memory,
            advance=advance,
        )
        return [{block_of(name): found for name, found in level.items()} for level in levels]

    learned, nulls = levels_of(sdxl, describe), []
    for number in range(config.null):
        # The spread of untrained networks is the band itself, so seeds of each are hardly drawn again.
        network = untrained(sdxl, _NULL_SEED + number, config.null_text)
        nulls.append(levels_of(network, partial(plain, resamples=2, shuffles=1)))
    blocks = FeatureResult(sigmas, learned, nulls, config.concepts)
    if not config.outputs:
        return TextFeatureResult(config, blocks, {}, {})
    latents = {prompts: trajectory.last for prompts, trajectory in trajectories.items()}  # (S, C, H, W) each
    images = {prompts: sdxl.decode(last).cpu() for prompts, last in latents.items()}  # (S, 3, H, W) each
    outputs = {}
    for name, ends in (("latent", latents), ("pixel", images)):
        features = torch.stack([ends[row.prompts] for row in rows]).flatten(2)  # (R, S, F)
        outputs[name] = describe(products_of(features, pairs))
    return TextFeatureResult(config, blocks, outputs, {row.name: images[row.prompts][0] for row in rows})


def _sample_rows(sdxl: Sdxl, config: TextFeatureConfig, advance: _Advance) -> dict[tuple[str, ...], Trajectory]:
    """The trajectory of every row's prompts, all from the same noise."""
    options: dict[str, Any] = {"steps": config.steps, "guidance": config.guidance, "nothing": config.nothing}
    options |= {"seeds": config.seeds, "batch": config.batch, "keep": [*config.at, config.last_step]}
    trajectories = {}
    for row in config.sampled:
        cond = sdxl.conditioner(row.for_seeds(len(config.seeds)))
        trajectories[row.prompts] = sdxl.trajectory(cond, **options, advance=advance)
    return trajectories


def _inputs(sdxl: Sdxl, config: TextFeatureConfig, x: Tensor, sigmas: Sequence[float]) -> list[FeatureBatch]:
    """Latents x (levels, R, S, C, H, W), conditions and tokens of all rows and seeds, at every level."""
    conds, positions = [], []
    for row in config.rows:
        prompts = row.for_seeds(len(config.seeds))
        conds.append(sdxl.conditioner(prompts))
        if config.site == "maps":
            positions.append([token_position(sdxl, prompt, row.token) for prompt in prompts])
    cond, tokens = torch.stack(conds), torch.tensor(positions) if positions else None  # (R, S, dim), (R, S)
    return [FeatureBatch(latents, cond, sigma, tokens) for latents, sigma in zip(x, sigmas)]


def _composite_records(products: FeatureProducts, config: TextFeatureConfig) -> list[dict[str, Any]]:
    """cos(d of a composite at a token, d of the single prompt at its token), beside the mean over other concepts."""
    matrix = cosines(mean_products(products.among), products.floor)
    names = [concept.name for concept in config.concepts]
    records, row = [], len(names)
    for composite in config.composites:
        for concept in composite.tokens:
            others = [matrix[row, n] for n, name in enumerate(names) if name not in composite.tokens]
            record = {
                "composite": composite.name,
                "concept": concept,
                "cosine": known(float(matrix[row, names.index(concept)])),
                "cosine_with_others": known(float(torch.stack(others).mean())) if others else None,
            }
            records.append(record)
            row += config.site == "maps"
        row += config.site != "maps"
    return records


# -- untrained networks ------------------------------------------------------------------------------------


def untrained(sdxl: Sdxl, seed: int, also_text: bool = False) -> Sdxl:
    """The same pipeline around a UNet with fresh weights, and around fresh text encoders with `also_text`."""
    unet: Any = sdxl.unet
    here = [sdxl.device] if sdxl.device.type == "cuda" else []
    with torch.random.fork_rng(devices=here), torch.device(sdxl.device), quiet():
        torch.manual_seed(seed)
        fresh = type(unet).from_config(dict(unet.config)).eval().requires_grad_(False).to(sdxl.dtype)
        encoders = [type(encoder)(encoder.config) for encoder in sdxl.encoders] if also_text else []
    return sdxl.twin(fresh, [encoder.eval().to(sdxl.dtype) for encoder in encoders])
