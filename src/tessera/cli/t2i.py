"""The verbs `t2i locality`, `t2i words` and `t2i features`."""

import json as json_text
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
import tyro
from rich.table import Table
from torch import Tensor

from tessera.analysis.feature_study import by_memory
from tessera.analysis.locality import picked
from tessera.analysis.pixel_influence import GradientConfig, Pairs, memory_bytes
from tessera.cli.options import Folder, List, OnDevice, Printed, Text, WithDetails
from tessera.console import progress, publish, say
from tessera.devices import pick_device
from tessera.errors import UserError
from tessera.files import atomic, make_folder, rounded
from tessera.plots.figures import save_figure
from tessera.provenance import provenance
from tessera.render.image_io import parse_size, save_png, width_height
from tessera.sampling.prompts import parse_ks
from tessera.sampling.trajectory import Trajectory
from tessera.studies.text_to_image.blocks import SITES, Site
from tessera.studies.text_to_image.estimate import PassCost, StudyCost, estimate, pass_cost, sampling_passes
from tessera.studies.text_to_image.features import (
    TextFeatureConfig,
    TextFeatureResult,
    fitting_composites,
    rows_for,
    stages,
    text_features,
)
from tessera.studies.text_to_image.figures import (
    REMOVAL_NAMES,
    figure_composites,
    figure_features,
    figure_images,
    figure_layers,
    figure_locality,
    figure_paths,
    figure_words,
)
from tessera.studies.text_to_image.influence import (
    Of,
    PixelInfluence,
    Unit,
    WordInfluence,
    check_inside,
    pixel_study,
    word_paths,
    word_study,
)
from tessera.studies.text_to_image.pipeline import Nothing, Sdxl, check_steps, load_sdxl, need_diffusers
from tessera.studies.text_to_image.prompts import IMAGE, Concept, concepts_of
from tessera.studies.text_to_image.words import REMOVALS, STOP_WORDS, checked_words, find_word

ModelName = Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="MODEL")]
_LATENT_CHANNELS = 4
_PACKAGES = ("diffusers", "transformers", "accelerate", "safetensors")
PROBES = ((0.5, 0.5), (0.5, 0.17), (0.5, 0.83), (0.15, 0.5))  # middle, left, right, top, as shares of (rows, cols)


