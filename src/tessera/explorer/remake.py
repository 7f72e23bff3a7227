"""One probe without the page, from the options of `tessera explore probe`."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib
import torch
from pydantic import ValidationError
from torch import Tensor

from tessera.errors import UserError
from tessera.explorer.probe import Probed, probe
from tessera.explorer.requests import Probing, first_complaint
from tessera.explorer.shelf import Exhibit
from tessera.explorer.ways import Going
from tessera.images.pictures import save_png
from tessera.locality.figures import GAMMA, HEAT
from tessera.provenance import provenance
from tessera.sampler.asking import parse_colors, parse_places
from tessera.sampler.verbs import open_model, set_precision

if TYPE_CHECKING:
    from tessera.explorer.verbs import ExploreProbe

ENLARGED = 8  # pixels of a heat-map per pixel of the picture


@dataclass(frozen=True)
class Shown:
    """What the page shows of a probe."""

    denoised: Tensor  # (3, H, W) in [-1, 1]
    influence: Tensor  # (H, W)

    def save(self, folder: Path) -> None:
        save_png(folder / "denoised.png", self.denoised)
        save_png(folder / "influence.png", heat(self.influence))


def remade(options: "ExploreProbe", device: torch.device) -> tuple[dict[str, Any], Shown]:
    """The numbers and pictures behind one click."""
    model = open_model(options.model, options.std, options.images, device)
    set_precision(model, "auto", device)
    exhibit = Exhibit(Path(options.model).name, options.model, model, device)
    request = request_of(options, exhibit)
    going = Going(exhibit, request)
    for _ in going:
        pass
    way = going.way
    assert way is not None
    found = probe(exhibit, way, going.denoise, request.picture, request.step, request.at)
    return record_of(exhibit, request, found), Shown(
        way.clean[request.step, request.picture], found.influence
    )


def request_of(options: "ExploreProbe", exhibit: Exhibit) -> Probing:
    """The options as the page would have sent them."""
    at = parse_places(options.at)
    if len(at) != 1:
        raise UserError("One place is probed, such as --at 0.65,0.65.")
    kind = {"places": options.colors, "colors": options.places, "nothing": options.colors or options.places}
    if kind[exhibit.told]:
        raise UserError(f"{exhibit.name} is told {exhibit.told}, not the other.")
    try:
        return Probing(
            models=(exhibit.name,),
            places=parse_places(options.places or ""),
            colors=parse_colors(options.colors or ""),
            seed=options.seed,
            each=options.each,
            steps=options.steps,
            how=options.repair,
            radius=options.radius,
            picture=options.picture,
            step=options.step,
            at=at[0],
        )
    except ValidationError as error:
        raise UserError(first_complaint(error.errors())) from None


def record_of(exhibit: Exhibit, request: Probing, found: Probed) -> dict[str, Any]:
    return {
        "model": exhibit.name,
        "wanted": [want if isinstance(want, str) else list(want) for want in found.wanted],
        "seed": request.seed,
        "picture": request.picture,
        "step": request.step,
        "steps": request.steps,
        "repair": request.how,
        **found.record(),
        "influence": found.influence.tolist(),
        "provenance": provenance(exhibit.device),
    }


def heat(influence: Tensor) -> Tensor:
    """An influence map (H, W) in the colours of the figures, enlarged: (3, 8 H, 8 W), 8-bit."""
    level = (influence / influence.max().clamp(min=1e-30)).pow(GAMMA)
    inks = torch.tensor(matplotlib.colormaps[HEAT](torch.linspace(0, 1, 256).numpy())[:, :3])  # (256, 3)
    shown = (inks[(level * 255).round().long()] * 255).round().to(torch.uint8)  # (H, W, 3)
    return shown.permute(2, 0, 1).repeat_interleave(ENLARGED, 1).repeat_interleave(ENLARGED, 2)
