"""Reading size and color back from an image of a disc, without a trained network.

The ground is bright and every disc is dark in green, whatever its color, so the green channel alone segments
the disc; the rest is averages and one least-squares circle.
"""

from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from tessera.devices import in_double
from tessera.studies.swingby.circles import CirclesTask, averaged, blurred, disc, pixel_grid

_LEAST_CONTRAST = 0.15  # of green between ground and disc, below which there is no disc
_LEAST_AREA = 0.004  # share of the image: half of the smallest disc


class Measured(NamedTuple):
    """Measured discs; where `found` is False the other numbers are meaningless."""

    found: Tensor  # (B,) bool
    radius: Tensor  # (B,) in units of half the image
    color: Tensor  # (B, 3) in [0, 1]
    center: Tensor  # (B, 2) as (x, y) in [-1, 1]


def measure(images: Tensor, blur: float = 1.0) -> Measured:
    """Images (B, 3, H, W) in [-1, 1], whose discs have edges softened by `blur` pixels."""
    image = _smoothed((images.clamp(-1, 1).float() + 1) / 2)
    cover, contrast = _disc_cover(image[:, 1])
    center, apparent = _fit_circle(cover)
    found = (contrast >= _LEAST_CONTRAST) & (cover.mean((-2, -1)) >= _LEAST_AREA)
    table = (part.to(images.device) for part in _calibration(images.shape[-1], blur))
    radius, peak = _corrected(apparent, *table)
    # The core has a share `peak` of the disc's own color, and the rest of the ground's.
    ground = _mean_color(image, cover < 0.15)
    color = ground + (_core_color(image, cover) - ground) / peak[:, None]
    return Measured(found, radius, color.clamp(0, 1), center)


@lru_cache(maxsize=8)
def _calibration(size: int, blur: float) -> tuple[Tensor, Tensor, Tensor]:
    """Discs of known radius after the blur: apparent radius, true radius, cover of the core, (N,) each.

    A soft edge makes small discs larger and paler in the image.
    """
    steps = torch.linspace(-1, 1, 5)
    centers = torch.cartesian_prod(steps, steps) / size  # shifts within one pixel
    truth = torch.linspace(0.06, 0.45, 27)
    measured_radii, core = [], []
    for radius in truth:
        ideal = blurred(disc(centers, radius.expand(len(centers)), size), blur)
        ideal = _smoothed(ideal.expand(-1, 3, -1, -1))
        cover, _ = _disc_cover(1 - ideal[:, 1])
        measured_radii.append(_fit_circle(cover)[1].mean())
        core.append(_core_color(ideal, cover)[:, 0].mean())
    return torch.stack(measured_radii), truth, torch.stack(core)


def _corrected(apparent: Tensor, calibrated: Tensor, truth: Tensor, core: Tensor) -> tuple[Tensor, Tensor]:
    """True radius and cover of the core, linear between the calibrated radii; larger discs need no correction."""
    at = torch.searchsorted(calibrated, apparent.contiguous()).clamp(1, len(calibrated) - 1)
    below, above = calibrated[at - 1], calibrated[at]
    share = ((apparent - below) / (above - below)).clamp(0, 1)
    radius = truth[at - 1] + share * (truth[at] - truth[at - 1])
    peak = core[at - 1] + share * (core[at] - core[at - 1])
    large = apparent > calibrated[-1]
    shift = truth[-1] - calibrated[-1]
    return torch.where(large, apparent + shift, radius), torch.where(large, 1.0, peak)


def _smoothed(image: Tensor) -> Tensor:
    """Binomial 3 x 3 average: takes most of the pixel noise away and hardly moves an edge."""
    return averaged(image.flatten(0, 1)[:, None], image.new_tensor([0.25, 0.5, 0.25])).view_as(image)


def _disc_cover(green: Tensor) -> tuple[Tensor, Tensor]:
    """How much of each pixel the disc covers, (B, H, W) in [0, 1], and the contrast between ground and disc, (B,)."""
    flat = green.flatten(1)
    dark, bright = flat.quantile(0.005, dim=1), flat.quantile(0.98, dim=1)
    # The darkest pixels are the disc and the brightest the ground, unless one fills the image; averages over each
    # side of the middle then steady both levels against noise.
    middle = ((dark + bright) / 2)[:, None]
    ground = _side_mean(flat, flat >= middle, bright)
    core = _side_mean(flat, flat <= (0.75 * dark + 0.25 * bright)[:, None], dark)
    contrast = ground - core
    cover = (ground[:, None] - flat) / contrast.clamp(min=1e-6)[:, None]
    return cover.clamp(0, 1).view_as(green), contrast


