"""Reading server-sent events as a page does."""

import json
from collections.abc import Iterator


def events(answer) -> Iterator[dict]:
    """Events of an answer as they come."""
    kind = None
    for line in answer:
        if line.startswith(b"event: "):
            kind = line[7:].decode().strip()
        elif line.startswith(b"data: "):
            yield {"event": kind, **json.loads(line[6:])}
