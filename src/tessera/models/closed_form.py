"""Closed-form denoisers: the posterior mean over a data set, or over its patches.

For data y_n the clean image is the posterior mean sum_n w_n y_n, w_n proportional to
exp(-|x - y_n|^2 / (2 sigma^2)). No network, no training.
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import repeat
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tessera.conditioning.contract import SpatialConditioner
from tessera.errors import UserError
from tessera.models.precondition import per_image

_Pieces = Callable[[], Iterable[tuple[Tensor, Tensor | None]]]  # images (n, C, H, W), their conditions
_NUMBERS_AT_ONCE = {"cpu": 1 << 22, "cuda": 1 << 28, "mps": 1 << 25}  # of patches compared together


class _RunningMean:
    """A softmax-weighted mean that is fed in pieces: exact whatever their order and size."""

    def __init__(self, rows: int, width: int, like: Tensor):
        self.peak = like.new_full((rows,), -torch.inf)  # largest logit so far
        self.total = like.new_zeros(rows)  # sum of weights, relative to the peak
        self.sum = like.new_zeros(rows, width)

    def add(self, logits: Tensor, values: Tensor) -> None:
        """`logits` (rows, n), -inf for what has no weight; `values` (n, width)."""
        peak = torch.maximum(self.peak, logits.amax(1))
        anchor = torch.where(peak.isinf(), 0.0, peak)  # no candidate yet: all weights are zero anyway
        shrink, weights = (self.peak - anchor).exp(), (logits - anchor[:, None]).exp()
        self.sum = self.sum * shrink[:, None] + weights @ values
        self.total = self.total * shrink + weights.sum(1)
        self.peak = peak

    @property
    def mean(self) -> Tensor:
        return self.sum / self.total[:, None]

    @property
    def log_total(self) -> Tensor:
        """Logarithm of the sum of all weights, (rows,)."""
        return self.peak + self.total.log()


def _closeness(x: Tensor, y: Tensor, sigma: Tensor) -> Tensor:
    """-|x - y|^2 / (2 sigma^2) up to a constant of each row of x: (Q, P), (n, P), (Q,) to (Q, n)."""
    return (x @ y.T - y.square().sum(1) / 2) / sigma.square()[:, None]


def _working_type(wanted: torch.dtype, device: torch.device) -> torch.dtype:
    return torch.float32 if device.type == "mps" else wanted  # there are no doubles on Apple's GPUs


class Empirical(nn.Module):
    """The exact posterior mean over a data set; given `cond`, over its images with that very condition.

    `data` is a tensor of images, or a function that gives them piece by piece, for sets that do not fit
    into memory. Such a denoiser only reproduces images of the data set: the baseline that does not generalize.
    """

    def __init__(
        self, data: Tensor | _Pieces, cond: Tensor | None = None, batch: int = 1024, dtype: torch.dtype = torch.float64
    ):
        super().__init__()
        if batch < 1:
            raise UserError(f"Images are compared at least one at a time, not {batch}.")
        if isinstance(data, Tensor) and (data.ndim != 4 or not len(data)):
            raise UserError(f"A data set is at least one image, (N, C, H, W), not {tuple(data.shape)}.")
        if cond is not None and (not isinstance(data, Tensor) or len(cond) != len(data)):
            raise UserError("Conditions are given one for every image of a data set.")
        self.batch, self.dtype = batch, dtype
        self.data = nn.Buffer(data) if isinstance(data, Tensor) else data
        self.cond = None if cond is None else nn.Buffer(cond)

    def pieces(self) -> Iterator[tuple[Tensor, Tensor | None]]:
        for images, cond in [(self.data, self.cond)] if isinstance(self.data, Tensor) else self.data():
            conds = repeat(None) if cond is None else cond.split(self.batch)
            yield from zip(images.split(self.batch), conds)

    @torch.no_grad()
    def forward(self, x: Tensor, sigma: Tensor | float, cond: Tensor | None = None) -> Tensor:
        """The clean image (B, C, H, W) for noisy x, noise level () or (B,) and condition (B, dim)."""
        dtype = _working_type(self.dtype, x.device)
        flat, level = x.flatten(1).to(dtype), per_image(sigma, x).to(dtype)
        running = _RunningMean(len(x), flat.shape[1], flat)
        for images, image_cond in self.pieces():
            values = images.flatten(1).to(flat)
            if values.shape[1] != flat.shape[1]:
                raise UserError(f"The data set has images {tuple(images.shape[1:])}, not {tuple(x.shape[1:])}.")
            logits = _closeness(flat, values, level)
            if cond is not None and image_cond is not None:
                logits = logits.masked_fill(~_same_rows(cond, image_cond.to(cond)), -torch.inf)
            running.add(logits, values)
        if bool((running.total == 0).any()):
            raise UserError("No image of the data set has this condition.")
        return running.mean.reshape(x.shape).to(x.dtype)


def _same_rows(a: Tensor, b: Tensor) -> Tensor:
    """Which rows of a (Q, D) equal which of b (n, D): (Q, n) bool."""
    if a.shape[1] != b.shape[1]:
        raise UserError(f"The data set has conditions of {b.shape[1]} numbers, not {a.shape[1]}.")
    return torch.cdist(a, b, p=torch.inf) < 1e-6


class _PatchGroup(NamedTuple):
    """Patches that are denoised alike: the same cell of some images, compared with the same candidates."""

    cell: int
    images: Tensor  # (Q,) which of the batch
    sources: list[tuple[int, Tensor]]  # (cell, images of the data set) the candidates come from


class Local(nn.Module):
    """Every cell from the posterior over patches of the data (Kamb and Ganguli 2024, Niedoba et al. 2024).

    The image is `cells` x `cells` cells; the patch around a cell reaches `radius` cells to each side and is
    zero beyond the border; only the center cell of the answer is kept. Candidates are the data's patches from
    the same location (`reach` 0: with position), up to `reach` cells away, or from anywhere (None: without).

    With `keep` only the k closest candidates count, their distances taken exactly in double precision. If they
    hold all but a share d of the posterior, the answer is off by at most d times the range of the values,
    2 d; the largest d so far is in `dropped`.
    """

    def __init__(
        self,
        images: Tensor,
        cells: int = 16,
        radius: int = 2,
        reach: int | None = 0,
        keep: int | None = None,
        dtype: torch.dtype = torch.float32,
        numbers_at_once: int | None = None,
    ):
        super().__init__()
        if images.ndim != 4 or not len(images) or images.shape[2] != images.shape[3]:
            raise UserError(f"A data set is at least one square image, (N, C, S, S), not {tuple(images.shape)}.")
        if cells < 1 or images.shape[2] % cells:
            raise UserError(f"{cells} cells do not divide an image of {images.shape[2]} pixels.")
        if radius < 0 or (reach is not None and reach < 0) or (keep is not None and keep < 1):
            raise UserError("Radius and reach are not negative, and at least one candidate is kept.")
        self.size, self.cells, self.radius, self.reach, self.keep = (images.shape[2], cells, radius, reach, keep)
        self.channels, self.cell = images.shape[1], self.size // cells  # pixels along a cell
        self.patch = (2 * radius + 1) * self.cell
        self.dtype, self.numbers_at_once, self.dropped = dtype, numbers_at_once, 0.0
        self.padded = nn.Buffer(self.pad(images))

    def pad(self, images: Tensor) -> Tensor:
        """Images with their border, as rows of pixels with channels last: (N, S', S' C).

        A patch is then a few long stretches of memory, which are copied several times as fast.
        """
        padded = F.pad(images, (self.radius * self.cell,) * 4)
        return padded.permute(0, 2, 3, 1).flatten(2).contiguous()

    # -- denoising ----------------------------------------------------------------------------------------

    @torch.no_grad()
    def forward(self, x: Tensor, sigma: Tensor | float, cond: Tensor | None = None) -> Tensor:
        """The clean image (B, C, H, W) for noisy x, noise level () or (B,) and condition (B, dim)."""
        if x.shape[1:] != (self.channels, self.size, self.size):
            raise UserError(f"The data set has images of {self.size} pixels, not {tuple(x.shape[1:])}.")
        dtype = _working_type(self.dtype, x.device)
        noisy, level = self.patches(self.pad(x.to(dtype))), per_image(sigma, x).to(dtype)
        clean = torch.empty_like(x)
        for group in self.groups(cond, x):
            at = divmod(group.cell, self.cells)
            queries = noisy[:, *at][group.images].flatten(1)
            centers = self.posterior(queries, level[group.images], group.sources)
            row, column = at[0] * self.cell, at[1] * self.cell
            clean[group.images, :, row : row + self.cell, column : column + self.cell] = centers.to(x.dtype)
        return clean

    def groups(self, cond: Tensor | None, x: Tensor) -> Iterator[_PatchGroup]:
        images = torch.arange(len(x), device=x.device)
        everything = torch.arange(len(self.padded), device=x.device)
        for cell in range(self.cells**2):
            yield _PatchGroup(cell, images, [(location, everything) for location in self.locations(cell)])

    def posterior(self, queries: Tensor, sigma: Tensor, sources: list[tuple[int, Tensor]]) -> Tensor:
        """Mean center cell (Q, C, cell, cell) of the candidates, given queries (Q, P)."""
        best = None if self.keep is None else _Best(self.keep, queries)
        running = _RunningMean(len(queries), self.cell**2 * self.channels, queries)
        known = self.patches(self.padded)
        for location, rows in self.candidates(sources, queries):
            patches = known[:, *divmod(location, self.cells)].index_select(0, rows).to(queries)  # (n, patch, patch C)
            logits = _closeness(queries, patches.flatten(1), sigma)
            running.add(logits, self.center(patches).flatten(1))
            if best is not None:
                best.add(logits, location * len(known) + rows)
        if best is None:
            return self.as_cells(running.mean)
        self.dropped = max(self.dropped, float(best.dropped(running.log_total).max()))
        return self.as_cells(self.exactly(queries, sigma, best))

    def exactly(self, queries: Tensor, sigma: Tensor, best: "_Best") -> Tensor:
        """Mean over the kept candidates, from differences rather than inner products: (Q, cell^2 C)."""
        dtype = _working_type(torch.float64, queries.device)
        known = self.patches(self.padded)
        location, image = best.candidates // len(known), best.candidates % len(known)
        patches = known[image, location // self.cells, location % self.cells].to(dtype)  # (Q, k, patch, patch C)
        apart = (queries.to(dtype)[:, None] - patches.flatten(2)).square().sum(2)
        logits = -apart / (2 * sigma.to(dtype).square()[:, None])
        weights = logits.masked_fill(best.logits.isinf(), -torch.inf).softmax(1)
        return (weights[:, :, None] * self.center(patches).flatten(2)).sum(1)

    def candidates(self, sources: list[tuple[int, Tensor]], queries: Tensor) -> Iterator[tuple[int, Tensor]]:
        """The candidates in pieces that fit into memory."""
        budget = self.numbers_at_once or _NUMBERS_AT_ONCE.get(queries.device.type, _NUMBERS_AT_ONCE["cpu"])
        step = max(1, budget // (queries.shape[1] + len(queries)))
        for location, rows in sources:
            for piece in rows.split(step):
                if len(piece):
                    yield location, piece

    # -- between image and patches ----------------------------------------------------------------------

    def patches(self, padded: Tensor) -> Tensor:
        """A view of every cell's patch, (N, cells, cells, patch, patch C)."""
        rows = padded.unfold(1, self.patch, self.cell)  # (N, cells, S' C, patch)
        return rows.unfold(2, self.patch * self.channels, self.cell * self.channels)

    def center(self, patches: Tensor) -> Tensor:
        """(..., patch, patch C) to (..., cell, cell C)."""
        first, last = self.radius * self.cell, (self.radius + 1) * self.cell
        return patches[..., first:last, first * self.channels : last * self.channels]

    def as_cells(self, centers: Tensor) -> Tensor:
        """(Q, cell^2 C) to (Q, C, cell, cell)."""
        return centers.reshape(-1, self.cell, self.cell, self.channels).permute(0, 3, 1, 2)

    def locations(self, cell: int) -> list[int]:
        """Cells whose patches are candidates for this one."""
        if self.reach is None:
            return list(range(self.cells**2))
        grid = torch.arange(self.cells**2).unflatten(0, (self.cells, self.cells))
        row, column = divmod(cell, self.cells)
        rows, columns = (slice(max(at - self.reach, 0), at + self.reach + 1) for at in (row, column))
        return grid[rows, columns].flatten().tolist()


