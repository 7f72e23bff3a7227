"""Do concepts of one category lie together inside a text-to-image network, and others apart?

The study of `analysis.feature_study` with prompts as concepts: the baseline is the empty prompt on the same noise,
hooks are transformer blocks, and the latents and images at the end of sampling are compared as well.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from rich.table import Table
from torch import Tensor

from tessera.analysis import feature_statistics
from tessera.analysis.feature_statistics import Band, FeatureProducts, cosines, known, mean_products, products_of
from tessera.analysis.feature_study import (
    FeatureBatch,
    FeatureResult,
    HookFeatures,
    Level,
    describe_products,
    measure_network,
)
from tessera.stats import RESAMPLES
from tessera.studies.text_to_image.blocks import Site, block_hooks, block_of, position_of
from tessera.studies.text_to_image.pipeline import Nothing, Sdxl, quiet
from tessera.studies.text_to_image.prompts import COMPOSITES, Composite, Concept
from tessera.studies.text_to_image.words import token_position

_Advance = Callable[[], Any]
_NULL_SEED = 90_000  # weights of untrained networks are others than those of a tiny pipeline
MEASURES = ("within", "between", "ratio", "gap")
_POSITIONS = ("down", "mid", "up", "latent", "pixel")


# -- prompts -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """Prompts that seeds take turns with, and the token whose attention map is compared."""

    prompts: tuple[str, ...]
    token: str

    def for_seeds(self, count: int) -> list[str]:
        """The prompt of each seed: the n-th of any row has the n-th wording."""
        return [self.prompts[number % len(self.prompts)] for number in range(count)]


def rows_for(concepts: Sequence[Concept], composites: Sequence[Composite], site: Site) -> list[Row]:
    """The empty prompt first, then the concepts, then the composites (for maps once per token)."""
    rows = [Row(("",), ""), *(Row(concept.prompts, concept.token) for concept in concepts)]
    for composite in composites:
        tokens = composite.tokens.values() if site == "maps" else ("",)
        rows += [Row((composite.prompt,), token) for token in tokens]
    return rows


def fitting_composites(concepts: Sequence[Concept]) -> tuple[Composite, ...]:
    """Those of the paper whose concepts are all among the given ones."""
    names = {concept.name for concept in concepts}
    return tuple(composite for composite in COMPOSITES if names >= composite.tokens.keys())


# -- the study ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TextFeatureConfig:
    """Settings of a feature study of a pipeline."""

    site: Site = "block"
    layers: str | tuple[str, ...] = "*"
    steps: int = 15
    at: tuple[int, ...] = (0,)  # steps, counted from 0: the first has the most noise
    seeds: tuple[int, ...] = tuple(range(10))
    guidance: float = 5.0  # of the sampler; features are those of the conditional network alone
    nothing: Nothing | None = None  # what guidance moves away from; the pipeline's own by default
    null: int = 0  # untrained networks
    null_text: bool = False  # whether their text encoders are untrained, too
    outputs: bool = True  # also the latents and images at the end of sampling
    memory: int = 4 * 2**30  # bytes of features held at a time
    batch: int = 8
    resamples: int = RESAMPLES

    @property
    def samples(self) -> bool:
        """Whether anything but the very first latent is needed."""
        return self.outputs or any(self.at)


@dataclass(frozen=True)
class TextFeatureResult:
    """Blocks at every noise level, beside untrained networks, and the outputs."""

    concepts: tuple[Concept, ...]
    steps: tuple[int, ...]  # counted from 0
    blocks: FeatureResult
    outputs: Level  # latent and pixel
    images: Tensor | None  # (rows, 3, H, W), of the first seed

    def positions(self, number: int, outputs: bool = True) -> dict[str, Level]:
        """Layers of the down, middle and up part at one level, and the outputs."""
        level = self.blocks.learned[number] | (self.outputs if outputs else {})
        found: dict[str, Level] = {}
        for name, features in level.items():
            found.setdefault(position_of(name), {})[name] = features
        return {position: found[position] for position in _POSITIONS if position in found}

    def band(self, number: int, name: str, measure: str) -> Band | None:
        """The range of a measure over untrained networks."""
        return self.blocks.band(number, name, measure)

    def null_ratios(self, number: int, names: Sequence[str]) -> list[Band]:
        """Bands of the ratio over untrained networks, where there are some and it is known."""
        bands = [self.band(number, name, "ratio") for name in names if name not in self.outputs]
        return [band for band in bands if band is not None]

    def to_dict(self) -> dict[str, Any]:
        """All numbers but the matrices, JSON-ready."""
        levels = []
        for number, (step, sigma) in enumerate(zip(self.steps, self.blocks.sigmas)):
            positions = self.positions(number, outputs=False)
            levels.append(
                {
                    "step": step + 1,
                    "sigma": sigma,
                    "positions": [self._position(number, *entry) for entry in positions.items()],
                    "layers": [self._layer(number, name) for name in self.blocks.learned[number]],
                }
            )
        return {
            "concepts": [asdict(concept) for concept in self.concepts],
            "levels": levels,
            "outputs": [self._layer(0, name) for name in self.outputs],
        }

    def _layer(self, number: int, name: str) -> dict[str, Any]:
        output = name in self.outputs
        found = self.outputs[name] if output else self.blocks.learned[number][name]
        record = {key: value for key, value in found.raw.record().items() if key not in ("matrix", "lengths")}
        centered = found.centered.record()
        null: dict[str, Any] = {}
        clears: dict[str, Any] = {}
        if self.blocks.nulls and not output:
            for measure in feature_statistics.MEASURES:
                band = self.band(number, name, measure)
                null[measure] = None if band is None else band.record()
                if band is not None:
                    clears[measure] = band.clears(getattr(found.raw, measure))
        return {
            "name": name,
            **record,
            "centered": {key: centered[key] for key in ("within", "between", "gap", "p")},
            "composites": found.composites,
            "null": null,
            "clears_null": clears,
        }

    def _position(self, number: int, position: str, level: Level) -> dict[str, Any]:
        """Means over the layers of one part of the network, and its best layer."""
        best = max(level, key=lambda name: np.nan_to_num(level[name].raw.ratio, nan=-np.inf))
        above = []
        for name, found in level.items():
            above += [band.clears(found.raw.ratio) == "above" for band in self.null_ratios(number, [name])]
        return {
            "position": position,
            "layers": len(level),
            **{name: known(mean_of(level, name)) for name in MEASURES},
            "largest_ratio": {"layer": best, "ratio": known(level[best].raw.ratio)},
            "layers_above_null": sum(above) if above else None,
        }

    def table(self, number: int, label: str) -> Table:
        """A row per part of the network and per output."""
        title = f"{label}, step {self.steps[number] + 1}, sigma {self.blocks.sigmas[number]:.3g}"
        heads = ("position", *MEASURES, "centered gap", "p", "untrained ratio")
        table = Table(*heads, title=title)
        for position, level in self.positions(number).items():
            centered = np.nanmean([found.centered.gap for found in level.values()])
            ps = [found.raw.p for found in level.values()]
            bands = self.null_ratios(number, list(level))
            low, high = (min(b.low for b in bands), max(b.high for b in bands)) if bands else (0, 0)
            table.add_row(
                position if len(level) == 1 else f"{position} ({len(level)} layers)",
                *(f"{mean_of(level, name):.3f}" for name in MEASURES),
                f"{centered:.3f}",
                f"{min(ps):.3f}" if len(ps) == 1 else f"{min(ps):.3f} to {max(ps):.3f}",
                f"{low:.3f} to {high:.3f}" if bands else "-",
            )
        return table

    def arrays(self) -> dict[str, Any]:
        """Cosines (layers, C, C) of every level and of the outputs, and the names of the layers in order."""
        levels = {f"step{step + 1}": level for step, level in zip(self.steps, self.blocks.learned)}
        arrays: dict[str, Any] = {}
        for name, level in (levels | {"outputs": self.outputs}).items():
            if level:
                arrays[f"{name}_cosines"] = torch.stack([found.raw.matrix for found in level.values()])
                arrays[f"{name}_centered"] = torch.stack([found.centered.matrix for found in level.values()])
                arrays[f"{name}_names"] = list(level)
        return arrays


def mean_of(level: Mapping[str, HookFeatures], name: str) -> float:
    """Mean of a measure over layers, of what is known."""
    return float(np.nanmean([getattr(found.raw, name) for found in level.values()]))


def text_features(
    sdxl: Sdxl,
    concepts: Sequence[Concept],
    config: TextFeatureConfig,
    composites: Sequence[Composite] | None = None,
    advance: _Advance = lambda: None,
) -> TextFeatureResult:
    """Every chosen block at every chosen level, the outputs, and the band of untrained networks."""
    composites = fitting_composites(concepts) if composites is None else composites
    rows = rows_for(concepts, composites, config.site)
    pairs = [(row, 0) for row in range(1, len(rows))]
    categories = [concept.category for concept in concepts]
    sampled = _sample_rows(sdxl, rows, config, advance)

    def describe(products: FeatureProducts) -> HookFeatures:
        found = describe_products(products, len(concepts), categories, resamples=config.resamples, shuffles=RESAMPLES)
        return replace(found, composites=_composite_records(products, concepts, composites, config.site))

    def levels_of(network: Sdxl, describe: Callable[[FeatureProducts], HookFeatures]) -> list[Level]:
        inputs = _inputs(network, rows, sampled, config)
        at = block_hooks(network.unet, config.site, config.layers)
        rows_at_once = min(config.batch, len(config.seeds))  # of one prompt: rounding depends on the batch
        options: dict[str, Any] = {"rows": rows_at_once, "memory": config.memory, "advance": advance}
        levels = []
        for level in measure_network(network.plain, inputs, at, pairs, describe, **options):
            levels.append({block_of(name): found for name, found in level.items()})
        return levels

    learned = levels_of(sdxl, describe)
    # The spread of untrained networks is the band itself, so seeds of each are hardly drawn again.
    plain = partial(describe_products, concepts=len(concepts), groups=categories, resamples=2, shuffles=1)
    nulls = [levels_of(untrained(sdxl, _NULL_SEED + n, config.null_text), plain) for n in range(config.null)]
    sigmas = [float(sdxl.sigmas(config.steps)[step]) for step in config.at]
    blocks = FeatureResult(sigmas, learned, nulls, tuple(concepts))
    outputs = {name: describe(products_of(found, pairs)) for name, found in sampled.outputs.items()}
    return TextFeatureResult(tuple(concepts), config.at, blocks, outputs, sampled.images)


def stages(concepts: Sequence[Concept], config: TextFeatureConfig) -> int:
    """How often `text_features` will call `advance`."""
    rows = rows_for(concepts, fitting_composites(concepts), config.site)
    batches = -(-len(config.seeds) // config.batch)
    sampling = len({row.prompts for row in rows}) * batches if config.samples else 0
    return sampling + len(config.at) * (1 + config.null)


def _inputs(sdxl: Sdxl, rows: Sequence[Row], sampled: "_Sampled", config: TextFeatureConfig) -> list[FeatureBatch]:
    """Latents, conditions and tokens of all rows and seeds, at every level."""
    seeds = len(config.seeds)
    cond = torch.stack([sdxl.conditioner(row.for_seeds(seeds)) for row in rows])  # (R, S, dim)
    tokens = None
    if config.site == "maps":
        positions = []
        for row in rows:
            positions.append([token_position(sdxl, prompt, row.token) for prompt in row.for_seeds(seeds)])
        tokens = torch.tensor(positions)
    sigmas = sdxl.sigmas(config.steps)
    return [
        FeatureBatch(x[sampled.row], cond, float(sigmas[step]), tokens)
        for step, x in zip(config.at, sampled.x, strict=True)
    ]


def _composite_records(
    products: FeatureProducts, concepts: Sequence[Concept], composites: Sequence[Composite], site: Site
) -> list[dict[str, Any]]:
    """cos(d of a composite at a token, d of the single prompt at its token), beside the mean over other concepts."""
    matrix = cosines(mean_products(products.among), products.floor)
    names = [concept.name for concept in concepts]
    records, row = [], len(concepts)
    for composite in composites:
        for concept in composite.tokens:
            others = [matrix[row, n] for n, name in enumerate(names) if name not in composite.tokens]
            records.append(
                {
                    "composite": composite.name,
                    "concept": concept,
                    "cosine": known(float(matrix[row, names.index(concept)])),
                    "cosine_with_others": known(float(torch.stack(others).mean())) if others else None,
                }
            )
            row += site == "maps"
        row += site != "maps"
    return records


# -- the trajectory of each row ----------------------------------------------------------------------------


@dataclass(frozen=True)
class _Sampled:
    """What the rows' sampling leaves."""

    x: Tensor  # (levels, distinct prompts, S, C, H, W)
    row: list[int]  # of each row, which of the distinct prompts is its own
    outputs: dict[str, Tensor]  # latent and pixel: (R, S, F)
    images: Tensor | None


