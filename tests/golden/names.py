"""How the words of the golden files, which keep the names of the day they were made, read today.

Whoever renames a key, a vocabulary word or a sentence edits this table, never the golden files. Applied in this
order to every golden file before it is compared: RESHAPE, KEYS (and KEYS_OF), VALUES (and VALUES_OF), PROSE.
"""

from collections.abc import Callable
from typing import Any

Json = Any

KEYS: dict[str, str] = {}
"""Old key -> new key, of every file."""

KEYS_OF: dict[str, dict[str, str]] = {}
"""Golden file -> old key -> new key, where one key became several; these go before KEYS."""

VALUES: dict[str, str] = {}
"""Old string -> new string, for whole strings: words of the vocabulary, such as "plain"."""

VALUES_OF: dict[str, dict[str, str]] = {}
"""New key -> old string -> new string, where the same word became several; these go before VALUES."""

PROSE: list[tuple[str, str]] = []
"""(Regular expression, replacement), applied in order to every string that has a space in it: sentences."""

RESHAPE: dict[str, Callable[[Json], Json]] = {}
"""Golden file -> function of its content, where more than names has changed, such as the shape of an interval."""

ADDED: set[str] = set()
"""New keys that may be there although the golden file has none like them."""

GONE: set[str] = set()
"""Old keys that need not be there any more (and are not compared)."""

IGNORED: set[str] = {
    "commit",
    "date",
    "device",
    "file",
    "folder",
    "numpy",
    "path",
    "provenance",
    "python",
    "tessera",
    "torch",
}
"""Keys in old or new words whose values are not kept or compared: times, places on disk, versions, hardware.

So are all that end with `seconds` or `per_second`."""
