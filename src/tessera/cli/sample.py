"""The verb `sample`: images from a run or a model, sheets of them, and a record of the prompts."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import tyro
from torch import Tensor

from tessera.cli.options import Colors, ImageCount, List, Locations, Number, OpensOneModel
from tessera.conditioning import ColorCounts, Conditioner
from tessera.console import print_json, say
from tessera.devices import PrecisionName, pick_device
from tessera.errors import UserError
from tessera.provenance import provenance
from tessera.sampling.compose import NEAR, ComposeMethod, compose_by_name
from tessera.sampling.prompts import Prompt, own_prompts, parse_colors, parse_ks, parse_locations, study_prompts
from tessera.sampling.sample_folder import sample_prompts, save_samples

AT_ONCE = 64


@dataclass(frozen=True, kw_only=True)
class Sample(OpensOneModel):
    """Make images with a trained network: for the study's locations or colors, or for your own.

    The same command carries on after an interruption; another one into the same folder replaces its images.
    """

    #: Numbers of conditions in the prompts, such as 0-12 or 1,3,6 (default: all those of the study).
    k: List = None
    #: Images for each K.
    each: int = 8
    #: Folder for the images, sheets of them, and samples.json with their prompts.
    out: Path = Path("samples")
    #: Prompt for these locations instead, such as "0.65,0.65 0.25,0.65" (x,y in 0..1 from the top left).
    locations: Locations = None
    #: Prompt for these colors instead, such as red,blue.
    colors: Colors = None
    #: Noise levels of the sampler (each but the last takes two calls of the network).
    steps: int = 32
    #: Strength of stochastic sampling (S_churn of Karras et al. 2022), from which patchwise networks gain most.
    s_churn: float = 0.0
    #: Random seed; image n of K depends on the seed, K and n only.
    seed: int = 0
    #: Compose conditions at inference time; plain gives the network all of them at once.
    compose: ComposeMethod = "plain"
    #: Cells to each side that belong to an object, for --compose project and localize.
    radius: tyro.conf.Fixed[int] = 2
    #: Length of the running average, for run folders (default: the shortest one kept).
    std: Number = None
    #: Snapshot to take, in images seen, such as 512Ki, for run folders (default: the last).
    images: ImageCount = None
    #: Images sampled together.
    batch: tyro.conf.Fixed[int] = AT_ONCE
    #: Of the network; auto is bfloat16 on CUDA and float32 elsewhere.
    precision: tyro.conf.Fixed[PrecisionName] = "auto"

    def run(self) -> None:
        device = pick_device(self.device)
        model = self.opened(self.images, device)
        prompts = self.prompts(model.conditioner)
        denoise = compose_by_name(model.denoiser, model.conditioner, self.compose, self.radius, self.batch)
        record = {
            "model": self.model,
            **{name: model.config.get(name) for name in ("settings", "images_seen", "ema")},
            "size": model.size,
            **{name: getattr(self, name) for name in ("steps", "s_churn", "seed", "compose")},
            "radius": self.radius if self.compose in NEAR else None,
            "precision": model.denoiser.precision,
            "provenance": provenance(device),
        }

        def draw(missing: list[Prompt]) -> Iterator[Tensor]:
            return sample_prompts(model, missing, self.steps, self.batch, device, denoise, self.s_churn)

        record, _ = save_samples(self.out, record, prompts, draw)
        if self.json:
            print_json(record)
        say(f"{len(prompts)} images, sheets and samples.json are in {self.out}.")

    def prompts(self, conditioner: Conditioner) -> list[Prompt]:
        if min(self.each, self.batch) < 1:
            raise UserError("At least one image must be made for each K, and at a time (--each, --set batch).")
        if self.locations is None and self.colors is None:
            all_ks = "0-8" if isinstance(conditioner, ColorCounts) else "0" if conditioner.dim == 0 else "0-12"
            return study_prompts(conditioner, parse_ks(self.k or all_ks), self.each, self.seed)
        if self.k is not None:
            raise UserError("--k chooses among the study's locations and colors; with your own, leave it out.")
        if self.locations is not None and self.colors is not None:
            raise UserError("Give either --locations or --colors: a model has one kind of condition.")
        kind = "colors" if isinstance(conditioner, ColorCounts) else "locations"
        given = getattr(self, kind)
        if given is None:
            raise UserError(f"The conditions of this model are {kind}: use --{kind}.")
        wanted = parse_colors(given) if kind == "colors" else parse_locations(given)
        return own_prompts(conditioner, wanted, self.each, self.seed)
