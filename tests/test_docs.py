"""What the documents say is there, is there; what they show as code, runs."""

import importlib
import re
import tomllib
from pathlib import Path

import pytest

from programs import TOOLS, call_program
from tessera.cli.main import VERBS, main

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)


def blocks(page: Path, language: str) -> list[str]:
    return [body for kind, body in BLOCK.findall(page.read_text()) if kind == language]


def commands() -> list[tuple[str, str]]:
    """(page, what follows `tessera`) of every command line in the documents."""
    lines = [(page, line.strip()) for page in PAGES for body in blocks(page, "sh") for line in body.splitlines()]
    return [(page.name, line.removeprefix("tessera ")) for page, line in lines if line.startswith("tessera ")]


def anchors(page: Path) -> set[str]:
    """What a heading can be linked by: lower case, without marks, spaces as hyphens; repeated ones numbered."""
    prose = BLOCK.sub("", page.read_text())
    slugs: list[str] = []
    for heading in re.findall(r"^#+ +(.*?)\s*$", prose, re.MULTILINE):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        slug = re.sub(r"[^\w\- ]", "", words).replace(" ", "-")
        slugs.append(f"{slug}-{slugs.count(slug)}" if slug in slugs else slug)
    return set(slugs)


def is_lost(page: Path, link: str) -> bool:
    """Whether a relative link names a file that is not there, or a heading its page does not have."""
    file, _, anchor = link.partition("#")
    target = page.parent / file if file else page
    return not target.exists() or bool(anchor and anchor not in anchors(target))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files_and_headings_that_are_there(page):
    links = [link for link in LINK.findall(BLOCK.sub("", page.read_text())) if not link.startswith(("http", "mailto:"))]
    assert [link for link in links if is_lost(page, link)] == []


