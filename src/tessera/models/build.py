"""Networks from settings and from plain data."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, cast

import torch
from torch import nn

from tessera.conditioning import Conditioner, SpatialConditioner, conditioner_from
from tessera.config import EDM2Config, LocalConvConfig, PatchwiseConfig, Settings, check_moderate, current_names
from tessera.errors import UserError
from tessera.files import check_types
from tessera.models.edm2 import EDM2
from tessera.models.local_conv import LocalConv
from tessera.models.patchwise import Patchwise, Tiled
from tessera.registry import Registry

NETWORKS = Registry(
    "tessera.models", "network", {"edm2": EDM2, "tiled": Tiled, "patchwise": Patchwise, "localconv": LocalConv}
)


def conditioner_for(settings: Settings) -> Conditioner:
    """The conditioner of a run."""
    return conditioner_from(asdict(settings.conditioner))


def build_denoiser(settings: Settings) -> nn.Module:
    """The untrained network of a run; its weights depend on the training seed alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.training.seed)
        return _make_network(settings, conditioner_for(settings))


def _make_network(settings: Settings, conditioner: Conditioner) -> nn.Module:
    wanted, size = settings.denoiser, settings.data.size
    options: dict[str, Any]
    if isinstance(wanted, LocalConvConfig):
        options = {"width": wanted.local_width, "depth": wanted.depth, "coords": wanted.coords}
        return LocalConv(size, _spatial(conditioner), wanted.radius, **options)
    names = ("coords", "width", "mult", "blocks", "attention", "head_width", "dropout")
    options = {name: getattr(wanted, name) for name in names}
    if wanted.emb_mult:
        options["emb_mult"] = wanted.emb_mult
    if isinstance(wanted, PatchwiseConfig):
        local = _spatial(conditioner)
        options |= _dividing((2 * wanted.radius + 1) * (size // local.cells), wanted)
        return Patchwise(size, local, wanted.radius, wanted.cond_radius, **options)
    if wanted.tile > 1:
        return Tiled(size, conditioner.dim, wanted.tile, **options)
    return EDM2(size, cond_dim=conditioner.dim, **options)


def _dividing(side: int, wanted: EDM2Config) -> dict[str, Any]:
    """Tiles and levels that a patch can be divided into evenly: padding would cost more than they bring."""
    smallest = wanted.tile << min(1, len(wanted.mult) - 1)  # a U-Net of several levels halves at least once
    tile = wanted.tile if side % smallest == 0 else 1
    levels = [mult for level, mult in enumerate(wanted.mult) if side % (tile << level) == 0]
    return {"tile": tile, "mult": tuple(levels)}


def _spatial(conditioner: Conditioner) -> SpatialConditioner:
    if not isinstance(conditioner, SpatialConditioner):
        raise UserError("A local network needs conditions with locations in the image.")
    return conditioner


def denoiser_config(denoiser: nn.Module) -> dict[str, Any]:
    """Plain data from which `denoiser_from` builds the same network, without its weights."""
    for kind in NETWORKS:
        if type(denoiser) is NETWORKS[kind]:
            return {"kind": kind, **cast(Mapping, denoiser.config)}
    raise UserError(
        f"A {type(denoiser).__name__} cannot be kept in a model folder: it is no registered network "
        "(tessera.models.build.NETWORKS, or an entry point of the group tessera.models)."
    )


def denoiser_from(config: Mapping[str, Any]) -> nn.Module:
    """The untrained network whose `denoiser_config` this is."""
    options = current_names(config)
    kind = str(options.pop("kind", None))
    make = NETWORKS[kind]
    if "conditioner" in options:
        options["conditioner"] = conditioner_from(options["conditioner"])
    check_moderate(options, "denoiser")
    check_types(make.__init__, options, f"The settings of a {kind} network")
    try:
        return make(**options)
    except TypeError as error:
        raise UserError(f"The {kind} network does not take these settings: {error}.") from error
