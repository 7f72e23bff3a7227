"""Pictures to be judged and what was asked of each: from `tessera sample`, a run, a scene file or a bare folder."""

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
from tessera.files import read_json, resolve_inside
from tessera.images.pictures import load_png, open_image, to_float
from tessera.judge.matching import Place, checked_place, color_wishes
from tessera.judge.truth import ClevrTruth
from tessera.scenes.vocabulary import LOCATIONS

RECORDS = (".json", ".jsonl", ".md", ".html", ".safetensors", ".lock")  # files that do not pose as pictures
GREY = (
    "1",
    "L",
    "LA",
    "La",
    "I",
    "F",
)  # Pillow's names for pictures without colour; 16-bit ones begin with I
EXPLAINED = "-explained.png"  # how the names of pictures end that `judge explain` drew beside others
SMALLEST = 16  # pixels; below, things are no larger than a pixel or two
AT_ONCE = 256
MOST_NAMED = 8  # files named one by one


@dataclass(frozen=True)
class Asked:
    """One picture and what it should show: places, or colours."""

    file: Path
    places: tuple[Place, ...] = ()
    colors: tuple[str, ...] = ()
    told: tuple[Place, ...] | None = None  # the places as the model was told them, where that is known

    @property
    def aims(self) -> tuple[Place, ...]:
        """Where things must appear."""
        return self.places if self.told is None else self.told

    @property
    def k(self) -> int:
        return len(self.places) + len(self.colors)


@dataclass(frozen=True)
class Pictures:
    """A folder's pictures in order, the size they should have, and what is known of the model."""

    folder: Path
    asked: list[Asked]
    size: tuple[int, int] | None = None  # (width, height)
    settings: dict[str, Any] | None = None  # of the training, as config.json has them
    about: dict[str, Any] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)  # file -> why nothing can be said of it

    @property
    def seen_max(self) -> int | None:
        """The most things training showed, if it is known."""
        try:
            return int((self.settings or {})["data"]["objects"][1])
        except (KeyError, TypeError, ValueError, IndexError):
            return None

    @property
    def label(self) -> str | None:
        """Which things were told in training, if it is known."""
        try:
            return str((self.settings or {})["tell"]["label"])
        except (KeyError, TypeError):
            return None

    @property
    def by_color(self) -> bool:
        return any(picture.colors for picture in self.asked)

    @property
    def at_study_places(self) -> bool:
        asked = [picture for picture in self.asked if picture.places]
        return bool(asked) and all(picture.places == LOCATIONS[: picture.k] for picture in asked)


# --- what was asked -----------------------------------------------------------------------------------------


def pictures_in(
    path: Path, places: Sequence[Place] | None = None, colors: Sequence[str] | None = None
) -> Pictures:
    """The pictures of a run or folder. With `places` or `colors`, these were asked of every picture."""
    path = Path(path)
    if not path.is_dir():
        raise UserError(f"There is no folder {path}.")
    folder = samples_of(path)
    if places is not None or colors is not None:
        wish = (tuple(map(checked_place, places or ())), tuple(color_wishes(colors or ())))
        found = Pictures(folder, [Asked(file, *wish) for file in picture_files(folder)])
    elif (folder / "asked.json").is_file():
        found = from_sampling(folder)
    elif (folder / "scenes.json").is_file():
        found = from_scenes(folder)
    else:
        found = from_names(folder)
    if found.settings is None and (path / "config.json").is_file():
        found = Pictures(found.folder, found.asked, found.size, read_json(path / "config.json"), found.about)
    return found


def samples_of(path: Path) -> Path:
    """The folder itself, or the folder of samples in a run."""
    if (path / "asked.json").is_file() or not (path / "samples").is_dir():
        return path
    inside = sorted({file.parent for file in (path / "samples").rglob("asked.json")})
    if len(inside) > 1:
        names = ", ".join(str(folder) for folder in inside)
        raise UserError(f"{path} has several folders of samples; name one of {names}.")
    if not inside:
        raise UserError(
            f"{path} has no samples with an asked.json yet: "
            f"`tessera sample {path} --each 64 --out {path / 'samples' / 'study'}` makes them."
        )
    return inside[0]


def from_sampling(folder: Path) -> Pictures:
    """What `tessera sample` wrote."""
    file = folder / "asked.json"
    record = read_json(file)
    try:
        asked = [
            Asked(
                resolve_inside(folder, entry["file"]),
                tuple(checked_place(place) for place in entry.get("places", ())),
                tuple(color_wishes(entry.get("colors", ()))),
                tuple(map(checked_place, entry["told"])) if "told" in entry else None,
            )
            for entry in record["pictures"]
        ]
        size = (int(record["size"]),) * 2 if record.get("size") else None
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UserError(f"{file} is not what `tessera sample` writes: {error!r}.") from error
    about = {name: record.get(name) for name in ("model", "images_seen", "ema", "steps", "seed")}
    return Pictures(folder, asked, size, record.get("settings"), about)


