"""The study `reproduce closed-form`: a closed-form denoiser from rendered scenes, sampled, evaluated, set beside a network."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from rich.table import Table
from torch import Tensor

from tessera.conditioning import Label, LocationGrid
from tessera.config import Range
from tessera.console import progress, publish, say
from tessera.devices import DeviceName, pick_device
from tessera.errors import UserError
from tessera.evaluation.detector import Detector, load_detector
from tessera.evaluation.kmax import Counts, generalization_record
from tessera.evaluation.pipeline import score_images
from tessera.files import make_folder
from tessera.models.closed_form import Empirical, Local, LocalConditional
from tessera.models.loading import open_model, set_precision
from tessera.models.model_folder import Model
from tessera.plots.image_grid import sample_grid
from tessera.provenance import provenance
from tessera.records import ClosedFormRecord, new_record
from tessera.render.image_io import save_png, to_float, to_uint8
from tessera.sampling.prompts import Prompt, parse_ks, study_prompts
from tessera.sampling.sample import sample_batches
from tessera.sampling.schedule import noise_levels
from tessera.sampling.solvers import last_x
from tessera.scenes import Scenes
from tessera.studies.theory.likeness import likeness
from tessera.training.stream import Stream

_AT_ONCE = 512  # scenes rendered together
_FEWEST = {"scenes": 1, "radius": 0, "reach": -1, "least": 1, "most": 0, "each": 0, "compared": 2, "batch": 1}
_NEW_SEED = 1 << 20  # images the two denoisers are compared on come from another stream


@dataclass(frozen=True)
class ClosedForm:
    """Sample a denoiser that is a formula over rendered scenes, evaluate it, and compare it with a trained one.

    Nothing is trained. local-conditional takes every cell from the patches whose nearby conditions agree, local
    from all patches, empirical from whole images.
    """

    #: A trained model to compare denoised images with: a run or model folder, or the name of a shipped one.
    model: str | None = None
    #: Which formula.
    kind: Literal["local-conditional", "local", "empirical"] = "local-conditional"
    #: Rendered scenes it knows.
    scenes: int = 4000
    #: Fewest and most objects in them.
    objects: Range = (1, 3)
    #: Side of the images in pixels (with a model: the model's).
    size: int = 32
    #: Which objects are labeled (with a model: as in its training).
    labels: Label = "all"
    #: Cells along one side (with a model: the model's).
    cells: int = 16
    #: Cells a patch reaches to each side.
    radius: int = 2
    #: How many cells away candidates may come from; -1 is anywhere.
    reach: int = 0
    #: Conditions are compared in a smaller radius where fewer patches than this agree.
    least: int = 8
    #: Agreeing patches used at most, for every cell; 0 is all.
    most: int = 1000
    #: How many locations to prompt for.
    k: str = "1-5"
    #: Images for each K; 0 makes none.
    each: int = 8
    #: Images on which the two denoisers are compared.
    compared: int = 16
    #: Noise levels of the sampler.
    steps: int = 18
    #: Smallest noise level; below it a patch has long been chosen.
    sigma_min: float = 0.02
    #: Which scenes, and which noise.
    seed: int = 0
    #: Images sampled together.
    batch: int = 16
    #: Folder for a sheet of the images.
    out: Path | None = None
    #: Where to compute.
    device: DeviceName = "auto"
    #: Print the record on stdout.
    json: bool = False

    def __post_init__(self):
        for name, fewest in _FEWEST.items():
            if getattr(self, name) < fewest:
                raise UserError(f"{name} must be at least {fewest}, not {getattr(self, name)}.")
        if 0 < self.most < self.least:
            raise UserError(f"most must be 0 or at least {self.least}, which is least, not {self.most}.")
        if not self.each and self.model is None:
            raise UserError("With --each 0 and without --model there is nothing to do.")
        noise_levels(self.steps, self.sigma_min)

    def run(self) -> None:
        device = pick_device(self.device)
        model = None if self.model is None else open_model(self.model, None, None, device)
        conditioner, size = self.setting(model, device)
        prompts = study_prompts(conditioner, parse_ks(self.k), self.each, self.seed) if self.each else []
        known, cond = self.known(Stream(Scenes(objects=self.objects), size, conditioner, self.seed), device)
        ideal = self.formula(known, cond, conditioner)
        names = ("scenes", "objects", "radius", "reach", "least", "most", "each", "steps", "sigma_min", "seed")
        record: dict[str, Any] = {"model": self.model, "closed_form": self.kind}
        record |= {name: getattr(self, name) for name in names}
        record |= {"size": size, "conditioner": conditioner.config}
        if prompts:
            images = self.images(ideal, prompts, conditioner, size, device)
            if self.out is not None:
                self.save_sheet(self.out, images, prompts)
            counts = counted(load_detector(device=device), images, prompts)
            record["evaluated"] = generalization_record(counts, self.objects[1], conditioner.label, seed=self.seed)
            record["agreement"] = _agreement(ideal)
        if model is not None:
            fresh = Stream(Scenes(objects=self.objects), size, conditioner, self.seed + _NEW_SEED)
            test = fresh.batch(0, self.compared, device)
            with progress("comparing", None):
                found = likeness(ideal, model, test.images, test.cond, known.mean(0), seed=self.seed)
            record["likeness"] = found
        record["provenance"] = provenance(device)
        publish(new_record(ClosedFormRecord, record), self.json, None, *_tables(record))

    def setting(self, model: Model | None, device) -> tuple[LocationGrid, int]:
        """The conditioner and the image size: the model's, where there is one."""
        if model is None:
            return LocationGrid(self.cells, self.labels), self.size
        if not isinstance(model.conditioner, LocationGrid):
            raise UserError("Patches need conditions on a grid of locations; this model has others.")
        set_precision(model, "auto", device)
        return model.conditioner, model.size

    def known(self, stream: Stream, device) -> tuple[Tensor, Tensor]:
        """The images the formula is built from, and their conditions."""
        parts = []
        with progress("rendering", self.scenes) as advance:
            for start in range(0, self.scenes, _AT_ONCE):
                parts.append(stream.batch(start, min(_AT_ONCE, self.scenes - start), device))
                advance(len(parts[-1]))
        return torch.cat([part.images for part in parts]), torch.cat([part.cond for part in parts])

    def formula(self, known: Tensor, cond: Tensor, conditioner: LocationGrid) -> Empirical | Local:
        reach = None if self.reach < 0 else self.reach
        if self.kind == "empirical":
            return Empirical(known, cond)
        if self.kind == "local":
            return Local(known, conditioner.cells, self.radius, reach)
        return LocalConditional(known, cond, conditioner, self.radius, reach, self.least, self.most or None)

    def images(self, ideal, prompts: list[Prompt], conditioner: LocationGrid, size: int, device) -> Tensor:
        cond = torch.cat([conditioner.at(prompt.wanted) for prompt in prompts])
        seeds, sigmas = [prompt.seed for prompt in prompts], noise_levels(self.steps, self.sigma_min)
        images = []
        with progress("sampling", len(prompts)) as advance:
            for steps in sample_batches(ideal, cond, size, seeds, batch=self.batch, sigmas=sigmas, device=device):
                images.append(last_x(steps).cpu())
                advance(len(images[-1]))
        return torch.cat(images)

    def save_sheet(self, folder: Path, images: Tensor, prompts: list[Prompt]) -> None:
        sheet = sample_grid(images, [prompt.wanted for prompt in prompts], min(8, self.each))
        save_png(make_folder(folder) / "ideal.png", sheet)
        say(f"A sheet of {len(prompts)} images is in {folder}.")


