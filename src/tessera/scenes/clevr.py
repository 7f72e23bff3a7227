"""Official CLEVR scene files, read and written.

Ours are official files with two more fields per scene, `camera` and `lights`; a file without them is taken to
show the stage without jitter.
"""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from tessera.errors import UserError
from tessera.files import read_json, reads, write_json
from tessera.scenes.batch import SceneBatch
from tessera.scenes.camera import BEHIND, CAMERA, RIGHT, project
from tessera.scenes.raycast import ImageFrame
from tessera.scenes.scene import Lights, Point, Scene, SceneObject
from tessera.scenes.vocabulary import WORDS

_LAMPS = {"key": "Lamp_Key", "fill": "Lamp_Fill", "back": "Lamp_Back"}
_RELATION_MARGIN = 0.2  # how much further along a direction another object must be to count
_DIRECTIONS = {
    "behind": (*BEHIND, 0.0),
    "front": (-BEHIND[0], -BEHIND[1], 0.0),
    "left": (-RIGHT[0], -RIGHT[1], 0.0),
    "right": (*RIGHT, 0.0),
    "above": (0.0, 0.0, 1.0),
    "below": (0.0, 0.0, -1.0),
}


class Entry(NamedTuple):
    """One scene of a file and the image that belongs to it."""

    scene: Scene
    image: str | None
    split: str | None


def read_scenes(path: str | Path) -> list[Scene]:
    """The scenes of an official file (or of one of ours, or of a single-scene file)."""
    return [entry.scene for entry in read_entries(path)]


@reads
def read_entries(path: str | Path) -> list[Entry]:
    """The scenes of a file with the names of their images."""
    content = read_json(Path(path))
    if isinstance(content, dict) and "objects" in content:
        return [_read_entry(content, str(path))]
    records = content.get("scenes") if isinstance(content, dict) else None
    if not isinstance(records, list):
        raise UserError(f"{path} is no CLEVR scene file: it has no list called `scenes`.")
    return [_read_entry(record, f"{path}: scene {i}") for i, record in enumerate(records)]


def _read_entry(record: Any, where: str) -> Entry:
    objects = need(record, "objects", where, lambda value: isinstance(value, list), "a list")
    parsed = tuple(_read_object(obj, f"{where}, object {k}") for k, obj in enumerate(objects))
    camera, lights = CAMERA, Lights()
    if "camera" in record:
        camera = _read_point(record["camera"], "location", f"{where}, camera")
    if "lights" in record:
        lamps = {name: need(record["lights"], lamp, f"{where}, lights") for name, lamp in _LAMPS.items()}
        points = {name: _read_point(lamps[name], "location", f"{where}, {lamp}") for name, lamp in _LAMPS.items()}
        lights = Lights(**points)
    named = {"image_filename": None, "split": None, **record}
    image, split = (need(named, field, where, _is_name, "a text") for field in ("image_filename", "split"))
    return Entry(Scene(parsed, camera, lights), image, split)


def _read_object(record: Any, where: str) -> SceneObject:
    words = {}
    for field in ("shape", "color", "material", "size"):
        known = WORDS[field]
        words[field] = need(record, field, where, known.__contains__, f"one of {', '.join(known)}")
    x, y, height = _read_point(record, "3d_coords", where)
    if height <= 0:
        raise UserError(f"{where}: field `3d_coords` must end in the object's half extent, not {height}.")
    # The generator calls this number degrees but turns the object by so many radians; so do we.
    rotation = float(need(record, "rotation", where, _is_number, "a number"))
    # Objects rest on the floor, so the height of the center is the half extent, exact where the word is not.
    return SceneObject(words["shape"], words["color"], words["material"], height, (x, y), rotation)


def _read_point(record: Any, field: str, where: str) -> Point:
    x, y, z = need(record, field, where, _is_point, "three numbers")
    return float(x), float(y), float(z)


