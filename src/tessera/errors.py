"""The exception for bad input, whose message is shown to the user, and sentences that many parts say."""

import difflib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager


class UserError(Exception):
    """Bad input, described in one sentence. The command line prints it to stderr and exits with code 2, without a traceback."""


def suggestion(name: object, known: Iterable[str], cutoff: float = 0.4) -> str:
    """The end of a sentence about an unknown name: the nearest of those that are known, or all of them."""
    names = list(known)
    near = difflib.get_close_matches(str(name), names, n=1, cutoff=cutoff)
    if near:
        return f"did you mean `{near[0]}`?"
    return f"known are {', '.join(names)}." if names else "none is known."


@contextmanager
def needs_extra(what: str, extra: str, *modules: str) -> Iterator[None]:
    """Imports that fail because one of these modules of an extra is missing say so; any other failure keeps its words."""
    try:
        yield
    except ImportError as error:
        if (error.name or "").partition(".")[0] not in modules:
            raise
        raise UserError(f"{what}: pip install 'tessera-diffusion[{extra}]'.") from error