def _side_mean(values: Tensor, chosen: Tensor, otherwise: Tensor) -> Tensor:
    """Mean of the chosen values of each row (B, N)."""
    count = chosen.sum(1)
    mean = (values * chosen).sum(1) / count.clamp(min=1)
    return torch.where(count > 0, mean, otherwise)


def _fit_circle(cover: Tensor) -> tuple[Tensor, Tensor]:
    """Center (B, 2) and radius (B,) of the disc, also when the frame cuts it.

    Along the edge of the disc x^2 + y^2 = 2 x0 x + 2 y0 y + c is linear in its unknowns; pixels weigh as much as the
    cover changes there, which is nothing along the frame.
    """
    x, y = pixel_grid(cover.shape[-1], cover.device)
    weight = (_edge_strength(cover) * _surroundings(cover)).flatten(1)  # (B, N)
    x, y = (part.expand(cover.shape[-2:]).reshape(1, -1) for part in (x, y))
    columns = in_double(torch.stack([2 * x, 2 * y, torch.ones_like(x)], dim=-1))  # (1, N, 3)
    square = in_double(x.square() + y.square())  # (1, N)
    weighted = columns * in_double(weight)[..., None]  # (B, N, 3)
    normal = weighted.mT @ columns + 1e-9 * torch.eye(3, device=columns.device, dtype=torch.float64)
    solved = torch.linalg.solve(normal, weighted.mT @ square[..., None])[..., 0]  # (B, 3)
    center = solved[:, :2]
    radius = (solved[:, 2] + center.square().sum(1)).clamp(min=0).sqrt()
    return center.float().to(cover.device), radius.float().to(cover.device)


def _edge_strength(cover: Tensor) -> Tensor:
    """Squared slope of the cover by central differences, zero on the frame: (B, H, W)."""
    slope = torch.zeros_like(cover)
    across = cover[:, 1:-1, 2:] - cover[:, 1:-1, :-2]
    down = cover[:, 2:, 1:-1] - cover[:, :-2, 1:-1]
    slope[:, 1:-1, 1:-1] = across.square() + down.square()
    return torch.where(slope > 0.05, slope, 0.0)  # what is flatter is noise


def _surroundings(cover: Tensor) -> Tensor:
    """True near the pixels that are mostly covered, so that noise far away does not affect the circle: (B, H, W)."""
    x, y = pixel_grid(cover.shape[-1], cover.device)
    inside = (cover > 0.5).float()
    area = inside.sum((-2, -1)).clamp(min=1)
    middle_x, middle_y = ((inside * part).sum((-2, -1)) / area for part in (x, y))
    away = (x - middle_x[:, None, None]).square() + (y - middle_y[:, None, None]).square()
    reach = (area / torch.pi).sqrt() * 2 / cover.shape[-1]  # radius of a disc of this area
    return away <= (1.3 * reach + 0.15).square()[:, None, None]


def _core_color(image: Tensor, cover: Tensor) -> Tensor:
    """Mean color where the disc covers nearly everything, (B, 3)."""
    return _mean_color(image, cover > 0.9 * cover.amax((1, 2), keepdim=True))


def _mean_color(image: Tensor, chosen: Tensor) -> Tensor:
    """Of the chosen pixels (B, H, W): (B, 3)."""
    weight = chosen.float()[:, None]
    return (image * weight).sum((-2, -1)) / weight.sum((-2, -1)).clamp(min=1)


def coordinates(measured: Measured, task: CirclesTask) -> Tensor:
    """Concept coordinates (blue, small) of each image, (B, 2): 0 and 1 at the means of the corners, clipped.

    An image without a disc has 1/2 for both.
    """
    blue = 0.5 + (measured.color[:, 2] - measured.color[:, 0]) / (2 * task.gap)
    small = 0.5 + (task.middle - measured.radius) / task.size_gap
    values = torch.stack([blue, small], dim=1).clamp(0, 1)
    return torch.where(measured.found[:, None], values, 0.5)
