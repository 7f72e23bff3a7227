"""Opening a model by name: a run folder, a model folder, a shipped model, or a hub id."""

from collections.abc import Iterable
from pathlib import Path

import torch

from tessera.config import parse_count
from tessera.devices import precision_on
from tessera.errors import UserError
from tessera.models.model_folder import Model, find_model, load_model
from tessera.models.run_snapshots import is_run, load_run


def open_model(name: str, std: float | None = None, images: str | int | None = None, device=None) -> Model:
    """A run folder's averaged network, or a model folder, shipped name or hub id."""
    if is_run(Path(name)):
        return load_run(Path(name), std, None if images is None else parse_count(images), device)
    if std is not None or images is not None:
        raise UserError(
            "--std and --images choose among the snapshots of a run folder; a model has only one."
        )
    return load_model(name, device)


def check_models(names: Iterable[str]) -> None:
    """One sentence about the first name that stands for nothing, before any of them is worked on."""
    for name in names:
        if not is_run(Path(name)):
            find_model(name)


def set_precision(model: Model, precision: str, device: torch.device) -> None:
    model.denoiser.precision = precision_on(device, precision)  # type: ignore[assignment]
