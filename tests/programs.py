"""Runs the programs of `tools/` in this process; importing this makes their modules importable."""

import importlib
import sys
from pathlib import Path

import pytest

TOOLS = Path(__file__).parents[1] / "tools"
if str(TOOLS) not in sys.path:
    sys.path.append(str(TOOLS))


def call_program(name, *words) -> int:
    """The exit code of `python tools/NAME.py WORDS`."""
    with pytest.raises(SystemExit) as left:
        importlib.import_module(name).main([str(word) for word in words])
    return left.value.code or 0
