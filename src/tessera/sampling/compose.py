"""Composition at inference time: one denoiser called with few conditions at a time, and its outputs combined.

Nothing is trained. Each method is again a denoiser, D(x; sigma, c), and counts its cost.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, cast, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tessera.conditioning.cells import cell_of, every_cell
from tessera.conditioning.contract import Conditioner, SpatialConditioner
from tessera.errors import UserError
from tessera.models.contract import Denoiser
from tessera.models.model import Model
from tessera.models.patchwise import Patchwise
from tessera.models.precondition import per_image

ComposeMethod = Literal["plain", "sum", "project", "localize"]
COMPOSE_METHODS: tuple[str, ...] = get_args(ComposeMethod)
NEAR = ("project", "localize")  # methods that need to know where a condition lies in the image

_Regions = Callable[[Sequence[Any], int], Tensor]
"""Which pixels belong to each of the wanted objects: (wanted, size) to (K, size, size) bool, disjoint."""


class Composed(nn.Module):
    """The denoiser itself, and the base of all methods: calls it in batches and counts.

    `calls` are calls of the denoiser, `passes` the images in them: K + 1 passes per image cost K + 1 times
    as much as the plain denoiser, however they are batched.
    """

    def __init__(self, denoiser: Denoiser, conditioner: Conditioner, radius: int = 2, *, batch: int | None = None):
        super().__init__()
        if batch is not None and batch < 1:
            raise UserError(f"A batch has at least one image, not {batch}.")
        if radius < 0:
            raise UserError(f"A radius is not negative, as {radius} is.")
        self.denoiser, self.conditioner, self.radius, self.batch = denoiser, conditioner, radius, batch
        self.calls = self.passes = 0

    def forward(self, x: Tensor, sigma: Tensor | float, cond: Tensor | None = None) -> Tensor:
        """The clean image (B, C, H, W) for noisy x, noise level () or (B,) and condition (B, dim)."""
        sigma = per_image(sigma, x)
        return self.denoise(x, sigma, None) if cond is None else self.composed(x, sigma, cond)

    def composed(self, x: Tensor, sigma: Tensor, cond: Tensor) -> Tensor:
        return self.denoise(x, sigma, cond)

    def denoise(self, x: Tensor, sigma: Tensor, cond: Tensor | None) -> Tensor:
        """The denoiser's output, `batch` images at a time."""
        step = self.batch or max(len(x), 1)
        outputs = []
        for start in range(0, len(x), step):
            rows = slice(start, start + step)
            outputs.append(self.denoiser(x[rows], sigma[rows], None if cond is None else cond[rows]))
            self.calls, self.passes = self.calls + 1, self.passes + len(outputs[-1])
        return torch.cat(outputs) if outputs else x.clone()

    def denoise_pairs(self, x: Tensor, sigma: Tensor, image: Tensor, cond: Tensor) -> tuple[Tensor, Tensor]:
        """D of V pairs of an image's number (V,) and a condition (V, dim), once for each distinct pair.

        Returns the outputs (U, C, H, W), and which of them belongs to each pair (V,).
        """
        pairs = torch.cat([image[:, None].to(cond.dtype), cond], dim=1)
        distinct, which = pairs.unique(dim=0, return_inverse=True)
        number = distinct[:, 0].long()
        return self.denoise(x[number], sigma[number], distinct[:, 1:]), which

    def each_alone(self, x: Tensor, sigma: Tensor, cond: Tensor) -> tuple[Tensor, list[list[Tensor]]]:
        """D without a condition (B, C, H, W), and D with each single condition of each image (C, H, W)."""
        wanted_of = self.conditioner.conditions(cond)
        numbers, conds = [*range(len(cond))], [self._at(cond).expand(len(cond), -1)]
        for number, wanted in enumerate(wanted_of):
            numbers += [number] * len(wanted)
            conds += [self._at(cond, one) for one in wanted]
        outputs, which = self.denoise_pairs(x, sigma, torch.tensor(numbers, device=cond.device), torch.cat(conds))
        single = which[len(cond) :].split([len(wanted) for wanted in wanted_of])
        return outputs[which[: len(cond)]], [list(outputs[rows]) for rows in single]

    def _at(self, cond: Tensor, *wanted: Any) -> Tensor:
        """The condition (1, dim) of these alone, like `cond`."""
        return self.conditioner.at(wanted, device=cond.device).to(cond)


