"""The study `reproduce closed-form`: a closed-form denoiser from rendered scenes, sampled, evaluated, set beside a network."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from rich.table import Table
from torch import Tensor

from tessera.cli.options import Folder, Text
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
from tessera.sampling.sample import sample
from tessera.sampling.schedule import noise_levels
from tessera.sampling.solvers import heun
from tessera.scenes import Scenes
from tessera.studies.theory.likeness import likeness
from tessera.training.stream import Batch, Stream

Kind = Literal["local-conditional", "local", "empirical"]
AT_ONCE = 512  # scenes rendered together
FEWEST = {"scenes": 1, "radius": 0, "reach": -1, "least": 1, "most": 0, "each": 0, "compared": 2, "batch": 1}
_NEW_SEED = 1 << 20  # images the two denoisers are compared on come from another stream


@dataclass(frozen=True)
class ClosedForm:
    """Sample a denoiser that is a formula over rendered scenes, evaluate it, and compare it with a trained one.

    Nothing is trained. local-conditional takes every cell from the patches whose nearby conditions agree, local
    from all patches, empirical from whole images.
    """

    model: Text = None
    """A trained model to compare denoised images with: a run or model folder, or the name of a shipped one."""
    kind: Kind = "local-conditional"
    """Which formula."""
    scenes: int = 4000
    """Rendered scenes it knows."""
    objects: Range = (1, 3)
    """Fewest and most objects in them."""
    size: int = 32
    """Side of the images in pixels (with --model: the model's)."""
    labels: Label = "all"
    """Which objects are labeled (with --model: as in its training)."""
    cells: int = 16
    """Cells along one side (with --model: the model's)."""
    radius: int = 2
    """Cells a patch reaches to each side."""
    reach: int = 0
    """How many cells away candidates may come from; -1 is anywhere."""
    least: int = 8
    """Conditions are compared in a smaller radius where fewer patches than this agree."""
    most: int = 1000
    """Agreeing patches used at most, for every cell; 0 is all."""
    k: str = "1-5"
    """How many locations to prompt for."""
    each: int = 8
    """Images for each K; 0 makes none."""
    compared: int = 16
    """Images on which the two denoisers are compared."""
    steps: int = 18
    """Noise levels on the way."""
    sigma_min: float = 0.02
    """Smallest noise level; below it a patch has long been chosen."""
    seed: int = 0
    """Which scenes, and which noise."""
    batch: int = 16
    """Images made together."""
    out: Folder = None
    """Folder for a sheet of the images."""
    device: DeviceName = "auto"
    """Where to compute."""
    json: bool = False
    """Print the record on stdout."""

    def run(self) -> None:
        self.check()
        device = pick_device(self.device)
        model = None if self.model is None else open_model(self.model, None, None, device)
        conditioner, size = self.setting(model, device)
        prompts = study_prompts(conditioner, parse_ks(self.k), self.each, self.seed) if self.each else []
        stream = Stream(Scenes(objects=self.objects), size, conditioner, self.seed)
        known = self.known(stream, device)
        ideal = self.formula(known, conditioner)
        record = self.settings() | {"size": size, "conditioner": conditioner.config}
        if prompts:
            record |= self.evaluated(ideal, prompts, conditioner, size, device)
        if model is not None:
            fresh = Stream(Scenes(objects=self.objects), size, conditioner, self.seed + _NEW_SEED)
            test, floor = fresh.batch(0, self.compared, device), known.images.mean(0)
            with progress("comparing", None):
                record["likeness"] = likeness(ideal, model, test.images, test.cond, seed=self.seed, floor=floor)
        record["provenance"] = provenance(device)
        publish(new_record(ClosedFormRecord, record), self.json, None, *tables(record))

    def check(self) -> None:
        """Reject bad numbers before any work is done."""
        for name, fewest in FEWEST.items():
            if getattr(self, name) < fewest:
                raise UserError(f"{name} must be at least {fewest}, not {getattr(self, name)}.")
        if 0 < self.most < self.least:
            raise UserError(f"most must be 0 or at least {self.least}, which is least, not {self.most}.")
        if not self.each and self.model is None:
            raise UserError("With --each 0 and without --model there is nothing to do.")
        noise_levels(self.steps, self.sigma_min)

    def setting(self, model: Model | None, device) -> tuple[LocationGrid, int]:
        """The conditioner and the image size: the model's, where there is one."""
        if model is None:
            return LocationGrid(self.cells, self.labels), self.size
        if not isinstance(model.conditioner, LocationGrid):
            raise UserError("Patches need conditions on a grid of locations; this model has others.")
        set_precision(model, "auto", device)
        return model.conditioner, model.size

    def known(self, stream: Stream, device) -> Batch:
        """The scenes the formula is built from."""
        parts = []
        with progress("rendering", self.scenes) as advance:
            for start in range(0, self.scenes, AT_ONCE):
                parts.append(stream.batch(start, min(AT_ONCE, self.scenes - start), device))
                advance(len(parts[-1]))
        return Batch(*(torch.cat([getattr(part, name) for part in parts]) for name in ("images", "cond", "index")))

    def formula(self, known: Batch, conditioner: LocationGrid) -> Empirical | Local:
        reach = None if self.reach < 0 else self.reach
        if self.kind == "empirical":
            return Empirical(known.images, known.cond)
        if self.kind == "local":
            return Local(known.images, conditioner.cells, self.radius, reach)
        return LocalConditional(
            known.images, known.cond, conditioner, self.radius, reach, self.least, self.most or None
        )

    def evaluated(
        self, ideal: Empirical | Local, prompts: list[Prompt], conditioner: LocationGrid, size: int, device
    ) -> dict[str, Any]:
        """Images, counts for every K, K_max."""
        images = torch.cat(list(self.images(ideal, prompts, conditioner, size, device)))
        if self.out is not None:
            columns = min(8, self.each)
            save_png(make_folder(self.out) / "ideal.png", sample_grid(images, [a.wanted for a in prompts], columns))
            say(f"A sheet of {len(prompts)} images is in {self.out}.")
        counts = counted(load_detector(device=device), images, prompts)
        return {
            "evaluated": generalization_record(counts, self.objects[1], conditioner.label, seed=self.seed),
            "agreement": {
                "nothing" if near is None else str(near): share
                for near, share in shares(getattr(ideal, "agreement", {})).items()
            },
        }

    def images(self, ideal, prompts: list[Prompt], conditioner: LocationGrid, size: int, device) -> Iterator[Tensor]:
        sigmas = noise_levels(self.steps, self.sigma_min)
        with progress("sampling", len(prompts)) as advance:
            for start in range(0, len(prompts), self.batch):
                part = prompts[start : start + self.batch]
                cond = torch.cat([conditioner.at(prompt.wanted) for prompt in part]).to(device)
                seeds = [prompt.seed for prompt in part]
                yield sample(ideal, cond, size, seeds, batch=len(part), sigmas=sigmas, solver=heun, device=device).cpu()
                advance(len(part))

    def settings(self) -> dict[str, Any]:
        """What the numbers depend on."""
        names = ("scenes", "objects", "radius", "reach", "least", "most", "each", "steps", "sigma_min")
        settings = {name: getattr(self, name) for name in names}
        return {"model": self.model, "closed_form": self.kind, **settings, "seed": self.seed}


def counted(detector: Detector, images: Tensor, prompts: list[Prompt]) -> list[Counts]:
    """The detector's counts for every K, of images as a file would hold them."""
    by_k: dict[int, list] = {}
    for prompt, score in zip(prompts, score_images(detector, to_float(to_uint8(images)), prompts)):
        by_k.setdefault(prompt.k, []).append(score)
    return [Counts.of(k, scores) for k, scores in by_k.items()]


def shares(counts: dict) -> dict:
    total = sum(counts.values())
    return {key: count / total for key, count in counts.items()} if total else {}


def tables(record: dict[str, Any]) -> Iterator[Table | str]:
    """For people."""
    if "evaluated" in record:
        rows = Table("K", "n", "all filled", "95%", "extras", title="The detector's word")
        for row in record["evaluated"]["rows"]:
            share = row["all_found"]
            interval = f"{share['low']:.2f} to {share['high']:.2f}"
            rows.add_row(
                str(row["k"]), str(row["n"]), f"{share['value']:.2f}", interval, f"{row['extra']['value']:.2f}"
            )
        yield rows
        limits = {rule: found["value"] for rule, found in record["evaluated"]["k_max"].items()}
        yield f"K_max: {limits}"
    if "likeness" in record:
        rows = Table("sigma", "Pearson r", "R^2", "Pearson r, beyond the mean", "R^2, beyond the mean")
        for row in record["likeness"]:
            both = [part[name]["value"] for part in (row, row["beyond_mean"]) for name in ("pearson_r", "r_squared")]
            rows.add_row(f"{row['sigma']:g}", *(f"{value:.3f}" for value in both))
        yield rows
