"""A folder of drawn scenes: images/, masks/, maybe depth/, and scenes.json in the official layout."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from tessera.files import make_folder, write_json
from tessera.images.pictures import save_depth, save_mask, save_png, width_height
from tessera.scenes.clevr import pixel_coords, scene_record
from tessera.scenes.scene import Scene

SPLIT = "tessera"
FOLDERS = {"rgb": "images", "mask": "masks", "depth": "depth"}
SAVE = {"rgb": save_png, "mask": save_mask, "depth": save_depth}


class Album:
    """Writes pictures as they come, and the scene file when all are there."""

    def __init__(self, folder: Path, size: int | tuple[int, int], layers: Sequence[str]):
        self.folder, self.size, self.layers = make_folder(folder), size, layers
        self.records: list[dict[str, Any]] = []
        for layer in layers:
            make_folder(self.folder / FOLDERS[layer])

    def add(self, frame: dict[str, Tensor], scenes: Sequence[Scene], names: Sequence[str]) -> None:
        """The layers of a batch (B, ...), its scenes and the pictures' file names."""
        for layer in self.layers:
            values = frame[layer].cpu()
            for value, name in zip(values, names, strict=True):
                SAVE[layer](self.folder / FOLDERS[layer] / name, value)
        for scene, name in zip(scenes, names, strict=True):
            self.records.append(picture_record(scene, len(self.records), self.size, name))

    def close(self) -> None:
        width, height = width_height(self.size)
        info = {"split": SPLIT, "version": "1.0", "width": width, "height": height}
        squeezed = {"squeezed_from": "4:3"} if isinstance(self.size, int) else {}
        write_json(self.folder / "scenes.json", {"info": {**info, **squeezed}, "scenes": self.records})


def picture_name(number: int) -> str:
    return f"CLEVR_{SPLIT}_{number:06d}.png"


def picture_record(scene: Scene, index: int, size: int | tuple[int, int], name: str) -> dict[str, Any]:
    """The official record, with pixel coordinates of this very picture, rounded and exact."""
    places = picture_coords(scene, size)
    record = scene_record(scene, index, places, SPLIT, name)
    for thing, place in zip(record["objects"], places, strict=True):
        thing["pixel_coords_exact"] = list(place)
    return record


def picture_coords(scene: Scene, size: int | tuple[int, int]) -> list[tuple[float, float, float]]:
    """Pixel coordinates; in a squeezed picture those of the 4:3 frame, scaled with it."""
    if not isinstance(size, int):
        return pixel_coords(scene, size)
    return [(x * size / 4, y * size / 3, depth) for x, y, depth in pixel_coords(scene, (4, 3))]
