"""The verbs `t2i locality`, `t2i words` and `t2i features`."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
import tyro
from rich.table import Table

from tessera.analysis.locality import picked
from tessera.analysis.pixel_influence import GradientConfig, Pairs, Pixel, memory_bytes
from tessera.cli.options import Folder, List, OnDevice, Printed, Text, WithDetails
from tessera.console import progress, publish, say
from tessera.devices import pick_device
from tessera.errors import UserError
from tessera.files import make_folder, rounded
from tessera.provenance import provenance
from tessera.records import TextToImageRecord, new_record
from tessera.render.image_io import parse_size, width_height
from tessera.sampling.prompts import parse_ks
from tessera.sampling.trajectory import Trajectory
from tessera.studies.text_to_image import estimate, influence
from tessera.studies.text_to_image.blocks import checked_site
from tessera.studies.text_to_image.features import TextFeatureConfig, text_features
from tessera.studies.text_to_image.figures import save_features, save_prompt_study
from tessera.studies.text_to_image.pipeline import Nothing, Sdxl, load_sdxl, need_diffusers
from tessera.studies.text_to_image.prompts import IMAGE, concepts_of
from tessera.studies.text_to_image.words import REMOVALS, STOP_WORDS, Removal, content_words, find_word

_LATENT_CHANNELS = 4
_PACKAGES = ("diffusers", "transformers", "accelerate", "safetensors")


@dataclass(frozen=True, kw_only=True)
class OnModel(OnDevice, Printed, WithDetails):
    """Options of every study of a pipeline."""

    #: A diffusers folder, or a hub id such as stabilityai/stable-diffusion-xl-base-1.0.
    model: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="MODEL")]
    #: Sampling steps (Euler's method on the model's own schedule).
    steps: int = 50
    #: Number of seeds.
    seeds: int = 10
    #: The first of them.
    seed: tyro.conf.Fixed[int] = 0
    #: Scale of classifier-free guidance while sampling; measurements are made on the conditional network alone.
    guidance: tyro.conf.Fixed[float] = 5.0
    #: What guidance moves away from: the model's default, the empty prompt, or embeddings that are all zero.
    nothing: tyro.conf.Fixed[Nothing] = "default"
    #: Size of the images in pixels, such as 1024 or 1216x832 (default: the one it was trained at).
    size: Text = None
    #: Latents denoised together.
    batch: tyro.conf.Fixed[int] = 8
    #: Number format of the network; use float32 or bfloat16 for gradients.
    precision: Literal["float32", "bfloat16", "float16"] = "float32"
    #: Which of a repository's weight files to read, such as fp16 (default: those without a name).
    variant: tyro.conf.Fixed[Text] = None
    #: Folder for figures, arrays and the record (default: none are written).
    out: Folder = None
    #: Print an estimate of network passes and minutes without running the study. Needs no weights.
    dry_run: bool = False
    #: Speed to compute minutes with, for --dry-run.
    tflops: tyro.conf.Fixed[float] = 100.0

    def check(self) -> None:
        """Checks that need no model."""
        need_diffusers()
        for name, number in (("seed", self.seeds), ("step", self.steps), ("latent at a time", self.batch)):
            if number < 1:
                raise UserError(f"At least one {name} is needed, not {number}.")
        if not 0 < self.tflops < math.inf:
            raise UserError(f"--set tflops is a speed above 0, not {self.tflops:g}.")

    @property
    def network(self) -> dict[str, Any]:
        """Options of the network, loaded or only estimated."""
        size = None if self.size is None else width_height(parse_size(self.size))[::-1]  # (height, width)
        return {"dtype": getattr(torch, self.precision), "size": size}

    @property
    def sampling(self) -> dict[str, Any]:
        """Options of the sampler."""
        return {
            "steps": self.steps,
            "seeds": range(self.seed, self.seed + self.seeds),
            "guidance": self.guidance,
            "nothing": self.nothing,
            "batch": self.batch,
        }

    def load(self) -> Sdxl:
        """The pipeline; the folder for results is made."""
        sdxl = load_sdxl(self.model, pick_device(self.device), variant=self.variant, **self.network)
        if self.out:
            make_folder(self.out)
        return sdxl

    def header(self, sdxl: Sdxl) -> dict[str, Any]:
        """What every file of results says about itself."""
        return {
            "model": Path(self.model).name if Path(self.model).exists() else self.model,
            "size": list(sdxl.size),
            "latent": list(sdxl.latent),
            "steps": self.steps,
            "seeds": list(self.sampling["seeds"]),
            "guidance": self.guidance,
            "nothing": sdxl.chosen_nothing(self.nothing),
            "precision": self.precision,
            "versions": {package: version(package) for package in _PACKAGES},
        }

    def publish(self, record: dict[str, Any], sdxl: Sdxl, name: str, *tables: Table) -> None:
        """Print the results, and write the record beside the figures."""
        record |= {"study": name, "provenance": provenance(sdxl.device)}
        publish(new_record(TextToImageRecord, record), self.json, self.out and self.out / f"{name}.json", *tables)
        if self.out:
            say(f"Figures, arrays and {name}.json are in {self.out}.")

    def publish_cost(self, cost: estimate.PassCost, passes: Mapping[str, int], note: str | None = None) -> None:
        """The result of a dry run."""
        found = estimate.study_cost(cost, passes, self.tflops)
        about = {"study": "cost", "model": self.model, "precision": self.precision}
        record = new_record(TextToImageRecord, {**about, **found, "provenance": provenance()})
        publish(record, self.json, self.out and self.out / "dry-run.json", estimate.cost_table(found, note))


def parse_steps(text: str, steps: int) -> tuple[int, ...]:
    """Steps counted from 1, such as 1,25,50, as numbers from 0."""
    found = sorted(number - 1 for number in parse_ks(text))
    for step in found:
        if not 0 <= step < steps:
            raise UserError(f"A sampler of {steps} steps has none numbered {step + 1}.")
    return tuple(found)


def spread_steps(steps: int) -> str:
    """The first, the middle and the last: 1,25,50 of 50."""
    return f"1,{max(1, steps // 2)},{steps}"


# -- t2i locality and t2i words --------------------------------------------------------------------------

_Sampled = tuple[Sdxl, Trajectory, list[Pixel], Any]


@dataclass(frozen=True, kw_only=True)
class _OnPrompt(OnModel):
    """Options of studies of one prompt."""

    #: What to draw: the paper's prompt, or another.
    prompt: str = IMAGE
    #: Cells of the latent to probe, such as "64,64 64,20" (default: middle, left, right and top).
    probe: List = None
    #: Noise levels at which words are removed, spread evenly over the sampling steps; at most as many as steps.
    levels: int = 12
    #: Words to remove, such as "horse,dog,cat 2" (default: all but stop words).
    words: List = None
    #: What figures show the influence of words on: the clean latent, the predicted noise, or the score.
    unit: tyro.conf.Fixed[influence.Unit] = "clean"

    def chosen_words(self) -> list[str]:
        if self.words is None:
            return content_words(self.prompt)
        return [find_word(self.prompt, word.strip()).name for word in self.words.split(",")]

    def word_steps(self) -> list[int]:
        """Steps at which words are removed."""
        return picked(self.steps, min(self.levels, self.steps))

    @contextmanager
    def sampled(self, steps: Sequence[int], levels: int) -> Iterator[_Sampled]:
        """The pipeline, latents at these steps and at the end, and probes, under a bar of so many levels to measure."""
        sdxl = self.load()
        probes = influence.parse_probes(self.probe, sdxl.latent)
        with progress("measuring influence", math.ceil(self.seeds / self.batch) + levels) as advance:
            options = self.sampling | {"keep": [*steps, self.steps], "advance": advance}
            yield sdxl, sdxl.trajectory(sdxl.conditioner(self.prompt), **options), probes, advance

    def prompt_header(self, sdxl: Sdxl, probes: Sequence[Pixel]) -> dict[str, Any]:
        requested = {"prompt": self.prompt, "probes": list(map(list, probes)), "stop_words": list(STOP_WORDS)}
        return self.header(sdxl) | requested


@dataclass(frozen=True, kw_only=True)
class T2iLocality(_OnPrompt):
    """Which cells of the latent and which words move a cell, from high noise to low (Figures 4 and 6)."""

    #: Sampling steps to take gradients at, from 1, the noisiest, such as 1,25,50 (default: first, middle, last).
    at: List = None
    #: Gradients of the clean latent, or of the predicted noise (without the identity).
    of: tyro.conf.Fixed[influence.Of] = "clean"
    #: Influence of each channel on itself, as in the paper, or of all on all.
    channels: tyro.conf.Fixed[Pairs] = "same"
    #: Recompute blocks in backward passes: much less memory, three times the time.
    checkpoint: tyro.conf.Fixed[bool] = False
    #: GiB that gradients may take, on top of the network.
    memory: tyro.conf.Fixed[float] = 16.0

    def run(self) -> None:
        self.check()
        how = GradientConfig(method="loop", memory=memory_bytes(self.memory), checkpoint=self.checkpoint)
        words = self.chosen_words()
        at = parse_steps(spread_steps(self.steps) if self.at is None else self.at, self.steps)
        steps = sorted({*at, *self.word_steps()})
        if self.dry_run:
            return self.estimate(len(at), len(steps) * (1 + len(words)))
        with self.sampled(steps, len(at) + len(steps)) as (sdxl, trajectory, probes, advance):
            options: dict[str, Any] = {"of": self.of, "pairs": self.channels, "how": how, "advance": advance}
            pixel = influence.pixel_study(sdxl, self.prompt, trajectory.at(at), probes, **options)
            options = {"words": words, "rows": self.batch, "advance": advance}
            found = influence.word_study(sdxl, self.prompt, trajectory.at(steps), probes, **options)
        header = self.prompt_header(sdxl, probes) | {"of": self.of, "channels": self.channels}
        record = header | {"pixel": pixel.record(self.seed), "words": found.record(self.seed)}
        if self.out:
            paths: dict[Removal, influence.WordInfluence] = {"remove": found}
            save_prompt_study(self.out / "locality.npz", header, sdxl, trajectory.last, pixel, paths, self.unit)
        self.publish(record, sdxl, "locality", pixel.table(), found.table())

    def estimate(self, levels: int, variants: int) -> None:
        """Of gradients at so many levels, and so many variants of the prompt in all."""
        probes = len(influence.PROBES) if self.probe is None else len(self.probe.split())
        passes = {
            "sampling": estimate.sampling_passes(self.seeds, self.steps, self.guidance),
            "gradients, forward": levels * (self.seeds + 3),  # three find out what fits into memory
            "words": variants * self.seeds,
            "gradients, backward": levels * self.seeds * probes * _LATENT_CHANNELS,
        }
        self.publish_cost(
            estimate.pass_cost(self.model, gradients=True, checkpoint=self.checkpoint, **self.network), passes
        )


@dataclass(frozen=True, kw_only=True)
class T2iWords(_OnPrompt):
    """Where every word of a prompt acts, and by which path: sequence, pooled vector, or its own tokens."""

    def run(self) -> None:
        self.check()
        words, steps = self.chosen_words(), self.word_steps()
        levels = len(REMOVALS) * len(steps)
        if self.dry_run:
            sampling = estimate.sampling_passes(self.seeds, self.steps, self.guidance)
            passes = {"sampling": sampling, "words": levels * (1 + len(words)) * self.seeds}
            return self.publish_cost(estimate.pass_cost(self.model, **self.network), passes)
        with self.sampled(steps, levels) as (sdxl, trajectory, probes, advance):
            options: dict[str, Any] = {"words": words, "rows": self.batch, "advance": advance}
            paths = influence.word_paths(sdxl, self.prompt, trajectory.at(steps), probes, **options)
        header = self.prompt_header(sdxl, probes) | {"sigmas": paths["remove"].sigmas, "words": words}
        record = header | {
            "ways": {removal: REMOVALS[removal] for removal in paths},
            "paths": {removal: found.record(self.seed) for removal, found in paths.items()},
        }
        if self.out:
            save_prompt_study(self.out / "words.npz", header, sdxl, trajectory.last, None, paths, self.unit)
        self.publish(record, sdxl, "words", paths["remove"].table(), influence.path_table(paths))


# -- t2i features -----------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class T2iFeatures(OnModel):
    """Do concepts of a category lie together inside the network, beyond what untrained ones show? (Figures 5 and 7)"""

    #: Sampling steps (Euler's method on the model's own schedule).
    steps: int = 15
    #: Sets of prompts: one, own, crossed (24 concepts, see docs/text-to-image.md), paper (8, and composites), or
    #: JSON files.
    prompts: str = "one,own,crossed,paper"
    #: What to record: block (hidden state after the FFN), ff, attn2, maps (one token's attention), or several.
    site: str = "block"
    #: Which transformer blocks, by patterns such as mid* or down_blocks.2.*,up_blocks.0.*
    layers: str = "*"
    #: Sampling steps to record at, counted from 1, the noisiest.
    at: str = "1"
    #: Untrained networks for the band (0 for none).
    null: tyro.conf.Fixed[int] = 3
    #: Untrained text encoders, too, in those networks.
    null_text: tyro.conf.Fixed[bool] = False
    #: Leave out the latents and images at the end of sampling.
    no_outputs: tyro.conf.Fixed[bool] = False
    #: GiB of features held at a time; less memory means more passes.
    memory: tyro.conf.Fixed[float] = 4.0

    def run(self) -> None:
        self.check()
        studies = self.studies()
        if self.dry_run:
            return self.estimate(studies)
        sdxl = self.load()
        header = self.header(sdxl) | {
            "at": [step + 1 for step in parse_steps(self.at, self.steps)],
            "layers": self.layers,
            "null": {"networks": self.null, "untrained": "UNet and text encoders" if self.null_text else "UNet"},
            "baseline": "the empty prompt on the same noise",
        }
        records, tables = [], []
        with progress("recording", sum(config.stages for _, config in studies)) as advance:
            for name, config in studies:
                found = text_features(sdxl, config, advance)
                label = f"{_label_of(name)}-{config.site}"
                records.append({"prompts": name, **found.to_dict()})
                tables += [found.table(number, label) for number in range(len(config.at))]
                if self.out:
                    save_features(self.out, label, header, found)
        self.publish(rounded(header | {"studies": records}), sdxl, "features", *tables)

    def studies(self) -> list[tuple[str, TextFeatureConfig]]:
        """Every set of prompts, by name, at every site."""
        if self.null < 0:
            raise UserError(f"There cannot be {self.null} untrained networks.")
        requested = {name: concepts_of(name) for name in self.prompts.split(",")}
        for label, count in Counter(map(_label_of, requested)).items():
            if count > 1:
                raise UserError(f"Two sets of prompts are called `{label}`, and so would their files be; rename one.")
        options = self.sampling | {
            "layers": self.layers,
            "at": parse_steps(self.at, self.steps),
            "null": self.null,
            "null_text": self.null_text,
            "memory": memory_bytes(self.memory),
        }
        studies = []
        for name, concepts in requested.items():
            for number, site in enumerate(map(checked_site, self.site.split(","))):
                outputs = number == 0 and not self.no_outputs  # they are the same at all sites
                studies.append((name, TextFeatureConfig(concepts, site, outputs=outputs, **options)))
        return studies

    def estimate(self, studies: Sequence[tuple[str, TextFeatureConfig]]) -> None:
        sites = list(dict.fromkeys(config.site for _, config in studies))
        cost = estimate.pass_cost(self.model, sites=sites, layers=self.layers, **self.network)
        passes: Counter[str] = Counter()
        for _, config in studies:
            passes.update(estimate.feature_passes(config, cost))
        sets = len(studies) // len(sites)
        self.publish_cost(cost, passes, f"{sets} sets of prompts, recording {', '.join(sites)}")


def _label_of(prompts: str) -> str:
    """What files about a set of prompts are called after."""
    return Path(prompts).stem