class Sum(Composed):
    """D(none) + weight * sum_j (D(only j) - D(none)): scores added up (Du et al. 2023, Liu et al. 2022).

    For a projective composition this is exact too, since a condition changes nothing outside its region. It fails
    where a condition changes other pixels, as those changes add up.
    """

    def __init__(self, denoiser: Denoiser, conditioner: Conditioner, radius: int = 2, *, weight=1.0, **options: Any):
        super().__init__(denoiser, conditioner, radius, **options)
        self.weight = weight

    def composed(self, x: Tensor, sigma: Tensor, cond: Tensor) -> Tensor:
        unconditional, alone = self.each_alone(x, sigma, cond)
        clean = unconditional.clone()
        for number, outputs in enumerate(alone):
            for output in outputs:
                clean[number] += self.weight * (output - unconditional[number])
        return clean


class Project(Composed):
    """Lemma 1 as a sampler: the region of j from D(only j), the other pixels from D(none).

    A patch network whose `cond_radius` is `radius` needs a single pass: each patch gets its own condition.
    """

    def __init__(
        self,
        denoiser: Denoiser,
        conditioner: Conditioner,
        radius: int = 2,
        regions: _Regions | None = None,
        **options: Any,
    ):
        super().__init__(denoiser, conditioner, radius, **options)
        self.in_one_pass = regions is None and isinstance(denoiser, Patchwise) and denoiser.cond_radius == radius
        self.regions = regions or nearest_regions(_spatial(conditioner).cells, radius)

    def composed(self, x: Tensor, sigma: Tensor, cond: Tensor) -> Tensor:
        if self.in_one_pass:
            return self.by_patches(x, sigma, cond)
        clean, alone = self.each_alone(x, sigma, cond)
        for number, masks in enumerate(self.masks(cond, x.shape[-1])):
            for mask, output in zip(masks, alone[number]):
                clean[number] = torch.where(mask, output, clean[number])
        return clean

    def masks(self, cond: Tensor, size: int) -> Iterator[Tensor]:
        """The regions (K, size, size) of every image."""
        for wanted in self.conditioner.conditions(cond):
            yield self.regions(wanted, size).to(cond.device)

    def by_patches(self, x: Tensor, sigma: Tensor, cond: Tensor) -> Tensor:
        """Every patch is conditioned on the one object whose region its cell belongs to, if any."""
        network = cast(Patchwise, self.denoiser)
        cells = every_cell(network.cells, x.device)
        patch_cond = []
        for wanted, masks in zip(self.conditioner.conditions(cond), self.masks(cond, network.cells)):
            alone = torch.cat([self._at(cond), *(self._at(cond, one) for one in wanted)])  # (1 + K, dim)
            numbers = torch.arange(1, len(wanted) + 1, device=x.device)
            owner = (masks.flatten(1) * numbers[:, None]).sum(0)  # (cells^2,), 0: no object's region
            patch_cond.append(network.patch_cond(alone[owner], cells))
        self.calls, self.passes = self.calls + 1, self.passes + len(x)
        return network.denoised(x, sigma, torch.cat(patch_cond))


