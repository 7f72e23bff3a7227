"""What the documents say is there, is there; what they show as code, runs."""

import re
from pathlib import Path

import pytest

from tessera.cli import VERBS, main

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)


def blocks(page: Path, language: str) -> list[str]:
    return [body for kind, body in BLOCK.findall(page.read_text()) if kind == language]


def commands() -> list[tuple[str, str]]:
    """(page, what follows `tessera`) of every command line in the documents."""
    lines = [
        (page, line.strip()) for page in PAGES for body in blocks(page, "sh") for line in body.splitlines()
    ]
    return [(page.name, line.removeprefix("tessera ")) for page, line in lines if line.startswith("tessera ")]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_relative_links_lead_somewhere(page):
    targets = [
        link for link in LINK.findall(page.read_text()) if not link.startswith(("http", "#", "mailto:"))
    ]
    lost = [link for link in targets if not (page.parent / link.partition("#")[0]).exists()]
    assert lost == []


def test_there_are_links_to_check():
    assert sum(len(LINK.findall(page.read_text())) for page in PAGES) > 10


def test_tables_are_those_of_the_records(capsys):
    with pytest.raises(SystemExit) as leaving:
        main(["tables", "--root", str(ROOT), "--check"])
    assert leaving.value.code == 0, capsys.readouterr().err


@pytest.mark.parametrize(("page", "words"), commands())
def test_every_command_shown_is_a_verb_with_these_options(page, words, capsys):
    given = words.partition(" #")[0].split()
    verb = next(name for n in (2, 1) if (name := " ".join(given[:n])) in VERBS)
    with pytest.raises(SystemExit) as leaving:
        main([*verb.split(), "--help"])
    known = capsys.readouterr().out
    asked = {word for word in given if word.startswith("--")}
    assert leaving.value.code == 0
    assert {option for option in asked if option not in known} == set()


@pytest.mark.parametrize("number", range(len(blocks(ROOT / "README.md", "python"))))
def test_the_programs_of_the_readme_run(number, capsys):
    exec(compile(blocks(ROOT / "README.md", "python")[number], f"README.md block {number}", "exec"), {})
    assert capsys.readouterr().out


def test_the_tree_in_the_readme_is_the_tree():
    tree = blocks(ROOT / "README.md", "")[0]
    shown = {line.split()[0].rstrip("/") for line in tree.splitlines() if line.startswith("  ")}
    package = ROOT / "src" / "tessera"
    folders = {path.parent.name for path in package.glob("*/__init__.py")}
    assert folders <= shown
    assert all((package / name).exists() for name in shown)
