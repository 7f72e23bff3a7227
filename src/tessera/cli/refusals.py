"""One sentence about a command line that does not fit, from what tyro reports of it."""

import difflib
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, get_args

import tyro

from tessera.cli.options import flags_of
from tessera.config import NUMBERS
from tessera.errors import UserError


def one_sentence(kind: type, words: Sequence[str]) -> AbstractContextManager:
    """Within this context a refusal of tyro's becomes a `UserError`."""

    def refuse(event: Any) -> None:
        if sentence := _sentence(event, kind, words):
            raise UserError(f"{sentence} See `{event.prog} --help`.")

    # tyro 1.0 has no public way to word its refusals: `tyro.cli` prints a box and exits. Nothing else uses
    # its private hook; without the hook, and for events that are not known here, the box is what a user sees.
    errors: Any = getattr(tyro, "_errors", None)
    return errors.on_parse_error(refuse) if hasattr(errors, "on_parse_error") else nullcontext()


def _sentence(event: Any, kind: type, words: Sequence[str]) -> str | None:
    """None for kinds of events that are not known here."""
    match type(event).__name__:
        case "UnrecognizedArgs":
            return _unknown([*event.tokens], kind)
        case "MissingArgs":
            return f"Missing: {', '.join(_name(missing.arg) for missing in event.missing_arguments)}."
        case "InvalidChoice":
            choices = ", ".join(choice for choice in event.choices if choice != "None")
            return f"{_name(event.argument)} takes one of {choices}, not `{event.value}`."
        case "BadValue":
            return f"{_name(event.argument)} needs a value."
        case "InstantiationFailure":
            return _wrong_value(event, words)
    return None


def _unknown(tokens: Sequence[str], kind: type) -> str:
    flags = [token.partition("=")[0] for token in tokens if token.startswith("-")]
    if not flags:
        return f"There is no use for {', '.join(f'`{token}`' for token in tokens)}."
    known = [*flags_of(kind)]
    if flags[0] in known:
        return f"{flags[0]} is for another network or conditioner."
    near = difflib.get_close_matches(flags[0], known, n=1, cutoff=0.5)
    return f"There is no option {', '.join(flags)}{f'; did you mean {near[0]}?' if near else '.'}"


def _wrong_value(event: Any, words: Sequence[str]) -> str:
    said = event.message.splitlines()[0].rstrip(".") + "."
    if event.argument is None:
        return said
    name, hint = _name(event.argument), event.argument.field.type_stripped
    value = value_of(words, event.argument.lowered.name_or_flags)
    hint = next((part for part in get_args(hint) if part is not type(None)), hint)
    is_number = hint in NUMBERS and value is not None
    return f"{name} takes {NUMBERS[hint]}, not `{value}`." if is_number else f"{name}: {said}"


def _name(argument: Any) -> str:
    """`--total`, or what a positional argument is called in the help."""
    if argument.is_positional():
        return argument.lowered.metavar or argument.display_name()
    return argument.lowered.name_or_flags[-1]


def value_of(words: Sequence[str], flags: Sequence[str]) -> str | None:
    """What follows the last of these flags on the command line."""
    found = None
    for number, word in enumerate(words):
        flag, equals, value = word.partition("=")
        if flag in flags:
            found = value if equals else words[number + 1] if number + 1 < len(words) else None
    return found
