"""ImageSet to be evaluated and what was asked of each: from `tessera sample`, a run, a scene file or a bare folder."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from tessera.errors import UserError
from tessera.evaluation.matching import Location, checked_location, wanted_colors
from tessera.evaluation.truth import ClevrTruth
from tessera.files import read_json, resolve_inside
from tessera.render.image_io import load_png, open_image, to_float
from tessera.scenes.vocabulary import LOCATIONS

RECORDS = (".json", ".jsonl", ".md", ".html", ".safetensors", ".lock")  # files that do not pose as images
GRAY = (
    "1",
    "L",
    "LA",
    "La",
    "I",
    "F",
)  # Pillow's names for images without color; 16-bit ones begin with I
EXPLAINED = "-explained.png"  # how the names of images end that `detector explain` drew beside others
SMALLEST = 16  # pixels; below, objects are no larger than a pixel or two
AT_ONCE = 256
MOST_NAMED = 8  # files named one by one


@dataclass(frozen=True)
class PromptedImage:
    """One image and what it should show: locations, or colors."""

    file: Path
    locations: tuple[Location, ...] = ()
    colors: tuple[str, ...] = ()
    conditioned_on: tuple[Location, ...] | None = (
        None  # the locations as the model was told them, where that is known
    )

    @property
    def targets(self) -> tuple[Location, ...]:
        """Where objects must appear."""
        return self.locations if self.conditioned_on is None else self.conditioned_on

    @property
    def k(self) -> int:
        return len(self.locations) + len(self.colors)


@dataclass(frozen=True)
class ImageSet:
    """A folder's images in order, the size they should have, and what is known of the model."""

    folder: Path
    items: list[PromptedImage]
    size: tuple[int, int] | None = None  # (width, height)
    settings: dict[str, Any] | None = None  # of the training, as config.json has them
    about: dict[str, Any] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)  # file -> why nothing can be said of it

    @property
    def max_train_objects(self) -> int | None:
        """The most objects training showed, if it is known."""
        try:
            return int((self.settings or {})["data"]["objects"][1])
        except (KeyError, TypeError, ValueError, IndexError):
            return None

    @property
    def label(self) -> str | None:
        """Which objects were told in training, if it is known."""
        try:
            return str((self.settings or {})["conditioner"]["label"])
        except (KeyError, TypeError):
            return None

    @property
    def by_color(self) -> bool:
        return any(image.colors for image in self.items)

    @property
    def at_study_locations(self) -> bool:
        items = [image for image in self.items if image.locations]
        return bool(items) and all(image.locations == LOCATIONS[: image.k] for image in items)


# --- what was asked -----------------------------------------------------------------------------------------


def images_in(
    path: Path, locations: Sequence[Location] | None = None, colors: Sequence[str] | None = None
) -> ImageSet:
    """The images of a run or folder. With `locations` or `colors`, these were asked of every image."""
    path = Path(path)
    if not path.is_dir():
        raise UserError(f"There is no folder {path}.")
    folder = samples_of(path)
    if locations is not None or colors is not None:
        prompt = (tuple(map(checked_location, locations or ())), tuple(wanted_colors(colors or ())))
        found = ImageSet(folder, [PromptedImage(file, *prompt) for file in image_files(folder)])
    elif (folder / "samples.json").is_file():
        found = from_sampling(folder)
    elif (folder / "scenes.json").is_file():
        found = from_scenes(folder)
    else:
        found = from_names(folder)
    if found.settings is None and (path / "config.json").is_file():
        found = ImageSet(found.folder, found.items, found.size, read_json(path / "config.json"), found.about)
    return found


def samples_of(path: Path) -> Path:
    """The folder itself, or the folder of samples in a run."""
    if (path / "samples.json").is_file() or not (path / "samples").is_dir():
        return path
    inside = sorted({file.parent for file in (path / "samples").rglob("samples.json")})
    if len(inside) > 1:
        names = ", ".join(str(folder) for folder in inside)
        raise UserError(f"{path} has several folders of samples; name one of {names}.")
    if not inside:
        raise UserError(
            f"{path} has no samples with an samples.json yet: "
            f"`tessera sample {path} --each 64 --out {path / 'samples' / 'study'}` makes them."
        )
    return inside[0]


def from_sampling(folder: Path) -> ImageSet:
    """What `tessera sample` wrote."""
    file = folder / "samples.json"
    record = read_json(file)
    try:
        items = [
            PromptedImage(
                resolve_inside(folder, entry["file"]),
                tuple(checked_location(location) for location in entry.get("locations", ())),
                tuple(wanted_colors(entry.get("colors", ()))),
                tuple(map(checked_location, entry["conditioned_on"])) if "conditioned_on" in entry else None,
            )
            for entry in record["images"]
        ]
        size = (int(record["size"]),) * 2 if record.get("size") else None
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UserError(f"{file} is not what `tessera sample` writes: {error!r}.") from error
    about = {name: record.get(name) for name in ("model", "images_seen", "ema", "steps", "seed")}
    return ImageSet(folder, items, size, record.get("settings"), about)


