"""The few constants of the renderer that physics does not determine; `tools/fit_renderer.py` fits them."""

import json
from dataclasses import asdict, dataclass
from importlib import resources


@dataclass(frozen=True)
class RenderConstants:
    """Indirect light, in units of scene-linear radiance unless said otherwise."""

    stage_ambient: tuple[float, float, float] = (0.009, 0.004, 0.02)  # powers 0..2 of the stage parameter s
    wall_fade: float = 0.5  # how much of that is lost on the way up the wall
    floor_bounce: float = 0.8  # share of the floor's light that reaches what looks down at it
    sky: float = 0.012  # light from all other sides, on objects
    shade: float = 0.3  # how much of the stage's ambient light an object standing there takes away
    bleed: float = 0.1  # how much of an object's color falls back on the stage around it
    contact: float = 1.0  # how fast that fades with distance, in sizes
    metal_glow: float = 0.5  # light of a metal object seen in another, as a share of the floor's light
    sheen: float = 0.3  # rubber's reflection of its surroundings, as a share of the floor's light

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1) + "\n"


def load_constants() -> RenderConstants:
    """The fitted constants shipped with the package."""
    text = resources.files("tessera.render").joinpath("constants.json").read_text()
    values = json.loads(text)
    named = {name: tuple(v) if isinstance(v, list) else v for name, v in values.items()}
    return RenderConstants(**named)  # type: ignore[arg-type]
