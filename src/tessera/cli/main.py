"""One verb per stage of the journey. A verb's module is imported only when the verb is called."""

import contextlib
import dataclasses
import difflib
import importlib
import inspect
import io
import math
import os
import re
import sys
import types
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

from tessera.errors import UserError
from tessera.files import check_writable
from tessera.version import __version__

FILES = (".json", ".html", ".htm", ".png", ".webp", ".svg", ".gif")  # what `--out` may be, if it is no folder


class Verb(NamedTuple):
    where: str  # module:Dataclass; the dataclass holds the options and has `run()`
    does: str


VERBS = {
    "render": Verb("tessera.cli.render:Render", "draw scenes: images, masks, depth, shards"),
    "train": Verb("tessera.cli.train:Train", "train an experiment, or carry it on"),
    "ema": Verb("tessera.cli.train:Ema", "a model with a running average of any length"),
    "sample": Verb("tessera.cli.sample:Sample", "make images with a run or a model"),
    "dynamics run": Verb("tessera.cli.dynamics:DynamicsRun", "one run of the identity-map model"),
    "dynamics sweep": Verb("tessera.cli.dynamics:DynamicsSweep", "phase diagrams of swing-by"),
    "dynamics figure": Verb("tessera.cli.dynamics:DynamicsFigure", "the swing-by paper's figures"),
    "evaluate": Verb("tessera.cli.evaluate:Evaluate", "count what images show, and K_max with intervals"),
    "detector explain": Verb("tessera.cli.evaluate:Explain", "what the detector sees in one image, in words"),
    "detector calibrate": Verb(
        "tessera.cli.evaluate:Calibrate", "how far the detector can be trusted, for every K"
    ),
    "locality": Verb("tessera.cli.locality:Locality", "which pixels and which conditions move a pixel"),
    "locality scatter": Verb(
        "tessera.cli.locality:LocalityScatter", "length generalization against locality"
    ),
    "features": Verb("tessera.cli.features:Features", "are conditions disentangled inside a model"),
    "sdxl locality": Verb("tessera.cli.t2i:SdxlLocality", "which latents and words move a cell, in SDXL"),
    "sdxl words": Verb("tessera.cli.t2i:SdxlWords", "where words act in SDXL, and by which path"),
    "sdxl features": Verb("tessera.cli.t2i:SdxlFeatures", "do concepts lie apart inside SDXL"),
    "theory check": Verb("tessera.cli.theory:TheoryCheck", "the theory's statements, tried out"),
    "theory ideal": Verb("tessera.cli.closed_form:TheoryIdeal", "sample and evaluate a closed-form denoiser"),
    "report": Verb("tessera.cli.report:Report", "one page: how far a model composes, why, and how we know"),
    "reproduce": Verb(
        "tessera.cli.reproduce:Reproduce", "the paper's tables and figures: train, sample, evaluate"
    ),
    "reproduce status": Verb("tessera.cli.reproduce:Status", "every cell of the study beside the paper's"),
    "reproduce fig12": Verb(
        "tessera.studies.clevr.fig12:ReproduceFig12", "pixel locality on CIFAR-10 (Figure 12)"
    ),
    "reproduce learning": Verb(
        "tessera.studies.clevr.learning:ReproduceLearning", "K_max and shares along training"
    ),
    "reproduce scatter": Verb(
        "tessera.studies.clevr.scatter:ReproduceScatter",
        "locality against K_max along training (Figure 2, right)",
    ),
    "reproduce composition": Verb(
        "tessera.studies.clevr.composition:ReproduceComposition", "make a failing model compose, untrained"
    ),
    "reproduce crowding": Verb(
        "tessera.studies.clevr.crowding:ReproduceCrowding",
        "does a model fail at many objects, or at close ones",
    ),
    "reproduce swingby": Verb(
        "tessera.cli.swingby:ReproduceSwingby", "swing-by in a diffusion model of circles"
    ),
    "zoo list": Verb("tessera.studies.clevr.zoo:ZooList", "the models that come with Tessera"),
    "explore": Verb("tessera.cli.explore:Explore", "a page to play with models: prompt, draw, probe"),
    "explore probe": Verb("tessera.cli.explore:ExploreProbe", "what moves one pixel of one image"),
    "demo": Verb("tessera.cli.demo:Demo", "a first look, from nothing to images on disk"),
}


