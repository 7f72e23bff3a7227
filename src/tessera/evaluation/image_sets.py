"""Folders of images and the prompt of each: of `tessera sample`, a run, renders with a scene file, or any origin."""

import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from tessera.errors import UserError
from tessera.evaluation.matching import checked_location, wanted_colors
from tessera.evaluation.truth import ClevrTruth
from tessera.files import read_json, reads, resolve_inside
from tessera.records import current_words, file_names, old_file
from tessera.render.image_io import load_png, open_image, to_float
from tessera.sampling.prompts import Prompt
from tessera.scenes.vocabulary import LOCATIONS

SAMPLES = "samples.json"
_RECORDS = (".json", ".jsonl", ".md", ".html", ".safetensors", ".lock")  # files that do not pose as images
_GRAY = ("1", "L", "LA", "La", "I", "F")  # Pillow's names for images without color; 16-bit ones begin with I
EXPLAINED = "-explained.png"  # how the names of images end that `detector explain` drew beside others
_SMALLEST = 16  # pixels; below, objects are no larger than a pixel or two
_AT_ONCE = 256
MOST_NAMED = 8  # files named one by one


@dataclass(frozen=True)
class ImageSet:
    """A folder's images in order, the size they should have, and what is known of the model."""

    folder: Path
    prompts: list[Prompt]  # one for each image, with its file
    size: tuple[int, int] | None = None  # (width, height)
    settings: dict[str, Any] | None = None  # of the training, as config.json has them
    about: dict[str, Any] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)  # file -> why it cannot be scored


# --- prompts ------------------------------------------------------------------------------------------------


@reads
def images_in(path: Path, prompt: Sequence[Any] | None = None, prompts: Path | None = None) -> ImageSet:
    """The images of a run or folder; `prompt` is that of every image, `prompts` a file that has one for each."""
    path = Path(path)
    if path.is_file():
        raise UserError(f"{path} is a file; one image is evaluated with --explain.")
    if not path.is_dir():
        raise UserError(f"There is no folder {path}.")
    folder = _samples_of(path)
    if prompts is not None:
        found = _from_prompt_file(folder, prompts)
    elif prompt is not None:
        wanted = checked_prompt(prompt)
        found = ImageSet(folder, [Prompt(wanted, file=file) for file in _image_files(folder)])
    elif old_file(folder, SAMPLES).is_file():
        found = _from_sampling(folder)
    elif (folder / "scenes.json").is_file():
        found = _from_scenes(folder)
    else:
        found = _from_names(folder)
    if found.settings is None and (path / "config.json").is_file():
        found = replace(found, settings=current_words(read_json(path / "config.json")))
    return found


def checked_prompt(wanted: Sequence[Any]) -> tuple[Any, ...]:
    """Locations, or color names, that an image can be prompted with."""
    if any(isinstance(part, str) for part in wanted):
        return tuple(wanted_colors(wanted))
    return tuple(map(checked_location, wanted))


def _from_prompt_file(folder: Path, file: Path) -> ImageSet:
    """Images of any origin: `file` is a list of {"file", "locations" or "colors"}, or {file: locations}."""
    content = read_json(file)
    if isinstance(content, dict):
        content = [{"file": name, "locations": wanted} for name, wanted in content.items()]
    try:
        prompts = [_prompt_in(folder, entry) for entry in content]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UserError(
            f'{file} is no list of prompts: it needs entries such as {{"file": "a.png", "locations": [[0.3, 0.6]]}}.'
        ) from error
    if not prompts:
        raise UserError(f"{file} names no image.")
    return ImageSet(folder, prompts)


def _prompt_in(folder: Path, entry: dict[str, Any]) -> Prompt:
    """The prompt of one image, with its file, from an entry of a samples.json or of a file of prompts."""
    return Prompt(
        checked_prompt(entry.get("locations") or entry.get("colors") or ()),
        int(entry.get("seed") or 0),
        tuple(map(checked_location, entry["conditioned_on"])) if "conditioned_on" in entry else None,
        resolve_inside(folder, entry["file"]),
    )


def _samples_of(path: Path) -> Path:
    """The folder itself, or the folder of samples in a run."""
    if old_file(path, SAMPLES).is_file() or not (path / "samples").is_dir():
        return path
    inside = sorted({file.parent for name in file_names(SAMPLES) for file in (path / "samples").rglob(name)})
    if len(inside) > 1:
        names = ", ".join(str(folder) for folder in inside)
        raise UserError(f"{path} has several folders of samples; name one of {names}.")
    if not inside:
        raise UserError(
            f"{path} has no samples with a samples.json yet: "
            f"`tessera sample {path} --each 64 --out {path / 'samples' / 'study'}` makes them."
        )
    return inside[0]


