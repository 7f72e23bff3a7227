"""The public names: complete, documented, lazy, and every example runs."""

import ast
import doctest
import importlib
import inspect
import subprocess
import sys
import time
from pathlib import Path

import pytest

import tessera

NAMES = [name for name in tessera.__all__ if name != "__version__"]
FUNCTIONS = [name for name in NAMES if name.islower()]


def implementation(name: str):
    """The object that carries the docstring: `tessera.render` is a package that can be called."""
    found = getattr(tessera, name)
    return importlib.import_module("tessera.render.render").render if inspect.ismodule(found) else found


def test_dir_lists_the_public_names_and_each_can_be_imported():
    assert dir(tessera) == sorted(tessera.__all__)
    assert set(tessera.__all__) == {*tessera._PUBLIC, "__version__"}
    assert 12 <= len(NAMES) <= 16
    assert all(callable(getattr(tessera, name)) for name in NAMES)


def test_type_checkers_read_the_same_names():
    stub = ast.parse(Path(tessera.__file__).with_suffix(".pyi").read_text())
    imported = {name.name: node.module for node in stub.body if isinstance(node, ast.ImportFrom) for name in node.names}
    assert set(imported) == set(tessera.__all__)
    for name, where in tessera._PUBLIC.items():
        assert getattr(importlib.import_module(imported[name]), name).__doc__ == implementation(name).__doc__
        assert where.split(":")[0] in (imported[name], "tessera.render")


@pytest.mark.parametrize("package", ["tessera.evaluation", "tessera.scenes"])
def test_type_checkers_read_the_same_names_of_a_lazy_package(package):
    found = importlib.import_module(package)
    stub = ast.parse(Path(found.__file__).with_suffix(".pyi").read_text())
    imported = {name.name: node.module for node in stub.body if isinstance(node, ast.ImportFrom) for name in node.names}
    assert {name: f"{module}:{name}" for name, module in imported.items()} == found._PUBLIC
    assert dir(found) == sorted(imported)
    assert all(getattr(found, name) is not None for name in imported)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
        _ = tessera.nonsense


@pytest.mark.parametrize("name", NAMES)
def test_every_public_name_documents_its_arguments_and_returns(name):
    found = implementation(name)
    text = inspect.getdoc(found) or ""
    assert "Args:" in text and "Example:" in text
    assert "Returns:" in text or inspect.isclass(found)
    described = text.split("Args:")[1].split("Returns:")[0].split("Example:")[0]
    for parameter in inspect.signature(found).parameters.values():
        assert parameter.name in described, f"{name} does not document {parameter.name}"


@pytest.mark.parametrize("name", NAMES)
def test_the_example_of_every_public_name_runs(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if name == "from_diffusers":
        pytest.importorskip("diffusers")
    examples = doctest.DocTestFinder(recurse=False).find(implementation(name), name, globs={})
    assert sum(len(example.examples) for example in examples) >= 2
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    for example in examples:
        runner.run(example)
    assert runner.summarize(verbose=False).failed == 0


def test_importing_tessera_loads_neither_torch_nor_numpy_and_is_fast():
    program = "import sys, tessera; print({'torch', 'numpy', 'rich', 'tyro'} & set(sys.modules))"
    best = float("inf")
    for _ in range(3):
        start = time.perf_counter()
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
        bare = time.perf_counter()
        subprocess.run([sys.executable, "-c", "pass"], check=True)
        best = min(best, (bare - start) - (time.perf_counter() - bare))
        assert done.stdout.strip() == "set()"
    assert best < 0.15


def test_the_renderer_is_a_function_whatever_was_imported_before():
    import tessera.render.image_io  # sets the attribute `render` of the package to the subpackage

    scenes = tessera.Scenes(objects=1).draw(1)
    assert tessera.render(scenes, size=16)["rgb"].shape == (1, 3, 16, 16)


def test_the_package_says_that_it_is_typed():
    assert (Path(tessera.__file__).parent / "py.typed").is_file()


def test_the_api_reference_is_that_of_the_docstrings():
    """The public names word by word; `python tools/write_api.py --check` compares the tables of the packages too."""
    module = importlib.import_module("write_api")
    until = f"## `tessera.{module.PACKAGES[0]}`"
    assert module.PAGE.read_text().split(until)[0] == module.page().split(until)[0]
