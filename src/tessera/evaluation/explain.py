"""A score drawn into its image: boxes around detections, rings at prompted locations, and the reason in words."""

import textwrap

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from tessera.evaluation.detection import Detection
from tessera.evaluation.matching import ImageScore, Location, is_well_formed
from tessera.evaluation.truth import image_aspect
from tessera.plots.image_grid import as_image
from tessera.sampling.prompts import Prompt
from tessera.scenes.camera import ASPECT, CAMERA, FOCAL, ground_point, project
from tessera.scenes.vocabulary import COLORS, SIZES

_WIDE = 512  # pixels; smaller images are enlarged so that words fit
PANEL, _LINE, _FONT = 400, 18, 13
PAPER, INK = (255, 255, 255), (40, 40, 40)
GOOD, BAD, ODD = (20, 140, 60), (210, 30, 40), (220, 130, 0)
_INKS = {"good": GOOD, "bad": BAD, "odd": ODD}
_AIR = 1.3  # a box is so much wider than the object's half extent: a cube may stand on edge
_NO_FLOOR = 11.0  # distance taken for an object that seems to float above the horizon


def draw_explanation(canvas: Tensor, score: ImageScore, prompt: Prompt | None = None) -> Tensor:
    """The image (3, H, W) with boxes, rings at the prompt's locations and a panel of words beside it, 8-bit."""
    image = as_image(canvas)
    factor = max(1, _WIDE // image.width)
    image = image.resize((image.width * factor, image.height * factor), Image.Resampling.NEAREST)
    aspect = image_aspect(image.width, image.height)
    lines = words(score, prompt is not None)
    sheet = Image.new("RGB", (image.width + PANEL, max(image.height, _LINE * (len(lines) + 1))), PAPER)
    sheet.paste(image, (0, 0))
    pen = ImageDraw.Draw(sheet)
    if prompt and prompt.locations:
        for location, found in zip(prompt.targets, score.found):
            _ring(pen, image.size, location, GOOD if found else BAD)
    for number, detection in enumerate(score.detections):
        _box(pen, image.size, detection, number + 1, _ink_of(number, score, prompt is not None), aspect)
    for number, (text, ink) in enumerate(lines):
        pen.text((image.width + 10, 8 + _LINE * number), text, font=ImageFont.load_default(_FONT), fill=ink)
    return torch.from_numpy(np.array(sheet)).permute(2, 0, 1)


def words(score: ImageScore, prompted: bool) -> list[tuple[str, tuple[int, int, int]]]:
    """The lines of the panel and their colors."""
    lines = [
        (f"{number + 1}  {describe(detection)}", _ink_of(number, score, prompted))
        for number, detection in enumerate(score.detections)
    ]
    if not score.detections:
        lines.append(("nothing found", INK))
    if prompted:
        lines.append((f"{score.num_found} of {score.wanted} found, {score.extra} extra", INK))
        ink = GOOD if score.ok else BAD
        for reason in score.reason.split("; "):
            lines += [(part, ink) for part in _wrapped(reason)]
    if score.ood:
        lines.append((f"unlike the images the detector was trained on (score {score.ood_score:.1f} > 1)", ODD))
    return lines


def describe(detection: Detection) -> str:
    """`large red metal cube at (0.65, 0.25), sure 0.98`."""
    x, y = detection.location
    what = f"{detection.size} {detection.color} {detection.material} {detection.shape} at ({x:.2f}, {y:.2f})"
    flaw = "" if is_well_formed(detection) else ", half-drawn"
    return f"{what}, sure {detection.confidence:.2f}{flaw}"


def _wrapped(text: str, width: int = 56) -> list[str]:
    """A line cut at spaces, what follows indented."""
    return textwrap.wrap(text, width, subsequent_indent="   ", break_long_words=False, break_on_hyphens=False)


def outline_of(number: int, score: ImageScore) -> str:
    """How a detection is outlined: `good` fills the prompt, `bad` is extra, `odd` is half-drawn."""
    if not is_well_formed(score.detections[number]):
        return "odd"
    return "good" if number in {found for _, found in score.pairs} else "bad"


def _ink_of(number: int, score: ImageScore, prompted: bool) -> tuple[int, int, int]:
    """The color of the outline; without a prompt, the object's own."""
    outline = outline_of(number, score)
    return _INKS[outline] if prompted or outline == "odd" else COLORS[score.detections[number].color]


def box_edges(detection: Detection, aspect: float = ASPECT) -> tuple[float, float, float, float]:
    """Left, top, right and bottom of the box around an object, in [0, 1]."""
    (x, y), (half_x, half_y) = detection.location, half_sides(detection, aspect)
    return x - half_x, y - half_y, x + half_x, y + half_y


def _box(
    pen: ImageDraw.ImageDraw, size: tuple[int, int], detection: Detection, number: int, ink, aspect: float
) -> None:
    corners = tuple(edge * side for edge, side in zip(box_edges(detection, aspect), (*size, *size)))
    pen.rectangle(corners, outline=ink, width=2)
    pen.text((corners[0] + 3, corners[1] + 1), str(number), font=ImageFont.load_default(_FONT), fill=ink)


def half_sides(detection: Detection, aspect: float) -> tuple[float, float]:
    """Half width and height in the image of an object of this size that stands on the floor there."""
    extent, camera = SIZES[detection.size], torch.tensor([CAMERA])
    floor = ground_point(torch.tensor([[detection.location]]), camera, extent, aspect)  # (1, 1, 2)
    center = torch.cat([floor, torch.full((1, 1, 1), extent)], dim=-1)
    depth = project(center, camera, aspect)[1].item()
    half = FOCAL * extent / (depth if np.isfinite(depth) and depth > 1 else _NO_FLOOR)
    return half * _AIR, half * _AIR * aspect


def _ring(pen: ImageDraw.ImageDraw, size: tuple[int, int], location: Location, ink) -> None:
    column, row, radius = location[0] * size[0], location[1] * size[1], max(4, size[0] // 90)
    pen.ellipse((column - radius, row - radius, column + radius, row + radius), outline=ink, width=2)
    pen.point((column, row), fill=ink)
