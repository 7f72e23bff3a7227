"""Parts by name: ours, those a program adds, and those of installed distributions (entry points).

A distribution registers its parts in its pyproject.toml:

    [project.entry-points."tessera.conditioners"]
    reading-order = "my_package:ReadingOrder"
"""

import importlib
import importlib.util
import os
import re
import sys
from collections.abc import Iterator, Mapping
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from tessera.errors import UserError, suggestion

_OBJECT = re.compile(r"(?P<module>(?:.*\.py)|(?:\w+(?:\.\w+)*)):(?P<name>\w+(?:\.\w+)*)")


class Registry(Mapping[str, Any]):
    """The parts of one kind. `group` is the name of their entry points, `what` the word for one in messages.

    A part of ours may be given as "module:name", which is imported when it is needed.
    """

    def __init__(self, group: str, what: str, parts: Mapping[str, Any]):
        self.group, self.what = group, what
        self.parts: dict[str, Any] = dict(parts)

    def add(self, name: str, part: Any) -> None:
        """Register a part for the running program."""
        self.parts[name] = part

    def installed(self) -> dict[str, Any]:
        """Entry points of installed distributions, not imported yet."""
        return {entry.name: entry for entry in entry_points(group=self.group)}

    def __getitem__(self, name: str) -> Any:
        if name in self.parts:
            part = self.parts[name]
            return import_object(part) if isinstance(part, str) else part
        installed = self.installed()
        if name in installed:
            return installed[name].load()
        raise UserError(f"There is no {self.what} `{name}`; {suggestion(name, self, cutoff=0.5)}")

    def __contains__(self, name: object) -> bool:
        return name in self.parts or name in self.installed()

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys([*self.parts, *self.installed()]))

    def __len__(self) -> int:
        return len(list(iter(self)))


def names_object(text: Any) -> bool:
    """Whether a text is `package.module:name` or `file.py:name`."""
    return isinstance(text, str) and _OBJECT.fullmatch(text) is not None


def import_object(text: str) -> Any:
    """The object that `package.module:name` or `file.py:name` stands for; this runs the module's code."""
    match = _OBJECT.fullmatch(text)
    if match is None:
        raise UserError(f"`{text}` does not name an object; write package.module:name or file.py:name.")
    module, name = match["module"], match["name"]
    found = _import_file(Path(module)) if module.endswith(".py") else _import_module(module)
    for part in name.split("."):
        if not hasattr(found, part):
            raise UserError(f"`{module}` has no `{name}`.")
        found = getattr(found, part)
    return found


def _import_module(name: str) -> Any:
    # As `python -m` does, and unlike a console script: modules of the working folder can be imported.
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and (name == error.name or name.startswith(f"{error.name}.")):
            raise UserError(f"There is no module `{name}`.") from error
        raise


def _import_file(path: Path) -> Any:
    if not path.is_file():
        raise UserError(f"There is no file {path}.")
    name = f"tessera_file_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


# Here, so that settings can name a conditioner without importing torch.
CONDITIONERS = Registry(
    "tessera.conditioners",
    "conditioner",
    {
        "grid": "tessera.conditioning.grid:LocationGrid",
        "list": "tessera.conditioning.location_list:LocationList",
        "color": "tessera.conditioning.colors:ColorCounts",
        "nothing": "tessera.conditioning.unconditional:Unconditional",
    },
)