def from_scenes(folder: Path) -> Pictures:
    """Renders with their scene file: every thing of the scene is asked for."""
    truth = ClevrTruth(folder)
    return Pictures(folder, [asked_by_scene(truth, i) for i in range(len(truth))])


def asked_by_scene(truth: ClevrTruth, i: int) -> Asked:
    file = truth.file(i)
    try:
        size = open_image(file).size
    except UserError:  # it will be named when it is read
        return Asked(file)
    return Asked(file, tuple(thing.place for thing in truth.things(i, size)))


def from_names(folder: Path) -> Pictures:
    """Pictures in folders k00, k01, ...: the study's first K places were asked for."""
    asked, left_out = [], {}
    for file in picture_files(folder):
        number = re.fullmatch(r"k(\d+)", file.parent.name)
        if number and int(number[1]) <= len(LOCATIONS):
            asked.append(Asked(file, LOCATIONS[: int(number[1])]))
        else:
            left_out[str(file)] = (
                f"{file} is in no folder k00 to k{len(LOCATIONS)}, so nobody knows what was asked."
            )
    if not asked:
        raise UserError(
            f"{folder} does not say what was asked of its pictures: it has no asked.json, no scenes.json "
            "and no folders k00, k01, ...; give --places or --colors."
        )
    return Pictures(folder, asked, left_out=left_out)


def picture_files(folder: Path) -> list[Path]:
    """All files but sheets, explanations and records: what turns out to be no picture is named when it is read."""
    files = sorted(file for file in folder.rglob("*") if file.is_file() and not file.name.startswith("."))
    drawn = [f for f in files if f.name.startswith("sheet") or f.name.endswith(EXPLAINED)]
    kept = [f for f in files if f.suffix.lower() not in RECORDS and f not in drawn]
    if not kept:
        raise UserError(f"{folder} has no pictures.")
    return kept


def asked_of(file: Path) -> Asked | None:
    """What the asked.json beside a picture, or one folder up, says of it."""
    for folder in (file.parent, file.parent.parent):
        if (folder / "asked.json").is_file():
            asked = from_sampling(folder).asked
            return next((each for each in asked if each.file.resolve() == file.resolve()), None)
    return None


# --- reading them -------------------------------------------------------------------------------------------


@dataclass
class Reading:
    """Reads pictures in batches of one size; what cannot be judged is named and left out, or stops all."""

    pictures: Pictures
    strict: bool = False
    skipped: dict[str, str] = field(init=False)  # file -> why

    def __post_init__(self):
        self.skipped = dict(self.pictures.left_out)
        if self.strict and self.skipped:
            raise UserError(next(iter(self.skipped.values())))

    def batches(self, at_once: int = AT_ONCE) -> Iterator[tuple[list[Asked], Tensor]]:
        """What was asked, and the pictures (B, 3, H, W) in [-1, 1]."""
        size = self.pictures.size or common_size([asked.file for asked in self.pictures.asked])
        batch: list[tuple[Asked, Tensor]] = []
        for asked in self.pictures.asked:
            picture = self.read(asked.file, size)
            if picture is not None:
                batch.append((asked, picture))
            if len(batch) == at_once:
                yield stacked(batch)
                batch = []
        if batch:
            yield stacked(batch)

    def read(self, file: Path, size: tuple[int, int] | None) -> Tensor | None:
        try:
            return read_picture(file, size)
        except UserError as error:
            if self.strict:
                raise
            self.skipped[str(file)] = str(error)
            return None


def stacked(batch: list[tuple[Asked, Tensor]]) -> tuple[list[Asked], Tensor]:
    return [asked for asked, _ in batch], to_float(torch.stack([picture for _, picture in batch]))


def read_picture(file: Path, size: tuple[int, int] | None = None) -> Tensor:
    """An 8-bit colour picture (3, H, W), of `size` (width, height) if given, or one sentence."""
    image = open_image(file)
    if image.mode in GREY or image.mode.startswith("I;"):
        raise UserError(f"{file} is grey-scale, and colours cannot be judged without colour.")
    if min(image.size) < SMALLEST:
        raise UserError(f"{file} is {shown(image.size)}; the judge needs at least {SMALLEST} pixels a side.")
    if size is not None and image.size != size:
        raise UserError(f"{file} is {shown(image.size)} where the others are {shown(size)}.")
    return load_png(file)


def common_size(files: Sequence[Path]) -> tuple[int, int] | None:
    """The size most pictures have, by a look at their heads."""
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
