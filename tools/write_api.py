"""Write docs/api.md, the API reference, from the docstrings.

python tools/write_api.py            # write it
python tools/write_api.py --check    # exit code 1 if it is out of date
"""

import importlib
import inspect
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tessera
from _common import program

PAGE = Path(__file__).parents[1] / "docs" / "api.md"
PACKAGES = ("scenes", "conditioning", "sampling", "evaluation")
SECTION = re.compile(r"^(Args|Returns|Example):$")
INTRODUCTION = """# API reference

Written from the docstrings by `python tools/write_api.py`. `import tessera` is quick: each name is imported at its first use.
"""


def page() -> str:
    names = [name for name in tessera.__all__ if name != "__version__"]
    parts = [INTRODUCTION, *(entry(f"tessera.{name}", public_object(name)) for name in sorted(names, key=str.lower))]
    parts += [package_section(name) for name in PACKAGES]
    return "\n".join(parts).rstrip() + "\n"


def public_object(name: str) -> Any:
    """What a public name stands for; `tessera.render` is a package that can be called."""
    found = getattr(tessera, name)
    return importlib.import_module("tessera.render.render").render if inspect.ismodule(found) else found


def entry(name: str, found: Any) -> str:
    """Heading, signature and docstring of one name, and the methods of a class."""
    lines = [f"## `{name}`", "", "```python", signature(name.removeprefix("tessera."), found), "```", ""]
    lines += docstring_lines(inspect.getdoc(found) or "")
    if inspect.isclass(found):
        for method, member in vars(found).items():
            text = inspect.getdoc(member)
            if method.startswith("_") or not text or not (callable(member) or isinstance(member, property)):
                continue
            shown = f"`.{method}{'(...)' if callable(member) else ''}`"
            lines += [f"- {shown}: {first_sentence(text)}"]
        lines.append("")
    return "\n".join(lines)


def signature(name: str, found: Any) -> str:
    """The call on one line, or one parameter per line where that is too long; types as they are written."""
    words: list[str] = []
    for parameter in inspect.signature(found).parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and "*" not in words:
            words.append("*")
        words.append(parameter_words(parameter))
    line = f"{name}({', '.join(words)})"
    return line if len(line) <= 100 else "\n".join([f"{name}(", *(f"    {word}," for word in words), ")"])


def parameter_words(parameter: inspect.Parameter) -> str:
    """Name, type and default; a default that is a function or an object by its name, the same on every machine."""
    if parameter.default is not parameter.empty and " at 0x" in repr(parameter.default):
        named = getattr(parameter.default, "__name__", type(parameter.default).__name__)
        return f"{parameter.name}={named}"
    return re.sub(r"\b(?:torch|collections\.abc|typing|pathlib|tessera(?:\.\w+)+)\.(?=[A-Z])", "", str(parameter))


def docstring_lines(text: str) -> list[str]:
    """Markdown of a docstring: arguments as a list, the example as a block."""
    lines: list[str] = []
    section = ""
    for line in text.splitlines():
        found = SECTION.match(line)
        if found:
            if section == "Example":
                lines.append("```")
            section = found[1]
            lines += [f"**{section}**", ""] + (["```python"] if section == "Example" else [])
        elif section == "Args" and re.match(r"    \w[\w, ]*:", line):
            name, _, words = line.strip().partition(":")
            lines.append(f"- `{name}`:{words}")
        elif section:
            lines.append(line[4:] if section in ("Example", "Returns") else line.replace("        ", "  ", 1))
        else:
            lines.append(line)
    if section == "Example":
        lines.append("```")
    return [*lines, ""]


def package_section(package: str) -> str:
    """The names of a package, one sentence each."""
    module = importlib.import_module(f"tessera.{package}")
    names = sorted(getattr(module, "__all__", None) or dir(module), key=str.lower)
    lines = [f"## `tessera.{package}`", "", first_sentence(module.__doc__ or ""), "", "| name | |", "|---|---|"]
    for name in names:
        found = getattr(module, name)
        if name.startswith("_") or not (inspect.isclass(found) or inspect.isfunction(found)):
            continue
        lines.append(f"| `{name}` | {first_sentence(inspect.getdoc(found) or '').replace('|', chr(92) + '|')} |")
    return "\n".join([*lines, ""])


def first_sentence(text: str) -> str:
    return " ".join(text.split("\n\n")[0].split())


@dataclass(frozen=True)
class WriteApi:
    """Write docs/api.md from the docstrings."""

    check: bool = False
    """Write nothing; exit code 1 if the page is out of date."""

    def run(self) -> int:
        text = page()
        if self.check:
            return int(not PAGE.is_file() or PAGE.read_text() != text)
        PAGE.write_text(text)
        return 0


main = program(WriteApi)

if __name__ == "__main__":
    main()
