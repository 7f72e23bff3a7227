"""One study of features for every kind of model: concepts, their mean differences, cosines, leakage, null bands.

A study gives each network noisy images under V prompts and S seeds. A concept's direction is the difference of
features under its prompt and under a baseline prompt, on the same seed. Hooks are recorded in groups that fit into
memory, and of each hook only inner products of the differences are kept.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from rich.box import SIMPLE
from rich.table import Table
from torch import Tensor

from tessera.analysis.feature_statistics import (
    Band,
    Disentanglement,
    FeatureProducts,
    Group,
    from_products,
    known,
    null_band,
    products_of,
)
from tessera.analysis.hooks import SCALE
from tessera.analysis.leakage import Leakage, leakage
from tessera.analysis.recording import record
from tessera.console import ResultTable
from tessera.models.contract import Denoiser
from tessera.rows import plural

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class FeatureBatch:
    """What a network gets at one noise level: V prompts by S seeds."""

    x: Tensor  # (V, S, C, H, W)
    cond: Tensor  # (V, dim), or (V, S, dim) where seeds of one prompt differ in their conditions
    sigma: float
    tokens: Tensor | None = None  # (V, S), for attention maps: the token whose map is compared

    def batches(self, rows: int) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor | None]]:
        """(x, sigma, cond, tokens) of at most `rows` images each, prompt by prompt."""
        seeds = self.x.shape[1]
        x = self.x.flatten(0, 1)
        cond = self.cond.repeat_interleave(seeds, 0) if self.cond.ndim == 2 else self.cond.flatten(0, 1)
        tokens = None if self.tokens is None else self.tokens.flatten()
        for start in range(0, len(x), rows):
            some = slice(start, start + rows)
            sigma = torch.full((len(x[some]),), self.sigma, device=x.device, dtype=x.dtype)
            yield x[some], sigma, cond[some], None if tokens is None else tokens[some]


@dataclass(frozen=True)
class HookFeatures:
    """One hook at one noise level."""

    raw: Disentanglement
    centered: Disentanglement  # the grand mean taken out: what all concepts share does not count
    leak: Leakage | None = None  # where concepts were removed from a prompt of several
    composites: list[dict[str, Any]] = field(default_factory=list)

    def measure(self, name: str) -> float:
        """A number by its name in records; NaN where it is not known."""
        part = self._part(name)
        return math.nan if part is None else getattr(part, name.removeprefix(_CENTERED))

    def interval(self, name: str) -> tuple[float, float] | None:
        """Its 95% interval."""
        part = self._part(name)
        return None if part is None else part.intervals.get(name.removeprefix(_CENTERED))

    def _part(self, name: str) -> Disentanglement | Leakage | None:
        if name.startswith(_CENTERED):
            return self.centered
        return self.leak if name in _LEAKS else self.raw


_CENTERED, _LEAKS = "centered_", ("leakage", "locality")
Level = dict[str, HookFeatures]  # by name of the hook
_Describe = Callable[[FeatureProducts], HookFeatures]
_Pairs = Sequence[tuple[int, int]]  # (prompt, baseline prompt) of each difference


def mean_over_hooks(level: Level, name: str) -> float:
    """One number for a whole network: hooks of one network rise and fall together."""
    known = [value for found in level.values() if math.isfinite(value := found.measure(name))]
    return sum(known) / len(known) if known else math.nan


# Numbers of a hook that are compared with those of untrained networks.
_BANDED = (
    *("off_diagonal", "off_rms", "within", "between", "gap"),
    *("centered_off_diagonal", "centered_off_rms", *_LEAKS),
)
_TABLED = {"off_diagonal": "cosine between", "off_rms": "rms cosine", "leakage": "leakage"}


@dataclass(frozen=True, repr=False)
class FeatureResult:
    """Concept directions inside a learned network and inside untrained ones, level by level."""

    sigmas: list[float]
    learned: list[Level]
    nulls: list[list[Level]]  # one list of levels for each untrained network
    concepts: tuple[Any, ...] = ()
    k: int = 0  # concepts that were removed in turn from a prompt of all of them

    def null_level(self, number: int) -> list[Level]:
        """The untrained networks at one noise level."""
        return [null[number] for null in self.nulls]

    def band(self, number: int, hook: str, name: str) -> Band | None:
        """The range of a number over untrained networks, at one level and hook."""
        return null_band([null[hook].measure(name) for null in self.null_level(number)])

    def mean_band(self, number: int, name: str) -> Band | None:
        """The range of its mean over hooks, which is one number per network."""
        return null_band([mean_over_hooks(null, name) for null in self.null_level(number)])

    def __repr__(self) -> str:
        cosines = [mean_over_hooks(level, "off_diagonal") for level in self.learned]
        levels = ", ".join(f"{cosine:.2f} at sigma {sigma:.3g}" for cosine, sigma in zip(cosines, self.sigmas))
        return f"FeatureResult(mean cosine between concepts {levels}; {plural(len(self.nulls), 'untrained network')})"

    def to_dict(self) -> dict[str, Any]:
        """All numbers, JSON-ready."""
        levels = []
        for number, (sigma, level) in enumerate(zip(self.sigmas, self.learned)):
            means = {name: self._mean_record(number, name) for name in _BANDED}
            hooks = [self._hook_record(number, name) for name in level]
            levels.append({"sigma": sigma, "beside_untrained": means, "hooks": hooks})
        return {"levels": levels}

    def _mean_record(self, number: int, name: str) -> dict[str, Any]:
        """A number's mean over hooks, that of the untrained networks, and how many hooks lie outside their bands."""
        value, band = mean_over_hooks(self.learned[number], name), self.mean_band(number, name)
        sides = {"below": 0, "inside": 0, "above": 0}
        for hook, found in self.learned[number].items():
            hook_band = self.band(number, hook, name)
            if hook_band is not None and math.isfinite(found.measure(name)):
                sides[hook_band.clears(found.measure(name)) or "inside"] += 1
        return {"mean": known(value), **_beside_band(value, band), "hooks": sides}

    def _hook_record(self, number: int, hook: str) -> dict[str, Any]:
        found = self.learned[number][hook]
        beside = {name: _beside_band(found.measure(name), self.band(number, hook, name)) for name in _BANDED}
        return {
            "name": hook,
            "raw": found.raw.record(),
            "centered": found.centered.record(),
            "removal": found.leak.record() if found.leak else None,
            "null": {name: one["null"] for name, one in beside.items()},
            "clears": {name: one["clears"] for name, one in beside.items()},
        }

    def table(self, number: int = 0) -> Table:
        """A row per hook at one noise level; behind each number the range of the untrained networks."""
        title = f"sigma {self.sigmas[number]:.3g}, in brackets: untrained"
        table = ResultTable(box=SIMPLE, title=title, title_justify="left", pad_edge=False, collapse_padding=True)
        for column in ("hook", *_TABLED.values()):
            table.add_column(column, no_wrap=True)
        for hook, found in self.learned[number].items():
            cells = [_banded_cell(found.measure(name), self.band(number, hook, name)) for name in _TABLED]
            table.add_row(hook.removesuffix(f".{SCALE}"), *cells)
        table.add_section()
        level = self.learned[number]
        means = [_banded_cell(mean_over_hooks(level, name), self.mean_band(number, name)) for name in _TABLED]
        table.add_row("mean over hooks", *means)
        return table

    def plot(self, name: str = "features") -> "Figure":
        """Cosines between concepts over the layers, beside untrained networks."""
        from tessera.analysis.feature_figures import figure_layers

        return figure_layers(self, name)


