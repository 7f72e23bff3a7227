"""A scene before any pixel: plain data that can be printed, compared, saved and drawn by any renderer."""

from dataclasses import dataclass, field

from tessera.errors import UserError
from tessera.scenes.camera import CAMERA
from tessera.scenes.vocabulary import SIZES, WORDS

Point = tuple[float, float, float]

# Lamps without jitter. Area lamps look at the origin; the sun never moves and is no part of a scene.
KEY = (6.446710, -2.905175, 4.258398)
FILL = (-4.671124, -4.013597, 3.011225)
BACK = (-1.168501, 2.646024, 5.815737)


@dataclass(frozen=True)
class SceneObject:
    """One object on the floor.

    Args:
        shape: `cube`, `sphere` or `cylinder`.
        color: one of CLEVR's eight colors, such as `red`.
        material: `rubber` or `metal`.
        size: half its extent: 0.7 for large objects, 0.35 for small ones.
        xy: where it stands on the floor, in world units.
        rotation: yaw in radians.

    Example:
        >>> import tessera
        >>> tessera.SceneObject("cube", "red", "metal", size=0.7, xy=(0.0, 1.0)).center
        (0.0, 1.0, 0.7)
    """

    shape: str
    color: str
    material: str
    size: float
    xy: tuple[float, float]
    rotation: float = 0.0

    def __post_init__(self):
        for name in ("shape", "color", "material"):
            if (word := getattr(self, name)) not in WORDS[name]:
                raise UserError(f"`{word}` is not one of {', '.join(WORDS[name])}.")
        if not self.size > 0:
            raise UserError(f"An object's size must be positive, not {self.size}.")

    @property
    def center(self) -> Point:
        """Objects rest on the floor, so the center is as high as the half extent."""
        return (*self.xy, self.size)

    @property
    def size_name(self) -> str:
        return min(SIZES, key=lambda name: abs(SIZES[name] - self.size))


@dataclass(frozen=True)
class Lights:
    """Where the three movable lamps hang, as world points."""

    key: Point = KEY
    fill: Point = FILL
    back: Point = BACK


@dataclass(frozen=True)
class Scene:
    """Objects on the floor, the camera and the lamps above; `tessera.render` makes an image of it.

    Args:
        objects: the objects, in any order; masks number them from 1.
        camera: position of the camera in world units.
        lights: positions of the three lamps.

    Example:
        >>> import tessera
        >>> cube = tessera.SceneObject("cube", "red", "metal", size=0.7, xy=(0.0, 1.0))
        >>> tessera.render([tessera.Scene((cube,))], size=32, layers=("mask",))["mask"].unique().tolist()
        [0, 1]
    """

    objects: tuple[SceneObject, ...] = ()
    camera: Point = CAMERA
    lights: Lights = field(default_factory=Lights)

    def __len__(self) -> int:
        return len(self.objects)
