"""Every setting of a run as an optional flag (`--denoiser.width 96`); the preset gives the rest."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import tyro

from tessera.config import COUNT, Settings, group_names, parse_count, parse_range, plain_type, unused_settings
from tessera.console import say
from tessera.errors import UserError


def flags_for(group: str) -> type:
    """A dataclass of optional flags `--group.name`, one for each setting of the group."""
    kind = group_names()[group]
    hints = get_type_hints(kind, include_extras=True)
    fields = [(name, flag(group, name, hint), None) for name, hint in hints.items()]
    made = dataclasses.make_dataclass(f"{group.title()}Flags", fields, frozen=True)
    made.__doc__ = kind.__doc__
    return made


def flag(group: str, name: str, hint: Any) -> Any:
    base, words, *scores = get_args(hint)
    shown = tyro.conf.arg(
        name=f"{group}.{name}",
        help=f"{words[0].upper()}{words[1:]}.",
        help_behavior_hint="(from preset)",
        metavar=metavar(base, scores),
    )
    return Annotated[flag_type(base, scores) | None, shown]


def flag_type(base: Any, scores: list[str]) -> Any:
    if base is bool:
        return Literal["on", "off"]
    return str if COUNT in scores or get_origin(base) is tuple else base


def metavar(base: Any, scores: list[str]) -> str:
    if get_origin(base) is Literal:
        return "|".join(get_args(base))
    if get_origin(base) is tuple:
        return "LIST"
    return "COUNT" if COUNT in scores else {bool: "on|off", int: "INT", float: "FLOAT"}.get(base, "NAME")


def given(group: str, flags: Any) -> dict[str, Any]:
    """The settings of a group that were given on the command line, as values of their own types."""
    hints = get_type_hints(group_names()[group], include_extras=True)
    chosen = {f.name: getattr(flags, f.name) for f in dataclasses.fields(flags)}
    return {name: value_of(hints[name], value) for name, value in chosen.items() if value is not None}


def note_unused_settings(changes: Mapping[str, Mapping[str, Any]], runs: Sequence[Settings]) -> None:
    """Tell of flags that were given in vain; they may still be of use to the other runs of a script."""
    for sentence in unused_settings(changes, runs):
        say(f"note: {sentence}")


def value_of(hint: Any, value: Any) -> Any:
    base = plain_type(hint)
    if COUNT in get_args(hint):
        return parse_count(value)
    if base is bool:
        return value == "on"
    if base == tuple[int, int]:
        return parse_range(value)
    return numbers(value, get_args(base)[0]) if get_origin(base) is tuple else value


def numbers(text: str, kind: type) -> tuple:
    """`1,2,3` as a tuple; an empty text or `none` as no numbers."""
    words = [] if text.strip().lower() in ("", "none") else text.replace(",", " ").split()
    try:
        return tuple(kind(word) for word in words)
    except ValueError:
        raise UserError(f"`{text}` is no list of numbers; write for example 1,2,3.") from None