def _beside_band(value: float, band: Band | None) -> dict[str, Any]:
    """The band, and on which side of it a value lies."""
    return {"null": band.record() if band else None, "clears": band.clears(value) if band else None}


def _banded_cell(value: float, band: Band | None) -> str:
    """A number, bold where it lies outside the band, and the band."""
    text = f"{value:.2f}" if math.isfinite(value) else "-"
    if band is None:
        return text
    text = f"[bold]{text}[/]" if band.clears(value) else text
    return f"{text} ({band.low:.2f}..{band.high:.2f})"


# -- one network -------------------------------------------------------------------------------------------


def measure_network(
    denoise: Denoiser,
    inputs: Sequence[FeatureBatch],
    at: str | Sequence[str],
    pairs: _Pairs,
    describe: _Describe,
    advance: Callable[[], Any] = lambda: None,
    **budget: int,
) -> list[Level]:
    """All hooks of one network at all noise levels, within a budget as `hook_products` has it."""
    levels = []
    for one in inputs:
        products = hook_products(denoise, one, at, pairs, **budget)
        levels.append({name: describe(found) for name, found in products.items()})
        advance()
    return levels


@torch.no_grad()
def hook_products(
    denoise: Denoiser, inputs: FeatureBatch, at: str | Sequence[str], pairs: _Pairs, *, rows: int, memory: int
) -> dict[str, FeatureProducts]:
    """Inner products of differences at every hook, in order of use: `rows` images at a time, `memory` bytes of features."""
    prompts, seeds = inputs.x.shape[:2]
    found: dict[str, FeatureProducts] = {}
    x, sigma, cond, tokens = next(inputs.batches(1))
    flat = _flat(tokens)
    with record(denoise, at, keep=lambda rows: flat(rows).nbytes) as sizes:
        denoise(x, sigma, cond)
    for group in by_memory({name: sum(each) for name, each in sizes.items()}, prompts * seeds, memory):
        parts: dict[str, list[Tensor]] = {name: [] for name in group}
        for x, sigma, cond, tokens in inputs.batches(rows):
            with record(denoise, group, keep=_flat(tokens)) as activations:
                denoise(x, sigma, cond)
            for name in group:
                parts[name] += activations[name]
        for name in group:
            features = torch.cat(parts.pop(name)).reshape(prompts, seeds, -1)
            found[name] = products_of(features, pairs)
    return found


def _flat(tokens: Tensor | None) -> Callable[[Tensor], Tensor]:
    """Keeps features (B, ...) as (B, F), of attention maps (B, H W, tokens) each image's own token."""

    def keep(rows: Tensor) -> Tensor:
        if tokens is not None:
            rows = rows[torch.arange(len(rows), device=rows.device), :, tokens.to(rows.device)]
        return rows.flatten(1).clone()  # a copy, so that the network may reuse its memory

    return keep


def by_memory(sizes: dict[str, int], images: int, budget: int) -> Iterator[list[str]]:
    """Hooks that fit into memory together; one that does not fit goes alone."""
    group: list[str] = []
    held = 0
    for name, size in sizes.items():
        if group and held + size * images > budget:
            yield group
            group, held = [], 0
        group.append(name)
        held += size * images
    if group:
        yield group


def describe_products(
    products: FeatureProducts, concepts: int, groups: Sequence[Group] | None = None, **options: Any
) -> HookFeatures:
    """All measures of one hook; options are `resamples`, `shuffles` and `seed`.

    The first differences are those of the concepts, others of removed concepts.
    """
    alone, floor = products.among[:concepts, :, :concepts], products.floor
    raw, centered = (from_products(alone, groups, center=flag, floor=floor, **options) for flag in (False, True))
    if groups is not None or len(products.among) == concepts:
        return HookFeatures(raw, centered)
    options.pop("shuffles")
    return HookFeatures(raw, centered, leakage(products.among, concepts, floor=floor, **options))
