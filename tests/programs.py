"""Runs the programs of `tools/` in this process; importing this makes their modules importable."""

import importlib
import sys
from pathlib import Path

import pytest

from tessera.cli.main import VERBS, options_class
from tessera.cli.options import details_of, flags_of
from tessera.config import settings_for

TOOLS = Path(__file__).parents[1] / "tools"
if str(TOOLS) not in sys.path:
    sys.path.append(str(TOOLS))


def call_program(name, *words) -> int:
    """The exit code of `python tools/NAME.py WORDS`."""
    with pytest.raises(SystemExit) as left:
        importlib.import_module(name).main([str(word) for word in words])
    return left.value.code or 0


def with_set(*words) -> list[str]:
    """The words of a command line, less common settings written as `--set NAME=VALUE`."""
    given = [str(word) for word in words]
    verb = next((name for n in (2, 1) if (name := " ".join(given[:n])) in VERBS), None)
    if verb is None:
        return given
    kind = options_class(verb)
    flags, details, written = {*flags_of(kind), "--objects", "--total"}, details_of(kind), []
    rest = iter(given)
    for word in rest:
        flag, equals, value = word.partition("=")
        name = flag[2:].replace("-", "_")
        if flag.startswith("--") and flag not in flags and (verb == "reproduce" or name in details):
            if not equals:
                value = "on" if details.get(name) is bool else next(rest)
            written += ["--set", f"{name}={value}"]
        else:
            written.append(word)
    return written


def fitting_flags(experiment, words) -> list[str]:
    """Of flags and their values those that the network and the conditioner of an experiment have."""
    settings, kept = settings_for(experiment), []
    for flag, value in zip(words[::2], words[1::2], strict=True):
        group, dot, name = flag[2:].replace("-", "_").partition(".")
        if not dot or hasattr(getattr(settings, group), name):
            kept += [flag, value]
    return kept