def from_scenes(folder: Path) -> ImageSet:
    """Renders with their scene file: every object of the scene is asked for."""
    truth = ClevrTruth(folder)
    return ImageSet(folder, [asked_by_scene(truth, i) for i in range(len(truth))])


def asked_by_scene(truth: ClevrTruth, i: int) -> PromptedImage:
    file = truth.file(i)
    try:
        size = open_image(file).size
    except UserError:  # it will be named when it is read
        return PromptedImage(file)
    return PromptedImage(file, tuple(obj.location for obj in truth.objects(i, size)))


def from_names(folder: Path) -> ImageSet:
    """ImageSet in folders k00, k01, ...: the study's first K locations were asked for."""
    items, left_out = [], {}
    for file in image_files(folder):
        number = re.fullmatch(r"k(\d+)", file.parent.name)
        if number and int(number[1]) <= len(LOCATIONS):
            items.append(PromptedImage(file, LOCATIONS[: int(number[1])]))
        else:
            left_out[str(file)] = (
                f"{file} is in no folder k00 to k{len(LOCATIONS)}, so nobody knows what was asked."
            )
    if not items:
        raise UserError(
            f"{folder} does not say what was asked of its images: it has no samples.json, no scenes.json "
            "and no folders k00, k01, ...; give --locations or --colors."
        )
    return ImageSet(folder, items, left_out=left_out)


def image_files(folder: Path) -> list[Path]:
    """All files but sheets, explanations and records: what turns out to be no image is named when it is read."""
    files = sorted(file for file in folder.rglob("*") if file.is_file() and not file.name.startswith("."))
    drawn = [f for f in files if f.name.startswith("sheet") or f.name.endswith(EXPLAINED)]
    kept = [f for f in files if f.suffix.lower() not in RECORDS and f not in drawn]
    if not kept:
        raise UserError(f"{folder} has no images.")
    return kept


def prompt_of(file: Path) -> PromptedImage | None:
    """What the samples.json beside an image, or one folder up, says of it."""
    for folder in (file.parent, file.parent.parent):
        if (folder / "samples.json").is_file():
            items = from_sampling(folder).items
            return next((each for each in items if each.file.resolve() == file.resolve()), None)
    return None


# --- reading them -------------------------------------------------------------------------------------------


@dataclass
class ImageReader:
    """Reads images in batches of one size; what cannot be evaluated is named and left out, or stops all."""

    images: ImageSet
    strict: bool = False
    skipped: dict[str, str] = field(init=False)  # file -> why

    def __post_init__(self):
        self.skipped = dict(self.images.left_out)
        if self.strict and self.skipped:
            raise UserError(next(iter(self.skipped.values())))

    def batches(self, at_once: int = AT_ONCE) -> Iterator[tuple[list[PromptedImage], Tensor]]:
        """What was asked, and the images (B, 3, H, W) in [-1, 1]."""
        size = self.images.size or common_size([items.file for items in self.images.items])
        batch: list[tuple[PromptedImage, Tensor]] = []
        for items in self.images.items:
            image = self.read(items.file, size)
            if image is not None:
                batch.append((items, image))
            if len(batch) == at_once:
                yield stacked(batch)
                batch = []
        if batch:
            yield stacked(batch)

    def read(self, file: Path, size: tuple[int, int] | None) -> Tensor | None:
        try:
            return read_image(file, size)
        except UserError as error:
            if self.strict:
                raise
            self.skipped[str(file)] = str(error)
            return None


def stacked(batch: list[tuple[PromptedImage, Tensor]]) -> tuple[list[PromptedImage], Tensor]:
    return [items for items, _ in batch], to_float(torch.stack([image for _, image in batch]))


def read_image(file: Path, size: tuple[int, int] | None = None) -> Tensor:
    """An 8-bit color image (3, H, W), of `size` (width, height) if given, or one sentence."""
    image = open_image(file)
    if image.mode in GRAY or image.mode.startswith("I;"):
        raise UserError(f"{file} is gray-scale, and colors cannot be evaluated without color.")
    if min(image.size) < SMALLEST:
        raise UserError(
            f"{file} is {shown(image.size)}; the detector needs at least {SMALLEST} pixels a side."
        )
    if size is not None and image.size != size:
        raise UserError(f"{file} is {shown(image.size)} where the others are {shown(size)}.")
    return load_png(file)


def common_size(files: Sequence[Path]) -> tuple[int, int] | None:
    """The size most images have, by a look at their heads."""
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
