"""One verb per stage of a study. A verb's module is imported only when the verb is called."""

import dataclasses
import difflib
import errno
import importlib
import io
import math
import os
import signal
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from tessera.errors import UserError
from tessera.files import check_writable
from tessera.version import __version__

FILES = (".json", ".html", ".htm", ".png", ".webp", ".svg", ".gif")  # what `--out` may be, if it is no folder
PRINT_COMPLETION = "--print-completion"


class _Verb(NamedTuple):
    where: str  # module:Dataclass; the dataclass holds the options and has `run()`
    does: str


VERBS = {
    "demo": _Verb("tessera.cli.demo:Demo", "shipped models, evaluated, with a report"),
    "render": _Verb("tessera.cli.render:Render", "render scenes to images, masks, depth, shards"),
    "train": _Verb("tessera.cli.train:Train", "train an experiment, or carry it on"),
    "sample": _Verb("tessera.cli.sample:Sample", "sample images from a run or a model"),
    "evaluate": _Verb("tessera.cli.evaluate:Evaluate", "detections, shares for every K, K_max with intervals"),
    "locality": _Verb("tessera.cli.locality:Locality", "which pixels and which conditions influence a pixel"),
    "features": _Verb("tessera.cli.features:Features", "concept directions inside a network"),
    "report": _Verb("tessera.cli.report:Report", "one page: how far models length-generalize, and why"),
    "explore": _Verb("tessera.cli.explore:Explore", "a page to prompt, sample and probe models"),
    "models": _Verb("tessera.cli.models:Models", "the models that come with Tessera"),
    "models export": _Verb("tessera.cli.models:ModelsExport", "a model folder from a run, for an EMA of any length"),
    "reproduce": _Verb("tessera.cli.reproduce:Reproduce", "tables, figures and studies: train, sample, evaluate"),
    "reproduce status": _Verb("tessera.cli.reproduce:Status", "every cell of the study beside the paper's"),
    "t2i locality": _Verb("tessera.cli.t2i:T2iLocality", "which latents and words influence a cell, in SDXL"),
    "t2i words": _Verb("tessera.cli.t2i:T2iWords", "where words act in SDXL, and by which path"),
    "t2i features": _Verb("tessera.cli.t2i:T2iFeatures", "concept directions inside SDXL"),
    "dynamics run": _Verb("tessera.cli.dynamics:DynamicsRun", "one run of the structured identity mapping"),
    "dynamics sweep": _Verb("tessera.cli.dynamics:DynamicsSweep", "phase diagrams of swing-by"),
    "dynamics figure": _Verb("tessera.cli.dynamics:DynamicsFigure", "figures of the swing-by paper"),
    "detector calibrate": _Verb("tessera.cli.evaluate:Calibrate", "the detector's own error, for every K"),
}


def main(words: list[str] | None = None) -> None:
    """Entry point of the `tessera` command."""
    words = sys.argv[1:] if words is None else words
    for stream in (sys.stdout, sys.stderr):  # where the locale has no name for a letter, it is spelled out
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        with _stopped_by_sigterm():
            code = dispatch(words) or 0
            sys.stdout.flush()
        sys.exit(code)
    except UserError as error:
        _leave(2, str(error))
    except KeyboardInterrupt:
        _leave(130, "stopped.")
    except (MemoryError, RuntimeError) as error:
        if not _is_out_of_memory(error):
            raise
        _leave(2, "There is not enough memory for this; reduce the batch or the number of images.")
    except _Terminated:
        _leave(128 + signal.SIGTERM, "stopped.")
    except BrokenPipeError:  # the reader of our output left early, as `| head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except OSError as error:  # a full disk behind stdout, a name too long, a folder that may not be read
        if error.errno == errno.ENOSPC:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        what = str(error.filename)[:200] if error.filename else "The output"
        _leave(2, f"{what} cannot be read or written: {error.strerror or error}.")


class _Terminated(BaseException):
    """SIGTERM: what is open is closed and half-written files are removed on the way out."""


@contextmanager
def _stopped_by_sigterm() -> Iterator[None]:
    def stop(number, frame):
        raise _Terminated

    if threading.current_thread() is not threading.main_thread():  # only there can signals be handled
        yield
        return
    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _leave(code: int, sentence: str) -> None:
    print(f"tessera: {' '.join(sentence.split())}", file=sys.stderr)
    sys.exit(code)