class _Best:
    """The k candidates closest to each query, met piece by piece."""

    def __init__(self, keep: int, queries: Tensor):
        self.keep = keep
        self.logits = queries.new_empty(len(queries), 0)  # (Q, k)
        self.candidates = queries.new_empty(len(queries), 0, dtype=torch.long)  # (Q, k)

    def add(self, logits: Tensor, candidates: Tensor) -> None:
        """Logits (Q, n) of candidates with these numbers (n,)."""
        numbers = torch.cat([self.candidates, candidates.expand(len(logits), -1)], 1)
        logits = torch.cat([self.logits, logits], 1)
        self.logits, order = logits.topk(min(self.keep, logits.shape[1]), dim=1)
        self.candidates = numbers.gather(1, order)

    def dropped(self, log_total: Tensor) -> Tensor:
        """Share of the posterior that the kept candidates do not hold, (Q,)."""
        return (1 - (self.logits.logsumexp(1) - log_total).exp()).clamp(0, 1)


class LocalConditional(Local):
    """`Local`, from patches whose nearby conditions agree with the prompt's: a local conditional score.

    N_i is the patch around cell i and L_i what the conditioner's `near` leaves of the conditions there, both
    relative to the patch. Where fewer than `least` candidates agree, conditions are compared within a smaller
    radius, in the end not at all; `agreement` counts the cells that were answered at each radius. `most` takes
    only the first so many agreeing patches of each location, as if the data had ended there: empty floor is
    plentiful, objects are not.
    """

    def __init__(
        self,
        images: Tensor,
        cond: Tensor,
        conditioner: SpatialConditioner,
        radius: int = 2,
        reach: int | None = 0,
        least: int = 8,
        most: int | None = None,
        **options,
    ):
        super().__init__(images, conditioner.cells, radius, reach, **options)
        if tuple(cond.shape) != (len(images), conditioner.dim):
            shape = (len(images), conditioner.dim)
            raise UserError(f"The conditions must be {shape}, one for every image of the data.")
        if least < 1 or (most is not None and most < least):
            raise UserError(f"At least one patch must agree, and no fewer than that are used, not {least}.")
        self.conditioner, self.least, self.most = conditioner, least, most
        self.radii = list(range(radius, -1, -1))
        self.agreement: dict[int | None, int] = dict.fromkeys([*self.radii, None], 0)
        keys = torch.stack([patch_keys(conditioner, cond, near).T for near in self.radii])  # (radii, cells^2, N)
        self.keys, self.order = map(nn.Buffer, keys.sort(dim=2, stable=True))

    def groups(self, cond: Tensor | None, x: Tensor) -> Iterator[_PatchGroup]:
        if cond is None:
            yield from super().groups(cond, x)
            return
        if tuple(cond.shape) != (len(x), self.conditioner.dim):
            raise UserError(f"The condition must be {(len(x), self.conditioner.dim)}, not {tuple(cond.shape)}.")
        prompt_keys = [patch_keys(self.conditioner, cond, near) for near in self.radii]  # of (B, cells^2)
        for cell in range(self.cells**2):
            kinds, kind = torch.stack([keys[:, cell] for keys in prompt_keys], 1).unique(dim=0, return_inverse=True)
            for number, keys in enumerate(kinds):
                images = (kind == number).nonzero()[:, 0]
                yield _PatchGroup(cell, images, self.agreeing(cell, keys))

    def agreeing(self, cell: int, keys: Tensor) -> list[tuple[int, Tensor]]:
        """Candidates for a cell whose conditions, within ever smaller radii, have these keys."""
        for n, near in enumerate(self.radii):
            sources = [(location, self.with_key(n, location, keys[n])) for location in self.locations(cell)]
            if sum(len(rows) for _, rows in sources) >= self.least:
                self.agreement[near] += 1
                return sources
        self.agreement[None] += 1
        first = torch.arange(len(self.padded), device=self.padded.device)[: self.most]
        return [(location, first) for location in self.locations(cell)]

    def with_key(self, n: int, location: int, key: Tensor) -> Tensor:
        """Images of the data whose patch at `location` has this key: a stretch of the sorted keys."""
        keys, order = self.keys[n, location], self.order[n, location]
        ends = torch.searchsorted(keys, key.expand(1)), torch.searchsorted(keys, key.expand(1), right=True)
        return order[int(ends[0]) : int(ends[1])][: self.most]


def patch_keys(conditioner: SpatialConditioner, cond: Tensor, radius: int) -> Tensor:
    """One number (B, cells^2) per patch that is equal for equal counts of conditions around its cell.

    The counts are those of `near`, relative to the patch; their sum with fixed random 64-bit weights wraps
    around, so unlike patches share a number with probability of about 2^-64.
    """
    counts = conditioner.as_map(cond)[:, :1].float()  # (B, 1, cells, cells); both kinds of conditioner count first
    around = F.unfold(counts, 2 * radius + 1, padding=radius).round().long()  # (B, (2r + 1)^2, cells^2)
    generator = torch.Generator().manual_seed(radius)
    weights = torch.randint(-(2**62), 2**62, (around.shape[1],), generator=generator).to(cond.device)
    return (around * (2 * weights + 1)[:, None]).sum(1)
