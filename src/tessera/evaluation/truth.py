"""What is truly in an image, in the words of a detection: for rendered scenes and for folders of real renders."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tessera.errors import UserError
from tessera.evaluation.detection import Detection
from tessera.files import read_json, resolve_inside
from tessera.render.clevr_folder import ClevrFolder, scene_files
from tessera.scenes.batch import SceneBatch
from tessera.scenes.camera import ASPECT, project
from tessera.scenes.scene import Scene, SceneObject


def truths(scenes: Sequence[Scene] | SceneBatch, aspect: float = ASPECT) -> list[list[Detection]]:
    """One list per scene: its objects at the locations where a frame of this aspect shows their centers."""
    batch = SceneBatch.stack(scenes)
    locations, _ = project(batch.center, batch.camera, aspect)  # (B, N, 2)
    shown, present = locations.tolist(), batch.present.tolist()
    found = []
    for b, scene in enumerate(batch.unstack()):
        spots = [location for location, here in zip(shown[b], present[b]) if here]
        found.append([_as_detection(obj, *spot) for obj, spot in zip(scene.objects, spots)])
    return found


def _as_detection(obj: SceneObject, x: float, y: float) -> Detection:
    return Detection(x, y, obj.color, obj.shape, obj.size_name, obj.material, 1.0, 1.0)


def image_aspect(width: int, height: int) -> float:
    """Width over height of the frame an image shows: its own, but square ones are the 4:3 frame squeezed."""
    return ASPECT if width == height else width / height


class ClevrTruth:
    """The truth of a folder of real renders.

    Where the file has a camera, centers are projected with the image's aspect; official files do
    not, so theirs come from `pixel_coords`.
    """

    def __init__(self, path: Path, split: str | None = None):
        self.folder = ClevrFolder(path, split)
        self.records = _raw_records(self.folder.path, split)

    def __len__(self) -> int:
        return len(self.folder)

    def file(self, i: int) -> Path:
        """Where the image is, or where it is missing."""
        try:
            return self.folder.find("images", i)
        except UserError:
            return resolve_inside(self.folder.path / "images", self.folder.entries[i].image)

    def objects(self, i: int, size: tuple[int, int]) -> list[Detection]:
        """The objects of image i, which is `size` (width, height) in its file."""
        scene = self.folder.entries[i].scene
        if "camera" in self.records[i]:
            return truths([scene], image_aspect(*size))[0]
        spots = [_recorded_location(obj, size, f"{self.folder.path}: scene {i}") for obj in self.records[i]["objects"]]
        return [_as_detection(obj, *spot) for obj, spot in zip(scene.objects, spots)]


def _raw_records(path: Path, split: str | None) -> list[dict[str, Any]]:
    """The scenes of a folder's files as they are written there, in the order of its entries."""
    contents = [read_json(file) for file in scene_files(path, split)]
    return [record for content in contents for record in content.get("scenes", [content])]


def _recorded_location(obj: dict[str, Any], size: tuple[int, int], where: str) -> tuple[float, float]:
    try:
        x, y, _ = obj["pixel_coords"]
        return x / size[0], y / size[1]
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"{where} has neither a camera nor usable `pixel_coords`.") from error
