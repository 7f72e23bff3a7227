"""The first few images of every K of a run as one small file, a row for each K, without gaps."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tessera.errors import UserError
from tessera.evaluation.kmax import TrainingRange
from tessera.evaluation.pipeline import ScoredSamples
from tessera.render.image_io import COMPACT, load_png, save_image

COLUMNS = 8  # as many as the paper looked at
IMAGE_GRID = COMPACT


class ShownImages(NamedTuple):
    """One kept image and its score."""

    image: Tensor  # (3, H, W), 8-bit
    wanted: tuple[Any, ...]
    found: int
    extra: int
    ok: bool
    ood: bool = False  # unlike what the detector was trained on, so its score counts for little


def kept(samples: ScoredSamples) -> dict[int, list[int]]:
    """Numbers of the images that are kept, for each K."""
    rows: dict[int, list[int]] = {}
    for number, prompt in enumerate(samples.prompts):
        rows.setdefault(prompt.k, []).append(number)
    return {k: numbers[:COLUMNS] for k, numbers in rows.items()}


def save_image_grid(path: Path, samples: ScoredSamples) -> None:
    rows = [torch.cat(list(samples.images[numbers]), dim=-1) for numbers in kept(samples).values()]
    save_image(path, torch.cat(rows, dim=-2))


def shown_of(samples: ScoredSamples, training: TrainingRange) -> dict[int, list[ShownImages]]:
    """The images that would be kept, by K, with their scores."""

    def show(number: int) -> ShownImages:
        score, wanted = samples.scores[number], samples.prompts[number].wanted
        ok, ood = score.succeeds(training.extras_allowed), score.ood
        return ShownImages(samples.images[number], wanted, score.num_found, score.extra, ok, ood)

    return {k: [show(number) for number in numbers] for k, numbers in kept(samples).items()}


def shown_record(samples: ScoredSamples, training: TrainingRange) -> dict[str, list[list[int]]]:
    """Scores of the kept images by K: found, extra, whether it succeeds, and whether it is out of distribution."""

    def brief(shown: ShownImages) -> list[int]:
        return [shown.found, shown.extra, int(shown.ok), int(shown.ood)]

    return {str(k): [brief(one) for one in row] for k, row in shown_of(samples, training).items()}


def load_image_grid(path: Path, record: Mapping[str, Any], wanted: dict[int, tuple]) -> dict[int, list[ShownImages]]:
    """The kept images of a record, by K."""
    grid = load_png(path)
    shown = record["shown"]
    size = grid.shape[-2] // len(shown)
    columns = len(next(iter(shown.values())))
    if grid.shape[-2] != size * len(shown) or grid.shape[-1] != size * columns:
        raise UserError(f"{path} does not fit its record; run the cell again.")
    found: dict[int, list[ShownImages]] = {}
    for row, (k, scores) in enumerate(shown.items()):
        images = grid[:, row * size : (row + 1) * size].split(size, dim=-1)
        found[int(k)] = [
            ShownImages(image, wanted[int(k)], hits, extra, bool(ok), bool(ood))
            for image, (hits, extra, ok, ood) in zip(images, scores)
        ]
    return found
