"""A package of tessera imports only from packages above it in ORDER; lazy imports inside functions count too."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "src" / "tessera"
TOP = "tessera"  # the public names of __init__.py, resolved lazily: anybody's example may use them
ROOT = "root"
ORDER = (
    ROOT, "scenes", "render", "plots", "conditioning", "config", "models", "sampling", "training", "evaluation",
    "analysis", "studies", "cluster", "app", "cli",
)  # fmt: skip
ROOT_MODULES = {
    "errors",
    "files",
    "lazy",
    "version",
    "rng",
    "devices",
    "console",
    "provenance",
    "rows",
    "stats",
    "records",
    "registry",
}
MAY_IMPORT_ANYTHING = {"__init__", "__main__"}

# Module -> package below it that it still imports. The list only shrinks: an entry that is not needed fails the test.
KNOWN: set[tuple[str, str]] = set()


def modules() -> dict[str, Path]:
    """Dotted names below tessera, such as `models.edm2`."""
    named = {}
    for path in PACKAGE.rglob("*.py"):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        named[".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)] = path
    return named


def imported(tree: ast.AST, module: str, is_package: bool = False) -> Iterator[str]:
    """Dotted names below tessera that the code imports, whether at the top or in a function."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level:
            above = ["tessera", *module.split(".")]
            base = ".".join(above[: len(above) - node.level + is_package])
            names = [f"{base}.{node.module}"] if node.module else [f"{base}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
            if node.module == "tessera":
                names = [f"tessera.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            if name.startswith("tessera."):
                yield name.removeprefix("tessera.")


def package_of(module: str) -> str:
    """The package (or top-level module with a place of its own in ORDER) that a module belongs to."""
    first = module.split(".")[0]
    if first in ORDER:
        return first
    if first in ROOT_MODULES:
        return ROOT
    return TOP if not (PACKAGE / f"{first}.py").exists() and not (PACKAGE / first).exists() else first


def edges() -> set[tuple[str, str, str]]:
    """(module, its package, package that it imports) between different packages."""
    found = set()
    for module, path in modules().items():
        if module in MAY_IMPORT_ANYTHING:
            continue
        own = package_of(module)
        for name in imported(ast.parse(path.read_text()), module, path.name == "__init__.py"):
            other = package_of(name)
            if other not in (own, TOP):
                found.add((module, own, other))
    return found


def offenders() -> set[tuple[str, str]]:
    return {(module, other) for module, own, other in edges() if ORDER.index(other) > ORDER.index(own)}


def test_every_module_belongs_to_a_package_of_the_order():
    lost = {module for module in modules() if package_of(module) not in ORDER and module not in MAY_IMPORT_ANYTHING}
    assert lost == set()


def test_packages_import_only_from_packages_above_them():
    """So there is no cycle among packages either."""
    found = offenders()
    assert found - KNOWN == set(), "imports from a package below"
    assert KNOWN - found == set(), "no longer needed in KNOWN"


def test_nobody_imports_the_command_line():
    assert {module for module, own, other in edges() if other == "cli"} == set()


def test_the_package_does_not_import_the_tools():
    tools = {path.stem for path in (PACKAGE.parents[1] / "tools").glob("*.py")} | {"benchmarks", "doc_tables"}
    for module, path in modules().items():
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
            assert not {name.split(".")[0] for name in names} & tools, module


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("import tessera.models.edm2", ["models.edm2"]),
        ("from tessera import stats", ["stats"]),
        ("def late():\n    from tessera.app.report import page", ["app.report"]),
        ("from . import scene", ["scenes.scene"]),
        ("from ..render.image_io import resize", ["render.image_io"]),
        ("import torch", []),
    ],
)
def test_lazy_and_relative_imports_are_seen(code, found):
    assert list(imported(ast.parse(code), "scenes.batch")) == found
