"""What is truly in a picture, in the words of a finding: for rendered scenes and for folders of real renders."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tessera.errors import UserError
from tessera.files import read_json, resolve_inside
from tessera.judge.finding import Finding
from tessera.scenes.batch import SceneBatch
from tessera.scenes.camera import ASPECT, project
from tessera.scenes.folder import ClevrFolder, scene_files
from tessera.scenes.scene import Scene, Thing


def truths(scenes: Sequence[Scene] | SceneBatch, aspect: float = ASPECT) -> list[list[Finding]]:
    """One list per scene: its things at the places where a frame of this aspect shows their centres."""
    batch = SceneBatch.stack(scenes)
    places, _ = project(batch.center, batch.camera, aspect)  # (B, N, 2)
    shown, present = places.tolist(), batch.present.tolist()
    found = []
    for b, scene in enumerate(batch.unstack()):
        spots = [place for place, here in zip(shown[b], present[b]) if here]
        found.append([as_finding(thing, *spot) for thing, spot in zip(scene.things, spots)])
    return found


def as_finding(thing: Thing, x: float, y: float) -> Finding:
    return Finding((x, y), thing.color, thing.shape, thing.size_name, thing.material, 1.0, 1.0)


def picture_aspect(width: int, height: int) -> float:
    """Width over height of the frame a picture shows: its own, but square ones are the 4:3 frame squeezed."""
    return ASPECT if width == height else width / height


class ClevrTruth:
    """The truth of a folder of real renders.

    Where the file tells the camera, centres are projected with the picture's aspect; official files do
    not, so theirs come from `pixel_coords`.
    """

    def __init__(self, path: Path, split: str | None = None):
        self.folder = ClevrFolder(path, split)
        self.records = raw_records(self.folder.path, split)

    def __len__(self) -> int:
        return len(self.folder)

    def file(self, i: int) -> Path:
        """Where the picture is, or where it is missing."""
        try:
            return self.folder.find("images", i)
        except UserError:
            return resolve_inside(self.folder.path / "images", self.folder.entries[i].image)

    def things(self, i: int, size: tuple[int, int]) -> list[Finding]:
        """The things of picture i, which is `size` (width, height) in its file."""
        scene = self.folder.entries[i].scene
        if "camera" in self.records[i]:
            return truths([scene], picture_aspect(*size))[0]
        spots = [recorded_place(thing, size, f"{self.folder.path}: scene {i}") for thing in self.objects(i)]
        return [as_finding(thing, *spot) for thing, spot in zip(scene.things, spots)]

    def objects(self, i: int) -> list[dict[str, Any]]:
        return self.records[i]["objects"]


def raw_records(path: Path, split: str | None) -> list[dict[str, Any]]:
    """The scenes of a folder's files as they are written there, in the order of its entries."""
    contents = [read_json(file) for file in scene_files(path, split)]
    return [record for content in contents for record in content.get("scenes", [content])]


def recorded_place(thing: dict[str, Any], size: tuple[int, int], where: str) -> tuple[float, float]:
    try:
        x, y, _ = thing["pixel_coords"]
        return x / size[0], y / size[1]
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"{where} tells neither the camera nor usable `pixel_coords`.") from error
