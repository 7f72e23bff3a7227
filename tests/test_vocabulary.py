"""Retired words: the field has a word for each, which code, flags, help, keys and prose use instead.

    python tests/test_vocabulary.py [PACKAGE ...]     # lists where retired words still stand

MOST is the number of them that a package may still hold: none.
"""

import ast
import collections
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "tessera"
PAGES = (".html", ".js", ".css", ".md")

# Extend this list; never shorten it.
RETIRED_WORDS = """
    thing things told tell tells telling untold hear hears heard hearing unheard aim aims wish wishes asked exam exams
    strip strips shelf exhibit exhibits studio stirred finding findings place places picture pictures proper improper
    strange strangeness lane lanes dice judge judges judged judging locate located stockpile freed redrawn marks sit sits
    practice spoil spoiled spoiling clutter going passage passages nobody
"""
RETIRED = frozenset(RETIRED_WORDS.split())
# Where such a word is not ours to change.
ALLOWED = (
    r'f?"place \{k\}"',  # the key of a random stream
    r"place-(?:items|content|self)",  # CSS
    r"[Ii]n place\b",  # of tensors: without a copy
    r"\.[lr]?strip\(",  # of texts, in f-strings
    r"A picture of ",  # a prompt of the paper
)
# Tables that read the previous format hold its words.
FORMER = re.compile(r"FORMER|^_?(KEYS|KEYS_BESIDE|SETTING_KEYS|FILES)$")
WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
Hit = tuple[str, int, str]  # file, line, word


def retired_words(text: str) -> Iterator[str]:
    """Parts of identifiers count as words: `told_own`, `PlaceHolder`."""
    for pattern in ALLOWED:
        text = re.sub(pattern, "", text)
    yield from (word.lower() for word in WORD.findall(text) if word.lower() in RETIRED)


def former_lines(source: str) -> set[int]:
    """Lines of the tables that read the previous format."""
    lines: set[int] = set()
    for node in ast.parse(source).body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        names = [target.id for target in targets if isinstance(target, ast.Name)]
        if any(FORMER.search(name) for name in names):
            lines |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return lines


def in_python(source: str) -> Iterator[tuple[int, str]]:
    """Names, strings and comments, by line; methods of Python's own types are not ours to name."""
    former = former_lines(source)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.start[0] in former:
            continue
        if token.type == tokenize.NAME and token.string in ("strip",):
            continue
        if token.type in (tokenize.NAME, tokenize.STRING, tokenize.COMMENT) or token.type == FSTRING:
            for offset, line in enumerate(token.string.splitlines()):
                for word in retired_words(line):
                    yield token.start[0] + offset, word


FSTRING = getattr(tokenize, "FSTRING_MIDDLE", -1)  # since Python 3.12


def hits(path: Path) -> list[Hit]:
    text = path.read_text()
    if path.suffix == ".py":
        found = in_python(text)
    else:
        found = ((n, word) for n, line in enumerate(text.splitlines(), 1) for word in retired_words(line))
    return [(str(path.relative_to(ROOT)), line, word) for line, word in found]


def package_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE).parts
    return parts[0] if len(parts) > 1 else "root"


def sources() -> dict[str, list[Path]]:
    """Files by package, those of the documents under `docs`."""
    found: dict[str, list[Path]] = collections.defaultdict(list)
    for path in sorted(PACKAGE.rglob("*")):
        if path.suffix in (".py", *PAGES) and "zoo" not in path.relative_to(PACKAGE).parts:
            found[package_of(path)].append(path)
    found["docs"] = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    found["tools"] = sorted((ROOT / "tools").rglob("*.py"))
    return dict(found)


MOST: dict[str, int] = {}


def in_package(package: str) -> list[Hit]:
    return [hit for path in sources()[package] for hit in hits(path)]


@pytest.mark.parametrize("package", sorted(sources()))
def test_retired_words_become_fewer(package):
    found = in_package(package)
    assert len(found) <= MOST.get(package, 0), "\n".join(f"{file}:{line}: {word}" for file, line, word in found)


def test_words_are_found_in_names_strings_and_comments():
    source = 'def told_own(x):\n    """A thing."""\n    return f"{x} judged"  # a strange place\n'
    found = [word for _, word in in_python(source)]
    assert found == ["told", "thing", "judged", "strange", "place"]
    assert list(in_python('key = f"place {k}"  # nothing else\n')) == []
    assert list(in_python('KEYS = {\n    "things": "objects",\n}\n')) == []
    assert ast.parse(source)


if __name__ == "__main__":
    for name in sys.argv[1:] or sorted(sources()):
        for file, line, word in in_package(name):
            print(f"{file}:{line}: {word}")