def dispatch(words: list[str]) -> int | None:
    if not words or words[0] in ("-h", "--help", "help"):
        print(overview())
        return 0
    if words[0] in ("-V", "--version"):
        print(f"tessera {__version__}")
        return 0
    if words[0] == PRINT_COMPLETION:
        from tessera.cli.completion import completion_script

        print(completion_script(words[1:]))
        return 0
    name, rest = _split_verb(words)
    options = parse(name, rest)
    _check_numbers(options)
    _check_out(options)
    if hasattr(options, "threads"):
        from tessera.devices import keep_memory, use_threads

        keep_memory()
        use_threads(options.threads)
    if getattr(options, "conditioner", None):
        from tessera.models.loading import use_conditioner

        use_conditioner(options.conditioner)
    return options.run()


def _check_numbers(options: Any) -> None:
    """No option takes NaN or infinity, and nothing takes less than no time."""
    for option in dataclasses.fields(options):
        value = getattr(options, option.name)
        if dataclasses.is_dataclass(value):
            _check_numbers(value)
        numbers = value if isinstance(value, tuple | list) else [value]
        if any(isinstance(number, float) and not math.isfinite(number) for number in numbers):
            raise UserError(f"--{option.name.replace('_', '-')} takes a finite number, not {value}.")
        if option.name.endswith("minutes") and value is not None and value < 0:
            raise UserError(f"--{option.name.replace('_', '-')} cannot be negative, as {value:g} is.")


def _check_out(options: Any) -> None:
    """A file that cannot be written is reported before the work is done, not after it."""
    out = getattr(options, "out", None)
    if isinstance(out, Path) and out.suffix.lower() in FILES:
        check_writable(out)


def _is_out_of_memory(error: Exception) -> bool:
    """Whether it is torch's, or Python's, way to say that memory ran out."""
    said = str(error).lower()
    ways = ("out of memory", "not enough memory", "allocate memory")
    return isinstance(error, MemoryError) or any(words in said for words in ways)


def _split_verb(words: list[str]) -> tuple[str, list[str]]:
    """The longest verb the words begin with, and what follows it."""
    for length in (2, 1):
        name = " ".join(words[:length])
        if len(words) >= length and name in VERBS:
            return name, words[length:]
    family = [name for name in VERBS if name.startswith(words[0] + " ")]
    if family and (len(words) == 1 or words[1] in ("-h", "--help")):
        print(overview(family))
        sys.exit(0)
    wrong = " ".join(words[:2]) if family else words[0]
    near = difflib.get_close_matches(wrong, family or VERBS, n=1, cutoff=0.5)
    hint = f"did you mean `{near[0]}`?" if near else "see `tessera --help`."
    raise UserError(f"There is no verb `{wrong}`; {hint}")


def options_class(name: str) -> type:
    module, attribute = VERBS[name].where.split(":")
    return getattr(importlib.import_module(module), attribute)


def parse(name: str, words: list[str]) -> Any:
    """The verb's options as its dataclass, or one sentence about the word that does not fit.

    A verb whose options depend on others, such as the settings of an experiment, has a function `defaults(words)`.
    """
    import tyro

    from tessera.cli.options import description_of, with_changes
    from tessera.cli.refusals import one_sentence

    kind: Any = options_class(name)
    with one_sentence(kind, words), warnings.catch_warnings():
        # Settings of a conditioner that somebody else registers are of no class that tyro could know.
        warnings.filterwarnings("ignore", message=".*does not match any type in Union")
        options = tyro.cli(
            kind,
            args=words,
            prog=f"tessera {name}",
            description=description_of(kind),
            default=kind.defaults(words) if hasattr(kind, "defaults") else tyro.MISSING_NONPROP,
            config=(tyro.conf.FlagCreatePairsOff, tyro.conf.AvoidSubcommands, tyro.conf.SuppressFixed),
        )
    return with_changes(options, kind)


def overview(names: list[str] | None = None) -> str:
    shown = names or list(VERBS)
    width = max(len(name) for name in shown)
    rows = [f"  {name:<{width}}  {VERBS[name].does}" for name in shown]
    head = "Tessera measures compositional (length) generalization in conditional diffusion models."
    more = ["`tessera VERB --help` explains each; `tessera --print-completion bash|zsh` completes them."]
    return "\n".join([head, "", "usage: tessera VERB [options]", "", *rows, "", *more])


if __name__ == "__main__":
    main()