def need(
    record: Any, field: str, where: str, fits: Callable[[Any], bool] = lambda value: True, what: str = "there"
) -> Any:
    """The field's value, or one sentence about why it will not do."""
    if not isinstance(record, dict):
        raise UserError(f"{where} must be a JSON object, not {type(record).__name__}.")
    if field not in record:
        raise UserError(f"{where}: field `{field}` is missing.")
    if not fits(record[field]):
        raise UserError(f"{where}: field `{field}` must be {what}, not {record[field]!r}.")
    return record[field]


def _is_name(value: Any) -> bool:
    return value is None or isinstance(value, str)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_point(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 3 and all(map(_is_number, value))


def write_scenes(
    path: str | Path,
    scenes: Sequence[Scene] | SceneBatch,
    size: int | tuple[int, int] = (320, 240),
    split: str = "tessera",
    image_names: Sequence[str] | None = None,
) -> None:
    """An official scene file for images of `size` (width, height), or for squares into which the 4:3 frame is squeezed."""
    scenes = scenes.unstack() if isinstance(scenes, SceneBatch) else scenes
    names = [f"CLEVR_{split}_{i:06d}.png" for i in range(len(scenes))] if image_names is None else image_names
    if len(names) != len(scenes):
        raise UserError(f"{len(scenes)} scenes need as many image names, not {len(names)}.")
    frame = ImageFrame.of(size)
    info = {"split": split, "version": "1.0", "width": frame.width, "height": frame.height}
    squeezed = {"squeezed_from": "4:3"} if isinstance(size, int) else {}
    records = [_scene_record(scene, i, frame, split, name) for i, (scene, name) in enumerate(zip(scenes, names))]
    write_json(Path(path), {"info": {**info, **squeezed}, "scenes": records})


def _scene_record(scene: Scene, index: int, frame: ImageFrame, split: str, image_name: str) -> dict[str, Any]:
    """One scene in official form, with the pixel coordinates of its objects, its camera and lamps."""
    locations = _pixel_coords(scene, frame)
    return {
        "split": split,
        "image_index": index,
        "image_filename": image_name,
        "objects": [_object_record(*pair) for pair in zip(scene.objects, locations, strict=True)],
        "directions": {name: list(vector) for name, vector in _DIRECTIONS.items()},
        "relationships": relationships(scene),
        "camera": {"location": list(scene.camera)},
        "lights": {lamp: {"location": list(getattr(scene.lights, name))} for name, lamp in _LAMPS.items()},
    }


def _object_record(obj: SceneObject, location: tuple[float, float, float]) -> dict[str, Any]:
    return {
        "shape": obj.shape,
        "size": obj.size_name,
        "material": obj.material,
        "color": obj.color,
        "3d_coords": list(obj.center),
        "rotation": obj.rotation,
        "pixel_coords": [round(location[0]), round(location[1]), location[2]],
        "pixel_coords_exact": list(location),
    }


def _pixel_coords(scene: Scene, frame: ImageFrame) -> list[tuple[float, float, float]]:
    """Where each center lies in the image: x, y in pixels, and depth."""
    if not len(scene):
        return []
    centers = torch.tensor([[obj.center for obj in scene.objects]], dtype=torch.float64)  # (1, N, 3)
    camera = torch.tensor([scene.camera], dtype=torch.float64)
    locations, depth = project(centers, camera, frame.aspect)
    return [(x * frame.width, y * frame.height, d) for (x, y), d in zip(locations[0].tolist(), depth[0].tolist())]


def relationships(scene: Scene) -> dict[str, list[list[int]]]:
    """For each ground direction and each object, the others that lie clearly that way of it."""

    def beyond(one: SceneObject, other: SceneObject, way: tuple[float, float, float]) -> bool:
        return sum(w * (b - a) for w, a, b in zip(way, one.center, other.center)) > _RELATION_MARGIN

    found: dict[str, list[list[int]]] = {}
    for name in ("behind", "front", "left", "right"):
        way, found[name] = _DIRECTIONS[name], []
        for one in scene.objects:  # an object is never beyond itself
            found[name].append([j for j, other in enumerate(scene.objects) if beyond(one, other, way)])
    return found
