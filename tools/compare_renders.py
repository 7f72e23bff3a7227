"""How close two sets of images of the same scenes are: PSNR, SSIM, centers and masks.

python tools/compare_renders.py tessera-true REFERENCE --size 128x128
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
import tyro
from rich.table import Table
from torch import Tensor
from torch.nn import functional as F

from _common import program
from tessera import console
from tessera.errors import UserError
from tessera.files import make_folder, read_json
from tessera.plots.image_grid import image_grid
from tessera.provenance import provenance
from tessera.render.image_io import (
    _RESIZE_FILTER,
    check_format,
    load_mask,
    load_png,
    parse_size,
    resize,
    save_image,
    width_height,
)
from tessera.render.shards import _MANIFEST, ShardFolder
from tessera.rng import generator
from tessera.scenes.camera import ASPECT, project
from tessera.stats import ratio_of_sums

WINDOW, SIGMA = 11, 1.5  # of the SSIM's Gaussian
BEST_PSNR = 100.0  # what two identical images are given, so that means stay finite
RESAMPLES = 2000
IMAGE_ENDINGS = (".png", ".jpg", ".jpeg")


# --- two images -------------------------------------------------------------------------------------------


def psnr(a: Tensor, b: Tensor) -> float:
    """Peak signal-to-noise ratio in dB of two 8-bit images over all channels, at most `BEST_PSNR`."""
    error = (a.double() - b.double()).square().mean().item()
    return BEST_PSNR if error == 0 else min(BEST_PSNR, 10 * float(np.log10(255**2 / error)))


def ssim(a: Tensor, b: Tensor) -> float:
    """Structural similarity (Wang et al. 2004) of two 8-bit images (3, H, W), mean over R, G, B and locations.

    Gaussian window of 11 pixels and sigma 1.5, range 255, K = (0.01, 0.03); locations whose window leaves the
    image do not count.
    """
    if min(a.shape[-2:]) < WINDOW:
        raise UserError(f"SSIM needs images of at least {WINDOW} pixels in each direction.")
    a, b = a.double(), b.double()
    mean_a, mean_b = blur(a), blur(b)
    var_a, var_b = blur(a * a) - mean_a**2, blur(b * b) - mean_b**2
    covariance = blur(a * b) - mean_a * mean_b
    c1, c2 = (0.01 * 255) ** 2, (0.03 * 255) ** 2
    likeness = (2 * mean_a * mean_b + c1) * (2 * covariance + c2)
    return (likeness / ((mean_a**2 + mean_b**2 + c1) * (var_a + var_b + c2))).mean().item()


def blur(image: Tensor) -> Tensor:
    """Gaussian average (C, H, W) -> (C, H - 10, W - 10), first down, then across."""
    steps = torch.arange(WINDOW, dtype=image.dtype) - WINDOW // 2
    weights = torch.exp(-steps.square() / (2 * SIGMA**2))
    weights = weights / weights.sum()
    down = F.conv2d(image[:, None], weights.view(1, 1, -1, 1))
    return F.conv2d(down, weights.view(1, 1, 1, -1))[:, 0]


def mask_ious(a: Tensor, b: Tensor, objects: int) -> list[float | None]:
    """Intersection over union of each object in two masks (H, W); None where neither shows it."""

    def iou(k: int) -> float | None:
        either = ((a == k) | (b == k)).sum().item()
        return ((a == k) & (b == k)).sum().item() / either if either else None

    return [iou(k) for k in range(1, objects + 1)]


def mask_centers(mask: Tensor, objects: int) -> list[tuple[float, float] | None]:
    """Mean (x, y) of each object's pixels, as shares of the image; None where it is not seen."""
    height, width = mask.shape

    def center(k: int) -> tuple[float, float] | None:
        rows, cols = (mask == k).nonzero(as_tuple=True)
        if not len(rows):
            return None
        return (cols.double().mean().item() + 0.5) / width, (rows.double().mean().item() + 0.5) / height

    return [center(k) for k in range(1, objects + 1)]


def center_errors(
    a: Sequence[tuple[float, float] | None], b: Sequence[tuple[float, float] | None], size: tuple[int, int]
) -> list[float | None]:
    """Distances in pixels of an image of `size` between locations given as shares of it."""
    return [
        float(np.hypot((p[0] - q[0]) * size[0], (p[1] - q[1]) * size[1])) if p and q else None for p, q in zip(a, b)
    ]


# --- folders ------------------------------------------------------------------------------------------------


class ImageSource(Protocol):
    """Images under names, with what else is known about them."""

    names: list[str]

    def image(self, name: str) -> Tensor: ...  # 8-bit (3, H, W)

    def mask(self, name: str) -> Tensor | None: ...  # (H, W)

    def centers(self, name: str) -> list[tuple[float, float] | None] | None: ...  # shares of the image

    def kind(self, name: str) -> str | None: ...


