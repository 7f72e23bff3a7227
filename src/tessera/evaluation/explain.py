"""A score drawn into its image: boxes around detections, rings at prompted locations, and the reason in words."""

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from tessera.evaluation.detection import Detection
from tessera.evaluation.matching import ImageScore, Location, is_well_formed
from tessera.evaluation.truth import image_aspect
from tessera.plots.image_grid import as_image
from tessera.sampling.prompts import Prompt
from tessera.scenes.camera import CAMERA, FOCAL, ground_point, project
from tessera.scenes.vocabulary import COLORS, SIZES

WIDE = 512  # pixels; smaller images are enlarged so that words fit
PANEL, LINE, FONT = 400, 18, 13
PAPER, INK = (255, 255, 255), (40, 40, 40)
GOOD, BAD, ODD = (20, 140, 60), (210, 30, 40), (220, 130, 0)
_AIR = 1.3  # a box is so much wider than the object's half extent: a cube may stand on edge
_NO_FLOOR = 11.0  # distance taken for an object that seems to float above the horizon


def draw_explanation(canvas: Tensor, score: ImageScore, prompt: Prompt | None = None) -> Tensor:
    """The image (3, H, W) with boxes, rings at the prompt's locations and a panel of words beside it, 8-bit."""
    image = enlarged(as_image(canvas))
    aspect = image_aspect(image.width, image.height)
    lines = words(score, prompt is not None)
    sheet = Image.new("RGB", (image.width + PANEL, max(image.height, LINE * (len(lines) + 1))), PAPER)
    sheet.paste(image, (0, 0))
    pen = ImageDraw.Draw(sheet)
    if prompt and prompt.locations:
        for location, found in zip(prompt.targets, score.found):
            ring(pen, image.size, location, GOOD if found else BAD)
    for number, detection in enumerate(score.detections):
        box(pen, image.size, detection, number + 1, _outline_of(number, score, prompt is not None), aspect)
    for number, (text, ink) in enumerate(lines):
        pen.text((image.width + 10, 8 + LINE * number), text, font=ImageFont.load_default(FONT), fill=ink)
    return torch.from_numpy(np.array(sheet)).permute(2, 0, 1)


def enlarged(image: Image.Image) -> Image.Image:
    factor = max(1, WIDE // image.width)
    return image.resize((image.width * factor, image.height * factor), Image.Resampling.NEAREST)


def words(score: ImageScore, prompted: bool) -> list[tuple[str, tuple[int, int, int]]]:
    """The lines of the panel and their colors."""
    lines = [
        (f"{number + 1}  {describe(detection)}", _outline_of(number, score, prompted))
        for number, detection in enumerate(score.detections)
    ]
    if not score.detections:
        lines.append(("nothing found", INK))
    if prompted:
        lines.append((f"{score.num_found} of {score.wanted} found, {score.extra} extra", INK))
        ink = GOOD if score.ok else BAD
        for reason in score.reason.split("; "):
            lines += [(part, ink) for part in _wrapped(reason)]
    if score.ood_score > 1:
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
    lines, line = [], ""
    for word in text.split(" "):
        if line and len(line) + 1 + len(word) > width:
            lines.append(line)
            line = "   " + word
        else:
            line = f"{line} {word}" if line else word
    return [*lines, line]


def _outline_of(number: int, score: ImageScore, prompted: bool) -> tuple[int, int, int]:
    """Green fills the prompt, red is extra, orange is half-drawn; without a prompt, the object's own color."""
    detection = score.detections[number]
    if not is_well_formed(detection):
        return ODD
    if not prompted:
        return COLORS[detection.color]
    return GOOD if number in {found for _, found in score.pairs} else BAD


def box(pen: ImageDraw.ImageDraw, size: tuple[int, int], detection: Detection, number: int, ink, aspect: float) -> None:
    (x, y), (half_x, half_y) = detection.location, half_sides(detection, aspect)
    width, height = size
    corners = ((x - half_x) * width, (y - half_y) * height, (x + half_x) * width, (y + half_y) * height)
    pen.rectangle(corners, outline=ink, width=2)
    pen.text((corners[0] + 3, corners[1] + 1), str(number), font=ImageFont.load_default(FONT), fill=ink)


def half_sides(detection: Detection, aspect: float) -> tuple[float, float]:
    """Half width and height in the image of an object of this size that stands on the floor there."""
    extent, camera = SIZES[detection.size], torch.tensor([CAMERA])
    floor = ground_point(torch.tensor([[detection.location]]), camera, extent, aspect)  # (1, 1, 2)
    center = torch.cat([floor, torch.full((1, 1, 1), extent)], dim=-1)
    depth = project(center, camera, aspect)[1].item()
    half = FOCAL * extent / (depth if np.isfinite(depth) and depth > 1 else _NO_FLOOR)
    return half * _AIR, half * _AIR * aspect


def ring(pen: ImageDraw.ImageDraw, size: tuple[int, int], location: Location, ink) -> None:
    column, row, radius = location[0] * size[0], location[1] * size[1], max(4, size[0] // 90)
    pen.ellipse((column - radius, row - radius, column + radius, row + radius), outline=ink, width=2)
    pen.point((column, row), fill=ink)
