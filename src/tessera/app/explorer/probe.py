"""Which pixels (Eq. 9) and which conditions (Eq. 10) move one pixel of one image at one noise level."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from tessera.analysis.condition_influence import condition_influence
from tessera.analysis.pixel_influence import Pixel, pixel_influence, pixel_of, smallest_square, total_energy
from tessera.app.explorer.models import SessionModel
from tessera.app.explorer.requests import Probing
from tessera.app.explorer.trajectories import Sampled
from tessera.errors import UserError
from tessera.models.contract import Denoiser


@dataclass(frozen=True)
class Probed:
    """What moves the pixel `at`."""

    at: Pixel
    sigma: float
    wanted: tuple[Any, ...]
    influence: Tensor  # (H, W)
    side90: int  # of the smallest square around it with 90% of the energy
    energy: float
    influence_of_conditions: list[float]  # one per condition

    def record(self) -> dict[str, Any]:
        return {
            "row": self.at.row,
            "col": self.at.col,
            "sigma": self.sigma,
            "side90": self.side90,
            "energy": self.energy,
            "conditions": self.influence_of_conditions,
        }


def probe(entry: SessionModel, sampled: Sampled, request: Probing) -> Probed:
    """The noisy image of the step asked for, in float32, with the denoiser that sampled it."""
    image, step = request.image, request.step
    if image >= len(sampled.prompts) or step >= request.steps:
        raise UserError(
            f"There is no image {image} at step {step}: {len(sampled.prompts)} were made in {request.steps} steps."
        )
    denoise = entry.denoiser(request.how, request.radius)
    x = sampled.trajectory.x[step, image][None].to(entry.device)  # (1, C, H, W)
    sigma = float(sampled.trajectory.sigmas[step])
    at = pixel_of(request.at, *x.shape[-2:])
    wanted = sampled.prompts[image].wanted
    cond = entry.model.conditioner.at(wanted, device=entry.device)
    with entry.exactly():
        influence = pixel_influence(denoise, x, sigma, cond, at=[at]).cpu()  # (1, 1, H, W)
        influence_of_conditions = condition_influence_at(entry, denoise, x, sigma, cond, wanted, at)
    side, energy = int(smallest_square(influence, [at])), float(total_energy(influence))
    return Probed(at, sigma, wanted, influence[0, 0], side, energy, influence_of_conditions)


def condition_influence_at(
    entry: SessionModel,
    denoise: Denoiser,
    x: Tensor,
    sigma: float,
    cond: Tensor,
    wanted: Sequence[Any],
    at: Pixel,
) -> list[float]:
    if not wanted:
        return []
    maps = condition_influence(denoise, x, sigma, cond, entry.model.conditioner, wanted)  # (1, K, H, W)
    return maps[0, :, at.row, at.col].tolist()