class ImageFolder:
    """A folder of images, or one with `images/`, and maybe `masks/` and `scenes.json`."""

    def __init__(self, path: Path):
        self.path = path
        self.images = path / "images" if (path / "images").is_dir() else path
        self.records, self.frame = scene_records(path / "scenes.json")
        found = sorted(p.name for p in self.images.iterdir() if p.suffix.lower() in IMAGE_ENDINGS)
        self.names = in_order_of(found, list(self.records))

    def image(self, name: str) -> Tensor:
        return load_png(self.images / name)

    def mask(self, name: str) -> Tensor | None:
        path = self.path / "masks" / Path(name).with_suffix(".png")
        return load_mask(path) if path.is_file() else None

    def centers(self, name: str) -> list[tuple[float, float] | None] | None:
        if name not in self.records:
            return None
        size = self.frame or self.image(name).shape[:0:-1]
        where = f"{self.path}: {name}"
        return [recorded_center(obj, size, where) for obj in self.records[name]["objects"]]

    def kind(self, name: str) -> str | None:
        return self.records.get(name, {}).get("kind")


def in_order_of(names: Sequence[str], known: Sequence[str]) -> list[str]:
    """Names as the scene file has them, then those it does not know."""
    location = {name: number for number, name in enumerate(known)}
    return sorted(names, key=lambda name: location.get(name, len(location)))