def counted(detector: Detector, images: Tensor, prompts: list[Prompt]) -> list[Counts]:
    """The detector's counts for every K, of images as a file would hold them."""
    by_k: dict[int, list] = {}
    for prompt, score in zip(prompts, score_images(detector, to_float(to_uint8(images)), prompts)):
        by_k.setdefault(prompt.k, []).append(score)
    return [Counts.of(k, scores) for k, scores in by_k.items()]


def _agreement(ideal: Empirical | Local) -> dict[str, float]:
    """Share of the cells answered at each radius within which conditions agree."""
    counts = ideal.agreement if isinstance(ideal, LocalConditional) else {}
    total = sum(counts.values())
    return {"nothing" if near is None else str(near): count / total for near, count in counts.items()}


def _tables(record: dict[str, Any]) -> Iterator[Table | str]:
    if "evaluated" in record:
        rows = Table("K", "n", "all filled", "95%", "extras", title="The detector's word")
        for row in record["evaluated"]["rows"]:
            share, extra = row["all_found"], row["extra"]["value"]
            interval = f"{share['low']:.2f} to {share['high']:.2f}"
            rows.add_row(str(row["k"]), str(row["n"]), f"{share['value']:.2f}", interval, f"{extra:.2f}")
        yield rows
        limits = {rule: found["value"] for rule, found in record["evaluated"]["k_max"].items()}
        yield f"K_max: {limits}"
    if "likeness" in record:
        rows = Table("sigma", "Pearson r", "R^2", "Pearson r, beyond the mean", "R^2, beyond the mean")
        for row in record["likeness"]:
            both = (row["pearson_r"], row["r_squared"], *row["beyond_mean"].values())
            rows.add_row(f"{row['sigma']:g}", *(f"{found['value']:.3f}" for found in both))
        yield rows
