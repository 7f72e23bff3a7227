"""A folder of images and scene files, as CLEVR_v1.0 or the generator lay it out, as a dataset."""

from pathlib import Path

from torch import Tensor

from tessera.errors import UserError
from tessera.files import resolve_inside
from tessera.render.image_io import load_mask, load_png, to_float
from tessera.scenes.clevr import Entry, read_entries
from tessera.scenes.scene import Scene


class ClevrFolder:
    """Images in `images/` (or its split folders), scenes in `scenes/` or `scenes.json`, masks in `masks/`.

    Released CLEVR images are 480x320, the generator's 320x240: the same view from side to side, less floor
    above and below. Project their scenes with the image's own aspect.
    """

    def __init__(self, path: str | Path, split: str | None = None):
        self.path = Path(path)
        if not self.path.is_dir():
            raise UserError(f"There is no folder {self.path}.")
        self.entries: list[Entry] = []
        for file in scene_files(self.path, split):
            self.entries += read_entries(file)
        for i, entry in enumerate(self.entries):
            if entry.image is None:
                raise UserError(f"{self.path}: scene {i} names no image (`image_filename`).")

    def __len__(self) -> int:
        return len(self.entries)

    def __getitem__(self, i: int) -> tuple[Tensor, Scene]:
        """Image (3, H, W) in [-1, 1] and its scene."""
        return self.image(i), self.entries[i].scene

    def image(self, i: int) -> Tensor:
        return to_float(load_png(self.find("images", i)))

    def mask(self, i: int) -> Tensor:
        """Instance mask (H, W): 0 floor, k = object k of the scene, counted from 1."""
        return load_mask(self.find("masks", i))

    def find(self, kind: str, i: int) -> Path:
        """The file of scene i's image or mask."""
        entry = self.entries[i]
        folders = [self.path / kind]
        if entry.split:
            folders.append(resolve_inside(self.path / kind, entry.split))
        for folder in folders:
            file = resolve_inside(folder, entry.image)
            if file.is_file():
                return file
        raise UserError(f"{self.path / kind} has no file {entry.image}.")


def scene_files(folder: Path, split: str | None) -> list[Path]:
    """The file of all scenes, or else the files of single scenes."""
    here = [folder / "scenes.json", folder / "CLEVR_scenes.json", *sorted(folder.glob("scenes/*.json"))]
    files = [file for file in here if file.is_file() and (split is None or f"_{split}_" in f"_{file.name}_")]
    whole = [file for file in files if file.stem.endswith("scenes")]
    if len(whole) > 1:
        raise UserError(f"{folder} has several splits; choose one of {', '.join(f.name for f in whole)}.")
    if not files:
        wanted = "no scene file" if split is None else f"no scene file of split `{split}`"
        raise UserError(f"{folder} has {wanted} (scenes.json or scenes/CLEVR_<split>_scenes.json).")
    return whole or files