# -- what the verbs share ----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class OnModel(OnDevice, Printed, WithDetails):
    """Options of every question put to a pipeline."""

    model: ModelName
    """A diffusers folder, or a hub id such as stabilityai/stable-diffusion-xl-base-1.0."""
    steps: int = 50
    """Sampling steps (Euler's method on the model's own schedule)."""
    seeds: int = 10
    """Number of seeds."""
    seed: tyro.conf.Fixed[int] = 0
    """The first of them."""
    guidance: tyro.conf.Fixed[float] = 5.0
    """Scale of classifier-free guidance while sampling; measurements are made on the conditional network alone."""
    nothing: tyro.conf.Fixed[Literal["default", "empty", "zeros"]] = "default"
    """What guidance moves away from: the model's default, the empty prompt, or embeddings that are all zero."""
    size: Text = None
    """Size of the images in pixels, such as 1024 or 1216x832 (default: the one it was trained at)."""
    batch: tyro.conf.Fixed[int] = 8
    """Latents denoised together."""
    precision: Literal["float32", "bfloat16", "float16"] = "float32"
    """Of the network; gradients deserve float32 or bfloat16."""
    variant: tyro.conf.Fixed[Text] = None
    """Which of a repository's weight files to read, such as fp16 (default: those without a name)."""
    out: Folder = None
    """Folder for figures, arrays and the record (default: none are written)."""
    dry_run: bool = False
    """Print how many passes and minutes it would take, and do nothing. Needs no weights."""
    tflops: tyro.conf.Fixed[float] = 100.0
    """Speed to compute minutes with, for --dry-run."""

    def check(self) -> None:
        """Checks that need no model."""
        need_diffusers()
        for name, number in (("seed", self.seeds), ("step", self.steps), ("latent at a time", self.batch)):
            if number < 1:
                raise UserError(f"At least one {name} is needed, not {number}.")
        if not 0 < self.tflops < math.inf:
            raise UserError(f"--set tflops is a speed above 0, not {self.tflops:g}.")

    @property
    def all_seeds(self) -> range:
        return range(self.seed, self.seed + self.seeds)

    @property
    def dtype(self) -> torch.dtype:
        return getattr(torch, self.precision)

    @property
    def away_from(self) -> Nothing | None:
        return None if self.nothing == "default" else self.nothing

    @property
    def height_width(self) -> tuple[int, int] | None:
        if self.size is None:
            return None
        width, height = width_height(parse_size(self.size))
        return height, width

    def load(self) -> Sdxl:
        size = self.height_width
        return load_sdxl(self.model, pick_device(self.device), self.dtype, size=size, variant=self.variant)

    def header(self, sdxl: Sdxl) -> dict[str, Any]:
        """What every file of results says about itself."""
        return {
            "model": Path(self.model).name if Path(self.model).exists() else self.model,
            "size": list(sdxl.size),
            "latent": list(sdxl.latent),
            "steps": self.steps,
            "seeds": list(self.all_seeds),
            "guidance": self.guidance,
            "nothing": self.away_from or sdxl.default_nothing,
            "precision": self.precision,
            "versions": {package: version(package) for package in _PACKAGES},
        }

    def say_estimate(self, found: StudyCost, cost: PassCost, note: str = "") -> None:
        """Publish a dry run."""
        record = {"model": self.model, "precision": self.precision, **found.to_dict(self.tflops, cost)}
        table = Table("what", "how much", title=note or None)
        for name, count in found.passes.items():
            table.add_row(f"passes: {name}", f"{count:,}")
        table.add_row("arithmetic", f"{record['pflop']:,.2f} PFLOP")
        table.add_row("time", f"{record['minutes']:,.1f} minutes at {self.tflops:.3g} TFLOP/s")
        table.add_row("weights of the UNet", f"{cost.unet_weights / 2**30:.1f} GiB")
        file = None if self.out is None else self.out / "dry-run.json"
        publish(record | {"provenance": provenance()}, self.json, file, table)


def _save_arrays(path: Path, header: dict[str, Any], **arrays: Any) -> None:
    """One .npz file: arrays, and a JSON text `header` that says what they are."""
    plain: Any = {name: _as_numpy(array) for name, array in arrays.items()}
    with atomic(path) as temporary, open(temporary, "wb") as file:
        np.savez_compressed(file, header=np.array(json_text.dumps(header)), **plain)


def _as_numpy(array: Any) -> np.ndarray:
    return array.detach().float().cpu().numpy() if isinstance(array, Tensor) else np.asarray(array)


def parse_steps(text: str, steps: int) -> tuple[int, ...]:
    """Steps counted from 1, such as 1,25,50, as numbers from 0."""
    found = tuple(sorted({number - 1 for number in parse_ks(text)}))
    check_steps(found, steps)
    return found


def spread_steps(steps: int) -> str:
    """The first, the middle and the last: 1,25,50 of 50."""
    return f"1,{max(1, steps // 2)},{steps}"


