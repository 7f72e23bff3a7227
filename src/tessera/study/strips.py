"""A strip keeps the first few pictures of every K of a job as one small file, a row for each K, without gaps."""

from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tessera.errors import UserError
from tessera.images.pictures import COMPACT, load_png, save_compact
from tessera.judge.kmax import Training
from tessera.study.exam import Answers, succeeded

COLUMNS = 8  # as many as the paper looked at
STRIP = COMPACT


class Shown(NamedTuple):
    """One kept picture and the verdict on it."""

    picture: Tensor  # (3, H, W), 8-bit
    wanted: tuple[Any, ...]
    found: int
    extra: int
    ok: bool
    strange: bool = False  # not a scene the judge knows, so its word counts for little


def kept(answers: Answers) -> dict[int, list[int]]:
    """Numbers of the pictures that are kept, for each K."""
    rows: dict[int, list[int]] = {}
    for number, ask in enumerate(answers.asks):
        rows.setdefault(len(ask.wanted), []).append(number)
    return {k: numbers[:COLUMNS] for k, numbers in rows.items()}


def save_strip(path: Path, answers: Answers) -> None:
    rows = [torch.cat(list(answers.pictures[numbers]), dim=-1) for numbers in kept(answers).values()]
    save_compact(path, torch.cat(rows, dim=-2))


def shown_of(answers: Answers, training: Training) -> dict[int, list[Shown]]:
    """The pictures that would be kept, by K, and the verdicts on them."""
    asks, verdicts = answers.asks, answers.verdicts

    def show(number: int) -> Shown:
        verdict = verdicts[number]
        ok, strange = succeeded(verdict, training), answers.strange[number]
        return Shown(answers.pictures[number], asks[number].wanted, verdict.found, verdict.extra, ok, strange)

    return {k: [show(number) for number in numbers] for k, numbers in kept(answers).items()}


def shown_record(answers: Answers, training: Training) -> dict[str, list[list[int]]]:
    """Verdicts on the kept pictures by K: found, extra, whether it will do, and whether it is strange."""

    def brief(shown: Shown) -> list[int]:
        return [shown.found, shown.extra, int(shown.ok), int(shown.strange)]

    return {str(k): [brief(one) for one in row] for k, row in shown_of(answers, training).items()}


def load_strip(path: Path, record: dict[str, Any], wanted: dict[int, tuple]) -> dict[int, list[Shown]]:
    """The kept pictures of a record, by K."""
    strip = load_png(path)
    shown = record["shown"]
    size = strip.shape[-2] // len(shown)
    columns = len(next(iter(shown.values())))
    if strip.shape[-2] != size * len(shown) or strip.shape[-1] != size * columns:
        raise UserError(f"{path} does not fit its record; run the cell again.")
    found: dict[int, list[Shown]] = {}
    for row, (k, verdicts) in enumerate(shown.items()):
        pictures = strip[:, row * size : (row + 1) * size].split(size, dim=-1)
        found[int(k)] = [
            Shown(picture, wanted[int(k)], hits, extra, bool(ok), bool(strange))
            for picture, (hits, extra, ok, strange) in zip(pictures, verdicts)
        ]
    return found
