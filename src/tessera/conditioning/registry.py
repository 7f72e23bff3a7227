"""Conditioners by name, for configurations and model folders."""

from collections.abc import Mapping
from typing import Any

from tessera.conditioning.contract import Conditioner
from tessera.errors import UserError
from tessera.files import check_types
from tessera.registry import CONDITIONERS, import_object, names_object


def conditioner_from(config: Mapping[str, Any]) -> Conditioner:
    """The conditioner whose `config` this is."""
    options = dict(config)
    kind = str(options.pop("kind", None))
    make = CONDITIONERS[kind]
    if "labels" in options and hasattr(make, "label"):  # as the settings of a run name it
        options["label"] = options.pop("labels")
    check_types(make, options, f"The settings of a {kind} conditioner")
    try:
        return make(**options)
    except TypeError as error:
        raise UserError(f"The {kind} conditioner does not take these settings: {error}.") from error


def open_conditioner(what: Any) -> Conditioner:
    """A conditioner, its class, its registered name, or `package.module:name` or `file.py:name` of one of these."""
    if names_object(what):
        what = import_object(what)
    elif isinstance(what, str):
        what = CONDITIONERS[what]
    return what() if isinstance(what, type) or not hasattr(what, "at") else what
