"""Which pixels (Eq. 9) and which conditions (Eq. 10) move one pixel of one picture at one noise level."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from tessera.denoiser.contract import Denoiser
from tessera.errors import UserError
from tessera.explorer.shelf import Exhibit
from tessera.explorer.ways import Way
from tessera.locality.conditions import condition_influence
from tessera.locality.pixels import Pixel, pixel_influence, pixel_of, smallest_square, total_energy


@dataclass(frozen=True)
class Probed:
    """What moves the pixel `at`."""

    at: Pixel
    sigma: float
    wanted: tuple[Any, ...]
    influence: Tensor  # (H, W)
    side90: int  # of the smallest square around it with 90% of the energy
    energy: float
    told: list[float]  # one per condition

    def record(self) -> dict[str, Any]:
        return {
            "row": self.at.row,
            "col": self.at.col,
            "sigma": self.sigma,
            "side90": self.side90,
            "energy": self.energy,
            "conditions": self.told,
        }


def probe(exhibit: Exhibit, way: Way, denoise: Denoiser, picture: int, step: int, place) -> Probed:
    """The picture as it was at that step, in float32."""
    steps, pictures = way.x.shape[:2]
    if picture >= pictures or step >= steps:
        raise UserError(
            f"There is no picture {picture} at step {step}: {pictures} were made in {steps} steps."
        )
    x = way.x[step, picture][None].to(exhibit.device)  # (1, C, H, W)
    at = pixel_of(place, *x.shape[-2:])
    wanted = way.asks[picture].wanted
    cond = exhibit.model.tell.at(wanted, device=exhibit.device)
    with exhibit.exactly():
        influence = pixel_influence(denoise, x, way.sigmas[step], cond, at=[at]).cpu()  # (1, 1, H, W)
        told = told_at(exhibit, denoise, x, way.sigmas[step], cond, wanted, at)
    side, energy = int(smallest_square(influence, [at])), float(total_energy(influence))
    return Probed(at, way.sigmas[step], wanted, influence[0, 0], side, energy, told)


def told_at(
    exhibit: Exhibit,
    denoise: Denoiser,
    x: Tensor,
    sigma: float,
    cond: Tensor,
    wanted: Sequence[Any],
    at: Pixel,
) -> list[float]:
    if not wanted:
        return []
    maps = condition_influence(denoise, x, sigma, cond, exhibit.model.tell, wanted)  # (1, K, H, W)
    return maps[0, :, at.row, at.col].tolist()
