"""A folder of drawn scenes: images/, masks/, maybe depth/, and scenes.json in the official layout."""

from collections.abc import Sequence
from pathlib import Path

from torch import Tensor

from tessera.errors import UserError
from tessera.files import make_folder, read_json, resolve_inside
from tessera.render.image_io import save_depth, save_mask, save_png
from tessera.scenes.clevr import write_scenes
from tessera.scenes.scene import Scene

_SPLIT = "tessera"
_FOLDERS = {"rgb": "images", "mask": "masks", "depth": "depth"}
_SAVE = {"rgb": save_png, "mask": save_mask, "depth": save_depth}


class SceneFolderWriter:
    """Writes images as they come, and the scene file when all are there."""

    def __init__(self, folder: Path, size: int | tuple[int, int], layers: Sequence[str], names: Sequence[str]):
        self.earlier = _earlier_files(folder, names)
        self.folder, self.size, self.layers = make_folder(folder), size, layers
        self.scenes: list[Scene] = []
        self.names: list[str] = []
        for layer in layers:
            make_folder(self.folder / _FOLDERS[layer])

    def add(self, frame: dict[str, Tensor], scenes: Sequence[Scene], names: Sequence[str]) -> None:
        """The layers of a batch (B, ...), its scenes and the images' file names."""
        for layer in self.layers:
            values = frame[layer].cpu()
            for value, name in zip(values, names, strict=True):
                _SAVE[layer](self.folder / _FOLDERS[layer] / name, value)
        self.scenes += scenes
        self.names += names

    def close(self) -> None:
        """Write the scene file; what an earlier render left, and this one did not write, goes."""
        write_scenes(self.folder / "scenes.json", self.scenes, self.size, _SPLIT, self.names)
        layers, names = {_FOLDERS[layer] for layer in self.layers}, set(self.names)
        for path in self.earlier:
            if path.parent.name not in layers or path.name not in names:
                path.unlink(missing_ok=True)


def _earlier_files(folder: Path, names: Sequence[str]) -> set[Path]:
    """Images of an earlier render that one of images `names` replaces; a folder with any others is refused."""
    there: list[Path] = []
    for part in _FOLDERS.values():
        there += sorted((folder / part).glob("[!.]*"))
    rendered = _rendered_names(folder / "scenes.json")
    # An interrupted render has written images but no scene file yet.
    interrupted = {name for name in names if name.startswith(f"CLEVR_{_SPLIT}_")}
    for path in there:
        if path.name not in rendered | interrupted:
            raise UserError(f"{path} is not of an earlier render, which could be replaced; choose another folder.")
    return {resolve_inside(folder, path.relative_to(folder)) for path in there if path.name in rendered}


def _rendered_names(path: Path) -> set[str]:
    """The images listed in our own scene file; none where there is no file."""
    if not path.exists():
        return set()
    content = read_json(path)
    try:
        if content["info"]["split"] == _SPLIT:
            return {Path(record["image_filename"]).name for record in content["scenes"]}
    except (KeyError, TypeError):
        pass
    raise UserError(f"{path} is not of an earlier render, which could be replaced; choose another folder.")


def image_name(number: int) -> str:
    return f"CLEVR_{_SPLIT}_{number:06d}.png"


def distinct_names(images: Sequence[str | None], start: int) -> list[str]:
    """File names as the scenes give them, without folders and as PNG; numbered ones if those will not do."""
    names = [Path(image or "").with_suffix(".png").name if image else "" for image in images]
    if all(names) and len(set(names)) == len(names):
        return names
    return [image_name(start + i) for i in range(len(images))]
