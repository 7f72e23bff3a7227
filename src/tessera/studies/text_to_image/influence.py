"""Where latents and words act: Eq. 9 and Eq. 10 along SDXL's own sampling trajectories.

Both are measured on the conditional network, without guidance. With guidance w and only the conditional prompt
changed, a word's influence is exactly w times the one measured here.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from rich.table import Table
from torch import Tensor

from tessera.analysis.condition_influence import removal_influence
from tessera.analysis.feature_statistics import with_interval
from tessera.analysis.pixel_influence import (
    GradientConfig,
    Pairs,
    Pixel,
    pixel_influence,
    smallest_square,
    total_energy,
)
from tessera.errors import UserError
from tessera.models.contract import Denoiser
from tessera.models.precondition import like_image, per_image
from tessera.rng import generator
from tessera.sampling.trajectory import Trajectory
from tessera.stats import mean_interval, resample_counts, spread_around
from tessera.studies.text_to_image.pipeline import Sdxl
from tessera.studies.text_to_image.words import REMOVAL_NAMES, Removal, find_word, removals_for, without

Of = Literal["clean", "eps"]
Unit = Literal["clean", "eps", "score"]
UNITS = {"clean": "change of the clean latent", "eps": "change of the predicted noise", "score": "change of the score"}
PROBES = ((0.5, 0.5), (0.5, 0.17), (0.5, 0.83), (0.15, 0.5))  # middle, left, right, top, as shares of (rows, cols)
_DOMINANT = 2.0  # how many times the next word's influence the weakest dominant word must have
_POWERS = {"clean": 0, "eps": 1, "score": 2}  # sigma divides once for the noise, twice for the score
_ONE_BY_ONE = GradientConfig(method="loop")  # attention kernels that save memory cannot batch their gradients


def parse_probes(text: str | None, latent: tuple[int, int, int]) -> list[Pixel]:
    """Cells of a latent (C, H, W) such as `64,64 64,20`; by default the middle, left, right and top."""
    height, width = latent[1:]
    if text is None:
        return [Pixel(int(row * height), int(col * width)) for row, col in PROBES]
    try:
        probes = [Pixel(*map(int, cell.split(","))) for cell in text.split()]
    except (TypeError, ValueError):
        raise UserError(f'`{text}` are no cells; write for example "64,64 64,20".') from None
    if not probes:
        raise UserError("At least one cell must be probed.")
    for row, col in probes:
        if not (0 <= row < height and 0 <= col < width):
            raise UserError(f"The probe ({row}, {col}) lies outside a latent of {height} x {width} cells.")
    return probes


# -- Eq. 9 -------------------------------------------------------------------------------------------------


def predicted_noise(denoise: Denoiser) -> Denoiser:
    """(x - clean) / sigma: what is left of a denoiser's derivative without the identity."""

    def noise(x: Tensor, sigma: Tensor, cond: Any = None) -> Tensor:
        return (x - denoise(x, sigma, cond)) / like_image(per_image(sigma, x))

    return noise


@dataclass(frozen=True)
class PixelInfluence:
    """Eq. 9 for P probes at S levels, on the CPU."""

    sigmas: list[float]
    probes: list[Pixel]
    maps: Tensor  # (S, P, H, W), mean over seeds
    sides: Tensor  # (S, P) of the smallest square with 90% of the mean map's energy
    sides_each: Tensor  # (B, S, P) of every seed's
    of: Of

    def record(self, seed: int = 0) -> list[dict[str, Any]]:
        """A row per level and probe; intervals draw seeds again."""
        rng = generator(seed)
        energy = total_energy(self.maps)  # (S, P)
        records = []
        for level, sigma in enumerate(self.sigmas):
            for p, probe in enumerate(self.probes):
                numbers = {
                    "side90": int(self.sides[level, p]),
                    "side90_each": mean_interval(self.sides_each[:, level, p].numpy(), rng).to_dict(),
                    "energy": float(energy[level, p]),
                    "share_at_probe": float(self.maps[level, p][probe].square() / energy[level, p].clamp(min=1e-300)),
                }
                records.append({"sigma": sigma, **probe._asdict(), **numbers})
        return records

    def table(self) -> Table:
        """A row per probe, a column per level."""
        table = Table("probe", *(f"sigma {sigma:.3g}" for sigma in self.sigmas), title="side of 90% of the influence")
        for (row, col), sides in zip(self.probes, self.sides.T.tolist()):
            table.add_row(f"({row}, {col})", *map(str, sides))
        return table


