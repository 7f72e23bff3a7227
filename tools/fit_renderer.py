"""Fit the renderer's free constants (constants.json) to real renders; measure the fit on held-out renders.

python tools/fit_renderer.py REFERENCE --out src/tessera/render/constants.json
"""

from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
from tyro.conf import Positional

from _common import program
from tessera.console import progress, publish, say
from tessera.errors import UserError
from tessera.files import atomic
from tessera.provenance import provenance
from tessera.render.constants import RenderConstants

SHRINK = 2  # images are compared at half their size: noise falls, edges still count


@dataclass(frozen=True)
class FitRenderer:
    """Fit the few free constants of the renderer to a folder of real CLEVR renders with exact scenes.

    Every second image is fitted; the others say how good the fit is.
    """

    clevr: Positional[Path]
    """Folder with images/ and scenes.json (camera and lamp positions included)."""
    out: Path = Path("constants.json")
    """Where the fitted constants go."""
    rounds: int = 6
    """At most so many Gauss-Newton rounds."""
    json: bool = False
    """Print one JSON object."""

    def run(self) -> None:
        record = fit(self.clevr, self.out, self.rounds)
        say(f"wrote {self.out}")
        fitted, held_out = record["psnr_fitted"], record["psnr_held_out"]
        publish(record, self.json, None, f"mean PSNR {fitted:.2f} dB fitted, {held_out:.2f} dB held out")


def fit(folder: Path, out: Path, rounds: int) -> dict:
    """Least squares on display values with a robust loss, so that single highlights do not rule the fit."""
    from scipy.optimize import least_squares

    if rounds < 1:
        raise UserError(f"At least one round is needed, not {rounds}.")
    scenes, truth = _read(folder)
    start = _pack(RenderConstants())
    evaluations = rounds * (len(start) + 1)
    with progress("fitting", evaluations) as advance:

        def residuals(values: np.ndarray) -> np.ndarray:
            advance(note="")
            return (_draw(scenes[::2], truth.shape[2:], _unpack(values)) - truth[::2]).ravel()

        best = least_squares(
            residuals, start, diff_step=0.05, x_scale=np.abs(start), loss="soft_l1", f_scale=0.02, max_nfev=rounds
        )
    look = _unpack(best.x)
    with atomic(out) as temporary:
        temporary.write_text(look.to_json())
    error = _draw(scenes, truth.shape[2:], look) - truth
    psnr = -10 * np.log10(np.square(error).mean((1, 2, 3)))
    return {
        "look": {f.name: getattr(look, f.name) for f in fields(look)},
        "psnr_fitted": float(psnr[::2].mean()),
        "psnr_held_out": float(psnr[1::2].mean()),
        "images": len(scenes),
        "provenance": provenance(),
    }


def _read(folder: Path):
    """Scenes, and their images (B, 3, H, W) in [0, 1] at a fraction of their size."""
    from tessera.render.clevr_folder import ClevrFolder

    data = ClevrFolder(folder)
    if len(data) < 2:
        raise UserError(f"{folder} holds {len(data)} images; fitting needs at least two.")
    pairs = [data[i] for i in range(len(data))]
    if len({image.shape for image, _ in pairs}) > 1:
        raise UserError(f"{folder} holds images of several sizes; fitting needs all of one size.")
    images = np.stack([(image.numpy() + 1) / 2 for image, _ in pairs])  # (B, 3, H, W)
    b, c, h, w = images.shape
    if h % SHRINK or w % SHRINK:
        raise UserError(f"Images are compared at half their size, so {w}x{h} will not do: both must be even.")
    small = images.reshape(b, c, h // SHRINK, SHRINK, w // SHRINK, SHRINK).mean((3, 5))
    return [scene for _, scene in pairs], small


def _draw(scenes, size: tuple[int, int], look: RenderConstants) -> np.ndarray:
    from tessera.render.render import render

    height, width = size
    return (render(scenes, (width, height), quality="fast", look=look)["rgb"].numpy() + 1) / 2


def _pack(look: RenderConstants) -> np.ndarray:
    return np.concatenate([np.atleast_1d(getattr(look, f.name)) for f in fields(look)])


def _unpack(values: np.ndarray) -> RenderConstants:
    """The constants back from a flat vector; none of them may be negative."""
    rest, named = [float(v) for v in np.maximum(values, 0.0).round(6)], {}
    for f in fields(RenderConstants):
        default = getattr(RenderConstants(), f.name)
        named[f.name] = tuple(rest[: len(default)]) if isinstance(default, tuple) else rest[0]
        rest = rest[len(default) if isinstance(default, tuple) else 1 :]
    return RenderConstants(**named)  # type: ignore[arg-type]


main = program(FitRenderer)

if __name__ == "__main__":
    main()
