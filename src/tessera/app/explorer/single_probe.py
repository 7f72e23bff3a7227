"""One probe without the page, from options of the command line."""

from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from torch import Tensor

from tessera.app.explorer.models import open_session_model
from tessera.app.explorer.probe import probe
from tessera.app.explorer.requests import PixelProbeRequest, first_complaint
from tessera.app.explorer.sampling import finish, sampling
from tessera.errors import UserError
from tessera.plots.figures import heat_colors
from tessera.provenance import provenance
from tessera.sampling.prompts import parse_colors, parse_locations

_ENLARGED = 8  # pixels of a heat map per pixel of the image


def probe_once(
    source: str,
    device: torch.device,
    at: str,
    locations: str | None = None,
    colors: str | None = None,
    std: float | None = None,
    images: str | None = None,
    **more: Any,
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The numbers of one click on the page, and its images by name.

    `at` is the location of the pixel, such as 0.65,0.65; `more` are fields of a `PixelProbeRequest`.
    """
    entry = open_session_model(Path(source).name, source, device, std, images)
    pixels = parse_locations(at)
    if len(pixels) != 1:
        raise UserError("One location is probed, such as --at 0.65,0.65.")
    foreign = {"locations": colors, "colors": locations, "none": colors or locations}
    if foreign[entry.condition_kind]:
        raise UserError(f"{entry.name} is {entry.condition_words}.")
    prompt: dict[str, Any] = {"locations": parse_locations(locations or ""), "colors": parse_colors(colors or "")}
    try:
        request = PixelProbeRequest(models=(entry.name,), at=pixels[0], **prompt, **more)
    except ValidationError as error:
        raise UserError(first_complaint(error.errors())) from None
    sampled = finish(sampling(entry, request, lambda step: None))
    found, influence = probe(entry, sampled, request)
    how = {name: getattr(request, name) for name in ("seed", "steps", "compose")}
    record = {**found, **how, "influence": influence.tolist(), "provenance": provenance(device)}
    heat = heat_colors(influence).repeat_interleave(_ENLARGED, 1).repeat_interleave(_ENLARGED, 2)
    return record, {"denoised": sampled.denoised(request.image)[request.step], "influence": heat}