def pixel_study(
    sdxl: Sdxl,
    prompt: str,
    trajectory: Trajectory,
    probes: Sequence[tuple[int, int]],
    *,
    of: Of = "clean",
    pairs: Pairs = "same",
    how: GradientConfig = _ONE_BY_ONE,
    advance: Callable[[], Any] = lambda: None,
) -> PixelInfluence:
    """Every probe at every kept level of every seed; a backward pass per probe and channel."""
    denoise = sdxl.plain if of == "clean" else predicted_noise(sdxl.plain)
    cond = sdxl.conditioner(prompt)
    sigmas = trajectory.sigmas.tolist()
    levels = []
    for sigma, x in zip(sigmas, trajectory.x):
        each = pixel_influence(denoise, x, sigma, cond.expand(len(x), -1), at=probes, pairs=pairs, how=how)
        levels.append(each.cpu())  # (B, P, H, W)
        advance()
    found = torch.stack(levels, dim=1)  # (B, S, P, H, W)
    maps = found.mean(0)
    sides, sides_each = smallest_square(maps, probes), smallest_square(found, probes)
    return PixelInfluence(sigmas, [Pixel(*probe) for probe in probes], maps, sides, sides_each, of)


# -- Eq. 10 ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class WordInfluence:
    """Eq. 10 for K words at S levels, on the CPU: change of the clean latent when a word is removed."""

    words: list[str]
    removal: Removal
    sigmas: list[float]
    probes: list[Pixel]
    maps: Tensor  # (S, K, H, W), mean over seeds
    each: Tensor  # (B, S, P, K), of every seed at the probes

    def at(self, unit: Unit = "clean") -> Tensor:
        """Mean over seeds at the probes, (S, P, K), in another unit."""
        factor = torch.tensor(self.sigmas, dtype=self.each.dtype) ** -_POWERS[unit]
        return self.each.mean(0) * factor[:, None, None]

    @property
    def means(self) -> Tensor:
        """Over the latent, (S, K)."""
        return self.maps.mean((2, 3))

    @property
    def variations(self) -> Tensor:
        """Standard deviation over the latent as a share of the mean, (S, K)."""
        return self.maps.flatten(2).std(2) / self.means.clamp(min=1e-30)

    def dominant(self, level: int, probe: int) -> list[str]:
        """The paper's rule: the fewest strongest words, the weakest of them twice as strong as the next."""
        return dominant(self.words, self.each.mean(0)[level, probe])

    def sameness(self, seed: int = 0) -> list[dict[str, Any]]:
        """Per level: do words act alike at two probes? Pearson's r and the cosine of their K numbers.

        Means over pairs of probes; intervals draw seeds again. Near 1 there is no conditional locality.
        """
        seeds = len(self.each)
        shares = torch.from_numpy(resample_counts(generator(seed), seeds) / seeds)  # (R, B)
        whole = sameness(self.each.double().mean(0))  # name: (S,)
        spread = sameness(torch.einsum("rb,bspk->rspk", shares, self.each.double()))  # name: (R, S)
        records = []
        for level, sigma in enumerate(self.sigmas):
            record: dict[str, Any] = {"sigma": sigma}
            for name, values in whole.items():
                value = float(values[level])
                ends = spread_around(value, spread[name][:, level], (-1.0, 1.0)) if seeds > 1 else None
                record[name] = with_interval(value, ends)
            records.append(record)
        return records

    def record(self, seed: int = 0) -> dict[str, Any]:
        """JSON-ready: curves, dominant words and sameness."""
        return {
            "how": self.removal,
            "unit": UNITS["clean"],
            "words": self.words,
            "levels": [self._level_record(level) for level in range(len(self.sigmas))],
            "sameness": self.sameness(seed) if len(self.probes) > 1 else None,
        }

    def _level_record(self, level: int) -> dict[str, Any]:
        probes = []
        for p, (probe, influence) in enumerate(zip(self.probes, self.at("clean")[level].tolist())):
            probes.append(probe._asdict() | {"influence": influence, "dominant": self.dominant(level, p)})
        return {
            "sigma": self.sigmas[level],
            "probes": probes,
            "mean_over_image": self.means[level].tolist(),
            "variation_over_image": self.variations[level].tolist(),
        }

    def table(self) -> Table:
        """A row per level."""
        table = Table("sigma", "sameness r", "dominant at each probe", title="influence of words")
        alike = ["-"] * len(self.sigmas)
        if len(self.probes) > 1:
            alike = [format_range(**record["pearson_r"]) for record in self.sameness()]
        for level, (sigma, same) in enumerate(zip(self.sigmas, alike)):
            named = ["+".join(self.dominant(level, p)) or "-" for p in range(len(self.probes))]
            table.add_row(f"{sigma:.3g}", same, "   ".join(named))
        return table


