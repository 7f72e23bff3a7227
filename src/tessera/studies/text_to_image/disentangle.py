"""Do concepts of one category lie together inside SDXL, and others apart? Cosines of mean differences, layer by layer.

Seeds are paired: a concept's features are compared with those of the empty prompt on the same noise. Features
themselves are kept only as long as a group of layers that fits the memory is worked on; what stays are inner
products, from which every statistic follows.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from tessera.analysis.feature_statistics import (
    ROUNDING,
    Band,
    Disentanglement,
    cosines,
    from_products,
    inner_products,
    known,
    mean_products,
    null_bands,
)
from tessera.analysis.pixel_influence import slices
from tessera.errors import UserError
from tessera.stats import RESAMPLES
from tessera.studies.text_to_image.build import untrained
from tessera.studies.text_to_image.hooks import Site, chosen_blocks, recording
from tessera.studies.text_to_image.pipeline import Nothing, Sdxl
from tessera.studies.text_to_image.prompts import COMPOSITES, Composite, Concept
from tessera.studies.text_to_image.words import token_position

Advance = Callable[[], Any]
GIB = 2**30
NULL_SEED = 90_000  # weights of untrained networks are others than those of a tiny pipeline


# -- what is asked -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """Something to listen to: its prompts, with which seeds take turns, and the token whose map is looked at."""

    prompts: tuple[str, ...]
    token: str

    def for_seeds(self, count: int) -> list[str]:
        """The prompt of each seed: the n-th of any row has the n-th wording."""
        return [self.prompts[number % len(self.prompts)] for number in range(count)]


NOTHING = Row(("",), "")


def rows_for(concepts: Sequence[Concept], composites: Sequence[Composite], site: Site) -> list[Row]:
    """The empty prompt first, then the concepts, then the composites (for maps once per token)."""
    singles = [Row(concept.prompts, concept.token) for concept in concepts]
    several = [
        Row((composite.prompt,), token)
        for composite in composites
        for token in (composite.tokens.values() if site == "maps" else ("",))
    ]
    return [NOTHING, *singles, *several]


# -- memory ------------------------------------------------------------------------------------------------


def groups_of(sizes: Mapping[str, int], memory: int) -> list[list[str]]:
    """Consecutive layers whose features (bytes each) fit into `memory` together."""
    largest = max(sizes, key=lambda name: sizes[name])
    if sizes[largest] > memory:
        need, have = sizes[largest] / GIB, memory / GIB
        raise UserError(
            f"Features of {largest} alone take {need:.2f} GiB, more than the {have:.2f} GiB allowed."
        )
    groups: list[list[str]] = [[]]
    for name, size in sizes.items():
        if groups[-1] and sum(sizes[other] for other in groups[-1]) + size > memory:
            groups.append([])
        groups[-1].append(name)
    return groups


@torch.no_grad()
def floats_of(sdxl: Sdxl, blocks: Mapping[str, nn.Module], site: Site) -> dict[str, int]:
    """How many numbers each block gives for one latent, found by one pass."""
    found: dict[str, int] = {}

    def see(name: str, h: Tensor) -> None:
        found[name] = h[0].numel()

    with recording(blocks, site, see, tokens=1):
        sdxl.plain(sdxl.start([0], 1), torch.tensor(1.0), sdxl.conditioner(""))
    return {name: found[name] for name in blocks}


# -- inner products ----------------------------------------------------------------------------------------


def layer_products(
    sdxl: Sdxl,
    rows: Sequence[Row],
    x: Sequence[Tensor],
    sigma: float,
    plan: "DisentangleConfig",
    advance: Advance = lambda: None,
) -> dict[str, Tensor]:
    """Inner products (R, S, R, S) of every block's features, for R rows on latents x[r] (S, C, H, W) at one level."""
    blocks = chosen_blocks(sdxl.unet, plan.layers)
    found: dict[str, Tensor] = {}
    for group in groups_of(sizes_of(sdxl, plan, len(rows)), plan.memory):
        held = DifferenceSums(len(rows), len(x[0]))
        some = {name: blocks[name] for name in group}
        for position, row in enumerate(rows):
            listen_to(sdxl, some, plan.site, row, x[position], sigma, plan.batch, partial(held.put, position))
            advance()
        for name in group:
            found[name] = held.products(name, sdxl.device)
    return found


@torch.no_grad()
def listen_to(
    sdxl: Sdxl,
    blocks: Mapping[str, nn.Module],
    site: Site,
    row: Row,
    x: Tensor,
    sigma: float,
    batch: int,
    put: Callable[[slice, str, Tensor], None],
) -> None:
    """One row on all its latents x (S, C, H, W), told alone: guidance would only add the unconditional pass."""
    prompts = row.for_seeds(len(x))
    cond = sdxl.conditioner(prompts)
    positions = [token_position(sdxl, prompt, row.token) if site == "maps" else 0 for prompt in prompts]
    for some in slices(len(x), batch):
        with recording(blocks, site, partial(put, some), tokens=positions[some]):
            sdxl.plain(x[some], torch.tensor(sigma), cond[some])