def test_a_lost_link_would_be_found(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# A `title`, twice\n## Part\n## Part\n```sh\n# no heading\n```\n")
    assert anchors(page) == {"a-title-twice", "part", "part-1"}
    lost = [
        link for link in ("page.md#part-1", "#part", "#no-heading", "gone.md", "page.md#gone") if is_lost(page, link)
    ]
    assert lost == ["#no-heading", "gone.md", "page.md#gone"]


def test_every_page_can_be_reached_from_the_front_pages():
    reached, new = set(), {ROOT / "README.md", ROOT / "docs" / "README.md"}
    while new:
        reached |= new
        links = {
            (page.parent / link.partition("#")[0]).resolve() for page in new for link in LINK.findall(page.read_text())
        }
        new = {page for page in links if page.suffix == ".md" and page.is_file()} - reached
    assert {page.resolve() for page in (ROOT / "docs").rglob("*.md")} <= reached


def test_there_are_links_to_check():
    assert sum(len(LINK.findall(page.read_text())) for page in PAGES) > 10


def test_tables_are_those_of_the_records(capsys):
    assert call_program("write_tables", "--root", ROOT, "--check") == 0, capsys.readouterr().err


@pytest.mark.parametrize(("page", "words"), commands())
def test_every_command_shown_is_a_verb_with_these_options(page, words, capsys):
    given = words.partition(" #")[0].split()
    verb = next(name for n in (2, 1) if (name := " ".join(given[:n])) in VERBS)
    with pytest.raises(SystemExit) as leaving:
        main([*verb.split(), "--help"])
    known = capsys.readouterr().out
    requested = {word for word in given if word.startswith("--")}
    assert leaving.value.code == 0
    assert {option for option in requested if option not in known} == set()


def programs() -> list[tuple[str, str, str]]:
    """(page, name, words) of every `python tools/NAME.py WORDS` in the documents."""
    command = re.compile(r"python tools/(\w+)\.py\b *([^`#\n]*)")
    return [(page.name, *found) for page in PAGES for found in command.findall(page.read_text())]


@pytest.mark.parametrize(("page", "name", "words"), programs())
def test_every_program_shown_is_there_with_these_options(page, name, words, capsys):
    given = words.split()
    what = given[:1] if name == "bench" else []
    assert (TOOLS / f"{name}.py").is_file()
    if not hasattr(importlib.import_module(name), "main") or name in ("compare_speed", "search"):
        return
    assert call_program(name, *what, "--help") == 0
    known = capsys.readouterr().out
    assert {word for word in given if word.startswith("--") and word not in known} == set()


SHORTER = {  # the README's programs with fewer samples, so that they take seconds
    "range(13), samples=64": "range(3), samples=1, steps=4",
    "num_objects=4": "num_objects=2, images=1, levels=2, steps=4",
}


def imported_names() -> list[tuple[str, str, str]]:
    """(page, module, name) of every `from tessera... import ...` in the documents' Python."""
    line = re.compile(r"^from (tessera[\w.]*) import ([\w, ]+)$", re.MULTILINE)
    found = []
    for page in PAGES:
        for body in blocks(page, "python"):
            for module, names in line.findall(body):
                found += [(page.name, module, name.strip()) for name in names.split(",")]
    return found


@pytest.mark.parametrize(("page", "module", "name"), imported_names())
def test_every_name_that_the_documents_import_is_there(page, module, name):
    assert hasattr(importlib.import_module(module), name)


@pytest.mark.parametrize("number", range(len(blocks(ROOT / "README.md", "python"))))
def test_the_programs_of_the_readme_run(number):
    program = blocks(ROOT / "README.md", "python")[number]
    for full, short in SHORTER.items():
        program = program.replace(full, short)
    names = {}
    exec(compile(program, f"README.md block {number}", "exec"), names)
    assert names["model"].size in (32, 64)
    if number == 0:
        assert names["images"].shape == (4, 3, 64, 64)
        assert names["curve"].k_max.value is not None and names["local"].conditional_locality.n == 1
        assert all(len(score.found) == 2 for score in names["result"].images)


def test_the_readme_is_short_and_the_first_program_has_six_lines():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 120
    lines = [line for line in blocks(ROOT / "README.md", "python")[0].splitlines() if line.strip()]
    assert len(lines) == 6 and all(short in "\n".join(lines) for short in SHORTER)


def test_the_tree_in_the_readme_is_the_tree():
    tree = blocks(ROOT / "README.md", "")[0]
    shown = {line.split()[0].rstrip("/") for line in tree.splitlines() if line.startswith("  ")}
    package = ROOT / "src" / "tessera"
    folders = {path.parent.name for path in package.glob("*/__init__.py")}
    assert folders <= shown
    assert all((package / name).exists() for name in shown)


PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
INSTALL = re.compile(r"pip install (?:-e )?[\"']?([\w.-]+)(?:\[([\w,-]+)\])?")
DISTRIBUTION = "tessera-diffusion"  # `tessera` on PyPI is another project
TEXTS = (".md", ".py", ".js", ".html", ".ipynb")
OTHERS = {"bpy", "torch"}  # Blender's module, for another interpreter; PyTorch's build for the machine


NEEDED = re.compile(
    r"(?:needs_extra|_EXTRA = )\(\s*f?\"[^\"]*\",\s*\"(\w+)\""
)  # calls that hint at an extra, and their arguments


def install_hints(text: str) -> list[tuple[str, set[str]]]:
    """What is installed, and its extras."""
    written = [(name, set(extras.split(",")) if extras else set()) for name, extras in INSTALL.findall(text)]
    return written + [(DISTRIBUTION, {extra}) for extra in NEEDED.findall(text)]


def test_install_hints_name_our_distribution_and_extras_it_has():
    sources = [path for folder in ("src", "docs") for path in (ROOT / folder).rglob("*") if path.suffix in TEXTS]
    hints = [(path.name, *hint) for path in [ROOT / "README.md", *sources] for hint in install_hints(path.read_text())]
    assert len(hints) > 8
    for page, name, extras in hints:
        assert name in {DISTRIBUTION, ".", *OTHERS}, page
        assert extras <= PROJECT["optional-dependencies"].keys(), page


def test_the_extra_of_all_extras_is_made_of_our_own():
    (every,) = PROJECT["optional-dependencies"]["all"]
    name, _, extras = every.rstrip("]").partition("[")
    assert name == PROJECT["name"] == DISTRIBUTION
    assert set(extras.split(",")) == PROJECT["optional-dependencies"].keys() - {"all", "blender", "dev"}


def test_an_install_hint_for_somebody_elses_project_would_be_found():
    text = "pip install 'tessera[track]'; pip install -e \".[dev,hub]\""
    assert install_hints(text) == [("tessera", {"track"}), (".", {"dev", "hub"})]
    assert install_hints('with needs_extra("TensorBoard is not installed", "track", "x"):') == [
        (DISTRIBUTION, {"track"})
    ]
