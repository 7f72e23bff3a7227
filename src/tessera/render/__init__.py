"""The renderer: scenes become images, instance masks and depth. The package is also the function `tessera.render`."""

import sys
from types import ModuleType
from typing import Any


class _CallablePackage(ModuleType):
    # An import of tessera.render.anything sets `tessera.render` to the package, so a function could not keep that name.
    def __call__(self, *arguments: Any, **options: Any) -> Any:
        from tessera.render.render import render

        return render(*arguments, **options)


sys.modules[__name__].__class__ = _CallablePackage