class DifferenceSums:
    """Features of some layers, for all rows and seeds, in the network's own precision."""

    def __init__(self, rows: int, seeds: int):
        self.rows, self.seeds = rows, seeds
        self.features: dict[str, Tensor] = {}

    def put(self, row: int, some: slice, name: str, h: Tensor) -> None:
        flat = h.flatten(1)
        if name not in self.features:
            self.features[name] = torch.empty(self.rows, self.seeds, flat.shape[1], dtype=h.dtype)
        self.features[name][row, some] = flat.cpu()

    def products(self, name: str, device: torch.device) -> Tensor:
        """(R, S, R, S); the features are let go."""
        flat = self.features.pop(name).flatten(0, 1)
        count = (self.rows, self.seeds)
        return inner_products(flat.to(device)).reshape(*count, *count)


def of_differences(products: Tensor) -> tuple[Tensor, float]:
    """Inner products (R, S, R, S) of raw features to those of h(row) - h(nothing) on the same seed, (R-1, S, R-1, S).

    In double precision nothing is lost by subtracting products instead of features. Also the squared length
    below which a difference is rounding.
    """
    rows = products[1:] - products[:1]
    found = rows[:, :, 1:] - rows[:, :, :1]
    nothing = products[0, :, 0].diagonal()  # (S,) squared lengths
    return found, float(nothing.mean()) * ROUNDING**2


# -- spaces ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Space:
    """One layer, or one kind of output, and how concepts lie in it."""

    name: str
    found: Disentanglement
    centered: Disentanglement  # the grand mean taken out: what all concepts share does not count
    composites: list[dict[str, Any]] = field(default_factory=list)
    null: dict[str, Band | None] = field(default_factory=dict)

    def record(self) -> dict[str, Any]:
        return {
            "name": self.name,
            **self.found.record(),
            "centered": self.centered.record(),
            "composites": self.composites,
            "null": {name: None if band is None else band.record() for name, band in self.null.items()},
            "clears_null": {
                name: band.clears(getattr(self.found, name))
                for name, band in self.null.items()
                if band is not None
            },
        }


def space_of(
    name: str,
    products: Tensor,
    concepts: Sequence[Concept],
    composites: Sequence[Composite],
    site: Site,
    resamples: int = RESAMPLES,
) -> Space:
    """From raw products (R, S, R, S), rows as `rows_for` orders them."""
    differences, floor = of_differences(products)
    count = len(concepts)
    own = differences[:count, :, :count]
    options: Any = {"floor": floor, "resamples": resamples}
    categories = [concept.category for concept in concepts]
    return Space(
        name,
        from_products(own, categories, **options),
        from_products(own, categories, center=True, **options),
        composite_records(differences, floor, concepts, composites, site),
    )


def composite_records(
    differences: Tensor,
    floor: float,
    concepts: Sequence[Concept],
    composites: Sequence[Composite],
    site: Site,
) -> list[dict[str, Any]]:
    """cos(d of a composite at a token, d of the single prompt at its token), beside the mean over other concepts."""
    matrix = cosines(mean_products(differences), floor)
    names = [concept.name for concept in concepts]
    found, row = [], len(concepts)
    for composite in composites:
        for concept in composite.tokens:
            others = [matrix[row, n] for n, name in enumerate(names) if name not in composite.tokens]
            found.append(
                {
                    "composite": composite.name,
                    "concept": concept,
                    "cosine": known(float(matrix[row, names.index(concept)])),
                    "cosine_with_others": known(float(torch.stack(others).mean())) if others else None,
                }
            )
            row += site == "maps"
        row += site != "maps"
    return found


# -- the study ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class DisentangleConfig:
    """What to listen to."""

    site: Site = "block"
    layers: str | tuple[str, ...] = "*"
    steps: int = 15
    at: tuple[int, ...] = (0,)  # steps, counted from 0: the first has the most noise
    seeds: tuple[int, ...] = tuple(range(10))
    guidance: float = 5.0  # of the way there
    nothing: Nothing | None = None  # what guidance moves away from; the pipeline's own by default
    null: int = 0  # untrained networks
    null_text: bool = False  # whether their text encoders are untrained, too
    outputs: bool = True  # also the latents and images at the end of the way
    memory: int = 4 * GIB  # for features that are held
    batch: int = 8
    resamples: int = RESAMPLES

    @property
    def walks(self) -> bool:
        """Whether anything but the very first latent is needed."""
        return self.outputs or any(self.at)


@dataclass(frozen=True)
class Level:
    """All layers at one noise level."""

    step: int
    sigma: float
    spaces: list[Space]

    def record(self) -> dict[str, Any]:
        return {
            "step": self.step + 1,
            "sigma": self.sigma,
            "spaces": [space.record() for space in self.spaces],
        }


@dataclass(frozen=True)
class DisentangleResult:
    """A whole study."""

    concepts: tuple[Concept, ...]
    levels: list[Level]
    outputs: list[Space]  # latent and pixel
    images: Tensor | None  # (rows, 3, H, W), of the first seed


