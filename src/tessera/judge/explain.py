"""A verdict one can see: boxes around what was found, rings at what was asked, and the reasons in words."""

from collections.abc import Sequence

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from tessera.images.sheet import as_image
from tessera.judge.finding import Finding
from tessera.judge.matching import Place, Verdict, is_proper
from tessera.judge.truth import picture_aspect
from tessera.scenes.camera import CAMERA, FOCAL, ground_point, project
from tessera.scenes.vocabulary import COLORS, SIZES

WIDE = 512  # pixels; smaller pictures are enlarged so that words fit
PANEL, LINE, FONT = 400, 18, 13
PAPER, INK = (255, 255, 255), (40, 40, 40)
GOOD, BAD, ODD = (20, 140, 60), (210, 30, 40), (220, 130, 0)
AIR = 1.3  # a box is so much wider than the thing's half extent: a cube may stand on edge
NO_FLOOR = 11.0  # distance taken for a thing that seems to float above the horizon


def draw_explanation(
    picture: Tensor,
    findings: Sequence[Finding],
    verdict: Verdict | None = None,
    places: Sequence[Place] = (),
    strangeness: float = 0.0,
) -> Tensor:
    """The picture (3, H, W) with boxes, rings at `places` and a panel of words beside it, 8-bit."""
    image = enlarged(as_image(picture))
    aspect = picture_aspect(image.width, image.height)
    lines = words(findings, verdict, strangeness)
    sheet = Image.new("RGB", (image.width + PANEL, max(image.height, LINE * (len(lines) + 1))), PAPER)
    sheet.paste(image, (0, 0))
    pen = ImageDraw.Draw(sheet)
    filled = {wish for wish, _ in verdict.pairs} if verdict else set()
    for number, place in enumerate(places):
        ring(pen, image.size, place, GOOD if number in filled else BAD)
    for number, finding in enumerate(findings):
        box(pen, image.size, finding, number + 1, outline_of(number, finding, verdict), aspect)
    for number, (text, ink) in enumerate(lines):
        pen.text((image.width + 10, 8 + LINE * number), text, font=ImageFont.load_default(FONT), fill=ink)
    return torch.from_numpy(np.array(sheet)).permute(2, 0, 1)


def enlarged(image: Image.Image) -> Image.Image:
    factor = max(1, WIDE // image.width)
    return image.resize((image.width * factor, image.height * factor), Image.Resampling.NEAREST)


def words(
    findings: Sequence[Finding], verdict: Verdict | None, strangeness: float
) -> list[tuple[str, tuple[int, int, int]]]:
    """The lines of the panel and their colours."""
    lines = [
        (f"{number}  {describe(f)}", outline_of(number - 1, f, verdict))
        for number, f in enumerate(findings, 1)
    ]
    if not findings:
        lines.append(("nothing found", INK))
    if verdict:
        lines.append((f"{verdict.found} of {verdict.wanted} asked, {verdict.extra} extra", INK))
        ink = GOOD if verdict.ok else BAD
        lines += [(part, ink) for reason in verdict.reason.split("; ") for part in wrapped(reason)]
    if strangeness > 1:
        lines.append((f"this is not a scene I know (strangeness {strangeness:.1f} > 1)", ODD))
    return lines


def describe(finding: Finding) -> str:
    """`large red metal cube at (0.65, 0.25), sure 0.98`."""
    x, y = finding.place
    what = f"{finding.size} {finding.color} {finding.material} {finding.shape} at ({x:.2f}, {y:.2f})"
    flaw = "" if is_proper(finding) else ", half-drawn"
    return f"{what}, sure {finding.confidence:.2f}{flaw}"


def wrapped(text: str, width: int = 56) -> list[str]:
    """A line cut at spaces, what follows indented."""
    lines, line = [], ""
    for word in text.split(" "):
        if line and len(line) + 1 + len(word) > width:
            lines.append(line)
            line = "   " + word
        else:
            line = f"{line} {word}" if line else word
    return [*lines, line]


def outline_of(number: int, finding: Finding, verdict: Verdict | None) -> tuple[int, int, int]:
    """Green fills a wish, red is extra, orange is half-drawn; without a wish, the thing's own colour."""
    if not is_proper(finding):
        return ODD
    if verdict is None:
        return COLORS[finding.color]
    return GOOD if number in {found for _, found in verdict.pairs} else BAD


def box(
    pen: ImageDraw.ImageDraw, size: tuple[int, int], finding: Finding, number: int, ink, aspect: float
) -> None:
    (x, y), (half_x, half_y) = finding.place, half_sides(finding, aspect)
    width, height = size
    corners = ((x - half_x) * width, (y - half_y) * height, (x + half_x) * width, (y + half_y) * height)
    pen.rectangle(corners, outline=ink, width=2)
    pen.text((corners[0] + 3, corners[1] + 1), str(number), font=ImageFont.load_default(FONT), fill=ink)


def half_sides(finding: Finding, aspect: float) -> tuple[float, float]:
    """Half width and height in the picture of a thing of this size that stands on the floor there."""
    extent, camera = SIZES[finding.size], torch.tensor([CAMERA])
    floor = ground_point(torch.tensor([[finding.place]]), camera, extent, aspect)  # (1, 1, 2)
    center = torch.cat([floor, torch.full((1, 1, 1), extent)], dim=-1)
    depth = project(center, camera, aspect)[1].item()
    half = FOCAL * extent / (depth if np.isfinite(depth) and depth > 1 else NO_FLOOR)
    return half * AIR, half * AIR * aspect


def ring(pen: ImageDraw.ImageDraw, size: tuple[int, int], place: Place, ink) -> None:
    column, row, radius = place[0] * size[0], place[1] * size[1], max(4, size[0] // 90)
    pen.ellipse((column - radius, row - radius, column + radius, row + radius), outline=ink, width=2)
    pen.point((column, row), fill=ink)
