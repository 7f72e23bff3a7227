"""Composition at inference time: one denoiser asked about few conditions at a time, its answers put together.

Nothing is trained. Every way is a denoiser again, and counts what it costs.
"""

from collections.abc import Callable, Sequence
from typing import Any, Literal, cast, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tessera.conditioning.cells import cell_of, every_cell
from tessera.conditioning.contract import Conditioner, SpatialConditioner
from tessera.errors import UserError
from tessera.models.contract import Denoiser
from tessera.models.patchwise import Patchwise
from tessera.models.precondition import per_image

ComposeMethod = Literal["plain", "sum", "project", "localize"]
COMPOSE_METHODS: tuple[str, ...] = get_args(ComposeMethod)
NEAR = ("project", "localize")  # methods that need to know where a condition lies in the image

Regions = Callable[[Sequence[Any], int], Tensor]
"""Which pixels belong to each of the wanted objects: (wanted, size) to (K, size, size) bool, disjoint."""


class Composed(nn.Module):
    """Shared by all ways: asks the denoiser, in batches, and counts.

    `calls` are calls of the denoiser, `passes` the images in them: K + 1 passes per image cost K + 1 times
    as much as the plain denoiser, however they are batched.
    """

    def __init__(self, denoiser: Denoiser, conditioner: Conditioner, batch: int | None = None):
        super().__init__()
        if batch is not None and batch < 1:
            raise UserError(f"A batch has at least one image, not {batch}.")
        self.denoiser, self.conditioner, self.batch = denoiser, conditioner, batch
        self.calls = self.passes = 0

    def forward(self, x: Tensor, sigma: Tensor | float, cond: Tensor | None = None) -> Tensor:
        """The clean image (B, C, H, W) for noisy x, noise level () or (B,) and condition (B, dim)."""
        sigma = per_image(sigma, x)
        if cond is None:
            return self.prompt(x, sigma, None)
        return self.composed(x, sigma, cond)

    def composed(self, x: Tensor, sigma: Tensor, cond: Tensor) -> Tensor:
        return self.prompt(x, sigma, cond)

    def prompt(self, x: Tensor, sigma: Tensor, cond: Tensor | None) -> Tensor:
        """The denoiser's answers, `batch` images at a time."""
        step = self.batch or max(len(x), 1)
        answers = []
        for start in range(0, len(x), step):
            rows = slice(start, start + step)
            answers.append(self.denoiser(x[rows], sigma[rows], None if cond is None else cond[rows]))
            self.calls, self.passes = self.calls + 1, self.passes + len(answers[-1])
        return torch.cat(answers) if answers else x.clone()

    def denoise_pairs(self, x: Tensor, sigma: Tensor, image: Tensor, cond: Tensor) -> tuple[Tensor, Tensor]:
        """Answers about (image, condition) pairs, (V,) and (V, dim), each distinct pair asked only once.

        Returns the answers (U, C, H, W) and which of them belongs to each pair (V,).
        """
        pairs = torch.cat([image[:, None].to(cond.dtype), cond], dim=1)
        distinct, which = pairs.unique(dim=0, return_inverse=True)
        about = distinct[:, 0].long()
        return self.prompt(x[about], sigma[about], distinct[:, 1:]), which

    def singles(self, cond: Tensor) -> list[tuple[int, Any]]:
        """(image, wanted) for every single condition of every image."""
        return [
            (row, wanted)
            for row, all_wanted in enumerate(self.conditioner.conditions(cond))
            for wanted in all_wanted
        ]

    def single_conditions(self, singles: Sequence[tuple[int, Any]], cond: Tensor) -> tuple[Tensor, Tensor]:
        """Pairs for `denoise_pairs`: every image with no condition, then with each of its own alone."""
        unconditional = self.conditioner.at((), device=cond.device).to(cond).expand(len(cond), -1)
        alone = [self.conditioner.at((wanted,), device=cond.device).to(cond) for _, wanted in singles]
        numbers = [*range(len(cond)), *(row for row, _ in singles)]
        return torch.tensor(numbers, device=cond.device), torch.cat([unconditional, *alone])