class Localize(Composed):
    """Each cell from D with only the conditions within `radius` cells of it: a local conditional score in L.

    Cells with the same near conditions share a pass. The pixels that the denoiser depends on (N) stay as they are.
    """

    def __init__(self, denoiser: Denoiser, conditioner: Conditioner, radius: int = 2, **options: Any):
        super().__init__(denoiser, conditioner, radius, **options)
        self.near = _spatial(conditioner)

    def composed(self, x: Tensor, sigma: Tensor, cond: Tensor) -> Tensor:
        cells, batch = self.near.cells, len(x)
        near = self.near.near_every_cell(cond, self.radius)  # (B, cells^2, dim)
        image = torch.arange(batch, device=x.device).repeat_interleave(cells**2)
        outputs, which = self.denoise_pairs(x, sigma, image, near.flatten(0, 1))
        chosen = _enlarge(which.reshape(batch, cells, cells), x.shape[-1])  # (B, H, W): the output of each pixel
        # gather takes each pixel from its own output: (C, U, H W) at (C, B, H W)
        pixels = outputs.flatten(2).transpose(0, 1)
        clean = pixels.gather(1, chosen.flatten(1).expand(len(pixels), -1, -1))
        return clean.transpose(0, 1).unflatten(2, x.shape[-2:])


_METHODS: dict[str, type[Composed]] = {"plain": Composed, "sum": Sum, "project": Project, "localize": Localize}


def compose(model: Model, how: str = "sum", radius: int = 2, batch: int | None = None) -> Model:
    """A model that composes conditions at inference time; nothing is trained.

    Args:
        model: the model to compose.
        how: `sum` (scores of single conditions added up), `project` (each region from a pass with its own condition
            only), `localize` (each cell from a pass with its near conditions only) or `plain` (as it is).
        radius: cells to each side of a location that are its region, or whose conditions are near.
        batch: images denoised together.

    Returns:
        A `Model` with the same conditioner and size.

    Example:
        >>> import tessera
        >>> model = tessera.compose(tessera.load("exp2"), "sum")
        >>> model.sample([(0.65, 0.65), (0.25, 0.65)], steps=2).shape
        torch.Size([1, 3, 64, 64])
    """
    return model.copy_with(compose_by_name(model.denoiser, model.conditioner, how, radius, batch))


def compose_by_name(
    denoiser: Denoiser, conditioner: Conditioner, how: str, radius: int = 2, batch: int | None = None
) -> Composed:
    """The denoiser composed by the method `how`: plain, sum, project or localize."""
    if how not in _METHODS:
        raise UserError(f"A denoiser is composed {', '.join(_METHODS)}, not `{how}`.")
    return _METHODS[how](denoiser, conditioner, radius, batch=batch)


def nearest_regions(cells: int, radius: int) -> _Regions:
    """An object's region: the cells within `radius` of its own, each given to the nearest object (the first of equals)."""

    def regions(wanted: Sequence[Any], size: int) -> Tensor:
        if not len(wanted):
            return torch.zeros(0, size, size, dtype=torch.bool)
        own = cell_of(torch.tensor(wanted), cells)  # (K, 2)
        offset = every_cell(cells)[None] - own[:, None]  # (K, cells^2, 2)
        inside = offset.abs().amax(-1) <= radius
        # beyond the radius: farther than any cell within it
        distance = torch.where(inside, offset.square().sum(-1), 2 * cells**2 + 1)
        owner = F.one_hot(distance.argmin(0), len(wanted)).T.bool() & inside  # (K, cells^2)
        return _enlarge(owner.unflatten(1, (cells, cells)), size)

    return regions


def _enlarge(grids: Tensor, size: int) -> Tensor:
    """Grids (N, cells, cells) as images (N, size, size)."""
    cells = grids.shape[-1]
    if size % cells:
        raise UserError(f"{cells} cells do not divide an image of {size} pixels.")
    return grids.repeat_interleave(size // cells, 1).repeat_interleave(size // cells, 2)


def _spatial(conditioner: Conditioner) -> SpatialConditioner:
    if not isinstance(conditioner, SpatialConditioner):
        raise UserError("These conditions have no location in the image; name their regions instead.")
    return conditioner