# -- t2i locality and t2i words --------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class _OnPrompt(OnModel):
    """Options of questions about one prompt."""

    prompt: str = IMAGE
    """What to draw: the paper's prompt, or another."""
    probe: List = None
    """Cells of the latent to probe, such as "64,64 64,20" (default: middle, left, right and top)."""
    levels: int = 12
    """Noise levels at which words are removed, spread evenly over the sampling steps; at most as many as steps."""
    words: List = None
    """Words to remove, such as "horse,dog,cat 2" (default: all but stop words)."""
    unit: tyro.conf.Fixed[Unit] = "clean"
    """What figures show the influence of words on: the clean latent, the predicted noise, or the score."""

    def chosen_words(self) -> list[str]:
        if self.words is None:
            return [word.name for word in checked_words(self.prompt)]
        return [find_word(self.prompt, word.strip()).name for word in self.words.split(",")]

    def probes(self, latent: tuple[int, int, int]) -> list[tuple[int, int]]:
        if self.probe is None:
            return [(int(row * latent[1]), int(col * latent[2])) for row, col in PROBES]
        try:
            cells = [tuple(map(int, cell.split(","))) for cell in self.probe.split()]
            found = [(row, col) for row, col in cells]
        except ValueError:
            raise UserError(f'`{self.probe}` are no cells; write for example "64,64 64,20".') from None
        if not found:
            raise UserError("At least one cell must be probed.")
        check_inside(found, latent)
        return found

    def trajectory(self, sdxl: Sdxl, at: Sequence[int], advance) -> Trajectory:
        """The prompt's latents at these steps, and at the end."""
        return sdxl.trajectory(
            sdxl.conditioner(self.prompt),
            steps=self.steps,
            seeds=self.all_seeds,
            guidance=self.guidance,
            nothing=self.away_from,
            keep=[*at, self.steps],
            batch=self.batch,
            advance=advance,
        )

    def prompt_header(self, sdxl: Sdxl, probes: Sequence[tuple[int, int]]) -> dict[str, Any]:
        requested = {"prompt": self.prompt, "probes": [list(probe) for probe in probes], "stop_words": list(STOP_WORDS)}
        return self.header(sdxl) | requested

    @property
    def batches(self) -> int:
        return -(-self.seeds // self.batch)


@dataclass(frozen=True, kw_only=True)
class T2iLocality(_OnPrompt):
    """Which cells of the latent and which words move a cell, from high noise to low (Figures 4 and 6)."""

    at: List = None
    """Sampling steps to take gradients at, from 1, the noisiest, such as 1,25,50 (default: first, middle, last)."""
    of: tyro.conf.Fixed[Of] = "clean"
    """Gradients of the clean latent, or of the predicted noise (without the identity)."""
    channels: tyro.conf.Fixed[Pairs] = "same"
    """Influence of each channel on itself, as in the paper, or of all on all."""
    checkpoint: tyro.conf.Fixed[bool] = False
    """Recompute blocks in backward passes: much less memory, three times the time."""
    memory: tyro.conf.Fixed[float] = 16.0
    """GiB that gradients may take, on top of the network."""

    def run(self) -> None:
        self.check()
        memory = memory_bytes(self.memory)
        words = self.chosen_words()
        at = parse_steps(spread_steps(self.steps) if self.at is None else self.at, self.steps)
        shown_levels = sorted({*at, *picked(self.steps, min(self.levels, self.steps))})
        if self.dry_run:
            return self.estimate(len(words), len(at), len(shown_levels))
        sdxl = self.load()
        probes = self.probes(sdxl.latent)
        out = None if self.out is None else make_folder(self.out)
        with progress("measuring locality", self.batches + len(at) + len(shown_levels)) as advance:
            trajectory = self.trajectory(sdxl, shown_levels, advance)
            how = GradientConfig(method="loop", memory=memory, checkpoint=self.checkpoint)
            pixel = pixel_study(
                sdxl, self.prompt, trajectory.at(at), probes, of=self.of, pairs=self.channels, how=how, advance=advance
            )
            found = word_study(
                sdxl, self.prompt, trajectory.at(shown_levels), probes, words=words, rows=self.batch, advance=advance
            )
        header = self.prompt_header(sdxl, probes) | {"of": self.of, "channels": self.channels}
        record = header | {
            "pixel": pixel.record(self.seed),
            "words": found.record(self.seed),
            "provenance": provenance(sdxl.device),
        }
        if out:
            self.draw(out, sdxl, trajectory.last, pixel, found, header)
        publish(record, self.json, out and out / "locality.json", _pixel_table(pixel), _word_table(found))

    def draw(
        self,
        out: Path,
        sdxl: Sdxl,
        latents: Tensor,
        pixel: PixelInfluence,
        words: WordInfluence,
        header: dict[str, Any],
    ) -> None:
        image = sdxl.decode(latents[:1])[0].cpu()
        save_png(out / "image.png", image)
        title = f"{header['model']}: {len(latents)} seeds, guidance {self.guidance:g}"
        save_figure(figure_locality(image, pixel, words, self.unit, title), out / "locality.png")
        save_figure(figure_words(words, f"{header['model']}: where words act"), out / "word-maps.png")
        header = header | {"sigmas": list(pixel.sigmas), "word_sigmas": list(words.sigmas), "words": words.words}
        _save_arrays(
            out / "locality.npz",
            header,
            pixel_maps=pixel.maps,
            pixel_sides=pixel.sides_each,
            word_maps=words.maps,
            word_influence=words.each,
            latents=latents,
        )
        say(f"Figures, locality.npz and locality.json are in {out}.")

    def estimate(self, words: int, levels: int, word_levels: int) -> None:
        options: Any = {"size": self.height_width, "checkpoint": self.checkpoint}
        cost = pass_cost(self.model, self.dtype, gradients=True, **options)
        probes = len(PROBES) if self.probe is None else len(self.probe.split())
        forward = {
            "sampling": sampling_passes(self.seeds, self.steps, self.guidance),
            "gradients, forward": levels * (self.seeds + 3),  # three find out what fits into memory
            "words": word_levels * self.seeds * (1 + words),
        }
        backward = {"gradients, backward": levels * self.seeds * probes * _LATENT_CHANNELS}
        self.say_estimate(estimate(cost, forward, backward), cost)


@dataclass(frozen=True, kw_only=True)
class T2iWords(_OnPrompt):
    """Where every word of a prompt acts, and by which path: sequence, pooled vector, or its own tokens."""

    def run(self) -> None:
        self.check()
        words = self.chosen_words()
        shown_levels = picked(self.steps, min(self.levels, self.steps))
        if self.dry_run:
            return self.estimate(len(words))
        sdxl = self.load()
        probes = self.probes(sdxl.latent)
        out = None if self.out is None else make_folder(self.out)
        with progress("removing words", self.batches + len(REMOVALS) * len(shown_levels)) as advance:
            trajectory = self.trajectory(sdxl, shown_levels, advance)
            levels = trajectory.at(shown_levels)
            paths = word_paths(sdxl, self.prompt, levels, probes, words=words, rows=self.batch, advance=advance)
        header = self.prompt_header(sdxl, probes) | {"sigmas": levels.sigmas.tolist(), "words": words}
        record = header | {
            "ways": {how: REMOVALS[how] for how in paths},
            "paths": {how: found.record(self.seed) for how, found in paths.items()},
            "provenance": provenance(sdxl.device),
        }
        if out:
            self.draw(out, sdxl, trajectory.last, paths, header)
        publish(record, self.json, out and out / "words.json", _word_table(paths["remove"]), _path_table(paths))

    def draw(
        self, out: Path, sdxl: Sdxl, latents: Tensor, paths: dict[str, WordInfluence], header: dict[str, Any]
    ) -> None:
        image, name = sdxl.decode(latents[:1])[0].cpu(), header["model"]
        save_png(out / "image.png", image)
        save_figure(figure_locality(image, None, paths["remove"], self.unit, f"{name}: words"), out / "words.png")
        save_figure(figure_paths(paths, f"{name}: by which path words act"), out / "paths.png")
        for how, found in paths.items():
            save_figure(figure_words(found, f"{name}: words {REMOVAL_NAMES[how]}"), out / f"word-maps-{how}.png")
        arrays = {f"maps_{how}": found.maps for how, found in paths.items()}
        arrays |= {f"influence_{how}": found.each for how, found in paths.items()}
        _save_arrays(out / "words.npz", header, **arrays)
        say(f"Figures, words.npz and words.json are in {out}.")

    def estimate(self, words: int) -> None:
        cost = pass_cost(self.model, self.dtype, size=self.height_width)
        levels = min(self.levels, self.steps)
        forward = {
            "sampling": sampling_passes(self.seeds, self.steps, self.guidance),
            "words": levels * self.seeds * (1 + words) * len(REMOVALS),
        }
        self.say_estimate(estimate(cost, forward), cost)


def _pixel_table(pixel: PixelInfluence) -> Table:
    table = Table("probe", *(f"sigma {sigma:.3g}" for sigma in pixel.sigmas), title="side of 90% of the influence")
    for p, probe in enumerate(pixel.probes):
        table.add_row(f"({probe.row}, {probe.col})", *(str(int(side)) for side in pixel.sides[:, p]))
    return table


def _word_table(words: WordInfluence) -> Table:
    table = Table("sigma", "sameness r", "dominant at each probe", title="influence of words")
    same = words.sameness() if len(words.probes) > 1 else [None] * len(words.sigmas)
    for level, (sigma, alike) in enumerate(zip(words.sigmas, same)):
        named = ["+".join(words.dominant(level, p)) or "-" for p in range(len(words.probes))]
        table.add_row(f"{sigma:.3g}", "-" if alike is None else range_words(alike["pearson_r"]), "   ".join(named))
    return table


def _path_table(paths: dict[str, WordInfluence]) -> Table:
    table = Table("words", "mean influence", "variation over the image", title="paths of a word")
    for how, found in paths.items():
        flat = found.maps.flatten(2)
        variation = (flat.std(2) / flat.mean(2).clamp(min=1e-30)).mean()
        table.add_row(REMOVAL_NAMES[how], f"{flat.mean():.3g}", f"{variation:.2f}")
    return table


def range_words(found: dict[str, Any]) -> str:
    if found["value"] is None:
        return "-"
    ends = "" if found["low"] is None else f" ({found['low']:.2f} to {found['high']:.2f})"
    return f"{found['value']:.2f}{ends}"


# -- t2i features -----------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class T2iFeatures(OnModel):
    """Do concepts of a category lie together inside the network, beyond what untrained ones show? (Figures 5 and 7)"""

    steps: int = 15
    """Sampling steps (Euler's method on the model's own schedule)."""
    prompts: str = "one,own,crossed,paper"
    """Sets of prompts: one, own, crossed (24 concepts, see docs/text-to-image.md), paper (8, and composites), or JSON files."""
    site: str = "block"
    """What to record: block (hidden state after the FFN), ff, attn2, maps (one token's attention), or several."""
    layers: str = "*"
    """Which transformer blocks, by patterns such as mid* or down_blocks.2.*,up_blocks.0.*"""
    at: str = "1"
    """Sampling steps to record at, counted from 1, the noisiest."""
    null: tyro.conf.Fixed[int] = 3
    """Untrained networks for the band (0 for none)."""
    null_text: tyro.conf.Fixed[bool] = False
    """Untrained text encoders, too, in those networks."""
    no_outputs: tyro.conf.Fixed[bool] = False
    """Leave out the latents and images at the end of sampling."""
    memory: tyro.conf.Fixed[float] = 4.0
    """GiB of features held at a time; less memory means more passes."""

    def run(self) -> None:
        self.check()
        requested = {name: concepts_of(name) for name in self.prompts.split(",")}
        _check_labels(requested)
        plans = [self.plan(site, first=number == 0) for number, site in enumerate(self.sites())]
        if self.dry_run:
            return self.estimate(list(requested.values()), plans)
        sdxl = self.load()
        out = None if self.out is None else make_folder(self.out)
        todo: list[tuple[str, tuple[Concept, ...], TextFeatureConfig]] = []
        for name, concepts in requested.items():
            todo += [(name, concepts, plan) for plan in plans]
        studies, tables = [], []
        with progress("recording", sum(stages(concepts, plan) for _, concepts, plan in todo)) as advance:
            for name, concepts, plan in todo:
                found = text_features(sdxl, concepts, plan, advance=advance)
                label = f"{label_of(name)}-{plan.site}"
                about = {"prompts": name, "site": plan.site, "resamples": plan.resamples}
                studies.append(about | found.to_dict())
                tables += [found.table(number, label) for number in range(len(plan.at))]
                if out:
                    self.draw(out, label, sdxl, found)
        record = self.header(sdxl) | self.requested() | {"studies": studies, "provenance": provenance(sdxl.device)}
        publish(rounded(record), self.json, out and out / "features.json", *tables)

    def sites(self) -> list[Site]:
        known: dict[str, Site] = {site: site for site in SITES}
        names = self.site.split(",")
        for name in names:
            if name not in known:
                raise UserError(f"Features can be recorded at {', '.join(SITES)}, not at `{name}`.")
        return [known[name] for name in names]

    def plan(self, site: Site, first: bool) -> TextFeatureConfig:
        """Outputs are the same for all sites, so only the first one compares them."""
        if self.null < 0:
            raise UserError(f"There cannot be {self.null} untrained networks.")
        return TextFeatureConfig(
            site=site,
            layers=tuple(self.layers.split(",")),
            steps=self.steps,
            at=parse_steps(self.at, self.steps),
            seeds=tuple(self.all_seeds),
            guidance=self.guidance,
            nothing=self.away_from,
            null=self.null,
            null_text=self.null_text,
            outputs=first and not self.no_outputs,
            memory=memory_bytes(self.memory),
            batch=self.batch,
        )

    def requested(self) -> dict[str, Any]:
        return {
            "at": [step + 1 for step in parse_steps(self.at, self.steps)],
            "layers": self.layers,
            "null": {"networks": self.null, "untrained": "UNet and text encoders" if self.null_text else "UNet"},
            "baseline": "the empty prompt on the same noise",
        }

    def draw(self, out: Path, label: str, sdxl: Sdxl, found: TextFeatureResult) -> None:
        model = Path(self.model).name
        for number, (step, sigma) in enumerate(zip(found.steps, found.blocks.sigmas)):
            name = f"{label}-step{step + 1:02d}"
            title = f"{model}: {label}, $\\sigma$ = {sigma:.3g}, {self.seeds} seeds"
            save_figure(figure_features(found, number, title), out / f"features-{name}.png")
            save_figure(figure_layers(found, number, title), out / f"layers-{name}.png")
            if fitting_composites(found.concepts):
                save_figure(figure_composites(found, number, title), out / f"composites-{name}.png")
        if found.images is not None:
            several = {(composite.prompt,): composite.name for composite in fitting_composites(found.concepts)}
            names = {("",): ""} | {concept.prompts: concept.name for concept in found.concepts} | several
            save_figure(
                figure_images(found.images, list(names.values()), f"{model}: {label}"), out / f"images-{label}.png"
            )
        header = self.header(sdxl) | self.requested() | {"concepts": [asdict(concept) for concept in found.concepts]}
        _save_arrays(out / f"features-{label}.npz", header, **found.arrays())
        say(f"Figures and features-{label}.npz are in {out}.")

    def estimate(self, requested: Sequence[Sequence[Concept]], plans: Sequence[TextFeatureConfig]) -> None:
        whole = StudyCost({}, 0)
        for plan in plans:
            options: Any = {"size": self.height_width, "site": plan.site, "layers": plan.layers}
            cost = pass_cost(self.model, self.dtype, **options)
            for concepts in requested:
                rows = rows_for(concepts, fitting_composites(concepts), plan.site)
                samples = len({row.prompts for row in rows}) * self.seeds
                images = len(rows) * self.seeds
                recorded = len(list(by_memory(cost.features, images, plan.memory))) * len(plan.at) * images
                steps = self.steps if plan.outputs else max(plan.at)
                forward = {
                    "sampling": sampling_passes(samples, steps, self.guidance),
                    "recording": recorded,
                    "recording, untrained": recorded * self.null,
                }
                whole += estimate(cost, forward)
        sites = ", ".join(plan.site for plan in plans)
        self.say_estimate(whole, cost, f"{len(requested)} sets of prompts, recording {sites}")


def label_of(prompts: str) -> str:
    """What files about a set of prompts are called after."""
    return Path(prompts).stem


def _check_labels(requested: Iterable[str]) -> None:
    for label, count in Counter(map(label_of, requested)).items():
        if count > 1:
            raise UserError(f"Two sets of prompts are called `{label}`, and so would their files be; rename one.")
