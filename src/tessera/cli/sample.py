"""The verb `sample`: images from a run or a model, sheets of them, and a record of what was asked."""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
import tyro
from torch import Tensor

from tessera.conditioning import ColorCounts, Conditioner
from tessera.config import parse_count
from tessera.console import print_json, progress, say
from tessera.devices import DeviceName, PrecisionName, pick_device, precision_on
from tessera.errors import UserError
from tessera.files import make_folder, read_json, resolve_inside, write_json
from tessera.models.contract import Denoiser
from tessera.models.model_folder import Model, find_model, load_model
from tessera.plots.sample_grid import sample_grid
from tessera.provenance import provenance
from tessera.render.image_io import load_png, save_png, to_float
from tessera.sampling.compose import ComposeMethod, compose_by_name
from tessera.sampling.prompts import (
    Prompt,
    own_prompts,
    parse_colors,
    parse_ks,
    parse_locations,
    study_prompts,
)
from tessera.sampling.sample import sample
from tessera.sampling.schedule import noise_levels

SHEET_COLUMNS = 8
AT_ONCE = 64
SAMPLES_FILE = "samples.json"
OTHERS = ("scenes.json", "config.json")  # of renders, runs and models, which samples must not be mixed with
NEAR = ("project", "localize")  # ways that put answers together by where they lie


@dataclass(frozen=True)
class Sample:
    """Make images with a trained network: for the study's locations or colors, or for your own.

    The same command carries on after an interruption; another one into the same folder replaces its images.
    """

    model: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="RUN|MODEL")]
    """A run folder, a model folder, the name of a shipped model, or a hub id."""
    k: Annotated[str | None, tyro.conf.arg(metavar="LIST", help_behavior_hint="")] = None
    """ComposeMethod many conditions to ask for, such as 0-12 or 1,3,6 (default: all the study asks for)."""
    each: int = 8
    """Images for each K."""
    out: Path = Path("samples")
    """Folder for images, sheets and samples.json."""
    locations: Annotated[str | None, tyro.conf.arg(metavar="LOCATIONS", help_behavior_hint="")] = None
    """Locations of your own instead, such as "0.65,0.65 0.25,0.65" (x,y in 0..1 from the top left)."""
    colors: Annotated[str | None, tyro.conf.arg(metavar="COLORS", help_behavior_hint="")] = None
    """Colors of your own instead, such as red,blue."""
    steps: int = 32
    """Noise levels on the way (each but the last takes two calls of the network)."""
    s_churn: float = 0.0
    """Fresh noise on the way (Karras et al.'s S_churn): patches that cannot see one another agree better with it."""
    seed: int = 0
    """Another seed gives other images."""
    compose: ComposeMethod = "plain"
    """Prompt the network about few conditions at a time and put its answers together; plain asks about all at once."""
    radius: int = 2
    """Cells to each side that belong to an object, for --compose project and localize."""
    std: float | None = None
    """Length of the running average, for run folders (default: the shortest one kept)."""
    images: Annotated[str | None, tyro.conf.arg(metavar="COUNT", help_behavior_hint="")] = None
    """Snapshot to take, in images seen, such as 512Ki, for run folders (default: the last)."""
    batch: int = AT_ONCE
    """Images made together."""
    precision: PrecisionName = "auto"
    """Of the network; auto is bfloat16 on CUDA and float32 elsewhere."""
    device: DeviceName = "auto"
    """Where to compute."""
    threads: int = 0
    """CPU threads (0: torch's own number); with another number the last bits of an image may differ."""
    json: bool = False
    """Print the record on stdout."""

    def run(self) -> None:
        use_threads(self.threads)
        device = pick_device(self.device)
        model = open_model(self.model, self.std, self.images, device)
        set_precision(model, self.precision, device)
        prompts = self.prompts(model.conditioner)
        denoise = composed_denoiser(model, self.compose, self.radius, self.batch)
        record = {
            "model": self.model,
            "settings": model.config.get("settings"),
            "images_seen": model.config.get("images_seen"),
            "ema": model.config.get("ema"),
            "size": model.size,
            "steps": self.steps,
            "s_churn": self.s_churn,
            "seed": self.seed,
            "compose": self.compose,
            "radius": self.radius if self.compose in NEAR else None,
            "precision": model.denoiser.precision,
            "provenance": provenance(device),
        }

        def draw(missing: list[Prompt]) -> Iterator[Tensor]:
            return drawn(model, missing, self.steps, self.batch, device, denoise, self.s_churn)

        record, _ = save_samples(self.out, record, prompts, draw)
        if self.json:
            print_json(record)
        say(f"{len(prompts)} images, sheets and samples.json are in {self.out}.")

    def prompts(self, conditioner: Conditioner) -> list[Prompt]:
        if min(self.each, self.batch) < 1:
            raise UserError("At least one image must be made for each K, and at a time (--each, --batch).")
        if self.locations is not None or self.colors is not None:
            if self.k is not None:
                raise UserError(
                    "--k chooses among the study's locations and colors; with your own, leave it out."
                )
            return own_prompts(conditioner, self.own_prompt(conditioner), self.each, self.seed)
        all_ks = "0-8" if isinstance(conditioner, ColorCounts) else "0" if conditioner.dim == 0 else "0-12"
        return study_prompts(conditioner, parse_ks(self.k or all_ks), self.each, self.seed)

    def own_prompt(self, conditioner: Conditioner) -> tuple:
        by_color = isinstance(conditioner, ColorCounts)
        if self.locations is not None and self.colors is not None:
            raise UserError("Give either --locations or --colors: a model is told one kind of object.")
        if (self.locations is not None) == by_color:
            kind, flag = ("colors", "--colors") if by_color else ("locations", "--locations")
            raise UserError(f"This model is told {kind}: use {flag}.")
        return parse_locations(self.locations or "") if not by_color else parse_colors(self.colors or "")


