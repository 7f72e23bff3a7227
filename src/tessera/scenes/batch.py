"""Many scenes as tensors: what samplers produce and renderers consume, on any device."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Self

import torch
from torch import Tensor

from tessera.scenes.scene import Lights, Scene, SceneObject
from tessera.scenes.vocabulary import COLOR_NAMES, MATERIALS, SHAPES


class Rows:
    """A dataclass of tensors that all have one row per sample; some may be None."""

    def __len__(self) -> int:
        return len(next(iter(vars(self).values())))

    def __getitem__(self, rows: slice | Tensor) -> Self:
        return self.map(lambda column: column[rows])

    def map(self, change: Callable[[Tensor], Tensor]) -> Self:
        return type(self)(*(None if column is None else change(column) for column in vars(self).values()))


@dataclass(frozen=True)
class SceneBatch(Rows):
    """B scenes of up to N objects. Rows beyond a scene's own objects have `present` False."""

    present: Tensor  # (B, N) bool
    shape: Tensor  # (B, N) long, index into SHAPES
    color: Tensor  # (B, N) long, index into COLOR_NAMES
    material: Tensor  # (B, N) long, index into MATERIALS
    size: Tensor  # (B, N) float, half extent
    xy: Tensor  # (B, N, 2) float, world
    rotation: Tensor  # (B, N) float, radians
    camera: Tensor  # (B, 3)
    key: Tensor  # (B, 3)
    fill: Tensor  # (B, 3)
    back: Tensor  # (B, 3)

    def to(self, device) -> "SceneBatch":
        return self.map(lambda tensor: tensor.to(device, non_blocking=True))

    @property
    def device(self) -> torch.device:
        return self.present.device

    @property
    def count(self) -> Tensor:
        """Objects per scene, (B,)."""
        return self.present.sum(-1)

    @property
    def center(self) -> Tensor:
        """World centers (B, N, 3): objects rest on the floor."""
        return torch.cat([self.xy, self.size[..., None]], dim=-1)

    @staticmethod
    def stack(scenes: "Sequence[Scene] | SceneBatch", device=None) -> "SceneBatch":
        """Tensors for a list of scenes (a batch passes through)."""
        if isinstance(scenes, SceneBatch):
            return scenes if device is None else scenes.to(device)
        slots = max((len(scene) for scene in scenes), default=0)
        rows = []
        for scene in scenes:
            rows.append([*map(_numbers, scene.objects), *[_NO_OBJECT] * (slots - len(scene))])
        objects = torch.tensor(rows, dtype=torch.float64).reshape(len(scenes), slots, len(_NO_OBJECT))
        present, shape, color, material, size, *_, rotation = objects.unbind(-1)
        stages = [(s.camera, s.lights.key, s.lights.fill, s.lights.back) for s in scenes]
        batch = SceneBatch(
            *(present.bool(), shape.long(), color.long(), material.long(), size.float()),
            *(objects[..., 5:7].float(), rotation.float()),
            *torch.tensor(stages, dtype=torch.float32).reshape(-1, 4, 3).unbind(1),
        )
        return batch if device is None else batch.to(device)

    def unstack(self) -> list[Scene]:
        """The scenes as plain data."""
        columns = {f.name: getattr(self, f.name).tolist() for f in fields(self)}
        scenes = []
        for b, present in enumerate(columns["present"]):
            row = {name: values[b] for name, values in columns.items()}
            objects = []
            for n in itertools.compress(itertools.count(), present):
                words = SHAPES[row["shape"][n]], COLOR_NAMES[row["color"][n]], MATERIALS[row["material"][n]]
                objects.append(SceneObject(*words, row["size"][n], tuple(row["xy"][n]), row["rotation"][n]))
            lights = Lights(tuple(row["key"]), tuple(row["fill"]), tuple(row["back"]))
            scenes.append(Scene(tuple(objects), tuple(row["camera"]), lights))
        return scenes


_NO_OBJECT = (False, 0, 0, 0, 1.0, 0.0, 0.0, 0.0)


def _numbers(obj: SceneObject) -> tuple[float, ...]:
    """Present, shape, color, material, size, x, y and rotation."""
    words = SHAPES.index(obj.shape), COLOR_NAMES.index(obj.color), MATERIALS.index(obj.material)
    return True, *words, obj.size, *obj.xy, obj.rotation
