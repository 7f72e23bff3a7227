"""`tessera render` draws scenes into files."""

import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
import tyro
from torch import Tensor

from tessera import console
from tessera.cli.options import File, OnDevice, Text, Whole, WithDetails
from tessera.config import parse_range
from tessera.devices import pick_device
from tessera.errors import UserError
from tessera.files import sha256
from tessera.plots.image_grid import image_grid
from tessera.provenance import provenance
from tessera.render.image_io import parse_size, save_png, to_uint8, width_height
from tessera.render.render import Quality
from tessera.render.renderers import Renderer
from tessera.render.scene_folder import SceneFolderWriter, distinct_names, image_name
from tessera.render.shards import ShardFolder, images_per_shard, write_shards
from tessera.rows import plural
from tessera.sampling.prompts import parse_locations
from tessera.scenes.batch import SceneBatch
from tessera.scenes.clevr import read_entries
from tessera.scenes.placement import LocationWarning, scenes_at
from tessera.scenes.raycast import ImageFrame
from tessera.scenes.sampling import Scenes, Spacing
from tessera.scenes.visibility import Visibility
from tessera.scenes.vocabulary import COLOR_NAMES, MATERIALS, SHAPES, SIZES
from tessera.version import __version__

_DRAWN_BY_DEFAULT = 16
_SHEET_MOST = 100  # images on a contact sheet
# Options that draw scenes; those of a file are as they are.
_CHOICES_OF_DRAWN_SCENES = (
    "objects", "locations", "shapes", "colors", "materials", "sizes",
    "hold_out", "spacing", "visibility", "no_jitter", "seed",
)  # fmt: skip
_Take = Callable[[int, int], SceneBatch]  # (first, how many)


@dataclass(frozen=True)
class Source:
    """Scenes in a fixed order, to be taken a stretch at a time."""

    count: int
    take: _Take
    names: Sequence[str]  # file names of the images
    settings: dict[str, Any]  # what makes these scenes these, for the record