def open_model(name: str, std: float | None = None, images: str | int | None = None, device=None) -> Model:
    """A run folder's averaged network, or a model folder, shipped name or hub id."""
    from tessera.models.run_snapshots import is_run, load_run

    if is_run(Path(name)):
        return load_run(Path(name), std, None if images is None else parse_count(images), device)
    if std is not None or images is not None:
        raise UserError(
            "--std and --images choose among the snapshots of a run folder; a model has only one."
        )
    return load_model(name, device)


def check_models(names: Iterable[str]) -> None:
    """One sentence about the first name that stands for nothing, before any of them is worked on."""
    from tessera.models.run_snapshots import is_run

    for name in names:
        if not is_run(Path(name)):
            find_model(name)


def use_threads(threads: int) -> None:
    """So many CPU threads from now on; 0 leaves their number as it is."""
    if threads < 0:
        raise UserError(f"A number of threads is not negative, as {threads} is.")
    if threads:
        torch.set_num_threads(threads)


def set_precision(model: Model, precision: str, device: torch.device) -> None:
    model.denoiser.precision = precision_on(device, precision)  # type: ignore[assignment]


def composed_denoiser(model: Model, how: str = "plain", radius: int = 2, batch: int = AT_ONCE) -> Denoiser:
    """The model's network, or its answers about few conditions at a time put together."""
    if how == "plain":
        return model.denoiser
    return compose_by_name(model.denoiser, model.conditioner, how, radius, batch)


