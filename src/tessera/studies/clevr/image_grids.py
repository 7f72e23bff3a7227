"""A strip keeps the first few images of every K of a job as one small file, a row for each K, without gaps."""

from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tessera.errors import UserError
from tessera.evaluation.kmax import TrainingRange
from tessera.render.image_io import COMPACT, load_png, save_compact
from tessera.studies.clevr.evaluate import Answers, succeeded

COLUMNS = 8  # as many as the paper looked at
IMAGE_GRID = COMPACT


class ShownImages(NamedTuple):
    """One kept image and the verdict on it."""

    image: Tensor  # (3, H, W), 8-bit
    wanted: tuple[Any, ...]
    found: int
    extra: int
    ok: bool
    ood: bool = False  # not a scene the detector knows, so its word counts for little


def kept(answers: Answers) -> dict[int, list[int]]:
    """Numbers of the images that are kept, for each K."""
    rows: dict[int, list[int]] = {}
    for number, prompt in enumerate(answers.prompts):
        rows.setdefault(len(prompt.wanted), []).append(number)
    return {k: numbers[:COLUMNS] for k, numbers in rows.items()}


def save_image_grid(path: Path, answers: Answers) -> None:
    rows = [torch.cat(list(answers.images[numbers]), dim=-1) for numbers in kept(answers).values()]
    save_compact(path, torch.cat(rows, dim=-2))


def shown_of(answers: Answers, training: TrainingRange) -> dict[int, list[ShownImages]]:
    """The images that would be kept, by K, and the verdicts on them."""
    prompts, verdicts = answers.prompts, answers.verdicts

    def show(number: int) -> ShownImages:
        verdict = verdicts[number]
        ok, ood = succeeded(verdict, training), answers.ood[number]
        return ShownImages(
            answers.images[number], prompts[number].wanted, verdict.found, verdict.extra, ok, ood
        )

    return {k: [show(number) for number in numbers] for k, numbers in kept(answers).items()}


def shown_record(answers: Answers, training: TrainingRange) -> dict[str, list[list[int]]]:
    """Verdicts on the kept images by K: found, extra, whether it will do, and whether it is strange."""

    def brief(shown: ShownImages) -> list[int]:
        return [shown.found, shown.extra, int(shown.ok), int(shown.ood)]

    return {str(k): [brief(one) for one in row] for k, row in shown_of(answers, training).items()}


def load_image_grid(
    path: Path, record: dict[str, Any], wanted: dict[int, tuple]
) -> dict[int, list[ShownImages]]:
    """The kept images of a record, by K."""
    strip = load_png(path)
    shown = record["shown"]
    size = strip.shape[-2] // len(shown)
    columns = len(next(iter(shown.values())))
    if strip.shape[-2] != size * len(shown) or strip.shape[-1] != size * columns:
        raise UserError(f"{path} does not fit its record; run the cell again.")
    found: dict[int, list[ShownImages]] = {}
    for row, (k, verdicts) in enumerate(shown.items()):
        images = strip[:, row * size : (row + 1) * size].split(size, dim=-1)
        found[int(k)] = [
            ShownImages(image, wanted[int(k)], hits, extra, bool(ok), bool(ood))
            for image, (hits, extra, ok, ood) in zip(images, verdicts)
        ]
    return found
