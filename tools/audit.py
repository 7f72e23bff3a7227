"""What Tessera depends on: licenses from the installed metadata, and known vulnerabilities of the pinned versions.

    python tools/audit.py

Exit code 1 if a license does not go with ours, or a pinned version has a known vulnerability. Advisories come from
OSV (the Python advisory database that pip-audit reads, too); where it cannot be reached, that half is skipped with a word.
"""

import itertools
import json
import re
import tomllib
import urllib.request
from dataclasses import dataclass
from importlib.metadata import Distribution, distribution, distributions
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

from _common import program
from tessera.console import answer, say, table_of
from tessera.rows import Rows

ROOT = Path(__file__).parents[1]
OSV = "https://api.osv.dev/v1/querybatch"
_SECONDS = 20  # to wait for the advisories
_GO_WITH_OURS = re.compile(
    r"\b(MIT|BSD|Apache|PSF|Python Software Foundation|ISC|MPL|Mozilla|HPND|Unlicense|Zlib|0BSD|CC0|Public Domain|CNRI)",
    re.I,
)
_BINDS_OURS = re.compile(r"\b(A?GPL|GNU (Affero )?General Public|SSPL|Proprietary|Commercial)", re.I)
_FROM_NVIDIA = re.compile(r"nvidia-|cuda-", re.I)  # torch fetches them for GPUs; free to use, and we pass none of it on


@dataclass(frozen=True)
class Audit:
    """Compare licenses and versions of all that Tessera needs, with every extra of `all`."""

    constraints: Path = ROOT / "constraints.txt"
    """Pinned versions."""
    url: str = OSV
    """Where advisories are looked up."""

    def run(self) -> int:
        rows: Rows = [["package", "license", ""]]
        doubtful = []
        for found in needed():
            text = license_of(found)
            fits = goes_with_ours(text) or _FROM_NVIDIA.match(found.name)
            doubtful += [] if fits else [f"{found.name}: {text or 'no license is named'}"]
            rows.append([f"{found.name} {found.version}", text[:60], "" if fits else "to be looked at"])
        answer(table_of(rows))
        known = advisories(pinned(self.constraints), self.url)
        if known is None:
            say(f"Advisories were not looked up: {self.url} cannot be reached.")
        for line in [*doubtful, *(known or [])]:
            say(line)
        return int(bool(doubtful or known))


def goes_with_ours(text: str) -> bool:
    return bool(_GO_WITH_OURS.search(text)) and not _BINDS_OURS.search(text)


def needed() -> list[Distribution]:
    """The installed distributions that ours needs, and those that they need, by name."""
    installed = {_plain(one.name): one for one in distributions() if one.name}
    found: dict[str, Distribution] = {}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = [project["optional-dependencies"][name] for name in ("explorer", "hub", "t2i", "track")]
    waiting = [Requirement(text) for text in [*project["dependencies"], *itertools.chain(*extras)]]
    while waiting:
        name = _plain(waiting.pop().name)
        if name in found or name not in installed or name == "tessera-diffusion":
            continue
        found[name] = installed[name]
        for text in distribution(name).requires or []:
            inner = Requirement(text)
            if inner.marker is None or inner.marker.evaluate({"extra": ""}):
                waiting.append(inner)
    return [found[name] for name in sorted(found)]


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def license_of(found: Distribution) -> str:
    """The expression, else the classifiers, else the first line of the text."""
    about: Any = found.metadata
    classifiers = [
        one.rpartition(" :: ")[2] for one in about.get_all("Classifier") or [] if one.startswith("License ::")
    ]
    text = about.get("License-Expression") or ", ".join(classifiers) or about.get("License") or ""
    return text.strip().partition("\n")[0]


def pinned(file: Path) -> list[tuple[str, str]]:
    lines = [line.partition("#")[0].strip() for line in file.read_text().splitlines()]
    return [(name, version) for name, equals, version in (line.partition("==") for line in lines) if equals]


def advisories(versions: list[tuple[str, str]], url: str = OSV) -> list[str] | None:
    """A line for each version with known vulnerabilities; None where they cannot be had."""
    queries = [{"package": {"name": name, "ecosystem": "PyPI"}, "version": version} for name, version in versions]
    request = urllib.request.Request(
        url, json.dumps({"queries": queries}).encode(), {"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=_SECONDS) as reply:
            results: list[dict[str, Any]] = json.load(reply)["results"]
    except (OSError, ValueError, KeyError):
        return None
    lines = []
    for (name, version), result in zip(versions, results):
        if ids := [one["id"] for one in result.get("vulns", [])]:
            lines.append(f"{name} {version} has known vulnerabilities: {', '.join(ids)}")
    return lines


main = program(Audit)

if __name__ == "__main__":
    main()
