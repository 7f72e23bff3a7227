"""Names and records made to leave their folder or to run in a page: nothing outside changes, and no script is written."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from chaos_parts.world import QUICK, Ending, call

_SCRIPT = "<script>alert(1)</script>"
_ATTRIBUTE = '"><img src=x onerror=alert(1)>'


def _names(root: Path) -> tuple[str, ...]:
    """Names that lead out of a folder of the world."""
    return ("../victim.txt", str(root / "victim.txt"), "linked/victim.txt", "k01/../../victim.txt", "a\0b", "a" * 300)


def _sampled_again(root: Path, name: str) -> Ending:
    """`sample` into a folder whose record names a file elsewhere, to be replaced by other samples."""
    file = root / "samples/samples.json"
    record = json.loads(file.read_text())
    record["images"][0]["file"] = name
    file.write_text(json.dumps(record))
    given = ("--k", "1", "--each", "1", "--steps", "2", "--out", root / "samples", *QUICK)
    return call("sample", root / "run", *given)


def _evaluated(root: Path, name: str) -> Ending:
    (root / "prompts.json").write_text(json.dumps([{"file": name, "locations": [[0.3, 0.6]]}]))
    given = ("--prompts", root / "prompts.json", "--set", "resamples=10", "--device", "cpu")
    return call("evaluate", root / "samples", *given)


def _rendered(root: Path, name: str) -> Ending:
    """`render` over an earlier render whose scene file names a file elsewhere, and from it."""
    file = root / "renders/scenes.json"
    content = json.loads(file.read_text())
    content["scenes"][0]["image_filename"] = name
    file.write_text(json.dumps(content))
    call("render", "--scenes", file, "--size", "16", "--out", root / "new", *QUICK)
    return call("render", "--count", "2", "--size", "16", "--out", root / "renders", *QUICK)


def _sharded(root: Path, name: str) -> Ending:
    file = root / "shards/manifest.json"
    content = json.loads(file.read_text())
    content["shards"][0]["file"] = name
    file.write_text(json.dumps(content))
    return call("render", "--count", "6", "--size", "16", "--shards", "2", "--out", root / "shards", *QUICK)


_WAYS_OUT: tuple[Callable[[Path, str], Ending], ...] = (_sampled_again, _evaluated, _rendered, _sharded)


def hostile(world: Path) -> dict[str, Any]:
    """Files outside that changed, scripts in pages, and tracebacks on the way."""
    failures: list[str] = []
    tried = 0
    for way in _WAYS_OUT:
        for number in range(len(_names(world))):
            tried += 1
            failures += _left_its_folder(world, way, number)
    pages = 0
    for text in (_SCRIPT, _ATTRIBUTE):
        for record in sorted((world / "results").rglob("*.json")):
            pages += 1
            failures += _ran_in_a_page(world, record, text)
    return {"changed_outside_or_run": len(failures), "note": {"names": tried, "pages": pages}, "failures": failures}


def _left_its_folder(world: Path, way: Callable[[Path, str], Ending], number: int) -> list[str]:
    own = world.parent / "hostile" / "world"
    shutil.rmtree(own.parent, ignore_errors=True)
    shutil.copytree(world, own)
    for folder in (own, own.parent):
        (folder / "victim.txt").write_text("untouched")
    (own / "samples/linked").symlink_to(own)
    name = _names(own)[number]
    before = _outside(own)
    ending = way(own, name)
    now = _outside(own)
    failures = [f"{way.__name__} {name[:60]!r}: {path} changed" for path in before if now.get(path) != before[path]]
    failures += [f"{way.__name__} {name[:60]!r}: {path} is new" for path in now.keys() - before.keys()]
    if ending.code is None or "Traceback" in ending.said:
        failures.append(f"{way.__name__} {name[:60]!r}: {ending.said[-800:]}")
    return failures


def _outside(own: Path) -> dict[str, bytes]:
    """All files but those of the folders that the verbs may write."""
    written = ("samples", "renders", "shards", "new")
    files = [path for path in own.parent.rglob("*") if path.is_file() and path.name != "prompts.json"]
    return {str(p): p.read_bytes() for p in files if not any(p.is_relative_to(own / folder) for folder in written)}


def _ran_in_a_page(world: Path, record: Path, text: str) -> list[str]:
    """A page of a record in which every text is hostile."""
    own = world.parent / "hostile-page"
    shutil.rmtree(own, ignore_errors=True)
    own.mkdir()
    kept = ("kind", "tessera", "format", "cell", "preset", "name", "rule", "study", "axis")
    content = json.loads(record.read_text())
    (own / record.name).write_text(json.dumps(_with_text(content, text, kept)))
    ending = call("report", own / record.name, "--set", f"title={text}", "--out", own / "page.html")
    if ending.code is None:
        return [f"{record.name}: {ending.said[-800:]}"]
    page = own / "page.html"
    return [f"{record.name}: {text} is in its page"] if page.is_file() and text in page.read_text() else []


def _with_text(content: Any, text: str, kept: tuple[str, ...]) -> Any:
    if isinstance(content, str):
        return text
    if isinstance(content, list):
        return [_with_text(part, text, kept) for part in content]
    if isinstance(content, dict):
        return {name: value if name in kept else _with_text(value, text, kept) for name, value in content.items()}
    return content
