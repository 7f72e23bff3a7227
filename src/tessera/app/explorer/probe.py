"""Influence of the input pixels (Eq. 9) and the conditions (Eq. 10) on one pixel of one image at one noise level."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from tessera.analysis.condition_influence import condition_influence
from tessera.analysis.pixel_influence import Pixel, pixel_influence, pixel_of, smallest_square, total_energy
from tessera.app.explorer.models import SessionModel
from tessera.app.explorer.requests import PixelProbeRequest
from tessera.app.explorer.sampling import Sampled
from tessera.errors import UserError


@dataclass(frozen=True)
class ProbeResult:
    """The influence on the pixel `at`."""

    at: Pixel
    sigma: float
    wanted: tuple[Any, ...]
    influence: Tensor  # (H, W)
    side90: int  # of the smallest square around it with 90% of the energy
    energy: float
    condition_influence: list[float]  # one per condition

    def record(self) -> dict[str, Any]:
        return {
            "row": self.at.row,
            "col": self.at.col,
            "sigma": self.sigma,
            "side90": self.side90,
            "energy": self.energy,
            "conditions": self.condition_influence,
        }


def probe(entry: SessionModel, sampled: Sampled, request: PixelProbeRequest) -> ProbeResult:
    """The noisy image of the requested step, in float32, with the denoiser that sampled it."""
    image, step = request.image, request.step
    if image >= len(sampled.prompts) or step >= request.steps:
        raise UserError(
            f"There is no image {image} at step {step}: {len(sampled.prompts)} were made in {request.steps} steps."
        )
    denoise = entry.denoiser(request.compose, request.radius)
    x = sampled.trajectory.x[step, image][None].to(entry.device)  # (1, C, H, W)
    sigma = float(sampled.trajectory.sigmas[step])
    at = pixel_of(request.at, *x.shape[-2:])
    wanted = sampled.prompts[image].wanted
    cond = entry.model.conditioner.at(wanted, device=entry.device)
    with entry.in_float32():
        influence = pixel_influence(denoise, x, sigma, cond, at=[at]).cpu()  # (1, 1, H, W)
        conditions: list[float] = []
        if wanted:
            maps = condition_influence(denoise, x, sigma, cond, entry.model.conditioner, wanted)  # (1, K, H, W)
            conditions = maps[0, :, at.row, at.col].tolist()
    side, energy = int(smallest_square(influence, [at])), float(total_energy(influence))
    return ProbeResult(at, sigma, wanted, influence[0, 0], side, energy, conditions)