class Sum(Composed):
    """none + weight * sum_j (only j - none): scores added up (Du et al. 2023, Liu et al. 2022).

    For a projective composition this is exact too: away from its region a condition changes nothing. It fails
    where conditions move pixels that are not theirs, as those changes add up.
    """

    def __init__(
        self, denoiser: Denoiser, conditioner: Conditioner, weight: float = 1.0, batch: int | None = None
    ):
        super().__init__(denoiser, conditioner, batch)
        self.weight = weight

    def composed(self, x: Tensor, sigma: Tensor, cond: Tensor) -> Tensor:
        singles = self.singles(cond)
        answers, which = self.denoise_pairs(x, sigma, *self.single_conditions(singles, cond))
        clean = answers[which[: len(x)]]
        for (row, _), number in zip(singles, which[len(x) :].tolist()):
            clean[row] = clean[row] + self.weight * (answers[number] - answers[which[row]])
        return clean


class Project(Composed):
    """Lemma 1 as a sampler: each region from a pass told only its own condition, the rest from one told nothing.

    Patches are told one by one, so that a patch network which hears as far as the regions reach needs a single pass.
    """

    def __init__(
        self,
        denoiser: Denoiser,
        conditioner: Conditioner,
        radius: int = 2,
        regions: Regions | None = None,
        batch: int | None = None,
    ):
        super().__init__(denoiser, conditioner, batch)
        self.in_one_pass = (
            regions is None and isinstance(denoiser, Patchwise) and denoiser.cond_radius == radius
        )
        if regions is None:
            regions = nearest_regions(spatial(conditioner).cells, radius)
        self.regions = regions

    def composed(self, x: Tensor, sigma: Tensor, cond: Tensor) -> Tensor:
        if self.in_one_pass:
            return self.by_patches(x, sigma, cond)
        singles = self.singles(cond)
        answers, which = self.denoise_pairs(x, sigma, *self.single_conditions(singles, cond))
        clean = answers[which[: len(x)]]
        wanted_of = self.conditioner.conditions(cond)
        own = which[len(x) :].split([len(wanted) for wanted in wanted_of])
        for row, wanted in enumerate(wanted_of):
            masks = self.regions(wanted, x.shape[-1]).to(x.device)  # (K, H, W)
            for mask, number in zip(masks, own[row].tolist()):
                clean[row] = torch.where(mask, answers[number], clean[row])
        return clean

    def by_patches(self, x: Tensor, sigma: Tensor, cond: Tensor) -> Tensor:
        """Every patch is told the one condition whose region its cell belongs to, if any."""
        network = cast(Patchwise, self.denoiser)
        cells = every_cell(network.cells, x.device)
        patch_cond = []
        for wanted in self.conditioner.conditions(cond):
            alone = [
                self.conditioner.at((), device=x.device),
                *(self.conditioner.at((one,), device=x.device) for one in wanted),
            ]
            owned = self.regions(wanted, network.cells).flatten(1).to(x.device)  # (K, cells^2)
            owner = (owned * torch.arange(1, len(wanted) + 1, device=x.device)[:, None]).sum(0)  # 0: nobody's
            patch_cond.append(network.patch_cond(torch.cat(alone).to(cond)[owner], cells))
        self.calls, self.passes = self.calls + 1, self.passes + len(x)
        return network.denoised(x, sigma, torch.cat(patch_cond))


