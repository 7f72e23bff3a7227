"""Influence of the input pixels (Eq. 9) and the conditions (Eq. 10) on one pixel of one image at one noise level."""

from typing import Any

from torch import Tensor

from tessera.analysis.condition_influence import condition_influence
from tessera.analysis.pixel_influence import pixel_influence, pixel_of, smallest_square, total_energy
from tessera.app.explorer.models import SessionModel
from tessera.app.explorer.requests import PixelProbeRequest
from tessera.app.explorer.sampling import Sampled
from tessera.errors import UserError


def probe(entry: SessionModel, sampled: Sampled, request: PixelProbeRequest) -> tuple[dict[str, Any], Tensor]:
    """The numbers of the probe, and the influence map (H, W) of the pixel.

    Of the noisy image of the requested step, in float32, with the denoiser that sampled it.
    """
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
    record = {
        "model": entry.name,
        "wanted": [want if isinstance(want, str) else list(want) for want in wanted],
        "image": image,
        "step": step,
        **at._asdict(),
        "sigma": sigma,
        "side90": int(smallest_square(influence, [at])),  # of the smallest square with 90% of the energy
        "energy": float(total_energy(influence)),
        "conditions": conditions,  # the influence of each
    }
    return record, influence[0, 0]
