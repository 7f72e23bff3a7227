"""Many scenes as tensors: what samplers produce and renderers consume, on any device."""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from tessera.scenes.scene import Lights, Scene, SceneObject
from tessera.scenes.vocabulary import COLOR_NAMES, MATERIALS, SHAPES


@dataclass(frozen=True)
class SceneBatch:
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

    def __len__(self) -> int:
        return self.present.shape[0]

    def __getitem__(self, rows: slice | Tensor) -> "SceneBatch":
        return self._map(lambda tensor: tensor[rows])

    def to(self, device) -> "SceneBatch":
        return self._map(lambda tensor: tensor.to(device, non_blocking=True))

    def _map(self, change) -> "SceneBatch":
        return SceneBatch(**{f.name: change(getattr(self, f.name)) for f in fields(self)})

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

        def per_object(value, blank, dtype):
            rows = []
            for scene in scenes:
                rows.append([*map(value, scene.objects), *[blank] * (slots - len(scene))])
            empty = (len(scenes), slots, *((2,) if isinstance(blank, tuple) else ()))
            return torch.tensor(rows, dtype=dtype, device=device).reshape(empty)

        def per_scene(value):
            return torch.tensor([value(s) for s in scenes], dtype=torch.float32, device=device).reshape(-1, 3)

        return SceneBatch(
            present=per_object(lambda t: True, False, torch.bool),
            shape=per_object(lambda t: SHAPES.index(t.shape), 0, torch.long),
            color=per_object(lambda t: COLOR_NAMES.index(t.color), 0, torch.long),
            material=per_object(lambda t: MATERIALS.index(t.material), 0, torch.long),
            size=per_object(lambda t: t.size, 1.0, torch.float32),
            xy=per_object(lambda t: t.xy, (0.0, 0.0), torch.float32),
            rotation=per_object(lambda t: t.rotation, 0.0, torch.float32),
            camera=per_scene(lambda s: s.camera),
            key=per_scene(lambda s: s.lights.key),
            fill=per_scene(lambda s: s.lights.fill),
            back=per_scene(lambda s: s.lights.back),
        )

    def unstack(self) -> list[Scene]:
        """The scenes as plain data."""
        rows = {f.name: getattr(self, f.name).tolist() for f in fields(self)}

        def scene(b: int) -> Scene:
            objects = tuple(
                SceneObject(
                    shape=SHAPES[rows["shape"][b][n]],
                    color=COLOR_NAMES[rows["color"][b][n]],
                    material=MATERIALS[rows["material"][b][n]],
                    size=rows["size"][b][n],
                    xy=tuple(rows["xy"][b][n]),
                    rotation=rows["rotation"][b][n],
                )
                for n in range(len(rows["present"][b]))
                if rows["present"][b][n]
            )
            lights = Lights(*(tuple(rows[name][b]) for name in ("key", "fill", "back")))
            return Scene(objects, tuple(rows["camera"][b]), lights)

        return [scene(b) for b in range(len(self))]