def save_samples(
    out: Path, facts: dict[str, Any], prompts: list[Prompt], draw: Callable[[list[Prompt]], Iterator[Tensor]]
) -> tuple[dict[str, Any], Tensor]:
    """What `asks` are for, as files: what samples.json says, and the images, of which only missing ones are drawn."""
    names = file_names(prompts)
    record = {**facts, "images": [{"file": name, **prompt.record} for name, prompt in zip(names, prompts)]}
    opened(out, record)
    files = [resolve_inside(out, name) for name in names]
    missing = [(file, prompt) for file, prompt in zip(files, prompts) if not file.exists()]
    made = (image for images in draw([prompt for _, prompt in missing]) for image in images)
    for (file, _), image in zip(missing, made):
        save_png(file, image)
    images = torch.stack([to_float(load_png(file)) for file in files])
    save_sheets(out, prompts, images)
    return record, images


def opened(out: Path, record: dict[str, Any]) -> None:
    """Makes the folder and its samples.json: images of the very same command stay, those of another one go."""
    asked = resolve_inside(out, SAMPLES_FILE)
    if not asked.is_file() and any((out / name).exists() for name in OTHERS):
        raise UserError(f"{out} holds something else than samples; choose another folder (--out).")
    before = read_json(asked) if asked.is_file() else {}
    earlier = listed_images(out, before)
    if without_provenance(before) != json.loads(json.dumps(without_provenance(record))):
        for image in earlier:
            image.unlink(missing_ok=True)
        for sheet in out.glob("sheet*.png"):
            sheet.unlink()
        write_json(make_folder(out) / SAMPLES_FILE, record)
    for image in listed_images(out, record):
        image.parent.mkdir(exist_ok=True)


def listed_images(out: Path, record: dict[str, Any]) -> list[Path]:
    """The images an samples.json names; all names are checked before any image is touched."""
    try:
        return [resolve_inside(out, entry["file"]) for entry in record.get("images", [])]
    except (KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{out / SAMPLES_FILE} is not what `tessera sample` writes: {error!r}.") from error


def without_provenance(record: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in record.items() if name != "provenance"}


def file_names(prompts: list[Prompt]) -> list[str]:
    """A PNG for each, in a folder per K."""
    numbers: Counter[str] = Counter()
    names = []
    for prompt in prompts:
        names.append(f"{prompt.name}/{numbers[prompt.name]:04d}.png")
        numbers[prompt.name] += 1
    return names


def drawn(
    model: Model,
    prompts: list[Prompt],
    steps: int,
    batch: int,
    device,
    denoise: Denoiser | None = None,
    s_churn: float = 0.0,
) -> Iterator[Tensor]:
    """Images (B, 3, H, W) on the CPU, batch by batch; `denoise` may stand in for the model's network."""
    sigmas = noise_levels(steps)
    with progress("sampling", len(prompts)) as advance:
        for start in range(0, len(prompts), batch):
            some = prompts[start : start + batch]
            yield sample(
                denoise or model.denoiser,
                torch.cat([model.conditioner.at(prompt.wanted) for prompt in some]),
                model.size,
                [prompt.seed for prompt in some],
                batch=batch,
                sigmas=sigmas,
                s_churn=s_churn,
                device=device,
            ).cpu()
            advance(len(some))


def save_sheets(out: Path, prompts: list[Prompt], images: Tensor) -> None:
    """A sheet per K, and one with the first few images of every K, a row each."""
    rows: dict[str, list[int]] = {}
    for n, prompt in enumerate(prompts):
        rows.setdefault(prompt.name, []).append(n)
    for name, numbers in rows.items():
        save_png(resolve_inside(out, f"sheet-{name}.png"), sheet_of(prompts, images, numbers))
    first = [n for numbers in rows.values() for n in numbers[:SHEET_COLUMNS]]
    columns = min(SHEET_COLUMNS, max(len(numbers) for numbers in rows.values()))
    save_png(resolve_inside(out, "sheet.png"), sheet_of(prompts, images, first, columns))


def sheet_of(
    prompts: list[Prompt], images: Tensor, numbers: list[int], columns: int = SHEET_COLUMNS
) -> Tensor:
    return sample_grid(images[numbers], [prompts[n].wanted for n in numbers], min(columns, len(numbers)))