def scene_records(path: Path) -> tuple[dict[str, dict[str, Any]], tuple[int, int] | None]:
    """The scenes of a file by image name, and the image size their pixel coordinates refer to."""
    content = read_json(path) if path.is_file() else {"scenes": []}
    try:
        records = {record["image_filename"]: record for record in content["scenes"]}
        info = content.get("info", {})
        return records, (info["width"], info["height"]) if "width" in info and "height" in info else None
    except (KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{path} is no CLEVR scene file with named images ({error}).") from error


def recorded_center(obj: dict[str, Any], size: Sequence[int], where: str) -> tuple[float, float]:
    """The unrounded location where the file has it, else the official rounded one."""
    try:
        x, y, _ = obj.get("pixel_coords_exact") or obj["pixel_coords"]
        return x / size[0], y / size[1]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UserError(f"{where} has an object without usable pixel_coords.") from error


class ShardGallery:
    """A shard folder; an image's name is its number."""

    def __init__(self, path: Path):
        self.shards = ShardFolder(path)
        self.names = [f"{i:06d}.png" for i in range(len(self.shards))]
        self.sample = lru_cache(1)(lambda name: self.shards[int(Path(name).stem)])

    def image(self, name: str) -> Tensor:
        return self.sample(name).image

    def mask(self, name: str) -> Tensor | None:
        return self.sample(name).mask.long()

    def centers(self, name: str) -> list[tuple[float, float] | None] | None:
        scene = self.sample(name).scene
        points = torch.tensor([obj.center for obj in scene.objects], dtype=torch.float64).reshape(1, -1, 3)
        aspect = self.shards.settings.get("aspect", ASPECT)
        locations, _ = project(points, torch.tensor([scene.camera], dtype=torch.float64), aspect)
        return [(x, y) for x, y in locations[0].tolist()]

    def kind(self, name: str) -> str | None:
        return None


def open_gallery(path: Path) -> ImageSource:
    path = Path(path)
    if not path.is_dir():
        raise UserError(f"There is no folder {path}.")
    gallery = ShardGallery(path) if (path / _MANIFEST).is_file() else ImageFolder(path)
    if not gallery.names:
        raise UserError(f"{path} holds no images.")
    return gallery


# --- comparing ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Likeness:
    """One image in both folders. Lists have one number per object; center errors are in pixels."""

    name: str
    kind: str | None
    psnr: float
    ssim: float
    center_error: list[float | None] = field(default_factory=list)  # of the scene files' pixel coordinates
    mask_center_error: list[float | None] = field(default_factory=list)  # of the masks' centroids
    mask_iou: list[float | None] = field(default_factory=list)


MEASURES = ("psnr", "ssim", "center_error", "mask_center_error", "mask_iou")


def shared_names(a: ImageSource, b: ImageSource, where: tuple[Path, Path], subset: bool) -> list[str]:
    """Names in both folders; a name that is in one only is an error unless a subset is wanted."""
    for one, other, folder in ((a, b, where[1]), (b, a, where[0])):
        missing = sorted(set(one.names) - set(other.names))
        if missing and not subset:
            raise UserError(f"{folder} lacks {missing[0]}; --subset compares only what both have.")
    names = [name for name in a.names if name in set(b.names)]
    if not names:
        raise UserError(f"{where[0]} and {where[1]} have no image name in common.")
    return names


def picked(names: Sequence[str], pick: str | None) -> list[str]:
    """The names under the numbers `3,9,54`, or every second one from the first on: `1::2`."""
    if pick is None:
        return list(names)
    try:
        if ":" in pick:
            chosen = list(names)[slice(*(int(word) if word else None for word in pick.split(":")))]
        else:
            chosen = [names[int(word)] for word in pick.replace(",", " ").split()]
    except (ValueError, TypeError):
        raise UserError(f"`{pick}` picks nothing; write numbers such as 3,9,54 or a step such as 1::2.") from None
    except IndexError:
        raise UserError(f"`{pick}` picks beyond the {len(names)} images, numbered from 0.") from None
    if not chosen:
        raise UserError(f"`{pick}` picks none of the {len(names)} images.")
    return chosen


def compare(
    a: Path,
    b: Path,
    size: tuple[int, int] | None = None,
    subset: bool = False,
    on_image: Callable[[], Any] = lambda: None,
    pick: str | None = None,
) -> list[Likeness]:
    """Every image of folder `a` beside the one of the same name in `b`, both reduced to `size` if given."""
    first, second = open_gallery(a), open_gallery(b)
    found: list[Likeness] = []
    expected = size
    for name in picked(shared_names(first, second, (a, b), subset), pick):
        pair = first.image(name), second.image(name)
        expected = expected or frame_size(pair[1])
        images = [fitted(image, size, expected, name, folder) for image, folder in zip(pair, (a, b))]
        kind = second.kind(name) or first.kind(name)
        objects = object_measures(first, second, name, frame_size(pair[1]))
        found.append(Likeness(name, kind, psnr(*images), ssim(*images), **objects))
        on_image()
    return found


def frame_size(image: Tensor) -> tuple[int, int]:
    return image.shape[-1], image.shape[-2]


def fitted(image: Tensor, size: tuple[int, int] | None, expected: tuple[int, int], name: str, folder: Path) -> Tensor:
    """The image at the wanted size; without one, all images must already have the same."""
    if size:
        return resize(image, size)
    if frame_size(image) != expected:
        has, wants = ("x".join(map(str, numbers)) for numbers in (frame_size(image), expected))
        raise UserError(f"{name} in {folder} is {has}, not {wants}; --size reduces all images to one size.")
    return image


def object_measures(a: ImageSource, b: ImageSource, name: str, size: tuple[int, int]) -> dict[str, list[float | None]]:
    """What can be said about each object, in pixels of the second folder's image."""
    measures: dict[str, list[float | None]] = {}
    here, there = a.centers(name), b.centers(name)
    if here is not None and there is not None:
        if len(here) != len(there):
            raise UserError(f"{name} has {len(here)} objects in one folder and {len(there)} in the other.")
        measures["center_error"] = center_errors(here, there, size)
    mine, theirs = a.mask(name), b.mask(name)
    if mine is not None and theirs is not None:
        counts = [len(known) for known in (here, there) if known is not None]
        objects = counts[0] if counts else int(max(mine.max(), theirs.max()))
        measures |= mask_measures(mine, theirs, objects, size)
    return measures


def resize_mask(masks: Tensor, size: tuple[int, int]) -> Tensor:
    """Instance masks (..., H, W) at (width, height): the number under each new pixel's center."""
    width, height = size
    rows, cols = (((torch.arange(new) + 0.5) * old / new).long() for new, old in zip((height, width), masks.shape[-2:]))
    return masks[..., rows[:, None], cols]


def mask_measures(a: Tensor, b: Tensor, objects: int, size: tuple[int, int]) -> dict[str, list[float | None]]:
    """Masks are compared at their own size; where they differ, the first takes the second's."""
    same = a if a.shape == b.shape else resize_mask(a, (b.shape[1], b.shape[0]))
    centers = mask_centers(a, objects), mask_centers(b, objects)
    return {"mask_iou": mask_ious(same, b, objects), "mask_center_error": center_errors(*centers, size)}


# --- side by side -------------------------------------------------------------------------------------------


def side_by_side(a: Path, b: Path, pick: str | None = None, gain: float = 4) -> Tensor:
    """One 8-bit sheet: the images of `b`, under them those of `a`, then `gain` times their difference."""
    first, second = open_gallery(a), open_gallery(b)
    names = picked(shared_names(first, second, (a, b), True), pick)
    theirs = [second.image(name) for name in names]
    ours = [fitted(first.image(name), None, frame_size(theirs[0]), name, a) for name in names]
    apart = [magnified(mine, other, gain) for mine, other in zip(ours, theirs, strict=True)]
    titles = folder_name(b), folder_name(a), f"difference x {gain:g}"
    labels = [title for title in titles for _ in names]
    return image_grid([*theirs, *ours, *apart], labels, columns=len(names))


def magnified(a: Tensor, b: Tensor, gain: float) -> Tensor:
    """|a - b| of two 8-bit images, `gain` times as bright."""
    return ((a.float() - b.float()).abs() * gain).clamp(0, 255).to(torch.uint8)


def folder_name(path: Path) -> str:
    """The last part of a path: what a record should keep of it."""
    return Path(path).resolve().name


# --- means with intervals -----------------------------------------------------------------------------------


def summary(found: Sequence[Likeness], seed: int = 0) -> dict[str, dict[str, Any]]:
    """Each measure's mean with a 95% bootstrap interval; what was never measured is left out."""
    means = {name: mean_with_interval([values(row, name) for row in found], seed) for name in MEASURES}
    return {name: mean for name, mean in means.items() if mean is not None}


def values(row: Likeness, measure: str) -> list[float]:
    known = getattr(row, measure)
    return [value for value in (known if isinstance(known, list) else [known]) if value is not None]


def mean_with_interval(images: Sequence[Sequence[float]], seed: int) -> dict[str, Any] | None:
    """Mean over all values; images, whose objects are not independent, are resampled as a whole."""
    kept = [numbers for numbers in images if len(numbers)]
    if not kept:
        return None
    found = ratio_of_sums(list(map(sum, kept)), list(map(len, kept)), generator(seed), RESAMPLES)
    ends = {"min": min(map(min, kept)), "max": max(map(max, kept))}
    return {**found.to_dict(), **ends}


def report(found: Sequence[Likeness], seed: int = 0) -> dict[str, Any]:
    """Means over everything and over each kind of scene, and every image's own numbers."""
    kinds = sorted({row.kind for row in found if row.kind})
    return {
        "images": len(found),
        "all": summary(found, seed),
        "kinds": {kind: summary([row for row in found if row.kind == kind], seed) for kind in kinds},
        "per_image": [asdict(row) for row in found],
    }


# --- the program ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CompareRenders:
    """How close two folders of images (or shards) of the same scenes are: PSNR, SSIM, centers, masks.

    Images are matched by file name and numbered as in the scene file. SSIM is the mean over R, G and B.
    Center errors are in pixels of the second folder's images.
    """

    a: tyro.conf.Positional[Path]
    """Folder of images, with masks/ and scenes.json if it has them."""
    b: tyro.conf.Positional[Path]
    """Folder to compare with, such as real renders."""
    size: str | None = None
    """Reduce all images to this size first, such as 128x128."""
    subset: bool = False
    """Compare what both folders have, although one has more."""
    pick: str | None = None
    """Only these images, counted from 0: 3,9,54 or, for every second one, 1::2."""
    side_by_side: Path | None = None
    """Draw the images of B, those of A and four times their difference into this image, .png or .webp."""
    seed: int = 0
    """Seed of the bootstrap intervals."""
    json: bool = False
    """Print one JSON object."""
    out: Path | None = None
    """Write the JSON object to this file too."""

    def run(self) -> None:
        if self.side_by_side:
            check_format(self.side_by_side)
        size = width_height(parse_size(self.size)) if self.size else None
        with console.progress("comparing", None) as advance:
            found = compare(self.a, self.b, size, self.subset, advance, self.pick)
        record = {
            "a": folder_name(self.a),
            "b": folder_name(self.b),
            "pick": self.pick,
            "size": size,
            "resize": _RESIZE_FILTER if size else None,
            "ssim": "mean over R, G, B; Gaussian window 11, sigma 1.5",
            "seed": self.seed,
            **report(found, self.seed),
            "provenance": provenance(),
        }
        if self.side_by_side:
            make_folder(self.side_by_side.parent)
            save_image(self.side_by_side, side_by_side(self.a, self.b, self.pick))
        console.publish(record, self.json, self.out, likeness_table(record))


def likeness_table(record: dict[str, Any]) -> Table:
    """One row per measure, one column for all images and one per kind of scene."""
    columns = {"all": record["all"], **record["kinds"]}
    table = Table("measure", *columns, title=f"{record['images']} images, mean with 95% interval")
    for name in MEASURES:
        cells = [columns[column].get(name) for column in columns]
        if any(cells):
            shown = [f"{c['value']:.3f} [{c['low']:.3f}, {c['high']:.3f}]" if c else "-" for c in cells]
            table.add_row(name.replace("_", " "), *shown)
    return table


main = program(CompareRenders)

if __name__ == "__main__":
    main()
