"""The exception for bad input, whose message is shown to the user."""

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """Bad input, described in one sentence. The command line prints it to stderr and exits with code 2, without a traceback."""


def suggestion(name: object, known: Iterable[str], cutoff: float = 0.4) -> str:
    """The end of a sentence about an unknown name: the nearest of those that are known, or all of them."""
    names = list(known)
    near = difflib.get_close_matches(str(name), names, n=1, cutoff=cutoff)
    if near:
        return f"did you mean `{near[0]}`?"
    return f"known are {', '.join(names)}." if names else "none is known."