def study(
    sdxl: Sdxl,
    concepts: Sequence[Concept],
    plan: DisentangleConfig,
    composites: Sequence[Composite] | None = None,
    advance: Advance = lambda: None,
) -> DisentangleResult:
    """Every chosen block at every chosen level, the outputs, and the band of untrained networks."""
    composites = fitting_composites(concepts) if composites is None else composites
    rows = rows_for(concepts, composites, plan.site)
    sampled = _sample_rows(sdxl, rows, plan, advance)
    sigmas = sdxl.sigmas(plan.steps)
    describe = partial(space_of, concepts=concepts, composites=composites, resamples=plan.resamples)
    levels = []
    for step, latents in zip(plan.at, sampled.x, strict=True):
        x = list(latents[sampled.row])
        level = float(sigmas[step])
        products = layer_products(sdxl, rows, x, level, plan, advance)
        spaces = [describe(name, found, site=plan.site) for name, found in products.items()]
        nulls = [
            layer_products(untrained(sdxl, NULL_SEED + n, plan.null_text), rows, x, level, plan, advance)
            for n in range(plan.null)
        ]
        levels.append(Level(step, level, [banded(space, nulls, concepts) for space in spaces]))
    outputs = [describe(name, found, site=plan.site) for name, found in sampled.products.items()]
    return DisentangleResult(tuple(concepts), levels, outputs, sampled.images)


def stages(sdxl: Sdxl, concepts: Sequence[Concept], plan: DisentangleConfig) -> int:
    """How often `study` will call `advance`."""
    rows = rows_for(concepts, fitting_composites(concepts), plan.site)
    walks = len({row.prompts for row in rows}) * len(slices(len(plan.seeds), plan.batch)) if plan.walks else 0
    groups = groups_of(sizes_of(sdxl, plan, len(rows)), plan.memory)
    return walks + len(plan.at) * len(groups) * len(rows) * (1 + plan.null)


def sizes_of(sdxl: Sdxl, plan: DisentangleConfig, rows: int) -> dict[str, int]:
    """Bytes of every block's features for all rows and seeds."""
    each = rows * len(plan.seeds) * torch.empty(0, dtype=sdxl.dtype).element_size()
    found = floats_of(sdxl, chosen_blocks(sdxl.unet, plan.layers), plan.site)
    return {name: floats * each for name, floats in found.items()}


def fitting_composites(concepts: Sequence[Concept]) -> tuple[Composite, ...]:
    """Those of the paper whose concepts are all among the asked ones."""
    names = {concept.name for concept in concepts}
    return tuple(composite for composite in COMPOSITES if names >= composite.tokens.keys())


def banded(space: Space, nulls: Sequence[Mapping[str, Tensor]], concepts: Sequence[Concept]) -> Space:
    """A space beside the same one in untrained networks."""
    if not nulls:
        return space
    categories = [concept.category for concept in concepts]
    found = []
    for null in nulls:
        differences, floor = of_differences(null[space.name])
        own = differences[: len(concepts), :, : len(concepts)]
        found.append(
            from_products(own, categories, floor=floor, resamples=2)
        )  # their spread is the band itself
    return replace(space, null=null_bands(found))


# -- the trajectory of each row ----------------------------------------------------------------------------


@dataclass(frozen=True)
class _Sampled:
    """What the rows' sampling leaves."""

    x: Tensor  # (levels, distinct prompts, S, C, H, W)
    row: list[int]  # of each row, which of the distinct prompts is its own
    products: dict[str, Tensor]  # of the samples, latent and pixel: (R, S, R, S)
    images: Tensor | None


def _sample_rows(sdxl: Sdxl, rows: Sequence[Row], plan: DisentangleConfig, advance: Advance) -> _Sampled:
    """All rows from the same noise; rows that differ only in their token share one trajectory."""
    if not plan.walks:
        return _Sampled(sdxl.start(plan.seeds, plan.steps)[None, None], [0] * len(rows), {}, None)
    distinct = list(dict.fromkeys(row.prompts for row in rows))
    row = [distinct.index(row.prompts) for row in rows]
    kept, images = [], []
    sums = DifferenceSums(len(distinct), len(plan.seeds))
    for number, prompts in enumerate(distinct):
        trajectory = sdxl.trajectory(
            sdxl.conditioner(Row(prompts, "").for_seeds(len(plan.seeds))),
            steps=plan.steps,
            seeds=plan.seeds,
            guidance=plan.guidance,
            nothing=plan.nothing,
            keep=[*plan.at, plan.steps] if plan.outputs else plan.at,
            batch=plan.batch,
            advance=advance,
        )
        kept.append(trajectory.at(plan.at).x)
        if plan.outputs:
            decoded = sdxl.decode(trajectory.last)
            sums.put(number, slice(None), "latent", trajectory.last)
            sums.put(number, slice(None), "pixel", decoded)
            images.append(decoded[0].cpu())
    order = torch.tensor(row)
    products = {name: sums.products(name, sdxl.device)[order][:, :, order] for name in list(sums.features)}
    return _Sampled(torch.stack(kept, dim=1), row, products, torch.stack(images) if images else None)