def _sample_rows(sdxl: Sdxl, rows: Sequence[Row], config: TextFeatureConfig, advance: _Advance) -> _Sampled:
    """All rows from the same noise; rows that differ only in their token share one trajectory."""
    if not config.samples:
        start = sdxl.start(config.seeds, config.steps)[None, None]  # the first step, the same for all rows
        return _Sampled(start.expand(len(config.at), *start.shape[1:]), [0] * len(rows), {}, None)
    distinct = list(dict.fromkeys(row.prompts for row in rows))
    row = [distinct.index(one.prompts) for one in rows]
    kept, latents, images = [], [], []
    for prompts in distinct:
        trajectory = sdxl.trajectory(
            sdxl.conditioner(Row(prompts, "").for_seeds(len(config.seeds))),
            steps=config.steps,
            seeds=config.seeds,
            guidance=config.guidance,
            nothing=config.nothing,
            keep=[*config.at, config.steps] if config.outputs else config.at,
            batch=config.batch,
            advance=advance,
        )
        kept.append(trajectory.at(config.at).x)
        if config.outputs:
            latents.append(trajectory.last)
            images.append(sdxl.decode(trajectory.last).cpu())
    outputs = {}
    if config.outputs:
        outputs = {name: torch.stack(x)[row].flatten(2) for name, x in (("latent", latents), ("pixel", images))}
    first = torch.stack([image[0] for image in images]) if images else None
    return _Sampled(torch.stack(kept, dim=1), row, outputs, first)


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
