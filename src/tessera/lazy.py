"""Public names that a package imports at first use, so that importing the package itself is quick."""

import importlib
from collections.abc import Callable, Mapping
from typing import Any


def lazy_names(package: str, public: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The functions `__getattr__` and `__dir__` of a package; `public` says where each name is: "module:name"."""

    def find(name: str) -> Any:
        if name not in public:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module, _, attribute = public[name].partition(":")
        found = importlib.import_module(module)
        return getattr(found, attribute) if attribute else found

    return find, lambda: sorted(public)