class Localize(Composed):
    """Each cell from a pass told only the conditions within `radius` cells of it: a local conditional score in L.

    Cells with the same near conditions share a pass. What the denoiser looks at in the image (N) is left as
    it is.
    """

    def __init__(
        self, denoiser: Denoiser, conditioner: SpatialConditioner, radius: int = 2, batch: int | None = None
    ):
        super().__init__(denoiser, conditioner, batch)
        if radius < 0:
            raise UserError(f"A radius is not negative, as {radius} is.")
        self.near, self.radius = spatial(conditioner), radius

    def composed(self, x: Tensor, sigma: Tensor, cond: Tensor) -> Tensor:
        cells, side = self.near.cells, x.shape[-1]
        if side % cells:
            raise UserError(f"{cells} cells do not divide an image of {side} pixels.")
        near = self.near.near_every_cell(cond, self.radius)  # (B, cells^2, dim)
        image = torch.arange(len(x), device=x.device).repeat_interleave(cells**2)
        answers, which = self.denoise_pairs(x, sigma, image, near.flatten(0, 1))
        chosen = which.reshape(len(x), 1, cells, cells).repeat_interleave(side // cells, 2)
        chosen = chosen.repeat_interleave(
            side // cells, 3
        )  # (B, 1, H, W): which answer each pixel comes from
        pixels = answers.flatten(2).permute(1, 0, 2)  # (C, U, H * W)
        return (
            pixels.gather(1, chosen.flatten(2).permute(1, 0, 2).expand(len(pixels), -1, -1))
            .permute(1, 0, 2)
            .unflatten(2, (side, side))
        )


def spatial(conditioner: Conditioner) -> SpatialConditioner:
    if not isinstance(conditioner, SpatialConditioner):
        raise UserError(
            "These conditions lie nowhere in the image, so that none is near; name regions instead."
        )
    return conditioner


def nearest_regions(cells: int, radius: int) -> Regions:
    """An object's region: the cells within `radius` of its own, each given to the nearest object (the first of equals)."""
    if radius < 0:
        raise UserError(f"A radius is not negative, as {radius} is.")

    def regions(wanted: Sequence[Any], size: int) -> Tensor:
        if size % cells:
            raise UserError(f"{cells} cells do not divide an image of {size} pixels.")
        if not len(wanted):
            return torch.zeros(0, size, size, dtype=torch.bool)
        own = cell_of(torch.tensor(wanted), cells)  # (K, 2)
        offset = every_cell(cells)[None] - own[:, None]  # (K, cells^2, 2)
        inside = offset.abs().amax(-1) <= radius
        apart = torch.where(inside, offset.square().sum(-1), 2 * cells**2 + 1)
        owner = F.one_hot(apart.argmin(0), len(wanted)).T.bool() & inside  # (K, cells^2)
        grid = owner.unflatten(1, (cells, cells))
        return grid.repeat_interleave(size // cells, 1).repeat_interleave(size // cells, 2)

    return regions


def sum(denoiser: Denoiser, conditioner: Conditioner, weight: float = 1.0, batch: int | None = None) -> Sum:
    """Scores of single conditions added up."""
    return Sum(denoiser, conditioner, weight, batch)


def project(
    denoiser: Denoiser,
    conditioner: Conditioner,
    radius: int = 2,
    regions: Regions | None = None,
    batch: int | None = None,
) -> Project:
    """Each region from a pass told only its own condition."""
    return Project(denoiser, conditioner, radius, regions, batch)


def localize(
    denoiser: Denoiser, conditioner: SpatialConditioner, radius: int = 2, batch: int | None = None
) -> Localize:
    """Each cell from a pass told only its near conditions."""
    return Localize(denoiser, conditioner, radius, batch)


def compose_by_name(
    denoiser: Denoiser, conditioner: Conditioner, how: str, radius: int = 2, batch: int | None = None
) -> Composed:
    """The denoiser `how` composes: plain, sum, project or localize."""
    if how not in COMPOSE_METHODS:
        raise UserError(f"A denoiser is composed {', '.join(COMPOSE_METHODS)}, not `{how}`.")
    if how == "plain":
        return Composed(denoiser, conditioner, batch)
    if how == "sum":
        return Sum(denoiser, conditioner, batch=batch)
    return (
        project(denoiser, conditioner, radius, batch=batch)
        if how == "project"
        else localize(denoiser, spatial(conditioner), radius, batch)
    )