def main(words: list[str] | None = None) -> None:
    """Entry point of the `tessera` command."""
    words = sys.argv[1:] if words is None else words
    try:
        sys.exit(dispatch(words) or 0)
    except UserError as error:
        print(f"tessera: {' '.join(str(error).split())}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("tessera: stopped.", file=sys.stderr)
        sys.exit(130)
    except (MemoryError, RuntimeError) as error:
        if not wants_memory(error):
            raise
        print("tessera: There is not enough memory for this; ask for less at a time.", file=sys.stderr)
        sys.exit(2)
    except BrokenPipeError:  # the reader of our output left early, as `| head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)


def dispatch(words: list[str]) -> int | None:
    if not words or words[0] in ("-h", "--help", "help"):
        print(overview())
        return 0
    if words[0] in ("-V", "--version"):
        print(f"tessera {__version__}")
        return 0
    name, rest = split_verb(words)
    options = parse(name, rest)
    check_numbers(options)
    check_out(options)
    return options.run()


def check_numbers(options: Any) -> None:
    """No option takes NaN or infinity, and nothing takes less than no time."""
    for option in dataclasses.fields(options):
        value = getattr(options, option.name)
        if dataclasses.is_dataclass(value):
            check_numbers(value)
        numbers = value if isinstance(value, tuple | list) else [value]
        if any(isinstance(number, float) and not math.isfinite(number) for number in numbers):
            raise UserError(f"--{option.name.replace('_', '-')} takes a finite number, not {value}.")
        if option.name.endswith("minutes") and value is not None and value < 0:
            raise UserError(f"--{option.name.replace('_', '-')} cannot be negative, as {value:g} is.")


def check_out(options: Any) -> None:
    """A file that cannot be written is told before the work is done, not after it."""
    out = getattr(options, "out", None)
    if isinstance(out, Path) and out.suffix.lower() in FILES:
        check_writable(out)


def wants_memory(error: Exception) -> bool:
    """Whether it is torch's, or Python's, way to say that memory ran out."""
    said = str(error).lower()
    ways = ("out of memory", "not enough memory", "allocate memory")
    return isinstance(error, MemoryError) or any(words in said for words in ways)


def split_verb(words: list[str]) -> tuple[str, list[str]]:
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


def parse(name: str, words: list[str]):
    """The verb's options as its dataclass, or one sentence about the word that does not fit."""
    import tyro

    module, attribute = VERBS[name].where.split(":")
    options = silent_about_none(getattr(importlib.import_module(module), attribute))
    asked_for_help = any(word in ("-h", "--help") for word in words)
    complaint = io.StringIO()
    with contextlib.nullcontext() if asked_for_help else contextlib.redirect_stderr(complaint):
        try:
            return tyro.cli(
                options,
                args=words,
                prog=f"tessera {name}",
                description=options.__doc__,
                config=(tyro.conf.FlagCreatePairsOff, tyro.conf.OmitArgPrefixes),
            )
        except SystemExit as leaving:
            if leaving.code == 0:
                raise
    raise UserError(f"{one_sentence(complaint.getvalue())} See `tessera {name} --help`.")


def silent_about_none(options: type) -> type:
    """The same options, whose help does not speak of None: what leaving one out means is in its own words."""
    import tyro

    for option in dataclasses.fields(options):
        owner = next(part for part in options.__mro__ if option.name in inspect.get_annotations(part))
        kind = owner.__annotations__[option.name]
        if get_origin(kind) in (Union, types.UnionType):
            usual = "" if option.default is None else f"(default: {option.default})"
            relevant = tyro.conf.arg(metavar=metavar(kind), help_behavior_hint=usual)
            owner.__annotations__[option.name] = Annotated[kind, relevant]
    return options


def metavar(kind: Any) -> str:
    """`INT` for int | None, `{all,one}` for a choice or None."""
    (plain,) = (part for part in get_args(kind) if part is not type(None))
    if get_origin(plain) is Literal:
        return "{" + ",".join(map(str, get_args(plain))) + "}"
    return plain.__name__.upper()


def one_sentence(box: str) -> str:
    """What the parser complains of, without its boxes and its help texts, on one line."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", box)
    rows = [re.sub(r"^│ ?|\s*│$", "", row) for row in plain.splitlines()]
    sections = re.split(r"\n{2,}", "\n".join(rule_off(row) for row in rows))
    if "│" not in plain:  # where only ASCII can be shown, the box's title has a line of its own
        sections = sections[1:]
    relevant = [
        section
        for section in sections
        if not section.lstrip().startswith(("For full", "Argument help", "in "))
    ]
    shallow = [
        [row.strip() for row in section.splitlines() if not row.startswith(" " * 8)] for section in relevant
    ]
    return in_words(". ".join(" ".join(rows).rstrip(".") for rows in shallow if any(rows)).strip() + ".")


KINDS = {"INT": "a whole number", "FLOAT": "a number"}
COMPLAINTS = (
    (
        r"Error parsing (\S+): no type matching \{None\}\|(\w+) could be instantiated from \['(.*?)'\]\..*",
        None,
    ),
    (r"Error parsing (\S+): (invalid literal for int\(\) with base 10): '(.*?)'\.", "INT"),
    (r"Error parsing (\S+): (could not convert string to float): '(.*?)'\.", "FLOAT"),
)


def in_words(complaint: str) -> str:
    """What Python says of a value that is no number, as a person would; other complaints as they are."""
    for pattern, known in COMPLAINTS:
        if found := re.fullmatch(pattern, complaint):
            kind = known or found[2]
            return f"{found[1]} takes {KINDS.get(kind, kind)}, not `{found[3]}`."
    return complaint.replace("'None', ", "").replace(", 'None'", "")


def rule_off(row: str) -> str:
    """Borders and rules of a box become empty rows, which part its sections."""
    return "\n" if re.match(r"^[╭╰─]|^ *-{4,} *$", row) else row


def overview(names: list[str] | None = None) -> str:
    shown = names or list(VERBS)
    width = max(len(name) for name in shown)
    rows = [f"  {name:<{width}}  {VERBS[name].does}" for name in shown]
    head = "Tessera tells whether a conditional diffusion model composes, shows why, and makes it compose."
    return "\n".join(
        [head, "", "usage: tessera VERB [options]", "", *rows, "", "`tessera VERB --help` explains each."]
    )


if __name__ == "__main__":
    main()
