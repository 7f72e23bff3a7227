"""Types of options that several verbs share, and what every verb's options are called."""

import dataclasses
import inspect
import types
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import tyro

from tessera.config import look_up, parse_value
from tessera.devices import DeviceName, PrecisionName
from tessera.errors import UserError

# Options that may be left out; their help says in words what happens then.
Text = Annotated[str | None, tyro.conf.arg(metavar="TEXT", help_behavior_hint="")]
List = Annotated[str | None, tyro.conf.arg(metavar="LIST", help_behavior_hint="")]
Locations = Annotated[str | None, tyro.conf.arg(metavar="LOCATIONS", help_behavior_hint="")]
Colors = Annotated[str | None, tyro.conf.arg(metavar="COLORS", help_behavior_hint="")]
ImageCount = Annotated[str | None, tyro.conf.arg(metavar="COUNT", help_behavior_hint="")]
Whole = Annotated[int | None, tyro.conf.arg(metavar="INT", help_behavior_hint="")]
Number = Annotated[float | None, tyro.conf.arg(metavar="FLOAT", help_behavior_hint="")]
File = Annotated[Path | None, tyro.conf.arg(metavar="FILE", help_behavior_hint="")]
Folder = Annotated[Path | None, tyro.conf.arg(metavar="DIR", help_behavior_hint="")]
ModelName = Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="RUN|MODEL")]
Changes = Annotated[tyro.conf.UseAppendAction[tuple[str, ...]], tyro.conf.arg(metavar="NAME=VALUE")]


@dataclass(frozen=True, kw_only=True)
class OnDevice:
    """Options of every verb that runs a network or the renderer."""

    #: Where to compute.
    device: DeviceName = "auto"
    #: CPU threads; 0: as many as other work leaves free. Another number may change the last bits of a result.
    threads: int = 0


@dataclass(frozen=True, kw_only=True)
class OpensModels(OnDevice):
    """Options of every verb that takes a MODEL."""

    #: For models of diffusers: grid, list, color, nothing, a registered name, or my.py:MyConditioner.
    conditioner: Text = None


@dataclass(frozen=True, kw_only=True)
class Printed:
    """Options of every verb that measures."""

    #: Print one JSON object on stdout.
    json: bool = False


@dataclass(frozen=True, kw_only=True)
class WithDetails:
    """Less common settings are `tyro.conf.Fixed` fields of a verb: not options, but set by `--set`."""

    #: Change a less common setting; may be repeated.
    set: Changes = ()


@dataclass(frozen=True, kw_only=True)
class OpensOneModel(OpensModels, Printed, WithDetails):
    """Options of verbs that sample or measure one model."""

    #: A run folder, a model folder, the name of a shipped model, a hub id, a folder of diffusers, or my.py:make_model.
    model: ModelName
    #: Length of the running average, for run folders (default: the shortest one kept).
    std: tyro.conf.Fixed[Number] = None
    #: Of the network; gradients and differences of features need float32.
    precision: tyro.conf.Fixed[PrecisionName] = "float32"

    def opened(self, images: str | None, device: Any) -> Any:
        """The model; of a run folder, the snapshot after so many images."""
        from tessera.models.loading import open_model, set_precision

        model = open_model(self.model, self.std, images, device)
        set_precision(model, self.precision, device)
        return model

    def facts(self, model: Any) -> dict[str, Any]:
        """What a record says about the model."""
        return {
            "model": Path(self.model).name,
            "experiment": (model.config.get("settings") or {}).get("experiment"),
            "images_seen": model.config.get("images_seen"),
            "ema": model.config.get("ema"),
            "max_train_objects": model.max_train_objects,
            "size": model.size,
        }


@dataclass(frozen=True, kw_only=True)
class StudyOptions(Printed):
    """Settings of every study of `reproduce` that computes on a device."""

    #: Where to compute.
    device: DeviceName = "auto"


def with_changes(options: Any, kind: type) -> Any:
    """The options with what `--set` changes; what else it may name is in the help of `--set`."""
    if not issubclass(kind, WithDetails):
        return options
    return dataclasses.replace(options, **parse_settings(options.set, details_of(kind), "setting"))


def parse_settings(texts: Iterable[str], types: Mapping[str, Any], what: str) -> dict[str, Any]:
    """`NAME=VALUE` for each of the texts, as values of the types; `what` is the word for a NAME in messages."""
    found = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise UserError(f"`{text}` changes nothing; write --set NAME=VALUE.")
        name = name.strip().replace("-", "_")
        found[name] = parse_value(look_up(name, types, what), value.strip(), name)
    return found


def description_of(kind: Any) -> str:
    """What a verb does, and what `--set` may change."""
    names, does = ", ".join(details_of(kind)), inspect.cleandoc(kind.__doc__)
    return f"{does}\n\n--set NAME=VALUE also changes: {names}." if names else does


def details_of(kind: Any) -> dict[str, Any]:
    """The less common settings of a verb: name -> type."""
    return {name: hint for name, hint, notes in _settings_of(kind) if tyro.conf.Fixed in notes}


def flags_of(kind: Any) -> Iterator[str]:
    """The flags of a verb, `--` and all; of nested settings, those of every network and conditioner."""
    for name, _, notes in _settings_of(kind):
        if tyro.conf.Fixed not in notes and tyro.conf.Positional not in notes:
            yield f"--{name}".replace("_", "-")


def _settings_of(kind: Any, prefix: str = "") -> Iterator[tuple[str, Any, tuple[Any, ...]]]:
    """Dotted name, type and annotations of every setting, of every class that a nested group may have."""
    hints = get_type_hints(kind, include_extras=True)
    for field in dataclasses.fields(kind):
        hint, *notes = (
            get_args(hints[field.name]) if get_origin(hints[field.name]) is Annotated else [hints[field.name]]
        )
        members = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
        groups = [member for member in members if dataclasses.is_dataclass(member)]
        # A group whose name is empty is flattened: its flags go without it.
        is_flattened = any(getattr(note, "name", None) == "" for note in notes)
        for group in groups:
            yield from _settings_of(group, prefix if is_flattened else f"{prefix}{field.name}.")
        if not groups:
            yield f"{prefix}{field.name}", hint, tuple(notes)
