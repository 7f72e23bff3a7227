"""One probe without the page, from options of the command line."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import torch
from pydantic import ValidationError
from torch import Tensor

from tessera.app.explorer.models import SessionModel
from tessera.app.explorer.probe import ProbeResult, probe
from tessera.app.explorer.requests import PixelProbeRequest, first_complaint
from tessera.app.explorer.sampling import finish, sampling
from tessera.errors import UserError
from tessera.models.loading import open_model, set_precision
from tessera.plots.figures import GAMMA, HEAT
from tessera.provenance import provenance
from tessera.render.image_io import save_png
from tessera.sampling.compose import ComposeMethod
from tessera.sampling.prompts import parse_colors, parse_locations

_ENLARGED = 8  # pixels of a heat map per pixel of the image


@dataclass(frozen=True)
class ProbeOptions:
    """A pixel of one of the images that a model makes for a prompt, and the step at which it is probed."""

    model: str
    at: str  # location of the pixel, such as 0.65,0.65
    step: int
    image: int = 0
    locations: str | None = None
    colors: str | None = None
    each: int = 1
    steps: int = 18
    seed: int = 0
    compose: ComposeMethod = "plain"
    radius: int = 2
    std: float | None = None
    images: str | None = None


@dataclass(frozen=True)
class _ProbeImages:
    """What the page shows of a probe."""

    denoised: Tensor  # (3, H, W) in [-1, 1]
    influence: Tensor  # (H, W)

    def save(self, folder: Path) -> None:
        save_png(folder / "denoised.png", self.denoised)
        save_png(folder / "influence.png", _heat_map(self.influence))


def probe_once(options: ProbeOptions, device: torch.device) -> tuple[dict[str, Any], _ProbeImages]:
    """The numbers and images of one click on the page."""
    model = open_model(options.model, options.std, options.images, device)
    set_precision(model, "auto", device)
    entry = SessionModel(Path(options.model).name, options.model, model, device)
    request = _request(options, entry)
    sampled = finish(sampling(entry, request, lambda step: None))
    found = probe(entry, sampled, request)
    denoised = sampled.denoised(request.image)[request.step]
    return _record(entry, request, found), _ProbeImages(denoised, found.influence)


def _request(options: ProbeOptions, entry: SessionModel) -> PixelProbeRequest:
    """The options as the page would have sent them."""
    at = parse_locations(options.at)
    if len(at) != 1:
        raise UserError("One location is probed, such as --at 0.65,0.65.")
    kind = {"locations": options.colors, "colors": options.locations, "none": options.colors or options.locations}
    if kind[entry.condition_kind]:
        raise UserError(f"{entry.name} is conditioned on {entry.condition_kind}.")
    try:
        return PixelProbeRequest(
            models=(entry.name,),
            locations=parse_locations(options.locations or ""),
            colors=parse_colors(options.colors or ""),
            seed=options.seed,
            each=options.each,
            steps=options.steps,
            compose=options.compose,
            radius=options.radius,
            image=options.image,
            step=options.step,
            at=at[0],
        )
    except ValidationError as error:
        raise UserError(first_complaint(error.errors())) from None


def _record(entry: SessionModel, request: PixelProbeRequest, found: ProbeResult) -> dict[str, Any]:
    return {
        "model": entry.name,
        "wanted": [want if isinstance(want, str) else list(want) for want in found.wanted],
        "seed": request.seed,
        "image": request.image,
        "step": request.step,
        "steps": request.steps,
        "compose": request.compose,
        **found.record(),
        "influence": found.influence.tolist(),
        "provenance": provenance(entry.device),
    }


def _heat_map(influence: Tensor) -> Tensor:
    """An influence map (H, W) in the colors of the figures, enlarged: (3, 8 H, 8 W), 8-bit."""
    level = (influence / influence.max().clamp(min=1e-30)).pow(GAMMA)
    inks = torch.tensor(matplotlib.colormaps[HEAT](torch.linspace(0, 1, 256).numpy())[:, :3])  # (256, 3)
    shown = (inks[(level * 255).round().long()] * 255).round().to(torch.uint8)  # (H, W, 3)
    return shown.permute(2, 0, 1).repeat_interleave(_ENLARGED, 1).repeat_interleave(_ENLARGED, 2)