@dataclass(frozen=True, kw_only=True)
class Render(OnDevice, WithDetails):
    """Draw scenes as images with masks and a scene file in the official CLEVR layout."""

    #: Folder for images/, masks/ and scenes.json, or for shards. An earlier render there is replaced, other images are refused.
    out: Path
    #: Number of images (default 16, or all scenes of --scenes).
    count: Whole = None
    #: Objects per image: a number or a range.
    objects: str = "1-3"
    #: Size of the images in pixels: 128 is a square to which the 4:3 frame is squeezed, 320x240 has square pixels.
    size: str = "128"
    #: Draw the scenes of this CLEVR scene file instead of new ones.
    scenes: File = None
    #: Random seed; scene i depends on the seed and i only.
    seed: int = 0
    #: First scene of the stream, or of --scenes.
    start: tyro.conf.Fixed[int] = 0
    #: Put one object at each of these locations of the image, such as "0.65,0.65 0.25,0.65".
    locations: tuple[str, ...] = ()
    #: Shapes to draw from.
    shapes: tyro.conf.Fixed[tuple[str, ...]] = SHAPES
    #: Colors to draw from.
    colors: tuple[str, ...] = COLOR_NAMES
    #: Materials to draw from.
    materials: tyro.conf.Fixed[tuple[str, ...]] = MATERIALS
    #: Sizes of objects to draw from.
    sizes: tyro.conf.Fixed[tuple[str, ...]] = tuple(SIZES)
    #: Combinations that never occur, such as "red cube" "small metal sphere".
    hold_out: tuple[str, ...] = ()
    #: Least distance between objects; 11 or 12 objects hardly fit the official rule.
    spacing: tyro.conf.Fixed[Spacing] = "official"
    #: How to ensure that every object is visible: by an estimate, by counting pixels, or not at all.
    visibility: tyro.conf.Fixed[Visibility] = "exact"
    #: Leave camera and lamps where they are, rather than moving them a little for each scene.
    no_jitter: tyro.conf.Fixed[bool] = False
    #: Write depth maps too: 16-bit PNGs, a thousandth of a world unit per level.
    depth: bool = False
    #: Write sheet.png too, a grid of the first images, at most 100.
    sheet: bool = False
    #: Write safetensors shards instead, each of so many images (4096) or bytes (256MB); the same command carries on.
    shards: Text = None
    #: Quality of the renderer: true is closest to Blender, fast is fastest.
    quality: Quality = "true"
    #: Images rendered at once.
    batch: tyro.conf.Fixed[Whole] = None

    def run(self) -> None:
        began = time.perf_counter()
        renderer = self.renderer()
        write = self.write_shards if self.shards else self.write_folder
        with warnings.catch_warnings():  # about odd locations, each once and as a plain line
            warnings.simplefilter("default", LocationWarning)
            warnings.showwarning = lambda message, *_: console.say(f"note: {message}")
            source = self.source(renderer.device)
            with console.progress("drawing", source.count) as advance:
                what = write(source, renderer, advance)
        spent = time.perf_counter() - began
        width, height = width_height(renderer.size)
        images = f"{plural(source.count, 'image')} of {width}x{height}"
        console.say(f"Wrote {images} to {self.out}: {what} ({spent:.1f} s).")

    def renderer(self) -> Renderer:
        if self.batch is not None and self.batch < 1:
            raise UserError(f"At least one image is drawn at once, not {self.batch}.")
        layers = ("rgb", "mask", "depth") if self.depth else ("rgb", "mask")
        size = parse_size(self.size)
        return Renderer(size, layers, self.batch, pick_device(self.device), self.quality)

    def source(self, device: torch.device) -> Source:
        if self.count is not None and self.count < 1:
            raise UserError(f"The number of images must be positive, not {self.count}.")
        if self.start < 0:
            raise UserError(f"The first scene has number 0, so --start cannot be {self.start}.")
        if self.scenes is not None:
            return self.given_scenes(self.scenes)
        count = self.count or _DRAWN_BY_DEFAULT
        rules, take, settings = self.placed_scenes(device) if self.locations else self.drawn_scenes(device)
        take(0, 1)  # an impossible request is refused before anything is written
        settings = {"rules": vars(rules), "seed": self.seed, "start": self.start, **settings}
        return Source(count, take, [image_name(self.start + i) for i in range(count)], settings)

    def drawn_scenes(self, device: torch.device) -> tuple[Scenes, _Take, dict[str, Any]]:
        rules = self.rules(parse_range(self.objects, "objects"))

        def take(first: int, many: int) -> SceneBatch:
            try:
                return rules.draw(many, self.seed, self.start + first, device)
            except UserError as error:
                raise UserError(str(error).replace('spacing="relaxed"', "--set spacing=relaxed")) from error

        return rules, take, {}

    def placed_scenes(self, device: torch.device) -> tuple[Scenes, _Take, dict[str, Any]]:
        self.refuse(("objects", "spacing", "visibility"), "--locations")  # the locations alone decide
        locations = parse_locations(" ".join(self.locations))
        rules, aspect = self.rules((len(locations), len(locations))), ImageFrame.of(parse_size(self.size)).aspect

        def take(first: int, many: int) -> SceneBatch:
            stream: dict[str, Any] = {"count": many, "seed": self.seed, "start": self.start + first}
            return scenes_at(locations, rules=rules, aspect=aspect, device=device, **stream)

        return rules, take, {"locations": locations}

    def given_scenes(self, path: Path) -> Source:
        self.refuse(_CHOICES_OF_DRAWN_SCENES, "--scenes")
        entries = read_entries(path)
        last = None if self.count is None else self.start + self.count
        chosen = entries[self.start : last]
        if not chosen or (self.count is not None and len(chosen) < self.count):
            raise UserError(f"{path} has {len(entries)} scenes, too few for --start and --count.")
        batch = SceneBatch.stack([entry.scene for entry in chosen])
        names = distinct_names([entry.image for entry in chosen], self.start)
        settings = {"scenes": sha256(path), "start": self.start}
        return Source(len(chosen), lambda first, many: batch[first : first + many], names, settings)

    def rules(self, objects: tuple[int, int]) -> Scenes:
        looks = {name: words(getattr(self, name)) for name in ("shapes", "colors", "materials", "sizes")}
        return Scenes(
            objects=objects,
            **looks,
            held_out=tuple(tuple(combination.split()) for combination in self.hold_out),
            spacing=self.spacing,
            visibility=self.visibility,
            jitter=not self.no_jitter,
        )

    def refuse(self, options: Sequence[str], because: str) -> None:
        """An option that would be ignored is an error, not a surprise."""
        defaults = {f.name: f.default for f in fields(self)}
        for name in options:
            if getattr(self, name) != defaults[name]:
                raise UserError(f"--{name.replace('_', '-')} has no meaning together with {because}.")

    def write_folder(self, source: Source, renderer: Renderer, advance: Callable) -> str:
        writer = SceneFolderWriter(self.out, renderer.size, renderer.layers, source.names)
        shown: list[Tensor] = []
        for first in range(0, source.count, renderer.batch_size):
            scenes = source.take(first, min(renderer.batch_size, source.count - first))
            frame = renderer.render(scenes)
            writer.add(frame, scenes.unstack(), source.names[first : first + len(scenes)])
            shown.extend(to_uint8(frame["rgb"][: _SHEET_MOST - len(shown)]).cpu())
            advance(len(scenes))
        writer.close()
        return ", ".join(["images", "masks", *["depth"] * self.depth, "scenes.json", *self.lay_out(shown, source)])

    def write_shards(self, source: Source, renderer: Renderer, advance: Callable) -> str:
        width, height = width_height(renderer.size)
        per_image = width * height * (4 + 4 * self.depth)  # three bytes of color, one of mask, four of depth
        per_shard = min(source.count, images_per_shard(str(self.shards), per_image))

        def draw(first: int, many: int) -> dict[str, Tensor]:
            starts = range(first, first + many, renderer.batch_size)
            parts = [renderer.packed(source.take(i, min(renderer.batch_size, first + many - i))) for i in starts]
            return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}

        settings = {"tessera": __version__, **renderer.settings, **source.settings}
        record = provenance(renderer.device)
        shards = write_shards(self.out, draw, source.count, per_shard, settings, record, advance)
        folder = ShardFolder(self.out)
        shown = [folder[i].image for i in range(min(len(folder), _SHEET_MOST))] if self.sheet else []
        return ", ".join([f"{len(shards)} shards, manifest.json", *self.lay_out(shown, source)])

    def lay_out(self, images: Sequence[Tensor], source: Source) -> list[str]:
        """The image grid, if requested."""
        if not self.sheet:
            return []
        labels = [Path(name).stem.rpartition("_")[2] for name in source.names[: len(images)]]
        save_png(self.out / "sheet.png", image_grid(images, labels))
        return ["sheet.png"]


def words(given: Sequence[str]) -> tuple[str, ...]:
    """Words, whether separated by spaces or commas."""
    return tuple(word for group in given for word in group.replace(",", " ").split())
