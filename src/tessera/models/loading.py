"""`load`: one function that opens any model."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from tessera.conditioning.registry import open_conditioner
from tessera.config import parse_count
from tessera.console import say
from tessera.devices import precision_on
from tessera.errors import UserError
from tessera.models.build import NETWORKS
from tessera.models.diffusers_unet import is_diffusers_folder, load_diffusers
from tessera.models.model import Model
from tessera.models.model_folder import find_model, is_model_folder, load_model
from tessera.models.run_snapshots import is_run, load_run
from tessera.registry import import_object, names_object


def load(
    what: Any,
    *,
    conditioner: Any = None,
    device: Any = None,
    std: float | None = None,
    images_seen: int | None = None,
    max_train_objects: int | None = None,
) -> Model:
    """Open a model.

    Args:
        what: the name of a shipped model (`exp1`), a model folder, a run folder, the id of a model on the Hugging Face
            hub (`someone/model@revision`), a folder of diffusers, `package.module:function` or `file.py:function`
            for a function that returns (denoiser, conditioner, size) or a `Model`, the name of an entry point
            `tessera.models`, such a function or tuple itself, or a `Model`.
        conditioner: for folders of diffusers, which do not say what their conditions mean: a conditioner, its class,
            its name (`grid`, `list`, `color`, `nothing`, an entry point `tessera.conditioners`) or
            `package.module:name`.
        device: where to put the weights.
        std: for run folders, the length of the average of the weights (EDM2's sigma_rel); by default the shortest kept.
        images_seen: for run folders, the snapshot, in training images; by default the last.
        max_train_objects: most objects in a training scene, where the model's record does not say.

    Returns:
        A `Model`, with `.denoiser`, `.conditioner`, `.size`, `.config` and `.sample(...)`.

    Example:
        >>> import tessera
        >>> model = tessera.load("exp1")
        >>> model.size
        64
    """
    conditioner = _usual_conditioner if conditioner is None else open_conditioner(conditioner)
    model = _open(what, conditioner, device, std, images_seen)
    if conditioner is not None and model.conditioner is not conditioner:
        say(f"{what} has a conditioner of its own, so the given one ({conditioner!r}) is not used.")
    if max_train_objects is None:
        return model
    return Model(model.denoiser, model.conditioner, config=model.config, max_train_objects=max_train_objects)


def _open(what: Any, conditioner: Any, device: Any, std: float | None, images_seen: int | None) -> Model:
    if isinstance(what, str | Path) and is_run(what):
        return load_run(Path(what), std, images_seen, device)
    if std is not None or images_seen is not None:
        raise UserError("--std and --images choose among the snapshots of a run folder; a model has only one.")
    if not isinstance(what, str | Path):
        return _model_from(what, conditioner).to(device)
    if names_object(str(what)) and not Path(what).exists():
        return _model_from(import_object(str(what)), conditioner).to(device)
    if is_model_folder(Path(what)):
        return load_model(what, device)
    if str(what) in NETWORKS.installed():
        return _model_from(NETWORKS[str(what)], conditioner).to(device)
    folder = what if is_diffusers_folder(what) else find_model(what)
    if not is_diffusers_folder(folder):
        return load_model(folder, device)
    if conditioner is None:
        raise UserError(
            f"{what} is a model of diffusers, which does not say what its conditions mean: name a conditioner, "
            "such as --conditioner grid or --conditioner my.py:MyConditioner."
        )
    return load_diffusers(folder, conditioner).to(device)


_usual_conditioner: Any = None


def use_conditioner(conditioner: str | None) -> None:
    """The conditioner of models that name none, from now on: the command line's `--conditioner`."""
    global _usual_conditioner
    _usual_conditioner = None if conditioner is None else open_conditioner(conditioner)


def open_model(name: str, std: float | None = None, images: str | int | None = None, device: Any = None) -> Model:
    """`load` for a name from the command line, where counts of images may be written 4Mi."""
    images_seen = None if images is None else parse_count(images)
    return load(name, device=device, std=std, images_seen=images_seen)


def check_models(names: Iterable[str]) -> None:
    """One sentence about the first name that stands for no model, before any of them is opened."""
    for name in names:
        is_named = names_object(name) or name in NETWORKS.installed()
        if not (is_named or is_run(name) or is_diffusers_folder(name)):
            find_model(name)


def set_precision(model: Model, precision: str, device: torch.device) -> None:
    """The precision of the network's activations, where the network lets one choose it."""
    model.denoiser.precision = precision_on(device, precision)  # type: ignore[assignment]


def _model_from(made: Any, conditioner: Any = None) -> Model:
    """A `Model` from one, from (denoiser, conditioner, size), or from a function that returns one of these."""
    if isinstance(made, Model):
        return made
    if isinstance(made, tuple) and len(made) == 3:
        return Model(made[0], open_conditioner(made[1]), made[2])
    if conditioner is not None and hasattr(made, "size") and callable(made):
        return Model(made, conditioner, made.size)
    if callable(made):
        returned = made()
        if isinstance(returned, Model | tuple):
            return _model_from(returned)
        made = returned
    raise UserError(
        f"A model is made by a function that returns (denoiser, conditioner, size) or a tessera.Model, not {made!r}."
    )