def _from_sampling(folder: Path) -> ImageSet:
    """What `tessera sample` wrote."""
    file = old_file(folder, SAMPLES)
    record = current_words(read_json(file))
    try:
        prompts = [_prompt_in(folder, entry) for entry in record["images"]]
        size = (int(record["size"]),) * 2 if record.get("size") else None
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UserError(f"{file} is not what `tessera sample` writes: {error!r}.") from error
    about = {name: record.get(name) for name in ("model", "images_seen", "ema", "steps", "seed")}
    return ImageSet(folder, prompts, size, record.get("settings"), about)


def _from_scenes(folder: Path) -> ImageSet:
    """Renders with their scene file: every object of the scene is prompted."""
    truth = ClevrTruth(folder)
    return ImageSet(folder, [_scene_prompt(truth, i) for i in range(len(truth))])


def _scene_prompt(truth: ClevrTruth, i: int) -> Prompt:
    file = truth.file(i)
    try:
        size = open_image(file).size
    except UserError:  # it will be named when it is read
        return Prompt(file=file)
    return Prompt(tuple(obj.location for obj in truth.objects(i, size)), file=file)


def _from_names(folder: Path) -> ImageSet:
    """Images in folders k00, k01, ...: the study's first K locations are the prompt."""
    prompts, left_out = [], {}
    for file in _image_files(folder):
        number = re.fullmatch(r"k(\d+)", file.parent.name)
        if number and int(number[1]) <= len(LOCATIONS):
            prompts.append(Prompt(LOCATIONS[: int(number[1])], file=file))
        else:
            left_out[str(file)] = f"{file} is in no folder k00 to k{len(LOCATIONS)}, so its prompt is not known."
    if not prompts:
        raise UserError(
            f"{folder} does not name the prompts of its images: it has no samples.json, no scenes.json "
            "and no folders k00, k01, ...; give --prompts, --locations or --colors."
        )
    return ImageSet(folder, prompts, left_out=left_out)


def _image_files(folder: Path) -> list[Path]:
    """All files but sheets, explanations and records: what turns out to be no image is named when it is read."""
    files = sorted(file for file in folder.rglob("*") if file.is_file() and not file.name.startswith("."))
    drawn = [f for f in files if f.name.startswith("sheet") or f.name.endswith(EXPLAINED)]
    kept = [f for f in files if f.suffix.lower() not in _RECORDS and f not in drawn]
    if not kept:
        raise UserError(f"{folder} has no images.")
    return kept


def prompt_of(file: Path) -> Prompt | None:
    """The prompt of an image by the samples.json beside it, or one folder up."""
    for folder in (file.parent, file.parent.parent):
        if old_file(folder, SAMPLES).is_file():
            prompts = _from_sampling(folder).prompts
            return next((one for one in prompts if one.file and one.file.resolve() == file.resolve()), None)
    return None


# --- reading them -------------------------------------------------------------------------------------------


def read_batches(images: ImageSet, skip: Callable[[Path, UserError], None]) -> Iterator[tuple[list[Prompt], Tensor]]:
    """Prompts, and their images (B, 3, H, W) in [-1, 1], all of one size; `skip` is called with files that cannot be scored."""
    readable = _readable(images, skip)
    while batch := list(itertools.islice(readable, _AT_ONCE)):
        prompts, pixels = zip(*batch)
        yield list(prompts), to_float(torch.stack(pixels))


def _readable(images: ImageSet, skip: Callable[[Path, UserError], None]) -> Iterator[tuple[Prompt, Tensor]]:
    files = [prompt.file for prompt in images.prompts if prompt.file]
    size = images.size or _common_size(files)
    for prompt, file in zip(images.prompts, files, strict=True):
        try:
            yield prompt, read_image(file, size)
        except UserError as error:
            skip(file, error)


def read_image(file: Path, size: tuple[int, int] | None = None) -> Tensor:
    """An 8-bit color image (3, H, W), of `size` (width, height) if given, or one sentence."""
    image = open_image(file)
    if image.mode in _GRAY or image.mode.startswith("I;"):
        raise UserError(f"{file} is gray-scale, and colors cannot be scored without color.")
    if min(image.size) < _SMALLEST:
        raise UserError(f"{file} is {shown(image.size)}; the detector needs at least {_SMALLEST} pixels a side.")
    if size is not None and image.size != size:
        raise UserError(f"{file} is {shown(image.size)} where the others are {shown(size)}.")
    return load_png(file)


def _common_size(files: Sequence[Path]) -> tuple[int, int] | None:
    """The size most images have, by their headers."""
    sizes: Counter[tuple[int, int]] = Counter()
    for file in files:
        try:
            with Image.open(file) as image:
                sizes[image.size] += 1
        except (OSError, SyntaxError, ValueError):  # it will be named when it is read
            continue
    return sizes.most_common(1)[0][0] if sizes else None


def shown(size: tuple[int, int]) -> str:
    return f"{size[0]}x{size[1]}"
