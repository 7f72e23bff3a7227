"""A folder of samples: the images, grids of them, and samples.json, the record of their prompts."""

import json
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tessera.console import progress
from tessera.errors import UserError
from tessera.files import make_folder, read_json, resolve_inside, write_json
from tessera.models.contract import Denoiser
from tessera.models.model_folder import Model
from tessera.plots.image_grid import sample_grid
from tessera.render.image_io import load_png, save_png, to_float
from tessera.sampling.prompts import Prompt
from tessera.sampling.sample import sample

_GRID_COLUMNS = 8
_SAMPLES_FILE = "samples.json"
_OTHERS = ("scenes.json", "config.json")  # of renders, runs and models, with which samples must not be mixed


def save_samples(
    out: Path, facts: dict[str, Any], prompts: list[Prompt], draw: Callable[[list[Prompt]], Iterator[Tensor]]
) -> tuple[dict[str, Any], Tensor]:
    """The samples of these prompts as files, of which only missing ones are drawn: the record, and all images."""
    names = _file_names(prompts)
    record = {**facts, "images": [{"file": name, **prompt.record} for name, prompt in zip(names, prompts)]}
    _prepare_sample_folder(out, record)
    files = [resolve_inside(out, name) for name in names]
    missing = [(file, prompt) for file, prompt in zip(files, prompts) if not file.exists()]
    made = chain.from_iterable(draw([prompt for _, prompt in missing]))
    for (file, _), image in zip(missing, made):
        save_png(file, image)
    images = torch.stack([to_float(load_png(file)) for file in files])
    _save_image_grids(out, prompts, images)
    return record, images


def _prepare_sample_folder(out: Path, record: dict[str, Any]) -> None:
    """Makes the folder and its samples.json: images of the same command stay, those of another are deleted."""
    file = resolve_inside(out, _SAMPLES_FILE)
    if not file.is_file() and any((out / name).exists() for name in _OTHERS):
        raise UserError(f"{out} holds something other than samples; choose another folder (--out).")
    before = read_json(file) if file.is_file() else {}
    earlier = _listed_images(out, before)  # refuses what is no such record, too
    if _without_provenance(before) != json.loads(json.dumps(_without_provenance(record))):
        for image in earlier:
            image.unlink(missing_ok=True)
        for sheet in out.glob("sheet*.png"):
            sheet.unlink()
        write_json(make_folder(out) / _SAMPLES_FILE, record)
    for image in _listed_images(out, record):
        image.parent.mkdir(exist_ok=True)


def _listed_images(out: Path, record: dict[str, Any]) -> list[Path]:
    """The images a samples.json names; all names are checked before any image is deleted."""
    try:
        return [resolve_inside(out, entry["file"]) for entry in record.get("images", [])]
    except (KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{out / _SAMPLES_FILE} is not what `tessera sample` writes: {error!r}.") from error


def _without_provenance(record: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in record.items() if name != "provenance"}


def _file_names(prompts: list[Prompt]) -> list[str]:
    """A PNG for each, in a folder per K."""
    numbers: Counter[str] = Counter()
    names = []
    for prompt in prompts:
        names.append(f"{prompt.name}/{numbers[prompt.name]:04d}.png")
        numbers[prompt.name] += 1
    return names


def sample_prompts(
    model: Model,
    prompts: list[Prompt],
    steps: int,
    batch: int,
    device,
    denoise: Denoiser | None = None,
    s_churn: float = 0.0,
) -> Iterator[Tensor]:
    """Images (B, 3, H, W) on the CPU, batch by batch; `denoise` may stand in for the model's network."""
    with progress("sampling", len(prompts)) as advance:
        for start in range(0, len(prompts), batch):
            some = prompts[start : start + batch]
            cond = torch.cat([model.conditioner.at(prompt.wanted) for prompt in some])
            seeds = [prompt.seed for prompt in some]
            options = {"batch": batch, "steps": steps, "s_churn": s_churn, "device": device}
            yield sample(denoise or model.denoiser, cond, model.size, seeds, **options).cpu()
            advance(len(some))


def _save_image_grids(out: Path, prompts: list[Prompt], images: Tensor) -> None:
    """A grid per K, and one with the first few images of every K, a row each."""
    rows: dict[str, list[int]] = {}
    for n, prompt in enumerate(prompts):
        rows.setdefault(prompt.name, []).append(n)
    grids = {f"sheet-{name}.png": (numbers, _GRID_COLUMNS) for name, numbers in rows.items()}
    first = list(chain.from_iterable(numbers[:_GRID_COLUMNS] for numbers in rows.values()))
    grids["sheet.png"] = first, min(_GRID_COLUMNS, max(map(len, rows.values())))
    for name, (numbers, columns) in grids.items():
        grid = sample_grid(images[numbers], [prompts[n].wanted for n in numbers], min(columns, len(numbers)))
        save_png(resolve_inside(out, name), grid)