def dominant(words: Sequence[str], influence: Tensor) -> list[str]:
    """The smallest m < K with I_(m) >= 2 I_(m+1) of influence (K,) sorted downwards; none, if there is no such m."""
    values, order = influence.sort(descending=True)
    enough = values[:-1] >= _DOMINANT * values[1:]
    if not bool(enough.any()) or not values[0] > 0:
        return []
    return [words[position] for position in order[: int(enough.int().argmax()) + 1].tolist()]


def sameness(influence: Tensor) -> dict[str, Tensor]:
    """Of influence (..., P, K): mean over pairs of probes of Pearson's r and of the cosine, (...)."""
    if influence.shape[-2] < 2:
        raise UserError("Sameness needs at least two probes.")
    first, second = torch.combinations(torch.arange(influence.shape[-2])).T
    found = {}
    for name, rows in (("pearson_r", influence - influence.mean(-1, keepdim=True)), ("cosine", influence)):
        cosines = torch.cosine_similarity(rows[..., first, :], rows[..., second, :], dim=-1, eps=1e-30)
        found[name] = cosines.clamp(-1, 1).mean(-1)
    return found


def format_range(value: float | None, low: float | None, high: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.2f}" if low is None else f"{value:.2f} ({low:.2f} to {high:.2f})"


def word_study(
    sdxl: Sdxl,
    prompt: str,
    trajectory: Trajectory,
    probes: Sequence[tuple[int, int]],
    *,
    words: Sequence[str],
    removal: Removal = "remove",
    rows: int = 16,
    advance: Callable[[], Any] = lambda: None,
) -> WordInfluence:
    """Every word removed in turn, at every kept level of every seed; `rows` latents are denoised together."""
    cond = sdxl.conditioner(prompt)
    less = torch.stack([without(sdxl, prompt, word, removal) for word in words], dim=1)  # (1, K, dim)
    sigmas = trajectory.sigmas.tolist()
    levels = []
    for sigma, x in zip(sigmas, trajectory.x):
        every = cond.expand(len(x), -1), less.expand(len(x), -1, -1)
        levels.append(removal_influence(sdxl.plain, x, sigma, *every, rows=rows).cpu())
        advance()
    found = torch.stack(levels, dim=1)  # (B, S, K, H, W)
    row, col = torch.tensor(probes).T
    names = [find_word(prompt, word).name for word in words]
    each = found[..., row, col].transpose(2, 3)  # (B, S, P, K)
    return WordInfluence(names, removal, sigmas, [Pixel(*probe) for probe in probes], found.mean(0), each)


def word_paths(
    sdxl: Sdxl, prompt: str, trajectory: Trajectory, probes: Sequence[tuple[int, int]], **options: Any
) -> dict[Removal, WordInfluence]:
    """The same for every way of removing a word: whole, by its sequence, by its pooled vector, by its own tokens."""
    paths = {}
    for removal in removals_for(sdxl):
        paths[removal] = word_study(sdxl, prompt, trajectory, probes, removal=removal, **options)
    return paths


def path_table(paths: dict[Removal, WordInfluence]) -> Table:
    """A row per way of removing a word."""
    table = Table("words", "mean influence", "variation over the image", title="paths of a word")
    for removal, found in paths.items():
        table.add_row(REMOVAL_NAMES[removal], f"{found.maps.mean():.3g}", f"{found.variations.mean():.2f}")
    return table
